"""Influence functions, beside models that were trained again without the sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import draw
from torch import Tensor, nn
from torch.nn import functional as F

from landscape import FisherOperator, HessianOperator, MatrixOperator, Objective, influence
from landscape.errors import ArgumentError, LandscapeError, NumericsError

N, DECAY = 300, 0.02
X, TEST = draw(N, 3), draw(40, 3, seed=1)
LABELS = ((X @ torch.tensor([1.0, -2.0, 0.5]).double() + draw(N, seed=2)) > 0).long()
TEST_LABELS = ((TEST @ torch.tensor([1.0, -2.0, 0.5]).double() + draw(40, seed=3)) > 0).long()


def logits(x: Tensor, theta: Tensor) -> Tensor:
    return x @ theta[:6].view(2, 3).T + theta[6:]


def minimised(weights: Tensor) -> Tensor:
    """The minima (run, 8) of strictly convex logistic regressions, by Newton; weights (run, sample) of terms."""
    J = torch.func.jacrev(lambda theta: logits(X, theta))(torch.zeros(8).double())
    theta = torch.zeros(len(weights), 8).double()
    for _ in range(12):
        p = torch.einsum("ncp,ip->inc", J, theta).softmax(2)
        g = torch.einsum("in,inc,ncp->ip", weights, p - F.one_hot(LABELS, 2), J) + DECAY * theta
        C = weights[:, :, None, None] * (torch.diag_embed(p) - p[..., :, None] * p[..., None, :])
        H = torch.einsum("incp,ncq->ipq", torch.einsum("incd,ndp->incp", C, J), J) + DECAY * torch.eye(8)
        theta = theta - torch.linalg.solve(H, g)
    assert float(g.norm()) < 1e-12
    return theta


ALL = torch.full((1, N), 1 / N, dtype=torch.float64)


def loss_of(theta: Tensor) -> float:
    return float(F.cross_entropy(logits(TEST, theta), TEST_LABELS))


def trained() -> tuple[HessianOperator, Objective]:
    """Data in batches of two sizes, at the minimum."""
    model, theta = nn.Linear(3, 2).double(), minimised(ALL)[0]
    params = {"weight": theta[:6].view(2, 3), "bias": theta[6:]}
    batches = [(X[:125], LABELS[:125]), (X[125:], LABELS[125:])]
    objective = Objective(model, batches, nn.CrossEntropyLoss(), weight_decay=DECAY)
    return HessianOperator(objective, params), Objective(model, TEST, TEST_LABELS, nn.CrossEntropyLoss())


def test_influence_predicts_what_training_again_without_each_sample_changes() -> None:
    H, test = trained()
    result = influence(H, test)
    start, retrained = minimised(ALL)[0], minimised(ALL - torch.eye(N) / N)
    actual = np.array([loss_of(theta) - loss_of(start) for theta in retrained])
    assert result.converged
    assert result.values.shape == (N,)
    assert np.corrcoef(result.values, actual)[0, 1] > 0.99
    assert np.polyfit(result.values, actual, 1)[0] == pytest.approx(1, abs=0.1)
    # On a single parameter.
    moved = (retrained - start)[:, 0].numpy()
    direction = {"weight": torch.eye(6, dtype=torch.float64)[0].view(2, 3), "bias": torch.zeros(2)}
    predicted = influence(H, direction).values
    assert np.corrcoef(predicted, moved)[0, 1] > 0.99
    assert np.polyfit(predicted, moved, 1)[0] == pytest.approx(1, abs=0.1)


def test_influence_is_the_formula_by_dense_matrices() -> None:
    """Also damped, of a block, and of a Fisher matrix, which is the Hessian of this model without its L2 term."""
    H, test = trained()
    theta = torch.cat([p.detach().reshape(-1) for p in H.params.values()])

    def each(theta: Tensor) -> Tensor:
        return F.cross_entropy(logits(X, theta), LABELS, reduction="none") / N

    rows = torch.func.jacrev(each)(theta)
    g = torch.cat([p.reshape(-1) for p in test.gradient(H.params).values()])
    h = H.dense()
    for op, damping in ((H, 0.0), (H, 0.5), (FisherOperator(H.objective, H.params), DECAY)):
        eye = torch.eye(8, dtype=torch.float64)
        expected = rows @ torch.linalg.solve(h + (damping if op is H else 0.0) * eye, g)
        np.testing.assert_allclose(influence(op, test, damping, rel_tol=1e-10).values, expected, rtol=1e-6, atol=1e-12)
    weight = rows[:, :6] @ torch.linalg.solve(h[:6, :6], g[:6])
    np.testing.assert_allclose(influence(H.block(["weight"]), test, rel_tol=1e-10).values, weight, rtol=1e-6, atol=1e-9)


def test_tokens_of_a_sample_count_together() -> None:
    """Beside the gradient of a sequence's whole loss."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(2, 3).double(), draw(5, 4, 2), torch.arange(20).view(5, 4) % 3
    params = dict(model.named_parameters())
    objective = Objective(model, x, y, weight_decay=0.1)
    test = Objective(model, draw(3, 4, 2, seed=1), torch.arange(12).view(3, 4) % 3)
    H = HessianOperator(objective, params)
    step = torch.linalg.solve(H.dense(), torch.cat([g.reshape(-1) for g in test.gradient(params).values()]))
    expected = []
    for i in range(5):
        value = F.cross_entropy(model(x[i]), y[i], reduction="sum") / 20
        g = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(model.parameters()))])
        expected.append(float(g @ step))
    np.testing.assert_allclose(influence(H, test, rel_tol=1e-10).values, expected, rtol=1e-6)


def test_refusals() -> None:
    H, test = trained()
    for arguments, message in (
        ((MatrixOperator(torch.eye(8)), test), "the curvature is a MatrixOperator"),
        ((H, X), "the influence on a Tensor"),
        ((H, {"weight": torch.ones(2, 3)}), "the direction of 'bias' is a NoneType"),
        ((H, {"weight": torch.ones(2, 3) * 1j, "bias": torch.ones(2)}), "the direction of 'weight' is complex"),
        ((H, {"weight": torch.ones(3, 2), "bias": torch.ones(2)}), "the direction of 'weight' has the shape"),
        ((H, test, -1.0), "damping is -1.0"),
    ):
        with pytest.raises(LandscapeError, match=message):
            influence(*arguments)
    with pytest.raises(ArgumentError, match="take a diagonal block|other rows than columns"):
        influence(H.block(["weight"], ["bias"]), test)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    scalar = Objective(model, (X, LABELS), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    with pytest.raises(ArgumentError, match="influences take a model that returns a tensor"):
        influence(HessianOperator(scalar, dict(model.named_parameters())), test)
    bent = HessianOperator(Objective(model, X, LABELS), dict(model.named_parameters()))
    with pytest.raises(NumericsError, match="conjugate gradients need a positive definite one") as refusal:
        influence(bent, Objective(model, TEST, TEST_LABELS))
    assert "give a damping=" in refusal.value.hint
    assert influence(bent, Objective(model, TEST, TEST_LABELS), 1.0).converged
