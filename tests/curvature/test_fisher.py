"""Fisher matrices, beside sums over samples, closed forms, curvlinops and expectations over every target."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from curvlinops import EFLinearOperator, FisherMCLinearOperator
from helpers.matrices import assert_close, draw
from torch import Tensor, nn
from torch.nn import functional as F

from landscape import FisherOperator, HessianOperator, Objective, cross_entropy, eigsh, mse, saddle_index
from landscape.errors import ArgumentError, LandscapeError

N = 12


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).double()


CLASSES, NUMBERS, COINS = torch.arange(N) % 3, draw(N, 3, seed=1), (draw(N, 3, seed=2) > 0).double()
LOSSES: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), CLASSES),
    "cross-entropy, sum": (nn.CrossEntropyLoss(reduction="sum"), CLASSES),
    "squared errors": (nn.MSELoss(), NUMBERS),
    "squared errors, sum": (nn.MSELoss(reduction="sum"), NUMBERS),
    "coins": (nn.BCEWithLogitsLoss(), COINS),
    "coins, sum": (nn.BCEWithLogitsLoss(reduction="sum"), COINS),
    "mse": (mse, NUMBERS),
}


def of(op: FisherOperator) -> Tensor:
    """The matrix, without a measurement of its error."""
    return op @ torch.eye(op.shape[1], dtype=op.dtype)


def operator(name: str, kind: str, **options: object) -> FisherOperator:
    model, (loss, targets) = net(), LOSSES[name]
    objective = Objective(model, draw(N, 2), targets, loss, weight_decay=0.3)
    return FisherOperator(objective, dict(model.named_parameters()), kind=kind, **options)


@pytest.mark.parametrize("name", LOSSES)
def test_the_exact_fisher_is_the_gauss_newton_part_without_the_l2_term(name: str) -> None:
    op = operator(name, "exact")
    G = HessianOperator(op.objective, op.params, part="gauss_newton")
    assert_close(op.shift(0.3).dense(), G.dense(), 1e-12)


def test_the_exact_fisher_is_the_expectation_over_every_target() -> None:
    """Of classes and of coins, by autograd of log-probabilities alone."""
    model, x = net(), draw(N, 2)
    params = list(model.parameters())

    def outer(value: Tensor) -> Tensor:
        g = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, params, retain_graph=True)])
        return torch.outer(g, g)

    softmax: Tensor | float = 0.0
    coins: Tensor | float = 0.0
    for n in range(N):
        z = model(x[n])
        for c in range(3):
            softmax = softmax + z.detach().softmax(0)[c] * outer(z.log_softmax(0)[c]) / N
        for flips in itertools.product((0.0, 1.0), repeat=3):
            y = torch.tensor(flips, dtype=torch.float64)
            log_p = -F.binary_cross_entropy_with_logits(z, y, reduction="sum")
            coins = coins + log_p.detach().exp() * outer(log_p) / (3 * N)
    assert_close(operator("cross-entropy", "exact").dense(), torch.as_tensor(softmax), 1e-12)
    assert_close(operator("coins", "exact").dense(), torch.as_tensor(coins), 1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_the_empirical_fisher_is_the_sum_over_samples_and_curvlinops(name: str) -> None:
    op = operator(name, "empirical")
    model, (loss, targets), x = net(), LOSSES[name], draw(N, 2)
    inner = type(loss)(reduction="sum") if isinstance(loss, nn.Module) else lambda z, y: mse(z, y).sum()
    scale = {"cross-entropy": N, "mse": N, "squared errors": 3 * N, "coins": 3 * N}.get(name, 1)
    rows = []
    for n in range(N):
        value = inner(model(x[n : n + 1]), targets[n : n + 1])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(model.parameters()))]))
    G = torch.stack(rows)
    assert_close(op.dense(), G.T @ G / scale, 1e-12)
    if isinstance(loss, nn.Module):
        theirs = EFLinearOperator(model, loss, list(model.parameters()), [(x, targets)])
        assert_close(op.dense(), (theirs @ torch.eye(op.shape[0], dtype=torch.float64)).detach(), 1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_sampled_targets_are_unbiased_and_their_error_is_known(name: str) -> None:
    """The error of 4 and 256 draws falls as their root, and is what random probes say; so is curvlinops' own."""
    exact = operator(name, "exact").dense()
    scaled = []
    for draws in (4, 256):
        ops = [operator(name, "monte_carlo", draws=draws, seed=seed) for seed in range(6)]
        errors = [float((of(op) - exact).norm() / exact.norm()) for op in ops]
        assert ops[0].sampling_error(100) == pytest.approx(errors[0], rel=0.4)
        scaled.append(sum(errors) / len(errors) * draws**0.5)
    assert max(scaled) < 2.5 * min(scaled)
    if name in ("cross-entropy", "squared errors", "coins"):
        model, (loss, targets) = net(), LOSSES[name]
        theirs = FisherMCLinearOperator(model, loss, list(model.parameters()), [(draw(N, 2), targets)], mc_samples=64)
        other = (theirs @ torch.eye(len(exact), dtype=torch.float64)).detach()
        assert float((other - exact).norm() / exact.norm()) * 8 < 4 * scaled[1]


def test_all_products_and_blocks_are_of_the_same_targets() -> None:
    op = operator("cross-entropy", "monte_carlo", draws=3, seed=5)
    F_ = op.dense()
    assert torch.equal(F_, operator("cross-entropy", "monte_carlo", draws=3, seed=5).dense())
    assert float((F_ - operator("cross-entropy", "monte_carlo", draws=3, seed=6).dense()).norm()) > 0.01 * float(
        F_.norm()
    )
    rows, cols = ["0.weight", "2.bias"], ["0.bias"]
    places = dict(zip(op.rows, torch.arange(len(F_)).split(op.numbers(op.rows)), strict=True))
    at, across = (torch.cat([places[n] for n in names]) for names in (rows, cols))
    assert_close(op.block(rows, cols).dense(), F_[at][:, across])
    assert saddle_index(op).negative == 0
    assert eigsh(op, 1).converged.all()


@pytest.mark.parametrize("kind", ["exact", "empirical", "monte_carlo"])
def test_batches_and_chunks_are_the_same_matrix(kind: str) -> None:
    """Sampled ones draw other targets there, of as large an error."""
    model, x, loss = net(), draw(N, 2), nn.CrossEntropyLoss()
    params = dict(model.named_parameters())
    whole = FisherOperator(Objective(model, x, CLASSES, loss), params, kind=kind, draws=64).dense()
    batches = [(x[:5], CLASSES[:5]), (x[5:], CLASSES[5:])]
    for objective in (Objective(model, batches, loss), Objective(model, x, CLASSES, loss, chunk_size=5)):
        op = FisherOperator(objective, params, kind=kind, draws=64)
        if kind == "monte_carlo":
            assert op.sampling_error(100) < 0.3
            assert torch.equal(op.dense(), op.dense())
        else:
            assert_close(op.dense(), whole, 1e-12)


class Tokens(nn.Module):
    """Logits (sample, token, class), or with the classes second as torch takes them."""

    def __init__(self, classes_second: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.classes_second = nn.Linear(2, 4).double(), classes_second

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x).cumsum(1)
        return z.movedim(-1, 1) if self.classes_second else z


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """d outputs of each token by all parameters (sample, token, class, parameter)."""
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(out, list(model.parameters()), retain_graph=True)])
        for out in model(x).reshape(-1)
    ]
    return torch.stack(rows).view(*x.shape[:2], 4, -1)


@pytest.mark.parametrize("ignored", [-100, 0])
@pytest.mark.parametrize("kind", ["exact", "empirical", "monte_carlo"])
def test_tokens_are_samples_and_ignored_ones_do_not_count(kind: str, ignored: int) -> None:
    """Also where the ignored label is a class, which the model may still draw."""
    x = draw(3, 5, 2)
    labels = torch.arange(15).view(3, 5) % 4
    labels[0, 3:] = ignored
    counted = labels != ignored
    matrices = []
    for second, loss in (
        (True, nn.CrossEntropyLoss(ignore_index=ignored)),
        (True, functools.partial(F.cross_entropy, ignore_index=ignored)),
        (False, functools.partial(cross_entropy, ignore_index=ignored)),
    ):
        model = Tokens(second)
        op = FisherOperator(Objective(model, x, labels, loss), dict(model.named_parameters()), kind=kind, draws=1000)
        matrices.append(of(op))
    assert_close(matrices[1], matrices[0])
    assert_close(matrices[2], matrices[0], 1e-12)
    model = Tokens(False)
    z = model(x)
    J = jacobian(model, x)
    expected: Tensor | float = 0.0
    for n, t in counted.nonzero().tolist():
        p = z[n, t].detach().softmax(0)
        u = p - F.one_hot(labels[n, t], 4)
        C = torch.outer(u, u) if kind == "empirical" else torch.diag(p) - torch.outer(p, p)
        expected = expected + J[n, t].T @ C @ J[n, t] / int(counted.sum())
    tolerance = 0.1 if kind == "monte_carlo" else 1e-12
    assert_close(matrices[0], torch.as_tensor(expected), tolerance)


def test_float32_is_measured_beside_float64() -> None:
    model = net().float()
    objective = Objective(model, draw(N, 2), CLASSES, dtype=torch.float32)
    for kind in ("exact", "empirical", "monte_carlo"):
        op = FisherOperator(objective, dict(model.named_parameters()), kind=kind)
        double = op.in_double()
        assert double is not None
        assert_close(op.dense().double(), double.dense(), 1e-5)


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES, "a loss with label_smoothing"),
        (nn.CrossEntropyLoss(weight=torch.ones(3).double()), CLASSES, "a loss with weight"),
        (functools.partial(cross_entropy, label_smoothing=0.1), CLASSES, "a loss with label_smoothing"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3).double()), COINS, "a loss with pos_weight"),
        (nn.L1Loss(), NUMBERS, "the loss L1Loss, of which no likelihood is known"),
        (lambda z, y: F.cross_entropy(z, y), CLASSES, "the loss <lambda>, of which no likelihood is known"),
        (nn.CrossEntropyLoss(), COINS / COINS.sum(1, keepdim=True).clamp_min(1), "targets that are probabilities"),
    ],
)
def test_losses_whose_fisher_is_not_what_its_name_says_are_refused(
    loss: Callable[..., Tensor], targets: Tensor, message: str
) -> None:
    model = net()
    with pytest.raises(ArgumentError, match=message):
        FisherOperator(Objective(model, draw(N, 2), targets, loss), dict(model.named_parameters()))


def test_refusals() -> None:
    model = net()
    params = dict(model.named_parameters())
    objective = Objective(model, draw(N, 2), CLASSES, nn.CrossEntropyLoss())
    weighted = Objective(model, draw(N, 2), CLASSES, nn.CrossEntropyLoss(), weight=lambda batch: 1.0)
    for arguments, message in (
        ({"kind": "mc"}, "kind is 'mc'"),
        ({"draws": 0}, "draws is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"block": ["a"]}, "no parameter 'a'"),
        ({"objective": model}, "the objective is a Sequential"),
        ({"objective": weighted}, "batches with weight="),
    ):
        with pytest.raises(LandscapeError, match=message):
            FisherOperator(**({"objective": objective, "params": params} | arguments))
    with pytest.raises(ArgumentError, match="nothing was drawn"):
        FisherOperator(objective, params).sampling_error()
