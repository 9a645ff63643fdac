"""Ctrl-C and SIGTERM in a loop that is recorded: what was acknowledged stays, and the file says how it was left."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.apart import Kill, stopping
from helpers.recording import move, small, states

from landscape import Recorder, RunReader
from landscape.cli import main as cli
from landscape.signals import delayed_signals

LOOP = """
import itertools, signal, sys
from helpers.apart import Kill, stopping
from helpers.recording import move, small
from landscape import Recorder


def stop():
    print("here", flush=True)
    sys.stdin.readline()


path, last, change, handled = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "handled"
if handled:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
model = small()
with Recorder(path, model, resume=True) as recorder:
    for step in itertools.count():
        move(model, step)
        with stopping(Kill(at=change, share=0.5) if step == last else None, stop):
            recorder.checkpoint(step)
        recorder.metrics(step, loss=step)
        print(step, flush=True)
        if step == last:
            stop()
"""
PLACES = {"between two steps": (9, 0), "within a row": (9, 3), "while the file grows": (256, 3)}
"""Where the signal falls: at a step, or at a change of a file for its checkpoint. A new file has room for 256."""
ENDS = {
    "Ctrl-C": (signal.SIGINT, "", -signal.SIGINT, "interrupted"),
    "SIGTERM": (signal.SIGTERM, "", -signal.SIGTERM, "running"),
    "SIGTERM that the loop handles": (signal.SIGTERM, "handled", 143, "interrupted"),
}


def seen(path: Path) -> list[int]:
    """The checkpoints of a file, each of which is as it was recorded; and so are its metrics."""
    with RunReader(path) as reader:
        metrics = reader.metrics()
    assert metrics["loss"].tolist() == metrics["metric_step"].tolist()
    found = states(path)
    for step, row in found.items():
        assert [float(values.flat[0]) for values in row.values()] == [step + i / 8 for i in range(4)]
    return list(found)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "handled", "code", "status"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(("last", "change"), PLACES.values(), ids=PLACES.keys())
def test_a_loop_that_is_ended(
    last: int,
    change: int,
    number: signal.Signals,
    handled: str,
    code: int,
    status: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All that it acknowledged and the row it was at are there, the status is true, and recording goes on."""
    path, told = tmp_path / "run.h5", list[str]()
    argv = [sys.executable, "-c", LOOP, str(path), str(last), str(change), handled]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=known) as loop:
        assert loop.stdin is not None
        for line in loop.stdout or ():
            told.append(line.strip())
            if told[-1] == "here":
                loop.send_signal(number)
                with contextlib.suppress(BrokenPipeError):
                    loop.stdin.write("\n")
                    loop.stdin.flush()
    assert loop.returncode == code
    acknowledged = [int(line) for line in told if line != "here"]
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


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_signals_come_after_the_block(numbers: tuple[signal.Signals, ...]) -> None:
    """Then their own handlers have both, though one raises; other threads, and handlers of C code, are left alone."""
    heard: list[str] = []

    @delayed_signals()
    def both() -> None:
        for number in numbers:
            signal.raise_signal(number)
        heard.append("block")

    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        with pytest.raises(KeyboardInterrupt):
            both()
        assert heard == ["block", "SIGTERM"]
        thread = threading.Thread(target=delayed_signals()(lambda: heard.append("thread")))
        thread.start()
        thread.join()
        assert heard[-1] == "thread"
        signal.raise_signal(signal.SIGTERM)
        assert heard[-1] == "SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
