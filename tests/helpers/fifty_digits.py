"""Hessians, inertia and coupling ratios to fifty digits and more, of the very numbers that float64 holds.

Numbers are decimal.Decimal, ten times as fast as mpmath's and with exponents that neither overflow nor underflow: after
an exponential of -1e8 every digit is still there. Second derivatives come from one reverse pass over numbers that carry
their slopes; nothing is subtracted that cancels.
"""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Exact = NDArray[np.object_]
"""An array of Decimals."""
DIGITS = 80
_TINY = Decimal(10) ** -DIGITS
LEAST = Decimal("1e-1000000000000")
"""Above 0 by less than anything that is computed here."""


@contextmanager
def digits() -> Iterator[None]:
    """Arithmetic of DIGITS digits and of any exponent."""
    with decimal.localcontext(prec=DIGITS, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX):
        yield


def exact(numbers: Tensor) -> Exact:
    """The numbers that a tensor holds."""
    return np.array([Decimal(x) for x in numbers.detach().double().flatten().tolist()], object).reshape(numbers.shape)


# --- second derivatives ---------------------------------------------------------------------------------------


class Number:
    """A number that depends on the parameters: its value, its slopes by each, and what it was made of."""

    _count = itertools.count()

    def __init__(self, value: Decimal, slopes: Exact, *parents: tuple[Number, Decimal, Any]) -> None:
        """parents: each with the derivative of this number by it, and that derivative's own slopes (0 if none)."""
        self.value, self.slopes, self.parents = value, slopes, parents
        self.order = next(self._count)

    def __add__(self, other: Number | Decimal | int) -> Number:
        if not isinstance(other, Number):
            return Number(self.value + other, self.slopes, (self, Decimal(1), 0))
        return total([self, other])

    def __mul__(self, other: Number | Decimal | int) -> Number:
        if not isinstance(other, Number):
            return Number(self.value * other, self.slopes * other, (self, Decimal(other), 0))
        slopes = self.value * other.slopes + other.value * self.slopes
        return Number(
            self.value * other.value, slopes, (self, other.value, other.slopes), (other, self.value, self.slopes)
        )

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Number:
        return self * -1

    def __sub__(self, other: Number | Decimal | int) -> Number:
        return self + -other

    def __rsub__(self, other: Decimal | int) -> Number:
        return -self + other

    def through(self, value: Decimal, first: Decimal, second: Decimal) -> Number:
        """A function of it, with both derivatives."""
        return Number(value, first * self.slopes, (self, first, second * self.slopes))


def total(numbers: Sequence[Number]) -> Number:
    """Their sum."""
    value, slopes = sum(x.value for x in numbers), sum(x.slopes for x in numbers)
    return Number(Decimal(value), np.asarray(slopes), *((x, Decimal(1), 0) for x in numbers))


def hessian(function: Callable[[dict[str, Any]], Number], params: Mapping[str, Tensor]) -> tuple[Decimal, Exact]:
    """Value and Hessian (n, n) of a function of parameters by name, each an array of Numbers in its own shape."""
    n = sum(p.numel() for p in params.values())
    axes = np.array([[Decimal(int(i == j)) for j in range(n)] for i in range(n)], object).reshape(n, n)
    values = itertools.chain.from_iterable(exact(p).flat for p in params.values())
    leaves = [Number(value, axis) for value, axis in zip(values, axes, strict=True)]
    left = iter(leaves)
    numbers = {}
    for name, p in params.items():
        numbers[name] = np.array([next(left) for _ in range(p.numel())], object).reshape(tuple(p.shape))
    out = function(numbers)
    nodes, reach = {}, [out]
    while reach:
        node = reach.pop()
        if node.order not in nodes:
            nodes[node.order] = node
            reach += [parent for parent, _, _ in node.parents]
    # Of each number: the derivative of the function by it, and the slopes of that.
    by: dict[int, tuple[Decimal, Any]] = {out.order: (Decimal(1), Decimal(0) * axes[0])}
    for order in sorted(nodes, reverse=True):
        weight, slopes = by[order]
        for parent, first, second in nodes[order].parents:
            before, bent = by.get(parent.order, (Decimal(0), 0))
            by[parent.order] = before + weight * first, bent + weight * second + slopes * first
    nothing = Decimal(0), Decimal(0) * axes[0]
    return out.value, np.array([by.get(leaf.order, nothing)[1] for leaf in leaves], object).reshape(n, n)


def exp(x: Number) -> Number:
    """e^x."""
    value = x.value.exp()
    return x.through(value, value, value)


def log1p(x: Number) -> Number:
    """ln(1 + x) for x >= 0."""
    slope = 1 / (1 + x.value)
    return x.through((1 + x.value).ln(), slope, -(slope**2))


def inverse(x: Number) -> Number:
    """1 / x."""
    value = 1 / x.value
    return x.through(value, -(value**2), 2 * value**3)


def square(x: Number) -> Number:
    """x^2."""
    return x * x


def softplus(x: Number) -> Number:
    """ln(1 + e^x)."""
    return log1p(exp(x)) if x.value <= 0 else log1p(exp(-x)) + x


def tanh(x: Number) -> Number:
    """The hyperbolic tangent."""
    e = (-2 * abs(x.value)).exp()
    value = ((1 - e) / (1 + e)).copy_sign(x.value)
    slope = 4 * e / (1 + e) ** 2
    return x.through(value, slope, -2 * value * slope)


def relu(x: Number) -> Number:
    """max(x, 0), whose derivative at 0 is 0 as torch's is."""
    return x if x.value > 0 else x * 0


def gelu(x: Number) -> Number:
    """x times the normal distribution at x."""
    tail, density = _normal(abs(x.value))
    share = tail if x.value < 0 else 1 - tail
    return x.through(x.value * share, share + x.value * density, (2 - x.value * x.value) * density)


def _normal(x: Decimal) -> tuple[Decimal, Decimal]:
    """The normal distribution beyond x >= 0, and its density there."""
    with mpmath.workdps(DIGITS + 10):
        density = (-x * x / 2).exp() / Decimal(mpmath.nstr(mpmath.sqrt(2 * mpmath.pi), DIGITS))
        if x < 12:
            return Decimal(mpmath.nstr(mpmath.erfc(mpmath.mpf(str(x)) / mpmath.sqrt(2)) / 2, DIGITS)), density
    # Laplace's continued fraction; mpmath is slow at exponents of millions.
    rest = x
    for k in range(250, 0, -1):
        rest = x + k / rest
    return density / rest, density


def affine(weights: Exact, bias: Exact | None, x: Sequence[Any]) -> list[Number]:
    """weights (m, n) of Numbers times x (n,), plus bias (m,)."""
    more = [[]] * len(weights) if bias is None else [[b] for b in bias]
    return [total([w * a for w, a in zip(row, x, strict=True)] + b) for row, b in zip(weights, more, strict=True)]


# --- losses of one sample, of which none subtracts what cancels -------------------------------------------------


def _exponentials(z: Sequence[Number]) -> tuple[int, list[Any]]:
    """The class of the largest logit and e^(z_c - z_largest), of which that class's is the constant 1."""
    top = max(range(len(z)), key=lambda c: z[c].value)
    return top, [Decimal(1) if c == top else exp(z[c] - z[top]) for c in range(len(z))]


def cross_entropy(z: Sequence[Number], y: int) -> Number:
    """-ln softmax(z)_y."""
    top, e = _exponentials(z)
    loss = log1p(total([x for c, x in enumerate(e) if c != top]))
    return loss if top == y else loss + (z[top] - z[y])


def missed(z: Sequence[Number], y: int) -> Number:
    """1 - softmax(z)_y."""
    top, e = _exponentials(z)
    others = [x for c, x in enumerate(e) if c not in (top, y)]
    whole = total([x for c, x in enumerate(e) if c != top]) + 1
    if top == y:
        return total(others) * inverse(whole)
    return (total(others) + 1 if others else 1) * inverse(whole)


# --- spectra --------------------------------------------------------------------------------------------------


class Spectrum:
    """The eigenvalues of a symmetric matrix of Decimals, by counts below any point: Householder, then Sturm."""

    def __init__(self, matrix: Exact) -> None:
        A, n = matrix.copy(), len(matrix)
        self.order = n
        off = [Decimal(0)] * max(n - 1, 0)
        for k in range(n - 2):
            x = A[k + 1 :, k].copy()
            size = _norm(x[1:])
            if size == 0:
                off[k] = x[0]
                continue
            length = _norm(x)
            off[k] = -length.copy_sign(x[0])
            x[0] -= off[k]
            x /= _norm(x)
            rest = A[k + 1 :, k + 1 :]
            image = rest @ x
            image -= (x @ image) * x
            rest -= 2 * (np.outer(image, x) + np.outer(x, image))
        if n > 1:
            off[n - 2] = A[n - 1, n - 2]
        self._diagonal, self._squares = list(A.diagonal()), [x * x for x in off]
        self.norm = max([abs(x) for x in self._diagonal] + [abs(x) for x in off], default=Decimal(0))

    @property
    def _slack(self) -> Decimal:
        """What rounding here may do to an eigenvalue."""
        return 1000 * self.order * _TINY * self.norm + LEAST

    def below(self, x: Decimal) -> int:
        """How many are below x."""
        count, pivot = 0, Decimal(1)
        for d, square_ in zip(self._diagonal, [Decimal(0), *self._squares], strict=True):
            pivot = d - x - square_ / pivot
            if pivot == 0:
                pivot = self.norm * _TINY or LEAST
            count += pivot < 0
        return count

    def within(self, index: int, low: Decimal, high: Decimal) -> bool:
        """Whether the eigenvalue of this index, from the lowest, is in [low, high]."""
        return self.below(low - self._slack) <= index < self.below(high + self._slack)

    def has(self, low: Decimal, high: Decimal) -> bool:
        """Whether one is in [low, high]."""
        return self.below(low - self._slack) < self.below(high + self._slack)


def cholesky(matrix: Exact) -> Exact | None:
    """L with L L^T = matrix, None where that is not positive definite."""
    L, n = matrix.copy(), len(matrix)
    for k in range(n):
        if not L[k, k] > 0:
            return None
        L[k, k] = L[k, k].sqrt()
        L[k + 1 :, k] /= L[k, k]
        L[k, k + 1 :] = Decimal(0)
        for j in range(k + 1, n):
            L[j:, j] -= L[j:, k] * L[j, k]
    return L


def squared_ratios(A: Exact, B: Exact, C: Exact, tau: Decimal) -> Spectrum | None:
    """The squares of the singular values of (A + tau)^(-1/2) B (C + tau)^(-1/2), as many as the smaller side has.

    None where a shifted diagonal block is not positive definite.
    """
    factors = [cholesky(H + tau * _eye(len(H))) for H in (A, C)]
    if factors[0] is None or factors[1] is None:
        return None
    K = _solved(factors[1], _solved(factors[0], B).T).T
    return Spectrum(K @ K.T if len(K) <= K.shape[1] else K.T @ K)


def _eye(n: int) -> Exact:
    return np.array([[Decimal(int(i == j)) for j in range(n)] for i in range(n)], object)


def _solved(L: Exact, right: Exact) -> Exact:
    X = right.copy()
    for k in range(len(L)):
        X[k] = (X[k] - L[k, :k] @ X[:k]) / L[k, k] if k else X[k] / L[k, k]
    return X


def _norm(x: Iterable[Decimal]) -> Decimal:
    return sum((v * v for v in x), Decimal(0)).sqrt()
