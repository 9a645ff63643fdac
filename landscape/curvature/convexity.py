"""Whether a loss is convex in the outputs, so that the Gauss-Newton matrix has no negative curvature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from landscape.curvature.eigsh import eigsh
from landscape.curvature.objective import Objective, Parameters, differentiable, gradients
from landscape.errors import ArgumentError

_PRODUCTS = 40
_ROUNDING = 1e-8


@differentiable
def require_convex(objective: Objective, params: Parameters) -> None:
    """Raise ArgumentError for a loss with negative curvature in its outputs, as they are at `params`.

    Lanczos in the space of the outputs, chunk by chunk: one forward pass and some 40 products with the loss alone,
    none for `cross_entropy` and `mse`. Negative curvature that is found is proved; some that is rare among random
    directions may be missed.
    """
    if objective.has_convex_loss:
        return
    for outputs, loss in objective.chunks():
        with torch.no_grad():
            at = outputs(params)
        curvature = _OutputHessian(loss, at)
        found = eigsh(curvature, 1, "lowest", "lanczos", max_hvps=_PRODUCTS)
        lowest = float(found.values[0, 0])
        if lowest < -_ROUNDING * found.operator_norm:
            raise ArgumentError(
                f"the loss is not convex in the outputs: curvature {lowest:.2e} beside {found.operator_norm:.2e}",
                "its Gauss-Newton matrix has negative curvature of its own; look at the excess index instead",
            )


class _OutputHessian:
    """d2 loss / d outputs2 of a chunk."""

    def __init__(self, loss: Callable[[Tensor], Tensor], outputs: Tensor) -> None:
        self._at = outputs.detach().requires_grad_()
        (self._slope,) = gradients(loss(self._at), [self._at], create_graph=True)
        n = outputs.numel()
        self.shape, self.dtype, self.device = (n, n), outputs.dtype, outputs.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        columns = vectors.reshape(len(vectors), -1)
        images = [gradients(self._slope, [self._at], v.view_as(self._at), keep=True)[0] for v in columns.T.contiguous()]
        return torch.stack([image.reshape(-1) for image in images], 1).view_as(vectors)
