"""Runs that many tests read: small, real and made once a session."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import signal
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

# Sums depend on the number of threads; processes that tests start are compared with this one bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from helpers import foreign
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from helpers.once import made_once
from helpers.sweeps import LONG, Here, arguments
from hypothesis import settings
from torch.nn import functional as F

from landscape import progress
from landscape.cli import main as cli
from landscape.config import HessianConfig, TrainConfig
from landscape.jobs import run as sweep_run
from landscape.training.loop import train

torch.set_num_threads(1)
# No test depends on how fast the machine is.
settings.register_profile("landscape", deadline=None)
settings.load_profile("landscape")
# What a shell runs in the background ignores Ctrl-C, and what that starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = TrainConfig(
    p=7,
    tokens=2,
    embed_dim=4,
    hidden=8,
    batch_size=16,
    train_fraction=0.6,
    steps=60,
    checkpoint_every=20,
    metrics_every=10,
    device="cpu",
)
SMALL_TRANSFORMER = dataclasses.replace(
    TINY,
    model="transformer",
    tokens=3,
    heads=2,
    hidden=6,
    optimizer="adamw",
    weight_decay=0.5,
    betas=(0.9, 0.98),
    warmup=10,
    batch_size="full",
)
SMALL = dataclasses.replace(TINY, steps=40, checkpoint_log=0, metrics_every=20)


WHOLE_PROGRAM = ("jobs", "program", "report", "trial")
"""Folders of tests that run commands from end to end; `make test-fast` leaves them out."""


LONGEST = (
    "test_accuracy.py",
    "test_collect.py",
    "test_faults.py",
    "test_package.py",
    "test_readme.py",
    "test_sequences.py",
    "test_slurm.py",
)
"""Modules with the longest tests, which come first, so that no process works on one while the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the whole program are slow, and so are long ones."""
    for item in items:
        if item.path.parent.name in WHOLE_PROGRAM or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a quarter of the time a test waits for other programs."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """Garbage is sought seldom, and not among the half a million objects of modules and tests, which all stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(autouse=True)
def one_thread_throughout() -> Iterator[None]:
    """A test that leaves torch with more threads would change the last bits of all that follow."""
    yield
    assert torch.get_num_threads() == 1


def tiny(folder: Path) -> None:
    """A run, and beside it the analysis of all its blocks at the start, on the way and at the end."""
    train(TINY, folder / "tiny.h5", quiet=True)
    blocks = ("E", "W", "V", "E,W", "W,V", "E,V", "all")
    analyse(
        folder / "tiny.h5",
        HessianConfig(steps="0,20,60", blocks=blocks, k=10, certify=True, curve=True, density=True, device="cpu"),
        quiet=True,
    )


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 7 * 4 + 8 * 8 + 8 + 7 * 8 + 7 parameters. Read only."""
    return made_once(tmp_path_factory, tiny) / "tiny.h5"


@pytest.fixture
def run_file(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of `tiny_run` that a test may break."""
    return Path(shutil.copy(tiny_run, tmp_path / "run.h5"))


@pytest.fixture(scope="session")
def tiny_hessian(tiny_run: Path) -> HessianReader:
    """The analysis of `tiny_run` beside it. Read only."""
    return HessianReader(tiny_run.with_name("tiny.hessian.h5"))


def small(folder: Path) -> None:
    """A run and its analysis."""
    train(SMALL, folder / "run.h5", quiet=True)
    analyse(
        folder / "run.h5",
        HessianConfig(blocks=("E", "W", "E,W"), k=3, certify=True, density=True, device="cpu"),
        quiet=True,
    )


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A "run" of three checkpoints and its "hessian" file, small enough to be spoilt at every byte. Read only."""
    folder = made_once(tmp_path_factory, small)
    return {"run": folder / "run.h5", "hessian": folder / "run.hessian.h5"}


@pytest.fixture
def run(files: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the run of `files` that a test may break."""
    return Path(shutil.copy(files["run"], tmp_path / "run.h5"))


def long_sweep(folder: Path) -> None:
    """The sweep LONG."""
    assert cli.run(arguments(folder, LONG)) == 0


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the undisturbed sweep LONG. Read only."""
    return made_once(tmp_path_factory, long_sweep)


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of this test do their work in this process."""
    monkeypatch.setattr(sweep_run, "Workers", Here)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """No garbage of earlier tests is collected in this one: at the limit of recursion no finaliser could run."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def nothing_is_made() -> Iterator[None]:
    """A mistake is found by counting what was asked for: at no time is there more than 32 MB of new objects."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


@pytest.fixture
def assert_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Assert that a command ends with this code, prints one error and one hint with these words, and harms no file."""
    # On a busy machine signs of life would come before them.
    monkeypatch.setattr(progress, "ELSEWHERE", threading.TIMEOUT_MAX)

    def check(argv: Sequence[object], code: int, error: str, hint: str, unharmed: Sequence[Path] = ()) -> None:
        before = [path.read_bytes() for path in unharmed]
        capsys.readouterr()
        assert cli.run(list(map(str, argv))) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert [line.partition(": ")[0] for line in lines] == ["error", "hint"], captured.err
        assert error in lines[0]
        assert hint in lines[1]
        assert [path.read_bytes() for path in unharmed] == before

    return check


@pytest.fixture
def beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, whose modules no later test finds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def users_run(beside_the_user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints of the network in mine.py."""
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(foreign.TINY)
    mine = foreign.executed(foreign.TINY)
    loss = lambda model: F.cross_entropy(model(mine["x"]), mine["y"])  # noqa: E731
    return foreign.record(tmp_path / "run.h5", dict(foreign.trained(mine["model"](), loss, (0, 5, 9))))
