"""Runs of a text side by side, whose seeds draw other places of it."""

from __future__ import annotations

import dataclasses
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from helpers.hessians import analyse
from helpers.run_files import contents, same_run

from landscape.config import HessianConfig, TrainConfig
from landscape.errors import FileError
from landscape.training import group
from landscape.training import member as members
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


def test_a_run_that_learned_from_other_data_is_refused(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions trained all but the first of these runs."""
    monkeypatch.setattr(group, "_in_common", lambda arrays: arrays[0])
    runs = ensemble(config, tmp_path / "run.h5", 2)
    train_ensemble(runs, quiet=True)
    first, second = runs
    settings = HessianConfig(blocks=("E",), k=1, device="cpu")
    assert analyse(first, settings, quiet=True).steps
    wrong = r"run-s1\.h5: the training loss at step \d+ is [\d.]+ on the data that it holds, but was [\d.]+ in training"
    with pytest.raises(FileError, match=wrong) as refused:
        analyse(second, settings, quiet=True)
    assert "train it again: it learned from other data" in str(refused.value.hint)
    assert not second.with_name("run-s1.hessian.h5").exists()
    monkeypatch.undo()
    more = {path: dataclasses.replace(of, steps=200) for path, of in runs.items()}
    with pytest.raises(FileError, match=wrong):
        train_ensemble(more, resume=True, quiet=True)
    # What a run has learned since, from its own places, hides nothing.
    monkeypatch.setattr(members, "require_own_data", lambda problem, reader: None)
    train_ensemble(more, resume=True, quiet=True)
    with pytest.raises(FileError, match=wrong):
        analyse(second, settings, quiet=True)
