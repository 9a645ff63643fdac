"""Refuse products and norms outside the range of the working precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.spaces import space_of
from landscape.errors import NumericsError


class Sound:
    """A linear map whose products are checked: finite, and with squares inside the range of the precision."""

    def __init__(self, op: Any) -> None:
        self.op, self.shape, self.dtype, self.device = op, op.shape, op.dtype, op.device
        self.space, self._largest = space_of(op), 0.0

    def __matmul__(self, vectors: Tensor) -> Tensor:
        image: Tensor = self.op @ vectors
        size = self.space.largest(image)
        require_finite(size)
        # Images of null vectors are small: the largest image so far gives the size of the operator.
        self._largest = max(self._largest, size)
        require_range(self._largest, self.dtype)
        return image


def require_finite(size: float) -> None:
    """Raise NumericsError for a size that is NaN or infinite."""
    if not np.isfinite(size):
        raise NumericsError(
            "the Hessian is not finite: its products hold NaN or infinity", "look for NaN in parameters, data and loss"
        )


def require_range(norm: float, dtype: torch.dtype) -> None:
    """Raise NumericsError for a norm that is not finite, or whose square overflows or underflows."""
    precision = torch.finfo(dtype)
    require_finite(norm)
    smallest, largest = precision.tiny**0.5 / precision.eps, precision.max**0.5 * precision.eps
    if norm != 0 and not smallest <= norm <= largest:
        raise NumericsError(
            f"the Hessian has the size {norm:.1e}: in {str(dtype).removeprefix('torch.')} only {smallest:.0e} to "
            f"{largest:.0e} can be squared without losing digits",
            "multiply the loss by a constant: every eigenvalue is multiplied by it",
        )
