"""The loss whose curvature is measured: a mean over batches, each of which counts what it holds, plus the L2 term."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.curvature.checks import (
    WHOLE,
    blaming,
    random_state,
    require_derivatives,
    require_finite,
    require_independent,
    require_parameters,
    require_place,
    require_replaced,
    require_same,
    require_settings,
    require_used,
    require_value,
    require_weight,
    unused_in,
)
from landscape.curvature.data import Batch, Piece, as_data, checksum, fresh, shapes, size_of, tensors_of
from landscape.curvature.losses import Evaluation, cross_entropy, mse, reduction_of, require_one_shape
from landscape.curvature.modules import (
    ModuleFunction,
    called,
    constants,
    device_of,
    loss_in_precision,
    twice_differentiable,
)
from landscape.curvature.part import current_part
from landscape.errors import ArgumentError, DoesNotFitError, LandscapeError, kind_of
from landscape.results import Shown

Parameters = Mapping[str, Tensor]
Loss = Callable[[Any, Any], Tensor]
"""Of (outputs, targets), or of (model, batch)."""
differentiable = torch.inference_mode(False)
"""Decorates what needs derivatives: without it those of a caller in torch.no_grad or inference_mode would be zeros."""
_MODEL = ("model", "module", "net", "network", "m")
"""What a loss of (model, batch) mostly calls its first argument."""
_CONVEX = (
    (cross_entropy, mse, F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits, F.l1_loss, F.huber_loss),
    (nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss),
)
_PROBE = 32
"""Most samples by which derivatives are checked."""


class Objective(Shown):
    """L(theta) = sum_b w_b loss_b(theta) / sum_b w_b + (weight_decay/2) |theta|^2 over batches b.

    The module is not changed: no .grad, mode, buffer or requires_grad. Cross-entropy of torch is evaluated in a form
    that keeps its digits at low loss. Attention uses torch's plain kernel, because the fused ones have no second
    derivative.

    Args:
        model: a torch module, or a function of (parameters by name, inputs).
        data: one batch, or a DataLoader or list of batches: pairs (inputs, targets), dicts, graphs or other objects
            that hold tensors. Inputs that are a tuple or a dict are the module's arguments.
        targets: those of one batch: `Objective(model, inputs, targets, loss)`. The loss may take this place, too.
        loss: a loss of torch with its own reduction, whose mean or sum over all data is torch's value; a function of
            (outputs, targets) or of (model, batch). Default: `cross_entropy`; for dicts with `labels`, the `loss` among
            the model's outputs.
        weight_decay: of the L2 term.
        chunk_size: samples that go through the model at once; only where the loss of a batch is the same in parts.
            Default: batches are never cut.
        dtype: precision of floating-point data, buffers and products.
        weight: what a batch counts in the mean, as a function of it. Default: what torch's own mean divides by, which
            is the tokens or class weights of a cross-entropy, else the samples.

    Raises:
        ArgumentError: a ValueError, for data, modules and losses that have no Hessian in this sense.
    """

    shown = ("count", "num_pieces", "weight_decay", "dtype", "device")

    @differentiable
    def __init__(
        self,
        model: nn.Module | Callable[[Parameters, Any], Any],
        data: Any,
        targets: Any = None,
        loss: Loss | None = None,
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        dtype: torch.dtype = torch.float64,
        weight: Callable[[Batch], float] | None = None,
    ) -> None:
        if loss is None and callable(targets) and not tensors_of(targets):
            targets, loss = None, targets
        require_settings(model, loss, weight_decay, dtype, weight)
        self._data = as_data(data, targets, chunk_size, device_of(model))
        self._part = current_part()
        if self._part:
            self._part.seen.append(f"{checksum([constants(model), constants(loss)]):08x}")
        self._originals, self._weight = (model, loss, weight), weight
        self.dtype, self.weight_decay, self.device = dtype, weight_decay, self._data.device
        self._model = ModuleFunction(model, dtype) if isinstance(model, nn.Module) else model
        chosen = self._default_loss() if loss is None else loss
        self.loss = chosen
        self._reduction, self._is_convex = _reduction_of(chosen), _is_convex(chosen)
        self._loss = loss_in_precision(chosen, dtype)
        self._takes_model: bool | None = True if chosen is _own_loss else None
        self._evaluation: Evaluation | None = None
        # Shared by copies, as `_sound` is: any of them may be the first to learn it.
        self._counts: list[float] = [1.0] if self._reduction == "sum" and weight is None else []
        self._sound: set[tuple[str, ...]] = set()
        self._probed: Piece | None = None
        # As in training, unless a model that makes tensors of its own does not run so.
        self._default = torch.get_default_dtype()

    def in_dtype(self, dtype: torch.dtype) -> Objective:
        """The same objective in another precision."""
        model, loss, weight = self._originals
        other = Objective(model, self._data, None, loss, self.weight_decay, dtype=dtype, weight=weight)
        other._takes_model, other._counts, other._sound = self._takes_model, self._counts, self._sound
        other._part = self._part
        return other

    def with_model(self, model: nn.Module) -> Objective:
        """The same objective of a copy of the module with other buffers."""
        other = copy.copy(self)
        other._originals, other._model = (model, *self._originals[1:]), ModuleFunction(model, self.dtype)
        return other

    def with_decay(self, weight_decay: float) -> Objective:
        """The same objective with another L2 term; what was checked is not checked again."""
        other = copy.copy(self)
        other.weight_decay = weight_decay
        return other

    def of(self, data: Any = None, model: nn.Module | None = None) -> Objective:
        """The same loss and L2 term, of other data or of another model; None: as here."""
        own, loss, weight = self._originals
        return Objective(
            own if model is None else model,
            self._data if data is None else data,
            None,
            loss,
            self.weight_decay,
            self._data.chunk_size,
            self.dtype,
            weight,
        )

    def batch(self, i: int) -> Objective:
        """The objective of batch `i` alone: its own mean, and the same L2 term. Raises ArgumentError for no batch."""
        return self.of([self._data.some(require_place("batch", i, len(self._data)))])

    def subset(self, samples: Sequence[int] | Tensor) -> Objective:
        """The objective of some samples alone: their own mean, and the same L2 term.

        They stay in the batches that they are in.

        Args:
            samples: their places in the data, one batch after the other.

        Raises:
            ArgumentError: for places outside the data or given twice, and for batches that cannot be taken apart.
        """
        samples = samples.tolist() if isinstance(samples, Tensor) else samples
        places = [require_place("sample", i, sum(self._data.sizes)) for i in samples]
        if not places or len(set(places)) < len(places):
            raise ArgumentError(f"{len(places)} samples, {len(set(places))} of them different", "give each once")
        batches, start = [], 0
        for i, size in enumerate(self._data.sizes):
            at = [place - start for place in places if start <= place < start + size]
            batches += [self._data.some(i, torch.tensor(at))] if at else []
            start += size
        return self.of(batches)

    @property
    def module(self) -> nn.Module | None:
        """The torch module, without what wraps it; None for a function."""
        return self._model.module if isinstance(self._model, ModuleFunction) else None

    def total(self, mine: Tensor) -> Tensor:
        """The sum over all samples of what `mine` is over those of this rank."""
        return self._part.total(mine) if self._part else mine

    @property
    def count(self) -> float:
        """What the sum over batches is divided by; 1 for a loss that is a sum."""
        if self._count is None:
            if not isinstance(self._model, ModuleFunction):
                return float("nan")
            self._pass(dict(self._model.module.named_parameters()))
        return cast(float, self._count)

    @property
    def _count(self) -> float | None:
        return self._counts[0] if self._counts else None

    @property
    def sums(self) -> dict[int, int]:
        """Checksums of the batches by their numbers, on one of several ranks of its own alone."""
        return self._data.sums

    @property
    def is_sum(self) -> bool:
        """Whether the loss is a sum, not a mean."""
        return self._reduction == "sum" and self._weight is None

    @property
    def has_weights(self) -> bool:
        """Whether `weight=` says what batches count."""
        return self._weight is not None

    @property
    def num_pieces(self) -> int:
        """Batches, or chunks of them, that one pass takes."""
        return self._data.num_pieces

    def batches(self) -> Iterator[Batch]:
        """Each whole batch, in the objective's precision and on its device."""
        for i in range(len(self._data)):
            yield fresh(self._data.some(i), self.dtype)

    @property
    def has_convex_loss(self) -> bool:
        """Whether the loss is known to be convex in the outputs: cross-entropies, squared and absolute errors."""
        return self._is_convex

    @contextlib.contextmanager
    def at(self, params: Parameters) -> Iterator[None]:
        """Context in which the model has these parameters and can be differentiated: around forward and backward.

        Backward may compute parts of forward again (activation checkpointing).
        """
        context = self._model.at(params) if isinstance(self._model, ModuleFunction) else contextlib.nullcontext()
        with self._evaluating(), context:
            yield

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[Evaluation]:
        if self._evaluation is not None:
            yield self._evaluation
            return
        with twice_differentiable(self._default), Evaluation(self.dtype) as self._evaluation:
            try:
                yield self._evaluation
            finally:
                self._evaluation = None

    @differentiable
    def require_sound(self, params: Parameters) -> None:
        """Raise unless the loss is one finite value at these parameters that depends on each of them, twice.

        ArgumentError also where the loss of the same parameters differs between two calls, where samples of a batch
        that is cut depend on each other, and where automatic differentiation is wrong; NumericsError where a value is
        not finite. Once for each set of names: two passes over the data, two more over a batch that is cut, and
        derivatives on at most a quarter of its samples, or on all where the batch cannot be taken apart.
        """
        if tuple(params) in self._sound:
            return
        probe = self._probe(params)
        self._require_left_alone(probe, params)
        once, twice = self._pass(params), self._pass(params)
        require_finite(once)
        for a, b in zip(once.tolist(), twice.tolist(), strict=True):
            if abs(a - b) > 1e-6 * abs(a):
                raise ArgumentError(
                    f"the loss of the same parameters is {a:.9g} and then {b:.9g}: curvature needs a "
                    "deterministic loss",
                    "put the module in eval mode (dropout), or fix its random numbers",
                )
        if isinstance(self._model, ModuleFunction) and self._model.is_training:
            self._require_nothing_drawn(probe, params)
        if self._data.is_cut:
            self._require_cuttable(params)
        unused = self.unused(params, probe)
        uses = self.total(
            torch.tensor([name not in unused for name in params], dtype=torch.float64, device=self.device)
        )
        require_used([name for name, used in zip(params, uses.tolist(), strict=True) if not used])
        with blaming("the loss cannot be differentiated"):
            if isinstance(self._model, ModuleFunction):
                # Copies, as `params` may be the module's own parameters.
                require_replaced(self._term(probe, self._leaves(params)), self._model.replaced(params))
            self._require_derivatives(probe, params)
        self._sound.add(tuple(params))

    def unused(self, params: Parameters, probe: Piece | None = None) -> list[str]:
        """Parameters that the loss of no sample here depends on."""
        pieces = [*([probe] if probe else []), *self._data.pieces()]
        with blaming("the loss cannot be differentiated"):
            return unused_in((functools.partial(self._term, piece) for piece in pieces), params, self.at)

    def terms(self) -> Iterator[Callable[[Parameters], Tensor]]:
        """Functions of the parameters that sum to the objective, one per batch or chunk and one for L2."""
        for piece in self._data.pieces():
            yield functools.partial(self._term, piece)
        if self._has_penalty:
            yield self._penalty

    def chunks(self) -> Iterator[tuple[Callable[[Parameters], Tensor], Callable[[Tensor], Tensor]]]:
        """Per batch or chunk, the model's outputs as a function of the parameters, and the loss of outputs.

        Raises ArgumentError for a loss of (model, batch), which has no outputs of its own.
        """
        for piece in self._data.pieces():
            yield functools.partial(self._tensor, piece), functools.partial(self._loss_of, piece)

    def targets(self) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Per batch or chunk, a number that no other has on any rank, and its targets, of pairs (inputs, targets)."""
        first, stride = (self._part.rank, self._part.size) if self._part else (0, 1)
        for i, piece in enumerate(self._data.pieces()):
            yield first + i * stride, functools.partial(lambda read: fresh(read()[1], self.dtype), piece)

    @differentiable
    def linearised(self, params: Parameters) -> Iterator[Callable[[Parameters], Tensor]]:
        """Per chunk, its outputs weighted by d loss / d output at `params`: only the outputs' own curvature is left."""
        for outputs, loss in self.chunks():
            at = outputs(params).detach().requires_grad_()
            (slope,) = gradients(loss(at), [at])
            yield functools.partial(_weighted, outputs, slope)

    @differentiable
    def gradient(self, params: Parameters) -> dict[str, Tensor]:
        """Gradient by parameter name."""
        require_parameters(params, self.device)
        leaves = self._leaves(params)
        self.require_sound(leaves)
        flat = self.total(self._gradient(leaves))
        pieces = flat.split([p.numel() for p in leaves.values()])
        return {n: piece.view_as(p) for (n, p), piece in zip(leaves.items(), pieces, strict=True)}

    def _leaves(self, params: Parameters) -> dict[str, Tensor]:
        """Copies that a model may differentiate by, as it does those of its own in training."""
        return {n: p.detach().to(self.dtype, copy=True).requires_grad_() for n, p in params.items()}

    def _gradient(self, params: Parameters) -> Tensor:
        """The gradient (n,) of the terms here."""
        total = [torch.zeros_like(p) for p in params.values()]
        for term in self.terms():
            with self.at(params):
                for sum_, g in zip(total, gradients(term(params), params.values()), strict=True):
                    sum_ += g
        return torch.cat([g.reshape(-1) for g in total])

    @differentiable
    def value(self, params: Parameters) -> float:
        """The objective itself."""
        require_parameters(params, self.device)
        params = self._leaves(params)
        if tuple(params) not in self._sound:
            self._require_left_alone(self._probe(params), params)
        value = self._pass(params).sum() / self.count
        if self._has_penalty:
            value += self._penalty(params).detach()
        return float(self.total(value.double().reshape(1)))

    @property
    def _has_penalty(self) -> bool:
        """Whether the L2 term is one of those here: of several ranks the first has it."""
        return bool(self.weight_decay) and not (self._part and self._part.rank)

    # --- the value of a batch ---

    def _pass(self, params: Parameters) -> Tensor:
        """w_b loss_b of every batch or chunk, and with it `count`, where it is not known."""
        values, weights = [], []
        for piece in self._data.pieces():
            value, weight = self._sum(piece(), params)
            values.append(value.detach())
            weights.append(weight)
        if self._count is None:
            count = float(self.total(torch.tensor([sum(weights)], dtype=torch.float64, device=self.device)))
            if not count > 0:
                raise ArgumentError(
                    "nothing counts: the weights of all batches are 0",
                    "give some samples a target, a class weight or a weight above 0",
                )
            self._counts.append(count)
        return torch.stack(values)

    def _term(self, piece: Piece, params: Parameters) -> Tensor:
        if self._count is None:
            self._pass(params)
        return self._sum(piece(), params)[0] / (self._count or 1.0)

    def _sum(self, batch: Batch, params: Parameters) -> tuple[Tensor, float]:
        """w_b loss_b and w_b."""
        with self.at(params):
            try:
                return self._sum_here(batch, params)
            except ArgumentError as error:
                if self._default == self.dtype or not any(word in str(error) for word in ("dtype", "scalar type")):
                    raise
            torch.set_default_dtype(self.dtype)
            value, weight = self._sum_here(batch, params)
            self._default = self.dtype
            return value, weight

    def _sum_here(self, batch: Batch, params: Parameters) -> tuple[Tensor, float]:
        if self._takes_model is None:
            self._takes_model = self._finds_model(batch, params)
        with self._counting():
            if not self._takes_model:
                return self._of_outputs(self._outputs(batch, params), batch)
            used = fresh(batch, self.dtype)
            with blaming(f"the loss fails on a batch {shapes(used)}"):
                loss = self._loss(self._callable(params), used)
            return self._weighed(loss, batch)

    def _finds_model(self, batch: Batch, params: Parameters) -> bool:
        """Whether the loss takes (model, batch), not (outputs, targets): which of the two it does not fail on."""
        if self._reduction is not None or self._is_convex:
            return False
        first = next(iter(_arguments(self._originals[1])), "")
        if not _is_pair(batch):
            return True
        failure: ArgumentError | None = None
        for takes_model in (first in _MODEL, first not in _MODEL):
            try:
                with self._counting():
                    if takes_model:
                        with blaming("the loss fails on (model, batch)"):
                            self._loss(self._callable(params), fresh(batch, self.dtype))
                    else:
                        self._of_outputs(self._outputs(batch, params), batch)
                return takes_model
            except ArgumentError as error:
                # Where the model fails on inputs as they are, a loss of (model, batch) may prepare them.
                if error.__cause__ is None:
                    raise
                failure = failure or error
        assert failure
        raise failure

    def _callable(self, params: Parameters) -> Callable[..., Any]:
        model = self._model
        return model.module if isinstance(model, ModuleFunction) else functools.partial(model, params)

    def _outputs(self, batch: Batch, params: Parameters) -> Any:
        if not _is_pair(batch):
            raise ArgumentError(
                f"a batch is {kind_of(batch)}, not a pair (inputs, targets)",
                "one batch is a tuple (inputs, targets), and a list holds batches; of any other batch give a loss of "
                "(model, batch): loss=lambda model, batch: ...",
            )
        x = fresh(batch[0], self.dtype)
        with self.at(params), blaming(f"the model fails on inputs {shapes(x)}"):
            if isinstance(self._model, ModuleFunction):
                return called(self._model.module, x)
            return self._model({n: p.to(self.dtype) for n, p in params.items()}, x)

    def _of_outputs(self, outputs: Any, batch: Batch) -> tuple[Tensor, float]:
        if (self._reduction is not None or self._is_convex) and not isinstance(outputs, Tensor):
            raise ArgumentError(
                f"the model returns {kind_of(outputs)}, not a tensor",
                f"say what the loss takes of it: loss=lambda outputs, targets: loss(outputs{_first_part(outputs)}, "
                "targets)",
            )
        targets = fresh(batch[1], self.dtype)
        shown = f"outputs {shapes(outputs)} and targets {shapes(targets)}"
        with blaming(f"the loss fails on {shown}"):
            loss = self._loss(outputs, targets)
        if isinstance(loss, Tensor) and isinstance(outputs, Tensor) and isinstance(targets, Tensor):
            is_column = outputs.shape == (*targets.shape, 1) or targets.shape == (*outputs.shape, 1)
            if is_column and loss.numel() > outputs.numel():
                require_one_shape("the loss", outputs, targets)
        return self._weighed(loss, batch, outputs)

    def _weighed(self, loss: Any, batch: Batch, outputs: Any = None) -> tuple[Tensor, float]:
        require_value(loss, self.dtype)
        loss = loss.to(self.dtype)
        counted = cast(Evaluation, self._evaluation).counted
        once = counted[0] if len(counted) == 1 else ("", 0.0, 0)
        if self._weight is not None:
            with blaming(
                "weight= fails on a batch", "it is called with each batch of the data: call it on one in Python"
            ):
                weight = require_weight(self._weight(fresh(batch, self.dtype)))
            return loss.mean() * weight, weight
        if self.is_sum:
            return loss.sum(), 0.0
        if loss.ndim:
            if self._data.is_cut and len(loss) != size_of(batch):
                raise ArgumentError(
                    f"the loss returns shape {tuple(loss.shape)} for {size_of(batch)} samples of a chunk",
                    "return one value for each sample, or leave chunk_size out",
                )
            # Means over tokens, or chosen samples, of the values of a cross-entropy are other values than these.
            is_its_own = once[0] == "none" and once[2] == loss.numel()
            return loss.sum(), once[1] if is_its_own else float(loss.numel())
        if self._data.is_cut and self._reduction is None:
            raise ArgumentError(
                "the loss is one number for a batch, which is not cut into chunks",
                "return one value for each sample (reduction='none'); or leave chunk_size out and give a list of "
                "smaller batches, also over ranks",
            )
        if once[0] == "mean":
            # torch's mean over nothing is NaN.
            return (loss * once[1] if once[1] else loss.new_zeros(())), once[1]
        size = float(size_of(batch))
        if self._reduction == "mean" and isinstance(outputs, Tensor):
            size = float(outputs.numel()) if outputs.shape == tensors_of(batch[1])[0].shape else size
        if not size:
            if len(self._data) > 1:
                raise ArgumentError(
                    f"what a batch {shapes(batch)} counts in the mean is not known: its tensors have no common length",
                    "say it: weight=lambda batch: ...",
                )
            size = 1.0
        return loss * size, size

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Around the model and the loss of one batch: what its cross-entropies count."""
        evaluation = cast(Evaluation, self._evaluation)
        before, evaluation.counted = evaluation.counted, []
        try:
            yield
        finally:
            evaluation.counted = before

    def _tensor(self, piece: Piece, params: Parameters) -> Tensor:
        batch = piece()
        with self.at(params):
            if self._takes_model is None:
                self._takes_model = self._finds_model(batch, params)
            outputs = None if self._takes_model else self._outputs(batch, params)
        if not isinstance(outputs, Tensor):
            raise ArgumentError(
                "Gauss-Newton parts and influences take a model that returns a tensor and a loss of (outputs, targets)",
                "give such a loss, or take the whole Hessian",
            )
        return outputs

    def _loss_of(self, piece: Piece, outputs: Tensor) -> Tensor:
        with self._evaluating(), self._counting():
            return self._of_outputs(outputs, piece())[0] / self.count

    def _penalty(self, params: Parameters) -> Tensor:
        squares = [p.to(self.dtype).square().sum() for p in params.values()]
        return 0.5 * self.weight_decay * torch.stack(squares).sum()

    def _default_loss(self) -> Loss:
        first = self._data.some(0)
        if _is_pair(first):
            return cross_entropy
        if isinstance(first, Mapping) and "labels" in first:
            return _own_loss
        raise ArgumentError(
            f"there is no loss for batches {shapes(first)}", "give one: loss=lambda model, batch: ..., or pairs (x, y)"
        )

    # --- checks ---

    def _probe(self, params: Parameters) -> Piece:
        """A few samples of the first batch, or all where it cannot be taken apart; the next one where none counts."""
        if self._probed is not None:
            return self._probed
        size = self._data.sizes[0]
        few = min(_PROBE, max(2, size // 4))
        tries = list(self._data.pieces())
        self._probed = tries[0]
        if size > few and not self._part:
            tries.insert(0, functools.partial(self._data.some, 0, slice(0, size - size % few, size // few)))
        # Copies, as a model may write into its parameters.
        leaves = self._leaves(params)
        for some in tries:
            with contextlib.suppress(LandscapeError):
                value = self._sum(some(), leaves)[0]
                if bool(value.isfinite()) and value.requires_grad:
                    self._probed = some
                    break
        return self._probed

    def _require_left_alone(self, probe: Piece, params: Parameters) -> None:
        """Raise ArgumentError for a model that writes into its parameters; tried on copies."""
        # Versions are counted outside of inference mode alone; they tell also of writing that changes nothing here.
        with torch.inference_mode(False), torch.enable_grad():
            before, leaves = (self._leaves(params) for _ in range(2))
            # No leaves, which torch lets nobody write into.
            after = {n: p.clone() for n, p in leaves.items()}
            versions = {n: p._version for n, p in after.items()}
            self._sum(probe(), after)
            require_same(before, {n: p for n, p in after.items() if p._version == versions[n]})

    def _require_nothing_drawn(self, probe: Piece, params: Parameters) -> None:
        """Raise ArgumentError for a module that draws random numbers: two losses may agree by chance."""
        # Read once, as a DataLoader draws a number at each reading.
        states, batch = [], probe()
        for _ in range(2):
            self._sum(batch, params)
            states.append(random_state(self.device))
        if states[0] != states[1]:
            raise ArgumentError(
                "the model draws random numbers in training mode, such as layers to leave out",
                "call model.eval(), or fix its random numbers",
            )

    def _require_cuttable(self, params: Parameters) -> None:
        """Raise ArgumentError unless a batch has the loss of its parts, in another order and of odd sizes."""
        i = max(range(len(self._data)), key=lambda j: self._data.sizes[j])
        size = self._data.sizes[i]
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        step = max(1, min(self._data.chunk_size or size, size // 3) - 1) | 1
        try:
            whole = self._sum(self._data.some(i, slice(0, size)), params)[0]
        except DoesNotFitError:
            order = order[: 2 * (self._data.chunk_size or size)].sort().values
            whole = self._sum(self._data.some(i, order), params)[0]
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
        try:
            parts = [self._sum(self._data.some(i, at), params)[0].detach() for at in order.split(step)]
        except ArgumentError as error:
            raise ArgumentError(f"a batch that is cut into parts of other sizes fails: {error}", WHOLE) from error
        require_independent(whole.detach(), torch.stack(parts))

    def _require_derivatives(self, probe: Piece, params: Parameters) -> None:
        """Check them in float64, where little is lost to rounding and few kinks are met."""
        exact = self if self.dtype == torch.float64 else self.in_dtype(torch.float64)
        try:
            exact._term(probe, {n: p.to(exact.dtype) for n, p in params.items()})
        except ArgumentError:
            # The model runs in float32 alone.
            exact = self
        at = {n: p.to(exact.dtype) for n, p in params.items()}
        require_derivatives(functools.partial(exact._term, probe), at, exact.at)


def _own_loss(model: Callable[..., Any], batch: Mapping[str, Any]) -> Tensor:
    """The loss among what a model makes of a batch with labels, as those of Hugging Face do."""
    outputs = model(**batch)
    return cast(Tensor, outputs["loss"] if isinstance(outputs, Mapping) else outputs.loss)


def _is_pair(batch: Batch) -> bool:
    return type(batch) in (tuple, list) and len(batch) == 2


def _arguments(function: Any) -> list[str]:
    with contextlib.suppress(TypeError, ValueError):
        return list(inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters)
    return []


def _reduction_of(loss: Any) -> str | None:
    """The reduction of torch's own loss; None for another."""
    if isinstance(loss, nn.Module):
        return getattr(loss, "reduction", None) if type(loss).__module__ == "torch.nn.modules.loss" else None
    inner, keywords = getattr(loss, "func", loss), getattr(loss, "keywords", {})
    is_torch = getattr(inner, "__module__", "") == "torch.nn.functional" or inner in (cross_entropy, mse)
    return reduction_of(keywords, "none" if inner in (cross_entropy, mse) else "mean") if is_torch else None


def _is_convex(loss: Any) -> bool:
    inner = getattr(loss, "func", loss)
    return inner in _CONVEX[0] if not isinstance(inner, nn.Module) else type(inner) in _CONVEX[1]


def _first_part(outputs: Any) -> str:
    """The expression for the tensor that is most likely meant."""
    names = outputs.keys() if isinstance(outputs, Mapping) else getattr(outputs, "__dict__", {})
    tensor_names = [
        n for n in names if isinstance(outputs[n] if isinstance(outputs, Mapping) else getattr(outputs, n), Tensor)
    ]
    name = next((n for n in ("logits", *tensor_names) if n in tensor_names), None)
    if name is None:
        return "[0]"
    return f"[{name!r}]" if type(outputs) is dict else f".{name}"


def _weighted(outputs: Callable[[Parameters], Tensor], weights: Tensor, params: Parameters) -> Tensor:
    return (outputs(params) * weights).sum()


def require_objective(objective: object) -> None:
    """Raise ArgumentError for what is no objective."""
    if not isinstance(objective, Objective):
        raise ArgumentError(f"the objective is {kind_of(objective)}", "give an Objective(model, ...)")


def gradients(
    output: Tensor,
    inputs: Iterable[Tensor],
    weights: Tensor | None = None,
    create_graph: bool = False,
    keep: bool = False,
    batched: bool = False,
) -> list[Tensor]:
    """Derivatives of `output` by `inputs`, zeros where it does not depend on them."""
    inputs = list(inputs)
    lead = weights.shape[:1] if batched and weights is not None else ()
    if not output.requires_grad:
        return [x.new_zeros(*lead, *x.shape) for x in inputs]
    if weights is not None and not batched:
        # The same bits; of grad_outputs torch checks the shape by SymPy, whose import takes a second of each process.
        output, weights = (output * weights).sum(), None
    derivatives = torch.autograd.grad(
        output,
        inputs,
        weights,
        create_graph=create_graph,
        retain_graph=create_graph or keep,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return [x.new_zeros(*lead, *x.shape) if g is None else g for g, x in zip(derivatives, inputs, strict=True)]
