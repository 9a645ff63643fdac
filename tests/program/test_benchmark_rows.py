"""What the rows of docs/performance.md say of hand-made numbers, and when a part is measured again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, harness, products, training
from benchmarks.harness import Numbers, Part, Row


def only(rows: Any) -> Row:
    """The one row that there is."""
    (row,) = rows
    one: Row = row
    return one


def test_a_checkpoint_costs_by_size_and_by_what_is_asked_for() -> None:
    """Sizes that were not measured have no row; a search that did not converge says so."""
    numbers = {"cpu": 12.3, "memory": 1.5e9, "converged": True}
    parts = {"quick": numbers, "quick --certify": numbers | {"converged": False}}
    one, other = "12 CPU s, 1.5 GB", "12 CPU s, 1.5 GB, a search did not converge"
    assert list(commands.costs(parts)) == [["quick", "6,891", one, "", other]]


def test_a_product_in_both_precisions() -> None:
    """Milliseconds of each tool, beside the matrix products alone."""
    seconds = {"landscape": 1e-3, "PyHessian": 1.9e-3, "curvlinops": 3.1e-3, "GEMMs alone": 0.4e-3}
    numbers: Numbers = {"seconds": {tool: {"median": s} for tool, s in seconds.items()}}
    row = only(products.rows({"paper float32": numbers, "paper float64": numbers}))
    assert row.what == "one product, paper, float32, float64; its matrix products alone take 0.4, 0.4 ms"
    assert row.by == {"landscape": "1, 1 ms", "PyHessian": "1.9, 1.9 ms", "curvlinops": "3.1, 3.1 ms"}


def test_seeds_at_once_are_compared_with_a_run_on_each_core() -> None:
    row = only(training.rows({"ensemble": {"members": 16, "seconds": {"ensemble": 10.0, "a_core_each": 30.0}}}))
    assert row.by == {"landscape": "10 s, beside 30 s"}


def test_training_is_compared_with_the_plain_loop() -> None:
    rates = {"landscape": 200.0, "plain": 100.0, "plain_fused": 160.0}
    row = only(training.rows({"quick, 1 threads": {"steps_per_second": rates}}))
    assert row.by == {"landscape": "200 steps/s", "plain torch": "100 steps/s; fused Adam 160 steps/s"}


def test_what_ends_a_command() -> None:
    """Exit code 3 is a search that did not converge; any other is a failure of the benchmark."""
    numbers = commands._process(
        [sys.executable, "-c", "import os, sys; sys.exit(3 * (os.environ['OMP_NUM_THREADS'] == '1'))"], "."
    )
    assert not numbers["converged"]
    assert commands._process([sys.executable, "-c", ""], ".")["converged"]
    with pytest.raises(subprocess.CalledProcessError):
        commands._process([sys.executable, "-c", "import sys; sys.exit(1)"], ".")


def test_a_part_is_measured_again_for_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only a template changed; and the runs of either code are told apart."""
    (tmp_path / "landscape/report").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    template = tmp_path / "landscape/report/page.j2"
    template.write_text("old")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness.load, "__defaults__", (tmp_path / "results",))
    calls: list[str] = []
    one, two = (Part(name, lambda name=name: {"calls": calls.append(name)}) for name in ("one", "two"))
    slow = Part("slow", lambda: {"calls": calls.append("slow")}, slow=True)
    harness.measure("x", [one, slow], False, False)
    harness.measure("x", [one, slow], False, False)
    assert calls == ["one"]
    harness.measure("x", [one, slow], True, True)
    assert calls == ["one", "one", "slow"]
    template.write_text("new")
    results = harness.measure("x", [one, two], False, False)
    assert calls == ["one", "one", "slow", "one", "two"]
    places = {name: part["environment"] for name, part in results["parts"].items()}
    assert places["one"] == places["two"] != places["slow"]
    assert set(results["environments"]) == set(places.values())
    assert all(here["git_dirty"] for here in results["environments"].values())
