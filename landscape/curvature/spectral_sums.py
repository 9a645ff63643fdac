"""Frobenius norms, log-determinants and effective dimensions: sums over all eigenvalues, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch

from landscape.curvature.checks import require_choice, require_number, require_positive
from landscape.curvature.density import Quadrature, quadrature
from landscape.curvature.eigsh import Method, is_dense
from landscape.curvature.operators import LinearOperator, Sound, product_error, require_symmetric
from landscape.curvature.trace import Sketch, columns_of, is_exact, spheres, student
from landscape.curvature.vectors import Array, inner, require_range, seeded, to_array
from landscape.errors import ArgumentError
from landscape.results import Estimate

NormMethod = Literal["auto", "exact", "xtrace"]


def frobenius_norm(op: LinearOperator, probes: int = 30, seed: int = 0, method: NormMethod = "auto") -> Estimate:
    """The Frobenius norm of a symmetric operator: the root of the trace of H^2, by XTrace.

    As `trace` by XTrace (Epperly, Tropp & Webber, arXiv 2301.07825), but each product serves both factors: for a random
    w, |H w|^2 is the estimate.

    Args:
        op: the operator (n, n).
        probes: products in all, unless exact.
        seed: of the random vectors.
        method: "exact", by n products; "xtrace"; or "auto", which is exact up to 256 rows.

    Returns:
        The norm with its standard error and a 95 % interval by Student's t.

    Raises:
        ArgumentError: for an operator that is not symmetric, an unknown method and fewer than 6 probes.
    """
    require_symmetric(op)
    require_choice("method", method, get_args(NormMethod))
    n = op.shape[0]
    if is_exact(method, n, probes, seed):
        value = float(np.linalg.norm([float(columns.double().norm()) for _, columns in columns_of(op)]))
        require_range(value, op.dtype)
        reach = n**0.5 * product_error(op)
        return Estimate(value, 0.0, max(value - reach, 0.0), value + reach, n)
    m, sound = probes // 2, Sound(op)
    omega = spheres(n, m, seeded(seed)).to(op.device, op.dtype)
    image = sound @ omega
    Q, R = torch.linalg.qr(image)
    W = Q.T @ omega
    range_image = sound @ Q
    lengths, seen = image.double().square().sum(0), float(range_image.double().square().sum())
    sketch = Sketch(n, R, W, inner(range_image, image), inner(range_image, range_image), lengths)
    square, error = sketch.estimate()
    rounding = 10 * n**0.5 * torch.finfo(op.dtype).eps * (seen * m**0.5 + float(lengths.max()))
    half = student(m) * error + rounding
    # The sketch holds as much as it holds, whatever the rest.
    value = max(square, seen) ** 0.5
    low, high, reach = max(square - half, seen - rounding, 0.0) ** 0.5, (square + half) ** 0.5, n**0.5 * op.error
    return Estimate(value, error / (2 * value) if value else 0.0, max(low - reach, 0.0), high + reach, 2 * m)


def log_determinant(
    op: LinearOperator,
    shift: float = 0.0,
    floor: float = 0.0,
    probes: int = 8,
    steps: int = 80,
    method: Method = "auto",
    seed: int = 0,
) -> Estimate:
    """log det(H + shift) of a symmetric operator for which this is positive definite.

    Stochastic Lanczos quadrature (Ubaru, Chen & Saad 2017). The interval holds the error of the quadrature, too: of a
    logarithm Gauss rules are upper bounds and Gauss-Radau rules with a node at `floor` lower ones (Golub & Meurant
    2010).

    Args:
        op: the operator (n, n).
        shift: added to every eigenvalue.
        floor: a number that no eigenvalue of `op` is below, on which the lower bound rests; 0 holds for Gauss-Newton
            parts, Fisher matrices and K-FAC. Not used where every eigenvalue is computed.
        probes: random vectors of the quadrature.
        steps: products for each probe.
        method: "dense", from every eigenvalue; "lanczos"; or "auto", which is dense up to 8000 rows.
        seed: of the probes.

    Returns:
        The log-determinant with its standard error and a 95 % interval.

    Raises:
        ArgumentError: where H + shift is not positive definite beyond the error of its products, or is not known to be.
    """
    require_symmetric(op)
    require_number("shift", shift)
    require_number("floor", floor)
    spectrum = _Spectrum.of(op, probes, steps, method, seed)
    lowest, error = spectrum.lowest, spectrum.error
    if lowest + shift <= error:
        raise ArgumentError(
            f"H + shift has the eigenvalue {lowest + shift:.3g}, known to {error:.1e}: it is not positive definite",
            f"give a shift of {1.01 * (error - lowest):.3g} or more, or a positive semidefinite operator: "
            "part='gauss_newton'",
        )
    if spectrum.rule:
        if lowest < floor - error:
            raise ArgumentError(
                f"an eigenvalue of at most {lowest:.6g} is below the floor {floor:.6g}",
                "give a floor= that no eigenvalue is below; eigsh(op, 1, 'lowest') estimates the least one",
            )
        if floor + shift <= error:
            raise ArgumentError(
                f"H + shift may have eigenvalues down to floor + shift = {floor + shift:.3g}, known to {error:.1e}: "
                "its determinant may be 0",
                "give a shift, or a floor= above 0 that no eigenvalue of H is below",
            )
    return spectrum.sum(lambda x: np.log(x + shift), floor if spectrum.rule else -np.inf)


def effective_dimension(
    op: LinearOperator,
    shift: float,
    probes: int = 8,
    steps: int = 80,
    method: Method = "auto",
    seed: int = 0,
) -> Estimate:
    """tr(H (H + shift)^-1) of a positive semidefinite operator: how many eigenvalues are large beside `shift`.

    Each eigenvalue x counts as x / (x + shift) (MacKay 1992; Maddox, Benton & Wilson, arXiv 2003.02139). By the same
    quadrature and bounds as `log_determinant`.

    Args:
        op: the operator (n, n), such as a Gauss-Newton part.
        shift: above 0.
        probes: random vectors of the quadrature.
        steps: products for each probe.
        method: "dense", from every eigenvalue; "lanczos"; or "auto", which is dense up to 8000 rows.
        seed: of the probes.

    Returns:
        The dimension with its standard error and a 95 % interval.

    Raises:
        ArgumentError: for an operator with an eigenvalue below 0, beyond the error of its products.
    """
    require_symmetric(op)
    require_positive("shift", shift)
    spectrum = _Spectrum.of(op, probes, steps, method, seed)
    if spectrum.lowest < -spectrum.error:
        raise ArgumentError(
            f"H has an eigenvalue of at most {spectrum.lowest:.6g}: x / (x + shift) counts nothing there",
            "take a positive semidefinite operator: HessianOperator(..., part='gauss_newton')",
        )
    whole = spectrum.sum(lambda x: x / (x + shift), 0.0)
    return dataclasses.replace(whole, low=max(whole.low, 0.0), high=min(whole.high, float(op.shape[0])))


@dataclasses.dataclass(frozen=True)
class _Spectrum:
    """The eigenvalues of an operator of order n, or quadratures for probes of the length sqrt(n).

    nodes, weights (probe, node), the weights of a probe summing to n; rule: None where every eigenvalue is known;
    error: a bound on that of each eigenvalue.
    """

    nodes: Array
    weights: Array
    error: float
    num_products: int
    rule: Quadrature | None = None

    @classmethod
    def of(cls, op: LinearOperator, probes: int, steps: int, method: Method, seed: int) -> _Spectrum:
        n, rounding = op.shape[0], 10 * op.shape[0] ** 0.5
        if is_dense(method, n):
            H = op.symmetric().double()
            nodes = to_array(torch.linalg.eigvalsh(H.matrix))[None]
            norm = float(np.abs(nodes).max())
            require_range(norm, op.dtype)
            return cls(nodes, np.ones_like(nodes), H.error + rounding * np.finfo(float).eps * norm, n)
        rule = quadrature(op, probes, steps, seed)
        error = product_error(op, seed) + rounding * torch.finfo(op.dtype).eps * rule.norm
        return cls(rule.nodes, _to_sum(rule.weights, n), error, rule.num_products, rule)

    @property
    def lowest(self) -> float:
        """The smallest eigenvalue, or an upper bound of it."""
        return float(self.nodes.min())

    def sum(self, f: Callable[[Array], Array], floor: float) -> Estimate:
        """The sum over all eigenvalues of an f that rises, with derivatives of alternating sign, above a `floor`.

        For z uniform on the sphere of radius sqrt(n), z^T f(H) z has the variance 2 n / (n + 2) (sum f^2 - (sum f)^2 /
        n). The quadrature gives the sum of f^2: the scatter of a few probes says less, and nothing where one outlier
        has all of f.
        """
        probes, n = len(self.nodes), self.weights.sum(1)[0]
        at, weights = np.maximum(self.nodes, floor), self.weights
        below, shares = at, weights
        if self.rule:
            below, shares = self.rule.radau(floor - self.error)
            below, shares = np.maximum(below, floor), _to_sum(shares, n)
        upper = float((weights * f(at + self.error)).sum(1).mean())
        lower = float((shares * f(np.maximum(below - self.error, floor))).sum(1).mean())
        value = float(((weights * f(at)).sum(1) + (shares * f(below)).sum(1)).mean()) / 2
        if self.rule is None:
            return Estimate(value, 0.0, lower, upper, self.num_products)
        squares = float((weights * f(at) ** 2).sum(1).mean())
        error = (2 * n / (n + 2) * max(squares - value**2 / n, 0.0) / probes) ** 0.5
        half = student(probes) * error
        return Estimate(value, error, lower - half, upper + half, self.num_products)


def _to_sum(weights: Array, n: float) -> Array:
    """Weights (probe, node) that sum to n for each probe."""
    scaled: Array = weights * (n / weights.sum(1, keepdims=True))
    return scaled
