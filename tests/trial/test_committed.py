"""What is committed of the trial, again from its tables: verdicts by other code, tables and figures by the scripts."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import page
import pandas as pd
import pytest
import tables
import verdicts
from claims import CLAIMS, FAMILIES
from helpers.tiny_trial import STUDIES, run
from helpers.trial_by_hand import Tables, every_x, log_ratio, verdict
from scipy import stats
from tables import REFERENCE, SCALES, SIZES, Scale, which

import landscape

X = dict[str, dict[int, float]]
SCRIPTS = [name for names in page.PAGE.values() for name in names]


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


def grokked(rows: pd.DataFrame) -> pd.Series:
    return rows.set_index("seed")["grokked"].fillna(np.inf)


def over(one: pd.DataFrame, other: pd.DataFrame) -> dict[int, float]:
    """By seed, how much later one groks than the other."""
    of = {"one": grokked(one), "other": grokked(other)}
    return {seed: log_ratio(row.one, row.other) for seed, row in pd.DataFrame(of).iterrows()}


def cost_of_skew(runs: pd.DataFrame) -> dict[int, float]:
    """The mean over batches of 64 and 512; what never grokked counts with the steps that it was watched."""
    at = runs.assign(at=runs["grokked"].fillna(runs["watched"])).set_index(["seed", "batch_size", "sampler"])["at"]
    logs = np.log(at.astype(float)).unstack("sampler")
    return (logs["skewed"] - logs["uniform"]).groupby("seed").mean().to_dict()


def deeper(scale: str, one: str, other: str, **known: str) -> dict[int, float]:
    lowest = read(scale, "curvature", **known).pivot(index="seed", columns="block", values="lowest")
    return np.log(lowest[one] / lowest[other]).to_dict()


def correlation(tokens: pd.DataFrame) -> pd.Series:
    """By seed, of the ranks of counts and norms."""
    by_seed = {
        s: np.corrcoef(*map(stats.rankdata, (of["count"], of["norm"])))[0, 1] for s, of in tokens.groupby("seed")
    }
    return pd.Series(by_seed)


def lowest_loss(scale: str, study: str, case: str) -> pd.Series:
    return read(scale, "losses", study=study, case=case).groupby("seed")["test_loss"].min()


def test_verdicts_on_transformers_follow_from_the_committed_tables() -> None:
    runs = {case: read("transformer", "runs", study="curvature", case=case) for case in ("c1", "c10")}
    plateau = {"study": "curvature", "case": "c1", "analysis": "plateau"}
    assert_verdicts(
        "transformer",
        {
            "T1": deeper("transformer", "E,mlp_in", "mlp_in,mlp_out", **plateau),
            "T2": over(runs["c1"], runs["c10"]),
            "T3": cost_of_skew(read("transformer", "runs", study="sampling")),
        },
    )


def test_verdicts_on_text_follow_from_the_committed_tables() -> None:
    rho = {case: correlation(read("text", "words", case=case)) for case in ("decay", "none", "large")}
    prop41 = lowest_loss("text", "words", "decay") - lowest_loss("text", "rates", "prop41")
    middle = {"study": "curvature", "analysis": "middle"}
    assert_verdicts(
        "text",
        {
            "N1": (rho["decay"] - rho["none"]).to_dict(),
            "N2": (rho["decay"] - rho["large"]).to_dict(),
            "N3": prop41.to_dict(),
            "N4": deeper("text", "E,W", "W,V", **middle),
        },
    )
    c10 = lowest_loss("text-transformer", "rates", "c1") - lowest_loss("text-transformer", "rates", "c10")
    depth = deeper("text-transformer", "E,mlp_in", "mlp_in,mlp_out", **middle)
    assert_verdicts("text-transformer", {"N5": depth, "N6": c10.to_dict()})


def beyond(name: str) -> list[X]:
    """x of the families that several sizes have."""
    runs = read(name, "runs")
    events = read(name, "lags").pivot(index="seed", columns="event", values="step").fillna(np.inf)
    families: list[X] = [{"G1": {s: log_ratio(row["half"], row["frequency"]) for s, row in events.iterrows()}}]
    if (REFERENCE / name / "map.csv").exists():
        cells = read(name, "map")
        cells["at"] = cells["grokked"].fillna(cells["watched"])
        at = cells.pivot_table("at", "seed", ["weight_decay", "skew"])
        cost = {decay: np.log(at[decay][0.7] / at[decay][0.0]) for decay in (0.002, 0.0005)}
        families.append({"G2": (cost[0.002] - cost[0.0005]).to_dict()})
    auto = dict(iter(which(runs, study="auto").groupby(runs["lr_ratio"].astype(str))))
    best = {"quick": "256.0", "mid": "64.0", "paper": "16.0", "transformer": "10.0"}[name]
    slower = over(auto["auto"], auto[best])
    families.append({"A1": over(auto["1.0"], auto["auto"]), "A2": {s: np.log(1.1) - x for s, x in slower.items()}})
    settings = which(runs, study="auto-settings")
    if len(settings):
        cases = dict(iter(settings.groupby("case")))
        names = sorted({case.rpartition("-")[0] for case in cases})
        assert len(names) == 6
        medians = [
            pd.DataFrame({of: over(cases[f"{of}-{one}"], cases[f"{of}-{other}"]) for of in names}).median(axis=1)
            for one, other in (("even", "auto"), ("auto", "swept"))
        ]
        families.append({"A3": medians[0].to_dict(), "A4": (np.log(1.1) - medians[1]).to_dict()})
    rho = {case: correlation(of) for case, of in read(name, "tokens", study="rare-late").groupby("case")}
    families.append({c: (rho["small"] - rho[of]).to_dict() for c, of in (("R1", "nodecay"), ("R2", "full"))})
    starts = dict(iter(which(runs, study="sensitivity").groupby("case")))
    if starts:
        pairs = {"S1": ("random", "aware"), "I1": ("E-double", "E-half"), "I2": ("W-double", "W-half")}
        families.append({claim: over(*(starts[case] for case in pair)) for claim, pair in pairs.items()})
    slow = which(runs, study="sampling-slow")
    return [*families, {"S2": cost_of_skew(slow)}] if len(slow) else families


@pytest.mark.parametrize("name", ["transformer", *SIZES])
def test_verdicts_beyond_the_paper_follow_from_the_committed_tables(name: str) -> None:
    families = beyond(name)
    for x in families:
        assert_verdicts(name, x, ("beyond", "beyond-seeds"))
    assert len(read(name, "beyond")) == sum(map(len, families))


@pytest.mark.long
@pytest.mark.parametrize("name", SCALES)
def test_the_command_writes_the_committed_verdicts(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(REFERENCE / name, tmp_path / name))
    files = [folder / f"{file}.csv" for file in ("verdicts", "seeds", "beyond", "beyond-seeds")]
    before = {path: path.read_bytes() for path in files if path.exists()}
    for path in before:
        path.unlink()
    run(verdicts.main, folder)
    assert {path: path.read_bytes() for path in files if path.exists()} == before


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name.startswith("table")])
def test_tables_are_those_of_the_committed_rows(script: str, tmp_path: Path) -> None:
    name = script.partition("_")[2]
    path = tables.write(importlib.import_module(script).table(REFERENCE), name, tmp_path)
    assert path.read_bytes() == (REFERENCE / f"tables/{name}.csv").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("script", [name for name in SCRIPTS if name.startswith("figure")])
def test_figures_are_drawn(script: str, tmp_path: Path) -> None:
    """Curves or points in every panel, and words as text; the same numbers make the same bytes."""
    tables.look()
    drawn = importlib.import_module(script).figure(REFERENCE)
    assert all(axis.lines or axis.collections for axis in drawn.axes)
    path = tables.write(drawn, script, tmp_path)
    texts = [of.text for of in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    committed = ElementTree.parse(REFERENCE / f"figures/{script.partition('_')[2]}.svg")
    assert texts == [of.text for of in committed.iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_has_every_script_and_its_words() -> None:
    text = (REFERENCE / "report.md").read_text(encoding="utf-8")
    folder = Path(page.__file__).parent
    assert sorted(SCRIPTS) == sorted(path.stem for kind in ("table", "figure") for path in folder.glob(f"{kind}_*.py"))
    for script in SCRIPTS:
        title, _, words = str(importlib.import_module(script).__doc__).partition("\n")
        assert f"### {title}\n\n{words.strip()}\n" in text
    for place in re.findall(r"\]\(((?:tables|figures)/[^)]*)\)", text):
        assert (REFERENCE / place).exists()
    assert all(page.markdown(pd.read_csv(path, dtype=str)) in text for path in (REFERENCE / "tables").glob("*.csv"))


@dataclasses.dataclass(frozen=True)
class Watched(Scale):
    """A scale that keeps which studies were asked for; the table of words is of one alone, which has its name."""

    asked: set[object] = dataclasses.field(default_factory=set)

    def rows(self, table: str, **known: object) -> pd.DataFrame:
        self.asked.add(known.get("study", table))
        return super().rows(table, **known)


@pytest.mark.parametrize("name", SCALES)
def test_make_studies_makes_what_the_tests_read_and_no_more(name: str) -> None:
    """The paper's claims have a target of their own, and so have the tests on fresh seeds at its sizes."""
    asked: dict[str, set[Any]] = {}
    for family in FAMILIES:
        if family.is_of(Scale(REFERENCE / name)):
            scale = Watched(REFERENCE / name)
            for claim in family.claims:
                CLAIMS[claim].x(scale)
            fresh = "fresh" if name in SIZES and family.seeds == range(500, 510) else "beyond"
            # Tables of one study alone are read without its name.
            asked.setdefault("" if family.scales == SIZES else fresh, set()).update(
                scale.asked - {family.table} | ({family.study} if family.study else set())
            )
    for folder, studies in asked.items():
        assert studies == {path.stem for path in (STUDIES / name / folder).glob("*.json")}


def test_every_claim_is_in_the_protocol_and_every_study_is_one() -> None:
    protocol = (STUDIES / "PROTOCOL.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\| {name} \|", protocol, re.MULTILINE) for name in CLAIMS)
    for path in STUDIES.rglob("*.json"):
        study = json.loads(path.read_text())
        assert landscape.load_sweep(path).name == study["name"]
        # A study of several sizes has the size in the name of its file.
        assert path.stem in (study["name"], f"{study['name']}-{path.parent.parent.name}")
