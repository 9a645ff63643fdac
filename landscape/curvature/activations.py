"""The loss as a function of a batch's inputs, or of what a part of the model makes of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from landscape.curvature.modules import plain_names
from landscape.curvature.objective import Objective, require_objective
from landscape.errors import ArgumentError, kind_of, suggest


def of_activations(
    objective: Objective, params: Mapping[str, Tensor], module: str = ""
) -> tuple[Objective, dict[str, Tensor]]:
    """The loss of a batch as a function of its inputs or of a module's output: `HessianOperator(*of_activations(...))`.

    Of B samples with d numbers each there are B d rows, in the order of the samples. The Hessian has a diagonal block
    for each sample and no others, unless the model or the loss couples samples.

    Args:
        objective: of a torch module on one whole batch, such as `objective.batch(0)`. Its L2 term is left out.
        params: parameters by name, which are constants here, as is the rest of the module.
        module: the part whose output it is, by name, such as "encoder.layers.0"; "" for the inputs, which are the first
            argument of the model. Integer tokens have no derivatives: name their embedding.

    Returns:
        An objective of a copy of the module, and the one tensor that it is a function of, by name.

    Raises:
        ArgumentError: for an objective of a function or of several batches, for an unknown module, and for what is no
            real tensor or is made more than once in a pass.
    """
    require_objective(objective)
    if objective.module is None:
        raise ArgumentError("the objective is of a function", "give Objective a torch module")
    if objective.num_pieces != 1:
        raise ArgumentError(
            f"activations of {objective.num_pieces} batches or chunks", "take one batch, as objective.batch(0)"
        )
    parts = dict(objective.module.named_modules())
    if module not in parts:
        raise ArgumentError(f"the model has no module {module!r}", suggest(module, parts))
    value = _seen(objective, params, module)
    name = f"outputs_of_{module.replace('.', '_')}" if module else "inputs"
    held = _at(objective, params)
    held.register_parameter(name, nn.Parameter(value))
    # Cloned, as the next layer may work in place.
    if module:
        held.get_submodule(module).register_forward_hook(lambda *_: getattr(held, name).clone())
    else:
        held.register_forward_pre_hook(lambda _, arguments: (getattr(held, name).clone(), *arguments[1:]))
    return objective.of(model=held).with_decay(0.0), {name: value}


def _seen(objective: Objective, params: Mapping[str, Tensor], module: str) -> Tensor:
    """What a module returns at these parameters, or the model's first argument."""
    objective.gradient(params)  # Which checks it: a value is then one pass.
    seen: list[Any] = []

    def see(value: Any) -> None:
        # At once, as the next layer may work in place.
        seen.append(value.detach().to(objective.dtype, copy=True) if _is_real(value) else value)

    assert objective.module is not None
    part = objective.module.get_submodule(module)
    if module:
        handle = part.register_forward_hook(lambda _, arguments, output: see(output))
    else:
        handle = part.register_forward_pre_hook(lambda _, arguments: see(next(iter(arguments), None)))
    try:
        objective.value(params)
    finally:
        handle.remove()
    what = f"the output of {module!r}" if module else "the model's first argument"
    if len(seen) != 1:
        raise ArgumentError(f"{what} is made {len(seen)} times in a pass", "name a module that is called once")
    if not module and seen[0] is None:
        raise ArgumentError("the model is called with keywords alone: it has no first argument", "name a module")
    if not _is_real(seen[0]):
        kind = f"a tensor of {seen[0].dtype}" if isinstance(seen[0], Tensor) else kind_of(seen[0])
        raise ArgumentError(
            f"{what} is {kind}", "name a module that returns one real tensor; of integer tokens their embedding"
        )
    value: Tensor = seen[0]
    return value


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _at(objective: Objective, params: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the module in the objective's precision, with these parameters."""
    held = copy.deepcopy(objective.module)
    assert held is not None
    held = held.double() if objective.dtype == torch.float64 else held.float()
    own, plain = dict(held.named_parameters(remove_duplicate=False)), plain_names(params)
    with torch.no_grad():
        for name, p in params.items():
            own[name if name in own else plain[name]].copy_(p)
    return held
