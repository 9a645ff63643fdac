"""What is committed of the trial, again from its tables: verdicts by other code, all else by the scripts."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import article
import numpy as np
import pandas as pd
import pytest
import tables
import verdicts
from claims import CLAIMS
from helpers.primary_by_hand import every_primary_x
from helpers.tiny_trial import STUDIES, run
from helpers.trial_by_hand import Tables, every_x, log_ratio, verdict
from primary import PRIMARY, READS
from tables import REFERENCE, SIZES, Scale, which

import landscape

X = dict[str, dict[int, float]]


def read(scale: str, table: str, **known: object) -> pd.DataFrame:
    return which(pd.read_csv(REFERENCE / scale / f"{table}.csv"), **known)


def assert_verdicts(scale: str, x: X, files: tuple[str, str] = ("verdicts", "seeds")) -> None:
    """The numbers and verdicts that are committed are these, corrected together."""
    table, each = (read(scale, name) for name in files)
    for row in each[each["claim"].isin(x)].itertuples():
        assert np.isclose(x[row.claim][row.seed], row.x, rtol=1e-12, atol=1e-12), row
    assert (each["claim"].isin(x)).sum() == 10 * len(x)
    for name, (corrected, judgement) in verdict(x).items():
        (row,) = table[table["claim"] == name].to_dict("records")
        assert row["verdict"] == judgement, row
        assert np.isclose(row["holm"], corrected)
        assert np.isclose(row["median"], np.median(list(x[name].values())))


@pytest.mark.parametrize("name", SIZES)
def test_verdicts_follow_from_the_committed_tables(name: str) -> None:
    assert_verdicts(name, every_x(Tables(REFERENCE / name)))


@pytest.mark.parametrize("name", ["quick", "paper"])
def test_verdicts_of_runs_trained_again_follow_from_their_x(name: str) -> None:
    x = {claim: dict(zip(of["seed"], of["x"], strict=True)) for claim, of in read(name, "again-seeds").groupby("claim")}
    assert_verdicts(name, x, ("again", "again-seeds"))
    assert (read(name, "seeds")["x"] != read(name, "again-seeds")["x"]).any()


def test_primary_verdicts_follow_from_the_committed_tables() -> None:
    x = every_primary_x(REFERENCE)
    table = pd.read_csv(REFERENCE / "tables/primary.csv").set_index(["test", "size"])
    each = pd.read_csv(REFERENCE / "tables/primary-seeds.csv")
    assert len(table) == len(x) == 24
    assert len(each) == sum(map(len, x.values()))
    for row in each.itertuples():
        at = "both" if row.test in ("P6", "P7") else row.size
        assert np.isclose(x[row.test, at][row.size, row.seed], row.x, rtol=1e-9, atol=1e-12), row
    for key, (corrected, judgement) in verdict(x).items():
        assert table.loc[key, "verdict"] == judgement, key
        assert table.loc[key, "holm"] == pytest.approx(corrected)


def over(one: pd.DataFrame, other: pd.DataFrame) -> dict[int, float]:
    """By seed, how much later one groks than the other."""
    of = {name: rows.set_index("seed")["grokked"].fillna(np.inf) for name, rows in (("one", one), ("other", other))}
    return {seed: log_ratio(row.one, row.other) for seed, row in pd.DataFrame(of).iterrows()}


def deeper(scale: str, one: str, other: str, **known: str) -> dict[int, float]:
    lowest = read(scale, "curvature", **known).pivot(index="seed", columns="block", values="lowest")
    return np.log(lowest[one] / lowest[other]).to_dict()


def lower(scale: str, *runs: tuple[str, str]) -> dict[int, float]:
    """By seed, how much lower the test loss of the second case comes."""
    one, other = (read(scale, "losses", study=s, case=c).groupby("seed")["test_loss"].min() for s, c in runs)
    return (one - other).to_dict()


def test_verdicts_on_other_networks_that_the_article_names_follow_from_the_committed_tables() -> None:
    """Their x alone: families have other tests, too."""
    runs = [read("transformer", "runs", study="curvature", case=case) for case in ("c1", "c10")]
    events = read("transformer", "lags").pivot(index="seed", columns="event", values="step")
    pair = ("E,mlp_in", "mlp_in,mlp_out")
    expected = {
        ("transformer", "T1"): deeper("transformer", *pair, study="curvature", case="c1", analysis="plateau"),
        ("transformer", "T2"): over(*runs),
        ("transformer", "G1"): np.log(events["half"] / events["frequency"]).to_dict(),
        ("text", "N3"): lower("text", ("words", "decay"), ("rates", "prop41")),
        ("text", "N4"): deeper("text", "E,W", "W,V", study="curvature", analysis="middle"),
        ("text-transformer", "N5"): deeper("text-transformer", *pair, study="curvature", analysis="middle"),
        ("text-transformer", "N6"): lower("text-transformer", ("rates", "c1"), ("rates", "c10")),
    }
    for (scale, name), x in expected.items():
        table, each = ("beyond", "beyond-seeds") if name == "G1" else ("verdicts", "seeds")
        committed = read(scale, each, claim=name).set_index("seed")["x"]
        assert committed.to_dict() == pytest.approx(x), name
        assert float(read(scale, table, claim=name)["median"].iloc[0]) == pytest.approx(float(np.median(committed)))


@pytest.mark.long
def test_the_command_writes_the_committed_verdicts(tmp_path: Path) -> None:
    root = Path(shutil.copytree(REFERENCE, tmp_path / "reference"))
    files = [root / size / f"{name}.csv" for size in SIZES for name in ("verdicts", "seeds")]
    files += root.glob("tables/primary*.csv")
    before = {path: path.read_bytes() for path in files}
    for path in before:
        path.unlink()
    run(verdicts.main, root)
    assert {path: path.read_bytes() for path in files} == before


@pytest.mark.parametrize("script", [name for name in article.SCRIPTS if name.startswith("table")])
def test_tables_are_those_of_the_committed_rows(script: str, tmp_path: Path) -> None:
    name = script.partition("_")[2]
    path = tables.write(importlib.import_module(script).table(REFERENCE), name, tmp_path)
    assert path.read_bytes() == (REFERENCE / f"tables/{name}.csv").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("script", [name for name in article.SCRIPTS if name.startswith("figure")])
def test_figures_are_drawn(script: str, tmp_path: Path) -> None:
    """Curves or points in every panel, and words as text; the same numbers make the same bytes."""
    tables.look()
    drawn = importlib.import_module(script).figure(REFERENCE)
    assert all(axis.lines or axis.collections for axis in drawn.axes)
    path = tables.write(drawn, script, tmp_path)
    texts = [of.text for of in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    committed = ElementTree.parse(REFERENCE / f"figures/{script.partition('_')[2]}.svg")
    assert texts == [of.text for of in committed.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.long
def test_the_article_is_filled_from_the_tables(tmp_path: Path) -> None:
    """It is the committed one, short enough, with every figure; HTML and PDF are printed from it."""
    root = Path(shutil.copytree(REFERENCE, tmp_path / "reference"))
    run(article.main, root)
    text = (root / "article.md").read_text(encoding="utf-8")
    assert text == (REFERENCE / "article.md").read_text(encoding="utf-8")
    assert article.words(text) <= 3500
    # MyST leaves such lines out.
    assert not re.search(r"^ *%", text, re.MULTILINE)
    places = re.findall(r"\]\(((?:tables|figures)/[^)]*)\)", text)
    assert {path.name for path in (root / "figures").iterdir()} <= {Path(place).name for place in places}
    assert all((root / place).exists() for place in places)
    assert "P13" in (root / "article.html").read_text(encoding="utf-8")
    assert (root / "article.pdf").read_bytes().startswith(b"%PDF")


GRID = ("0.00064", "0.156", "2.44", "2.5")
"""Ends and step of the grid of rates."""


def test_the_words_of_the_article_hold_no_number_of_their_own() -> None:
    """Effects, intervals and counts are looked up: beside them stand settings alone, such as a weight decay."""
    template = (Path(article.__file__).with_name("article.md.j2")).read_text(encoding="utf-8")
    looked_up = r"\{[{%].*?[}%]\}|\d{4}\.\d{5}|Proposition 4\.1"
    prose = re.sub(looked_up, "", template, flags=re.DOTALL)
    assert set(re.findall(r"\d+\.\d+", prose)) <= {"0.8", "0.0002", "0.001", "0.01", "97.9", *GRID}
    assert not re.findall(r"× ?\d|\d+ of (?:\d|ten)|\[[-−\d]", prose)


@dataclasses.dataclass(frozen=True)
class Watched(Scale):
    """A size that keeps which studies were asked for."""

    asked: set[object] = dataclasses.field(default_factory=set)

    def rows(self, table: str, **known: object) -> pd.DataFrame:
        self.asked.add(known.get("study", table))
        return super().rows(table, **known)


def asked(names: dict[str, set[object]], size: str) -> set[object]:
    """The studies that tests read, by the folder of their definitions."""
    scale = Watched(REFERENCE / size)
    for test in names.values():
        test.x(scale)
    return scale.asked


@pytest.mark.parametrize("size", SIZES)
def test_make_studies_makes_what_the_tests_read_and_no_more(size: str) -> None:
    assert asked(CLAIMS, size) == {path.stem for path in (STUDIES / size / "claims").glob("*.json")}
    if size != "paper":
        studies = {path.stem for path in (STUDIES / size / "article").glob("*.json")}
        # `fork` says along what the runs of `cut` are moved.
        assert asked(PRIMARY, size) == set(READS) == studies - {"fork"}


def test_every_claim_is_in_the_protocol_and_every_study_is_one() -> None:
    protocol = (STUDIES / "PROTOCOL.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\| {name} \|", protocol, re.MULTILINE) for name in [*CLAIMS, *PRIMARY])
    for path in STUDIES.rglob("*.json"):
        study = json.loads(path.read_text())
        assert landscape.load_sweep(path).name == study["name"] == path.stem
