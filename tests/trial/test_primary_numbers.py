"""What is committed of the trial: its verdicts, again from its tables with NumPy and SciPy alone, and its page."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import beyond
import numpy as np
import page
import pandas as pd
import primary
import pytest
from helpers.pages import Reader
from helpers.tiny_trial import STUDIES
from helpers.trial_by_hand import Tables, every_x, verdict
from scale import Scale
from scipy import stats

REFERENCE = Path(__file__).parents[2] / "reports/reference"
SCALES = ("quick", "mid", "paper")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclasses.dataclass(frozen=True)
class Watched(Scale):
    """A scale that keeps which studies were asked for; the table of words is of one alone, which has its name."""

    read: set[object] = dataclasses.field(default_factory=set)

    def rows(self, table: str, **known: object) -> pd.DataFrame:
        self.read.add(known.get("study", table))
        return super().rows(table, **known)


@pytest.mark.parametrize("name", SCALES)
def test_make_studies_makes_what_the_primary_tests_read_and_no_more(name: str) -> None:
    scale = Watched(REFERENCE / name)
    for _, test in primary.TESTS.values():
        test(scale)
    assert scale.read == {path.stem for path in (STUDIES / name).glob("*.json")}


@pytest.mark.parametrize("name", [*beyond.TESTS, *SCALES])
def test_make_studies_beyond_makes_what_its_tests_read_and_no_more(name: str) -> None:
    """At the paper's sizes the tests on fresh seeds have a target of their own."""
    scale = Watched(REFERENCE / name)
    families = [one for one in beyond.FAMILIES if one.study in set(scale.tables.get(one.table, beyond.NONE)["study"])]
    fresh = [one for one in families if name in SCALES and one.seeds is beyond.FRESH]
    others = [one for one in families if one not in fresh]
    for folder, own, tests in (("fresh", fresh, {}), ("beyond", others, beyond.TESTS.get(name, {}))):
        scale.read.clear()
        for part in (tests, *(one.tests for one in own)):
            for _, test in part.values():
                test(scale)
        # Tables of one study alone are read without its name.
        read = scale.read - {one.table for one in own} | {one.study for one in own}
        assert read == {path.stem for path in (STUDIES / name / folder).glob("*.json")}


@pytest.mark.parametrize("name", SCALES)
def test_verdicts_follow_from_the_committed_tables(name: str) -> None:
    folder = REFERENCE / name
    if not (folder / "verdicts.csv").exists():
        pytest.skip(f"no verdicts of {name} are committed yet: make studies")
    x = every_x(Tables(folder))
    for row in rows(folder / "seeds.csv"):
        assert np.isclose(x[row["claim"]][int(row["seed"])], float(row["x"]), rtol=1e-12, atol=1e-12), row
    assert_verdicts(rows(folder / "verdicts.csv"), x)


@pytest.mark.parametrize("name", ["quick", "paper"])
def test_verdicts_of_runs_trained_again_follow_from_their_x(name: str) -> None:
    """Their tables are not committed, but x of every seed, which is not that of the first runs."""
    x: dict[str, dict[int, float]] = {}
    for row in rows(REFERENCE / name / "again-seeds.csv"):
        x.setdefault(row["claim"], {})[int(row["seed"])] = float(row["x"])
    first = rows(REFERENCE / name / "seeds.csv")
    assert [(claim, seed) for claim in x for seed in x[claim]] == [(row["claim"], int(row["seed"])) for row in first]
    assert any(x[row["claim"]][int(row["seed"])] != float(row["x"]) for row in first)
    assert_verdicts(rows(REFERENCE / name / "again.csv"), x)


@pytest.mark.parametrize(("name", "digits"), [("quick", 1), ("paper", 0)])
def test_how_far_runs_trained_again_are_from_the_first(name: str, digits: int) -> None:
    """What docs/trial.md says of them, from the step of grokking of each."""
    docs = " ".join((STUDIES.parent / "docs/trial.md").read_text(encoding="utf-8").split())
    first = {row["file"]: row["grokked"] for row in rows(REFERENCE / name / "runs.csv")}
    pairs = [(first[row["file"]], row["grokked"]) for row in rows(REFERENCE / name / "again-runs.csv")]
    both = [sorted(map(float, pair)) for pair in pairs if all(pair)]
    factors = sorted(late / early for early, late in both)
    alone = sum(bool(one) != bool(other) for one, other in pairs)
    same = sum(one == other for one, other in pairs)
    told = (
        f"{same} of the {len(pairs)} runs grok at the same step or never, half of those that grok both times within "
        f"{100 * (np.median(factors) - 1):.{digits}f} %, one only {factors[-1]:.1f} times later, "
        f"{ {1: 'one', 5: 'five'}[alone] } in one training alone"
    )
    assert told in docs
    assert len(pairs) == len({row["file"] for row in rows(REFERENCE / name / "again-runs.csv")})


def test_what_is_said_of_verdicts_of_runs_trained_again() -> None:
    """At `paper` none is another; O2's is the one near 5 %."""
    first, second = ({row["claim"]: row for row in rows(REFERENCE / f"paper/{of}.csv")} for of in ("verdicts", "again"))
    assert len(first) == 13
    assert {claim: row["verdict"] for claim, row in first.items()} == {c: row["verdict"] for c, row in second.items()}
    docs = " ".join((STUDIES.parent / "docs/trial.md").read_text(encoding="utf-8").split())
    low, high = (np.exp(float(second["O2"][end])) for end in ("low", "high"))
    p, again = (float(of["O2"]["holm"]) for of in (first, second))
    told = f"O2, whose corrected p was {p:.3f} with an interval that includes 1, came out at {again:.3f} and"
    assert f"All thirteen verdicts stayed. {told} [{low:.2f}, {high:.2f}]." in docs


def assert_verdicts(verdicts: list[dict[str, str]], x: dict[str, dict[int, float]]) -> None:
    by_hand = verdict(x)
    assert [row["claim"] for row in verdicts] == list(x)
    for row in verdicts:
        corrected, judgement = by_hand[row["claim"]]
        assert row["verdict"] == judgement, row
        assert np.isclose(float(row["holm"]), corrected), row
        assert np.isclose(float(row["median"]), np.median(list(x[row["claim"]].values()))), row


def test_verdicts_on_transformers_follow_from_the_committed_tables() -> None:
    folder = REFERENCE / "transformer"
    runs, curvature = rows(folder / "runs.csv"), rows(folder / "curvature.csv")
    x = {(row["claim"], int(row["seed"])): float(row["x"]) for row in rows(folder / "seeds.csv")}

    def grokked(seed: int, **known: str) -> float:
        (row,) = (r for r in runs if int(r["seed"]) == seed and all(r[k] == v for k, v in known.items()))
        return float(row["grokked"] or "inf")

    def lowest(seed: int, block: str) -> float:
        known = {"study": "curvature", "case": "c1", "analysis": "plateau", "block": block, "seed": str(seed)}
        (row,) = (r for r in curvature if all(r[k] == v for k, v in known.items()))
        return float(row["lowest"])

    for seed in range(200, 210):
        assert np.isclose(x["T1", seed], np.log(lowest(seed, "E,mlp_in") / lowest(seed, "mlp_in,mlp_out")))
        one, ten = (grokked(seed, study="curvature", case=case) for case in ("c1", "c10"))
        assert np.isclose(x["T2", seed], np.log(one / ten) if ten < np.inf else -np.inf)
        costs = []
        for size in ("64", "512"):
            at = [grokked(seed, study="sampling", sampler=s, batch_size=size) for s in ("skewed", "uniform")]
            costs.append(np.log(min(at[0], 4000) / min(at[1], 4000)))
        assert np.isclose(x["T3", seed], np.mean(costs))
    of = {name: [v for (claim, _), v in x.items() if claim == name] for name in ("T1", "T2", "T3")}
    by_hand = verdict({name: dict(enumerate(values)) for name, values in of.items()})
    for row in rows(folder / "verdicts.csv"):
        corrected, judgement = by_hand[row["claim"]]
        assert (row["verdict"], len(of[row["claim"]])) == (judgement, 10)
        assert np.isclose(float(row["holm"]), corrected)


def minus(of: float, over: float) -> float:
    return 0.0 if of == over else float(np.log(of) - np.log(over))


def on_fresh_seeds(folder: Path) -> list[dict[str, dict[int, float]]]:
    """x of rare tokens, of samplers and starts, and of the smaller learning rate, of those that a scale has."""
    seeds, found = range(500, 510), []
    held: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows(folder / "tokens.csv"):
        if row["study"] == "rare-late":
            held.setdefault((row["case"], int(row["seed"])), []).append((float(row["count"]), float(row["norm"])))
    if held:
        order = {run: stats.spearmanr(*zip(*values, strict=True)).statistic for run, values in held.items()}
        found.append(
            {
                claim: {seed: order["small", seed] - order[other, seed] for seed in seeds}
                for claim, other in (("R1", "nodecay"), ("R2", "full"))
            }
        )
    of = [row for row in rows(folder / "runs.csv") if int(row["seed"]) in seeds]
    at = {(r["case"], int(r["seed"])): float(r["grokked"] or "inf") for r in of if r["study"] == "sensitivity"}
    if at:
        pairs = {"S1": ("random", "aware"), "I1": ("E-double", "E-half"), "I2": ("W-double", "W-half")}
        found.append(
            {claim: {seed: minus(*(at[c, seed] for c in pair)) for seed in seeds} for claim, pair in pairs.items()}
        )
    slow = {
        (r["sampler"], r["batch_size"], int(r["seed"])): float(r["grokked"] or r["watched"])
        for r in of
        if r["study"] == "sampling-slow"
    }
    if slow:
        cost = lambda seed, size: minus(slow["skewed", size, seed], slow["uniform", size, seed])  # noqa: E731
        found.append({"S2": {seed: (cost(seed, "64") + cost(seed, "512")) / 2 for seed in seeds}})
    return found


def on_rates(folder: Path) -> list[dict[str, dict[int, float]]]:
    """x of the learning rate of E that follows its edge, and of the settings that a scale has it in."""
    seeds, found = range(610, 620), []
    best = {"quick": "256.0", "mid": "64.0", "paper": "16.0", "transformer": "10.0"}[folder.name]
    at: dict[tuple[str, str, int], float] = {}
    rates = {"1.0": "even", best: "swept", "auto": "auto"}
    for row in rows(folder / "runs.csv"):
        if row["study"] == "auto-settings":
            setting, _, rate = row["case"].rpartition("-")
        elif row["study"] == "auto" and row["lr_ratio"] in rates:
            setting, rate = "", rates[row["lr_ratio"]]
        else:
            continue
        at[setting, rate, int(row["seed"])] = float(row["grokked"] or "inf")

    def over(one: str, other: str, seed: int, settings: set[str]) -> float:
        return float(np.median([minus(at[of, one, seed], at[of, other, seed]) for of in settings]))

    there = {setting for setting, *_ in at}
    assert len(there - {""}) in (0, 6)
    for names, of in ((("A1", "A2"), there & {""}), (("A3", "A4"), there - {""})):
        if of:
            sooner = {seed: over("even", "auto", seed, of) for seed in seeds}
            within = {seed: np.log(1.1) - over("auto", "swept", seed, of) for seed in seeds}
            found.append(dict(zip(names, (sooner, within), strict=True)))
    return found


@pytest.mark.parametrize("name", ["transformer", *SCALES])
def test_verdicts_beyond_the_paper_follow_from_the_committed_tables(name: str) -> None:
    folder = REFERENCE / name

    step: dict[tuple[int, str], float] = {}
    for row in rows(folder / "lags.csv"):
        step[int(row["seed"]), row["event"]] = float(row["step"] or "inf")
    x = {"G1": {seed: minus(step[seed, "half"], step[seed, "frequency"]) for seed in range(200, 210)}}
    families = [x]
    if (folder / "map.csv").exists():
        cell = {
            (int(row["seed"]), float(row["weight_decay"]), float(row["skew"])): float(row["grokked"] or row["watched"])
            for row in rows(folder / "map.csv")
        }
        cost = lambda seed, decay: np.log(cell[seed, decay, 0.7] / cell[seed, decay, 0.0])  # noqa: E731
        families.append({"G2": {seed: cost(seed, 0.002) - cost(seed, 0.0005) for seed in range(200, 210)}})
    families += on_rates(folder)
    families += on_fresh_seeds(folder)
    committed = {(row["claim"], int(row["seed"])): float(row["x"]) for row in rows(folder / "beyond-seeds.csv")}
    verdicts = {row["claim"]: row for row in rows(folder / "beyond.csv")}
    assert len(committed) == 10 * len(verdicts) == 10 * sum(map(len, families))
    for family in families:
        for claim, (corrected, judgement) in verdict(family).items():
            for seed, value in family[claim].items():
                assert np.isclose(committed[claim, seed], value)
            assert verdicts[claim]["verdict"] == judgement
            assert np.isclose(float(verdicts[claim]["holm"]), corrected)


@pytest.mark.long
def test_the_committed_page_is_that_of_the_committed_tables() -> None:
    if not (REFERENCE / "index.html").exists():
        pytest.skip("no page is committed yet: python analyses/page.py")
    for path, text in page.written(REFERENCE).items():
        assert path.read_text(encoding="utf-8") == text, path


def test_what_the_page_concludes_of_tables_is_in_the_committed_rows() -> None:
    """The sentences on coupling, rank and regulariser, which no verdict turns."""

    def delays(scale: str, study: str, case: str) -> list[float]:
        known = {"study": study, "case": case}
        return [
            float(row["delay"] or "inf")
            for row in rows(REFERENCE / scale / "runs.csv")
            if all(row[name] == value for name, value in known.items())
        ]

    for scale, study, most in (("quick", "tables", "d118"), ("mid", "narrow", "d122"), ("paper", "narrow", "d198")):
        ordinary = delays(scale, "curvature", "c1")
        small = delays(scale, study, "d4")
        l2, nuclear, large, frozen = (delays(scale, "tables", case) for case in ("l2", "nuclear", most, "frozen"))
        assert np.median(nuclear) > np.median(ordinary), "tables wait as well"
        assert np.median(l2) > 2 * np.median(nuclear)
        assert np.median(small) > 2 * np.median(large), "the smaller d, the longer the wait"
        assert min(frozen) == np.inf
        low = [row["grokked"] for row in rows(REFERENCE / scale / "runs.csv") if row["study"] == f"l2-{scale}"]
        assert low
        assert all(float(step or "inf") > 2 * np.median(nuclear) for step in low), "at no λ as soon as the nuclear norm"


def test_the_committed_page_is_short() -> None:
    """At most 2 500 words that are not folded, and 5 MB."""
    text = (REFERENCE / "index.html").read_text(encoding="utf-8")
    assert len(Reader(text).words) <= 2500
    assert len(text.encode()) < 5e6
