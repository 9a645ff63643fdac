"""Gradient flow of the bilinear problem: the objective's gradients, integrated by SciPy, obey its exact laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.bilinear import K, M, N, bilinear, target
from scipy.integrate import solve_ivp
from torch import Tensor

from landscape.curvature.operators import HessianOperator


def flow(Y: Tensor, W: Tensor, E: Tensor, times: np.ndarray, weight_decay: float = 0.0) -> list[tuple[Tensor, Tensor]]:
    """W and E at the times, from d theta / dt = -grad."""
    objective = bilinear(Y, weight_decay)

    def split(flat: np.ndarray) -> tuple[Tensor, Tensor]:
        theta = torch.from_numpy(flat)
        return theta[: W.numel()].view_as(W), theta[W.numel() :].view_as(E)

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        W, E = split(flat)
        gradient = objective.gradient({"W": W, "E": E})
        return -torch.cat([gradient["W"].reshape(-1), gradient["E"].reshape(-1)]).numpy()

    start = torch.cat([W.reshape(-1), E.reshape(-1)]).numpy()
    solution = solve_ivp(velocity, (0, times[-1]), start, t_eval=times, method="DOP853", rtol=1e-11, atol=1e-13)
    return [split(np.ascontiguousarray(y)) for y in solution.y.T]


@pytest.mark.slow
def test_f10_modes_grow_as_saxe_says() -> None:
    """From balanced factors every singular mode is u(t) = s e^(2st) / (e^(2st) - 1 + s/u_0), alone (F10)."""
    Y, U, s, V = target()
    u_0 = torch.tensor([1e-3, 2e-3, 5e-2], dtype=torch.float64)
    W, E = U[:, :K] @ torch.diag(u_0.sqrt()), torch.diag(u_0.sqrt()) @ V[:, :K].T
    times = np.linspace(0, 4, 9)
    growth = np.exp(2 * s[:K].numpy() * times[:, None])
    expected = s[:K].numpy() * growth / (growth - 1 + (s[:K] / u_0).numpy())
    for modes, (W_t, E_t) in zip(expected, flow(Y, W, E, times), strict=True):
        product = U.T @ W_t @ E_t @ V
        np.testing.assert_allclose(product.diagonal()[:K], modes, rtol=1e-8)
        assert float((product - torch.diag_embed(product.diagonal())).abs().max()) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_f11_what_gradient_flow_conserves(weight_decay: float) -> None:
    """W^T W - E E^T is constant, and with L2 decays as e^(-2 lambda t) (F11)."""
    generator = torch.Generator().manual_seed(3)
    W, E = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((M, K), (K, N)))
    times = np.linspace(0, 3, 7)
    path = flow(target()[0], W, E, times, weight_decay)
    before = W.T @ W - E @ E.T
    assert float((path[-1][0] - W).norm()) > 0.5
    for t, (W_t, E_t) in zip(times, path, strict=True):
        expected = before * np.exp(-2 * weight_decay * t)
        torch.testing.assert_close(W_t.T @ W_t - E_t @ E_t.T, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("m", "k", "n"), [(4, 3, 5), (6, 2, 3), (3, 3, 3), (5, 1, 4), (4, 4, 7)])
def test_f12_rank_of_the_gauss_newton_part(m: int, k: int, n: int) -> None:
    """k (m + n) - k^2 for k <= min(m, n): the gauge directions are its null space (F12)."""
    generator = torch.Generator().manual_seed(5)
    W, E, Y = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((m, k), (k, n), (m, n)))
    G = HessianOperator(bilinear(Y), {"W": W, "E": E}, part="gauss_newton").dense()
    assert int(torch.linalg.matrix_rank(G, hermitian=True)) == k * (m + n) - k**2
