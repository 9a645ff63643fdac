"""A sweep through a real Slurm: arrays, kills, cancels, and the same command again."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cluster import cluster, missing, said
from helpers.faults import everything, served_hessian
from helpers.sweeps import SHORT, arguments, descendants, wait_for

from landscape.cli import main as cli
from landscape.config import TrainConfig
from landscape.jobs.jobs import Training
from landscape.jobs.plan import SweepConfig, sweep_runs
from landscape.jobs.slurm import cancel, in_queue, queued, submissions, submit

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
SWEEP: dict[str, Any] = {
    "name": "shapes",
    "train": {**SHORT, "steps": 600, "checkpoint_every": 40, "dtype": "float64"},
    "cases": {f"h{hidden}": {"hidden": hidden} for hidden in range(8, 20)},
    "hessian": [{"steps": "0,600", "blocks": ["E", "E,W"], "device": "cpu"}],
}
"""12 runs of a shape each: who trains beside whom changes the last bits, and here nobody does."""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with cluster() as env:
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, env[name])
        yield env


@pytest.mark.long
def test_the_files_are_those_of_the_local_executor(
    slurm: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12 runs and 12 analyses in arrays; a process and a worker are killed, a task is cancelled, and all is resumed."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    argv = [*arguments(ours, SWEEP)[:-2], "--executor", "slurm", "--pack", "4", "--slurm", "cpus=1", "time=10"]

    def command(*more: str) -> str:
        assert cli.run([*argv, *more]) == 0
        return capsys.readouterr().out

    def files() -> list[dict[str, str]]:
        return json.loads(command("--status", "--json"))["files"]

    def ended() -> bool:
        return not said(slurm, "squeue", "--noheader")

    assert re.fullmatch(r"(submitted: Slurm job \d+, tasks: 3, files: 12\n){2}", command())
    assert command() == "nothing to submit: everything is done or in Slurm's queue\n"

    def running() -> dict[str, str]:
        return {file["where"]: file["path"] for file in files() if file["state"] == "running"}

    wait_for(lambda: len(running()) == 2, 0.3)
    (one, first), (two, second) = running().items()
    os.kill(int(re.findall(r"pid (\d+)", one)[0]), signal.SIGKILL)
    pid = int(re.findall(r"pid (\d+)", two)[0])
    wait_for(lambda: bool(workers(pid)))
    for worker in workers(pid):
        os.kill(worker, signal.SIGKILL)
    array = two.rpartition(" ")[2].partition("_")[0]
    said(slurm, "scancel", f"{array}_2")
    wait_for(ended, 0.3)
    found = {file["path"]: file for file in files()}
    assert found[first]["state"] == found[second]["state"] == "failed"
    assert found[first]["reason"] in ("its process ended", "the job ended before it was done")
    assert found[second]["reason"] == "its process ended with exit code -9"
    assert Path(found[second]["log"]).exists()
    assert f"failed: {second}: its process ended with exit code -9" in command("--status")
    assert sum(file["state"] == "done" for file in found.values()) < 24

    assert command().startswith("submitted: ")
    wait_for(ended, 0.3)
    assert {file["state"] for file in files()} == {"done"}
    assert command() == "nothing to submit: everything is done or in Slurm's queue\n"

    assert cli.run(arguments(theirs, SWEEP)) == 0
    pairs = zip(*(sweep_runs(SweepConfig(**SWEEP), folder) for folder in (ours, theirs)), strict=True)
    for mine, local in pairs:
        assert everything(mine.path) == everything(local.path)
        assert served_hessian(mine.hessian[""]) == served_hessian(local.hessian[""])
    left = {path.name for path in (ours / "shapes").iterdir()} - {path.name for path in (theirs / "shapes").iterdir()}
    assert left == {".jobs"}
    assert not list((ours / "shapes/.jobs").glob("leases/*"))


@pytest.mark.long
def test_names_of_jobs(slurm: dict[str, str], tmp_path: Path) -> None:
    """Tasks of ours are found and cancelled whatever the file or another job of the user is called."""
    others = ["a|b", "x\n0|PENDING", "%j \\'|"]
    numbers = [said(slurm, "sbatch", "--parsable", "--hold", "--wrap=true", f"--job-name={name}") for name in others]
    waits = {"dependency": f"afterany:{numbers[0].strip()}"}
    jobs = [Training({tmp_path / name: TrainConfig()}) for name in ("a.h5", "b.h5")]
    for name in ("a|b.hessian", 'it\'s "my" run\\c', "x\ny,é%j"):
        ours = submit([jobs], tmp_path / "jobs", 1, name, 1, waits)
        assert set(queued(ours).values()) == {"PENDING"}
        assert in_queue(tmp_path / "jobs").keys() == {"a.h5", "b.h5"}
        assert cancel(ours) == 2
        wait_for(lambda ours=ours: not queued(ours))


@pytest.mark.long
def test_analyses_that_are_added_wait_for_the_runs_in_the_queue(slurm: dict[str, str], tmp_path: Path) -> None:
    """Of Slurm itself, beside what the user has them wait for."""
    held = said(slurm, "sbatch", "--parsable", "--hold", "--wrap=true").strip()
    options = ["--executor", "slurm", "--pack", "4", "--slurm", "cpus=1", "time=10", f"dependency=afterany:{held}"]
    for analyses in ([], SWEEP["hessian"]):
        assert cli.run([*arguments(tmp_path, {**SWEEP, "hessian": analyses})[:-2], *options]) == 0
    runs, added = sorted(submissions(tmp_path / "shapes/.jobs"), key=lambda submission: int(submission.array))
    waits = set(said(slurm, "squeue", "--noheader", f"--jobs={added.array}", "--format=%E").split())
    assert len(waits) == 1
    assert set(re.findall(r"\d+(?=_|\(|,|$)", waits.pop())) >= {held, runs.array}
    cancel([runs, added])


def workers(pid: int) -> list[int]:
    """The workers of a task, without the process that cleans up after them."""
    return [p for p in descendants(pid) if "spawn_main" in Path(f"/proc/{p}/cmdline").read_text()]
