"""Blocks and pairs that a Recorder stored are those of an analysis whose problem declares none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers import foreign
from helpers.hessians import HessianReader
from helpers.spoiling import configure

from landscape import Recorder
from landscape.cli import main as cli
from landscape.errors import ArgumentError

DECLARED = ', blocks={"first": ["0.*"], "last": ["2.weight"]}, pairs=[("first", "last")]'


@pytest.fixture
def run(beside_the_user: None, tmp_path: Path) -> Path:
    """A recorded run beside mine.py, whose problem declares no blocks, and other.py, whose problem does."""
    assert DECLARED in foreign.TINY
    Path("mine.py").write_text(foreign.TINY.replace(DECLARED, ""))
    Path("other.py").write_text(foreign.TINY)
    model = foreign.executed(foreign.TINY)["model"]()
    path = tmp_path / "run.h5"
    with Recorder(path, model, blocks={"w": ["*.weight"], "b": "*.bias"}, pairs=[("w", "b")]) as recorder:
        recorder.checkpoint(0)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "more", "blocks", "pairs"),
    [
        ("mine.py:problem", [], ["w", "b", "w,b"], ["w,b"]),
        ("mine.py:problem", ["--blocks", "b", "0.weight"], ["b", "0.weight"], ["w,b"]),
        ("other.py:problem", [], ["first", "last", "first,last"], ["first,last"]),
    ],
)
def test_recorded_blocks_are_measured(
    problem: str, more: list[str], blocks: list[str], pairs: list[str], run: Path
) -> None:
    """Those of the file by default, those of the command line or of the problem where they name some."""
    assert cli.run(["hessian", "run.h5", "--problem", problem, "--quiet", *more]) == 0
    reader = HessianReader(run.with_name("run.hessian.h5"))
    assert (reader.blocks, reader.pairs) == (blocks, pairs)


@pytest.mark.slow
def test_a_recorded_block_is_that_of_its_parameters(run: Path) -> None:
    """Its eigenvalues are those of the same parameters by a pattern; the other commands know its name."""
    assert cli.run(["hessian", "run.h5", "--problem", "mine.py:problem", "--blocks", "w", "*.weight"]) == 0
    values = HessianReader(run.with_name("run.hessian.h5")).row(0)["eigenvalues"]
    assert (values[0] == values[1]).all()
    step = ["--run", "run.h5", "--problem", "mine.py:problem", "--step", "0"]
    assert cli.run(["slice", *step, "--block", "w", "--out", "slices"]) == 0
    assert cli.run(["critical", *step, "--search-hvps", "50", "--out", "point.hessian.h5"]) in (0, 3)
    assert HessianReader(Path("point.hessian.h5")).blocks == ["w", "b", "w,b"]


@pytest.mark.parametrize("name", ["my block", "a,b", "a/b", ""])
def test_a_name_that_no_analysis_takes_is_not_recorded(name: str, tmp_path: Path) -> None:
    """The Recorder refuses what the analysis would."""
    model = foreign.executed(foreign.TINY)["model"]()
    with pytest.raises(ArgumentError, match=f"a block cannot be named {name!r}") as refused:
        Recorder(tmp_path / "run.h5", model, blocks={name: "*"})
    assert "leave out spaces, commas and slashes" in refused.value.hint
    assert not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize("wrong", [{"blocks": 3}, {"blocks": {"w": ["*.wieght"]}}, {"pairs": [["w"]]}, {"pairs": [1]}])
def test_recorded_blocks_that_cannot_be(wrong: dict[str, Any], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is blamed."""
    with h5py.File(run, "r+") as file:
        configure(file, **wrong)
    error = "run.h5: its blocks cannot be: "
    argv = ["hessian", "run.h5", "--problem", "mine.py:problem"]
    foreign.refused(argv, "", error, "get it again from its source", capsys)
