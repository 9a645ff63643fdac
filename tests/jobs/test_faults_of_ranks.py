"""Ranks that die, hang, fail or disagree: all end soon, with one error."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from helpers.marking import cases
from helpers.ranks import SOON, command, started

from landscape.errors import NumericsError
from landscape.ranks.group import joined, require_alike
from landscape.ranks.launch import PATIENCE, launched
from landscape.ranks.watch import INTERVAL, RankError, Watch


def sums(fault: str, at: int) -> None:
    """Two sums over all ranks, with a fault of one of them in between."""
    with joined(launched(), 5.0 if fault in ("hang", "spin") else PATIENCE) as ranks:
        code = "other" if (fault, at) == ("code", ranks.rank) else "same"
        require_alike(ranks, "the code", code, "install one version on all machines")
        part = torch.full((3,), 2.0**ranks.rank, dtype=torch.float64)
        assert ranks.total(part).tolist() == [2.0**ranks.size - 1] * 3
        assert ranks.say([ranks.rank]) == [0]
        assert ranks.broadcast(torch.tensor([ranks.rank])).tolist() == [0]
        Path("struck").touch()
        ranks.working()
        if fault == "numbers":
            raise NumericsError("every rank says this", "once")
        if ranks.rank == at:
            if fault == "memory":
                torch.empty(1 << 48)
            elif fault == "bug":
                raise ValueError("a defect")
            elif fault == "hang":
                threading.Event().wait()
            elif fault.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, fault))
        ranks.gather(ranks.rank)
        while (fault, at) == ("spin", ranks.rank):
            pass
        ranks.total(part)
        print(part.tolist(), flush=True)


FAULTS = {
    ("SIGKILL", 1): "error: rank 1 of 3 (process ",
    ("SIGKILL", 0): "error: ",
    ("SIGSTOP", 2): " is stopped",
    ("memory", 1): "error: rank 1 of 3: memory ran out",
    ("bug", 2): "ValueError: a defect\non rank 2 of 3\n",
    ("hang", 0): "error: rank 0 of 3 (process {pid} on ",
    ("hang", 2): " hangs at test_faults_of_ranks.py, line ",
    ("spin", 1): " has not done its part ",
    ("numbers", 0): " of 3: every rank says this",
    ("code", 1): "error: rank 1 has the code other, rank 0 same",
}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "at"), cases(FAULTS, long=[("SIGSTOP", 2), ("hang", 0), ("hang", 2), ("spin", 1)]))
def test_a_fault_of_one_rank_ends_all(fault: str, at: int, tmp_path: Path) -> None:
    """Soon, with one error that says what happened; no process is left."""
    with started(tmp_path, 3, sums, fault, at) as crew:
        crew.join()
    if fault != "code":
        assert time.time() - (tmp_path / "struck").stat().st_mtime < SOON
    assert set(crew.codes) <= {1, -signal.SIGKILL}
    assert (-signal.SIGKILL in crew.codes) == (fault == "spin" or fault.startswith("SIG"))
    said = crew.said()
    assert FAULTS[fault, at].format(pid=crew.processes[at].pid) in said
    assert said.count("error: ") + said.count("Traceback") == 1, said
    assert said.count("hint: ") == (fault != "bug")
    assert crew.said("out") == ""


@pytest.mark.parametrize("told", [0, 1])
def test_a_rank_is_killed_once_it_is_known_who_tells_why(told: int) -> None:
    """Others that see it gone would blame lack of memory, were nobody known to tell."""
    lived = []
    with subprocess.Popen(["sleep", "60"]) as process:

        class Store(torch.distributed.HashStore):
            def add(self, key: str, amount: int) -> int:
                # A process that was killed before would be gone by then.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
                lived.append(process.returncode is None)
                return int(super().add(key, amount))

        store = Store()
        store.add("told", told)
        watch = Watch(store, 0, 2, PATIENCE)
        assert watch.fail(RankError("slow", "wait"), process.pid) == (not told)
        assert process.wait() == -signal.SIGKILL
    assert store.check(["verdict"]) == (not told)
    assert all(lived)


@pytest.mark.slow
def test_ranks_without_a_fault(tmp_path: Path) -> None:
    """All end with 0, although each ends at its own time, and the numbers are everybody's."""
    with started(tmp_path, 3, sums, "none", 0) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0, 0, 0], "")
    assert crew.said("out") == "[21.0, 21.0, 21.0]\n" * 3


def without_gpu(folder: Path) -> None:
    """The command on a machine that has one GPU."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda _: None
    command(folder, ["hessian", "run.h5"])


@pytest.mark.slow
def test_more_ranks_than_gpus(tmp_path: Path) -> None:
    """The first rank without one says so, once; the launcher ends the others, which wait for it."""
    with started(tmp_path, 3, without_gpu, tmp_path) as crew:
        for process in crew.processes[1:]:
            process.join()
        assert crew.processes[0].is_alive()
    assert crew.said() == (
        "error: rank 1 of 3 has no GPU of its own: this machine has 1\n"
        "hint: start one rank a GPU: torchrun --nproc-per-node gpu\n"
    )


def forks() -> None:
    """A child of each rank, which is ended as a pool ends its processes; the rank hears of it as with a DataLoader."""
    with joined(launched()) as ranks:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(5)
        child.kill()
        # Long enough for the watch to see a signal.
        time.sleep(3 * INTERVAL)
        print(child.exitcode, ranks.gather(ranks.rank), flush=True)


@pytest.mark.slow
def test_the_end_of_a_child_is_no_signal_to_its_rank(tmp_path: Path) -> None:
    """A pool of processes in the function of --problem ends its own, and the ranks go on."""
    with started(tmp_path, 2, forks) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0, 0], "")
    assert crew.said("out") == f"{-signal.SIGTERM} [0, 1]\n" * 2
