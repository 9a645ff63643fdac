"""What an optimiser of torch knows of each parameter: its learning rate, and Adam's second moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.errors import ArgumentError
from landscape.files.schema import NUMBERS, OPTIMIZER, PARAMETER, Field, Table
from landscape.training.recorded import Forms, array

_MEANINGS = {
    "optimizer_lr": "learning rate; 0: not trained",
    "optimizer_beta_2": "decay rate of Adam's second moments; NaN: another optimiser, whose moments are not corrected",
    "optimizer_epsilon": "what Adam or RMSprop adds to the root of the second moments; NaN: another optimiser",
    "optimizer_updates": "updates that the second moments are a mean of",
}


class OptimizerState:
    """An optimiser beside the model that it trains; it is only read.

    Raises ArgumentError for what is no optimiser of torch, and for one of other parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"the optimizer is {type(optimizer).__name__}", "give a torch.optim.Optimizer")
        self._optimizer = optimizer
        known = {id(parameter) for parameter in parameters.values()}
        if not any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
            raise ArgumentError("the optimizer moves no parameter of the model", "give the one that trains this model")
        # What wraps an optimiser, as accelerate does, names it so.
        inner = getattr(optimizer, "optimizer", optimizer)
        self._is_rmsprop = type(inner) is torch.optim.RMSprop
        self.has_moments = self._is_rmsprop or type(inner) in (torch.optim.Adam, torch.optim.AdamW)
        """Whether it is Adam or RMSprop, whose second moments are the preconditioner of a step."""
        if clash := [name for name in parameters if f"v_{name}" in parameters] if self.has_moments else []:
            raise ArgumentError(
                f"parameter 'v_{clash[0]}' has the name of the second moments of {clash[0]!r}",
                "rename it, or leave out the optimizer",
            )

    def rows(self, parameters: Mapping[str, nn.Parameter], forms: Forms) -> dict[str, dict[str, Any]]:
        """The rows of this moment in the tables of `tables_of`."""
        numbers = {name: np.full(len(forms), np.nan) for name in NUMBERS}
        numbers["optimizer_lr"][:] = numbers["optimizer_updates"][:] = 0
        places = {id(p): (i, name) for i, (name, p) in enumerate(parameters.items())}
        moments = {f"v_{name}": np.zeros(form.shape, form.dtype) for name, form in forms.items()}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in places or not parameter.requires_grad:
                    continue
                i, name = places[id(parameter)]
                numbers["optimizer_lr"][i] = float(group["lr"])
                if not self.has_moments:
                    continue
                numbers["optimizer_epsilon"][i] = group["eps"]
                if not self._is_rmsprop:
                    numbers["optimizer_beta_2"][i] = float(group["betas"][1])
                state: Mapping[str, Tensor] = self._optimizer.state.get(parameter, {})
                if state:
                    numbers["optimizer_updates"][i] = float(state["step"])
                    moments[f"v_{name}"] = array(second_moment(state, group), forms[name])
        return {OPTIMIZER: numbers, **({"moments": moments} if self.has_moments else {})}


def second_moment(state: Mapping[str, Tensor], group: Mapping[str, Any]) -> Tensor:
    """That of Adam, or of RMSprop, which is less the squared mean if it is centred, in float64."""
    if "square_avg" in state:
        v = state["square_avg"].double()
        return v - state["grad_avg"].double().square() if group["centered"] else v
    return state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].double()


def tables_of(parameters: Table, has_moments: bool) -> tuple[Table, ...]:
    """The tables of an optimiser's state beside that of the parameters."""
    numbers = tuple(Field(name, (PARAMETER,), "f8", _MEANINGS[name]) for name in NUMBERS)
    moments = tuple(
        Field(f"v_{f.name}", f.dims, f.dtype, f"the optimiser's second moment of {f.name}") for f in parameters.fields
    )
    state = Table(OPTIMIZER, parameters.row, numbers)
    return (state, Table("moments", parameters.row, moments)) if has_moments else (state,)
