"""The claims' statistics against samples worked by hand, closed forms and simulations; claims end to end."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import evidence
import intervals
import numpy as np
import pandas as pd
import pytest
import xarray
from scipy import stats

from landscape.errors import LandscapeError
from landscape.report.style import style

NAN, INF = np.nan, np.inf


def runs(grokked: list[float], last: float = 20.0) -> pd.DataFrame:
    """Runs with seeds 0, 1, ... that grokked at these steps; NaN: never, and watched to `last`."""
    return pd.DataFrame({"seed": range(len(grokked)), "grokked": np.array(grokked, dtype=float), "last": last})


# --- survival -------------------------------------------------------------------------------------------------

# The drug arm of Freireich et al. (1963), weeks of remission; + marks the censored. Published: survival 0.857 at 6,
# 0.807 at 7, 0.753 at 10, 0.690 at 13, 0.627 at 16, 0.538 at 22, 0.448 at 23; median 23; log-rank chi^2 16.79.
DRUG = [6, 6, 6, 7, 10, 13, 16, 22, 23, *[NAN] * 12]
DRUG_LAST = [0] * 9 + [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def test_kaplan_meier_by_hand() -> None:
    """Of 2, 3+, 4, 4, 7+ the curve is 4/5 at 2, then a third of that at 4, for 3 are still watched."""
    curve = intervals.survival_table([2, NAN, 4, 4, NAN], [9, 3, 9, 9, 7])
    assert curve["step"].tolist() == [0, 2, 3, 4, 7]
    np.testing.assert_allclose(curve["share"], [1, 4 / 5, 4 / 5, 4 / 5 / 3, 4 / 5 / 3], rtol=1e-14)
    assert curve["censored"].tolist() == [0, 0, 1, 0, 1]
    # Greenwood's variance of log(-log S) at 2 is (1 / (5 * 4)) / log(0.8)^2.
    half = stats.norm.ppf(0.975) * np.sqrt(1 / 20) / abs(np.log(0.8))
    np.testing.assert_allclose(curve["low"][1], 0.8 ** np.exp(half), rtol=1e-12)
    np.testing.assert_allclose(curve["high"][1], 0.8 ** np.exp(-half), rtol=1e-12)


def test_kaplan_meier_of_published_data() -> None:
    """Freireich et al.'s remissions, as every text on survival has them."""
    curve = intervals.survival_table(DRUG, DRUG_LAST).set_index("step")["share"]
    assert [round(curve[t], 3) for t in (6, 7, 10, 13, 16, 22, 23)] == [0.857, 0.807, 0.753, 0.69, 0.627, 0.538, 0.448]
    median, low, high = intervals.median_time(DRUG, DRUG_LAST)
    assert median == 23
    assert low == 13
    assert high == INF, "after 23 weeks nobody else relapsed, and more than 40 % had not"
    drug, placebo = runs([float(t) for t in DRUG]).assign(last=DRUG_LAST), runs([float(t) for t in PLACEBO])
    statistic, p = intervals.logrank(placebo, drug)
    assert round(statistic**2, 2) == 16.79
    assert statistic > 0, "the placebo arm is the sooner one"
    assert p == intervals.sooner(drug, placebo) == pytest.approx(stats.chi2.sf(statistic**2, 1))


def test_what_is_censored_is_not_dropped() -> None:
    """Two of five runs grokked: no median, though the median of the two is 150."""
    table = runs([100, 200, NAN, NAN, NAN], last=1000)
    assert intervals.median_time(table["grokked"], table["last"])[0] == INF
    assert intervals.median_time([100, 200, NAN], [1000] * 3)[0] == 200
    curve = intervals.survival_table(table["grokked"], table["last"])
    assert curve.iloc[-1].to_dict() == pytest.approx(
        {"step": 1000, "share": 0.6, "low": curve["low"].iloc[-2], "high": curve["high"].iloc[-2], "censored": 3}
    )
    found = intervals.summary(table.assign(case="a"), ["case"]).iloc[0]
    assert (found["runs"], found["reached"], found["median"]) == (5, 2, INF)
    always, never = runs([100, 200, 300, 400, 500], last=1000), runs([NAN] * 5, last=1000)
    assert intervals.sooner(always, never) < 0.01
    compared = intervals.compare(always, never)
    assert (compared.ratio, compared.high, compared.judgement()) == (0, 0, "supported")
    assert intervals.compare(never, always).judgement() == "not supported"


def test_where_nobody_gets_there() -> None:
    """No event: no warning, no median, no difference, and a flat curve with its censored runs."""
    never = runs([NAN] * 4)
    assert intervals.median_time(never["grokked"], never["last"]) == (INF, INF, INF)
    assert intervals.logrank(never, never) == (0.0, 1.0)
    compared = intervals.compare(never, never)
    assert np.isnan(compared.ratio)
    assert (compared.low, compared.high, compared.judgement()) == (0, INF, "undecided")
    curve = intervals.survival_table(never["grokked"], never["last"])
    assert curve[["step", "share", "low", "high", "censored"]].values.tolist() == [[0, 1, 1, 1, 0], [20, 1, 1, 1, 4]]


def test_the_median_is_exact_at_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step at which half of the runs are there, for any number of runs, rounding or not."""
    monkeypatch.setattr(intervals, "RESAMPLES", 5)
    for n in range(2, 60):
        assert intervals.median_time(np.arange(1.0, n + 1), np.full(n, 99.0))[0] == (n + 1) // 2


def test_medians_of_resamples_are_those_of_scipy() -> None:
    """Ties, runs drawn twice and runs censored at the step at which another gets there included."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        times = np.where(rng.random(9) < 0.6, rng.integers(1, 6, 9), NAN)
        last, draws = rng.integers(2, 8, 9).astype(float), rng.integers(0, 9, (10, 9))
        expected = [intervals.km_median(times[row], last[row]) for row in draws]
        assert intervals._medians(times, last, draws).tolist() == expected


def test_log_rank_is_uniform_under_the_null() -> None:
    """Groups of one distribution, a third censored: p is uniform, so that 5 % of them fall below 5 %."""
    rng = np.random.default_rng(0)

    def drawn() -> pd.DataFrame:
        times = rng.exponential(size=20)
        return runs(list(np.where(times < 1, times, NAN)), last=1.0)

    p = [intervals.sooner(drawn(), drawn()) for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09


# --- intervals ------------------------------------------------------------------------------------------------


def coverage(of: Any, truth: float, draws: int = 150) -> float:
    """How often an interval of a sample of 40 holds the truth."""
    rng = np.random.default_rng(1)
    limits = [of(rng) for _ in range(draws)]
    return float(np.mean([low <= truth <= high for _, low, high in limits]))


def test_intervals_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 95 % of the intervals hold the truth: of a mean, of a censored median, of a rank correlation."""
    monkeypatch.setattr(intervals, "RESAMPLES", 300)

    def censored(rng: np.random.Generator) -> tuple[float, float, float]:
        times = rng.exponential(size=40)
        return intervals.median_time(np.where(times < 1.2, times, NAN), np.full(40, 1.2))

    def correlated(rng: np.random.Generator) -> tuple[float, float, float]:
        x, y = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=40).T
        return intervals.spearman(x, y)

    assert 0.89 < coverage(lambda rng: intervals.interval(rng.normal(size=40), np.mean), 0.0) < 0.99
    assert 0.89 < coverage(censored, np.log(2), 60) <= 1
    assert 0.87 < coverage(correlated, 6 / np.pi * np.arcsin(0.25), 60) <= 1


def test_intervals_of_small_samples() -> None:
    """One value has no interval, none has no value, nor has one with a value missing."""
    assert intervals.interval([3.0])[0] == 3
    assert all(np.isnan(intervals.interval(few)[1:]).all() for few in ([3.0], [1.0, 2.0]))
    assert np.isnan(intervals.interval([])).all()
    assert np.isnan(intervals.interval([1.0, NAN, 3.0])).all()
    assert np.isnan(intervals.spearman([1, 2, 3], [5, 5, 5])).all()
    assert intervals.summary(runs([]).assign(case="a"), ["case"])["median"].tolist() == []


def test_seeds_are_drawn_together() -> None:
    """Where both groups have the same seeds and one takes twice as long for each, the ratio has no spread."""
    times = [100.0, 300, 500, 700, 1100, 1900]
    a, b = runs(times, 1e4), runs([2 * t for t in times], 1e4)
    paired = intervals.compare(a, b.iloc[::-1])
    assert (paired.ratio, paired.low, paired.high) == (0.5, 0.5, 0.5)
    apart = intervals.compare(a, b.assign(seed=b["seed"] + 10))
    assert apart.low < 0.5 < apart.high
    assert (apart.statistic, apart.p) == pytest.approx((paired.statistic, paired.p))


def test_a_verdict_needs_p_and_direction() -> None:
    for statistic, p, judgement in ((3, 0.01, "supported"), (-3, 0.01, "not supported"), (3, 0.06, "undecided")):
        assert intervals.Comparison(1, 1, 1, statistic, p).judgement() == judgement
    assert intervals.Comparison(1, 1, 1, NAN, NAN).judgement() == "undecided"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((2850, 2500, 3150), "2,850 (95 % interval 2,500 to 3,150)"),
        ((0.51234, 0.4, 0.6), "0.512 (95 % interval 0.4 to 0.6)"),
        ((999.7, 99.96, 1e5), "1,000 (95 % interval 100 to 100,000)"),
        ((2850, 2500, INF), "2,850 (95 % interval 2,500 to not reached)"),
        ((INF, 2500, INF), "not reached (95 % interval 2,500 to not reached)"),
        ((INF, INF, INF), "not reached"),
        ((3, NAN, NAN), "3 (95 % interval unknown to unknown)"),
        ((-0.25, -INF, NAN), "-0.25 (95 % interval unknown to unknown)"),
        ((0, -1234, 0), "0 (95 % interval -1,234 to 0)"),
    ],
)
def test_numbers_in_words(numbers: tuple[float, float, float], text: str) -> None:
    """Three digits, thousands with commas, what is infinite or unknown in words."""
    assert intervals.words(*numbers) == text


# --- claims ---------------------------------------------------------------------------------------------------

SCRIPTS = ("c1_delay", "c3_sampling_order", "c8_adam_lr", "open_decay_frequency")


def script(name: str) -> ModuleType:
    """A claim's script."""
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.usefixtures("every_format")
def test_claims_end_to_end(name: str, tiny_studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real files in, figures with their CSV and all tables as CSV and HDF5 out; the text's numbers are the data's."""
    # Low enough for some of these runs to get there.
    monkeypatch.setattr(evidence, "MEMORISED", 0.4)
    monkeypatch.setattr(evidence, "GROKKED", 0.25)
    for module in (intervals, script(name)):
        monkeypatch.setattr(module, "RESAMPLES", 20, raising=False)
    with style():
        finding = script(name).claim(tiny_studies)
        written = evidence.write(finding, tmp_path / name)
    names = {path.name for path in written}
    assert all(path.stat().st_size for path in written)
    for panel in finding.panels:
        assert {f"{panel.name}.{form}" for form in ("png", "pdf", "svg", "csv")} <= names
        assert len(pd.read_csv(tmp_path / name / f"{panel.name}.csv")) == len(panel.data) > 0
        assert panel.caption.endswith(".")
    with xarray.open_datatree(tmp_path / name / "numbers.h5", engine="h5netcdf") as tree:
        assert set(tree.children) == set(finding.tables)
        assert len(tree.attrs["files"].splitlines()) == len(finding.files)
        for title, table in finding.tables.items():
            assert len(pd.read_csv(tmp_path / name / f"{title}.csv")) == len(table)
            assert set(tree[title].data_vars) == set(table.columns)
    table = finding.tables["runs"]
    assert len(table) == len(finding.files) == len({path for path in finding.files if path.exists()})
    for planned, (_, row) in zip(finding.files, table.iterrows(), strict=True):
        with evidence.open_run(planned) as data:
            reached = data["metric_step"].values[data["test_accuracy"].values >= evidence.GROKKED]
        assert (row["grokked"] == reached[0]) if len(reached) else np.isnan(row["grokked"])
        assert row["file"] == planned.name
    assert {verdict.judgement for verdict in finding.verdicts} <= {"supported", "not supported", "undecided"}
    assert all(verdict.seeds == 2 for verdict in finding.verdicts)
    assert not re.search(r"\bnan\b|\binf\b", " ".join([*finding.text, *(v.number for v in finding.verdicts)]))


def test_numbers_follow_the_data(tiny_studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every time moved by a known factor, the text says so: no number in it is written by hand."""
    monkeypatch.setattr(intervals, "RESAMPLES", 20)
    module = script("c8_adam_lr")
    real = module.table_of

    def made(steps: dict[str, float]) -> Any:
        return lambda found: real(found).assign(grokked=lambda t: t["case"].map(steps), last=7000.0)

    steps = {"c1": 4321.0, "c10": 1234.0, "prop41": 5678.0, "curvature": NAN, "fast": 987.0, "fast-c10": 765.0}
    monkeypatch.setattr(module, "table_of", made(steps))
    with style():
        finding = module.claim(tiny_studies)
    text = " ".join(finding.text)
    for case, step in steps.items():
        paragraph = next(p for p in finding.text if p.startswith(f"**{module.NAMES[case]}**"))
        assert (f"median step {step:,.0f} (" if step == step else "median step not reached") in paragraph
        assert f"{0 if step != step else 2} of 2 seeds grokked" in paragraph
    assert "c = 10 is ahead of c = 1 for 2 seeds and behind for 0 of 2" in text
    assert "curvature is ahead of c = 1 for 0 seeds and behind for 2 of 2" in text
    assert f"{1234 / 4321:.3g}" in finding.verdicts[0].number
    assert [verdict.judgement for verdict in finding.verdicts] == ["undecided"] * 5, "two seeds decide nothing"


def test_unfinished_studies_are_refused(tiny_studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study with a missing run or one still in training gives no verdict."""
    with pytest.raises(LandscapeError, match="no study delay in") as caught:
        evidence.study("delay", tmp_path)
    assert caught.value.hint == "make studies"
    (tmp_path / "delay").mkdir()
    shutil.copy(tiny_studies / "delay/sweep.json", tmp_path / "delay")
    with pytest.raises(LandscapeError, match="14 of 14 runs of study delay are missing or unfinished") as caught:
        evidence.study("delay", tmp_path)
    assert caught.value.hint == "make studies"
    running = evidence.study("delay", tiny_studies)
    states = {run.planned.path: run.data for run in running}
    half = next(iter(states))
    monkeypatch.setattr(
        evidence, "open_run", lambda p: states[p].assign_attrs(status="running") if p == half else states[p]
    )
    with pytest.raises(LandscapeError, match=f"1 of {len(running)} runs .*{half.name}"):
        evidence.study("delay", tiny_studies)
