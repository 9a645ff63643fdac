"""curvlinops' operators in our functions, ours in curvlinops' functions, and SciPy's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from curvlinops import (
    CGInverseLinearOperator,
    EKFACLinearOperator,
    FisherMCLinearOperator,
    GGNLinearOperator,
    HessianLinearOperator,
    JacobianLinearOperator,
    KFACLinearOperator,
    hutchinson_diag,
    hutchinson_squared_fro,
    hutchinson_trace,
    hutchpp_trace,
    xdiag,
    xtrace,
)
from helpers.matrices import assert_close, draw, matrix
from helpers.modules import operator_of
from torch import Tensor, nn

from landscape import (
    HessianOperator,
    LandscapeError,
    MatrixOperator,
    Objective,
    diagonal,
    eigsh,
    frobenius_norm,
    from_curvlinops,
    from_scipy,
    saddle_index,
    spectral_density,
    to_curvlinops,
    trace,
)


def network(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A classifier of two layers, and two batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    return model, [(torch.randn(size, 4, dtype=dtype), torch.randint(0, 3, (size,))) for size in (9, 6)]


def theirs(kind: Any, dtype: torch.dtype = torch.float64, **settings: Any) -> tuple[Any, dict[str, nn.Parameter]]:
    """An operator of curvlinops, and its parameters by name."""
    model, data = network(dtype)
    params = dict(model.named_parameters())
    return kind(model, nn.CrossEntropyLoss(), list(params.values()), data, **settings), params


@pytest.mark.parametrize(
    "kind",
    [HessianLinearOperator, GGNLinearOperator, FisherMCLinearOperator, KFACLinearOperator, EKFACLinearOperator],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_runs_on_their_operators(kind: Any, dtype: torch.dtype) -> None:
    """Eigenvalues, index, density, trace, diagonal and norm are those of the matrix; blocks are its blocks."""
    operator, params = theirs(kind, dtype)
    A = (operator @ torch.eye(operator.shape[0], dtype=dtype)).detach().double()
    A, tolerance = (A + A.T) / 2, 1e-10 if dtype == torch.float64 else 1e-5
    ours = from_curvlinops(operator, params)
    values = torch.linalg.eigvalsh(A).numpy()
    norm = np.abs(values).max()
    assert ours.is_symmetric
    assert np.abs(eigsh(ours, 3, method="lanczos").values[1] - values[-3:][::-1]).max() < tolerance * norm
    assert saddle_index(ours, rel_tau=1e-3).negative == (values < -1e-3 * norm).sum()
    assert abs(trace(ours).value - values.sum()) < tolerance * norm
    assert frobenius_norm(ours).value == pytest.approx(np.linalg.norm(values), rel=tolerance)
    assert (
        np.abs(diagonal(ours).by_name()["2.weight"].flatten().numpy() - A.diagonal()[30:48].numpy()).max()
        < tolerance * norm
    )
    assert spectral_density(ours, method="lanczos", steps=10).density.max() > 0
    weights = ours.block(["2.weight", "0.bias"])  # type: ignore[attr-defined]
    at = [*range(30, 48), *range(24, 30)]
    assert_close(weights.dense().double(), A[at][:, at], tolerance)
    coupling = ours.block(["0.weight"], ["2.bias"])  # type: ignore[attr-defined]
    assert_close(coupling.dense().double(), A[:24, 48:], tolerance)
    assert_close(coupling.T.dense().double(), A[48:, :24], tolerance)


def test_their_functions_take_ours() -> None:
    """Traces, diagonals, norms, inverses and compositions of curvlinops, on flat vectors and on lists of tensors."""
    H = operator_of("mlp")
    ours, A = to_curvlinops(H), H.dense()
    assert_close(ours @ torch.eye(len(A), dtype=torch.float64), A)
    pieces = [torch.ones(shape, dtype=torch.float64) for shape in H.shapes.values()]
    images = ours @ pieces
    assert [image.shape for image in images] == list(H.shapes.values())
    assert_close(torch.cat([image.flatten() for image in images]), A.sum(1))
    assert_close((ours + 2.0 * ours) @ torch.ones(len(A), dtype=torch.float64), 3 * A.sum(1))
    torch.manual_seed(0)
    for estimate in (hutchinson_trace, hutchpp_trace, xtrace):
        assert float(estimate(ours, 30)) == pytest.approx(float(A.trace()), abs=0.5 * float(A.norm()))
    for of_diagonal in (hutchinson_diag, xdiag):
        assert float((of_diagonal(ours, 30) - A.diagonal()).norm()) < float(A.norm())
    assert float(hutchinson_squared_fro(ours, 30)) == pytest.approx(float(A.norm()) ** 2, rel=0.8)
    B = A @ A / A.norm() ** 2 + torch.eye(len(A), dtype=torch.float64)
    inverse = CGInverseLinearOperator(to_curvlinops(MatrixOperator(B)), tolerance=1e-5)
    back = from_curvlinops(inverse, symmetric=True)
    assert_close(back @ torch.eye(len(A), dtype=torch.float64), torch.linalg.inv(B), 1e-4)
    skew = to_curvlinops(MatrixOperator(A.triu()))
    assert_close(skew.adjoint() @ torch.eye(len(A), dtype=torch.float64), A.triu().T)
    block = to_curvlinops(H.block(H.rows[:1], H.rows[1:]))
    assert not block.SELF_ADJOINT
    rows, cols = block.shape
    assert_close(block.adjoint() @ torch.eye(rows, dtype=torch.float64), A[rows:, :rows])
    assert cols == len(A) - rows
    assert block.to_scipy().matvec(np.ones(cols)) == pytest.approx(A[:rows, rows:].sum(1).numpy())


def test_there_and_back() -> None:
    """Both ways give the operator back, and the two libraries the same Hessian."""
    operator, params = theirs(HessianLinearOperator)
    model, data = network()
    H = HessianOperator(Objective(model, data, loss=nn.CrossEntropyLoss()), dict(model.named_parameters()))
    assert_close(from_curvlinops(operator, params).dense(), H.dense())
    assert_close(from_curvlinops(to_curvlinops(H)).dense(), H.dense())


def test_rectangular_operators_have_a_transpose() -> None:
    """A Jacobian, and SciPy's and sparse matrices that are not symmetric."""
    model, data = network()
    params = list(model.parameters())
    theirs = JacobianLinearOperator(model, params, data)
    J, A = from_curvlinops(theirs), theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
    assert J.shape == (45, 51)
    assert_close(J @ draw(51, 2), A.detach() @ draw(51, 2))
    assert_close(J.T @ draw(45), A.detach().T @ draw(45))
    rows = draw(4, 7)
    for wrapped in (rows.numpy(), scipy.sparse.csr_matrix(rows.numpy()), MatrixOperator(rows).to_scipy()):
        B = from_scipy(wrapped, symmetric=False)
        assert_close(B @ draw(7), rows @ draw(7))
        assert_close(B.T @ draw(4), rows.T @ draw(4))
    for square in (from_scipy(draw(4, 4).numpy(), symmetric=False), from_scipy(draw(4, 4).numpy(), symmetric=False).T):
        with pytest.raises(ValueError, match="not symmetric"):
            trace(square)


def test_scipy_matrices() -> None:
    """A sparse Laplacian has the eigenvalues that are known in closed form; integers are converted."""
    n = 50
    laplacian = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))  # type: ignore[list-item]
    values = 2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1))
    for A in (laplacian, laplacian.toarray(), laplacian.astype(int), MatrixOperator(matrix(values)).to_scipy()):
        op = from_scipy(A)
        assert eigsh(op, 2).values[0] == pytest.approx(values[:2], abs=1e-13)
        assert trace(op).value == pytest.approx(2 * n, rel=1e-13)


def test_words_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other objects, shapes and precisions, and curvlinops where it is not installed."""
    operator, params = theirs(GGNLinearOperator)
    with pytest.raises(ValueError, match="params with 24 numbers for an operator of shape"):
        from_curvlinops(operator, {"0.weight": params["0.weight"]})
    with pytest.raises(ValueError, match="a Tensor is no operator of curvlinops"):
        from_curvlinops(torch.eye(3))
    with pytest.raises(ValueError, match="a tensor of shape"):
        to_curvlinops(torch.eye(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter 'w'"):
        from_curvlinops(operator, params).block(["w"])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="4 x 7 is not symmetric"):
        from_scipy(np.ones((4, 7)))
    with pytest.raises(ValueError, match="an operator of complex128"):
        from_scipy(1j * np.eye(3))
    with pytest.raises(ValueError, match="a str is no linear operator"):
        from_scipy("matrix")
    monkeypatch.setitem(sys.modules, "curvlinops._torch_base", None)
    with pytest.raises(LandscapeError, match="this needs curvlinops") as refusal:
        to_curvlinops(MatrixOperator(torch.eye(3).double()))
    assert refusal.value.hint == "pip install curvlinops-for-pytorch"
