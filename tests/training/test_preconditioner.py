"""D of an optimiser, beside the step that torch itself takes, and of run files beside the state in memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY
from torch import Tensor, nn

from landscape import HessianOperator, Objective, Preconditioned, Recorder, eigsh, preconditioner, run_preconditioner
from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.training.loop import train

Made = tuple[nn.Module, torch.optim.Optimizer]


def trained(kind: Callable[..., torch.optim.Optimizer], steps: int = 4, dtype: torch.dtype = torch.float64) -> Made:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": [model[2].weight], "lr": 0.0025}]
    optimizer = kind(groups)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 3, generator=generator, dtype=next(model.parameters()).dtype)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), torch.arange(16) % 2).backward()
    optimizer.step()


OPTIMIZERS = {
    "adam": functools.partial(torch.optim.Adam, betas=(0.0, 0.9)),
    "adam, large eps": functools.partial(torch.optim.Adam, betas=(0.0, 0.9), eps=0.1),
    "adamw": functools.partial(torch.optim.AdamW, betas=(0.0, 0.9), weight_decay=0.0),
    "amsgrad": functools.partial(torch.optim.Adam, betas=(0.0, 0.9), amsgrad=True),
    "rmsprop": torch.optim.RMSprop,
    "rmsprop, centred": functools.partial(torch.optim.RMSprop, centered=True, alpha=0.9),
    "sgd": torch.optim.SGD,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_torch_is_lr_times_the_gradient_over_D(name: str) -> None:
    """Without momentum: after the step, whose second moments hold its gradient."""
    model, optimizer = trained(OPTIMIZERS[name])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step(model, optimizer)
    params = dict(model.named_parameters())
    D = preconditioner(optimizer, params)
    for n, p in params.items():
        if n == "2.bias":
            assert bool(D[n].isinf().all())
        else:
            torch.testing.assert_close(p.detach(), before[n] - 0.01 * p.grad / D[n], rtol=0, atol=1e-15)


def test_before_the_first_step_there_is_no_preconditioner() -> None:
    model, optimizer = trained(torch.optim.Adam, steps=0)
    D = preconditioner(optimizer, dict(model.named_parameters()))
    assert [float(D[n].unique()) for n in ("0.weight", "2.weight")] == [1.0, 4.0]


def test_what_has_no_gradient_does_not_move() -> None:
    for kind in (torch.optim.Adam, torch.optim.SGD):
        model, optimizer = trained(kind, steps=0)
        model[0].weight.requires_grad_(False)
        step(model, optimizer)
        D = preconditioner(optimizer, dict(model.named_parameters()))
        assert bool(D["0.weight"].isinf().all())
        assert bool(D["0.bias"].isfinite().all())


def test_refusals() -> None:
    model, optimizer = trained(torch.optim.Adam)
    with pytest.raises(ArgumentError, match="moves none of these parameters"):
        preconditioner(optimizer, {n: p.detach().clone() for n, p in model.named_parameters()})
    with pytest.raises(ArgumentError, match="the preconditioner of Adagrad is not known"):
        preconditioner(torch.optim.Adagrad(model.parameters()), dict(model.named_parameters()))
    with pytest.raises(ArgumentError, match="params are a Sequential"):
        preconditioner(optimizer, model)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the optimizer is a Sequential"):
        preconditioner(model, dict(model.named_parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["adam", "adamw", "amsgrad", "rmsprop", "rmsprop, centred"])
def test_a_recorded_run_holds_it(name: str, tmp_path: Path) -> None:
    model, optimizer = trained(OPTIMIZERS[name], dtype=torch.float32)
    with Recorder(tmp_path / "run.h5", model, optimizer=optimizer) as recorder:
        recorder.checkpoint(4)
    torch.testing.assert_close(
        run_preconditioner(tmp_path / "run.h5"), preconditioner(optimizer, dict(model.named_parameters()))
    )


def test_a_file_without_it_is_refused(tmp_path: Path) -> None:
    """Of SGD a file holds the learning rates alone, which are no preconditioner."""
    for name, kind in (("sgd", torch.optim.SGD), ("none", None), ("adam", torch.optim.Adam)):
        model, optimizer = trained(kind or torch.optim.Adam, steps=0 if kind is torch.optim.Adam else 3)
        path = tmp_path / f"{name}.h5"
        with Recorder(path, model, optimizer=optimizer if kind else None) as recorder:
            recorder.checkpoint(3)
        with pytest.raises(ArgumentError, match="does not hold the optimizer's state at step 3"):
            run_preconditioner(path)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_of_landscape_train_holds_it(optimizer: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, optimizer=optimizer, steps=40, checkpoint_every=40)
    train(config, tmp_path / "run.h5", quiet=True)
    D = run_preconditioner(tmp_path / "run.h5", 40)
    with RunReader(tmp_path / "run.h5") as reader:
        v = reader.second_moments(40)
    for name, piece in D.items():
        if v is None:
            expected: Tensor = torch.ones_like(piece)
        else:
            expected = (torch.from_numpy(v[name]).double() / (1 - config.betas[1] ** 40)).sqrt() + 1e-8
        torch.testing.assert_close(piece, expected)


def test_the_largest_eigenvalue_is_adams_edge() -> None:
    """Frozen in its preconditioner, Adam without momentum is stable on the quadratic at 1.99 / lr, not at 2.01."""
    model, optimizer = trained(OPTIMIZERS["adam"])
    params = dict(model.named_parameters())
    objective = Objective(model, torch.randn(16, 3), torch.arange(16) % 2, weight_decay=0.1)
    D = preconditioner(optimizer, params)
    H = HessianOperator(objective, params, part="gauss_newton")
    sharpness = eigsh(Preconditioned(H, D), 1).values[1, 0]
    inverse = torch.cat([1 / D[n].reshape(-1) for n in H.rows])
    h = H.dense()
    for factor, is_stable in ((1.99, True), (2.01, False)):
        x = torch.ones(len(h), dtype=torch.float64) * (inverse > 0)
        step_matrix = torch.eye(len(h)) - factor / sharpness * inverse[:, None] * h
        for _ in range(3000):
            x = step_matrix @ x
        assert bool(x.norm() < 1e3) == is_stable
