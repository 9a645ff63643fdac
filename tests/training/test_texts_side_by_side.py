"""Runs of a text side by side, whose seeds draw other places of it."""

from __future__ import annotations

import dataclasses
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from helpers.run_files import contents, same_run

from landscape.config import TrainConfig
from landscape.training.ensemble import ensemble
from landscape.training.loop import train, train_ensemble


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    text = tmp_path / "topics.txt"
    text.write_text("\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    of_text = {"task": "text", "text": str(text), "vocabulary": 40, "context": 3, "tokens": 3, "samples": 200}
    return dataclasses.replace(TINY, **of_text, batch_size=16, steps=65)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "vary"),
    [
        ({}, ()),
        ({"sampler": "frequency_aware", "sampler_every": 30}, ()),
        ({"lr_ratio_every": 30}, ("lr_ratio=prop41,curvature,auto",)),
        ({"model": "transformer", "embed_dim": 4, "heads": 2, "hidden": 6}, ("lr=0.01,0.02",)),
    ],
    ids=str,
)
def test_each_run_is_the_run_alone(
    changes: dict[str, Any], vary: tuple[str, ...], config: TrainConfig, tmp_path: Path
) -> None:
    """Each seed learns from, and is tested on, the places that its own file holds."""
    runs = ensemble(dataclasses.replace(config, **changes), tmp_path / "run.h5", 3, vary)
    train_ensemble(runs, quiet=True)
    places = {member.seed: contents(path)["data/tokens"].tobytes() for path, member in runs.items()}
    assert len({*places.values()}) == 3
    for path, member in runs.items():
        train(member, tmp_path / "alone.h5", overwrite=True, quiet=True)
        same_run(path, tmp_path / "alone.h5", 1e-5)
