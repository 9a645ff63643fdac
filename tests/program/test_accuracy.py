"""The comparison of tools: `landscape` is right in every row, and the published table is the one the script makes."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.sparse.linalg import aslinearoperator

from benchmarks import accuracy, coverage

ROOT = Path(__file__).parents[2]


def cells(page: str) -> list[list[str]]:
    """The cells of the page's first table, without its head."""
    rows = [line.split(" | ") for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's solver gets the matrix of all products of curvlinops: beside a crowded edge it takes 100,000 of them."""
    matrix = functools.cache(lambda case: aslinearoperator(case.curvlinops_matrix()))
    plain = accuracy.Case.curvlinops

    def curvlinops(case: accuracy.Case) -> Any:
        operator = plain(case)
        monkeypatch.setattr(operator, "to_scipy", lambda: matrix(case))
        return operator

    monkeypatch.setattr(accuracy.Case, "curvlinops", curvlinops)


@pytest.fixture
def one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the page has a count for many start vectors, the other tools get one: each is right in all or in none."""
    every = accuracy.copies

    def copies(tools: accuracy.Tools, within: float, seeds: int) -> accuracy.Tools:
        others = {tool: run for tool, run in tools.items() if tool != "landscape"}
        counted = accuracy.after(lambda number: number * seeds, every(others, within, 1))
        return every({"landscape": tools["landscape"]}, within, seeds) | counted

    monkeypatch.setattr(accuracy, "copies", copies)


@pytest.mark.long
@pytest.mark.usefixtures("assembled", "one_start")
def test_no_wrong_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The script ends with 0, and makes the rows and verdicts of docs/accuracy.md."""
    page = tmp_path / "accuracy.md"
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--out", str(page)])
    # tests/curvature/test_coverage.py measures it.
    monkeypatch.setattr(coverage, "MATRICES", 1)
    # What the script puts there goes with the test.
    monkeypatch.setattr(torch, "eig", torch.eig)
    assert accuracy.main() == 0, capsys.readouterr().out
    made, published = cells(page.read_text()), cells((ROOT / "docs/accuracy.md").read_text())
    assert len(made) >= 34
    assert {row[4][-1] for row in made} == {"✓", "–"}
    # The last digits of errors differ between machines; what was computed and who was right may not.
    assert [row[:4] for row in made] == [row[:4] for row in published]
    verdicts = [[[cell[-1] for cell in row[4:]] for row in table] for table in (made, published)]
    assert verdicts[0] == verdicts[1]
