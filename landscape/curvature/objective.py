"""The loss whose curvature is measured, normalised once: a mean over samples plus the L2 term."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

Parameters = Mapping[str, Tensor]
PerSampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each sample, as softplus(logsumexp_{c != y} z_c - z_y).

    logits (N, C), labels (N,) integers; returns (N,). Unlike -log softmax it keeps full relative precision
    at any loss, in the value and in both derivatives. (torch's softplus is linear above 20; this is not.)
    """
    right = logits.gather(1, labels[:, None])
    margin = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1) - right[:, 0]
    wrong = margin > 0
    return torch.where(wrong, -margin, margin).exp().log1p() + torch.where(wrong, margin, 0.0)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each sample, averaged over the outputs; outputs and targets (N, ...), returns (N,)."""
    return (outputs - targets).square().flatten(1).mean(1)


class Objective:
    """L(theta) = (1/N) sum_n loss(model(theta, x_n), y_n) + (weight_decay/2) |theta|^2.

    `model` is a torch module, or a function of (parameters by name, inputs). `inputs` and `targets` hold
    the whole data set, first axis samples; `chunk_size` samples go through the model at once. Floating
    inputs are used in `dtype`. Nothing of the module is changed: no .grad, mode or requires_grad.
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
        if isinstance(model, nn.Module):
            module = model
            self._model: Callable[[Parameters, Tensor], Tensor] = lambda params, x: torch.func.functional_call(
                module, {**{n: b.clone() for n, b in module.named_buffers()}, **params}, (x,)
            )
        else:
            self._model = model
        self.inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        self.targets = targets.to(dtype) if targets.is_floating_point() else targets
        self.dtype, self.weight_decay, self._loss = dtype, weight_decay, loss
        self._chunk_size = chunk_size or len(inputs)

    def terms(self) -> Iterator[Callable[[Parameters], Tensor]]:
        """Functions of the parameters that sum to the objective, one per chunk of samples and one for L2."""
        for start in range(0, len(self.inputs), self._chunk_size):
            yield functools.partial(self._chunk, slice(start, start + self._chunk_size))
        if self.weight_decay:
            yield self._penalty

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

    def _chunk(self, at: slice, params: Parameters) -> Tensor:
        return self._loss(self._model(params, self.inputs[at]), self.targets[at]).sum() / len(self.inputs)

    def _penalty(self, params: Parameters) -> Tensor:
        return 0.5 * self.weight_decay * torch.stack([p.square().sum() for p in params.values()]).sum()


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
