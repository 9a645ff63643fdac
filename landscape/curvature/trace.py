"""Traces: from the diagonal of a small operator, by XTrace or Hutch++ of a large one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from landscape.curvature.checks import require_choice, require_count, require_seed
from landscape.curvature.density import CONFIDENCE
from landscape.curvature.operators import LinearOperator, Sound, product_error, require_symmetric
from landscape.curvature.vectors import Array, column_norms, gaussian, require_range, seeded, to_array
from landscape.errors import ArgumentError
from landscape.results import Estimate

ASSEMBLED = 256
"""Order up to which every element of the diagonal is computed, at one product each."""
_TOGETHER = 64
"""Unit vectors multiplied at once."""
TraceMethod = Literal["auto", "exact", "xtrace", "hutch++"]


@dataclasses.dataclass(frozen=True, repr=False)
class Trace(Estimate):
    """A trace with its standard error and a 95 % confidence interval.

    If every diagonal element was computed, the standard error is 0, and the interval is what the error of the products
    leaves open.

    Attributes:
        value: the trace.
        standard_error: of the value.
        low, high: ends of the interval.
        num_products: Hessian-vector products.
    """


def trace(op: LinearOperator, probes: int = 30, seed: int = 0, method: TraceMethod = "auto") -> Trace:
    """The trace of a symmetric operator, by XTrace; up to 256 rows from its diagonal.

    XTrace (Epperly, Tropp & Webber, arXiv 2301.07825): half of the products sketch the range, and the other half give
    its exact share. Each random vector estimates the rest by all others, and the mean of these is the trace. The
    standard error is the jackknife's, which is too large on average (Efron & Stein 1981).
    Hutch++ (Meyer, Musco, Musco & Woodruff, arXiv 2010.09649): a third of the products sketch the range, another third
    give its exact share, and the rest are independent estimates of what is outside of it.

    Args:
        op: the operator (n, n).
        probes: products in all.
        seed: of the random vectors.
        method: "exact", "xtrace", "hutch++", or "auto", which is exact up to 256 rows and XTrace beyond.

    Returns:
        The trace with its standard error and a 95 % interval by Student's t.
    """
    require_symmetric(op)
    require_choice("method", method, get_args(TraceMethod))
    n = op.shape[0]
    if is_exact(method, n, probes, seed):
        elements, error = exact_diagonal(op)
        value, reach = math.fsum(elements.tolist()), n * error
        return Trace(value, 0.0, value - reach, value + reach, n)
    value, error, rounding, count, products = (_hutch if method == "hutch++" else _xtrace)(op, probes, seed)
    reach = student(count) * error + rounding + n * op.error
    return Trace(value, error, value - reach, value + reach, products)


def is_exact(method: str, n: int, probes: int, seed: int) -> bool:
    """Whether the products of n unit vectors are computed, as always where they are no more than the probes.

    Raises ArgumentError for too few probes, and for a seed that is none.
    """
    require_count("probes", probes)
    require_seed(seed)
    if probes < 6:
        raise ArgumentError(f"{probes} probes: an estimate takes at least 6", "give more probes, such as 30")
    return method == "exact" or n <= probes or (method == "auto" and n <= ASSEMBLED)


def exact_diagonal(op: LinearOperator) -> tuple[Array, float]:
    """The diagonal (n,) of a symmetric operator by products with unit vectors, and a bound on each element's error."""
    elements = torch.cat([columns[start:].diagonal() for start, columns in columns_of(op)])
    require_range(float(elements.abs().max()), op.dtype)
    return to_array(elements), product_error(op)


def columns_of(op: LinearOperator) -> Iterator[tuple[int, Tensor]]:
    """The columns (n, 64) of an operator of order n, with the number of the first of them."""
    n = op.shape[0]
    for start in range(0, n, _TOGETHER):
        unit = torch.zeros(n, min(_TOGETHER, n - start), dtype=op.dtype, device=op.device)
        unit[start:].fill_diagonal_(1.0)
        yield start, op @ unit


def student(count: int) -> float:
    """How many standard errors a 95 % interval about the mean of `count` numbers reaches."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


def spheres(n: int, m: int, generator: torch.Generator) -> Tensor:
    """Random vectors (n, m) of the length sqrt(n), so that the trace of the identity has no error."""
    vectors = gaussian(n, m, generator)
    return vectors * (math.sqrt(n) / column_norms(vectors))


def _xtrace(op: LinearOperator, probes: int, seed: int) -> tuple[float, float, float, int, int]:
    """The trace, its standard error, its rounding, and how many estimates and products it took."""
    n, m, op = op.shape[0], probes // 2, Sound(op)
    omega = spheres(n, m, seeded(seed)).to(op.device, op.dtype)
    image = op @ omega
    Q, R = torch.linalg.qr(image)
    W, quadratic = Q.T @ omega, (omega * image).sum(0)
    del omega, image
    range_image = op @ Q
    value, error = Sketch(n, R, W, R, Q.T @ range_image, quadratic).estimate()
    largest = float(range_image.norm()) * m**0.5 + float(quadratic.abs().max())
    return value, error, 10 * n**0.5 * torch.finfo(op.dtype).eps * largest, m, 2 * m


def _hutch(op: LinearOperator, probes: int, seed: int) -> tuple[float, float, float, int, int]:
    """The same by Hutch++."""
    n, m, op, generator = op.shape[0], probes // 3, Sound(op), seeded(seed)
    Q = torch.linalg.qr(op @ spheres(n, m, generator).to(op.device, op.dtype)).Q
    omega = gaussian(n, m, generator).to(Q)
    # Twice, as what is left may be short. All vectors have the length that makes the identity exact.
    for _ in range(2):
        omega = torch.nn.functional.normalize(omega - Q @ (Q.T @ omega), dim=0)
    range_image, beyond = op @ Q, (n - m) * (omega * (op @ omega)).sum(0).double()
    value = float((Q * range_image).sum().double() + beyond.mean())
    largest = float(range_image.norm()) * m**0.5 + float(beyond.abs().max())
    rounding = 10 * n**0.5 * torch.finfo(op.dtype).eps * largest
    return value, float(beyond.std() / m**0.5), rounding, m, 3 * m


def lacking(R: Tensor) -> Tensor:
    """In the basis Q of images Q R, the direction (m, m) that the images of all vectors but j lack, as column j.

    Of images that depend on each other, as those of low rank, it is any direction that rounding made of the rest.
    """
    precision = torch.finfo(R.dtype)
    scaled = R / R.norm().clamp_min(precision.tiny)
    pivots = scaled.diagonal()
    pivots[pivots.abs() < precision.eps] = precision.eps
    directions = torch.linalg.solve_triangular(scaled.T, torch.eye(len(R), dtype=R.dtype), upper=False)
    normalised: Tensor = torch.nn.functional.normalize(directions, dim=0)
    return normalised


class Sketch:
    """What products with m random vectors w of length sqrt(n) say of the trace of a symmetric B.

    Q R: images by which each vector is left out, of B or of what has the same range; W = Q^T w, images = Q^T B w,
    H = Q^T B Q (m, m); quadratic = w^T B w (m,).
    """

    def __init__(self, n: int, R: Tensor, W: Tensor, images: Tensor, H: Tensor, quadratic: Tensor) -> None:
        R, self.W, self.images, H, self.quadratic = (x.double().cpu() for x in (R, W, images, H, quadratic))
        self.n, self.m, self.H, self.lacking = n, len(R), (H + H.T) / 2, lacking(R)

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
        # x^T B x for the part of each vector x outside the sketch, as if x had its mean length there.
        beyond = self.quadratic + (within * (self.H @ within - 2 * self.images)).sum(0)
        dimension = self.n - self.m + len(without)
        return known + beyond * dimension / (self.n - within.square().sum(0))
