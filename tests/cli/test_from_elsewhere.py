"""What editors, interpreters and machines do to a command: marks in files, names of modules, processes, full disks."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.commands import SMALL

from landscape.cli import main as cli
from landscape.jobs.slurm import _room
from landscape.training.recorder import Recorder

MINE = """
import torch
from landscape import ModuleProblem
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i / 8, 1.0]), i % 2
def problem(how="spawn"):
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=how)
    return ModuleProblem(torch.nn.Linear(2, 2), loader)
def fork(): return problem("fork")
def tensors():
    x = torch.stack([Data()[i][0] for i in range(8)])
    return ModuleProblem(torch.nn.Linear(2, 2), x, torch.arange(8) % 2)
"""


def command(*argv: object, python: tuple[str, ...] = ("-P",), **options: object) -> subprocess.CompletedProcess[str]:
    """`landscape` as its entry point starts it, for which the current folder holds no modules."""
    run = [sys.executable, *python, "-m", "landscape", *map(str, argv)]
    return subprocess.run(run, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recorded run and its problem, in which commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    torch.manual_seed(0)
    with Recorder("run.h5", torch.nn.Linear(2, 2)) as recorder:
        for step in range(2):
            recorder.checkpoint(step)
    return tmp_path


def largest(path: str) -> list[float]:
    with h5py.File(path) as file:
        return np.asarray(file["eigenvalues"])[:, 0, 1, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("factory", ["fork", "problem"])
def test_a_loader_with_workers(factory: str, jobs: int, beside: Path) -> None:
    """However its workers start, and in processes of several steps: the same as the same samples as tensors."""
    for name, more in (("tensors", ()), (factory, ("--jobs", jobs))):
        ended = command("hessian", "run.h5", "--problem", f"mine.py:{name}", *more, "--out", f"{name}.hessian.h5")
        assert ended.returncode == 0, ended.stderr
    np.testing.assert_allclose(largest(f"{factory}.hessian.h5"), largest("tensors.hessian.h5"), rtol=1e-12)


@pytest.mark.parametrize("more", [("--steps", "0"), ("--jobs", "1"), ("--jobs", "2")])
def test_a_file_with_the_name_of_a_module_of_python(more: tuple[str, ...], beside: Path) -> None:
    """Beside the problem: Python's own is the one that programs import, here and in other processes."""
    for name in ("argparse", "queue", "pickle"):
        (beside / f"{name}.py").write_text("raise SystemExit('not the one')\n")
    ended = command("hessian", "run.h5", "--problem", "mine.py:tensors", *more)
    assert ended.returncode == 0, ended.stderr
    assert "not the one" not in ended.stderr


def test_a_module_of_python_is_no_problem(beside: Path) -> None:
    for name in ("sys:exit", "time:time"):
        ended = command("hessian", "run.h5", "--problem", name)
        module = name.partition(":")[0]
        assert ended.stderr.splitlines() == [
            f"error: --problem {name}: {module} is a part of Python",
            "hint: name a module or a file of your own",
        ]


@pytest.mark.usefixtures("beside_the_user")
def test_a_file_and_a_module_of_one_name(beside: Path) -> None:
    """In one process: the module is that of the current folder, not the file of another that was named before."""
    (beside / "other").mkdir()
    (beside / "other" / "mine.py").write_text(MINE.replace("range(8)", "range(4)").replace("arange(8)", "arange(4)"))
    for name, out in (("other/mine.py:tensors", "a.h5"), ("mine:tensors", "b.h5"), ("mine.py:tensors", "c.h5")):
        assert cli.run(["hessian", "run.h5", "--problem", name, "--out", out, "--quiet"]) == 0
    assert largest("b.h5") == largest("c.h5") != largest("a.h5")


@pytest.mark.usefixtures("beside_the_user")
def test_hints_that_are_followed(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem named instead of a function is returned by a function; a recorded run without a plateau has steps."""
    (beside / "value.py").write_text("import mine\nproblem = mine.tensors()\ndef make(): return problem\n")
    assert cli.run(["hessian", "run.h5", "--problem", "value.py:problem"]) == 2
    assert "def make(): return problem, and name that" in capsys.readouterr().err
    assert cli.run(["hessian", "run.h5", "--problem", "value.py:make", "--steps", "plateau"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "hint: name --steps"
    assert cli.run(["hessian", "run.h5", "--problem", "value.py:make", "--steps", "0,1", "--quiet"]) == 0


def test_without_docstrings(tmp_path: Path) -> None:
    """With -OO, as with PYTHONOPTIMIZE=2, Python keeps none."""
    run = tmp_path / "run.h5"
    for argv in (["train", *SMALL, "--out", run], ["hessian", run, "--steps", "0", "--quiet"], ["train", "--help"]):
        ended = command(*argv, python=("-OO",))
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Notepad and PowerShell write it at the start of a file."""
    config, sweep = tmp_path / "c.json", tmp_path / "s.json"
    config.write_text(json.dumps({"steps": 3}), encoding="utf-8-sig")
    sweep.write_text(json.dumps({"name": "s", "preset": "demo", "seeds": [0]}), encoding="utf-8-sig")
    assert cli.run(["train", "--config", str(config), *SMALL[:-3], "--quiet", "--out", str(tmp_path / "x.h5")]) == 0
    assert "complete at step 3" in capsys.readouterr().out
    assert cli.run(["sweep", str(sweep), "--out", str(tmp_path / "s"), "--status"]) == 0


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        *((visible, []) for visible in (None, "", "-1", "NoDevFiles", "-1,0", " ")),
        *((visible, visible.split(",")) for visible in ("0", "2,3", "GPU-8932f937-d72c,MIG-1/2")),
        ("0, 1,-1,2", ["0", "1"]),
    ],
)
def test_devices_of_a_job(visible: str | None, devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA reads them: none after one that is none."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _room() == (len(devices) or 1, devices)


@pytest.mark.parametrize("size", [100, 1_000, 4_000, 12_000])
def test_a_report_that_finds_no_room(size: int, beside: Path) -> None:
    """Wherever writing stops, in whichever format of a figure: one line, and no folder."""
    with Recorder("drawn.h5", torch.nn.Linear(2, 2)) as recorder:
        for step in range(2):
            recorder.metrics(step, loss=float(step))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    ended = command("report", "drawn.h5", "--out", "page", "--quiet", preexec_fn=limit)
    error, hint = ended.stderr.splitlines()
    assert error == f"error: {beside / 'page'} cannot be written: {os.strerror(errno.EFBIG)}"
    assert hint.startswith("hint: ")
    assert not (beside / "page").exists()
