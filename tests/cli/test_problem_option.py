"""`--problem`: a user's network, data and loss through the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.commands import Refusal
from helpers.hessians import HessianReader
from torch.nn import functional as F

from landscape.cli import main as cli
from landscape.files.runs import RunReader
from landscape.files.schema import LEVELS


def dense(users_run: Path, step: int, names: list[str]) -> torch.Tensor:
    """The Hessian of the mean cross-entropy by torch.func alone, from the file's own parameters."""
    mine = foreign.executed(foreign.TINY)
    with RunReader(users_run) as reader:
        every = {n: torch.from_numpy(a) for n, a in reader.checkpoint(step).items()}
    sizes = [every[n].numel() for n in names]
    model, x = mine["model"](), mine["x"].double()

    def value(vector: torch.Tensor) -> torch.Tensor:
        pieces = {n: v.view_as(every[n]) for n, v in zip(names, vector.split(sizes), strict=True)}
        logits = torch.func.functional_call(model, {**every, **pieces}, (x,))
        return F.cross_entropy(logits, mine["y"])

    return torch.func.hessian(value)(torch.cat([every[n].reshape(-1) for n in names]))


NAMES = {
    "first": ["0.weight", "0.bias"],
    "last": ["2.weight"],
    "first,last": ["0.weight", "0.bias", "2.weight"],
    "all": ["0.weight", "0.bias", "2.weight", "2.bias"],
    "*.bias": ["0.bias", "2.bias"],
    "0.weight": ["0.weight"],
    "*.bias,0.weight": ["0.bias", "2.bias", "0.weight"],
}


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["mine:problem", "mine.py:problem"])
def test_a_users_network_is_measured(problem: str, users_run: Path) -> None:
    """Eigenvalues and index of every block are those of the dense Hessian; blocks by name, parameter and pattern."""
    blocks = list(NAMES)
    command = ["hessian", "run.h5", "--problem", problem, "--steps", "all", "--certify", "--k", "10"]
    assert cli.run([*command, "--blocks", *blocks]) == 0
    reader = HessianReader(users_run.with_name("run.hessian.h5"))
    assert reader.steps == [0, 5, 9]
    assert reader.blocks == blocks
    assert reader.pairs == ["first,last", "*.bias,0.weight"]
    assert reader.attrs["problem"] == problem
    for step in reader.steps:
        row = reader.row(step)
        for i, block in enumerate(blocks):
            values = torch.linalg.eigvalsh(dense(users_run, step, NAMES[block])).numpy()
            k = min(10, len(values))
            scale = np.abs(values).max()
            np.testing.assert_allclose(row["eigenvalues"][i, 0, :k], values[:k], atol=1e-9 * scale)
            np.testing.assert_allclose(row["eigenvalues"][i, 1, :k], values[::-1][:k], atol=1e-9 * scale)
            assert LEVELS[row["inertia_level"][i]] == "certified"
            assert row["inertia"][i, 0] == (values < -row["inertia_tolerance"][i]).sum()
        assert np.isfinite(row["coupling_strength"]).all()
        assert np.isnan([row["sharpness_adam"], row["sharpness_gd"], row["prop41_ratio"]]).all()


@pytest.mark.slow
def test_losses_of_a_users_problem_are_in_no_unit(users_run: Path, tiny_hessian: HessianReader) -> None:
    """They may be any; those of a run that we trained are in nat."""
    own = ["--run", "run.h5", "--problem", "mine:problem", "--blocks", "last", "--quiet"]
    assert cli.run(["hessian", *own, "--steps", "9"]) == 0
    assert cli.run(["critical", *own, "--step", "9", "--search-hvps", "50"]) in (0, 3)
    (refined,) = users_run.parent.glob("run.critical*.h5")
    for path, names, unit in (
        (users_run.with_name("run.hessian.h5"), ["train_loss"], "1"),
        (refined, ["train_loss", "critical_point/loss", "critical_point/start_loss"], "1"),
        (tiny_hessian.path, ["train_loss"], "nat"),
    ):
        with h5py.File(path) as file:
            assert {file[name].attrs["units"] for name in names} == {unit}


@pytest.mark.slow
def test_without_blocks_all_that_the_problem_declares(users_run: Path) -> None:
    """The declared blocks, their pair and all parameters."""
    assert cli.run(["hessian", "run.h5", "--problem", "mine:problem", "--steps", "9"]) == 0
    assert HessianReader(users_run.with_name("run.hessian.h5")).blocks == ["first", "last", "first,last"]


@pytest.mark.slow
def test_a_problem_without_pairs_has_tables(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem that declares nothing has one block, all, and no columns for what it cannot have."""
    plain = "\ndef plain():\n    return ModuleProblem(model().eval(), x, y)\n"
    Path("plain.py").write_text(foreign.TINY + plain)
    assert cli.run(["hessian", "run.h5", "--problem", "plain:plain", "--steps", "9", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "written: run.hessian.h5" in said
    assert "lambda_min" in said
    assert not re.findall(r"kappa|curv\. |gauge-free|Adam|  -\n", said)
    assert HessianReader(users_run.with_name("run.hessian.h5")).blocks == ["all"]
    assert cli.run(["report", "run.h5", "--out", "page", "--quiet"]) == 0
    assert Path("page/report.html").exists()


@pytest.mark.slow
def test_a_star_of_a_pattern_is_no_mark(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A block named by a pattern that ends in a star has converged like any other."""
    argv = ["hessian", "run.h5", "--problem", "mine:problem", "--steps", "9", "--blocks", "2.*"]
    assert cli.run([*argv, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert " 2.* " in said
    assert "not every eigenvalue converged" not in said


@pytest.mark.slow
def test_a_file_grows_with_the_same_source_alone(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More steps join a file; another source or none is refused by name, and replaces it with --overwrite."""
    command = ["hessian", "run.h5", "--steps", "5"]
    assert cli.run([*command, "--problem", "mine:problem", "--blocks", "first"]) == 0
    out = users_run.with_name("run.hessian.h5")
    before = HessianReader(out).row(5)["eigenvalues"][0]
    assert cli.run(["hessian", "run.h5", "--steps", "9", "--problem", "./mine.py:problem", "--blocks", "first"]) == 0
    grown = HessianReader(out)
    assert grown.steps == [5, 9]
    np.testing.assert_array_equal(grown.row(5)["eigenvalues"][0], before)
    capsys.readouterr()
    Path("other.py").write_text(foreign.TINY + "# changed\n")
    assert cli.run([*command, "--problem", "other:problem"]) == 1
    said = capsys.readouterr().err
    assert "run.hessian.h5: it was made with --problem ./mine.py:problem (source" in said
    assert "not --problem other:problem (source" in said
    assert "hint: use --overwrite" in said
    assert cli.run([*command, "--problem", "other:problem", "--overwrite", "--blocks", "last"]) == 0
    assert HessianReader(out).attrs["problem"] == "other:problem"


def test_a_file_of_the_program_itself_needs_a_problem(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign run says what it lacks."""
    assert cli.run(["hessian", "run.h5"]) == 1
    said = capsys.readouterr().err
    assert "error: run.h5 was recorded from mine, not written by `landscape train`" in said
    assert "--problem mine.py:problem" in said


@pytest.mark.slow
def test_a_report_needs_the_files_alone(users_run: Path) -> None:
    """Blocks of any names are drawn, however long."""
    blocks = ["first", "last", "first,last", "*.bias", "*.bias,2.weight", "0.weight"]
    assert (
        cli.run(["hessian", "run.h5", "--problem", "mine.py:problem", "--density", "--quiet", "--blocks", *blocks]) == 0
    )
    Path("mine.py").unlink()
    assert cli.run(["report", "run.h5", "--out", "page", "--quiet"]) == 0
    text = Path("page/report.html").read_text()
    assert "first,last" in text
    assert all(Path(f"page/figures/{name}.svg").exists() for name in ("spectra", "densities"))


@pytest.mark.slow
def test_what_the_users_code_sets_is_undone(users_run: Path) -> None:
    """Folder, gradients, default type and numpy's error state are what they were."""
    before = cli.run(["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "0", "--out", "a.h5"])
    changes = (
        "import os, numpy\nos.chdir('/')\ntorch.set_grad_enabled(False)\nnumpy.seterr(all='raise')\n"
        "torch.set_default_dtype(torch.float64)\n"
    )
    users_run.with_name("odd.py").write_text(foreign.TINY + changes)
    argv = ["hessian", "run.h5", "--problem", "odd.py:problem", "--steps", "0", "--out", "b.h5"]
    assert (before, cli.run(argv)) == (0, 0)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert np.geterr()["under"] == "ignore"
    values = [HessianReader(users_run.with_name(name)).row(0)["eigenvalues"] for name in ("a.h5", "b.h5")]
    np.testing.assert_array_equal(*values)


@pytest.mark.slow
def test_json_stays_json(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user's file prints is no part of the document."""
    Path("mine.py").write_text(foreign.TINY + "\nprint('loaded')\n")
    assert cli.run(["hessian", "run.h5", "--problem", "mine:problem", "--steps", "0", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["attributes"]["problem"] == "mine:problem"
    assert "loaded" in said.err


@pytest.mark.slow
def test_a_report_of_another_problem_is_refused(users_run: Path, assert_refused: Refusal) -> None:
    """`report --problem` draws what was made with this factory as its source is now, and nothing else."""
    report = ["report", "run.h5", "--out", "page", "--quiet", "--problem", "mine.py:problem"]
    assert_refused(report, 2, "none of the files is a Hessian file", "landscape hessian run.h5", [users_run])
    hessian = ["hessian", "run.h5", "--problem", "mine:problem", "--steps", "9", "--blocks", "first"]
    assert cli.run(hessian) == 0
    assert cli.run(report) == 0
    page = Path("page/report.html")
    source = Path("mine.py")
    source.write_text(source.read_text() + "\n# New data.\n")
    assert_refused(
        [*report, "--overwrite"],
        1,
        "it was made with --problem mine:problem (source ",
        "name the problem that it was made with, or measure the run again",
        [users_run, Path("run.hessian.h5"), page],
    )
    tensor = [*report[:-1], "mine.py:x", "--overwrite"]
    assert_refused(tensor, 2, "--problem mine.py:x is a Tensor, not a function", "write a function", [page])
