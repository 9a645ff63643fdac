"""Numbers beyond all bounds are refused before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import Refusal

from landscape.config import AnalysisConfig, HessianConfig, TrainConfig
from landscape.errors import ConfigError
from landscape.jobs.plan import MOST_RUNS, SweepConfig
from landscape.training.ensemble import MOST_RUNS as SIDE_BY_SIDE


@pytest.mark.slow
def test_a_slice_beyond_all_floats(run_file: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """A radius at which the loss overflows."""
    argv = ["slice", run_file, "--step", "60", "--radius", "1e300", "--out", tmp_path / "s"]
    assert_refused(argv, 1, "the objective overflows", "lower --radius")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error", "hint"),
    [
        ({"seeds": list(range(30_000))}, "are 30,000 runs", "at most 10,000: split it"),
        ({"cases": {f"c{i}": {} for i in range(30_000)}}, "are 30,000 runs", "split it"),
        ({"grid": {"lr": [*range(1, 1001)], "weight_decay": [*range(1000)]}}, "are 1,000,000 runs", "split it"),
        ({"grid": {f"x{i}": [*range(10)] for i in range(5_000)}}, "are more than 10^12 runs", "split it"),
        ({"hessian": [{}] * 100_000}, "hessian lists 100,000 analyses", "at most 100"),
        ({"seeds": [0] * MOST_RUNS}, "none, or one named twice", "name each once"),
        ({"hessian": [{"name": "a", "seeds": [*range(100_000)]}]}, "'a' is for seed 1, which no run has", "known: 0"),
        ({"seeds": [*range(MOST_RUNS)], "grid": {"lr": [0.1]}, "train": {"p": 1}}, "p is 1; ", "a prime such as 59"),
    ],
    ids=range(8),
)
@pytest.mark.usefixtures("nothing_is_made")
def test_sweeps_of_millions(
    changes: dict[str, Any], error: str, hint: str, tmp_path: Path, assert_refused: Refusal
) -> None:
    """Too many cells are counted, not made."""
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(changes))
    assert_refused(["sweep", "--config", path, "--out", tmp_path / "out"], 2, error, hint)
    assert list(tmp_path.iterdir()) == [path]


def test_the_largest_that_is_taken() -> None:
    """The bounds refuse nothing that works."""
    assert len(SweepConfig(seeds=tuple(range(500))).seeds) == 500
    assert TrainConfig(seed=(1 << 64) - 1, steps=1 << 53, p=65_521, task="div").p == 65_521
    assert AnalysisConfig(seed=-(1 << 63)).seed < 0
    assert HessianConfig(steps=" 1, 20 ,300").steps
    with pytest.raises(ConfigError, match="p is 65537"):
        TrainConfig(p=65_537)
    assert SIDE_BY_SIDE <= MOST_RUNS
