"""Tables fit the terminal, and lose nothing by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.hessians import HessianReader, analyse, refine

from landscape.cli import main as cli
from landscape.cli.tables import measurements
from landscape.config import AnalysisConfig, HessianConfig
from landscape.measure.tables import by_block, by_step


def test_a_table_folds_to_the_terminal(tiny_hessian: HessianReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns without room follow below, beside step and block: put side by side again they are the wide table."""
    monkeypatch.setenv("COLUMNS", "1000")
    wide, narrow = measurements(tiny_hessian), []
    assert len(wide.split("\n\n")) == 3
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        parts = measurements(tiny_hessian).split("\n\n")[:-1]
        assert all(len(line) <= columns for part in parts for line in part.splitlines())
        narrow.append(parts)
    first = wide.split("\n\n")[0].splitlines()
    folded = [part.splitlines() for part in narrow[0] if part.split()[1] == "block"]
    assert len(folded) > 1
    keys = re.match(r" *\S+ +\S+", first[-1])
    assert keys
    for i, line in enumerate(first):
        assert line == folded[0][i] + "".join(part[i][keys.end() :] for part in folded[1:])


def test_only_a_checkpoint_is_asked_for_its_gradient(
    tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path
) -> None:
    """The search for a critical point says itself how near it came."""
    asks = "an index belongs to a critical point: see |grad|"
    options = AnalysisConfig(device="cpu", k=2)
    searched = refine(tiny_run, 20, options, out=tmp_path / "c.h5", max_products=300, quiet=True)
    assert asks not in measurements(searched)
    assert asks in measurements(tiny_hessian)


def test_masses_say_that_there_are_more(tiny_hessian: HessianReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three parts are shown, and that those of a model with more do not add up to 1."""
    monkeypatch.setenv("COLUMNS", "1000")
    assert "  E/W/V/... mass\n" in measurements(tiny_hessian)


def test_the_lowest_eigenvalue_of_a_pair_is_starred_as_beside_its_block(tmp_path: Path, tiny_run: Path) -> None:
    """Few products, with which no search converges."""
    few = {"steps": "0", "blocks": ("E,W",), "method": "lanczos", "k": 1, "max_hvps": 5, "probes": 2}
    reader = analyse(tiny_run, HessianConfig(**few, device="cpu"), tmp_path / "few.hessian.h5", quiet=True)
    for table, title in ((by_block(reader), "lambda_min"), (by_step(reader), "lmin(E,W)")):
        assert table[1][table[0].index(title)].endswith("*")


def test_the_curvature_ratio_is_starred_as_its_blocks(tmp_path: Path, tiny_run: Path) -> None:
    """Where W alone has not converged, and not where another block has not; a dash has no star."""
    few = {"steps": "0", "method": "lanczos", "k": 1, "max_hvps": 5, "probes": 2, "device": "cpu"}
    reader = analyse(tiny_run, HessianConfig(**few, blocks=("E", "W")), tmp_path / "few.hessian.h5", quiet=True)
    for which, blocks, star in ((0, ["E", "W"], True), (1, ["E", "W"], True), (1, ["E", "V"], False)):
        reader.row(0)["converged"][:] = 1
        reader.row(0)["converged"][which, 1, 0] = 0
        reader.blocks[:] = blocks
        titles, cells = by_step(reader)
        assert cells[titles.index("curv. ratio")].endswith("*") == star
    alone = analyse(tiny_run, HessianConfig(**few, blocks=("E",)), tmp_path / "E.hessian.h5", quiet=True)
    assert "*" not in {cell for line in by_step(alone) for cell in line}


def test_the_tutorial_shows_columns_that_exist(tiny_hessian: HessianReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order."""
    monkeypatch.setenv("COLUMNS", "1000")
    page = (Path(__file__).parents[2] / "docs/first-run.md").read_text()
    [head] = [re.split("  +", line) for line in page.splitlines() if line.startswith("step  ")]
    titles = re.split("  +", measurements(tiny_hessian).splitlines()[0].strip())
    assert [title for title in titles if title in head] == head


def test_a_config_wraps_beside_its_name(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of `info` fit, names of datasets too, but for commands, which are copied whole."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["info", str(tiny_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  config"))
    assert "task=add" in lines[at]
    assert len(lines) > at + 3
    assert all(len(line) <= 80 for line in lines[1:] if "landscape train" not in line)
