"""`--kick` and `--lr-E`: steps along the lowest eigenvector of a block, and a rate of E of its own."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from torch import nn
from torch.func import functional_call

from landscape.config import TrainConfig, to_json
from landscape.errors import ConfigError
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import TRAIN, make_data
from landscape.training.kicks import kick
from landscape.training.loop import train, train_ensemble
from landscape.training.member import difference

KICKED = dataclasses.replace(TINY, steps=60, checkpoint_at=(40, 41, 50), kick="E,W", kick_from=35, kick_every=20)


def at(path: Path, step: int) -> dict[str, Any]:
    with RunReader(path) as reader:
        return dict(reader.checkpoint(step))


def loss_of(config: TrainConfig, theta: dict[str, torch.Tensor], names: tuple[str, ...]) -> Any:
    """The training loss as a function of some parameters, laid out flat."""
    model = MLP(config).double()
    tokens, labels = (torch.from_numpy(x).long() for x in make_data(config).subset(TRAIN))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        pieces = flat.split([theta[n].numel() for n in names])
        moved = {n: piece.view_as(theta[n]) for n, piece in zip(names, pieces, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, {**theta, **moved}, (tokens,)), labels)

    return loss


@pytest.mark.parametrize("names", [("E", "W"), ("W", "V")])
def test_a_kick_is_along_the_lowest_eigenvector_and_downhill(names: tuple[str, ...], tiny_run: Path) -> None:
    config = dataclasses.replace(TINY, kick=",".join(names), kick_size=0.02)
    theta = {n: torch.from_numpy(x).double() for n, x in at(tiny_run, 20).items() if n in ("E", "W", "V", "b1", "b2")}
    moved = kick(config, vars(make_data(config)), theta, 20)
    assert set(moved) == set(names)
    step = torch.cat([moved[n].reshape(-1) for n in names])
    assert float(step.norm()) == pytest.approx(0.02 * math.hypot(float(theta["E"].norm()), float(theta["W"].norm())))
    loss = loss_of(config, theta, names)
    flat = torch.cat([theta[n].reshape(-1) for n in names])
    values, vectors = np.linalg.eigh(torch.func.hessian(loss)(flat).numpy())
    assert values[0] < 0
    direction = (step / step.norm()).numpy()
    # Within the search's tolerance the Rayleigh quotient is the lowest eigenvalue.
    quotient = float((vectors.T @ direction) ** 2 @ values)
    assert quotient - values[0] < 1e-3 * abs(values).max()
    assert float(torch.func.grad(loss)(flat) @ step) < 0


def test_random_kicks_differ_between_steps_and_seeds(tiny_run: Path) -> None:
    """They are as long, downhill, and the same again for the same seed and step."""
    theta = {n: torch.from_numpy(x).double() for n, x in at(tiny_run, 20).items() if n in ("E", "W", "V", "b1", "b2")}

    def drawn(seed: int, step: int) -> torch.Tensor:
        config = dataclasses.replace(TINY, kick="random", seed=seed)
        moved = kick(config, vars(make_data(TINY)), theta, step)
        return torch.cat([moved[n].reshape(-1) for n in ("E", "W")])

    first = drawn(0, 20)
    size = 0.01 * math.hypot(float(theta["E"].norm()), float(theta["W"].norm()))
    assert float(first.norm()) == pytest.approx(size)
    assert torch.equal(first, drawn(0, 20))
    for other in (drawn(0, 21), drawn(1, 20)):
        assert float(other.norm()) == pytest.approx(size)
        assert abs(float(first @ other)) < 0.5 * size**2
    flat = torch.cat([theta[n].reshape(-1) for n in ("E", "W")])
    assert float(torch.func.grad(loss_of(TINY, theta, ("E", "W")))(flat) @ first) < 0


@pytest.mark.slow
def test_runs_are_the_same_up_to_their_first_kick(tmp_path: Path) -> None:
    """Which is at the first multiple of kick_every from kick_from on; a resumed run takes it as the others do."""
    arms = {kind: dataclasses.replace(KICKED, kick=kind) for kind in ("E,W", "random")}
    arms["none"] = dataclasses.replace(KICKED, kick="none", kick_from=0, kick_every=50)
    for kind, config in arms.items():
        train(config, tmp_path / f"{kind}.h5", quiet=True)
    for kind in ("E,W", "random"):
        for step, same in ((40, True), (41, False), (60, False)):
            one, other = (at(tmp_path / f"{name}.h5", step)["E"] for name in (kind, "none"))
            assert np.array_equal(one, other) is same
    assert not np.array_equal(at(tmp_path / "E,W.h5", 60)["W"], at(tmp_path / "random.h5", 60)["W"])
    train(dataclasses.replace(KICKED, steps=50), tmp_path / "resumed.h5", quiet=True)
    train(KICKED, tmp_path / "resumed.h5", resume=True, quiet=True)
    for name in ("E", "W", "V"):
        assert np.array_equal(at(tmp_path / "resumed.h5", 60)[name], at(tmp_path / "E,W.h5", 60)[name])


@pytest.mark.slow
def test_held_runs_avoid_the_lowest_directions(tmp_path: Path) -> None:
    """From the kick on no step of E and W has a part along them, and a resumed run finds the same ones again."""
    config = dataclasses.replace(KICKED, kick="held", dtype="float64", checkpoint_every=1)
    path = tmp_path / "held.h5"
    train(config, path, quiet=True)
    names = ("E", "W")
    theta = {n: torch.from_numpy(x).double() for n, x in at(path, 40).items() if n in ("E", "W", "V", "b1", "b2")}
    flat = torch.cat([theta[n].reshape(-1) for n in names])
    values, vectors = np.linalg.eigh(torch.func.hessian(loss_of(config, theta, names))(flat).numpy())

    def step(start: int, end: int) -> np.ndarray[Any, Any]:
        ends = [np.concatenate([at(path, s)[n].reshape(-1) for n in names]) for s in (start, end)]
        return np.asarray(ends[1] - ends[0])

    def share(start: int, end: int) -> float:
        moved = step(start, end)
        return float(np.linalg.norm(vectors[:, :5].T @ moved) / np.linalg.norm(moved))

    # The search is right to a thousandth of |H|; five directions well below zero are known better.
    assert values[4] < -0.02 * values[-1]
    assert share(40, 41) < 0.05 < share(38, 39)
    assert share(40, 59) < 0.05
    for end in (41, 47):
        resumed = tmp_path / f"{end}.h5"
        train(dataclasses.replace(config, steps=end, checkpoint_at=()), resumed, quiet=True)
        train(config, resumed, resume=True, quiet=True)
        for name in ("E", "W", "V"):
            assert np.array_equal(at(resumed, 60)[name], at(path, 60)[name])


def test_a_rate_of_E_of_its_own(tmp_path: Path) -> None:
    """lr_E is lr times lr_ratio; side by side each run has its own."""
    rates = {tmp_path / f"{rate}.h5": dataclasses.replace(TINY, lr_E=rate) for rate in (0.0, 0.005, 0.02)}
    train_ensemble(rates, quiet=True)
    train(dataclasses.replace(TINY, lr_ratio=2.0), tmp_path / "ratio.h5", quiet=True)
    assert TINY.lr == 0.01
    assert at(tmp_path / "0.02.h5", 60)["W"] == pytest.approx(at(tmp_path / "ratio.h5", 60)["W"], rel=1e-4, abs=1e-6)
    assert np.array_equal(at(tmp_path / "0.0.h5", 60)["E"], at(tmp_path / "0.0.h5", 0)["E"])
    with RunReader(tmp_path / "0.005.h5") as reader:
        assert set(reader.metrics()["lr_E"]) == {0.005}


@pytest.mark.parametrize("kind", ["E,W", "random", "held"])
def test_a_run_that_diverges_says_so(kind: Any, tmp_path: Path) -> None:
    """Numbers without a Hessian are not kicked, and the next record ends the run."""
    config = dataclasses.replace(TINY, kick=kind, kick_every=5, lr=1e30, optimizer="sgd", checkpoint_at=())
    summary = train(config, tmp_path / "x.h5", quiet=True)
    assert summary.status == "diverged"


def test_files_from_before_an_option() -> None:
    """Their runs go on with its default, and with nothing else."""
    stored = json.loads(to_json(TINY))
    del stored["kick"], stored["lr_E"]
    assert difference(TINY, stored, set()) == ""
    assert difference(dataclasses.replace(TINY, kick="E,W"), stored, set()) == (
        "kick is E,W, but the run was started with none"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr_E": 0.01, "lr_ratio": 2.0}, "lr_E is 0.01 beside lr_ratio 2.0"),
        ({"lr_E": 0.01, "lr": 0.0}, "lr 0.0"),
        ({"lr_E": 0.01, "model": "onehot"}, "model onehot"),
        ({"kick_from": 3}, "kick_from is 3, but nothing is kicked"),
        ({"kick": "E,W", "model": "onehot"}, "kick is E,W, but model is onehot"),
        ({"kick": "E,W", "freeze": "E"}, "freeze E"),
    ],
)
def test_refused_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **changes)
