"""Any torch module with its data and loss as a problem."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscape.curvature.checks import require_real
from landscape.curvature.data import Data, Tree, as_data, fresh
from landscape.curvature.modules import device_of
from landscape.curvature.objective import Adapter, Objective, PerSampleLoss, cross_entropy
from landscape.curvature.weights import WeightFunction, Weights
from landscape.errors import ArgumentError, suggest
from landscape.problems.problem import Arrays, ParameterSpec, Plain, Training, joint, plain_axes
from landscape.storage.runs import RunReader

_MOST_PARTS = 32


class ModuleProblem:
    """A torch module over one data set, at any parameters (cf. `Problem`); without a structure.

    inputs, targets, loss, per_token, outputs and weights are as in `Objective`: tensors, dicts or other trees of them,
    or, instead of both, a DataLoader or another re-iterable of (inputs, targets) batches, which are moved to the
    module's device. blocks: by name, parameters or patterns such as "*.attn.*", in the order of the block's rows; block
    `all` always exists. pairs: blocks whose couplings are measured, where the joint block "A,B" is analysed. Tied
    parameters count once, under their first name. Raises ArgumentError for a pattern that matches nothing, for pairs of
    unknown or overlapping blocks, and for data that `Objective` refuses.
    """

    name = "the module"
    blocks: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, tuple[str, ...]]
    pairs: Sequence[tuple[str, str]]
    balanced: tuple[str, str] | None = None

    def __init__(
        self,
        model: nn.Module,
        inputs: Tree,
        targets: Tree = None,
        loss: PerSampleLoss = cross_entropy,
        blocks: Mapping[str, Sequence[str]] | None = None,
        pairs: Sequence[tuple[str, str]] = (),
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        per_token: bool = False,
        outputs: Adapter | None = None,
        weights: WeightFunction | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"the model is a {type(model).__name__}", "give a torch.nn.Module")
        self._model, self._loss, self._decay = model, loss, weight_decay
        self._settings: dict[str, Any] = {"per_token": per_token, "outputs": outputs, "weights": weights}
        self._data = as_data(inputs, targets, chunk_size, device_of(model))
        self.device = self._data.device
        for name, parameter in model.named_parameters():
            require_real(name, parameter)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        self.parameters = {n: ParameterSpec(shape, plain_axes(n, len(shape))) for n, shape in shapes.items()}
        self.parts = _parts(list(shapes))
        self._declare(blocks or {}, pairs)

    def _declare(self, blocks: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]]) -> None:
        self.blocks = {**named_blocks(blocks, pairs, list(self.parameters)), "all": tuple(self.parameters)}
        self.default_blocks, self.pairs = tuple(self.blocks), tuple(pairs)

    def or_blocks(self, blocks: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]]) -> ModuleProblem:
        """The problem with these blocks and pairs where it declares none itself. Raises ArgumentError as at first."""
        if self.default_blocks != ("all",):
            return self
        found = copy.copy(self)
        found._declare(blocks, pairs)
        return found

    @property
    def cautions(self) -> list[str]:
        """What a user must know of the model: checkpoints hold parameters, and no running statistics."""
        every = self._model.named_modules()
        held = [n for n, m in every if getattr(m, "running_mean", None) is not None and not m.training]
        listed = ", ".join(map(repr, held[:3])) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        return [f"the running statistics of {listed} are those of the given model at every step"] if held else []

    def decay(self, objective: str) -> float:
        """Weight decay of an objective: 0 of `data`, that of the constructor of `regularised`."""
        return self._decay if objective == "regularised" else 0.0

    def objective(self, decay: float) -> Objective:
        """The loss over the data set, with decay/2 |theta|^2."""
        return Objective(self._model, self._data, None, self._loss, decay, **self._settings)

    def structure(self, params: Mapping[str, Tensor], decay: float) -> None:
        """None: the structure of a foreign model is not known."""

    def training(self, reader: RunReader, step: int) -> Training:
        """The step only: files of foreign models have no learning rates or moments."""
        return Training(step, dict.fromkeys(self.parameters, float("nan")), None, float("nan"))

    def plain(self, arrays: Arrays) -> Plain:
        """A copy of the module at stored parameters, in float64."""
        model = copy.deepcopy(self._model).double()
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(torch.from_numpy(arrays[name]))
        whole = _WholeLoss(model, self._data, self._loss, **self._settings)
        nothing = torch.zeros(1, device=self.device)
        return Plain(whole, named, nothing, nothing, lambda total, _: total)


class _WholeLoss(nn.Module):
    """The loss over all of the data as one number, by torch's own gradients and attention's plain kernel."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        loss: PerSampleLoss,
        per_token: bool,
        outputs: Adapter | None,
        weights: WeightFunction | None,
    ) -> None:
        super().__init__()
        self.model, self._data, self._adapt = model, data, outputs
        self._loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
        self._weights = Weights(loss, per_token, weights)

    def forward(self, _: Tensor) -> Tensor:
        sums = []
        total = self._weights.total(piece()[1] for piece in self._data.pieces())
        for piece in self._data.pieces():
            inputs, targets = (fresh(tree, torch.float64) for tree in piece())
            with sdpa_kernel(SDPBackend.MATH):
                found = self.model(**inputs) if isinstance(inputs, dict) else self.model(*_arguments(inputs))
            values = self._loss(found if self._adapt is None else self._adapt(found), self._weights.clean(targets))
            counted = self._weights.of(targets)
            sums.append((values if counted is None else values[counted != 0] * counted[counted != 0]).sum())
        return torch.stack(sums).sum() / total


def _arguments(inputs: Tree) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def named_blocks(
    blocks: Mapping[str, Sequence[str]], pairs: Sequence[tuple[str, str]], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The parameters of declared blocks, and of the joint block of each pair. Raises ArgumentError."""
    for block in blocks:
        if not block or {"/", " ", ","} & set(block):
            raise ArgumentError(f"a block cannot be named {block!r}", "leave out spaces, commas and slashes")
        if block == "all":
            raise ArgumentError("block 'all' is every parameter", "choose another name, or leave it out")
    named = {block: resolved(block, patterns, names) for block, patterns in blocks.items()}
    for pair in pairs:
        named[joint(pair)] = _both(pair, named)
    return named


def resolved(block: str, patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The parameters that a block's patterns match, each once, in the order of the patterns."""
    found: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A name may itself read like a pattern.
        matching = [pattern] if pattern in names else fnmatch.filter(names, pattern)
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
