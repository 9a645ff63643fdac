"""`--lr-ratio auto`: E up to half of its edge of stability, beside dense matrices and PyTorch's own derivatives."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL_TRANSFORMER, TINY
from torch import nn
from torch.func import functional_call

from landscape.choices.optimizers import OPTIMIZERS, Optimizer
from landscape.config import TrainConfig
from landscape.curvature.operators import MatrixOperator
from landscape.curvature.preconditioned import Preconditioned
from landscape.errors import ConfigError
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import TRAIN, make_data
from landscape.models.transformer.model import Transformer
from landscape.training import edge
from landscape.training.edge import edge_ratio, largest
from landscape.training.loop import train

EVERY = 10
LIMITS = {"adam": 38.0, "adamw": 2 * (1 + 0.9) / (1 - 0.9), "sgd": 2 * (1 + 0.5)}


def dense_edge(config: TrainConfig, theta: dict[str, Any], v: dict[str, Any] | None, step: int) -> float:
    """The ratio at the edge, from every eigenvalue of the matrix that torch.func differentiates."""
    model = (Transformer if config.model == "transformer" else MLP)(config).double()
    tokens, labels = (torch.from_numpy(x).long() for x in make_data(config).subset(TRAIN))
    rest = {n: torch.from_numpy(theta[n]).double() for n, _ in model.named_parameters()}
    E = rest.pop("E")

    def loss(flat: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, {**rest, "E": flat.reshape(E.shape)}, (tokens,))
        decay = 0.0 if config.optimizer == "adamw" else config.weight_decay
        return nn.functional.cross_entropy(logits, labels) + decay / 2 * flat.square().sum()

    H = torch.func.hessian(loss)(E.reshape(-1)).numpy()
    root = np.ones(E.numel())
    if v is not None:
        root = (np.sqrt(v["E"].reshape(-1) / (1 - config.betas[1] ** step)) + 1e-8) ** -0.5
    return LIMITS[config.optimizer] / (config.lr * float(np.linalg.eigvalsh(root[:, None] * H * root)[-1]))


@pytest.mark.parametrize(
    ("config", "share"),
    [
        (TINY, 0.004),
        (dataclasses.replace(TINY, optimizer="sgd", momentum=0.5, activation="gelu"), 0.0002),
        (dataclasses.replace(SMALL_TRANSFORMER, warmup=0), edge.SHARE),
        (dataclasses.replace(SMALL_TRANSFORMER, warmup=0), 0.05),
    ],
    ids=["adam", "sgd", "transformer", "transformer, early"],
)
def test_the_ratio_doubles_up_to_its_share_of_the_edge_and_never_rises_again(
    config: TrainConfig, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c = 1 up to the first measurement, then as the edges say, to 1e-6 with products enough for all."""
    monkeypatch.setattr(edge, "HVPS", 32)
    monkeypatch.setattr(edge, "SHARE", share)
    config = dataclasses.replace(
        config,
        lr_ratio="auto",
        lr_ratio_every=EVERY,
        metrics_every=1,
        checkpoint_every=EVERY,
        dtype="float64",
        weight_decay=0.01,
    )
    train(config, tmp_path / "run.h5", quiet=True)
    at = range(EVERY, config.steps, EVERY)
    with RunReader(tmp_path / "run.h5") as reader:
        rows = reader.metrics()
        used = rows["lr_E"] / rows.get("lr_W", rows.get("lr"))
        edges = [dense_edge(config, reader.checkpoint(step), reader.second_moments(step), step) for step in at]
    np.testing.assert_array_equal(used[: EVERY + 1], 1.0)
    c, is_free = 1.0, True
    for step, limit in zip(at, edges, strict=True):
        reach = 2 * c if is_free else c
        c, is_free = min(share * limit, reach), is_free and share * limit >= reach
        assert used[step + 1] == pytest.approx(c, rel=1e-6)
    assert used[EVERY + 1] == 2
    assert not is_free


def test_the_step_beyond_the_edge_diverges() -> None:
    """Adam at rest in its preconditioner on a quadratic: stable at 1.9 times the ratio found, unstable at 2.1."""
    curvatures, v, lr = torch.tensor([0.3, 2.0, 5.0]).double(), torch.tensor([4.0, 1.0, 9.0]).double(), 0.01
    sharpness = largest(Preconditioned(MatrixOperator(torch.diag(curvatures)), v.sqrt()), 0)
    assert sharpness == pytest.approx(2.0)
    ratio = 38 / 2 / (lr * sharpness)
    for factor, stable in ((1.9, True), (2.1, False)):
        x, m = torch.ones(3).double(), torch.zeros(3).double()
        for _ in range(2000):
            m = 0.9 * m + 0.1 * curvatures * x
            x = x - factor * ratio * lr * m * v.rsqrt()
        assert bool(x.norm() < 1) == stable


def test_without_curvature_there_is_no_edge() -> None:
    """With W = 0 the loss does not depend on E."""
    theta = {n: p.detach().double() for n, p in MLP(TINY).named_parameters()}
    theta["W"] = torch.zeros_like(theta["W"])
    config = dataclasses.replace(TINY, weight_decay=0.0)
    asked = (
        vars(make_data(config)),
        theta,
        torch.ones_like(theta["E"]),
        1,
        torch.ones(len(theta["E"]), dtype=torch.bool),
    )
    assert edge_ratio(config, *asked) == float("inf")
    # But decoupled decay has one: it multiplies E by 1 - c lr weight_decay.
    config = dataclasses.replace(config, optimizer="adamw", lr=0.25, weight_decay=2.0)
    assert edge_ratio(config, *asked) == pytest.approx(edge.SHARE * 2 / (0.25 * 2.0))


def test_tokens_that_were_not_drawn_have_no_part_in_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the dense matrix of the rows that were: without a second moment the others would be the sharpest."""
    monkeypatch.setattr(edge, "HVPS", 200)
    config = dataclasses.replace(TINY, dtype="float64")
    theta = {n: p.detach().double() for n, p in MLP(config).named_parameters()}
    drawn = torch.arange(len(theta["E"])) % 3 > 0
    v = torch.where(drawn[:, None], 0.5 + torch.rand(theta["E"].shape, generator=torch.Generator().manual_seed(1)), 0.0)
    arrays = {n: p.numpy() for n, p in theta.items()}
    of_drawn = {"E": torch.where(drawn[:, None], v, math.inf).double().numpy()}
    ratio = edge_ratio(config, vars(make_data(config)), theta, v.double(), 7, drawn)
    assert ratio == pytest.approx(edge.SHARE * dense_edge(config, arrays, of_drawn, 7), rel=1e-6)
    assert edge_ratio(config, vars(make_data(config)), theta, v.double(), 7, drawn | True) < ratio / 1e3


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_ratio_that_undoes_what_was_learnt_goes_back_for_good(
    optimizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an edge so far out that c doubles until the loss is half-way back, and an edge in reach afterwards.

    The rule stands here once more, in the losses of the file.
    """
    curvatures = iter([1e-9] * 20 + [0.0, 1e-9, 1e9])
    monkeypatch.setattr(edge, "largest", lambda *_: next(curvatures))
    config = dataclasses.replace(
        TINY, optimizer=optimizer, weight_decay=0.0, lr_ratio="auto", lr_ratio_every=EVERY, metrics_every=1, steps=240
    )
    train(config, tmp_path / "run.h5", quiet=True)
    with RunReader(tmp_path / "run.h5") as reader:
        rows = reader.metrics()
    # At each measurement the loss, and the ratio of the step after it.
    losses, ratios = rows["train_loss"][:-1:EVERY], rows["lr_E"][1::EVERY] / config.lr
    lost = next(
        k for k in range(1, 23) if losses[k] - min(losses[:k]) > (losses[0] - min(losses[:k])) / 2 and ratios[k - 1] > 1
    )
    best = int(np.argmin(losses[:lost]))
    assert 3 < best < lost < 19
    assert ratios[: lost + 1] == pytest.approx([1, *(2.0**k for k in range(1, lost)), 2.0 ** (best - 1)])
    assert ratios[lost:23] == pytest.approx([2.0 ** (best - 1)] * (23 - lost))
    assert ratios[23] < 1e-3


@pytest.mark.parametrize(("stop", "has_edge"), [(20, True), (105, False)])
def test_a_run_stopped_while_the_ratio_moves_goes_on_as_one_that_was_not(
    stop: int, has_edge: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it doubles, and before and after it goes back."""
    if not has_edge:
        monkeypatch.setattr(edge, "largest", lambda *_: 1e-9)
    config = dataclasses.replace(TINY, lr_ratio="auto", lr_ratio_every=EVERY, metrics_every=1, steps=150)
    train(config, tmp_path / "whole.h5", quiet=True)
    for steps in (stop, config.steps):
        train(dataclasses.replace(config, steps=steps), tmp_path / "parts.h5", resume=steps > stop, quiet=True)
    with RunReader(tmp_path / "whole.h5") as whole, RunReader(tmp_path / "parts.h5") as parts:
        rates = [reader.metrics()["lr_E"] for reader in (whole, parts)]
    np.testing.assert_array_equal(*rates)
    assert rates[0].max() > 4 * config.lr
    assert has_edge or rates[0][-1] < rates[0].max()


def test_what_cannot_follow_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimiser without one, a frozen matrix, a model without E."""
    monkeypatch.setitem(OPTIMIZERS, "own", type("Own", (Optimizer,), {"step": lambda *_: None}))
    for changes, error in (
        ({"optimizer": "own"}, "the edge of stability of optimizer own is not known"),
        ({"freeze": "E"}, "lr_ratio auto sets the rate of E beside that of W, but E is frozen"),
        ({"model": "onehot"}, "model onehot has no E"),
    ):
        with pytest.raises(ConfigError, match=error):
            dataclasses.replace(TINY, lr_ratio="auto", **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="E is frozen"):
        dataclasses.replace(SMALL_TRANSFORMER, lr_ratio="auto", freeze="E")
