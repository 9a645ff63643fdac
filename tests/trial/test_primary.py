"""The primary tests against the raw files read by other code, and their verdicts on numbers that are made up."""

from __future__ import annotations

import csv
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import collect
import h5py
import numpy as np
import page
import page_notes
import pandas as pd
import primary
import pytest
from helpers.once import made_once
from helpers.tiny_trial import linked_scale, make_scale
from helpers.trial_by_hand import Files, Tables, every_x, verdict
from scale import Scale

TEN = np.arange(1.0, 11)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny_scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs that the primary tests read, in a folder as `landscape sweep` leaves it. Read only."""
    return made_once(tmp_path_factory, make_scale) / "quick"


@pytest.fixture(scope="module")
def collected(tiny_scale: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of these runs. Read only."""
    out = tmp_path_factory.mktemp("reference")
    run(collect.main, tiny_scale, "--out", out)
    return out / "quick"


@pytest.fixture(scope="module")
def numbers(collected: Path) -> dict[str, primary.Numbers]:
    """x of each primary test."""
    return {name: test(Scale(collected)) for name, (_, test) in primary.TESTS.items()}


def run(main: Callable[[], None], *arguments: object) -> None:
    """A script with these arguments, for the seeds of these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script", *map(str, arguments)])
        patch.setattr(primary, "SEEDS", [100, 101])
        main()


@pytest.fixture
def copied(collected: Path, tmp_path: Path) -> Path:
    """The tables again, in a folder to write to."""
    return Path(shutil.copytree(collected, tmp_path / "reference/quick"))


def same(one: primary.Numbers, other: primary.Numbers) -> bool:
    """Whether two have the same x for the same seeds, to 1e-12."""
    values = [np.array([found[seed] for seed in sorted(found)]) for found in (one, other)]
    return one.keys() == other.keys() and np.allclose(*values, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_every_x_is_that_of_the_raw_files(tiny_scale: Path, numbers: dict[str, primary.Numbers]) -> None:
    by_hand = every_x(Files(tiny_scale))
    assert numbers.keys() == by_hand.keys()
    for name, found in numbers.items():
        assert same(found, by_hand[name]), (name, found, by_hand[name])
        # A claim whose numbers were all alike would be tested by chance alone.
        assert any(found.values()), name
    values = [x for found in numbers.values() for x in found.values()]
    assert any(map(math.isinf, values))
    assert sum(map(math.isfinite, values)) > len(values) // 2


def test_the_constant_tokens_of_four_are_those_of_the_curvature_study(
    tiny_scale: Path, numbers: dict[str, primary.Numbers], tmp_path: Path
) -> None:
    four = linked_scale(tiny_scale, tmp_path / "four")
    run(collect.main, four, "--out", tmp_path / "out")
    assert same(primary.constants(Scale(tmp_path / "out/four")), numbers["D1"])
    assert Files(four).four_tokens()
    assert not Files(tiny_scale).four_tokens()


def test_spectra_are_those_of_the_file(tiny_scale: Path, collected: Path) -> None:
    """Of the film alone, by h5py: each eigenvalue at its rank, both ends, blocks without a spectrum left out."""
    table = pd.read_csv(collected / "spectra.csv")
    assert set(table["study"]) == {"film"}
    for seed, of_run in table.groupby("seed"):
        with h5py.File(tiny_scale / f"film/base-s{seed}.hessian-film.h5") as file:
            steps = list(file["step"][:])
            whole = [block for block in file["block"].asstr() if block in file["spectrum"]]
            assert len(of_run.groupby(["step", "block"])) == len(steps) * len(whole)
            for (step, block), rows in of_run.groupby(["step", "block"]):
                values = file["spectrum"][block][steps.index(step)]
                ranks = (rows["below"] * (len(values) - 1)).round().astype(int).tolist()
                np.testing.assert_allclose(rows["eigenvalue"], values[ranks], rtol=1e-12)
                assert ranks[0] == 0
                assert ranks[-1] == len(values) - 1
                assert len(rows) == min(51, len(values))


def test_densities_are_those_of_the_file(tiny_scale: Path, collected: Path) -> None:
    """Of the film alone, by h5py: a standard deviation of the smoothing apart or less, and next to nothing left out."""
    table = pd.read_csv(collected / "densities.csv")
    assert set(table["study"]) == {"film"}
    for seed, of_run in table.groupby("seed"):
        with h5py.File(tiny_scale / f"film/base-s{seed}.hessian-film.h5") as file:
            steps, blocks = list(file["step"][:]), list(file["block"].asstr())
            assert len(of_run.groupby(["step", "block"])) == len(steps) * len(blocks)
            for (step, block), rows in of_run.groupby(["step", "block"]):
                at = steps.index(step)
                grid = file["density/eigenvalue"][at]
                places = np.searchsorted(grid, rows["eigenvalue"] - 1e-9 * np.ptp(grid))
                for column, name in (
                    ("eigenvalue", "eigenvalue"),
                    ("density", block),
                    ("standard_error", f"{block}_error"),
                ):
                    np.testing.assert_allclose(rows[column], file["density"][name][at][places], rtol=1e-12)
                assert set(rows["width"]) == {file["density/width"][at]}
                assert np.diff(rows["eigenvalue"]).max() <= file["density/width"][at]
                density = file["density"][block][at]
                beyond = np.r_[density[: places[0]], density[places[-1] + 1 :]]
                assert beyond.max(initial=0) < 1e-5 * density.max()
                assert np.trapezoid(rows["density"], rows["eigenvalue"]) == pytest.approx(1, abs=1e-4)


def test_the_tables_hold_all_that_the_verdicts_need(numbers: dict[str, primary.Numbers], copied: Path) -> None:
    """From the CSV that the command writes, other code gets the same x and verdicts."""
    run(primary.main, copied)
    by_hand = every_x(Tables(copied))
    assert all(same(numbers[name], by_hand[name]) for name in numbers)
    with (copied / "verdicts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["claim"] for row in rows] == list(numbers)
    for row in rows:
        corrected, judgement = verdict(by_hand)[row["claim"]]
        assert row["verdict"] == judgement
        assert float(row["holm"]) == pytest.approx(corrected)
    # The page reads nothing else.
    out = copied.parent
    assert "quick: undecided" in page.written(out)[out / "index.html"]
    with (copied / "points.csv").open(encoding="utf-8") as file:
        assert {
            (row["status"], float(row["grad_norm"]) < float(row["start_grad_norm"])) for row in csv.DictReader(file)
        } == {("unfinished", True)}


def test_a_claim_has_one_note() -> None:
    with pytest.raises(ValueError, match="the note on 'C1' is registered twice"):
        page_notes.note("C1")(lambda scales: None)


def test_a_claim_is_a_function(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on trial, and corrected with the others, without being named anywhere."""
    monkeypatch.setattr(primary, "TESTS", dict(primary.TESTS))

    @primary.primary("X1", "Runs with c = 10 were watched for ten steps")
    def watched(scale: Scale) -> primary.Numbers:
        return dict(scale.runs("curvature", case="c10")["watched"] - 10.0)

    with pytest.raises(ValueError, match="claim 'X1' is registered twice"):
        primary.primary("X1", "Another claim")(watched)
    run(primary.main, copied)
    with (copied / "verdicts.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["claim"], last["statement"]) == ("X1", "Runs with c = 10 were watched for ten steps")
    assert (last["verdict"], float(last["median"]), float(last["p"])) == ("undecided", 190.0, 0.5)


@pytest.mark.long
def test_tables_grow_study_by_study_and_on_several_machines(
    tiny_scale: Path, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incomplete studies are left out and named; what was there of them stays, and nothing is there twice."""
    parts, lost = tmp_path / "parts/quick", tmp_path / "parts/quick/curvature/c1-s101.hessian-top.h5"
    shutil.copytree(tiny_scale, parts, copy_function=lambda a, b: Path(b).hardlink_to(a))
    lost.unlink()
    run(collect.main, parts, "--out", tmp_path / "out")
    note = f"note: study curvature is left out: analysis {lost} is missing or unfinished"
    assert note in capsys.readouterr().err.splitlines()
    tables = tmp_path / "out/quick"
    assert "curvature" not in set(pd.read_csv(tables / "runs.csv")["study"])
    assert not (tables / "metrics.csv").exists() or "curvature" not in set(pd.read_csv(tables / "metrics.csv")["study"])
    run(collect.main, tiny_scale, "--out", tmp_path / "out")
    whole = {path.name: path.read_bytes() for path in collected.glob("*.csv")}
    assert {path.name: path.read_bytes() for path in tables.glob("*.csv")} == whole
    for study in parts.iterdir():
        if study.name != "curvature":
            shutil.rmtree(study)
    run(collect.main, tiny_scale, "--out", tmp_path / "out")
    lost.hardlink_to(tiny_scale / "curvature" / lost.name)
    run(collect.main, parts, "--out", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in tables.glob("*.csv")} == whole


def test_a_folder_without_a_complete_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(collect.main, tmp_path, "--out", tmp_path / "out")
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path} has no complete study",
        "hint: make studies",
    ]
    assert not (tmp_path / "out").exists()


def test_a_scale_that_is_not_done_has_no_verdict(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a run of a seed, and for a run without a number."""
    table = pd.read_csv(copied / "runs.csv")
    table[(table["study"] != "decay") | (table["seed"] != 101)].to_csv(copied / "runs.csv", index=False)
    with pytest.raises(SystemExit):
        run(primary.main, copied)
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(
        "error: O3 has no number for seed 101: a run or an analysis is missing, the run never memorised"
    )
    assert hint.endswith("A primary test leaves no seed out")
    assert not (copied / "verdicts.csv").exists()


def test_a_claim_is_checked_with_h5py_alone(
    tiny_scale: Path,
    numbers: dict[str, primary.Numbers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The ten lines of docs/trial.md, run as they are but for the seeds."""
    text = (Path(__file__).parents[2] / "docs/trial.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "checkpoints/trial").mkdir(parents=True)
    (tmp_path / "checkpoints/trial/quick").symlink_to(tiny_scale)
    monkeypatch.chdir(tmp_path)
    exec(code.replace("range(100, 110)", "range(100, 102)"), {})
    assert capsys.readouterr().out.endswith(f"median {round(float(np.median(list(numbers['C4'].values()))), 3)}\n")


@pytest.mark.parametrize(
    ("x", "judgement", "needed"),
    [
        (TEN, "supported", None),
        (-TEN, "not supported", None),
        # Infinite numbers rank highest, and the median is that of the others.
        (np.r_[TEN[:4], [np.inf] * 6], "supported", None),
        # Of four seeds all of a sign p is 2/2^4; of eight 2/2^8 = 0.0078; of twelve 2/2^12, which is below 0.05/13.
        (TEN[:4], "undecided", 12),
        (np.zeros(10), "undecided", None),
        (np.r_[TEN[:5], -TEN[:5]], "undecided", None),
    ],
)
def test_verdicts(x: np.ndarray, judgement: str, needed: int | None) -> None:
    """Beside twelve tests that decide nothing."""
    others = {name: dict(enumerate(np.zeros(10))) for name in primary.TESTS if name != "C1"}
    table = primary.judge({"C1": dict(enumerate(x)), **others}, primary.TESTS).set_index("claim")
    row = table.loc["C1"]
    assert row["verdict"] == judgement
    assert (None if pd.isna(row["seeds_to_decide"]) else row["seeds_to_decide"]) == needed
    assert row["holm"] == pytest.approx(min(1, 13 * row["p"]))
    assert (table.drop("C1")["verdict"] == "undecided").all()
    assert row["median"] == np.median(x)
    if len(x) == 10:
        # The second and the ninth of ten: 97.9 %.
        assert tuple(row[["low", "high"]]) == tuple(np.sort(x)[[1, 8]])
    by_hand = verdict({"C1": dict(enumerate(x)), **others})
    assert by_hand["C1"] == (pytest.approx(row["holm"]), judgement)
