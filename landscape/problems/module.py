"""Any torch module with its data and loss as a problem."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from landscape.curvature.checks import require_real
from landscape.curvature.objective import Objective, PerSampleLoss, cross_entropy
from landscape.errors import ArgumentError, suggest
from landscape.problems.problem import Arrays, ParameterSpec, Plain, Training, joint
from landscape.storage.runs import RunReader

_MOST_PARTS = 32


class ModuleProblem:
    """A torch module at whatever parameters, over one data set (cf. `Problem`); theory adds nothing to it.

    inputs and targets hold the whole data set, first axis samples; loss and per_token as in `Objective`. blocks: by
    name, parameters or patterns such as "*.attn.*", in the order of the block's rows; block `all` is always there.
    pairs: blocks whose couplings are measured, where the joint block "A,B" is analysed. Tied parameters count once,
    under their first name. Raises ArgumentError for a pattern that matches nothing and for pairs of blocks that
    overlap or are not there.
    """

    name = "the module"
    blocks: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, tuple[str, ...]]
    pairs: Sequence[tuple[str, str]]
    balanced: tuple[str, str] | None = None

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: PerSampleLoss = cross_entropy,
        blocks: Mapping[str, Sequence[str]] | None = None,
        pairs: Sequence[tuple[str, str]] = (),
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        per_token: bool = False,
    ) -> None:
        self._model, self._inputs, self._targets, self._loss = model, inputs, targets, loss
        self._decay, self._chunk_size, self._per_token = weight_decay, chunk_size, per_token
        self.device = inputs.device
        for name, parameter in model.named_parameters():
            require_real(name, parameter)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        for block in blocks or {}:
            if not block or {"/", " ", ","} & set(block):
                raise ArgumentError(f"a block cannot be named {block!r}", "leave out spaces, commas and slashes")
        self.parameters = {
            n: ParameterSpec(shape, tuple(f"{n}_{i}" for i in range(len(shape)))) for n, shape in shapes.items()
        }
        named = {block: resolved(block, patterns, list(shapes)) for block, patterns in (blocks or {}).items()}
        for pair in pairs:
            named[joint(pair)] = _both(pair, named)
        self.blocks = {**named, "all": tuple(shapes)}
        self.default_blocks, self.pairs = tuple(self.blocks), tuple(pairs)
        self.parts = _parts(list(shapes))

    def decay(self, objective: str) -> float:
        """Weight decay of an objective: 0 of `data`, that of the constructor of `regularised`."""
        return self._decay if objective == "regularised" else 0.0

    def objective(self, decay: float) -> Objective:
        """The loss over the data set, with decay/2 |theta|^2."""
        return Objective(
            self._model,
            self._inputs,
            self._targets,
            self._loss,
            weight_decay=decay,
            chunk_size=self._chunk_size,
            per_token=self._per_token,
        )

    def structure(self, params: Mapping[str, Tensor], decay: float) -> None:
        """Nothing is known of a foreign model."""

    def training(self, reader: RunReader, step: int) -> Training:
        """The step alone: what the trainer knew of a foreign model is not recorded."""
        return Training(step, dict.fromkeys(self.parameters, float("nan")), None, float("nan"))

    def plain(self, arrays: Arrays) -> Plain:
        """A copy of the module at stored parameters, in float64."""
        model = copy.deepcopy(self._model).double()
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(torch.from_numpy(arrays[name]))
        inputs = self._inputs.double() if self._inputs.is_floating_point() else self._inputs
        return Plain(model, named, inputs, self._targets, lambda outputs, y: self._loss(outputs, y).mean())


def resolved(block: str, patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The parameters that a block's patterns match, each once, in the order of the patterns."""
    found: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ArgumentError(f"block {block!r}: {pattern!r} matches no parameter", suggest(pattern, names))
        found |= dict.fromkeys(matching)
    if not found:
        raise ArgumentError(f"block {block!r} names no parameter", "give it at least one name or pattern")
    return tuple(found)


def _both(pair: tuple[str, str], blocks: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    for block in pair:
        if block not in blocks:
            raise ArgumentError(f"pair {joint(pair)}: no block {block!r}", suggest(block, blocks))
    first, second = (blocks[block] for block in pair)
    if shared := set(first) & set(second):
        raise ArgumentError(f"pair {joint(pair)}: both blocks hold {min(shared)}", "pair blocks without a common one")
    return (*first, *second)


def _parts(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each parameter, or where they are many those of each top-level module."""
    if len(names) <= _MOST_PARTS:
        return {name: (name,) for name in names}
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(".")[0], []).append(name)
    return {group: tuple(members) for group, members in groups.items()}
