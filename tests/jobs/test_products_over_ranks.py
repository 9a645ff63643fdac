"""`torchrun … -m landscape hessian`: the file is that of one process, whatever each rank holds of the samples."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from helpers.commands import Refusal
from helpers.hessians import HessianReader
from helpers.marking import cases
from helpers.ranks import command, started
from numpy.typing import NDArray

from landscape.cli import main as cli
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.curvature.part import Part, taking
from landscape.errors import ArgumentError
from landscape.ranks import joined, launched

ROOT = Path(__file__).parents[2]
COSTS = {"seconds", "num_products", "checkpoint_crc32"}
ROUNDING = ("residual_norm", "hidden", "inertia_error", "ratio_error", "ratio_distance", "principal_angles")
"""Errors, of the size of rounding or of what a search stops at, and angles near 0, which are right to 1e-8."""

LOADED = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from landscape import ModuleProblem


class Mine(Dataset):
    x = torch.randn(23, 3, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 23

    def __getitem__(self, i):
        with open(f"read.{os.environ.get('RANK', 'alone')}", "a") as log:
            log.write(f"{i} ")
        return self.x[i], i % 3


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).eval()


def loss(z, y):
    return nn.functional.cross_entropy(z, y, reduction="none") + 0.01 * z.square().sum(-1)


def problem():
    loader = DataLoader(Mine(), batch_size=3)
    blocks = {"first": ["0.*"], "last": ["2.weight"]}
    weight = lambda batch: 1.0 + batch[1].sum()
    return ModuleProblem(model(), loader, None, loss, blocks, [("first", "last")], weight=weight)
"""


def torchrun(folder: Path, *argv: str) -> None:
    """The command line of docs/scale.md, in a folder."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ranks = ["--standalone", "--nproc-per-node", "2", "-m", "landscape", *argv]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *ranks],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written: ") == 1, done.stdout


def assert_equal(actual: Path, expected: Path) -> None:
    """All numbers of two Hessian files agree to 1e-12 of the largest of their kind; so do the counts."""
    with h5py.File(actual) as ours, h5py.File(expected) as theirs:
        names: list[str] = []
        theirs.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        unlike, compared = [], 0
        for name in names:
            a, b = ours[name][()], theirs[name][()]
            if name in COSTS or name.endswith(ROUNDING) or a.dtype.kind not in "fi":
                continue
            scale = np.nanmax(np.abs(b), initial=0.0) if b.dtype.kind == "f" else 0.0
            # The logarithm of a probability adds up those of all Ritz values.
            rtol = 1e-5 if name.endswith("failure_probability") else 0
            if not np.allclose(a, b, rtol=rtol, atol=1e-12 * scale * (rtol == 0), equal_nan=True):
                unlike.append((name, a, b))
            compared += 1
        assert not unlike
        assert compared > 60


@pytest.mark.long
def test_two_ranks_measure_a_trained_network(run_file: Path) -> None:
    """Products by hand and by autograd, 14 samples on one rank and 15 on the other; the file says how it was made."""
    options = [str(run_file), "--steps", "60", "--blocks", "E", "all", "--method", "lanczos"]
    options = [*options, "--certify", "--density", "--rtol", "1e-10", "--device", "cpu", "--quiet", "--out"]
    torchrun(run_file.parent, "hessian", *options, "two.h5")
    assert cli.run(["hessian", *options, str(run_file.with_name("one.h5"))]) == 0
    two, one = (run_file.with_name(f"{name}.h5") for name in ("two", "one"))
    assert_equal(two, one)
    attrs = HessianReader(two).attrs
    assert (attrs["world_size"], attrs["backend"]) == (2, "gloo")
    assert "world_size" not in HessianReader(one).attrs
    assert not list(run_file.parent.glob(".*"))


PAIR = [
    "--run",
    "run.h5",
    "--steps",
    "60",
    "--blocks",
    "E",
    "W",
    "E,W",
    "--k",
    "4",
    "--probes",
    "2",
    "--device",
    "cpu",
]
SEARCHES = {
    "cut short": (["--method", "lanczos", "--max-hvps", "60"], 3),
    "converged": (["--method", "lanczos", "--max-hvps", "9000"], 0),
    "bounded on both sides": (["--dense-limit", "80"], 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("search", cases(SEARCHES, long=["cut short", "converged"]))
def test_two_ranks_search_a_pair(search: str, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a search found agrees with that of one process within both of their error bars; all counts are equal."""
    monkeypatch.chdir(run_file.parent)
    options, code = SEARCHES[search]
    argv = ["hessian", *PAIR, "--certify", "--quiet", *options, "--out"]
    with started(run_file.parent, 2, command, run_file.parent, [*argv, "two.h5"]) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([code, code], "")
    assert cli.run([*argv, "one.h5"]) == code
    two, one = (HessianReader(f"{name}.h5").row(60) for name in ("two", "one"))
    for name in one.keys() - COSTS:
        if one[name].dtype.kind in "ib":
            np.testing.assert_array_equal(two[name], one[name], err_msg=name)

    def apart(name: str, bar: str, at: Any = ...) -> NDArray[Any]:
        far, allowed = np.abs(two[name] - one[name])[at], (two[bar] + one[bar])[at]
        assert np.isfinite(far).all()
        assert (far <= allowed + 1e-13).all(), (name, far, allowed)
        return far / np.abs(one[name][at])

    apart("eigenvalues", "residual_norm")
    for kind in ("coupling", "gauss_newton"):
        assert apart(f"{kind}_ratios", f"{kind}_ratio_distance", 0).max() < (1e-9 if code else 1e-6)
        if search == "bounded on both sides":
            assert apart(f"{kind}_ratios", f"{kind}_ratio_error", 0).max() < 1e-12
    is_open = one["coupling_ratio_distance"][0] > 0.01 * one["coupling_ratios"][0]
    assert is_open.all() if search == "cut short" else not is_open.any()


@pytest.fixture
def loaded(users_run: Path) -> Path:
    """A run of three checkpoints, and loaded.py, whose problem reads a DataLoader and notes what it reads."""
    users_run.with_name("loaded.py").write_text(LOADED)
    return users_run


OPTIONS = ["hessian", "run.h5", "--problem", "loaded.py:problem", "--certify", "--density", "--steps", "0,9", "--quiet"]


@pytest.mark.long
def test_four_ranks_measure_a_users_network(loaded: Path) -> None:
    """Weighted samples, and eight batches, the last of which is short."""
    with started(loaded.parent, 4, command, loaded.parent, [*OPTIONS, "--out", "four.h5"]) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0] * 4, "")
    assert crew.said("out").count("written: ") == 1
    assert cli.run([*OPTIONS, "--out", "one.h5"]) == 0
    assert_equal(loaded.with_name("four.h5"), loaded.with_name("one.h5"))
    assert HessianReader(loaded.with_name("four.h5")).attrs["world_size"] == 4


@pytest.mark.long
def test_a_file_of_one_process_is_extended_by_ranks(loaded: Path) -> None:
    """Rows that are there stay bit for bit, those of the new step are the same; nothing is done where all is there."""
    assert cli.run([*OPTIONS, "--out", "one.h5"]) == 0
    assert cli.run([*OPTIONS[:-2], "0", "--quiet", "--out", "grown.h5"]) == 0
    before = HessianReader(loaded.with_name("grown.h5")).row(0)
    for _ in range(2):
        with started(loaded.parent, 2, command, loaded.parent, [*OPTIONS, "--out", "grown.h5"]) as crew:
            crew.join()
        assert (crew.codes, crew.said()) == ([0, 0], "")
        grown = HessianReader(loaded.with_name("grown.h5"))
        assert {n: v.tobytes() for n, v in before.items()} == {n: v.tobytes() for n, v in grown.row(0).items()}
    assert_equal(loaded.with_name("grown.h5"), loaded.with_name("one.h5"))


def test_parts_differ_by_one_and_are_all() -> None:
    """23 samples for 4 ranks; with more ranks than samples or batches none is left for some."""
    rows = [Part(rank, 4).rows(23) for rank in range(4)]
    assert [at.stop - at.start for at in rows] == [5, 6, 6, 6]
    assert sum((list(range(23))[at] for at in rows), []) == list(range(23))
    with pytest.raises(ArgumentError, match="3 samples for 4 ranks"):
        Part(0, 4).rows(3)
    with pytest.raises(ArgumentError, match="3 batches for 4 ranks"):
        Part(0, 4).batches([1, 2, 3])
    every = [list(Part(rank, 2).batches([1, 2, 3])) for rank in range(2)]
    assert every == [[1, 3], [2]]


X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
NET = torch.nn.Linear(3, 4)


def tied(count: int) -> None:
    """Three ranks refuse a loss that ties so many samples together, and take one that does not."""
    ranks = launched()
    with joined(ranks), taking(Part(ranks.rank, ranks.size)):
        loose = Objective(NET, X[:count], Y[:count], weight_decay=0.5)
        assert loose.value(dict(NET.named_parameters())) == pytest.approx(expected(count), rel=1e-12)
        HessianOperator(loose, dict(NET.named_parameters()))
        bound = Objective(NET, X[:count], Y[:count], lambda z, y: cross_entropy(z - z.mean(0), y))
        with pytest.raises(ArgumentError, match="the loss of a batch changes by") as refusal:
            HessianOperator(bound, dict(NET.named_parameters()))
        assert "in one process" in refusal.value.hint


def expected(count: int) -> float:
    """The objective by torch alone, with weight decay."""
    x, net = X[:count].double(), copy.deepcopy(NET).double()
    decay = sum(float(p.square().sum().detach()) for p in net.parameters()) / 4
    return float(torch.nn.functional.cross_entropy(net(x), Y[:count]).detach()) + decay


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 6])
def test_samples_that_are_tied_together_are_refused(count: int, tmp_path: Path) -> None:
    """Also where each rank has one of them, which would not show it; weight decay counts once."""
    with started(tmp_path, 3, tied, count) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0] * 3, "")


def seen(scale: float, weight: float, start: int) -> list[str]:
    """What ranks compare of a model with a tensor as a plain attribute, and a loss that has one."""
    torch.manual_seed(start)
    model = torch.nn.Linear(3, 4)
    model.scale = torch.tensor(scale)
    model.derived = 2 * model.weight
    weights = torch.tensor([1.0, 1.0, 1.0, weight])
    loss = functools.partial(torch.nn.functional.cross_entropy, weight=weights, reduction="none")
    part = Part(0, 2)
    with taking(part):
        Objective(model, X, Y, loss)
    return part.seen


def test_ranks_compare_what_a_model_and_a_loss_hold_beside_parameters() -> None:
    """These come from the run file: a function may leave them at random."""
    assert seen(1.0, 1.0, 0) == seen(1.0, 1.0, 1)
    assert len({tuple(seen(scale, weight, 0)) for scale in (1.0, 2.0) for weight in (1.0, 2.0)}) == 4


def test_batches_that_can_be_read_once_are_refused() -> None:
    """As in one process, before any of them is read."""
    refused = pytest.raises(ArgumentError, match="the batches are a generator, which can be read once only")
    with taking(Part(0, 2)), refused:
        Objective(NET, (batch for batch in [(X, Y)] * 2))


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["train", "--out", "x.h5"], "landscape train is for one process; 2 were started"),
        (["hessian", "run.h5", "--jobs", "2"], "jobs is for one process"),
    ],
)
def test_what_ranks_do_not_do(
    argv: list[str],
    error: str,
    assert_refused: Refusal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training over ranks, and workers on top of them, are refused by the first rank alone."""
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "0")
    assert_refused(argv, 2, error, "without torchrun")
    monkeypatch.setenv("RANK", "1")
    assert cli.run(argv) == 2
    assert capsys.readouterr().err == ""
