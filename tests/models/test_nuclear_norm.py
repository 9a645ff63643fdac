"""The nuclear norm of the tables: its proximal step, and L2 on E and W, which it stands for (F16)."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from helpers.matrices import draw

from landscape.models.embedding_mlp.networks import shrink, spectrum, subgradient


def nuclear_norm(X: np.ndarray) -> float:
    return float(scipy.linalg.svdvals(X).sum())


def shrunk(Y: torch.Tensor, t: float) -> np.ndarray:
    return shrink(Y[None], torch.tensor([t], dtype=torch.float64))[0].numpy()


@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.3])
def test_the_proximal_step_is_optimal(t: float) -> None:
    """(Y - X)/t is a subgradient of |X|_*: U V^T on the space of X, and of norm at most 1 beside it."""
    sigma = np.array([20.0, 3.0, 1.0, 0.4, 0.2, 2e-3, 5e-7, 0.0])
    U, V = (np.linalg.qr(draw(n, len(sigma), seed=n).numpy())[0] for n in (30, 9))
    Y = torch.from_numpy(U * sigma @ V.T)
    X = shrunk(Y, t)
    # What the largest singular value leaves of the smaller ones in a Gram matrix.
    atol = 2 * np.finfo(float).eps * sigma[0] ** 2 / t
    left, kept, right = scipy.linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(kept[: len(sigma)], np.maximum(sigma - t, 0), atol=max(atol, 1e-13))
    rank = int((sigma > t).sum())
    on_X = left[:, :rank], right[:rank]
    beside = (Y.numpy() - X) / t - on_X[0] @ on_X[1]
    slack = max(atol, 1e-13) / t
    assert scipy.linalg.norm(on_X[0].T @ beside, 2) <= slack
    assert scipy.linalg.norm(beside @ on_X[1].T, 2) <= slack
    assert scipy.linalg.norm(beside, 2) <= 1 + slack


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_the_subgradient_is_the_gradient_where_there_is_one(shape: tuple[int, int]) -> None:
    """SciPy's finite differences of the sum of singular values, all of which are positive."""
    Y = draw(*shape, seed=1)
    expected = scipy.optimize.approx_fprime(Y.numpy().ravel(), lambda flat: nuclear_norm(flat.reshape(shape)))
    np.testing.assert_allclose(subgradient(Y[None])[0].numpy(), expected.reshape(shape), atol=1e-6)


def test_the_subgradient_at_a_singular_matrix() -> None:
    """It has singular value 1 on the space of the matrix and 0 beside it; at 0 it is 0."""
    Y = draw(6, 2, seed=1) @ draw(2, 4, seed=2)
    D = subgradient(torch.stack([Y, torch.zeros_like(Y)])).numpy()
    np.testing.assert_allclose(scipy.linalg.svdvals(D[0]), [1, 1, 0, 0], atol=1e-9)
    assert (D[0] * Y.numpy()).sum() == pytest.approx(nuclear_norm(Y.numpy()))
    assert (D[1] == 0).all()


def test_each_matrix_has_a_threshold_of_its_own() -> None:
    """A batch is its matrices one by one; one that is not finite costs the others nothing."""
    Y, t = torch.stack([draw(5, 3, seed=i) for i in range(3)]), torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64)
    Y[2, 0, 0] = torch.inf
    shrunken = shrink(Y, t).numpy()
    for i in range(2):
        np.testing.assert_allclose(shrunken[i], shrunk(Y[i], float(t[i])), atol=1e-14)
    assert np.isnan(shrunken[2]).all()
    assert shrink(Y.float(), t).dtype == torch.float32


@pytest.mark.parametrize("d", [3, 5])
def test_f16(d: int) -> None:
    """The least (|E|^2 + sum |W_k|^2)/2 over E W_k^T = T_k is |[T_1 ... T_s]|_*, for any d from their rank up."""
    tokens, h, slots, rank = 6, 4, 2, 3
    T = (draw(tokens, rank, seed=1) @ draw(rank, slots * h, seed=2)).numpy()
    U, sigma, V = np.linalg.svd(T, full_matrices=False)
    E = np.pad(U[:, :rank] * sigma[:rank], ((0, 0), (0, d - rank)))
    W = np.pad(V[:rank].T, ((0, 0), (0, d - rank)))

    def size(flat: np.ndarray) -> float:
        """Of the factors E A and W A^-T, whose product is T for every A."""
        A = flat.reshape(d, d)
        if np.linalg.cond(A) > 1e12:
            return np.inf
        return float(((E @ A) ** 2).sum() + ((W @ np.linalg.inv(A).T) ** 2).sum()) / 2

    start = (np.eye(d) + draw(d, d, seed=3).numpy() / 4).ravel()
    assert size(start) > 1.1 * nuclear_norm(T)
    least = scipy.optimize.minimize(size, start, method="BFGS").fun
    assert least == pytest.approx(nuclear_norm(T), rel=1e-6)


def test_spectrum_of_the_tables() -> None:
    """Of E and [W_1 ... W_s], and of one-hot tokens, whose E is 1, as SciPy has it of [T_1 ... T_s]."""
    E, W = draw(6, 4, seed=1), draw(5, 3 * 4, seed=2)
    T = torch.stack([E @ W_k.T for W_k in W.split(4, dim=1)])
    side_by_side, as_W = np.hstack(list(T.numpy())), torch.cat([T_k.T for T_k in T], dim=1)
    expected = np.sort(np.pad(scipy.linalg.svdvals(side_by_side)[:4], (0, 2)))
    for values in (spectrum(E[None], W[None]), spectrum(torch.eye(6)[None], as_W[None])):
        np.testing.assert_allclose(values[0].numpy(), expected, atol=1e-7 * expected[-1])
