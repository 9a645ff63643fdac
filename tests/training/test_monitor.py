"""Curvature measured while a model trains: the dense matrix, the same training, the budget, readers of the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

import landscape
from landscape import Monitor, Objective, Recorder
from landscape.errors import ArgumentError

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, betas=(0.8, 0.95)),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}


def made(dropout: float = 0.0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    return model, x, y


def trained(
    model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, steps: int, monitor: Any = None
) -> list[dict[str, float]]:
    """Steps of training with a monitor that is called after each."""
    rows = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        rows.append(monitor(step) if monitor else {})
    return rows


def dense(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian by torch.func, in evaluation mode."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    buffers = {name: b.double() if b.is_floating_point() else b for name, b in model.named_buffers()}
    flat = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])

    def loss(theta: Tensor) -> Tensor:
        pieces = theta.split([shape.numel() for shape in shapes.values()])
        named = {name: piece.reshape(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, {**named, **buffers}, (x.double(),)), y)

    modes = [part.training for part in model.modules()]
    model.eval()
    H: Tensor = hessian(loss)(flat)
    for part, mode in zip(model.modules(), modes, strict=True):
        part.training = mode
    return H


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_values_of_the_dense_matrix(kind: str) -> None:
    """Sharpness, preconditioned sharpness by the optimiser's own update, and the index, of all and of one block."""
    model, x, y = made()
    optimizer = OPTIMIZERS[kind](model.parameters())
    quantities = ("sharpness", "preconditioned_sharpness", "index")
    blocks = {"last": ["4.*"], "first": "0.*"}
    monitor = Monitor(Objective(model, x, y), optimizer, every=1, blocks=blocks, quantities=quantities, share=1e9)
    for values in trained(model, x, y, optimizer, 3, monitor):
        assert {name.partition("/")[2] for name in values} == {"last", "first", ""}
    assert monitor.count == 3
    H = dense(model, x, y)[-21:, -21:]
    eigenvalues = torch.linalg.eigvalsh(H)
    assert values["sharpness/last"] == pytest.approx(float(eigenvalues[-1]), rel=1e-2)
    assert float(eigenvalues[-1]) * (1 + 1e-9) >= values["sharpness/last"]
    assert float((eigenvalues - values["sharpness/last"]).abs().min()) <= values["sharpness_residual/last"]
    norm = float(eigenvalues.abs().max())
    assert values["index/last"] == int((eigenvalues < -1e-3 * norm).sum())
    # A step of the optimiser along a gradient g is -lr D^(-1) g, once its first moment is g itself.
    root = []
    for p in list(model.parameters())[-2:]:
        state, group = optimizer.state[p], optimizer.param_groups[0]
        v = state.get("square_avg", state.get("max_exp_avg_sq", state.get("exp_avg_sq")))
        if v is None:
            D = torch.ones_like(p)
        elif kind == "rmsprop":
            D = v.sqrt() + 1e-8
        else:
            D = (v / (1 - group["betas"][1] ** 3)).sqrt() + 1e-8
        root.append(D.double().reshape(-1) ** -0.5)
    scale = torch.cat(root)
    largest = float(torch.linalg.eigvalsh(scale[:, None] * H * scale)[-1])
    assert values["preconditioned_sharpness/last"] == pytest.approx(largest, rel=1e-2)
    limit = {"sgd": 2 * 1.5 / 0.1, "adam": 3.6 / 0.2 / 1e-2, "adamw": 38 / 1e-2, "rmsprop": 2 / 1e-3}[kind]
    assert values["preconditioned_sharpness_limit"] == pytest.approx(limit)


def test_a_quadratic_beyond_its_limit_diverges() -> None:
    """Gradient descent with momentum and full-batch Adam leave a quadratic just beyond the limit, and not below it."""

    class Bowl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((3,), 1e-3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.w**2).sum() / 2

    for momentum in (0.0, 0.9):
        for factor in (0.99, 1.01):
            model = Bowl()
            optimizer = torch.optim.SGD(model.parameters(), lr=factor * 2 * (1 + momentum) / 4.0, momentum=momentum)
            x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
            objective = Objective(model, [x], lambda model, x: model(x))
            values = Monitor(objective, optimizer, quantities=["sharpness"]).measure()
            assert values["sharpness"] == pytest.approx(4)
            for _ in range(2000):
                optimizer.zero_grad()
                model(x).backward()
                optimizer.step()
            assert (values["sharpness"] > values["sharpness_limit"]) == (factor > 1)
            assert (float(model.w.detach().abs().max()) > 1e-3) == (factor > 1)


def test_the_training_is_the_same() -> None:
    """With dropout and batch statistics: parameters, buffers, moments, modes and random numbers to the bit."""
    ends = []
    for monitored in (False, True):
        model, x, y = made(dropout=0.3)
        model[1].eval()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        monitor = None
        if monitored:
            quantities = ("sharpness", "preconditioned_sharpness", "index")
            monitor = Monitor(Objective(model.eval(), x, y), optimizer, every=2, quantities=quantities, share=1e9)
            model.train()
            model[1].eval()
        trained(model, x, y, optimizer, 10, monitor)
        assert monitor is None or monitor.count == 6
        assert [part.training for part in model.modules()] == [True, True, False, True, True, True]
        state = [*model.state_dict().values(), *(s["exp_avg_sq"] for s in optimizer.state.values())]
        ends.append([*state, torch.rand(3)])
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


def test_the_budget_is_kept() -> None:
    """Whenever it measures again, what it took so far is within the share of the training's time."""
    model, x, y = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monitor = Monitor(Objective(model.eval(), x, y), optimizer, every=1, share=0.5)
    before, step = [], 0
    while monitor.count < 4:
        step += 1
        trained(model, x, y, optimizer, 1)
        overhead = monitor.overhead
        if monitor(step):
            before.append(overhead)
    assert before[0] == 0
    assert max(before[1:]) <= 0.5
    assert [at for at, _ in monitor.history] != [1, 2, 3, 4]


def test_what_goes_wrong_stops_nothing() -> None:
    """A loss that is not finite, and a function that raises: a warning each, once."""
    model, x, y = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def refuse(step: int, values: dict[str, float]) -> None:
        raise RuntimeError("no room")

    monitor = Monitor(Objective(model.eval(), x, y), optimizer, every=1, share=1e9, to=refuse)
    with pytest.warns(UserWarning, match="curvature was not measured: no room; said once"):
        assert monitor(1)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.warns(UserWarning, match="curvature was not measured: .*; said once, and the training goes on"):
        assert monitor(2) == {}
    assert monitor(3) == {}


def test_values_go_to_a_run_file_and_to_tensorboard(tmp_path: Path) -> None:
    """Read back by landscape.open and by TensorBoard's own reader."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, x, y = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    objective = Objective(model.eval(), x, y)
    with Recorder(tmp_path / "run.h5", model) as recorder, tensorboard.SummaryWriter(tmp_path / "tb") as writer:
        kept = Monitor(objective, optimizer, every=2, share=1e9, blocks={"last": "4.*"}, to=recorder)
        shown = Monitor(objective, optimizer, every=2, share=1e9, blocks={"last": "4.*"}, to=writer)
        rows = trained(model, x, y, optimizer, 4, kept)
        trained(model, x, y, optimizer, 4, shown)
    measured = [values["sharpness/last"] for values in rows if values]
    with landscape.open(tmp_path / "run.h5") as file:
        data = file.metrics
        assert data["metric_step"].values.tolist() == [1, 2, 4]
        assert data["sharpness_last"].values.tolist() == measured
    reader = EventAccumulator(str(tmp_path / "tb")).Reload()
    names = ("sharpness/last", "sharpness_residual/last", "sharpness_limit", "preconditioned_sharpness_limit")
    assert set(reader.Tags()["scalars"]) == {f"curvature/{name}" for name in names}
    assert [event.step for event in reader.Scalars("curvature/sharpness/last")] == [1, 2, 4]
    assert kept.to_dataframe()["sharpness/last"].tolist() == measured


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantities": ["sharpnes"]}, "unknown quantity 'sharpnes'"),
        ({"every": 0}, "every"),
        ({"share": 0.0}, "share is 0.0"),
        ({"blocks": {"a": ["none.*"]}}, "matches no parameter"),
        ({"quantities": ["preconditioned_sharpness"]}, "without an optimizer"),
        ({"to": 3}, "`to` is int"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    """Before the training starts."""
    model, x, y = made()
    with pytest.raises(ArgumentError, match=message):
        Monitor(Objective(model.eval(), x, y), **options)


def test_other_optimizers_are_refused() -> None:
    """No preconditioner is guessed."""
    model, x, y = made()
    optimizer = torch.optim.Adagrad(model.parameters())
    with pytest.raises(ArgumentError, match="the preconditioner of Adagrad is not known"):
        Monitor(Objective(model.eval(), x, y), optimizer, quantities=["preconditioned_sharpness"])
