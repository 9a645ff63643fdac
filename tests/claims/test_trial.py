"""The page of the verdicts, from studies of tiny networks: complete, linked and traceable; and without studies."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import c1_delay
import c2_rare_tokens
import c3_sampling_order
import c4_saddles
import c5_measures
import c7_balance
import c7_sweep
import c8_adam_lr
import evidence
import intervals
import open_curvature_rate
import pandas as pd
import pytest
import token_figures
import trial
from helpers.studies import STUDIES

from landscape import open_run
from landscape.config import preset
from landscape.storage.folders import record
from landscape.sweep.plan import SweepConfig, load_sweep, sweep_runs


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds that some of these networks reach, after their first steps; few resamples."""
    first = evidence.Run.first
    monkeypatch.setattr(evidence.Run, "first", lambda one, metric, least: max(first(one, metric, least), 5.0))
    monkeypatch.setattr(evidence, "MEMORISED", 0.4)
    monkeypatch.setattr(evidence, "GROKKED", 0.25)
    for module in (intervals, *map(import_module, trial.SCRIPTS)):
        monkeypatch.setattr(module, "RESAMPLES", 20, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("lenient")
def test_the_page_has_every_verdict_and_its_evidence(tiny_studies: Path, tmp_path: Path) -> None:
    """One row a verdict on both pages; what they link exists; the files behind them are named with their SHA-256."""
    stale, own = tmp_path / "c1_delay/old.png", tmp_path / "notes.txt"
    stale.parent.mkdir()
    stale.write_text("of another day")
    record(tmp_path, [stale])
    own.write_text("mine")
    verdicts = trial.trial(tiny_studies, tmp_path, quiet=True)
    assert not stale.exists()
    assert own.exists()

    html, text = ((tmp_path / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "md"))
    # The tables of the text have their own header.
    rows = text.split("\n|---|---|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == html.split("</table>")[0].count("<tr><td>") == len(verdicts) > len(trial.SCRIPTS)
    for row, verdict in zip(rows, verdicts, strict=True):
        said = [verdict.claim, f"**{verdict.judgement}**", verdict.statement, verdict.number, str(verdict.seeds)]
        # A bar in a cell is one with a backslash.
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)]
        assert cells[1:6] == said
    claims = [verdict.claim for verdict in verdicts]
    assert claims == sorted(claims)
    assert {*claims} >= {f"C{i}" for i in range(1, 10)}

    links = {*re.findall(r"\]\(([^)]+)\)", text), *re.findall(r'(?:src|href)="([^"#][^"]*)"', html)}
    local = {link for link in links if not link.startswith("https://")}
    assert all((tmp_path / link).stat().st_size for link in local)
    written = {str(path.relative_to(tmp_path)) for name in trial.SCRIPTS for path in (tmp_path / name).iterdir()}
    assert written | {"files.csv"} == local, "nothing is written that no page shows"
    assert set(re.findall(r'id="(\w+)"', html)) == set(re.findall(r'href="#(\w+)"', html)) == set(trial.SCRIPTS)
    assert not re.search(r"\bnan\b|\binf\b", text)
    assert "**" not in html

    files = pd.read_csv(tmp_path / "files.csv").set_index(["study", "file"])
    for (study, name), row in files.iterrows():
        assert row["sha256"] == hashlib.sha256((tiny_studies / study / name).read_bytes()).hexdigest()
    planned = [
        path
        for definition in tiny_studies.glob("*/sweep.json")
        for run in sweep_runs(load_sweep(definition), tiny_studies)
        for path in run.files
    ]
    assert sorted(files.index) == sorted((path.parent.name, path.name) for path in planned)
    with open_run(planned[0]) as data:
        row = files.loc[(planned[0].parent.name, planned[0].name)]
        assert (row["run_id"], row["torch_version"]) == (data.attrs["run_id"], data.attrs["torch_version"])


def test_markdown_of_the_texts_in_html() -> None:
    """Bold, italics, code and tables; what looks like a tag is text."""
    assert trial.to_html("**W < E.** *So* it `is`.") == "<p><b>W &lt; E.</b> <i>So</i> it <code>is</code>.</p>"
    table = trial.to_html("| a | b |\n|---|---|\n| 1 | 2 |").replace("\n", "")
    assert table == "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"


@pytest.mark.parametrize("main", [trial.main, lambda: evidence.run("c1_delay", import_module("c1_delay").claim)])
def test_without_studies_it_says_how_to_make_them(
    main: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study that is missing ends in exit code 1 and a hint, and no page is written."""
    monkeypatch.setattr(sys, "argv", ["script", "--runs", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        sys.exit(main())
    assert stop.value.code == 1
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith(f"error: {tmp_path / 'none/delay/sweep.json'} is missing")
    assert hint == "hint: make studies"
    assert not (tmp_path / "out/report.md").exists()


def sweeps(folder: Path) -> dict[str, SweepConfig]:
    """The sweeps of a folder by the name of their file."""
    return {path.stem: load_sweep(path) for path in sorted(folder.glob("*.json"))}


def of_any_size(sweep: SweepConfig) -> set[str]:
    """The cases of a sweep, a hidden width as a multiple of the preset's."""
    base = preset(sweep.preset).hidden
    widths = {case: int(case[1:]) for case in sweep.cases if re.fullmatch(r"h\d+", case)}
    assert all(sweep.cases[case] == {"hidden": width} for case, width in widths.items())
    return {f"h x {widths[case] / base:g}" if case in widths else case for case in sweep.cases}


def test_the_paper_s_sizes_have_the_same_studies() -> None:
    """Both folders hold the same studies, cases, grids and analyses, every run of which can be."""
    ours, papers = sweeps(STUDIES), sweeps(STUDIES / "paper")
    assert ours.keys() == papers.keys()
    for name, sweep in ours.items():
        other = papers[name]
        assert sweep.name == other.name == name
        assert (sweep.preset, other.preset) == ("quick", "paper")
        assert of_any_size(sweep) == of_any_size(other)
        assert (sweep.grid, sweep.seeds) == (other.grid, other.seeds)
        assert len(sweep_runs(sweep)) == len(sweep_runs(other))
        for mine, theirs in zip(sweep.analyses, other.analyses, strict=True):
            assert (mine.name, mine.cases, mine.blocks) == (theirs.name, theirs.cases, theirs.blocks)
            assert (mine.objective, mine.refine_from is None) == (theirs.objective, theirs.refine_from is None)


@pytest.mark.parametrize("folder", [STUDIES, STUDIES / "paper"], ids=["quick", "paper"])
def test_studies_have_what_the_scripts_name(folder: Path) -> None:
    """Every study, case, grid value and analysis that a script asks for is there."""
    known = sweeps(folder)
    assert known.keys() >= {*c7_balance.STUDIES, *c7_sweep.STUDIES.values()}
    for study, named in {
        "delay": {*c1_delay.NAMES, *c1_delay.PAIRS, *c1_delay.PAIRS.values()},
        "mechanism": set(c4_saddles.NAMES),
        "curvature": set(c5_measures.CASES),
        "policies": {*c8_adam_lr.NAMES, *open_curvature_rate.NAMES},
        "prop41": {"balanced"},
        "sampling": {"decay", "nodecay"},
    }.items():
        assert named <= known[study].cases.keys()
    assert c1_delay.NAMES.keys() == known["delay"].cases.keys()
    assert c8_adam_lr.NAMES.keys() == c8_adam_lr.LINES.keys() == known["policies"].cases.keys()
    grid = known["sampling"].grid
    assert [str(size) for size in grid["batch_size"]] == token_figures.BATCHES
    assert {*c2_rare_tokens.ACTING, *sum(c3_sampling_order.ORDER, ())} <= set(grid["sampler"])
    assert set(grid["sampler"]) == token_figures.sampler_looks().keys()
    assert all({1.0, 10.0} <= set(known[study].grid["lr_ratio"]) for study in c7_sweep.STUDIES.values())
    assert known["decay"].grid.keys() == {"weight_decay", "skew"}
    analyses = {study: {one.name: one for one in known[study].analyses} for study in known}
    assert all("top" in analyses[study] for study in ("curvature", "ratios"))
    for name, analysis in analyses["mechanism"].items():
        of_a_path = {case for case, names in c4_saddles.PATH.items() if name in names}
        assert (set(analysis.cases) == of_a_path) != (name in c4_saddles.REFINED)
        assert (name in c4_saddles.REFINED) == (analysis.refine_from is not None)
    assert analyses["mechanism"].keys() == {*sum(c4_saddles.PATH.values(), c4_saddles.REFINED)}
