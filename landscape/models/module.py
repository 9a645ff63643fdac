"""Any torch module with its data and loss as a problem."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.curvature.checks import require_real, require_settings
from landscape.curvature.data import checksum, sum_of
from landscape.curvature.modules import first_names, unwrapped
from landscape.curvature.objective import Loss, Objective
from landscape.errors import ArgumentError, kind_of
from landscape.files.runs import RunReader
from landscape.files.schema import NUMBERS
from landscape.models import state
from landscape.models.blocks import Blocks, Pairs, declared, named_blocks
from landscape.models.problem import Arrays, ParameterSpec, Plain, Problem, Training, plain_axes, shapes_of, tensors
from landscape.results import Shown

_MOST_PARTS = 32


class ModuleProblem(Problem, Shown):
    """A torch module, its data and its loss, to be measured at the parameters of a run file.

    Args:
        model: the module; its own parameters do not matter.
        data, targets, loss, weight, chunk_size, dtype: as in `Objective`. Batches are moved to the module's device.
        blocks: parameters or patterns such as "*.attn.*" by name, in the order of a block's rows; block `all` always
            exists.
        pairs: blocks whose coupling is measured where the joint block "A,B" is analysed.
        weight_decay: of the regularised objective.

    Raises:
        ArgumentError: for a pattern that matches nothing, for pairs of unknown or overlapping blocks, and for data and
            settings that `Objective` refuses.
    """

    shown = ("parameters", "blocks", "pairs", "device")
    name = "the module"
    tied: Mapping[str, str]
    """First name by each other name of a tied parameter."""

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        targets: Any = None,
        loss: Loss | None = None,
        blocks: Blocks | None = None,
        pairs: Pairs = (),
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        weight: Callable[[Any], float] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"the model is {kind_of(model)}", "give a torch.nn.Module")
        model = unwrapped(model)
        self._objective = Objective(model, data, targets, loss, 0.0, chunk_size, dtype, weight)
        self._settings = self._objective.loss, weight
        self._model, self._decay, self.device = model, weight_decay, self._objective.device
        require_settings(model, loss, weight_decay, dtype)
        if next(model.parameters(), None) is None:
            raise ArgumentError(f"{type(model).__name__} has no parameters", "give the module that is trained")
        for name, parameter in model.named_parameters():
            require_real(name, parameter)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        self.parameters = {n: ParameterSpec(shape, plain_axes(n, len(shape))) for n, shape in shapes.items()}
        self.tied = first_names(model)
        self.parts = _parts(list(shapes))
        self._declare(blocks or {}, pairs)

    def _declare(self, blocks: Blocks, pairs: Pairs) -> None:
        self.blocks = {**named_blocks(blocks, pairs, shapes_of(self.parameters)), "all": tuple(self.parameters)}
        # The whole model last: it is the default only where nothing else is declared.
        self.default_blocks = tuple(self.blocks)[:-1] or ("all",)
        self.pairs = tuple(declared(blocks, pairs)[1])

    def or_blocks(self, blocks: Blocks, pairs: Pairs) -> ModuleProblem:
        """The problem with these blocks and pairs where it declares none itself. Raises ArgumentError as at first."""
        if self.default_blocks != ("all",):
            return self
        problem = copy.copy(self)
        problem._declare(blocks, pairs)
        return problem

    def in_dtype(self, dtype: torch.dtype) -> ModuleProblem:
        """The same problem with products in another precision."""
        problem = copy.copy(self)
        problem._objective = self._objective.in_dtype(dtype)
        return problem

    @property
    def buffers(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the buffers that the module's state has, by name; each checkpoint has its own."""
        return {name: tuple(buffer.shape) for name, buffer in state.buffers(self._model).items()}

    def with_buffers(self, buffers: Mapping[str, Any]) -> ModuleProblem:
        """The problem of the module with these numbers in its buffers; the module itself stays as it is.

        buffers: tensors or arrays by name. Raises ArgumentError for a name or shape that the module does not have.
        """
        problem = copy.copy(self)
        problem._model = state.with_buffers(self._model, buffers)
        problem._objective = self._objective.with_model(problem._model)
        return problem

    @property
    def data_sums(self) -> dict[int, int]:
        """Checksums of the batches by their numbers, on one of several ranks of its own alone."""
        return self._objective.sums

    def fingerprint(self) -> dict[str, str]:
        """Checksums of all that the loss depends on but parameters and `buffers`, by what they are of.

        They are of the data, each other buffer or tensor in an attribute of the module, and the loss with its settings.
        Take it before the module is called, which may leave tensors in its attributes.
        """
        settings = (*self._settings, self._decay)
        sums = {"data": sum_of(self.data_sums)}
        sums |= {name: f"{checksum(tensors):08x}" for name, tensors in state.constants(self._model).items()}
        return sums | {"loss": f"{zlib.crc32(state.settings(settings).encode()):08x}"}

    def decay(self, objective: str) -> float:
        """Weight decay of an objective: 0 of `data`, that of the constructor of `regularised`."""
        return self._decay if objective == "regularised" else 0.0

    def objective(self, decay: float) -> Objective:
        """The loss over the data set, with decay/2 |theta|^2."""
        return self._objective.with_decay(decay)

    def training(self, reader: RunReader, step: int) -> Training:
        """The learning rates, and the second moments of Adam, where a Recorder was given the optimiser."""
        return recorded_training(reader, list(self.parameters), step)

    def plain(self, arrays: Arrays) -> Plain:
        """The module at stored parameters, in float64."""
        own = {name: nn.Parameter(value) for name, value in tensors(self, arrays).items()}
        nothing = torch.zeros(1, device=self.device)
        return Plain(_WholeLoss(self._objective, own), own, nothing, nothing, lambda total, _: total)


def recorded_training(reader: RunReader, parameters: Sequence[str], step: int) -> Training:
    """What a recorded run says of these parameters at a stored step, where its Recorder was given the optimiser."""
    rates, nothing = dict.fromkeys(parameters, float("nan")), float("nan")
    known = reader.optimizer_at(step)
    if known is None:
        return Training(step, rates, None, nothing)
    lr, beta_2, epsilon, updates = (dict(zip(known["parameter"], known[n], strict=True)) for n in NUMBERS)
    rates |= {name: float(lr[name]) for name in rates}
    moments = reader.second_moments(step)
    if moments is None or not any(updates[name] > 0 for name in rates):
        return Training(step, rates, None, nothing)
    # RMSprop, which has no beta_2, does not correct its moments.
    scale = {name: 1.0 if np.isnan(beta_2[name]) else 1 - beta_2[name] ** updates[name] for name in moments}
    corrected = {
        name: v.astype("f8") / scale[name] if updates[name] > 0 else np.full(v.shape, np.inf)
        for name, v in moments.items()
    }
    is_adam = not all(np.isnan(beta_2[name]) for name in rates)
    epsilons = {n: float(epsilon[n]) for n in rates if epsilon[n] > 0}
    return Training(step, rates, corrected, nothing, epsilons, is_adam)


class _WholeLoss(nn.Module):
    """The loss over all of the data as one number, whose derivatives are torch's own."""

    def __init__(self, objective: Objective, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.parameter_list = nn.ParameterList(parameters.values())
        self._names, self._objective = list(parameters), objective

    def forward(self, _: Tensor) -> Tensor:
        params = dict(zip(self._names, self.parameter_list, strict=True))
        return torch.stack([term(params) for term in self._objective.terms()]).sum()


def _parts(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each parameter, or where they are many those of each top-level module."""
    if len(names) <= _MOST_PARTS:
        return {name: (name,) for name in names}
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(".")[0], []).append(name)
    return {group: tuple(members) for group, members in groups.items()}
