"""Ranks that die, hang, fail or disagree: all end within the time-out, with one error."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from helpers.marking import cases
from helpers.ranks import command, started

from landscape.curvature.part import Part
from landscape.errors import NumericsError
from landscape.ranks import joined, launched


def sums(fault: str, at: int) -> None:
    """Two sums over all ranks, with a fault of one of them in between."""
    ranks = launched()
    with joined(ranks, 5.0 if fault in ("hang", "SIGSTOP") else 600.0):
        total = Part(ranks.rank, ranks.size).total
        ranks.require_alike("the code", "other" if (fault, at) == ("code", ranks.rank) else "same", "install one")
        assert total(torch.full((3,), 2.0**ranks.rank)).tolist() == [2.0**ranks.size - 1] * 3
        assert ranks.broadcast([ranks.rank]) == [0]
        assert ranks.gather(ranks.rank) == list(range(ranks.size))
        print("heard of rank 0 alone", flush=True)
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
        total(torch.ones(3))


LOST = "has lost another rank, which died or did not answer: "
FAULTS = {
    ("SIGKILL", 1): LOST,
    ("SIGKILL", 0): LOST,
    ("SIGSTOP", 2): LOST,
    ("hang", 0): LOST,
    ("hang", 2): LOST,
    ("memory", 1): "error: rank 1 of 3: memory ran out",
    ("bug", 2): "ValueError: a defect\non rank 2 of 3\n",
    ("numbers", 0): " of 3: every rank says this",
    ("code", 1): "error: rank 1 has the code other, rank 0 same",
}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "at"), cases(FAULTS, long=[("SIGSTOP", 2), ("hang", 0), ("hang", 2)]))
def test_a_fault_of_one_rank_ends_all(fault: str, at: int, tmp_path: Path) -> None:
    """With one error that says what happened; what hangs or is stopped, torchrun ends."""
    with started(tmp_path, 3, sums, fault, at) as crew:
        stuck = at if fault in ("SIGSTOP", "hang") else None
        for rank, process in enumerate(crew.processes):
            if rank != stuck:
                process.join()
                assert process.exitcode == (-signal.SIGKILL if (fault, at) == ("SIGKILL", rank) else 1)
        assert stuck is None or crew.processes[stuck].is_alive()
    said = crew.said()
    assert FAULTS[fault, at] in said
    assert said.count("error: ") + said.count("Traceback") == 1, said
    assert said.count("hint: ") == (fault != "bug")
    assert crew.said("out") == ("heard of rank 0 alone\n" if fault != "code" else "")


@pytest.mark.slow
def test_ranks_without_a_fault(tmp_path: Path) -> None:
    """All end with 0."""
    with started(tmp_path, 3, sums, "none", 0) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0, 0, 0], "")


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
