"""What is made of operators keeps their errors: of matrices, of a lower precision, and of what is projected out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.matrices import Along, Hidden, Nothing, assert_close, draw, semidefinite
from torch import Tensor

from landscape.curvature.coupling import coupling, excess_index, joint
from landscape.curvature.density import spectral_density
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import saddle_index
from landscape.curvature.losses import mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import Deflated, HessianOperator, MatrixOperator, Restricted, product_error
from landscape.errors import NumericsError

METHODS = ["dense", "lanczos"]


@pytest.mark.parametrize("c", [0.0, 1.0, 1e6, 1e9, 1e12])
def test_the_error_of_a_deflated_matrix_has_the_rounding_of_what_is_projected_out(c: float) -> None:
    """P (c u u^T + S) P = S for a semidefinite S with S u = 0, all of whole numbers: the index is 0, whatever c."""
    n = 40
    u = torch.randint(1, 10, (n,), generator=torch.Generator().manual_seed(0)).double()
    S = torch.zeros(n, n, dtype=torch.float64)
    for i in range(0, 20, 2):
        w = torch.zeros(n, dtype=torch.float64)
        w[i], w[i + 1] = u[i + 1], -u[i]
        S += torch.outer(w, w)
    deflated = Deflated(MatrixOperator(c * torch.outer(u, u) + S), Along(u))
    symmetric = deflated.symmetric()
    assert float(torch.linalg.matrix_norm(symmetric.matrix - S, 2)) <= symmetric.error
    assert symmetric.error <= 1e-12 * float(torch.linalg.matrix_norm(c * torch.outer(u, u) + S, 2))
    tau = max(1e-8, 3 * symmetric.error / float(torch.linalg.matrix_norm(S, 2)))
    if tau < 1:
        assert saddle_index(deflated, rel_tau=tau).negative == 0
    if c > 1e6:
        with pytest.raises(NumericsError, match="below the error of the computed Hessian"):
            saddle_index(deflated, rel_tau=1e-8)
    # By default tau is as large as that asks for.
    assert saddle_index(deflated).lower == 0


WRAPPERS: dict[str, Callable[[MatrixOperator], Any]] = {
    "plain": lambda op: op,
    "deflated": lambda op: Deflated(op, Nothing(op.shape[0])),
    "twice deflated": lambda op: Deflated(Deflated(op, Nothing(op.shape[0])), Nothing(op.shape[0])),
    "restricted": lambda op: Restricted(op, rows := torch.arange(op.shape[0]), rows),
    "joint": lambda op: joint(
        MatrixOperator(op.matrix[:30, :30], op.error),
        MatrixOperator(op.matrix[:30, 30:]),
        MatrixOperator(op.matrix[30:, 30:]),
    ),
}


@pytest.mark.parametrize("wrap", list(WRAPPERS))
@pytest.mark.parametrize("method", METHODS)
def test_what_wraps_a_matrix_in_error_passes_the_error_on(method: Any, wrap: str) -> None:
    """An index within the stated error is refused, eigenvalues state it, and are converged only beyond it."""
    values = torch.cat([torch.zeros(1), torch.linspace(0.1, 1, 59)]).double()
    op = WRAPPERS[wrap](MatrixOperator(torch.diag(values), 0.1))
    assert product_error(op) == pytest.approx(0.1, rel=1e-9)
    if wrap == "joint" and method == "dense":
        return
    eigen = eigsh(op, 2, method=method)
    assert eigen.error == pytest.approx(0.1, rel=1e-9)
    assert not eigen.converged.any()
    assert eigsh(op, 2, method=method, rtol=0.11).converged.all()
    with pytest.raises(NumericsError, match="below the error of the computed Hessian"):
        saddle_index(op, rel_tau=0.02, method=method)
    # The true matrix may have -0.1 where this one has 0: at a larger tolerance both have index 0.
    assert saddle_index(op, rel_tau=0.3, method=method).negative == 0


def test_an_excess_index_counts_with_the_errors_of_its_blocks() -> None:
    """H_11 of -0.05 known to 0.04 may be -0.01: at a tolerance of 0.035 no index is proved."""
    values = torch.cat([torch.linspace(0.1, 1, 59), torch.tensor([-0.05])]).double()
    first = Deflated(MatrixOperator(torch.diag(values), 0.04), Nothing(len(values)))
    between, second = MatrixOperator(torch.zeros(60, 2).double()), MatrixOperator(torch.eye(2).double())
    with pytest.raises(NumericsError, match="below the error of the computed Hessian"):
        excess_index(first, between, second, 0.035, method="lanczos")
    excess = excess_index(first, between, second, 0.1, method="lanczos")
    assert (excess.lower, excess.upper) == (0, 0)


def cancelling(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """A net whose hidden units lose digits in single precision, the same ones in every product: symmetric errors."""
    return ((x @ params["a"] + 1e4) - 1e4).tanh() @ params["b"]


def test_single_precision_counts_as_error_through_wrappers() -> None:
    """Deflated, restricted and joint operators state their distance from float64, with a margin, as the plain one."""
    point = {"a": draw(4, 6, seed=0), "b": draw(6, 3, seed=1)}
    x, y, rows = draw(50, 4, seed=2), draw(50, 3, seed=3), torch.arange(0, 42, 3)

    def made(dtype: torch.dtype) -> list[Any]:
        H = HessianOperator(Objective(cancelling, x, y, mse, dtype=dtype), point)
        parts = joint(H.block(["a"]), H.block(["a"], ["b"]), H.block(["b"]))
        return [H, Deflated(H, Along(torch.ones(42, dtype=dtype))), Restricted(H, rows, rows), parts]

    for single, double in zip(made(torch.float32), made(torch.float64), strict=True):
        eye = torch.eye(single.shape[0])
        difference = float(((single @ eye).double() - double @ eye.double()).norm())
        assert difference <= product_error(single) <= 200 * difference
        assert product_error(double) <= 1e-6 * difference


# --- operators that have products alone -----------------------------------------------------------------------


def test_a_small_operator_that_has_products_alone_is_written_out() -> None:
    """Dense eigenvalues, deflated matrices, ratios and excess indices are those of the matrix that it hides."""
    A, B, C = semidefinite(20, 15, 0), draw(20, 9, seed=1), semidefinite(9, 9, 2)
    eigen = eigsh(Hidden(A), 3)
    assert eigen.method == "dense"
    np.testing.assert_allclose(eigen.values[1], torch.linalg.eigvalsh(A).flip(0)[:3], atol=1e-14)
    assert eigen.error <= 1e-13
    u = draw(20, seed=3)
    projector = torch.eye(20).double() - torch.outer(u, u) / (u @ u)
    assert_close(Deflated(Hidden(A), Along(u)).dense(), projector @ A @ projector, 1e-14)
    matrices, products = (tuple(map(kind, (A, B, C))) for kind in (MatrixOperator, Hidden))
    assert excess_index(*products, 1e-3).index == excess_index(*matrices, 1e-3).index
    assert excess_index(*products, 1e-3).level == "certified"
    assert saddle_index(Hidden(-A)).negative == saddle_index(MatrixOperator(-A)).negative == 15
    np.testing.assert_array_equal(spectral_density(Hidden(A)).density, spectral_density(MatrixOperator(A)).density)
    ratios = coupling(*products, 1e-3)
    assert ratios.method == "dense"
    np.testing.assert_allclose(ratios.ratios, coupling(*matrices, 1e-3).ratios, rtol=1e-10)
