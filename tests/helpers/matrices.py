"""Matrices of known spectrum, matrices that show their products alone, and random numbers."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.inertia import Inertia
from landscape.curvature.operators import Directions, LinearOperator

Array = NDArray[np.float64]
Blocks = tuple[Array, Array, Array]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_close(actual: Tensor, expected: Tensor, relative: float = 1e-13) -> None:
    """Equal within `relative` of the largest entry."""
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= relative * float(expected.abs().max())


def matrix(values: Array | list[float], seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    A = Q @ torch.diag(torch.as_tensor(np.asarray(values), dtype=torch.float64)) @ Q.T
    return (A + A.T) / 2


def drawn_spectrum(seed: int, tau: float, most: int) -> Array:
    """Multiplets, clusters, gaps, exact zeros and some within tau, of a random scale from 1e-12 to 1e6."""
    rng = np.random.default_rng(seed)
    values = [rng.choice([-1.0, 1.0], 1), np.zeros(rng.choice([0, 1, 9]))]
    values.append(tau * rng.uniform(-0.5, 0.5, rng.choice([0, 5])))
    for _ in range(rng.integers(0, 8)):
        magnitude = 10 ** rng.uniform(np.log10(10 * tau), 0)
        copies = rng.integers(1, most)
        spread = rng.choice([0.0, 1e-10, 1e-3])
        values.append(rng.choice([-1, 1]) * magnitude * (1 - spread * np.arange(copies) / most))
    return np.concatenate(values) * 10 ** rng.uniform(-12, 6)


def at_minus_tau(seed: int) -> tuple[Tensor, float]:
    """A matrix of order 6 and norm 1, and a tau of which the negative is an eigenvalue to rounding."""
    tau = 2.0**-20
    return matrix([1.0, 0.5, -0.3, -tau, 0.2, 0.7], seed), tau


def true_index(values: Array, inertia: Inertia) -> int:
    """Eigenvalues below -tau of a prescribed spectrum."""
    return int((values < -inertia.tolerance).sum())


def exact_index(A: Tensor, shift: float) -> int:
    """Eigenvalues below `shift` of the very numbers of A, by rational elimination without pivoting."""
    rows = [
        [Fraction(x) - (Fraction(shift) if i == j else 0) for j, x in enumerate(r)] for i, r in enumerate(A.tolist())
    ]
    count = 0
    for k, pivot in enumerate(rows):
        count += pivot[k] < 0
        for row in rows[k + 1 :]:
            share = row[k] / pivot[k]
            row[:] = [x - share * y for x, y in zip(row, pivot, strict=True)]
    return count


class Hidden(LinearOperator):
    """A matrix that a solver sees by its products alone; it counts them, also those of its transpose."""

    def __init__(self, A: Tensor, count: list[int] | None = None) -> None:
        self.A, self.shape, self.dtype, self.device = A, (A.shape[0], A.shape[1]), A.dtype, A.device
        self.count = [0] if count is None else count

    @property
    def T(self) -> Hidden:
        return Hidden(self.A.T, self.count)

    def _matmat(self, V: Tensor) -> Tensor:
        self.count[0] += V.shape[1]
        return self.A @ V


def semidefinite(n: int, rank: int, seed: int) -> Tensor:
    """A matrix with eigenvalues from 1e-3 to 1, and n - rank zeros."""
    Q = torch.linalg.qr(draw(n, n, seed=seed))[0][:, :rank]
    A = Q * torch.logspace(-3, 0, rank, dtype=torch.float64) @ Q.T
    return (A + A.T) / 2


def joint_matrix(H_11: Tensor, H_12: Tensor, H_22: Tensor) -> Tensor:
    return torch.cat([torch.cat([H_11, H_12], 1), torch.cat([H_12.T, H_22], 1)])


def exact_ratios(blocks: Blocks, tau: float) -> list[mpmath.mpf]:
    """Singular values of L_1^(-1) H_12 L_2^(-T) in 50 digits beyond what the blocks' conditions take."""
    with mpmath.workdps(70):
        K = mpmath.matrix(blocks[1].tolist())
        for H in (blocks[0], blocks[2]):
            L = mpmath.cholesky(mpmath.matrix(H.tolist()) + mpmath.mpf(tau) * mpmath.eye(len(H)))
            K = mpmath.matrix([list(mpmath.lu_solve(L, K[:, j])) for j in range(K.cols)])
        return sorted(mpmath.svd_r(K, compute_uv=False), reverse=True)


class Diagonal(LinearOperator):
    """An operator of given eigenvalues. Random starts know no axes, so that it is as hard as a rotated one."""

    def __init__(self, values: Array) -> None:
        self.values = torch.from_numpy(values)[:, None]
        self.shape, self.dtype, self.device = (len(values), len(values)), torch.float64, torch.device("cpu")

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.values * vectors


class Nothing(Directions):
    """No direction to deflate."""

    dimension = 0

    def __init__(self, n: int) -> None:
        self.sizes = [n]

    def remove(self, vectors: Tensor) -> Tensor:
        """The vectors themselves."""
        return vectors


class Along(Directions):
    """One vector to deflate."""

    dimension = 1

    def __init__(self, u: Tensor) -> None:
        self.sizes, self.unit = [len(u)], u[:, None] / u.norm()

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to it."""
        columns = vectors.reshape(len(vectors), -1)
        return (columns - self.unit @ (self.unit.T @ columns)).view(vectors.shape)
