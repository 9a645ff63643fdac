"""C3: uniform sampling groks before random, random before skewed. Steps to 95 % test accuracy, per batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from evidence import GROKKED, Finding, Panel, Verdict, draw_survival, run, setting, study, table_of
from intervals import LEVEL, RESAMPLES, Comparison, compare, summary, survival_table, words
from scipy import stats

from landscape.report.style import new_figure

ORDER = (("uniform", "random"), ("random", "skewed"))
RULE = (
    "Two orders are claimed, uniform before random and random before skewed. At each batch size the two samplers are "
    "compared by a log-rank test; the four statistics are combined by Stouffer's method, batch sizes at which neither "
    f"grokked left out. `supported` means p < {1 - LEVEL:.2g} in the direction claimed, `not supported` the same in "
    "the opposite one, `undecided` anything else. Runs that never grok are censored at their last step."
)


def pooled(compared: list[Comparison]) -> Comparison:
    """Stouffer's combination of the comparisons' log-rank statistics; its ratio is not used."""
    scores = [c.statistic for c in compared if c.p < 1 or c.statistic]
    if not scores:
        return Comparison(np.nan, np.nan, np.nan, 0.0, 1.0)
    z = float(stats.combine_pvalues(stats.norm.sf(scores), method="stouffer").statistic)
    return Comparison(np.nan, np.nan, np.nan, z, float(2 * stats.norm.sf(abs(z))))


def chance(pairs: list[tuple[pd.DataFrame, pd.DataFrame]]) -> tuple[float, float, float]:
    """Probability that a run of the first groks before one of the second at the same batch size; ties count half."""
    # All runs have the same length, so that a run that never groks is later than any that does.
    ends = [tuple(t["grokked"].fillna(np.inf).to_numpy() for t in pair) for pair in pairs]
    rng = np.random.default_rng(0)

    def mean(draw: Any) -> float:
        drawn = [(draw(a)[:, None], draw(b)) for a, b in ends]
        return float(np.mean([np.mean((a < b) + 0.5 * (a == b)) for a, b in drawn]))

    found = [mean(lambda x: x[rng.integers(0, len(x), len(x))]) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return mean(lambda x: x), float(low), float(high)


def claim(runs: Path) -> Finding:
    """Orders of the samplers in the study `sampling`, with weight decay."""
    found = study("sampling", runs)
    table = table_of(found).astype({"batch_size": str}).assign(file=[r.planned.path.name for r in found])
    decayed = table[table["case"] == "decay"]
    by_size = dict(list(decayed.groupby("batch_size", sort=False)))
    medians = summary(table, ["case", "batch_size", "sampler"])
    verdicts, rows, text = [], [], [RULE]
    for first, second in ORDER:
        pairs = [tuple(t[t["sampler"] == s] for s in (first, second)) for t in by_size.values()]
        compared = [compare(a, b) for a, b in pairs]
        total, share = pooled(compared), chance(pairs)
        number = (
            f"at the same batch size a run of {first} is ahead of one of {second} with probability {words(*share)}, "
            f"p = {total.p:.2g}"
        )
        statement = f"{first} sampling groks before {second}"
        verdicts.append(Verdict("C3", statement, total.judgement(), number, decayed["seed"].nunique()))
        rows += [
            {"first": first, "second": second, "batch_size": size, **vars(c), "judgement": c.judgement()}
            for size, c in zip(by_size, compared, strict=True)
        ]
        each = "; ".join(f"batch {size}: {c} ({c.judgement()})" for size, c in zip(by_size, compared, strict=True))
        text.append(f"**{statement[0].upper()}{statement[1:]}.** Median steps of the first over the second: {each}.")
    text += [_reached(table), _zipf(decayed)]
    setup = setting(found[0].planned.config, "batch_size")
    return Finding(
        title="Does uniform sampling grok before random, and random before skewed?",
        verdicts=verdicts,
        panels=[_survival(by_size, setup), _medians(medians[medians["case"] == "decay"], decayed["last"].max())],
        tables={"runs": table, "medians": medians, "orders": pd.DataFrame(rows)},
        text=text,
        files=[r.planned.path for r in found],
    )


def _reached(table: pd.DataFrame) -> str:
    """How many runs grokked, with and without weight decay."""
    parts = [
        f"{'with' if case == 'decay' else 'without'} weight decay {t['grokked'].notna().sum()} of {len(t)} runs "
        f"grokked and {t['memorised'].notna().sum()} memorised"
        for case, t in table.groupby("case", sort=False)
    ]
    return (
        f"Over all samplers and batch sizes, {'; '.join(parts)}. The verdicts are on the runs with weight decay. Where "
        "the set-up names no test set of its own, it is the pairs that the sampler left: what is tested on then "
        "depends on the sampler too."
    )


def _zipf(decayed: pd.DataFrame) -> str:
    """Results at a stronger skew than in the claim."""
    counts = decayed.groupby("sampler", sort=False)["grokked"].agg(["count", "size"])
    parts = ", ".join(f"{row['count']} of {row['size']} with {sampler}" for sampler, row in counts.iterrows())
    return f"Runs with weight decay that grokked, by sampler: {parts}. Zipf is the stronger skew, of exponent 1."


def _survival(by_size: dict[str, pd.DataFrame], setup: str) -> Panel:
    figure, parts = new_figure(2, rows=len(by_size) // 2, height=2.5), []
    for axes, (size, at_size) in zip(figure.axes, by_size.items(), strict=True):
        for (sampler, t), colour, line in zip(*_looks(at_size), strict=True):
            curve = survival_table(t["grokked"], t["last"])
            draw_survival(axes, curve, colour, sampler, line)
            parts.append(curve.assign(batch_size=size, sampler=sampler))
        axes.set(title=f"batch size {size}", ylim=(-0.03, 1.05), xlim=(0, at_size["last"].max() * 1.03))
    for axes in figure.axes[-2:]:
        axes.set_xlabel("step")
    for axes in figure.axes[::2]:
        axes.set_ylabel("share not grokked")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    seeds = next(iter(by_size.values()))["seed"].nunique()
    caption = (
        f"Kaplan-Meier curves of the runs that have not reached {GROKKED:.0%} test accuracy, {seeds} seeds a curve; "
        f"bands are pointwise {LEVEL:.0%} intervals, a tick marks runs censored at the last step. Uniform is solid, "
        f"random dashed, skewed dash-dotted, Zipf dotted. Set-up: {setup}."
    )
    return Panel("sampling_survival", figure, pd.concat(parts), caption)


def _looks(at_size: pd.DataFrame) -> tuple[Any, Any, Any]:
    groups = list(at_size.groupby("sampler", sort=False))
    return groups, [sns.color_palette("colorblind")[i] for i in (0, 1, 2, 4)], ["-", "--", "-.", ":"]


def _medians(medians: pd.DataFrame, last: float) -> Panel:
    figure = new_figure(1)
    axes, sizes = figure.axes[0], list(medians["batch_size"].unique())
    colours = [sns.color_palette("colorblind")[i] for i in (0, 1, 2, 4)]
    for i, (sampler, t) in enumerate(medians.groupby("sampler", sort=False)):
        x = np.array([sizes.index(size) for size in t["batch_size"]]) + 0.15 * (i - 1.5)
        median, low, high = (t[key].clip(upper=last).to_numpy() for key in ("median", "low", "high"))
        axes.vlines(x, low, high, color=colours[i], linewidth=1.6)
        never = np.isinf(t["median"].to_numpy())
        axes.plot(x[~never], median[~never], "osD^"[i], color=colours[i], label=sampler)
        axes.plot(x[never], median[never], "osD^"[i], color=colours[i], markerfacecolor="white", clip_on=False)
    axes.axhline(last, color="0.6", linestyle="--", linewidth=1)
    axes.set(xticks=range(len(sizes)), xticklabels=sizes, xlabel="batch size", ylabel="median steps to grok")
    axes.set_ylim(0, last * 1.06)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    caption = (
        f"Kaplan-Meier median of the steps to {GROKKED:.0%} test accuracy with {LEVEL:.0%} bootstrap intervals. The "
        f"dashed line is the last step, {last:,.0f}; a hollow mark on it: fewer than half of the runs grokked, and an "
        "interval that ends there has no upper limit."
    )
    return Panel("sampling_medians", figure, medians, caption)


if __name__ == "__main__":
    run("c3_sampling_order", claim)
