"""The groups of an ensemble, each on a core of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY
from helpers.apart import PATIENCE
from helpers.run_files import same_run

from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.training import loop
from landscape.training.ensemble import ensemble
from landscape.training.group import Group
from landscape.training.loop import TOGETHER, summarise, train, train_ensemble
from landscape.training.member import Member

LEADERS = (0, TOGETHER)
"""Seeds of the first members of two groups."""


def watch(monkeypatch: pytest.MonkeyPatch, at_commit: Callable[[int, int, threading.Event], None]) -> list[int]:
    """Call `at_commit` with seed, step and stop event before each checkpoint; the sizes of the groups as they start."""
    sizes, stops = [], []
    begin, commit, original = Group.__init__, Member.commit, loop.stop_signals

    def counting(self: Group, members: Any, states: Any, device: Any) -> None:
        sizes.append(len(members))
        begin(self, members, states, device)

    def watched(self: Member, step: int, *of_it: Any) -> None:
        at_commit(self.config.seed, step, stops[-1])
        commit(self, step, *of_it)

    @contextlib.contextmanager
    def kept() -> Iterator[threading.Event]:
        with original() as stop:
            stops.append(stop)
            yield stop

    monkeypatch.setattr(Group, "__init__", counting)
    monkeypatch.setattr(Member, "commit", watched)
    monkeypatch.setattr(loop, "stop_signals", kept)
    return sizes


@contextlib.contextmanager
def two_cores() -> Iterator[None]:
    """Torch may use two threads, on whatever machine."""
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@pytest.mark.long
def test_groups_at_once_and_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores groups are trained at once and stopped together; the files are those of one core, bit for bit."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def interrupt(seed: int, step: int, stop: threading.Event) -> None:
        if seed in LEADERS and step == 20:
            if both.wait() == 0:
                os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(PATIENCE)

    parts, whole = (ensemble(TINY, tmp_path / f"{name}.h5", TOGETHER + 2) for name in ("parts", "whole"))
    with monkeypatch.context() as patched, two_cores():
        sizes = watch(patched, interrupt)
        summaries = train_ensemble(parts, quiet=True)
        assert sorted(sizes) == [2, TOGETHER]
    assert {(summary.status, summary.steps) for summary in summaries} == {("interrupted", 21)}
    train_ensemble(parts, resume=True, quiet=True)
    with monkeypatch.context() as patched:
        sizes = watch(patched, lambda seed, step, stop: None)
        train_ensemble(whole, quiet=True)
        assert sizes == [TOGETHER, 2]
    for left, right in zip(parts, whole, strict=True):
        same_run(left, right, 0)


@pytest.mark.slow
def test_a_group_that_fails_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised; the members of the other groups are stored as far as they came, and all can be resumed."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def fail(seed: int, step: int, stop: threading.Event) -> None:
        if seed in LEADERS and step == 40:
            both.wait()
            if seed == TOGETHER:
                raise FileError("the disk fails", "mend it")
            assert stop.wait(PATIENCE)

    runs = ensemble(dataclasses.replace(TINY, dtype="float64"), tmp_path / "run.h5", TOGETHER + 1)
    with monkeypatch.context() as patched, two_cores():
        watch(patched, fail)
        with pytest.raises(FileError, match="the disk fails"):
            train_ensemble(runs, quiet=True)
    *others, last = (summarise(path) for path in runs)
    assert {(summary.status, summary.steps) for summary in others} == {("interrupted", 41)}
    assert last.status == "running"
    assert {summary.status for summary in train_ensemble(runs, resume=True, quiet=True)} == {"complete"}


@pytest.mark.parametrize("every", [1, 7])
def test_an_interrupted_run_tells_its_last_accuracies(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it stopped, a row of metrics is due once it goes on, and not before."""

    def interrupt(seed: int, step: int, stop: threading.Event) -> None:
        if step == 20:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(PATIENCE)

    watch(monkeypatch, interrupt)
    summary = train(dataclasses.replace(TINY, metrics_every=every), tmp_path / "run.h5", quiet=True)
    assert (summary.status, summary.steps) == ("interrupted", 21)
    with RunReader(tmp_path / "run.h5") as reader:
        last = {name: float(column[-1]) for name, column in reader.metrics().items()}
    assert last["metric_step"] == (20 if every == 1 else 14)
    assert (summary.train_accuracy, summary.test_accuracy) == (last["train_accuracy"], last["test_accuracy"])


def test_a_member_diverges_at_its_own_steps(tmp_path: Path) -> None:
    """Metrics of another member say nothing of it."""
    config = dataclasses.replace(TINY, optimizer="sgd", checkpoint_log=0, checkpoint_every=0, steps=60)
    often, seldom = {"metrics_every": 7, "lr": 0.1}, {"metrics_every": 50, "lr": 1e6}
    runs = {tmp_path / f"{of['lr']}.h5": dataclasses.replace(config, **of) for of in (often, seldom)}
    train_ensemble(runs, quiet=True)
    for path, config in runs.items():
        train(config, tmp_path / "alone.h5", overwrite=True, quiet=True)
        same_run(path, tmp_path / "alone.h5", 1e-5)
    assert summarise(path).diverged_step == 50
