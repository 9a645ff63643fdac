"""Ctrl-C and SIGTERM in a loop that is recorded: what was acknowledged stays, and the file says how it was left."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from helpers.apart import SERVER, Kill, stopping
from helpers.recording import move, small, states

from landscape import Recorder
from landscape.cli import main as cli
from landscape.files.runs import RunReader


def loop(path: Path, last: int, change: int, is_handled: bool, pipe: Connection) -> None:
    """In a process of its own: record, tell of every step, and wait for what comes at the last."""

    def stop() -> None:
        pipe.send("here")
        pipe.recv()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_handled:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    model = small()
    try:
        with Recorder(path, model, resume=True) as recorder:
            for step in itertools.count():
                move(model, step)
                with stopping(Kill(at=change, share=0.5) if step == last else None, stop):
                    recorder.checkpoint(step)
                recorder.metrics(step, loss=step)
                pipe.send(step)
                if step == last:
                    stop()
    except KeyboardInterrupt:
        sys.exit(130)


PLACES = {"between two steps": (9, 0), "within a row": (9, 3), "while the file grows": (256, 3)}
"""Where the signal falls: at a step, or at a change of a file for its checkpoint. A new file has room for 256."""
ENDS = {
    "Ctrl-C": (signal.SIGINT, False, 130, "interrupted"),
    "SIGTERM": (signal.SIGTERM, False, -signal.SIGTERM, "running"),
    "SIGTERM that the loop handles": (signal.SIGTERM, True, 143, "interrupted"),
}


def seen(path: Path) -> list[int]:
    """The checkpoints of a file, each of which is as it was recorded; and so are its metrics."""
    with RunReader(path) as reader:
        metrics = reader.metrics()
    assert metrics["loss"].tolist() == metrics["metric_step"].tolist()
    stored = states(path)
    for step, row in stored.items():
        assert [float(values.flat[0]) for values in row.values()] == [step + i / 8 for i in range(4)]
    return list(stored)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "is_handled", "code", "status"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(("last", "change"), PLACES.values(), ids=PLACES.keys())
def test_a_loop_that_is_ended(
    last: int,
    change: int,
    number: signal.Signals,
    is_handled: bool,
    code: int,
    status: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All that it acknowledged and the row it was at are there, the status is true, and recording goes on."""
    path, acknowledged = tmp_path / "run.h5", list[int]()
    pipe, theirs = SERVER.Pipe()
    child = SERVER.Process(target=loop, args=(path, last, change, is_handled, theirs))
    child.start()
    theirs.close()
    # A child that dies before it has read all resets the connection.
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            message = pipe.recv()
            if message != "here":
                acknowledged.append(message)
                continue
            os.kill(child.pid or 0, number)
            with contextlib.suppress(BrokenPipeError):
                pipe.send("")
    child.join()
    assert child.exitcode == code
    assert len(acknowledged) == last + (change == 0)
    assert seen(path) == list(range(last + 1))
    # SIGTERM that nobody handles leaves Python no time to say that it ends.
    died = status == "running"
    assert {p.name for p in tmp_path.iterdir()} == {"run.h5", *(["run.h5.lock"] if died else [])}
    assert cli.run(["info", str(path)]) == 0
    assert f"status       {status}{', though no process is writing it' if died else ''}\n" in capsys.readouterr().out
    assert cli.run(["check", str(path)]) == 3
    assert f"whole but {status}" in capsys.readouterr().out

    model = small()
    with Recorder(path, model, resume=True) as recorder:
        assert not recorder.checkpoint(last)
        move(model, last + 1)
        recorder.metrics(last + 1, loss=last + 1)
        assert recorder.checkpoint(last + 1)
    assert seen(path) == list(range(last + 2))
    assert {p.name for p in tmp_path.iterdir()} == {"run.h5"}
    assert cli.run(["check", str(path)]) == 0


@pytest.mark.slow
def test_ctrl_c_at_any_change_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a row, in growth or in closing: the call ends first, the file is closed, and then Ctrl-C is heard."""
    for name in ("_LEAST", "_BYTES", "_METRICS"):
        monkeypatch.setattr(f"landscape.training.recorder.{name}", 1)
    model, statuses = small(), set[str]()
    for at in itertools.count(1, 4):
        path, stored, came = tmp_path / str(at) / "run.h5", list[int](), list[int]()

        def stop(came: list[int] = came) -> None:
            came.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        recorder = Recorder(path, model, metrics=["loss"])
        with contextlib.suppress(KeyboardInterrupt), stopping(Kill(at=at, share=0.5), stop), recorder:
            for step in range(3):
                move(model, step)
                recorder.checkpoint(step)
                recorder.metrics(step, loss=step)
                stored.append(step)
        if not came:
            break
        with RunReader(path) as reader:
            statuses.add(status := reader.attrs["status"])
        assert set(stored) <= set(seen(path))
        assert status == ("complete" if len(stored) == 3 else "interrupted")
        assert [p.name for p in path.parent.iterdir()] == ["run.h5"]
    assert statuses == {"complete", "interrupted"}
