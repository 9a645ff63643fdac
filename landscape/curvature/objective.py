"""The loss whose curvature is measured, normalised once: a mean over samples plus the L2 term."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from landscape.curvature.checks import (
    blaming,
    random_state,
    require_finite,
    require_independent,
    require_labels,
    require_outputs,
    require_parameters,
    require_replaced,
    require_same,
    require_settings,
    require_used,
    require_values,
    unused_in,
)
from landscape.curvature.data import Piece, Tree, as_data, checksum, fresh, shapes
from landscape.curvature.differences import require_derivatives
from landscape.curvature.modules import ModuleFunction, constants, device_of, loss_in_precision, plain_attention
from landscape.curvature.part import taken
from landscape.curvature.weights import WeightFunction, Weights
from landscape.errors import ArgumentError, kind_of
from landscape.results import Shown

Parameters = Mapping[str, Tensor]
PerSampleLoss = Callable[[Tensor, Any], Tensor]
Adapter = Callable[[Any], Tensor]
Ask = tuple[str, tuple[str, ...], tuple[str, ...]]
"""What is summed over samples: "value", "gradient" or a part of the Hessian; of the latter rows and columns."""
Sum = Callable[[Ask, Parameters, Tensor, Callable[[Tensor], Tensor]], Tensor]
"""Sums what a function makes of vectors at the given parameters, here and on the ranks that hold other samples."""


_NOTHING = torch.zeros(0, dtype=torch.float64)
differentiable = torch.inference_mode(False)
"""Decorates what needs derivatives: without it those of a caller in torch.no_grad or inference_mode would be zeros."""


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each sample or token, as log1p(sum_{c != t} exp(z_c - z_t)) + z_t - z_y, t the likeliest class.

    logits (..., C), labels (...) class indices; returns (...). Unlike -log softmax it keeps full relative precision
    at any loss, in the value and in both derivatives, whether the likeliest class is the label or not.
    label_smoothing s puts (1 - s) on the label and s/C on every class, as torch.nn.functional.cross_entropy does:
    it adds s (z_y - mean z), which is linear and costs no digit of the curvature. Raises ArgumentError for anything
    but one class index of at least two classes.
    """
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != logits.shape[:-1]:
        raise ArgumentError(
            f"cross_entropy of logits {tuple(logits.shape)} and labels {tuple(labels.shape)}, {labels.dtype}",
            "labels are class indices, integers of shape logits.shape[:-1], such as labels[:, 0] of (N, 1); for "
            "probabilities write the loss: lambda z, y: -(y * z.log_softmax(-1)).sum(-1)",
        )
    if logits.shape[-1] < 2:
        raise ArgumentError(
            "cross_entropy of one class is 0 whatever the parameters",
            "for binary labels take torch.nn.functional.binary_cross_entropy_with_logits with reduction='none'",
        )
    index = labels.long()[..., None]
    if logits.device.type == "cpu" and index.numel():
        require_labels(labels, logits.shape[-1])
    # No derivative has a p - p^2 of the likeliest class: it comes from those of the others, of which none exceeds 1/2.
    highest, top = logits.max(-1, keepdim=True)
    apart = logits - highest
    others = apart.scatter(-1, top, -torch.inf)
    # Where the label is the likeliest class, a gradient of 1 - 1 + p would pass through the difference.
    right = others.gather(-1, index).masked_fill(index == top, 0.0)[..., 0]
    hard = others.exp().sum(-1).log1p() - right
    return hard + label_smoothing * (right - apart.mean(-1)) if label_smoothing else hard


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each sample, averaged over the outputs; outputs and targets (N, ...), returns (N,).

    Raises ArgumentError for two shapes.
    """
    if outputs.shape != targets.shape:
        raise ArgumentError(
            f"mse of outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}",
            "give both the same shape, such as targets[:, None] for outputs (N, 1)",
        )
    return (outputs - targets).square().reshape(len(outputs), -1).mean(1)


class Objective(Shown):
    """L(theta) = (1/N) sum_n loss(model(theta, x_n), y_n) + (weight_decay/2) |theta|^2.

    `model` is a torch module, or a function of (parameters by name, inputs), that returns one tensor, or what `outputs`
    makes one of. `inputs` and `targets` hold the whole data set, first axis samples: tensors, or any
    torch.utils._pytree of them; a module gets a tuple or list as its arguments, and a dict as keyword arguments.
    `chunk_size` samples go through the model at once. Without targets `inputs` is a DataLoader, or another re-iterable
    of (inputs, targets) batches, each of which is a chunk; the mean is over all samples, whatever the batches' sizes.
    `loss` maps the outputs and targets of n samples to n values. With `per_token` it maps them to (n, T) values and L
    is the mean over all tokens; integer targets (n, T) that are -100, or the ignore_index of `loss`, are excluded:
    an index inside a lambda is not detected, and its tokens count as zeros. With class weights, of a
    nn.CrossEntropyLoss or nn.NLLLoss or in a functools.partial of their functions, L is the weighted mean that these
    give; `weights` maps targets to a weight, such as a mask, of each sample or token.
    Floating inputs and buffers are used in `dtype`. Nothing of the module is changed: no .grad, mode or requires_grad.
    Attention goes through torch's plain kernel, since the fused ones have no second derivative.
    Raises ArgumentError, a ValueError, for data, modules and losses that have no Hessian in this sense.
    """

    shown = ("count", "num_chunks", "weight_decay", "dtype", "device")

    @differentiable
    def __init__(
        self,
        model: nn.Module | Callable[[Parameters, Any], Any],
        inputs: Tree,
        targets: Tree = None,
        loss: PerSampleLoss = cross_entropy,
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        dtype: torch.dtype = torch.float64,
        per_token: bool = False,
        outputs: Adapter | None = None,
        weights: WeightFunction | None = None,
    ) -> None:
        require_settings(model, loss, weight_decay, dtype)
        self._data = as_data(inputs, targets, chunk_size, device_of(model))
        if part := taken():
            part.seen.append(f"{checksum([constants(model), constants(loss)]):08x}")
        self._given = (model, loss, weight_decay, per_token, outputs, weights)
        self._model = ModuleFunction(model, dtype) if isinstance(model, nn.Module) else model
        self.dtype, self.weight_decay, self.device, self._adapt = dtype, weight_decay, self._data.device, outputs
        self._loss = loss_in_precision(loss, dtype)
        self._weights = Weights(loss, per_token, weights)
        self.count = self._weights.total((piece()[1] for piece in self._data.pieces()), is_whole=part is None)
        self._is_part, self._over = False, cast(Sum | None, None)
        self._is_deterministic = False
        self._sound: set[tuple[str, ...]] = set()
        self._left_alone: set[tuple[str, ...]] = set()

    def in_dtype(self, dtype: torch.dtype) -> Objective:
        """The same objective in another precision."""
        model, loss, decay, per_token, outputs, weights = self._given
        other = Objective(
            model, self._data, None, loss, decay, dtype=dtype, per_token=per_token, outputs=outputs, weights=weights
        )
        other._sound, other._left_alone = self._sound, self._left_alone
        other.count, other._is_part, other._over = self.count, self._is_part, self._over
        return other

    def spread(self, count: float, over: Sum | None = None) -> Objective:
        """The mean over all samples or tokens, of which this objective has some; count: the sum of all weights.

        over: adds what other ranks make of the rest; without it every sum is that over the samples here, without L2,
        which the one rank that has `over` counts.
        """
        other = copy.copy(self)
        other.weight_decay = self.weight_decay if over else 0.0
        other.count, other._is_part, other._over = count, True, over
        return other

    def total(self, ask: Ask, params: Parameters, vectors: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
        """What `own` makes of vectors with the samples here, plus what the same makes of them on other ranks."""
        return own(vectors) if self._over is None else self._over(ask, params, vectors, own)

    @property
    def num_chunks(self) -> int:
        """Chunks of samples that one pass takes."""
        return self._data.num_chunks

    @property
    def has_convex_loss(self) -> bool:
        """Whether the loss is known to be convex in the outputs: `cross_entropy` or `mse`."""
        return getattr(self._loss, "func", self._loss) in (cross_entropy, mse)

    def require_deterministic(self, params: Parameters) -> None:
        """Raise ValueError if the loss of the same parameters differs between two calls, as with dropout."""
        self._require_left_alone(params)
        if self._is_deterministic:
            return
        for at in self._data.pieces():
            with torch.no_grad():
                once, twice = (float(self._chunk(at, params)) for _ in range(2))
            if abs(once - twice) > 1e-6 * abs(once):
                raise ArgumentError(
                    f"the loss of the same parameters is {once:.9g} and then {twice:.9g}: curvature needs a "
                    "deterministic loss",
                    "put the module in eval mode (dropout), or fix its random numbers",
                )
        if isinstance(self._model, ModuleFunction) and self._model.is_training:
            self._require_nothing_drawn(params)
        self._is_deterministic = True

    @differentiable
    def require_sound(self, params: Parameters) -> None:
        """Raise unless the loss is one finite value per sample or token that depends on each of the parameters.

        ArgumentError also where the samples of a chunk depend on each other or automatic differentiation is wrong,
        NumericsError where a value is not finite. Once for each set of names: some 9 passes over 32 samples, and over
        chunks until each parameter has been used.
        """
        self._require_left_alone(params)
        if tuple(params) in self._sound:
            return
        at, halves = self._data.probe()
        with torch.no_grad():
            outputs = self._outputs(at, params)
            values = self._values(at, outputs)
            if getattr(self._loss, "func", self._loss) is cross_entropy:
                targets = [self._weights.clean(piece()[1]) for piece in self._data.pieces()]
                require_labels(torch.stack([x for y in targets for x in y.aminmax()]), outputs.shape[-1])
            require_finite(values)
            if (self.num_chunks > 1 or self._is_part) and len(values) > 1:
                parts = [self._values(half, self._outputs(half, params)) for half in halves]
                require_independent(values, torch.cat(parts), outputs)
        if not self._is_part:
            require_used(self.unused(params))
        with blaming("the loss cannot be differentiated"):
            if isinstance(self._model, ModuleFunction):
                # Copies, as the module's own parameters may be the ones that are given.
                given = {n: p.detach().clone() for n, p in params.items()}
                require_replaced(self._chunk(at, given), self._model.replaced(params))
            self._require_derivatives(at, params)
        self._sound.add(tuple(params))

    def unused(self, params: Parameters) -> list[str]:
        """Parameters that the loss of no sample here depends on."""
        at, _ = self._data.probe()
        with blaming("the loss cannot be differentiated"):
            return unused_in((functools.partial(self._chunk, s) for s in (at, *self._data.pieces())), params)

    def terms(self) -> Iterator[Callable[[Parameters], Tensor]]:
        """Functions of the parameters that sum to the objective, one per chunk of samples and one for L2."""
        for at in self._data.pieces():
            yield functools.partial(self._chunk, at)
        if self.weight_decay:
            yield self._penalty

    def chunks(self) -> Iterator[tuple[Callable[[Parameters], Tensor], Callable[[Tensor], Tensor]]]:
        """Per chunk of samples, the model's outputs as a function of the parameters, and the loss of outputs."""
        for at in self._data.pieces():
            yield functools.partial(self._outputs, at), functools.partial(self._loss_of, at)

    @differentiable
    def linearised(self, params: Parameters) -> Iterator[Callable[[Parameters], Tensor]]:
        """Per chunk, its outputs weighted by d loss / d output at `params`: only the outputs' own curvature is left."""
        for outputs, loss in self.chunks():
            with torch.no_grad():
                at = outputs(params)
            at.requires_grad_()
            (slope,) = gradients(loss(at), [at])
            yield functools.partial(_weighted, outputs, slope)

    @differentiable
    def gradient(self, params: Parameters) -> dict[str, Tensor]:
        """Gradient by parameter name."""
        require_parameters(params, self.device)
        leaves = {n: p.detach().to(self.dtype, copy=True).requires_grad_() for n, p in params.items()}
        self.require_sound(leaves)
        found = self.total(("gradient", (), ()), leaves, _NOTHING, lambda _: self.own_gradient(leaves))
        pieces = found.split([p.numel() for p in leaves.values()])
        return {n: piece.view_as(p) for (n, p), piece in zip(leaves.items(), pieces, strict=True)}

    def own_gradient(self, params: Parameters) -> Tensor:
        """The gradient (n,) of the terms here."""
        total = [torch.zeros_like(p) for p in params.values()]
        for term in self.terms():
            for sum_, g in zip(total, gradients(term(params), params.values()), strict=True):
                sum_ += g
        return torch.cat([g.reshape(-1) for g in total])

    def value(self, params: Parameters) -> float:
        """The objective itself."""
        self._require_left_alone(params)
        return float(self.total(("value", (), ()), params, _NOTHING, lambda _: self.own_value(params)))

    def own_value(self, params: Parameters) -> Tensor:
        """The sum (1,) of the terms here."""
        with torch.no_grad():
            return torch.tensor([sum(float(term(params)) for term in self.terms())], dtype=torch.float64)

    def _require_left_alone(self, params: Parameters) -> None:
        """Raise ArgumentError for a model that writes into its parameters; tried on copies, once for a set of names."""
        if tuple(params) in self._left_alone:
            return
        # Versions are counted outside of inference mode alone; they tell also of writing that changes nothing here.
        with torch.inference_mode(False), torch.no_grad():
            before, after = ({n: p.detach().to(self.dtype, copy=True) for n, p in params.items()} for _ in range(2))
            versions = {n: p._version for n, p in after.items()}
            self._outputs(self._data.probe()[0], after)
            require_same(before, {n: p for n, p in after.items() if p._version == versions[n]})
        self._left_alone.add(tuple(params))

    def _require_nothing_drawn(self, params: Parameters) -> None:
        """Raise ArgumentError for a module that draws random numbers: two losses may agree by chance."""
        at, states = self._data.probe()[0], []
        for _ in range(2):
            with torch.no_grad():
                self._outputs(at, params)
            states.append(random_state(self.device))
        if states[0] != states[1]:
            raise ArgumentError(
                "the model draws random numbers in training mode, such as layers to leave out",
                "call model.eval(), or fix its random numbers",
            )

    def _require_derivatives(self, at: Piece, params: Parameters) -> None:
        """Check them in float64, where little is lost to rounding and few kinks are met."""
        exact = self if self.dtype == torch.float64 else self.in_dtype(torch.float64)
        try:
            exact._chunk(at, params)
        except ArgumentError:
            # The model runs in float32 alone.
            exact = self
        require_derivatives(functools.partial(exact._chunk, at), {n: p.to(exact.dtype) for n, p in params.items()})

    def _outputs(self, at: Piece, params: Parameters) -> Tensor:
        x = fresh(at()[0], self.dtype)
        with blaming(f"the model fails on inputs of shape {shapes(x)}"), plain_attention():
            outputs = self._model({n: p.to(self.dtype) for n, p in params.items()}, x)
        if self._adapt is not None:
            with blaming(f"outputs= fails on the {type(outputs).__name__} that the model returns"):
                outputs = self._adapt(outputs)
        return require_outputs(outputs, self.dtype)

    def _values(self, at: Piece, outputs: Tensor) -> Tensor:
        given = at()[1]
        weights, y = self._weights.of(given), fresh(self._weights.clean(given), self.dtype)
        with blaming(f"the loss fails on outputs {tuple(outputs.shape)} and targets {shapes(y)}"):
            values: Tensor = self._loss(outputs, y)
        require_values(values, self._weights.shape(y), self.dtype)
        if weights is None:
            return values
        values = values.where(weights != 0, 0.0)
        return values if weights.dtype == torch.bool else values * weights.to(self.dtype)

    def _loss_of(self, at: Piece, outputs: Tensor) -> Tensor:
        return self._values(at, outputs).sum() / self.count

    def _chunk(self, at: Piece, params: Parameters) -> Tensor:
        return self._loss_of(at, self._outputs(at, params))

    def _penalty(self, params: Parameters) -> Tensor:
        squares = [p.to(self.dtype).square().sum() for p in params.values()]
        return 0.5 * self.weight_decay * torch.stack(squares).sum()


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
    found = torch.autograd.grad(
        output,
        inputs,
        weights,
        create_graph=create_graph,
        retain_graph=create_graph or keep,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return [x.new_zeros(*lead, *x.shape) if g is None else g for g, x in zip(found, inputs, strict=True)]
