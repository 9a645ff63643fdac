"""One recorder in several threads, and in a process that makes children by fork."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from helpers.apart import SERVER
from helpers.recording import move, small, states

from landscape import Recorder
from landscape.errors import LandscapeError
from landscape.files.runs import RunReader
from landscape.files.writing import is_written


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns at almost every instruction."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_threads")
def test_threads_lose_no_row_of_each_other(tmp_path: Path) -> None:
    """Metrics from one thread, checkpoints from another; the file is made anew for more room again and again."""
    path, acknowledged, failed = tmp_path / "run.h5", list[int](), list[BaseException]()
    model, is_over = small(), threading.Event()

    def evaluate(recorder: Recorder) -> None:
        try:
            while not is_over.is_set():
                step = len(acknowledged)
                recorder.metrics(step, loss=step)
                acknowledged.append(step)
        except LandscapeError as error:
            failed.append(error)

    with Recorder(path, model, metrics=["loss"], expected=1) as recorder:
        thread = threading.Thread(target=evaluate, args=(recorder,))
        thread.start()
        try:
            while not (acknowledged or failed):
                time.sleep(0.001)
            for step in range(65):
                move(model, step)
                assert recorder.checkpoint(step)
        finally:
            is_over.set()
            thread.join()
    assert not failed
    assert states(path).keys() == set(range(65))
    with RunReader(path) as reader:
        metrics = reader.metrics()
        assert not reader.damage
    assert metrics["metric_step"].tolist() == metrics["loss"].tolist() == acknowledged


@pytest.mark.parametrize("handle", [lambda recorder: recorder.checkpoint(7), Recorder.close], ids=["record", "close"])
def test_a_signal_handler_does_not_write_within_a_call(
    handle: Callable[[Recorder], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both rows would have been written to one place; as it is, the call of the handler does nothing, and says so."""
    path, model = tmp_path / "run.h5", small()
    parameters = model.named_parameters

    def interrupted(**more: Any) -> object:
        signal.raise_signal(signal.SIGUSR1)
        return parameters(**more)

    with Recorder(path, model) as recorder:
        assert recorder.checkpoint(0)
        usual = signal.signal(signal.SIGUSR1, lambda *_: handle(recorder))
        try:
            with monkeypatch.context() as patch:
                patch.setattr(model, "named_parameters", interrupted)
                with pytest.warns(UserWarning, match="was called while it records"):
                    assert recorder.checkpoint(1)
        finally:
            signal.signal(signal.SIGUSR1, usual)
        assert recorder.checkpoint(2)
    assert states(path).keys() == {0, 1, 2}


def fork(path: Path, pipe: Connection) -> None:
    """In a process of its own: record, and let a child try to; the `with` statement ends in both."""
    model = small()
    with Recorder(path, model) as recorder:
        recorder.checkpoint(0)
        child = os.fork()
        if not child:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                assert not recorder.checkpoint(1)
            pipe.send(str(said[0].message))
            recorder.close()
        else:
            os.waitpid(child, 0)
            pipe.send(is_written(path))
            recorder.checkpoint(2)
    pipe.send("closed")


def test_a_child_neither_records_nor_closes(tmp_path: Path) -> None:
    """It says so, and the recording of its parent goes on, locked, to its end."""
    path = tmp_path / "run.h5"
    pipe, theirs = SERVER.Pipe()
    process = SERVER.Process(target=fork, args=(path, theirs))
    process.start()
    theirs.close()
    said = [pipe.recv() for _ in range(4)]
    process.join()
    assert f"the recorder is that of process {process.pid}, not of its child" in said[0]
    assert said[1] == "closed"
    assert said[2] is True
    assert states(path).keys() == {0, 2}
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
