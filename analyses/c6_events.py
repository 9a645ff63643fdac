"""C6: does training reach 100 % when W's top eigenvalue starts to fall, and does test accuracy rise as E's falls?

Decided by the order of these events in each run of the study of curvature.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from c5_measures import CASES, curves
from c6_figures import TOGETHER, curves_figure, events_figure
from c6_measures import BEGUN, PROMINENCE, RISEN, events, nearer, order, over, spearman_of
from evidence import MEMORISED, Finding, Verdict, run, setting, study
from intervals import Judgement, above, interval, median_time, within, words

RULE = (
    f"Rules, fixed before the numbers were seen. Training is done at the first step with {100 * MEMORISED:g} % "
    f"training accuracy; test accuracy has risen at the first step with {100 * RISEN:g} %. A top eigenvalue starts to "
    "fall at the step of its maximum over the whole run, the last if there are several, where a running median of "
    "three checkpoints is at its maximum too. Two events come together if the 95 % interval of the median over seeds "
    f"of the ratio of their steps lies within 1/{TOGETHER:g} and {TOGETHER:g}, and not if it lies outside. An event "
    "belongs to a block if it is nearer on a log scale to the fall of that block than to the fall of the other. "
    f"Second reading of a fall, for comparison: the last peak that stands out by a factor of {10**PROMINENCE:.2g} or "
    "more, which leaves out a fall from the initial point. Added after the first figures were seen: that runs in "
    "which an event never came are censored, not left out, and what is called the third reading."
)


def together(ratio: tuple[float, float, float]) -> Judgement:
    """Whether a ratio of steps lies within TOGETHER either way."""
    return within(ratio, 1 / TOGETHER, TOGETHER)


def verdicts(table: pd.DataFrame) -> list[Verdict]:
    """The rules, applied. table: one row per run."""
    adam, found = table[table["case"] == "c1"], []
    names = {"train": "Training is done", "test": "Test accuracy has risen"}
    for event, block, other in (("train", "W", "E"), ("test", "E", "W")):
        ratio, own = over(adam, event, f"fall_{block}"), interval(nearer(adam, event, block, other))
        number = f"step of the event over that of the fall {words(*ratio)}"
        statement = f"{names[event]} when {block}'s top eigenvalue starts to fall"
        found.append(Verdict("C6", statement, together(ratio), number, len(adam)))
        statement = f"{names[event]} nearer to the fall of {block} than to that of {other}"
        number = f"nearer by a factor of {words(*(2.0**x for x in own))}"
        found.append(Verdict("C6", statement, above(own, 0), number, len(adam)))
    later = interval(adam["fall_E"] / adam["fall_W"])
    number = f"step of E's fall over that of W's {words(*later)}"
    found.append(Verdict("C6", "E's top eigenvalue starts to fall after W's", above(later, 1), number, len(adam)))
    return found


def text(found: pd.DataFrame, setup: str, every: int) -> list[str]:
    """The findings in words."""

    def told(event: str, since: str) -> str:
        ratio = over(part, event, since)
        return f"{words(*ratio)} ({together(ratio)} by the rule)"

    said = []
    for case, name in CASES.items():
        part = found[found["case"] == case]
        step = {e: words(*median_time(part[e], part["last"])) for e in ("fall_W", "train", "fall_E", "test")}
        rho = {block: words(*interval(part[f"rho_{block}"].dropna())) for block in ("W", "E")}
        said += [
            f"{name}: W starts to fall at step {step['fall_W']}, training is done at {step['train']}; E starts to "
            f"fall at {step['fall_E']}, test accuracy has risen at {step['test']}. {part['test'].isna().sum()} of "
            f"{len(part)} runs never got there. Second reading, training over W {told('train', 'last_fall_W')}, test "
            f"over E {told('test', 'last_fall_E')}. With {100 * BEGUN:g} % test accuracy, where it begins to rise, "
            f"that over the fall of E is {told('first_test', 'fall_E')}.",
            f"{name}, third reading, added after the first figures were seen: the top eigenvalues fall slowly after "
            "their maximum and fast later. Test accuracy has risen, over the step at which E falls fastest, "
            f"{told('test', 'steepest_E')}; over that of W, the control, {told('test', 'steepest_W')}. From the end "
            f"of memorisation on, the rank correlation of test accuracy with the top eigenvalue of E is {rho['E']}, "
            f"and with that of W {rho['W']}. Where both blocks do the same, the fall of E is no sign of its own.",
        ]
    orders = found[found["case"] == "c1"].apply(order, axis=1).value_counts()
    return [
        f"{setup} {RULE} Rows of metrics are {every} steps apart, checkpoints log-spaced.",
        *said,
        "Order of the events under Adam: "
        + "; ".join(f"{names} in {n} of {orders.sum()} runs" for names, n in orders.items())
        + ". Across runs of both optimisers, the rank correlation of the step at which training is done with that of "
        f"W's fall is {words(*spearman_of(found, 'train', 'fall_W'))}, and of the step at which test accuracy has "
        f"risen with that of E's fall {words(*spearman_of(found, 'test', 'fall_E'))} over the runs that got there.",
    ]


def claim(runs: Path) -> Finding:
    """Order of the falls of the top eigenvalues and of the rises of accuracy, run by run."""
    ours = study("curvature", runs)
    table = pd.concat([curves(one) for one in ours], ignore_index=True)
    found = pd.DataFrame([events(one, table) for one in ours])
    setup, every = f"Set-up: {setting(ours[0].planned.config)}.", ours[0].planned.config.metrics_every
    panels = [curves_figure(table, found, setup), events_figure(found, setup)]
    files = [path for one in ours for path in (one.planned.path, one.planned.hessian["top"])]
    tables = {"events": found, "curves": table}
    return Finding("Order of events (C6)", verdicts(found), panels, tables, text(found, setup, every), files)


if __name__ == "__main__":
    run("c6_events", claim)
