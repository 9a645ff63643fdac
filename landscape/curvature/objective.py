"""The loss whose curvature is measured, normalised once: a mean over samples plus the L2 term."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Parameters = Mapping[str, Tensor]
PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each sample, as softplus(logsumexp_{c != y} z_c - z_y).

    logits (N, C), labels (N,) integers; returns (N,). Unlike -log softmax it keeps full relative precision
    at any loss, in the value and in both derivatives. (torch's softplus is linear above 20; this is not.)
    label_smoothing s puts (1 - s) on the label and s/C on every class, as torch.nn.functional.cross_entropy does:
    it adds s (z_y - mean z), which is linear and costs no digit of the curvature.
    """
    right = logits.gather(1, labels[:, None])[:, 0]
    margin = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1) - right
    wrong = margin > 0
    hard = torch.where(wrong, -margin, margin).exp().log1p() + torch.where(wrong, margin, 0.0)
    return hard + label_smoothing * (right - logits.mean(1)) if label_smoothing else hard


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each sample, averaged over the outputs; outputs and targets (N, ...), returns (N,)."""
    return (outputs - targets).square().flatten(1).mean(1)


class Objective:
    """L(theta) = (1/N) sum_n loss(model(theta, x_n), y_n) + (weight_decay/2) |theta|^2.

    `model` is a torch module, or a function of (parameters by name, inputs). `inputs` and `targets` hold
    the whole data set, first axis samples; `chunk_size` samples go through the model at once. Floating
    inputs and buffers are used in `dtype`. Nothing of the module is changed: no .grad, mode or requires_grad.
    Attention goes through torch's plain kernel, since the fused ones have no second derivative.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Parameters, Tensor], Tensor],
        inputs: Tensor,
        targets: Tensor,
        loss: PerSampleLoss = cross_entropy,
        weight_decay: float = 0.0,
        chunk_size: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets: give one target per input")
        self._given = (model, inputs, targets, loss, weight_decay, chunk_size)
        self._model = _functional(model, dtype) if isinstance(model, nn.Module) else model
        self.inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        self.targets = targets.to(dtype) if targets.is_floating_point() else targets
        self.dtype, self.weight_decay, self._loss = dtype, weight_decay, loss
        self._chunk_size = chunk_size or len(inputs)
        self._is_deterministic = False

    def in_dtype(self, dtype: torch.dtype) -> Objective:
        """The same objective in another precision."""
        return Objective(*self._given, dtype=dtype)

    @property
    def num_chunks(self) -> int:
        """Chunks of samples that one pass takes."""
        return -(-len(self.inputs) // self._chunk_size)

    def require_deterministic(self, params: Parameters) -> None:
        """Raise ValueError if the loss of the same parameters differs between two calls, as with dropout."""
        if self._is_deterministic:
            return
        with torch.no_grad():
            once, twice = (float(self._chunk(slice(0, 32), params)) for _ in range(2))
        if abs(once - twice) > 1e-6 * abs(once):
            raise ValueError(
                f"the loss of the same parameters is {once:.9g} and then {twice:.9g}: curvature needs a deterministic "
                "loss; put the module in eval mode (dropout), or fix its random numbers"
            )
        self._is_deterministic = True

    def terms(self) -> Iterator[Callable[[Parameters], Tensor]]:
        """Functions of the parameters that sum to the objective, one per chunk of samples and one for L2."""
        for at in self._slices():
            yield functools.partial(self._chunk, at)
        if self.weight_decay:
            yield self._penalty

    def chunks(self) -> Iterator[tuple[Callable[[Parameters], Tensor], Callable[[Tensor], Tensor]]]:
        """Per chunk of samples, the model's outputs as a function of the parameters, and the loss of outputs."""
        for at in self._slices():
            yield functools.partial(self._outputs, at), functools.partial(self._loss_of, at)

    def linearised(self, params: Parameters) -> Iterator[Callable[[Parameters], Tensor]]:
        """Per chunk, its outputs weighted by d loss / d output at `params`: only the outputs' own curvature is left."""
        for outputs, loss in self.chunks():
            with torch.no_grad():
                at = outputs(params)
            at.requires_grad_()
            (slope,) = gradients(loss(at), [at])
            yield functools.partial(_weighted, outputs, slope)

    def gradient(self, params: Parameters) -> dict[str, Tensor]:
        """Gradient by parameter name."""
        leaves = {n: p.detach().requires_grad_() for n, p in params.items()}
        total = {n: torch.zeros_like(p) for n, p in params.items()}
        for term in self.terms():
            for name, g in zip(leaves, gradients(term(leaves), leaves.values()), strict=True):
                total[name] += g
        return total

    def value(self, params: Parameters) -> float:
        """The objective itself."""
        with torch.no_grad():
            return sum(float(term(params)) for term in self.terms())

    def _slices(self) -> Iterator[slice]:
        for start in range(0, len(self.inputs), self._chunk_size):
            yield slice(start, start + self._chunk_size)

    def _outputs(self, at: slice, params: Parameters) -> Tensor:
        return self._model(params, self.inputs[at])

    def _loss_of(self, at: slice, outputs: Tensor) -> Tensor:
        return self._loss(outputs, self.targets[at]).sum() / len(self.inputs)

    def _chunk(self, at: slice, params: Parameters) -> Tensor:
        return self._loss_of(at, self._outputs(at, params))

    def _penalty(self, params: Parameters) -> Tensor:
        return 0.5 * self.weight_decay * torch.stack([p.square().sum() for p in params.values()]).sum()


def _functional(module: nn.Module, dtype: torch.dtype) -> Callable[[Parameters, Tensor], Tensor]:
    """The module as a function of its parameters; its buffers are copied, so that none is changed."""

    def call(params: Parameters, x: Tensor) -> Tensor:
        buffers = {n: b.to(dtype, copy=True) if b.is_floating_point() else b.clone() for n, b in module.named_buffers()}
        with sdpa_kernel(SDPBackend.MATH):
            outputs: Tensor = torch.func.functional_call(module, {**buffers, **params}, (x,))
        return outputs

    return call


def _weighted(outputs: Callable[[Parameters], Tensor], weights: Tensor, params: Parameters) -> Tensor:
    return (outputs(params) * weights).sum()


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
