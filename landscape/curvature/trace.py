"""Traces: from the assembled matrix of a small operator, by XTrace of a large one."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from landscape.curvature.checks import require_count
from landscape.curvature.density import CONFIDENCE
from landscape.curvature.operators import LinearOperator, Sound, require_symmetric
from landscape.curvature.vectors import gaussian, require_range, seeded
from landscape.errors import ArgumentError
from landscape.results import Interval

ASSEMBLED = 256
"""Order up to which every element of the diagonal is computed, at one product each."""


@dataclasses.dataclass(frozen=True, repr=False)
class Trace(Interval):
    """A trace with its standard error and a 95 % confidence interval.

    If the matrix was assembled, the standard error is 0, and the interval is what the error of the matrix leaves open.

    Attributes:
        value: the trace.
        standard_error: of the value.
        low, high: ends of the interval.
        num_products: Hessian-vector products.
    """

    interval = ("value", "low", "high")

    value: float
    standard_error: float
    low: float
    high: float
    num_products: int


def trace(op: LinearOperator, probes: int = 30, seed: int = 0) -> Trace:
    """The trace of a symmetric operator, by XTrace; up to 256 rows from the matrix.

    XTrace (Epperly, Tropp & Webber, arXiv 2301.07825): half of the products sketch the range, and the other half give
    its exact share. Each random vector estimates the rest by all others, and the mean of these is the trace. The
    standard error is the jackknife's, which is too large on average (Efron & Stein 1981).

    Args:
        op: the operator (n, n).
        probes: products in all.
        seed: of the random vectors.

    Returns:
        The trace with its standard error and a 95 % interval by Student's t.
    """
    require_symmetric(op)
    require_count("probes", probes)
    n, m = op.shape[0], probes // 2
    if m < 3:
        raise ArgumentError(f"{probes} probes: XTrace takes at least 6", "give more probes, such as 30")
    generator = seeded(seed)
    if n <= max(ASSEMBLED, probes):
        H = op.symmetric().double()
        require_range(float(H.matrix.abs().max()), op.dtype)
        value, reach = math.fsum(H.matrix.diagonal().tolist()), n * H.error
        return Trace(value, 0.0, value - reach, value + reach, n)
    op = Sound(op)
    # Of one length, so that the trace of the identity has no error.
    omega = torch.nn.functional.normalize(gaussian(n, m, generator), dim=0) * n**0.5
    omega = omega.to(op.device, op.dtype)
    image = op @ omega
    Q, R = torch.linalg.qr(image)
    W, quadratic = Q.T @ omega, (omega * image).sum(0)
    del omega, image
    range_image = op @ Q
    sketch = _Sketch(n, *(x.double().cpu() for x in (R, W, Q.T @ range_image, quadratic)))
    value, error = sketch.estimate()
    from scipy.special import stdtrit

    largest = float(range_image.norm()) * m**0.5 + float(quadratic.abs().max())
    rounding = 10 * n**0.5 * torch.finfo(op.dtype).eps * largest
    reach = float(stdtrit(m - 1, (1 + CONFIDENCE) / 2)) * error + rounding + n * op.error
    return Trace(value, error, value - reach, value + reach, 2 * m)


class _Sketch:
    """What products with m random vectors w of length sqrt(n), and with Q of their images A w = Q R, say of the trace.

    W = Q^T w, H = Q^T A Q (m, m), quadratic = w^T A w (m,).
    """

    def __init__(self, n: int, R: Tensor, W: Tensor, H: Tensor, quadratic: Tensor) -> None:
        self.n, self.m, self.R, self.W, self.H, self.quadratic = n, len(R), R, W, (H + H.T) / 2, quadratic
        # Column j is, in Q, the direction that the images of all but the vector j lack. Of images that depend on each
        # other, as those of low rank, it is any direction that rounding made of the rest.
        precision = torch.finfo(R.dtype)
        scaled = R / R.norm().clamp_min(precision.tiny)
        pivots = scaled.diagonal()
        pivots[pivots.abs() < precision.eps] = precision.eps
        lacking = torch.linalg.solve_triangular(scaled.T, torch.eye(self.m, dtype=R.dtype), upper=False)
        self.lacking = torch.nn.functional.normalize(lacking, dim=0)

    def estimate(self) -> tuple[float, float]:
        """The trace and its standard error: what one vector fewer changes."""
        S, m = self.lacking, self.m
        left_out = torch.empty(m, dtype=S.dtype)
        for i in range(m):
            away = S[:, i : i + 1]
            # Column i itself, which has no second direction, is not used.
            beside = torch.nn.functional.normalize(S - away @ (away.T @ S), dim=0)
            others = self._each(away.expand(m, m), beside)
            left_out[i] = (others.sum() - others[i]) / (m - 1)
        spread = (left_out - left_out.mean()).square().sum()
        return float(self._each(S).mean()), float(((m - 1) / m * spread) ** 0.5)

    def _each(self, *without: Tensor) -> Tensor:
        """The trace (m,) by each vector, beyond a sketch without the directions in its column of each (m, m)."""
        within, known = self.W, self.H.trace()
        for B in without:
            within = within - B * (B * self.W).sum(0)
            known = known - (B * (self.H @ B)).sum(0)
        # x^T A x for the part of each vector x outside the sketch, as if x had its mean length there.
        beyond = self.quadratic + (within * (self.H @ within - 2 * self.R)).sum(0)
        dimension = self.n - self.m + len(without)
        return known + beyond * dimension / (self.n - within.square().sum(0))
