"""Numbers beyond all bounds are refused before anything is made."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import HUGE, Refusal

from landscape.config import AnalysisConfig, HessianConfig, TrainConfig
from landscape.errors import ConfigError
from landscape.jobs.plan import MOST_RUNS, SweepConfig
from landscape.training.ensemble import MOST_RUNS as SIDE_BY_SIDE


@pytest.fixture
def nothing_is_made() -> Iterator[None]:
    """A mistake is found by counting what was asked for: at no time is there more than 32 MB of new objects."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "error", "hint"),
    [
        (["--seed", str(1 << 64)], "seed cannot be 18446744073709551616", "below 2^64"),
        (["--seed", "-1"], "seed is -1", "an integer from 0 to 2^64 - 1"),
        (["--seed", HUGE], "seed cannot be 10000", "below 2^64"),
        (["--steps", HUGE], "steps cannot be 10000", "below 2^64"),
        (["--steps", str(1 << 63)], "steps is 9223372036854775808", "an integer from 0 to 2^53"),
        (["--lr", "1e999"], "lr is inf", "a number >= 0"),
        (["--p", "70001"], "p is 70001", "up to 65536"),
        (["--p", HUGE], "p cannot be 10000", "below 2^64"),
        (["--task", "div", "--p", "1000000"], "p is 1000000", "up to 65536"),
        (["--task", "div", "--p", "65535"], "p is 65535, not a prime", "the nearest prime is 65521"),
        (["--seeds", "30000"], "30,000 runs side by side", "at most 256"),
        (["--seeds", HUGE], "ask for more than 10^12 runs side by side", "at most 256"),
        (["--vary", "lr=" + ",".join(map(str, range(1, 30_001)))], "30,000 runs side by side", "at most 256"),
        (
            ["--vary", "lr=" + ",".join("123"), *["lr_ratio=1,2,3,4,5,6,7,8,9", "weight_decay=0,1"] * 9],
            "side by side",
            "at most 256",
        ),
        (
            ["--checkpoint-at", *map(str, range(30_000))],
            "[0, 1, 2, 3, 4, 5, ...] leaves the run's steps",
            "raise --steps",
        ),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("nothing_is_made")
def test_numbers_beyond_bounds(
    flags: list[str], error: str, hint: str, tmp_path: Path, assert_refused: Refusal
) -> None:
    """Refused before anything is made or written."""
    assert_refused(["train", "--out", tmp_path / "x.h5", *flags], 2, error, hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [["--p", "65521"], ["--hidden", "999999999999"], ["--embed-dim", HUGE[:15]]])
def test_a_run_that_cannot_fit(sizes: list[str], tmp_path: Path, assert_refused: Refusal) -> None:
    """A run or file beyond all bounds is refused before anything is made."""
    assert_refused(
        ["train", "--out", tmp_path / "x.h5", *sizes],
        2,
        "bytes a step; at most 1,073,741,824 are read",
        "hint: choose a smaller network",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("steps", ["²", "1,,2", "٣", "1e3", "-1", ",", "", "0x10", "1_000"])
def test_steps_are_plain_numbers(steps: str, run_file: Path, assert_refused: Refusal) -> None:
    """Digits as int() takes them are more than a list of steps may hold."""
    assert_refused(["hessian", run_file, "--steps", steps], 2, "is no list of steps", "0,100,2000")


@pytest.mark.parametrize("steps", ["9" * 20, f"0,{2**63}", "1" * 30, " 61 "])
def test_a_step_that_is_not_stored(steps: str, run_file: Path, assert_refused: Refusal) -> None:
    """However large, it is named, and so are the nearest ones."""
    step = steps.split(",")[-1].strip()
    for argv in (["hessian", "--steps", steps], ["critical", "--step", step], ["slice", "--step", step]):
        assert_refused([*argv, "--run", run_file], 1, f"holds no step {step}", "the nearest stored steps: 56, 60")


@pytest.mark.parametrize("steps", [HUGE, "0," + "1" * 31, "1" * 5000])
def test_a_step_beyond_all_runs(steps: str, run_file: Path, assert_refused: Refusal) -> None:
    """A number that is too long to be printed is cut short."""
    assert_refused(["hessian", run_file, "--steps", steps], 2, "is too large", "no run has more than 2^53 steps")


@pytest.mark.parametrize(
    ("command", "flags", "error"),
    [
        ("hessian", ["--k", HUGE], "k cannot be"),
        ("hessian", ["--k", "999999999999"], "k is 999999999999"),
        ("hessian", ["--seed", str((1 << 64) - 1)], "seed is 18446744073709551615"),
        ("slice", ["--points", "99999999999"], "points is 99999999999"),
        ("slice", ["--points", "1"], "points is 1"),
        ("slice", ["--plane-points", "1"], "plane_points is 1"),
        ("slice", ["--plane-points", "9999999"], "plane_points is 9999999"),
        ("slice", ["--k", "99999"], "k is 99999"),
        ("critical", ["--search-hvps", HUGE], "search_hvps is"),
        ("critical", ["--search-hvps", "-1"], "search_hvps is -1"),
        ("critical", ["--search-tol", "nan"], "search_tol is nan"),
        ("sweep", ["--jobs", "0"], "jobs is 0"),
        ("sweep", ["--jobs", HUGE], "jobs is"),
    ],
)
def test_other_numbers_beyond_bounds(
    command: str, flags: list[str], error: str, run_file: Path, assert_refused: Refusal
) -> None:
    """The same for the other commands."""
    given = {"sweep": ["--config", run_file], "hessian": ["--run", run_file]}
    assert_refused([command, *given.get(command, ["--run", run_file, "--step", "60"]), *flags], 2, error, "takes")


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
