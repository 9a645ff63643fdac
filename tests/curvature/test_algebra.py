"""Sums, multiples, shifts, products and preconditioned operators, beside the same of dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import assert_close, draw, matrix
from torch import Tensor, nn

from landscape import (
    HessianOperator,
    MatrixOperator,
    Objective,
    Preconditioned,
    coupling,
    eigsh,
    saddle_index,
    spectral_density,
    trace,
)
from landscape.curvature.operators import FunctionOperator, LinearOperator, product_error
from landscape.errors import ArgumentError, LandscapeError

BLOCKS = (["0.weight"], ["2.weight", "0.bias"])


def hessian(dtype: torch.dtype = torch.float64, part: str = "hessian", decay: float = 0.1) -> HessianOperator:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    objective = Objective(model, draw(20, 3), torch.arange(20) % 3, weight_decay=decay, dtype=dtype)
    return HessianOperator(objective, dict(model.named_parameters()), part=part)


def check(op: LinearOperator, expected: Tensor) -> None:
    """The operator, its transpose and its dense matrix are this matrix."""
    probes = draw(op.shape[1], 3)
    assert_close(op @ probes, expected @ probes, 1e-12)
    assert_close(op @ probes[:, 0], expected @ probes[:, 0], 1e-12)
    assert_close(op.T @ draw(op.shape[0], 2), expected.T @ draw(op.shape[0], 2), 1e-12)
    assert_close(op.dense(), expected, 1e-12)


def test_algebra_is_that_of_the_matrices() -> None:
    H, G = hessian(), hessian(part="gauss_newton")
    h, g = H.dense(), G.dense()
    eye = torch.eye(len(h), dtype=h.dtype)
    for op, expected in (
        (H + G, h + g),
        (H - G, h - g),
        (2 * H, 2 * h),
        (H * np.float64(0.5), h / 2),
        (np.float64(0.5) * H, h / 2),
        (-H, -h),
        (H.shift(0.3), h + 0.3 * eye),
        (3 * (H - 2 * G).shift(-1.0) + H, 4 * h - 6 * g - 3 * eye),
        (H @ H, h @ h),
        (H @ G @ H, h @ g @ h),
    ):
        check(op, expected)
        assert op.is_symmetric
        assert op.T is op
        assert eigsh(op, 1, method="dense").values[1, 0] == pytest.approx(float(torch.linalg.eigvalsh(expected)[-1]))
    product = H @ G
    check(product, h @ g)
    check(product.T, g @ h)
    check((H @ G).shift(1.0), h @ g + eye)
    with pytest.raises(ArgumentError, match="eigenvalues of a Composed that is not symmetric"):
        eigsh(product, 1)


def test_sums_have_the_blocks_of_their_terms() -> None:
    """Also where rows and columns share parameters, which a shift meets in these alone."""
    H = hessian()
    names = list(H.rows)
    whole = (2 * H).shift(0.7)
    matrix = 2 * H.dense() + 0.7 * torch.eye(H.shape[0], dtype=torch.float64)
    places = dict(zip(names, torch.arange(H.shape[0]).split(H.numbers(names)), strict=True))
    for rows, cols in ((BLOCKS[1], BLOCKS[1]), BLOCKS, (BLOCKS[0], [*BLOCKS[1], *BLOCKS[0]])):
        at, across = (torch.cat([places[n] for n in side]) for side in (rows, cols))
        block = whole.block(rows, cols)
        check(block, matrix[at][:, across])
        assert block.is_symmetric == (rows == cols)


def test_errors_are_bounds() -> None:
    """Of matrices that are moved by as much as their stated error."""
    a, b = matrix([3.0, 1.0, -2.0]), matrix([0.5, 0.1, 4.0], seed=1)
    moves = [0.01 * matrix([1.0, -1.0, 1.0], seed=s) for s in (2, 3)]
    A, B = MatrixOperator(a, 0.01), MatrixOperator(b, 0.01)
    for op, moved in (
        (2 * A - B, 2 * (a + moves[0]) - (b - moves[1])),
        (A.shift(1.0), a + moves[0] + torch.eye(3)),
        (A @ B, (a + moves[0]) @ (b + moves[1])),
        (Preconditioned(A, torch.tensor([4.0, 0.25, 1.0])), None),
    ):
        if moved is None:
            root = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
            moved = root[:, None] * (a + moves[0]) * root
        change = float(torch.linalg.matrix_norm(moved - op.dense(), 2))
        assert change <= (1 + 1e-12) * op.error <= 500 * change


def test_products_in_float32_are_measured_beside_float64() -> None:
    H = hessian(torch.float32)
    for op in (H.shift(1.0), 2 * H, H @ H, Preconditioned(H, torch.full((H.shape[0],), 0.5))):
        assert op.in_double() is not None
        assert 1e-9 < product_error(op) < 1e-4
    assert (H + MatrixOperator(torch.eye(H.shape[0]))).in_double() is None


@pytest.mark.parametrize("by_name", [True, False])
def test_all_that_the_plain_hessian_has_the_preconditioned_one_has(by_name: bool) -> None:
    H = hessian()
    D = 0.05 + draw(H.shape[0], seed=1).abs()
    pieces = dict(zip(H.rows, D.split(H.numbers(H.rows)), strict=True))
    op = Preconditioned(H, pieces | {"other": D} if by_name else D)
    root = D.rsqrt()
    expected = root[:, None] * H.dense() * root
    check(op, expected)
    values = torch.linalg.eigvalsh(expected)
    for method in ("dense", "lanczos"):
        result = eigsh(op, 2, method=method)
        np.testing.assert_allclose(result.values[0], values[:2], rtol=1e-8)
        np.testing.assert_allclose(result.values[1], values.flip(0)[:2], rtol=1e-8)
    index = saddle_index(op)
    assert index.level == "certified"
    assert index.negative == int((values < 0).sum())
    assert trace(op).value == pytest.approx(float(expected.trace()))
    np.testing.assert_allclose(
        spectral_density(op).density, spectral_density(MatrixOperator(expected)).density, rtol=1e-6, atol=1e-9
    )
    rows, cols = BLOCKS
    block = op.block(rows, cols)
    left, right = (torch.cat([pieces[n] for n in names]).rsqrt() for names in BLOCKS)
    check(block, left[:, None] * H.block(rows, cols).dense() * right)


def ratios(op: LinearOperator) -> np.ndarray:
    return coupling(op.block(BLOCKS[0]), op.block(*BLOCKS), op.block(BLOCKS[1]), abs_tau=1e-10).ratios


def test_coupling_ratios_do_not_change_with_the_preconditioner() -> None:
    """They are invariants of the two blocks: an independent check of all three."""
    H = hessian(part="gauss_newton", decay=1.0)
    op = Preconditioned(H, {n: 0.1 + draw(k.numel(), seed=i).abs() for i, (n, k) in enumerate(H.shapes.items())})
    np.testing.assert_allclose(ratios(H), ratios(op), rtol=1e-6)


def test_what_does_not_move_has_no_curvature() -> None:
    op = Preconditioned(MatrixOperator(matrix([1.0, 2.0, 3.0])), torch.tensor([1.0, torch.inf, 1.0]))
    assert float(op.dense()[1].abs().max()) == 0


def test_matrices_that_are_not_symmetric_stay_so() -> None:
    """A multiple, a sum or a product of a square matrix is not symmetrised, nor is it its own transpose."""
    a = draw(4, 4)
    A = MatrixOperator(a)
    D = torch.tensor([4.0, 1.0, 4.0, 1.0], dtype=a.dtype)
    d = D.rsqrt()
    check(2 * A, 2 * a)
    check(A.shift(1.0), a + torch.eye(4, dtype=a.dtype))
    check(A @ A, a @ a)
    check(Preconditioned(A, D), d[:, None] * a * d)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda H, M: H + 1.0, "a float is no operator"),
        (lambda H, M: "2" * H, "an operator times a str"),
        (lambda H, M: H * float("nan"), "an operator times nan"),
        (lambda H, M: H * H, "an operator times a HessianOperator"),
        (lambda H, M: H + M, "a sum of operators of the shapes"),
        (lambda H, M: H @ M, "a product of operators of the shapes"),
        (lambda H, M: H + hessian(torch.float32), "operators of torch.float64 on cpu and of torch.float32 on cpu"),
        (lambda H, M: H + H.block(H.rows[::-1]), "a sum with the rows 0.weight"),
        (lambda H, M: H @ H.block(H.rows[::-1]), "a product that meets in the parameters 0.weight"),
        (lambda H, M: H.block(*BLOCKS).shift(1.0), "a shift of a 12 x 16 block"),
        (lambda H, M: H.block(["0.weight"], ["2.weight"]).shift(1.0), "a shift of a 12 x 12 block"),
        (lambda H, M: (M + M).block(["a"]), "Sum has no named parameters"),
        (lambda H, M: (H @ H).block(["a"]), "Composed has no named parameters"),
        (lambda H, M: (2 * H).block(["0.wieght"]), "no parameter '0.wieght'"),
        (lambda H, M: Preconditioned(M, {"a": torch.ones(3)}), "D by name for an operator without named parameters"),
        (lambda H, M: Preconditioned(H, {"0.weight": torch.ones(12)}), "D has no '0.bias', '2.weight'"),
        (lambda H, M: Preconditioned(M, torch.ones(4)), "D has 4 numbers, not 3"),
        (lambda H, M: Preconditioned(M, torch.tensor([1.0, 0.0, torch.nan])), "D is not above 0 in 2 of 3 places"),
        (lambda H, M: Preconditioned(H.block(*BLOCKS), torch.ones(16)), "one vector D for a 12 x 16 block"),
        (lambda H, M: Preconditioned(M, torch.ones(3) + 0j), "D is complex, torch.complex64"),
        (lambda H, M: Preconditioned(M, torch.ones(3) > 0), "D is torch.bool"),
        (lambda H, M: Preconditioned(M, torch.full((3,), 1e-320, dtype=torch.float64)), "not above 0 in 3 of 3"),
        (
            lambda H, M: Preconditioned(H.block(["0.weight"]), {"0.weight": torch.ones(3, 4)}),
            "has the shape \\(3, 4\\)",
        ),
        (lambda H, M: H / 0, "an operator over 0"),
        (lambda H, M: Preconditioned(M, [1.0, 1.0, 1.0]), "D is a list, not a tensor"),
        (lambda H, M: Preconditioned(M.matrix, torch.ones(3)), "is no operator"),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(LandscapeError, match=message):
        make(hessian(), MatrixOperator(matrix([1.0, 2.0, 3.0])))  # type: ignore[operator]


def test_functions_are_symmetric_unless_they_say_otherwise() -> None:
    a = draw(3, 3)
    op = FunctionOperator(lambda v: a @ v, (3, 3), a, transposed=lambda v: a.T @ v)
    check(op + op.T, a + a.T)
    with pytest.raises(ArgumentError, match="not symmetric"):
        saddle_index(op)


def test_an_operator_of_ones_own_says_that_it_is_not_symmetric() -> None:
    class Mine(LinearOperator):
        is_symmetric = False

        def __init__(self, a: Tensor) -> None:
            self.a, self.shape, self.dtype, self.device = a, (len(a), len(a.T)), a.dtype, a.device

        def _matmat(self, vectors: Tensor) -> Tensor:
            return self.a @ vectors

        @property
        def T(self) -> Mine:
            return Mine(self.a.T)

    check(Mine(draw(3, 3)), draw(3, 3))
    with pytest.raises(ArgumentError, match="eigenvalues of a Mine that is not symmetric"):
        eigsh(Mine(draw(3, 3)), 1)
