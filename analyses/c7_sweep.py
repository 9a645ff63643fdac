"""C7: is the lr_E/lr_W that groks first the one that Proposition 4.1 predicts?

Rule, fixed before the numbers were seen. The best c of an initial scale is the one with the smallest Kaplan-Meier
median of the steps to 95 % test accuracy; predicted is prop41_ratio of the initial values. Order: supported if the 95 %
interval (bootstrap over seeds, all runs of a seed together) of the rank correlation of the two over the initial scales
lies in 0.5 ... 1, not supported if wholly below. Value: supported if that of their median distance is at most a factor
of 2, not supported if wholly above. Else undecided. Adam and SGD are judged apart.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import c7_figures
import numpy as np
import pandas as pd
from c7_figures import LABELS
from evidence import Finding, Panel, Run, Verdict, rule, run, study, table_of
from intervals import km_median, resamples, summary, within, words
from numpy.typing import NDArray
from scipy import stats

STUDIES = {"Adam": "prop41", "SGD": "sgd"}
ORDER, VALUE, LEVELS = (0.5, 1.0), (0.0, 1.0), (0.025, 0.975)


def predictions(one: Run) -> dict[str, float]:
    """prop41_ratio of a run's initial values and its median over the run; the first f_E known is that of the start."""
    data, f_E = one.data, one.data["f_E"].values
    initial = data["sigma_max_E"].values[0] / data["sigma_max_W"].values[0] / f_E[np.isfinite(f_E)][0]
    return {"predicted": float(initial), "predicted_median": float(np.nanmedian(data["prop41_ratio"].values))}


def measured(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: its labels, times and predictions; those over training are of the untuned run, c = 1."""
    table = table_of(runs).join(pd.DataFrame([predictions(one) for one in runs]))
    untuned = table[table["lr_ratio"] == 1].set_index(["case", "seed"])["predicted_median"]
    return table.drop(columns="predicted_median").join(untuned, on=["case", "seed"])


def best(medians: pd.Series) -> float:
    """log2 of the c with the smallest median, the middle of those that tie; NaN where none is reached."""
    if not np.isfinite(medians).any():
        return np.nan
    least = medians.min()
    return float(np.log2(medians.index[medians == least].to_numpy(dtype=float)).mean())


def rho(best: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Spearman's; 0 where the best c never moves, as it then follows nothing; NaN where fewer than two are known."""
    if len(best) < 2:
        return np.nan
    return float(stats.spearmanr(best, predicted).statistic) if np.ptp(best) and np.ptp(predicted) else 0.0


def compare(table: pd.DataFrame) -> dict[str, Any]:
    """Best c of every case against predictions, with intervals over seeds: `cases`, one row each, and the numbers."""
    cases, seeds = table["case"].unique(), table["seed"].unique()
    wide = {c: rows.pivot(index="seed", columns="lr_ratio").loc[seeds] for c, rows in table.groupby("case")}

    @functools.cache
    def numbers(index: tuple[int, ...]) -> dict[str, Any]:
        picked = {c: wide[c].iloc[list(index)] for c in cases}
        medians = {c: w["grokked"].apply(lambda t, w=w: km_median(t, w["last"][t.name])) for c, w in picked.items()}
        log = {"best": np.array([best(medians[c]) for c in cases]), "fixed": np.full(len(cases), np.log2(10))}
        for name in LABELS:
            log[name] = np.array([np.log2(picked[c][name].median().median()) for c in cases])
        known = np.isfinite(log["best"])
        for name in (*LABELS, "fixed"):
            x, y = log["best"][known], log[name][known]
            log[f"rho_{name}"], log[f"distance_{name}"] = rho(x, y), np.median(abs(x - y)) if len(x) else np.nan
        return log

    whole, drawn = numbers(tuple(range(len(seeds)))), [numbers(index) for index in resamples(len(seeds))]
    with warnings.catch_warnings():
        # Where nothing grokked there is no best c, and no interval.
        warnings.simplefilter("ignore", RuntimeWarning)
        ends = {name: np.nanquantile([d[name] for d in drawn], LEVELS, axis=0) for name in whole}
    shares = pd.DataFrame({"case": cases})
    for name in ("best", "predicted", "predicted_median"):
        shares[name], shares[f"{name}_low"], shares[f"{name}_high"] = 2.0 ** np.array([whole[name], *ends[name]])
    scalars = {name: (whole[name], *ends[name]) for name in whole if np.ndim(whole[name]) == 0}
    return {"cases": shares.assign(distance=whole["best"] - whole["predicted"]), **scalars}


def in_words(groups: pd.DataFrame, cases: pd.DataFrame) -> str:
    """Best and predicted c of every initial scale with what they cost, as a Markdown table."""
    lines = [
        "| initial scale | best c | predicted c | over training | steps: best c | predicted c (nearest) | 1 | 10 |"
    ]
    lines.append("|---" * 8 + "|")
    for row in cases.itertuples():
        steps = groups[groups["case"] == row.case].set_index("lr_ratio")["median"]
        swept = steps.index.to_numpy(dtype=float)
        near = swept[np.argmin(abs(np.log2(swept / row.predicted)))]
        costs = [steps.min(), steps[near], *(steps.get(c, np.nan) for c in (1.0, 10.0))]
        shown = [f"{value:,.0f}" if np.isfinite(value) else "not reached" for value in costs]
        shown[1] += f" ({near:g})"
        cells = [row.case, words(row.best, row.best_low, row.best_high), f"{row.predicted:.3g}"]
        lines.append(" | ".join(["", *cells, f"{row.predicted_median:.3g}", *shown, ""]).strip())
    return "\n".join(lines)


def claim(folder: Path) -> Finding:
    """C7's sweep over c and initial scales."""
    runs = {optimizer: study(name, folder) for optimizer, name in STUDIES.items()}
    verdicts, text, each, cases, groups = [], [rule(__doc__)], [], [], []
    for optimizer, found in runs.items():
        table = measured(found)
        numbers, seeds, n = compare(table), table["seed"].nunique(), table["case"].nunique()
        each.append(table.assign(optimizer=optimizer))
        cases.append(numbers["cases"].assign(optimizer=optimizer))
        groups.append(summary(table, ["case", "lr_ratio"]).assign(optimizer=optimizer))
        grokked = table["grokked"].notna().sum()
        reaching = int((numbers["cases"]["best_high"] >= table["lr_ratio"].max()).sum())
        rho, distance = numbers["rho_predicted"], numbers["distance_predicted"]
        what = f"under {optimizer} the best c of {n} initial scales"
        order, value = f"rank correlation {words(*rho)}", f"median distance in log₂ {words(*distance)}"
        verdicts.append(Verdict("C7", f"{what} has the order of the predicted ones", within(rho, *ORDER), order, seeds))
        verdicts.append(Verdict("C7", f"{what} is within a factor of 2", within(distance, *VALUE), value, seeds))
        text.append(
            f"**{optimizer}.** {len(table)} runs, of which {grokked} reached 95 % test accuracy; "
            f"the others count as not there yet at their last step. Rank correlation of best and predicted c over the "
            f"initial scales: {words(*rho)}; with the median of the prediction over training (of the run with c = 1) "
            f"{words(*numbers['rho_predicted_median'])}. Median distance in log₂ units: {words(*distance)}; over "
            f"training {words(*numbers['distance_predicted_median'])}; of c = 10, which needs no theory, "
            f"{words(*numbers['distance_fixed'])}. The interval of the best c reaches the largest c of the sweep at "
            f"{reaching} of {n} initial scales: there a still larger one may be better. Medians of the steps, and the "
            "best c with its interval:"
        )
        text.append(in_words(groups[-1], cases[-1]))
    least = min(float(one.data["f_E"].min()) for found in runs.values() for one in found)
    text.append(
        "The proposition equates lr · gradient norm of both layers, which is a step of SGD. Adam divides every "
        "coordinate's gradient by its own size, so that the algebra does not describe it: there the comparison tests "
        "the recipe, not its derivation. lr_W is the same at all c, so that a larger c is also a larger step as a "
        "whole. Over few initial scales a rank correlation takes few values, and the c with the smallest of nine "
        f"medians is chosen with noise: read the intervals. f_E is {least:.5f} or more in every run, so that the "
        "frequency term f_W/f_E is 1 here."
    )
    each, cases, groups = (pd.concat(tables, ignore_index=True) for tables in (each, cases, groups))
    steps = (
        "Steps to 95 % test accuracy against c = lr_E/lr_W (lr_W fixed), one panel for each optimizer and initial "
        "scale. Grey: runs, open triangles: not there at the last step. Coloured: Kaplan-Meier medians, where half of "
        "the runs got there. Vertical lines: the c that Proposition 4.1 predicts."
    )
    compared = (
        "The c with the smallest median against the predicted one, at the start (left) and its median over training "
        "(right), one mark for each initial scale. Bars: 95 % bootstrap intervals over seeds. Dashed: equal. "
        f"Marks are moved sideways by a factor of at most {2**c7_figures.SIDEWAYS:.2g}, so that none hides another."
    )
    panels = [
        Panel("c7_sweep", c7_figures.sweep(each, groups, cases), each, steps),
        Panel("c7_best", c7_figures.best(cases), cases, compared),
    ]
    tables = {"runs": each, "groups": groups, "cases": cases}
    files = [path for found in runs.values() for one in found for path in one.planned.files]
    return Finding("Proposition 4.1: the best learning rate ratio of a sweep", verdicts, panels, tables, text, files)


if __name__ == "__main__":
    run("c7_sweep", claim)
