"""C1: embeddings induce the delay. Steps between memorising and grokking with an embedding and without one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import seaborn as sns
from evidence import GROKKED, MEMORISED, Finding, Panel, Run, Verdict, draw_survival, run, setting, study, table_of
from intervals import LEVEL, compare, summary, survival_table, words
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from landscape.report.style import new_figure

# Each input without an embedding, and the input it is compared with.
PAIRS = {
    "onehot": "embedding",
    "scalar": "embedding",
    "onehot-wide": "embedding-wide",
    "onehot-tuned": "embedding-tuned",
}
# Panels in order: inputs with an embedding, and below each the input compared with it.
NAMES = {
    "embedding": "embedding",
    "embedding-wide": "embedding, wide",
    "embedding-tuned": "embedding, tuned",
    "scalar": "scalars",
    "onehot": "one-hot",
    "onehot-wide": "one-hot, wide",
    "onehot-tuned": "one-hot, tuned",
}
LOWER = (0.5, 0.9)
"""Test accuracies at which the verdicts are checked again."""
RULE = (
    "For each input without an embedding, `supported` means that the delay with the embedding is the longer one, by a "
    f"log-rank test at p < {1 - LEVEL:.2g}, `not supported` that it is the shorter one, and `undecided` anything else. "
    f"The delay is the step at which the test accuracy reaches {GROKKED:.0%} less the step at which the training "
    f"accuracy reaches {MEMORISED:.0%}. A run that memorises and never groks is censored: its delay is longer than "
    "what was watched. A run that never memorises has no delay. That "
    "there is no delay at all without an embedding is `not supported` if the interval of the median delay lies above 0 "
    "for every such input that memorises, and `supported` if for none."
)
FAIRNESS = (
    "What suits the embedding need not suit one-hot inputs, so that two further pairs are there, both of wider nets. "
    "*Wide* has one learning rate and weight decay for both, at which one-hot inputs grokked in a pilot; *tuned* has "
    "for each the values that grokked soonest in a pilot over a few of them. The pilots had one seed, which is among "
    "those here."
)


def delays_of(table: pd.DataFrame) -> pd.DataFrame:
    """The runs that memorised, with times from then on."""
    known = table[table["memorised"].notna()]
    return known.assign(last=known["last"] - known["memorised"])


def claim(runs: Path) -> Finding:
    """Delays of the study `delay`."""
    found = study("delay", runs)
    table = table_of(found).assign(file=[r.planned.path.name for r in found])
    table["best_test_accuracy"] = [float(r.data["test_accuracy"].max()) for r in found]
    for accuracy in LOWER:
        table[f"delay_{accuracy:g}"] = [r.first("test_accuracy", accuracy) - r.times["memorised"] for r in found]
    delays = delays_of(table)
    medians = {what: summary(table, ["case"], what) for what in ("memorised", "grokked")}
    medians["delay"] = summary(delays, ["case"], "delay")
    lower = _lower(delays)
    cases = {r.labels["case"]: r for r in found}
    paragraphs = [_paragraph(r, table[table["case"] == case], medians) for case, r in cases.items()]
    return Finding(
        title="Do embeddings induce the delay?",
        verdicts=[
            *(_verdict(case, delays, table, medians["delay"], lower) for case in cases if case in PAIRS),
            _no_delay(medians["delay"], table),
        ],
        panels=[_survival(table), _accuracy(found)],
        tables={"runs": table, **{f"median_{key}": value for key, value in medians.items()}, "lower": lower},
        text=[RULE, *([FAIRNESS] if "onehot-wide" in cases else []), *paragraphs, _without(table), _lower_text(lower)],
        files=[r.planned.path for r in found],
    )


def _verdict(
    case: str, delays: pd.DataFrame, table: pd.DataFrame, medians: pd.DataFrame, lower: pd.DataFrame
) -> Verdict:
    """Whether the delay without an embedding ends sooner than the one with it."""
    base, embedded = (delays[delays["case"] == one] for one in (case, PAIRS[case]))
    name, _, kind = NAMES[case].partition(", ")
    statement = f"the delay is longer with an embedding than with {name}{f' ({kind})' if kind else ''}"
    seeds = table[table["case"] == case]["seed"].nunique()
    if base.empty or embedded.empty:
        number = f"{len(base)} of {seeds} runs memorised without and {len(embedded)} with an embedding: no delay"
        return Verdict("C1", statement, "undecided", number, seeds)
    compared = compare(base, embedded, "delay")
    with_, without = (_median(medians, one) for one in (PAIRS[case], case))
    number = f"median delay with {with_}, without {without} steps, log-rank p = {compared.p:.2g}"
    for _, row in lower[lower["case"] == case].iterrows():
        number += f"; taken at {row['accuracy']:.0%} of the test set {row['judgement']}"
    return Verdict("C1", statement, compared.judgement(), number, seeds)


def _no_delay(medians: pd.DataFrame, table: pd.DataFrame) -> Verdict:
    """Whether the delay vanishes without an embedding: no input that memorised has one certainly above 0."""
    base = medians[medians["case"].isin(PAIRS)].sort_values("median")
    seeds, statement = table["seed"].nunique(), "without an embedding there is no delay"
    if base.empty:
        return Verdict("C1", statement, "undecided", "nothing memorised without an embedding", seeds)
    least = base.iloc[0]
    judgement = "not supported" if (base["low"] > 0).all() else "undecided" if (base["low"] > 0).any() else "supported"
    number = f"shortest median delay, of {NAMES[least['case']]}: {_median(base, least['case'])} steps"
    return Verdict("C1", statement, judgement, number, seeds)


def _median(medians: pd.DataFrame, case: str) -> str:
    row = medians[medians["case"] == case]
    return words(*row[["median", "low", "high"]].iloc[0]) if len(row) else "undefined"


def _paragraph(one: Run, runs: pd.DataFrame, medians: dict[str, pd.DataFrame]) -> str:
    """The results of one case in words."""
    case, n, best = one.labels["case"], len(runs), runs["best_test_accuracy"]
    name = NAMES[case][0].upper() + NAMES[case][1:]
    config = one.planned.config
    return (
        f"**{name}** (h = {config.hidden}, learning rate {config.lr:g}, weight decay {config.weight_decay:g}). "
        f"{runs['memorised'].notna().sum()} of {n} runs memorised, median step {_median(medians['memorised'], case)}; "
        f"{runs['grokked'].notna().sum()} of {n} grokked within {config.steps:,} steps, median step "
        f"{_median(medians['grokked'], case)}; median delay {_median(medians['delay'], case)}. The best test accuracy "
        f"of a run lay between {best.min():.1%} and {best.max():.1%}."
    )


def _without(table: pd.DataFrame) -> str:
    """Whether there is a delay at all without an embedding."""
    base = table[table["case"].isin(PAIRS)]
    there = base["delay"].dropna()
    span = f", between {there.min():,.0f} and {there.max():,.0f} steps after they had memorised" if len(there) else ""
    return (
        f"Without an embedding, {len(there)} of {base['memorised'].notna().sum()} runs that memorised grokked{span}. A "
        "delay that is there without an embedding is not made by one, though one may lengthen it."
    )


def _lower(delays: pd.DataFrame) -> pd.DataFrame:
    """The same comparisons at lower test accuracies."""
    rows = []
    for accuracy in LOWER:
        column = f"delay_{accuracy:g}"
        medians = summary(delays, ["case"], column)
        for case, other in PAIRS.items():
            base, embedded = (delays[delays["case"] == one] for one in (case, other))
            if len(base) and len(embedded):
                compared = compare(base, embedded, column)
                both = {"without": _median(medians, case), "with": _median(medians, other)}
                row = {"accuracy": accuracy, "case": case, "against": other, **both, **vars(compared)}
                rows.append({**row, "judgement": compared.judgement()})
    return pd.DataFrame(rows)


def _lower_text(lower: pd.DataFrame) -> str:
    parts = [
        f"at {row['accuracy']:.0%}, {NAMES[row['against']]} {row['with']}, {NAMES[row['case']]} {row['without']}, "
        f"log-rank p = {row['p']:.2g}, {row['judgement']}"
        for _, row in lower.iterrows()
    ]
    return (
        "Whether the verdicts hang on the threshold, a look that was added after the first results. Where a lower "
        f"test accuracy counts as grokking, the median delays are: {'; '.join(parts)}."
    )


def _survival(table: pd.DataFrame) -> Panel:
    parts, last = [], table["last"].max()
    figure, panels = _panels(list(table["case"].unique()), last, "share not there yet")
    colours = sns.color_palette("colorblind")
    looks = {
        "grokked": ("-", colours[0], f"test {GROKKED:.0%}"),
        "memorised": ("--", colours[7], f"train {MEMORISED:.0%}"),
    }
    for case, t in table.groupby("case"):
        for what, (line, colour, label) in looks.items():
            curve = survival_table(t[what], t["last"])
            draw_survival(panels[case], curve, colour, label, line)
            parts.append(curve.assign(case=case, event=what))
        panels[case].set_ylim(-0.03, 1.05)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    caption = (
        f"Kaplan-Meier curves of the runs that have not reached {MEMORISED:.0%} training accuracy (dashed) and "
        f"{GROKKED:.0%} test accuracy (solid), {table.groupby('case').size().min()} seeds each; bands are pointwise "
        f"{LEVEL:.0%} intervals. A tick marks runs that are censored: watched to step {last:,.0f} and not there. "
        "The set-up is that of the figure of accuracies."
    )
    return Panel("delay_survival", figure, pd.concat(parts), caption)


def _accuracy(found: list[Run]) -> Panel:
    colours, parts, cases = sns.color_palette("colorblind"), [], [r.labels["case"] for r in found]
    figure, panels = _panels(list(dict.fromkeys(cases)), max(r.times["last"] for r in found), "accuracy (%)")
    for r in found:
        axes, steps = panels[r.labels["case"]], r.data["metric_step"].values
        train, test = (100 * r.data[f"{part}_accuracy"].values for part in ("train", "test"))
        axes.plot(steps, train, "--", color=colours[7], linewidth=0.7, alpha=0.7, label="training set")
        axes.plot(steps, test, color=colours[0], linewidth=0.9, alpha=0.8, label="test set")
        axes.set_ylim(-3, 104)
        parts.append(pd.DataFrame({**r.labels, "step": steps, "train_accuracy": train, "test_accuracy": test}))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles[:2], labels[:2], loc="outside upper center", ncols=2)
    setup = setting(found[0].planned.config, "hidden", "lr", "weight_decay")
    caption = (
        "Accuracy on the training set (dashed) and the test set (solid), one line a seed. A run ends when it groks. "
        f"Set-up: {setup}; hidden width, learning rate and weight decay of each panel are in the text."
    )
    return Panel("delay_accuracy", figure, pd.concat(parts), caption)


def _panels(cases: list[str], last: float, name: str) -> tuple[Figure, dict[str, Axes]]:
    """A figure with the axes of each case, steps from 0 on and logarithmic from 100."""
    columns = len(cases) if len(cases) < 4 else 4
    figure = new_figure(columns, rows=-(-len(cases) // columns), height=2.4)
    panels = dict(zip((case for case in NAMES if case in cases), figure.axes, strict=False))
    for case, axes in panels.items():
        axes.set(title=NAMES[case], xlabel="step")
        axes.set_xscale("symlog", linthresh=100, linscale=0.5)
        axes.set_xticks([0, 100, 1000, 10000], ["0", "$10^2$", "$10^3$", "$10^4$"])
        axes.minorticks_off()
        axes.set_xlim(0, 1.15 * last)
    for axes in figure.axes[::columns]:
        axes.set_ylabel(name)
    for spare in figure.axes[len(cases) :]:
        spare.set_visible(False)
    return figure, panels


if __name__ == "__main__":
    run("c1_delay", claim)
