"""Hessian-vector products, closed forms and the loss against automatic differentiation and other libraries."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from helpers.matrices import assert_close, draw
from helpers.modules import PER_SAMPLE, by_autograd, make, operator_of, pick, point_of, reference
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator

KINDS = ["mlp", "attention"]


# --- products against torch.func and torch.autograd -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["first", "second", "joint", "reversed", "all"])
def test_diagonal_blocks_equal_torch(kind: str, which: str) -> None:
    """A block over any parameters, in any order, is that block of the whole Hessian by torch.func."""
    whole, at = reference(kind)
    a, b = make(kind)[-1]
    names = {"first": [a], "second": [b], "joint": [a, b], "reversed": [b, a], "all": list(at)}[which]
    operator = operator_of(kind, None if which == "all" else names)
    expected = pick(whole, at, names, names)
    assert operator.shape == expected.shape
    assert_close(operator.dense(), expected)
    assert_close(operator_of(kind).block(names).dense(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_off_diagonal_blocks_equal_torch(kind: str) -> None:
    """`block(rows, cols)` is the coupling of two sets of parameters; T is its transpose."""
    whole, at = reference(kind)
    a, b = make(kind)[-1]
    last = list(at)[-1]
    for rows, cols in (([a], [b]), ([b], [a]), ([a], [b, last]), ([a, b], [b])):
        block = operator_of(kind).block(rows, cols)
        expected = pick(whole, at, rows, cols)
        assert_close(block.dense(), expected)
        assert_close(block.T.dense(), expected.T)
        assert block.T.shape == (block.shape[1], block.shape[0])


@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_several_vectors_at_once(kind: str, chunk_size: int | None) -> None:
    """A product with a matrix is the product with each of its columns, and a vector's shape is kept."""
    operator = operator_of(kind, chunk_size=chunk_size)
    n = operator.shape[1]
    vectors = draw(n, 3, seed=7)
    image = operator @ vectors
    assert image.shape == (n, 3)
    for j in range(3):
        assert (operator @ vectors[:, j]).shape == (n,)
        assert torch.equal(operator @ vectors[:, j], image[:, j])
    assert_close(image, reference(kind)[0] @ vectors, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_size", [1, 4, 5, 12, 13, 100])
def test_ragged_chunks_are_weighted_by_their_samples(kind: str, chunk_size: int) -> None:
    """Chunks of unequal size (13 samples) give the Hessian, value and gradient of the one mean."""
    operator = operator_of(kind, chunk_size=chunk_size)
    assert len(list(operator.objective.terms())) == math.ceil(13 / chunk_size)
    assert_close(operator.dense(), reference(kind)[0])
    module, x, y, loss, _ = make(kind)
    value = loss(module(x), y)
    assert operator.objective.value(point_of(module)) == pytest.approx(value.item(), rel=1e-14)
    expected = torch.autograd.grad(value, list(module.parameters()))
    for actual, g in zip(operator.objective.gradient(point_of(module)).values(), expected, strict=True):
        assert float((actual - g).abs().max()) <= 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_adds_a_multiple_of_the_identity(kind: str, chunk_size: int | None) -> None:
    """The regularised Hessian is H + wd I on diagonal blocks; off the diagonal it is H; the gradient gains wd theta."""
    decay = 0.37
    plain, decayed = (operator_of(kind, chunk_size=chunk_size, weight_decay=w) for w in (0.0, decay))
    difference = decayed.dense() - plain.dense()
    assert float((difference - decay * torch.eye(len(difference), dtype=torch.float64)).abs().max()) <= 1e-13
    a, b = make(kind)[-1]
    assert torch.equal(decayed.block([a], [b]).dense(), plain.block([a], [b]).dense())
    point = point_of(make(kind)[0])
    gradients = [operator.objective.gradient(point) for operator in (plain, decayed)]
    for name, p in point.items():
        assert float((gradients[1][name] - gradients[0][name] - decay * p).abs().max()) <= 1e-14
    squares = sum(float(p.square().sum()) for p in point.values())
    values = [operator.objective.value(point) for operator in (plain, decayed)]
    assert values[1] - values[0] == pytest.approx(decay / 2 * squares, rel=1e-12)


def test_single_precision_agrees_within_its_rounding() -> None:
    """An objective in float32 gives float32 products near the float64 ones."""
    module, x, y, loss, _ = make("mlp")
    operator = HessianOperator(
        Objective(module.float(), x, y, PER_SAMPLE[loss], dtype=torch.float32), point_of(module.float())
    )
    assert operator.dtype == operator.dense().dtype == torch.float32
    assert_close(operator.dense().double(), reference("mlp")[0], 1e-5)


def test_frozen_parameters_have_their_true_hessian() -> None:
    """requires_grad of a module says how it is trained, not what its curvature is."""
    module, x, y, loss, (a, _) = make("mlp")
    module.get_parameter(a).requires_grad_(False)
    operator = HessianOperator(Objective(module, x, y, PER_SAMPLE[loss]), dict(module.named_parameters()))
    assert_close(operator.dense(), reference("mlp")[0])
    assert not module.get_parameter(a).requires_grad


# --- models that compute again or differentiate within ---------------------------------------------------------


class Checkpointed(nn.Module):
    """A layer whose activations are computed again on the way back."""

    def __init__(self, again: dict[str, bool] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.again = nn.Linear(6, 5), nn.Linear(5, 4), again

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.inner(x) if self.again is None else checkpoint(self.inner, x, **self.again))

    def inner(self, x: Tensor) -> Tensor:
        return self.a(x).tanh()


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints_are_exact(use_reentrant: bool, chunk_size: int | None) -> None:
    """Both kinds, of a float32 module whose parameters are within, away from the module's own ones."""
    point = {n: p.detach() + 0.1 for n, p in Checkpointed(None).named_parameters()}
    checkpointed, expected = (
        HessianOperator(Objective(Checkpointed(again), draw(9, 6), torch.arange(9) % 4, chunk_size=chunk_size), point)
        for again in ({"use_reentrant": use_reentrant}, None)
    )
    assert torch.equal(checkpointed.dense(), expected.dense())


class Equation(nn.Module):
    """u'' + u of a net u, by derivatives within forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.u = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, t: Tensor) -> Tensor:
        t = t.requires_grad_()
        u = self.u(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return torch.autograd.grad(slope.sum(), t, create_graph=True)[0] + u


def test_derivatives_within_the_model_and_the_loss() -> None:
    """Residuals of an equation, and a penalty of the gradient by the parameters: torch's own second derivatives."""
    t = torch.linspace(0, 3, 24)[:, None]

    def penalised(model: nn.Module, batch: Tensor) -> Tensor:
        loss = model(batch).square().mean()
        return loss + sum(g.square().sum() for g in torch.autograd.grad(loss, model.parameters(), create_graph=True))

    module = Equation().double()
    for data, loss in (((t, torch.zeros_like(t)), nn.MSELoss()), (t, penalised)):
        matrix = HessianOperator(Objective(module, data, loss=loss), dict(module.named_parameters())).dense()
        value = penalised(module, t.double()) if loss is penalised else module(t.double()).square().mean()
        assert_close(matrix, by_autograd(value, module), 1e-10)


# --- side effects, determinism and errors ---------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_module_changes(kind: str, training: bool) -> None:
    """Products leave .grad, the mode, requires_grad and every parameter as they were."""
    module, x, y, loss, (a, b) = make(kind)
    module.train(training)
    module.get_parameter(b).requires_grad_(False)
    module.get_parameter(a).grad = torch.ones_like(module.get_parameter(a))
    before = point_of(module)
    objective = Objective(module, x, y, PER_SAMPLE[loss], weight_decay=0.1, chunk_size=5)
    operator = HessianOperator(objective, dict(module.named_parameters()))
    first = operator @ draw(operator.shape[1])
    again = HessianOperator(objective, dict(module.named_parameters()))
    assert torch.equal(again @ draw(operator.shape[1]), first)
    objective.gradient(dict(module.named_parameters()))
    objective.value(dict(module.named_parameters()))
    assert all(m.training == training for m in module.modules())
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name])
        assert p.requires_grad == (name != b)
        assert p.grad is None or (name == a and bool((p.grad == 1).all()))
    assert module.get_parameter(a).grad is not None


# --- other libraries ------------------------------------------------------------------------------------------


def test_scipy_operator_agrees() -> None:
    """to_scipy: matvec, matmat, rmatvec and dtype are those of the block and of its transpose."""
    whole, at = reference("mlp")
    a, b = make("mlp")[-1]
    operator = operator_of("mlp")
    for block, expected in (
        (operator, whole.numpy()),
        (operator.block([a], [b]), pick(whole, at, [a], [b]).numpy()),
    ):
        linear = block.to_scipy()
        assert linear.shape == expected.shape
        assert linear.dtype == np.float64
        rows, cols = draw(expected.shape[0]).numpy(), draw(expected.shape[1], 3).numpy()
        np.testing.assert_allclose(linear.matvec(cols[:, 0]), expected @ cols[:, 0], atol=1e-13)
        np.testing.assert_allclose(linear.matmat(cols), expected @ cols, atol=1e-13)
        np.testing.assert_allclose(linear.rmatvec(rows), expected.T @ rows, atol=1e-13)
        np.testing.assert_allclose(linear @ np.float32([1] * expected.shape[1]), expected.sum(1), atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pyhessian_agrees(kind: str) -> None:
    """PyHessian's top eigenvalue is the one of largest magnitude, and its product is ours."""
    from pyhessian import hessian as pyhessian
    from pyhessian.utils import hessian_vector_product

    module, x, y, loss, _ = make(kind)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
        solver = pyhessian(module, loss, data=(x, y), cuda=False)
    vectors = [draw(*p.shape, seed=i) for i, p in enumerate(module.parameters())]
    expected = torch.cat([g.reshape(-1) for g in hessian_vector_product(solver.gradsH, solver.params, vectors)])
    (top,), _ = solver.eigenvalues(maxIter=1000, tol=1e-10, top_n=1)
    module.zero_grad()
    operator = operator_of(kind)
    assert_close(operator @ torch.cat([v.reshape(-1) for v in vectors]), expected, 1e-12)
    values = np.linalg.eigvalsh(operator.dense().numpy())
    assert top == pytest.approx(max(values, key=abs), rel=1e-4)
