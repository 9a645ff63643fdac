"""Inverse products, beside factorised matrices; refused where curvature is not positive."""

from __future__ import annotations

import pytest
import torch
from helpers.matrices import draw, matrix
from torch import Tensor, nn

from landscape import HessianOperator, MatrixOperator, Objective, solve
from landscape.curvature.operators import FunctionOperator, LinearOperator
from landscape.errors import ArgumentError, LandscapeError, NumericsError


def graded(n: int = 60) -> Tensor:
    """A diagonal from 1e-3 to 1e3, and a little beside it: what a diagonal preconditioner is for."""
    D = torch.logspace(-3, 3, n, dtype=torch.float64).sqrt()
    return D[:, None] * matrix([1 + 0.5 * i / n for i in range(n)]) * D


def test_solutions_are_those_of_a_factorisation() -> None:
    A, b = graded(), draw(60, 3, seed=1)
    expected = torch.linalg.solve(A, b)
    op = MatrixOperator(A)
    diagonal = A.diagonal()
    inverse = FunctionOperator(lambda v: v / diagonal[:, None], (60, 60), A)
    plain = solve(op, b)
    for solution in (solve(op, b, diagonal), solve(op, b, inverse)):
        torch.testing.assert_close(solution.values, expected, rtol=1e-6, atol=0)
        assert solution.converged
        true = float(((b - A @ solution.values).norm(dim=0) / b.norm(dim=0)).max())
        assert solution.residual == pytest.approx(true, rel=1e-3)
        assert solution.num_products < plain.num_products / 5
    torch.testing.assert_close(solve(op, b[:, 0], diagonal).values, expected[:, 0], rtol=1e-6, atol=0)
    assert solve(op, 0 * b).residual == 0
    assert solve(op, 0 * b).num_products == 0


def test_a_preconditioner_may_have_fewer_digits() -> None:
    """As that of curvlinops, of a model in float32."""
    A, b = graded(), draw(60)
    diagonal = A.diagonal().float()
    inverse = FunctionOperator(lambda v: v / diagonal[:, None], (60, 60), diagonal)
    solution = solve(MatrixOperator(A), b, inverse)
    assert solution.converged
    assert solution.values.dtype == torch.float64
    assert solution.num_products == solve(MatrixOperator(A), b, A.diagonal()).num_products


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_solutions_scale_with_the_right_hand_side(scale: float) -> None:
    """Where its square is not a number."""
    A, b = graded(), draw(60)
    solution = solve(MatrixOperator(A), scale * b, A.diagonal())
    torch.testing.assert_close(solution.values / scale, solve(MatrixOperator(A), b, A.diagonal()).values)
    assert solution.converged
    assert solution.to_xarray()["values"].dims == ("row",)
    assert solve(MatrixOperator(A), b[:, None]).to_xarray()["values"].dims == ("row", "column")


def test_at_most_so_many_products_are_spent_and_counted() -> None:
    count = 0
    A, b = graded(), draw(60, 2)

    def product(v: Tensor) -> Tensor:
        nonlocal count
        count += v.shape[1]
        return A @ v

    for most in (2, 7, 20, 1000):
        count = 0
        solution = solve(FunctionOperator(product, (60, 60), A), b, max_hvps=most)
        assert solution.num_products == count <= most
        assert solution.converged == (solution.residual <= 1e-8)
    assert solution.converged


def test_a_residual_out_of_reach_is_said_not_promised() -> None:
    """float32 cannot give eight digits, and the recurrence does not pretend that it had."""
    A = matrix([10.0**-i for i in range(6)]).float()
    b = draw(6).float()
    solution = solve(MatrixOperator(A), b)
    assert not solution.converged
    true = float((b.double() - A.double() @ solution.values.double()).norm() / b.double().norm())
    assert solution.residual == pytest.approx(true, rel=1.0)
    assert solution.residual < 1e-2


def hessian(part: str = "hessian", decay: float = 0.0) -> HessianOperator:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    objective = Objective(model, draw(20, 3), torch.arange(20) % 3, weight_decay=decay)
    return HessianOperator(objective, dict(model.named_parameters()), part=part)


def test_what_is_not_positive_definite_is_refused() -> None:
    """Negative curvature, no curvature, and curvature within the stated error; a shift mends each."""
    zero = MatrixOperator(torch.zeros(5, 5, dtype=torch.float64))
    doubtful = MatrixOperator(0.1 * torch.eye(5, dtype=torch.float64), error=0.2)
    for op in (hessian(), -1.0 * hessian("gauss_newton", 0.1), zero, doubtful):
        b = draw(op.shape[0])
        with pytest.raises(NumericsError, match="conjugate gradients need a positive definite one") as refused:
            solve(op, b)
        assert "op.shift(tau)" in refused.value.hint
        assert solve(op.shift(2.0), b).converged
    assert solve(hessian("gauss_newton", 0.1), draw(31)).converged


def test_singular_systems_have_a_solution_where_one_exists() -> None:
    A = matrix([0.0, 0.0, 1.0, 2.0, 3.0])
    b = A @ draw(5)
    assert solve(MatrixOperator(A), b).converged
    # Beyond its range none exists, and none is claimed.
    beyond = solve(MatrixOperator(A), draw(5))
    assert not beyond.converged
    assert beyond.residual > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"b": draw(4)}, r"b has the shape \(4,\)"),
        ({"b": draw(3, 0)}, r"b has the shape \(3, 0\)"),
        ({"b": [1.0, 2.0, 3.0]}, "b is a list"),
        ({"b": torch.tensor([1.0, torch.nan, 1.0])}, "b holds NaN"),
        ({"b": torch.ones(3) + 1j}, "b is complex"),
        ({"preconditioner": torch.ones(4)}, "D has 4 numbers"),
        ({"preconditioner": torch.tensor([1.0, torch.inf, 1.0])}, "D is infinite in 1 of 3 places"),
        ({"preconditioner": MatrixOperator(torch.eye(4))}, r"a preconditioner of the shape \(4, 4\)"),
        (
            {"preconditioner": MatrixOperator(torch.eye(3)) @ MatrixOperator(torch.eye(3))},
            "is not known to be symmetric",
        ),
        ({"rel_tol": 0.0}, "rel_tol is 0.0"),
        ({"max_hvps": 0}, "max_hvps is 0"),
        ({"op": MatrixOperator(draw(3, 4))}, "3 x 4 operator"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"op": MatrixOperator(matrix([1.0, 2.0, 3.0])), "b": draw(3)}
    with pytest.raises(LandscapeError, match=message):
        solve(**(usual | arguments))  # type: ignore[arg-type]


def test_a_preconditioner_has_the_parameters_of_the_operator() -> None:
    model = nn.Linear(2, 2)
    H = HessianOperator(Objective(model, draw(5, 2), draw(5, 2), nn.MSELoss()), dict(model.named_parameters()))
    with pytest.raises(ArgumentError, match="a preconditioner with the rows bias, weight and weight, bias"):
        solve(H, draw(6), H.block(H.rows[::-1]))


def test_a_preconditioner_that_is_not_positive_definite_never_converges_silently() -> None:
    A, b = graded(10), draw(10)
    bad: LinearOperator = MatrixOperator(matrix([-1.0, *[1.0] * 9]))
    try:
        solution = solve(MatrixOperator(A), b, bad)
    except (NumericsError, ArgumentError):
        return
    assert solution.converged == (float((b - A @ solution.values).norm() / b.norm()) <= 1e-8)
