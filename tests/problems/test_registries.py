"""A name that a config allows but no registry knows is an error, never another name's behaviour."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import pytest
from conftest import TINY

from landscape import config
from landscape.config import TrainConfig, preset
from landscape.curvature.tracking import edge_of_stability
from landscape.errors import ConfigError, LandscapeError
from landscape.problems.tasks import make_data
from landscape.training.loop import train


def test_a_task_named_in_the_literal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The config passes, the data do not."""
    with monkeypatch.context() as patched:
        patched.setattr(config, "Task", Literal["add", "cubes"])
        config._kind.cache_clear()
        cubes = TrainConfig(task="cubes", p=7)  # type: ignore[arg-type]
    config._kind.cache_clear()
    with pytest.raises(ConfigError, match="unknown task 'cubes'") as stop:
        make_data(cubes)
    assert stop.value.hint == "known: add, sub, mul, div, squares"


@pytest.mark.parametrize("option", ["task", "model", "activation", "sampler", "optimizer"])
def test_no_name_falls_through(option: str, tmp_path: Path) -> None:
    """Nothing is trained by another name's rule."""
    unknown = copy.copy(TINY)
    object.__setattr__(unknown, option, "nothing")
    # A run file that could not be read again is refused before that, too.
    with pytest.raises(LandscapeError, match=f"{option}.*'nothing'"):
        train(unknown, tmp_path / "run.h5", quiet=True)


def test_other_names() -> None:
    """Presets, and the optimisers whose edge of stability is known."""
    with pytest.raises(ConfigError, match="unknown preset 'quik'") as stop:
        preset("quik")
    assert stop.value.hint == "did you mean quick?"
    assert edge_of_stability("adamw") == pytest.approx(38)
    with pytest.raises(ConfigError, match="unknown optimizer 'lion'"):
        edge_of_stability("lion")
