"""What certificates make of products in error: asymmetric, noisy, not finite, or too small and too large to square."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.matrices import Nothing
from torch import Tensor, nn

from landscape.curvature.coupling import coupling
from landscape.curvature.density import quadrature, spectral_density
from landscape.curvature.eigsh import eigsh, operator_norm
from landscape.curvature.inertia import saddle_index
from landscape.curvature.losses import mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import Deflated, HessianOperator, LinearOperator, MatrixOperator, product_error
from landscape.curvature.trace import trace
from landscape.errors import NumericsError

METHODS = ["dense", "lanczos"]


def symmetric(n: int, seed: int = 0) -> Tensor:
    """A random symmetric matrix."""
    A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (A + A.T) / 2


# --- asymmetric products --------------------------------------------------------------------------------------


class Products(LinearOperator):
    """The Hessian of a scalar function of one vector, by torch's double backward, whatever that gives."""

    def __init__(self, function: Callable[[Tensor], Tensor], at: Tensor) -> None:
        self.at = at.clone().requires_grad_()
        (self.gradient,) = torch.autograd.grad(function(self.at), self.at, create_graph=True)
        self.shape, self.dtype, self.device = (len(at), len(at)), at.dtype, at.device

    def _matmat(self, vectors: Tensor) -> Tensor:
        columns = [torch.autograd.grad(self.gradient, self.at, v, retain_graph=True)[0] for v in vectors.T]
        return torch.stack(columns, dim=1)


@pytest.fixture(scope="module")
def wrong() -> tuple[Products, Tensor]:
    """A net whose products torch gets wrong, by its own second derivative of weight_norm, and the true Hessian."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        normed = torch.nn.utils.weight_norm(nn.Linear(5, 4))
    model = nn.Sequential(normed, nn.Tanh(), nn.Linear(4, 3)).double()
    params = {n: p.detach() for n, p in model.named_parameters()}
    x, y = torch.randn(40, 5).double(), torch.randint(3, (40,))

    def loss(at: Tensor) -> Tensor:
        pieces = at.split([p.numel() for p in params.values()])
        point = {n: v.view_as(p) for (n, p), v in zip(params.items(), pieces, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, point, (x,)), y)

    flat = torch.cat([p.reshape(-1) for p in params.values()])
    # First derivatives are right, so that their differences are, to 1e-9.
    steps = 1e-5 * torch.eye(len(flat), dtype=torch.float64)
    true = torch.stack([(Products(loss, flat + h).gradient - Products(loss, flat - h).gradient) / 2e-5 for h in steps])
    true = true.detach()
    assert torch.allclose(true, true.T, atol=1e-8)
    return Products(loss, flat), (true + true.T) / 2


def test_the_error_of_an_assembled_matrix_covers_what_is_wrong_with_it(wrong: tuple[Products, Tensor]) -> None:
    """The asymmetry stated is |P - P^T|_F of the products, and the symmetrised matrix is no further from the truth."""
    operator, true = wrong
    products = operator @ torch.eye(len(true), dtype=torch.float64)
    H = operator.symmetric()
    assert torch.equal(H.matrix, H.matrix.T)
    assert H.error == pytest.approx(float((products - products.T).norm()), rel=1e-12)
    assert 0.2 < float(torch.linalg.matrix_norm(H.matrix - true, 2)) < H.error
    op = MatrixOperator(products)
    for symmetric in (op.symmetric(), Deflated(op, Nothing(len(products))).symmetric()):
        assert torch.equal(symmetric.matrix, H.matrix)
        assert symmetric.error == pytest.approx(H.error, rel=1e-12)
    assert MatrixOperator(products).symmetric().matrix is not products
    assert MatrixOperator(H.matrix, error=0.5).symmetric().error == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_index_of_asymmetric_products_is_refused(method: Any, wrong: tuple[Products, Tensor]) -> None:
    """No count is certified at a tolerance that the asymmetry fills; the tau named is honest, and its count right."""
    operator, true = wrong
    products = operator @ torch.eye(len(true), dtype=torch.float64)
    for op in (operator, MatrixOperator(products)):
        with pytest.raises(NumericsError, match="is below the error of the computed Hessian, ") as refusal:
            saddle_index(op, rel_tau=1e-3, method=method)
        words = re.fullmatch(r"use tau >= (\S+) relative to \|H\|, \S+ absolute", refusal.value.hint)
        assert words is not None
        inertia = saddle_index(op, rel_tau=float(words[1]), method=method)
        values = torch.linalg.eigvalsh(true)
        assert inertia.lower <= int((values < -inertia.tolerance).sum()) <= inertia.upper


@pytest.mark.slow
def test_brackets_of_matrices_in_error_hold_the_true_index() -> None:
    """Over 100 matrices with an error that is not symmetric, beside tau: refused, or a bracket of the true matrix."""
    levels = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        A = symmetric(40, seed)
        error = torch.from_numpy(rng.standard_normal((40, 40))) * 10 ** rng.uniform(-5, -2)
        tau = 10 ** rng.uniform(-3, -1)
        try:
            inertia = saddle_index(MatrixOperator(A + error), rel_tau=tau, method="dense")
        except NumericsError:
            levels.append("refused")
            continue
        index = int((torch.linalg.eigvalsh(A) < -inertia.tolerance).sum())
        assert inertia.lower <= index <= inertia.upper, seed
        levels.append(inertia.level)
    assert min(levels.count(level) for level in ("refused", "bracketed", "certified")) >= 4


def test_dense_eigenvalues_state_the_asymmetry(wrong: tuple[Products, Tensor]) -> None:
    """Eigenvalues are right to residual + error, and not converged where that is more than the tolerance."""
    operator, true = wrong
    eigen = eigsh(operator, 5, method="dense")
    values = torch.linalg.eigvalsh(true).numpy()
    away = np.abs(eigen.values - np.stack([values[:5], values[::-1][:5]]))
    assert away.max() > 0.01
    assert (away <= eigen.residuals + eigen.error).all()
    assert not eigen.converged.any()
    good = eigsh(MatrixOperator(symmetric(20)), 5, method="dense")
    assert good.converged.all()
    assert good.error == 0


def test_single_precision_counts_as_error() -> None:
    """A matrix assembled in float32 states its distance from float64, which asymmetry alone does not show."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y, params = torch.randn(50, 4), torch.randint(3, (50,)), dict(model.named_parameters())
    exact = HessianOperator(Objective(model, x, y), params).dense()
    H = HessianOperator(Objective(model, x, y, dtype=torch.float32), params).symmetric()
    difference = float((H.matrix.double() - exact).norm())
    assert difference <= H.error <= 1e-4 * float(exact.norm())


# --- noise ----------------------------------------------------------------------------------------------------


def identity(derivative: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The identity, with a derivative of its own."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return derivative(grad)

    return Identity.apply


# Right to first order: the noise is in the derivative of the derivative.
noise = identity(identity(lambda grad: grad * (1 + 1e-3 * torch.randn_like(grad))))


def net(last: Callable[[Tensor], Tensor]) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """A net of two layers with something done to what comes from the samples after the first 32."""

    def model(params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        hidden = (x @ params["a"]).tanh()
        return torch.cat([hidden[:32], last(hidden[32:])]) @ params["b"]

    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_noise_in_products_alone_is_error(method: Any) -> None:
    """Where loss and gradient are exact and products are not, the index is refused and the asymmetry stated."""
    torch.manual_seed(0)
    x, y = torch.randn(100, 3).double(), torch.randn(100, 2).double()
    point = {"a": torch.randn(3, 4).double(), "b": torch.randn(4, 2).double()}
    noisy, quiet = (HessianOperator(Objective(net(f), x, y, mse), point) for f in (noise, torch.clone))
    H, exact = noisy.symmetric(), quiet.dense()
    assert 0.3 * float((H.matrix - exact).norm()) < H.error < 0.1 * float(exact.norm())
    with pytest.raises(NumericsError, match="is below the error of the computed Hessian"):
        saddle_index(noisy, rel_tau=1e-5, method=method)
    assert saddle_index(quiet, rel_tau=1e-5, method=method).lower > 0


# --- not finite, too small, too large -------------------------------------------------------------------------

ATTEMPTS: dict[str, Callable[[Any], object]] = {
    "eigsh dense": lambda op: eigsh(op, 2, method="dense"),
    "eigsh lanczos": lambda op: eigsh(op, 2, method="lanczos"),
    "saddle_index dense": lambda op: saddle_index(op, method="dense"),
    "saddle_index lanczos": lambda op: saddle_index(op, method="lanczos"),
    "spectral_density dense": lambda op: spectral_density(op, method="dense"),
    "spectral_density lanczos": lambda op: spectral_density(op, method="lanczos"),
    "quadrature": quadrature,
    "trace": trace,
    "trace exact": lambda op: trace(op, probes=60),
    "operator_norm": operator_norm,
    "product_error": product_error,
    "coupling dense": lambda op: coupling(op, op, op, method="dense"),
    "coupling dense, tau given": lambda op: coupling(op, op, op, size_of(op), method="dense"),
    "coupling lanczos": lambda op: coupling(op, op, op, method="lanczos"),
    "coupling of products": lambda op: coupling(Hidden(op), Hidden(op), Hidden(op), 1.0, method="lanczos"),
}


def size_of(op: MatrixOperator) -> float:
    """Twice the largest finite entry."""
    return 2 * float(op.matrix.nan_to_num(0.0, 0.0, 0.0).abs().max())


class Hidden(LinearOperator):
    """A matrix that a solver sees by its products alone."""

    def __init__(self, op: MatrixOperator) -> None:
        self.op, self.shape, self.dtype, self.device = op, op.shape, op.dtype, op.device

    @property
    def T(self) -> Hidden:
        return Hidden(self.op.T)

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.op @ vectors


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (7, 7), (3, 40)])
def test_a_matrix_that_is_not_finite_is_an_error(attempt: str, bad: float, at: tuple[int, int]) -> None:
    """NaN or infinity anywhere ends in words, in every public function; never in numbers."""
    A = symmetric(50)
    A[at] = A[at[::-1]] = bad
    with pytest.raises(NumericsError, match="the Hessian is not finite: its products hold NaN or infinity"):
        ATTEMPTS[attempt](MatrixOperator(A))


@pytest.mark.parametrize("attempt", [a for a in ATTEMPTS if "product" not in a])
@pytest.mark.parametrize(("size", "dtype"), [(1e-160, torch.float64), (1e160, torch.float64), (1e-20, torch.float32)])
def test_a_norm_that_cannot_be_squared_is_refused(attempt: str, size: float, dtype: torch.dtype) -> None:
    """Where squares would underflow or overflow every function refuses, and says how to scale the loss."""
    if dtype == torch.float32 and "dense" in attempt:
        pytest.skip("a matrix of float32 is factorised in float64, where this is no small size")
    A = symmetric(50).to(dtype) * size
    with pytest.raises(NumericsError, match=r"the Hessian has the size \S+: in float\d\d only \S+ to \S+ can") as error:
        ATTEMPTS[attempt](MatrixOperator(A))
    assert error.value.hint == "multiply the loss by a constant: every eigenvalue is multiplied by it"


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**-400, 2.0**-200, 2.0**200, 2.0**400])
@pytest.mark.parametrize("method", METHODS)
def test_results_scale_with_the_matrix(scale: float, method: Any) -> None:
    """A power of two changes no digit of eigenvalues, index and density, but their exponent."""
    A = symmetric(60)
    one, other = (eigsh(MatrixOperator(A * s), 4, method=method) for s in (1.0, scale))
    np.testing.assert_allclose(other.values / scale, one.values, rtol=1e-12)
    assert other.converged.all()
    one, other = (saddle_index(MatrixOperator(A * s), rel_tau=1e-2, method=method) for s in (1.0, scale))
    assert (one.lower, one.upper) == (other.lower, other.upper) == (one.negative, one.negative)
    one, other = (spectral_density(MatrixOperator(A * s), method=method) for s in (1.0, scale))
    np.testing.assert_allclose(other.density * scale, one.density, rtol=1e-8, atol=1e-12)
