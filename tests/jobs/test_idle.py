"""Which processes do nothing: those whose threads, main thread and child processes all wait for something else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.sweeps import wait_for

from landscape.ranks.idle import Idle, threads

pytestmark = pytest.mark.skipif(not threads(), reason="needs Linux's /proc")
BUSY = """
import sys
import time
while time.process_time() < 0.2:
    pass
print(flush=True)
sys.stdin.read()
"""


def sleeps() -> bool:
    """Whether the main thread waits for another one to end."""
    main = threading.main_thread()
    name = sys._current_frames()[main.ident or 0].f_code.co_name
    state = Path(f"/proc/self/task/{main.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    return name in {"join", "_wait_for_tstate_lock"} and state == "S"


def look(work: Callable[[Idle], None], patience: float = 10.0) -> None:
    """Have a thread look at this process, whose main thread waits for it."""

    def run() -> None:
        # Twice: the first time it may only wait for the interpreter's lock.
        wait_for(lambda: sleeps() and not time.sleep(0.05) and sleeps())
        work(Idle(before | {threading.get_native_id()}, patience))
        done.append(True)

    before, done = threads(), list[bool]()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done


def use(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_main_thread_that_waits_is_idle() -> None:
    """Whatever the thread that looks, or one that was there before, does meanwhile; a wait for ranks begins it anew."""

    def work(idle: Idle) -> None:
        use(0.2)
        assert idle.after(30.0, False) == 30.0
        assert idle.after(30.0, False) == 60.0
        assert idle.after(30.0, True) == 0.0
        assert idle.after(30.0, False) == 30.0

    look(work)


def test_threads_and_children_that_work_count() -> None:
    """A thread that was started since, such as one of a BLAS, and a process such as a reader of data."""

    def thread(idle: Idle) -> None:
        released = threading.Event()
        other = threading.Thread(target=lambda: (use(0.2), worked.set(), released.wait()))
        worked = threading.Event()
        other.start()
        worked.wait()
        assert idle.after(30.0, False) == 0.0
        assert idle.after(30.0, False) == 30.0
        released.set()
        other.join()

    def child(idle: Idle) -> None:
        assert idle.after(30.0, False) == 30.0
        with subprocess.Popen([sys.executable, "-c", BUSY], stdin=-1, stdout=-1) as process:
            assert process.stdout
            process.stdout.readline()
            assert idle.after(30.0, False) == 0.0
            assert process.stdin
            process.stdin.close()

    look(thread)
    look(child)


def test_a_main_thread_that_runs_is_not_idle() -> None:
    """However little of a CPU it gets: much less than what would count."""
    over = threading.Event()

    def run() -> None:
        idle = Idle(threads(), patience=1e6)
        wait_for(lambda: idle.after(2e5, False) == 0.0)
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    matrix = np.eye(200)
    while not over.is_set():
        np.linalg.eigh(matrix)
    thread.join()
