"""The modules beside a user's problem are part of its source: each problem has its own, as they are now."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers import foreign

from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.models.factory import load, unlike_source
from landscape.models.problem import Problem

PROBLEM = """
import torch
import types
from landscape import ModuleProblem
from shapes import WIDTH


def make():
    import depth
    return ModuleProblem(torch.nn.Linear(WIDTH, depth.DEPTH), torch.ones(2, WIDTH), torch.zeros(2, dtype=torch.int64))
"""


def written(folder: Path, width: int, depth: int = 2) -> str:
    """A problem in a folder, with modules of the same names in each; returns its name."""
    folder.mkdir(exist_ok=True)
    (folder / "prob.py").write_text(PROBLEM)
    (folder / "shapes.py").write_text("from base import one\n" + f"WIDTH = {' + '.join(['one'] * width)}\n")
    (folder / "base.py").write_text("one = 1\n")
    (folder / "depth.py").write_text(f"DEPTH = {' + '.join(['1'] * depth)}\n")
    return f"{folder}/prob.py:make"


def order(problem: Problem) -> int:
    return int(problem.parameters["weight"].shape[-1])


def test_problems_with_modules_of_the_same_names(beside_the_user: None, tmp_path: Path) -> None:
    """Each gets those beside it, in whatever order, and as they are on disk by then."""
    first, second = written(tmp_path / "a", 3), written(tmp_path / "b", 5)
    assert [order(load(name)[0]) for name in (first, second, first)] == [3, 5, 3]
    was = load(first)[1]
    written(tmp_path / "a", 4)
    problem, source = load(first)
    assert order(problem) == 4
    assert was.sha256 != source.sha256
    assert "source" in unlike_source(was.attrs, source)


def test_files_that_are_edited_within_a_second(
    beside_the_user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode of a file tells it by its length and the second of its last change alone."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    name = written(tmp_path / "a", 3)
    for depth in (2, 4, 6):
        for file, text in (("depth.py", f"DEPTH = {depth}\n"), ("prob.py", f"{PROBLEM}WIDTH = {depth}\n")):
            (tmp_path / "a" / file).write_text(text)
            os.utime(tmp_path / "a" / file, (1e9, 1e9))
        assert tuple(load(name)[0].parameters["weight"].shape) == (depth, depth)
    assert not list(tmp_path.rglob("*.pyc"))
    assert not sys.dont_write_bytecode


@pytest.mark.parametrize("changed", ["shapes.py", "base.py", "depth.py"])
def test_every_module_beside_it_counts(changed: str, beside_the_user: None, tmp_path: Path) -> None:
    """Those that are imported within a function and by others, too; no other file does."""
    name = written(tmp_path / "a", 3)
    before = load(name)[1]
    (tmp_path / "a/other.py").write_text("WIDTH = 7\n")
    assert load(name)[1] == before
    with (tmp_path / "a" / changed).open("a") as file:
        file.write("# Changed.\n")
    assert load(name)[1].sha256 != before.sha256


def test_modules_of_a_package(beside_the_user: None, tmp_path: Path) -> None:
    """Relative imports, and those by the full name, with and without __init__.py.

    A process that has run them would go on to measure the earlier ones.
    """
    for package, line in (("one", "from . import shapes"), ("two", "from two.shapes import WIDTH")):
        written(tmp_path / package, 3)
        (tmp_path / package / "shapes.py").write_text("WIDTH = 3\n")
        source = tmp_path / package / "prob.py"
        text = PROBLEM.replace("from shapes import WIDTH", f"{line}\nWIDTH = 3")
        source.write_text(text.replace("import depth", "from . import depth"))
    (tmp_path / "one/__init__.py").touch()
    for package in ("one", "two"):
        before = load(f"{package}.prob:make")[1].sha256
        for name in ("shapes.py", "depth.py"):
            with (tmp_path / package / name).open("a") as file:
                file.write("# Changed.\n")
            with pytest.raises(FileError, match="its source has changed since this process ran it"):
                load(f"{package}.prob:make")
            for module in [m for m in sys.modules if m.partition(".")[0] == package]:
                del sys.modules[module]
            after = load(f"{package}.prob:make")[1].sha256
            assert after != before
            before = after


@pytest.mark.slow
def test_a_file_does_not_grow_with_another_module(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of two problems do not get into one file."""
    source = Path("mine.py")
    data = next(line for line in foreign.TINY.splitlines() if line.startswith("x = "))
    source.write_text(foreign.TINY.replace(data, "from data import x"))
    Path("data.py").write_text(f"import torch\n{data}\n")
    command = ["hessian", "run.h5", "--problem", "mine.py:problem", "--blocks", "last", "--quiet", "--steps"]
    assert cli.run([*command, "0"]) == 0
    assert cli.run([*command, "5"]) == 0
    Path("data.py").write_text(f"import torch\n{data} * 2\n")
    capsys.readouterr()
    assert cli.run([*command, "9"]) == 1
    said = capsys.readouterr().err
    assert "run.hessian.h5: it was made with --problem mine.py:problem (source" in said
    assert "hint: use --overwrite" in said
