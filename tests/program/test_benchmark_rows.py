"""What the rows of docs/performance.md say of hand-made numbers, and when a part is measured again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, harness, products, training
from benchmarks.harness import Line, Numbers, Part


def only(lines: Any) -> Line:
    """The one line that there is."""
    (line,) = lines
    one: Line = line
    return one


@pytest.mark.parametrize(
    ("part", "seconds", "memory", "met"),
    [
        ("hessian", 24.0, 1e9, True),
        ("hessian", 24.1, 1e9, False),
        ("hessian 100", 600.0, 1e9, True),
        ("hessian 100", 601.0, 1e9, False),
        ("hessian paper", 100.0, 4e9, True),
        ("hessian paper", 100.0, 4.1e9, False),
    ],
)
def test_commands_are_judged_by_the_checkpoint_and_its_memory(
    part: str, seconds: float, memory: float, met: bool
) -> None:
    """Two, a hundred and one checkpoints are these commands' work."""
    line = only(commands.lines({part: {"seconds": seconds, "cpu": 1.0, "memory": memory, "converged": False}}))
    assert line.met == met
    assert line.result.endswith(", a search did not converge")


def test_a_product_must_be_so_many_times_as_fast() -> None:
    """And no slower than twice its own matrix products, which only the large preset says."""
    seconds = {"landscape": 1e-3, "PyHessian": 1.9e-3, "curvlinops": 3.1e-3, "GEMMs alone": 0.4e-3}
    numbers: Numbers = {
        "preset": "paper",
        "dtype": "float64",
        "flops": 1e9,
        "seconds": {tool: {"median": s} for tool, s in seconds.items()},
        "seconds_of_sixteen": {"at once": {"median": 1.0}, "one by one": {"median": 1.3}},
    }
    verdicts = {line.what: line.met for line in products.lines({"": numbers})}
    name = "one product, paper, float64, "
    assert verdicts == {
        f"{name}PyHessian": False,
        f"{name}curvlinops": True,
        f"{name}its GEMMs alone": False,
        "16 products at once, paper, against one by one": True,
    }
    assert len(list(products.lines({"": {**numbers, "preset": "quick", "dtype": "float32"}}))) == 2


@pytest.mark.parametrize(("apiece", "met"), [(30.0, True), (29.0, False)])
def test_seeds_at_once_are_compared_with_a_run_on_each_core(apiece: float, met: bool) -> None:
    numbers = {"members": 16, "seconds": {"ensemble": 10.0, "a_core_each": apiece}}
    line = only(training.lines({"ensemble": numbers}))
    assert (line.met, line.result) == (met, f"{apiece / 10:.1f}× (10 s against {apiece:.0f} s)")


def test_training_is_compared_with_the_plain_loop() -> None:
    rates = {"landscape": 200.0, "plain": 100.0, "plain_fused": 160.0}
    lines = list(training.lines({"quick, 1 threads": {"steps_per_second": rates}}))
    assert [line.met for line in lines] == [True, None]
    assert lines[1].result.startswith("1.25×")


def test_what_ends_a_command() -> None:
    """Exit code 3 is a search that did not converge; any other is a failure of the benchmark."""
    numbers = commands._process(
        [sys.executable, "-c", "import os, sys; sys.exit(3 * ('OMP_NUM_THREADS' not in os.environ))"], "."
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
