"""Figures and pages: what is drawn is what the files hold."""

from __future__ import annotations

import dataclasses
import html
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from conftest import TINY
from helpers.hessians import HessianReader, analyse
from helpers.once import made_once
from helpers.recording import small
from helpers.run_files import poison

from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.files.files import sha256
from landscape.files.inspect import inspect
from landscape.files.runs import RunReader
from landscape.measure.geometry import measure_geometry
from landscape.measure.tables import Table, by_block, by_step, filled
from landscape.report.figures import FAMILIES
from landscape.report.figures.coupling import power_law
from landscape.report.figures.sources import NotDrawnError, open_sources
from landscape.report.page import write_report
from landscape.report.style import save_figure, style
from landscape.text import markdown
from landscape.training.loop import train
from landscape.training.recorder import Recorder

ROOT = Path(__file__).parents[2]


def two_seeds(folder: Path) -> None:
    """Files and a report of three of them."""
    for seed in (0, 1):
        train(dataclasses.replace(TINY, seed=seed), folder / f"seed{seed}.h5", quiet=True)
    train(dataclasses.replace(TINY, model="onehot"), folder / "onehot.h5", quiet=True)
    analyse(folder / "seed0.h5", HessianConfig(), quiet=True)
    measure_geometry(folder / "seed0.h5")
    with Recorder(folder / "recorded.h5", small(), seed=0) as recorder:
        for step in range(9):
            recorder.metrics(step, margin=step**2)
    write_report([folder / name for name in ("seed0.h5", "seed1.h5", "recorded.h5")], folder / "out", quiet=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, one of them analysed, a one-hot run, and one that was recorded. Read only."""
    return made_once(tmp_path_factory, two_seeds)


@pytest.fixture(scope="module")
def report(files: Path) -> Path:
    """The report of both seeds, and of the recorded run. Read only."""
    return files / "out"


@pytest.mark.parametrize("table", [by_block, by_step])
def test_quantities_are_in_the_tables(report: Path, files: Path, table: Callable[[HessianReader], Table]) -> None:
    """Those of blocks, and those of pairs and checkpoints."""
    lines = table(HessianReader(files / "seed0.hessian.h5"))
    lines = filled(lines) if table is by_step else lines
    plain, page = ((report / name).read_text() for name in ("report.md", "report.html"))
    assert len(lines) > 2
    for cells in lines:
        assert f"| {' | '.join(map(markdown, cells))} |\n" in plain
        start, end = ("<th>", "</th>") if cells is lines[0] else ("<td>", "</td>")
        assert "".join(f"{start}{html.escape(cell)}{end}" for cell in cells) in page


@pytest.mark.parametrize("family", FAMILIES)
def test_every_figure_has_four_formats_and_real_content(report: Path, family: str) -> None:
    """PNG, PDF, SVG and a CSV with rows; the PNG is small enough for git and not blank."""
    from PIL import Image

    paths = {form: report / "figures" / f"{family}.{form}" for form in ("png", "pdf", "svg", "csv")}
    assert all(path.stat().st_size > 0 for path in paths.values())
    assert paths["png"].stat().st_size < 200_000
    with Image.open(paths["png"]) as image:
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20
        assert image.width > 700
    assert paths["pdf"].read_bytes().startswith(b"%PDF")
    assert len(pd.read_csv(paths["csv"])) > 0


def test_csv_holds_the_files_numbers(report: Path, files: Path) -> None:
    """Each family's CSV repeats the HDF5 values."""
    result = HessianReader(files / "seed0.hessian.h5")
    csv = {name: pd.read_csv(report / "figures" / f"{name}.csv") for name in FAMILIES}
    with RunReader(files / "seed1.h5") as reader:
        metrics, tokens = reader.metrics(), reader.tokens()
    mine = csv["training_curves"][csv["training_curves"]["run"] == "seed1 (seed 1)"]
    np.testing.assert_allclose(mine["test_loss"], metrics["test_loss"], rtol=1e-12)
    mine = csv["prop41_ratio"][csv["prop41_ratio"]["run"] == "seed1 (seed 1)"]
    np.testing.assert_allclose(mine["prop41_ratio"], metrics["prop41_ratio"], rtol=1e-12)
    mine = csv["embedding_norms"][csv["embedding_norms"]["run"] == "seed1 (seed 1)"]
    np.testing.assert_allclose(mine["embedding_norm"], tokens["embedding_norm"].ravel(), rtol=1e-12)
    assert csv["recorded_metrics"]["value"].tolist() == [step**2 for step in range(9)]
    step = 60
    row = result.row(step)
    for i, block in enumerate(result.blocks):
        for name, columns in (("extreme_eigenvalues", ("lambda_min", "lambda_max")), ("saddle_index", ())):
            table = csv[name]
            line = table[(table["step"] == step) & (table["block"] == block)].iloc[0]
            for end, column in enumerate(columns):
                assert line[column] == pytest.approx(row["eigenvalues"][i, end, 0], rel=1e-12)
            if name == "saddle_index":
                assert line["saddle_index"] == row["inertia"][i, 0]
                assert line["tolerance"] == pytest.approx(row["inertia_tolerance"][i], rel=1e-12)
    table = csv["coupling_ratios"]
    line = table[(table["step"] == step) & (table["pair"] == "E,W")].iloc[0]
    assert line["kappa_1"] == pytest.approx(row["coupling_ratios"][0, 0], rel=1e-12)
    assert csv["ratios"].set_index("step").loc[step, "curvature_ratio"] == pytest.approx(row["curvature_ratio"])
    spectrum = csv["spectra"]
    drawn = spectrum[(spectrum["step"] == step) & (spectrum["block"] == "E,W")]["eigenvalue"]
    np.testing.assert_allclose(drawn, result.spectra(step)["E,W"], rtol=1e-12)


def test_pages_stand_alone(report: Path, files: Path) -> None:
    """No link leaves the page; every image of the Markdown page exists; the numbers are the file's."""
    html, markdown = (report / "report.html").read_text(), (report / "report.md").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    assert html.count("data:image/png;base64,") == len(FAMILIES)
    links = re.findall(r"\]\(([^)]+)\)", markdown)
    assert len(links) == 2 * len(FAMILIES)
    assert all((report / link).is_file() for link in links)
    row = HessianReader(files / "seed0.hessian.h5").row(60)
    for page in (html, markdown):
        assert f"{row['eigenvalues'][0, 1, 0]:.6g}" in page
        assert "3 runs, 2 seeds" in page
        # On the page of its own, what a fact says shows under the pointer.
        assert re.search(r"\((?:<abbr [^>]+>)?F0(?:</abbr>)?\)", page)
        assert "docs/theory.md" in page
        with RunReader(files / "seed0.h5") as reader:
            assert reader.attrs["run_id"] in page


@pytest.mark.usefixtures("every_format")
def test_same_files_same_svg(files: Path, tmp_path: Path) -> None:
    """Figures are reproducible to the byte."""
    with style():
        for name in ("a", "b"):
            drawn = FAMILIES["ratios"](open_sources([files / "seed0.h5"]))
            save_figure(drawn.figure, drawn.data, tmp_path, name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_power_law_is_exact_on_exact_data() -> None:
    """y = 3 x^1.7 gives slope 1.7, factor 3, R^2 1; two points give no fit."""
    x = np.geomspace(0.1, 100, 9)
    fit = power_law(x, 3 * x**1.7)
    assert fit is not None
    assert (fit.slope, fit.factor, fit.r_squared) == pytest.approx((1.7, 3.0, 1.0))
    assert fit.half_width == pytest.approx(0, abs=1e-6)
    assert power_law(x[:2], x[:2]) is None


def test_slope_interval_covers(tmp_path: Path) -> None:
    """The 95 % interval of the slope holds the true slope in about 95 % of 400 noisy samples."""
    rng = np.random.default_rng(0)
    x = np.geomspace(1, 100, 12)
    fits = [power_law(x, 2 * x**0.9 * np.exp(0.3 * rng.standard_normal(12))) for _ in range(400)]
    held = sum(abs(fit.slope - 0.9) <= fit.half_width for fit in fits if fit)
    assert 366 <= held <= 394


def test_run_without_a_hessian_file(files: Path, tmp_path: Path) -> None:
    """Training figures are drawn, the others say why not."""
    lonely = Path(shutil.copy(files / "seed1.h5", tmp_path / "lonely.h5"))
    page = write_report([lonely], tmp_path / "r", quiet=True).with_name("report.md").read_text()
    drawn = {p.stem for p in (tmp_path / "r" / "figures").glob("*.png")}
    assert drawn == {"training_curves", "prop41_ratio", "embedding_norms"}
    assert "Not drawn: no Hessian file given holds eigenvalues." in page


def test_hessian_file_alone(files: Path, tmp_path: Path) -> None:
    """A Hessian file without its run still gives its own figures."""
    alone = Path(shutil.copy(files / "seed0.hessian.h5", tmp_path / "moved.hessian.h5"))
    write_report(alone, tmp_path / "r", quiet=True)
    drawn = {p.stem for p in (tmp_path / "r" / "figures").glob("*.png")}
    of_runs = {"training_curves", "recorded_metrics", "prop41_ratio", "embedding_norms"}
    assert drawn == set(FAMILIES) - of_runs - {"fourier_shares", "embedding_circles", "geometry_progress", "timeline"}


def test_one_hot_run_has_no_embedding_figures(files: Path) -> None:
    """What needs E is not drawn for a model without one, and says so."""
    sources = open_sources([files / "onehot.h5"])
    for family in ("prop41_ratio", "embedding_norms"):
        with pytest.raises(NotDrawnError, match="no run file given holds"):
            FAMILIES[family](sources)


def test_pairing_by_run_id(files: Path, tmp_path: Path) -> None:
    """Run and Hessian file find each other in any order; a foreign or altered neighbour is not taken silently."""
    run, hessian = files / "seed0.h5", files / "seed0.hessian.h5"
    for order in ([run, hessian], [hessian, run], [run], [hessian]):
        (source,) = open_sources(order)
        assert (source.run, source.hessian) == (run, hessian)
        assert source.mismatch is None
    stranger = Path(shutil.copy(files / "seed1.h5", tmp_path / "s.h5"))
    shutil.copy(hessian, tmp_path / "s.hessian.h5")
    assert open_sources([stranger])[0].hessian is None
    altered = Path(shutil.copy(run, tmp_path / "a.h5"))
    shutil.copy(hessian, tmp_path / "a.hessian.h5")
    step = HessianReader(hessian).steps[0]
    poison(altered, step)
    wrong = f"step {step} was measured at another checkpoint than {altered} holds"
    assert open_sources([altered])[0].mismatch == f"a.hessian.h5: {wrong}"
    assert wrong in inspect(tmp_path / "a.hessian.h5").notes
    stranger.replace(altered)
    assert any("it is of run" in note for note in inspect(tmp_path / "a.hessian.h5").notes)
    altered.write_bytes(b"nothing")
    assert any(note.startswith(f"{altered} ") for note in inspect(tmp_path / "a.hessian.h5").notes)


def test_a_run_that_went_on_is_still_the_one_that_was_analysed(tmp_path: Path) -> None:
    """More steps change the bytes of the run file and none of the checkpoints that were measured."""
    run = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, steps=40), run, quiet=True)
    path = analyse(run, HessianConfig(blocks=("E",), device="cpu"), quiet=True).path
    notes = inspect(path).notes
    train(TINY, run, resume=True, quiet=True)
    assert sha256(run) != HessianReader(path).attrs["parent_sha256"]
    assert open_sources([run])[0].mismatch is None
    assert inspect(path).notes == notes


def test_reports_are_not_overwritten(files: Path, report: Path, tmp_path: Path) -> None:
    """An existing report stays unless --overwrite is given; then it is replaced whole."""
    copy = tmp_path / "copy"
    shutil.copytree(report, copy)
    stamp = (copy / "report.html").stat().st_mtime_ns
    with pytest.raises(FileError, match="exists"):
        write_report([files / "seed0.h5"], copy, quiet=True)
    assert (copy / "report.html").stat().st_mtime_ns == stamp
    write_report([files / "seed1.h5"], copy, overwrite=True, quiet=True)
    assert (copy / "report.html").read_bytes() != (report / "report.html").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_a_script(
    family: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It draws its family from files and prints its numbers and paths."""
    script = ROOT / "analyses" / f"{family}.py"
    run = files / ("recorded.h5" if family == "recorded_metrics" else "seed0.h5")
    monkeypatch.setattr(sys, "argv", [str(script), str(run), "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr().out
    assert str(tmp_path / f"{family}.csv") in said
    assert "seed 0" in said


def test_a_script_runs_alone(files: Path, tmp_path: Path) -> None:
    """In a process of its own, without a warning; a missing file ends in error and hint."""
    command: list[Any] = [sys.executable, "-W", "error", ROOT / "analyses" / "saddle_index.py", "--out", tmp_path]
    drawn = subprocess.run([*command, files / "seed0.h5"], capture_output=True, text=True)
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert str(tmp_path / "saddle_index.csv") in drawn.stdout
    missing = subprocess.run([*command, "none.h5"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert re.fullmatch(r"error: none.h5 does not exist\nhint: .*\n", missing.stderr)


def test_a_script_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is a usage error."""
    script = str(ROOT / "analyses" / "saddle_index.py")
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(script, run_name="__main__")
    assert stop.value.code == 2


def test_a_step_that_is_not_committed_is_not_drawn(run_file: Path, tmp_path: Path) -> None:
    """Rows of spectra and densities are written before that of their step, which a killed analysis may lack."""
    hessian = run_file.with_name("run.hessian.h5")
    config = HessianConfig(blocks=("E", "W", "E,W"), steps="0,20", k=1, probes=2, device="cpu")
    analyse(run_file, config, quiet=True)
    pages = []
    for gone in (1, 2):
        with h5py.File(hessian, "r+") as file:
            file["crc32"][-gone:] = 0
        page = write_report(run_file, tmp_path / f"without-{gone}", quiet=True).parent
        pages.append({path.stem for path in (page / "figures").glob("*.csv")})
        assert "training_curves" in pages[-1]
    spectra = pd.read_csv(tmp_path / "without-1" / "figures" / "densities.csv")
    assert set(spectra["step"]) == {0}
    assert "densities" in pages[0] - pages[1]
