"""D of an optimiser's step -lr D^(-1) grad: from its state in memory, or from a run file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from landscape.curvature.modules import whole
from landscape.errors import ArgumentError, kind_of
from landscape.files.runs import RunReader
from landscape.models import of_run
from landscape.models.module import recorded_training
from landscape.training.optimizer_state import second_moment

KNOWN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
"""Those whose preconditioner is known."""


def preconditioner(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """D of a step -lr D^(-1) grad, lr the largest learning rate of the optimiser, for `Preconditioned(op, D)`.

    It is sqrt(v / (1 - beta_2^t)) + eps of Adam and AdamW, where amsgrad takes the largest v so far; sqrt(v) + eps of
    RMSprop, where v is less the squared mean if centred; 1 of SGD and before the first step. A parameter with a smaller
    learning rate has a D that is larger by the ratio of the two.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop; it is only read.
        params: the model's own parameters by name, such as dict(model.named_parameters()).

    Returns:
        D by name in float64, shaped as the parameters, whole where these are sharded, so that every rank has to call
        this; infinite for those that the optimiser does not move.

    Raises:
        ArgumentError: for another optimiser, and one that moves none of the parameters.
    """
    kind = kind_of_optimizer(optimizer)
    most = max(float(group["lr"]) for group in optimizer.param_groups)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    if not isinstance(params, Mapping):
        raise ArgumentError(f"params are {kind_of(params)}", "give tensors by name: dict(model.named_parameters())")
    if not any(id(p) in groups for p in params.values()):
        raise ArgumentError(
            "the optimizer moves none of these parameters",
            "give the tensors that it trains: dict(model.named_parameters()), not copies; of a sharded module its own, "
            "not those that `gathered` fills",
        )
    D = {}
    for name, parameter in params.items():
        group = groups.get(id(parameter), {})
        rate = float(group.get("lr", 0.0))
        state = optimizer.state.get(parameter, {})
        root = torch.ones(parameter.shape, dtype=torch.float64, device=parameter.device)
        if kind is torch.optim.RMSprop and state:
            root = whole(second_moment(state, group)).sqrt() + float(group["eps"])
        elif kind is not torch.optim.SGD and state:
            v = whole(second_moment(state, group))
            root = (v / (1 - float(group["betas"][1]) ** float(state["step"]))).sqrt() + float(group["eps"])
        # What had no gradient when others had one is not moved. SGD without momentum has no state.
        is_moved = rate and parameter.requires_grad and (state or kind is torch.optim.SGD or not optimizer.state)
        D[name] = root * (most / rate) if is_moved else torch.full_like(root, torch.inf)
    return D


def run_preconditioner(path: Path | str, step: int | None = None) -> dict[str, Tensor]:
    """The same D of the optimiser of a run at a stored step.

    Args:
        path: a run file of `landscape train`, or of a `Recorder` that was given the optimiser.
        step: a stored step; None: the last one.

    Returns:
        D by the file's parameter names in float64; infinite for parameters that were frozen.

    Raises:
        ArgumentError: for a run whose learning rates were not recorded.
        FileError: for a file that is missing, broken or no run.
        StepError: for a step that is not stored.
    """
    with RunReader(path) as reader:
        step = reader.steps[-1] if step is None else step
        shapes = {name: array.shape for name, array in reader.checkpoint(step).items()}
        if (known := reader.optimizer_at(step)) is not None:
            # A checkpoint may hold buffers, too.
            shapes = {name: shapes[name] for name in known["parameter"]}
        if reader.is_recorded:
            training = recorded_training(reader, list(shapes), step)
        else:
            training = of_run(reader, "cpu").training(reader, step)
        # Of a recorded run without moments the optimiser is not known.
        is_adaptive = reader.is_recorded or "moments" in reader.tables
    D = training.preconditioner(shapes, is_adaptive)
    if D is None:
        raise ArgumentError(
            f"{path} does not hold the optimizer's state at step {step}",
            "take a step after the first update of a run whose Adam, AdamW or RMSprop was given to its "
            "Recorder(..., optimizer=optimizer); of SGD, D is 1",
        )
    most = max(training.rates.values())
    return {name: most * piece for name, piece in D.items()}


def kind_of_optimizer(optimizer: torch.optim.Optimizer) -> type:
    """Its class, without what wraps it. Raises ArgumentError for one whose preconditioner is not known."""
    # What wraps an optimiser, as accelerate does, names it so.
    kind = type(getattr(optimizer, "optimizer", optimizer))
    if not issubclass(kind, torch.optim.Optimizer):
        raise ArgumentError(f"the optimizer is {kind_of(optimizer)}", "give a torch.optim.Optimizer")
    if kind not in KNOWN:
        known = ", ".join(k.__name__ for k in KNOWN)
        raise ArgumentError(f"the preconditioner of {kind.__name__} is not known", f"known are {known}")
    return kind
