"""Where a run starts, and what stays at its value from when on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY

from landscape import models
from landscape.config import TrainConfig, replace
from landscape.errors import ConfigError, StepError
from landscape.files.runs import GROKKED, MEMORISED, RunReader
from landscape.measure.steps import choose_steps
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import make_data
from landscape.training.loop import train

FOLDED = dataclasses.replace(TINY, start="folded", dtype="float64")
FROZEN = dataclasses.replace(TINY, freeze="E", freeze_from=25, checkpoint_every=5, metrics_every=5)


def test_a_folded_start_is_the_network_of_four_tokens() -> None:
    four = dataclasses.replace(FOLDED, start="own", tokens=4)
    logits = []
    for config in (FOLDED, four):
        logits.append(MLP(config)(torch.from_numpy(make_data(config).tokens).long()))
    assert logits[0].shape == (49, 7)
    assert torch.allclose(logits[0], logits[1], rtol=0, atol=1e-14)
    # What is folded is not nothing.
    assert not torch.allclose(MLP(FOLDED).b1, MLP(four).b1, atol=0.1)


def arrays(path: Path, name: str) -> dict[int, np.ndarray]:
    with RunReader(path) as reader:
        return {step: reader.checkpoint(step)[name].copy() for step in reader.steps}


def test_a_matrix_stays_from_a_step_on(tmp_path: Path) -> None:
    """Up to it the run is the one without; then E stays, and only E; a resumed run is the same bit for bit."""
    paths = [tmp_path / f"{name}.h5" for name in ("frozen", "free", "resumed")]
    train(FROZEN, paths[0], quiet=True)
    train(dataclasses.replace(FROZEN, freeze="none", freeze_from=0), paths[1], quiet=True)
    for steps in (20, 30, 60):
        train(dataclasses.replace(FROZEN, steps=steps), paths[2], resume=True, quiet=True)
    frozen, free, resumed = (arrays(path, "E") for path in paths)
    W = arrays(paths[0], "W")
    assert set(frozen) == set(resumed) >= {20, 25, 30, 60}
    for step, E in frozen.items():
        assert np.array_equal(E, resumed[step])
        if step <= 25:
            assert np.array_equal(E, free[step])
        else:
            assert np.array_equal(E, frozen[25])
            assert not np.array_equal(W[step], W[25])
    assert not np.array_equal(frozen[20], frozen[25])
    with RunReader(paths[0]) as reader:
        metrics = reader.metrics()
        rates = dict(zip(metrics["metric_step"], metrics["lr_E"], strict=True))
        problem = models.of_config(FROZEN, reader.data())
        known = [problem.training(reader, step).rates["E"] for step in (20, 30)]
    assert rates[20] == TINY.lr
    assert rates[30] == 0
    assert known == [TINY.lr, 0]


@pytest.mark.parametrize(
    ("changed", "words", "hint"),
    [
        ({"freeze_from": 5}, "freeze_from is 5, but nothing is frozen", "name a matrix with --freeze E or W"),
        (
            {"start": "folded", "tokens": 4},
            "start is folded, but the run has model embedding, 4 tokens and bias True",
            "only --model embedding with --tokens 2 and biases",
        ),
        (
            {"start": "folded", "model": "onehot"},
            "start is folded, but the run has model onehot, 2 tokens and bias True",
            "or use --start own",
        ),
    ],
)
def test_starts_that_no_run_has(changed: dict[str, object], words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        replace(TINY, changed)
    assert str(refusal.value) == words
    assert hint in refusal.value.hint


def test_the_plateau_is_the_middle_between_memorising_and_grokking(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    config: TrainConfig = dataclasses.replace(
        TINY, hidden=24, lr=0.03, train_fraction=0.8, steps=800, checkpoint_every=10, batch_size="full"
    )
    train(config, path, quiet=True)
    with RunReader(path) as reader:
        memorised, grokked = reader.first_step("train_accuracy", MEMORISED), reader.first_step("test_accuracy", GROKKED)
        assert memorised
        middle = (memorised * (grokked or 800)) ** 0.5
        (plateau,) = choose_steps(reader, "plateau")
        assert abs(plateau - middle) == min(abs(step - middle) for step in reader.steps)
        assert memorised < plateau < (grokked or 800)


def test_a_run_that_never_memorised_has_no_plateau(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, steps=10), path, quiet=True)
    with RunReader(path) as reader, pytest.raises(StepError, match="never reached 99% on its training set") as refusal:
        choose_steps(reader, "plateau")
    assert "train it further with --resume" in refusal.value.hint
