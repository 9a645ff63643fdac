"""C6: does training reach 100 % when W's top eigenvalue starts to fall, and does test accuracy rise as E's falls?

Decided by the order of these events in each run of the study of curvature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from c5_measures import CASES, curves
from c6_figures import RISEN, TOGETHER, curves_figure, events_figure
from evidence import MEMORISED, Finding, Judgement, Run, Verdict, interval, judge, run, setting, spearman, study, words
from numpy.typing import ArrayLike, NDArray
from scipy import signal, stats

PROMINENCE = np.log10(1.5)
RULE = (
    f"Rules, fixed before the numbers were seen. Training is done at the first step with {100 * MEMORISED:g} % "
    f"training accuracy; test accuracy has risen at the first step with {100 * RISEN:g} %. A top eigenvalue starts to "
    "fall at the step of its maximum over the whole run, the last if there are several, where a running median of "
    "three checkpoints is at its maximum too. Two events come together if the 95 % interval of the median over seeds "
    f"of log2 of the ratio of their steps lies within {-TOGETHER:g} and {TOGETHER:g}, a factor of {2**TOGETHER:g} "
    "either way, and not if it lies outside. An event belongs to a block if it is nearer in log2 to the fall of that "
    "block than to the fall of the other. Second reading of a fall, for comparison: the last peak that stands out by "
    f"a factor of {10**PROMINENCE:.2g} or more, which leaves out a fall from the initial point."
)


def smooth(values: ArrayLike) -> NDArray[np.float64]:
    """Running median of three; the ends stay."""
    y = np.asarray(values, dtype=float)
    if len(y) < 3:
        return y
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    return np.concatenate([y[:1], middle, y[-1:]])


def highest(values: ArrayLike, first: int, last: int) -> int:
    """The last place of the largest value among those from first to last."""
    part = np.asarray(values, dtype=float)[first : last + 1]
    return first + int(np.flatnonzero(part == part.max())[-1])


def fall(steps: ArrayLike, values: ArrayLike) -> float:
    """The step of the maximum, looked for where the smoothed values are at theirs."""
    y = smooth(values)
    # A median of three has the height of a peak twice, at and beside it.
    top = np.flatnonzero(y == y.max())
    return float(np.asarray(steps)[highest(values, top[0], top[-1])])


def last_fall(steps: ArrayLike, values: ArrayLike) -> float:
    """The step of the last peak of the smoothed values that stands out by PROMINENCE decades; NaN without one."""
    peaks, found = signal.find_peaks(np.log10(smooth(values)), prominence=PROMINENCE, plateau_size=1)
    if not len(peaks):
        return np.nan
    return float(np.asarray(steps)[highest(values, found["left_edges"][-1], found["right_edges"][-1])])


def together(low: float, high: float) -> Judgement:
    """Supported if the interval of log2 of a ratio of steps lies within a factor of two, not supported if outside."""
    if low >= -TOGETHER and high <= TOGETHER:
        return "supported"
    return "not supported" if low > TOGETHER or high < -TOGETHER else "undecided"


def events(one: Run, table: pd.DataFrame) -> dict[str, float | int | str]:
    """The events of a run, and how test accuracy goes with each top eigenvalue from memorisation on."""
    mine = table[(table["case"] == one.labels["case"]) & (table["seed"] == one.labels["seed"])]
    found = {**one.labels, "train": one.times["memorised"], "test": one.first("test_accuracy", RISEN)}
    found["grokked"] = one.times["grokked"]
    for block in ("W", "E"):
        part = mine[mine["block"] == block]
        # log2 of a ratio to step 0 does not exist; 1 is the first checkpoint after it.
        found[f"fall_{block}"] = max(fall(part["step"], part["lambda_max"]), 1.0)
        found[f"last_fall_{block}"] = last_fall(part["step"], part["lambda_max"])
        later = part[part["step"] >= found["train"]]
        accuracy = np.interp(later["step"], one.data["metric_step"], one.data["test_accuracy"])
        varied = len(later) > 2 and np.ptp(accuracy) > 0
        rho = stats.spearmanr(later["lambda_max"], accuracy).statistic if varied else np.nan
        found[f"rho_{block}"] = float(rho)
    return found


def apart(table: pd.DataFrame, event: str, since: str) -> pd.Series:
    """log2 of the step of one event over that of another, by run; above 0 where it comes later."""
    return np.log2(table[event] / table[since]).dropna()


def nearer(table: pd.DataFrame, event: str, block: str, other: str) -> pd.Series:
    """By how much an event is nearer to the fall of a block than to that of the other; above 0: it is."""
    return (apart(table, event, f"fall_{other}").abs() - apart(table, event, f"fall_{block}").abs()).dropna()


def verdicts(table: pd.DataFrame) -> list[Verdict]:
    """The rules, applied. table: one row a run."""
    adam, found = table[table["case"] == "c1"], []
    names = {"train": "Training is done", "test": "Test accuracy rises"}
    for event, block, other in (("train", "W", "E"), ("test", "E", "W")):
        gaps, own = apart(adam, event, f"fall_{block}"), nearer(adam, event, block, other)
        ratio = interval(gaps)
        number = f"step of the event over that of the fall {words(*(2.0**x for x in ratio))}"
        statement = f"{names[event]} when {block}'s top eigenvalue starts to fall"
        found.append(Verdict("C6", statement, together(*ratio[1:]), number, len(gaps)))
        number = f"nearer in log2 by {words(*interval(own))}"
        statement = f"{names[event]} nearer to the fall of {block} than to that of {other}"
        found.append(Verdict("C6", statement, judge(*interval(own)[1:], 0), number, len(own)))
    order = interval(apart(adam, "fall_E", "fall_W"))
    number = f"step of E's fall over that of W's {words(*(2.0**x for x in order))}"
    found.append(Verdict("C6", "E's top eigenvalue starts to fall after W's", judge(*order[1:], 0), number, len(adam)))
    return found


def text(found: pd.DataFrame, setup: str, every: int) -> list[str]:
    """The findings in words."""

    def told(values: pd.Series, power: bool = False) -> str:
        return words(*(2.0**x if power else x for x in interval(values.dropna())))

    said = []
    for case, name in CASES.items():
        part = found[found["case"] == case]
        second = {block: part.assign(**{f"fall_{block}": part[f"last_fall_{block}"]}) for block in ("W", "E")}
        readings = [
            f"{event} over the fall of {block} {told(apart(second[block], event, f'fall_{block}'), True)} "
            f"({together(*interval(apart(second[block], event, f'fall_{block}'))[1:])} by the same rule, "
            f"{part[f'last_fall_{block}'].count()} of {len(part)} runs have such a peak)"
            for event, block in (("train", "W"), ("test", "E"))
        ]
        said.append(
            f"{name}: W starts to fall at step {told(part['fall_W'])}, training is done at {told(part['train'])}; E "
            f"starts to fall at {told(part['fall_E'])}, test accuracy has risen at {told(part['test'])}. Second "
            f"reading: {'; '.join(readings)}. From the end of memorisation on, the rank correlation of test accuracy "
            f"with the top eigenvalue of E is {told(part['rho_E'])}, and with that of W, the control, "
            f"{told(part['rho_W'])}. Where both are near -1 everything falls at once, and the fall of E is no sign of "
            "its own."
        )
    orders = found[found["case"] == "c1"].apply(order, axis=1).value_counts()
    return [
        f"{setup} {RULE} Rows of metrics are {every} steps apart, checkpoints log-spaced.",
        *said,
        "Order of the events under Adam: "
        + "; ".join(f"{names} in {n} of {orders.sum()} runs" for names, n in orders.items())
        + ". Across runs of both optimisers, the rank correlation of the step at which training is done with that of "
        f"W's fall is {words(*spearman_of(found, 'train', 'fall_W'))}, and of the step at which test accuracy has "
        f"risen with that of E's fall {words(*spearman_of(found, 'test', 'fall_E'))}.",
    ]


def order(row: pd.Series) -> str:
    """The events of a run in their order."""
    names = {"fall_W": "W falls", "train": "training done", "fall_E": "E falls", "test": "test risen"}
    came = row[list(names)].dropna().astype(float).sort_values(kind="stable")
    signs = ["", *(" = " if same else " < " for same in np.diff(came) == 0)]
    return "".join(sign + names[event] for sign, event in zip(signs, came.index, strict=True))


def spearman_of(found: pd.DataFrame, a: str, b: str) -> tuple[float, float, float]:
    """Rank correlation of two events over the runs that had both."""
    both = found[[a, b]].dropna()
    return spearman(both[a], both[b]) if len(both) > 2 else (np.nan, np.nan, np.nan)


def claim(runs: Path) -> Finding:
    """Order of the falls of the top eigenvalues and of the rises of accuracy, run by run."""
    ours = study("curvature", runs)
    table = pd.concat([curves(one) for one in ours], ignore_index=True)
    found = pd.DataFrame([events(one, table) for one in ours])
    setup, every = setting(ours[0]), ours[0].planned.config.metrics_every
    panels = [curves_figure(table, found, setup), events_figure(found, setup)]
    files = [path for one in ours for path in (one.planned.path, one.planned.hessian["top"])]
    tables = {"events": found, "curves": table}
    return Finding("Order of events (C6)", verdicts(found), panels, tables, text(found, setup, every), files)


if __name__ == "__main__":
    run("c6_events", claim)
