"""C8: Adam-LR (c = 10) groks sooner than Adam (c = 1). Paired seeds, and two policies that measure c in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from evidence import GROKKED, MEMORISED, Finding, Panel, Run, Verdict, draw_survival, run, setting, study, table_of
from intervals import LEVEL, compare, interval, summary, survival_table, words
from scipy import stats

from landscape.report.style import new_figure

NAMES = {
    "c1": "c = 1",
    "c10": "c = 10",
    "prop41": "Prop. 4.1",
    "curvature": "curvature",
    "fast": "c = 1, fast",
    "fast-c10": "c = 10, fast",
}
LINES = {
    "c1": ("-", 7),
    "c10": ("--", 0),
    "prop41": ("-.", 1),
    "curvature": (":", 4),
    "fast": ((0, (5, 1)), 2),
    "fast-c10": ((0, (5, 1, 1, 1, 1, 1)), 3),
}
# Each policy and the one it is compared with.
PAIRS = (("c10", "c1"), ("prop41", "c1"), ("curvature", "c1"), ("fast-c10", "fast"), ("c10", "fast"))
RULE = (
    "`supported` means that the runs of a policy grok sooner than those held against by a log-rank test at "
    f"p < {1 - LEVEL:.2g}, `not supported` that they grok later at the same level, `undecided` anything else. Runs "
    "that never grok are censored at their last step. The interval of the ratio of medians is a bootstrap over seeds, "
    "which the policies share. With c = 10 the learning rate of E is larger and that of all else the "
    "same, so that it is also held against c = 1 with a larger learning rate of all, *fast*."
)


def claim(runs: Path) -> Finding:
    """Steps to grok by policy in the study `policies`."""
    found = study("policies", runs)
    table = table_of(found).assign(file=[r.planned.path.name for r in found])
    table["c_when_grokked"] = [float(_ratio(r)[-1]) for r in found]
    by_case = dict(list(table.groupby("case", sort=False)))
    medians = {what: summary(table, ["case"], what) for what in ("memorised", "grokked")}
    verdicts, text, rows = [], [RULE], []
    rates = {r.labels["case"]: r.planned.config.lr for r in found}
    text += [_paragraph(case, of_case, medians, rates[case]) for case, of_case in by_case.items()]
    present = [(case, other) for case, other in PAIRS if {case, other} <= by_case.keys()]
    for case, other in present:
        compared = compare(by_case[case], by_case[other])
        number = f"ratio of median steps {compared}"
        statement = f"{NAMES[case]} groks sooner than {NAMES[other]}"
        verdicts.append(Verdict("C8", statement, compared.judgement(), number, by_case[case]["seed"].nunique()))
        pairs = _pairs(by_case[case], by_case[other])
        ahead, behind = int((pairs["c"] < pairs["base"]).sum()), int((pairs["c"] > pairs["base"]).sum())
        p = stats.binomtest(ahead, ahead + behind).pvalue if ahead + behind else 1.0
        text.append(
            f"Seed by seed, {NAMES[case]} is ahead of {NAMES[other]} for {ahead} seeds and behind for {behind} of "
            f"{len(pairs)} (sign test p = {p:.2g}); {number}."
        )
        rows.append(
            {"case": case, "against": other, **vars(compared), "ahead": ahead, "behind": behind, "sign_test_p": p}
        )
    setup = setting(found[0].planned.config) + (f"; fast at {rates['fast']:g}" if "fast" in rates else "")
    return Finding(
        title="Does Adam-LR grok sooner?",
        verdicts=verdicts,
        panels=[_survival(by_case, setup), _seeds(by_case, present), _measured(found)],
        tables={"runs": table, **{f"median_{k}": t for k, t in medians.items()}, "comparisons": pd.DataFrame(rows)},
        text=text,
        files=[r.planned.path for r in found],
    )


def _ratio(r: Run) -> np.ndarray:
    """c = lr_E / lr_W in force, by metric_step."""
    return np.asarray(r.data["lr_E"].values / r.data["lr_W"].values)


def _pairs(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Steps to grok of the same seeds, infinite where never; censored pairs are ties."""
    both = a.set_index("seed")["grokked"].to_frame("c").join(b.set_index("seed")["grokked"].rename("base"), how="inner")
    return both.fillna(np.inf)


def _paragraph(case: str, of_case: pd.DataFrame, medians: dict[str, pd.DataFrame], rate: float) -> str:
    def median(what: str) -> str:
        row = medians[what][medians[what]["case"] == case].iloc[0]
        return words(row["median"], row["low"], row["high"])

    c = of_case["c_when_grokked"]
    return (
        f"**{NAMES[case]}** (learning rate {rate:g}). {of_case['grokked'].notna().sum()} of {len(of_case)} seeds "
        f"grokked; median step {median('grokked')}, training set at {MEMORISED:.0%} at step {median('memorised')}. At "
        f"the last step c was {words(*interval(c))} in the median seed, {c.min():.3g} to {c.max():.3g} over seeds."
    )


def _survival(by_case: dict[str, pd.DataFrame], setup: str) -> Panel:
    figure, parts = new_figure(1), []
    axes = figure.axes[0]
    for case, t in by_case.items():
        line, colour = LINES[case]
        curve = survival_table(t["grokked"], t["last"])
        draw_survival(axes, curve, sns.color_palette("colorblind")[colour], NAMES[case], line)
        parts.append(curve.assign(case=case))
    end = max(curve["step"].max() for curve in parts)
    axes.set(xlabel="step", ylabel="share of runs not grokked", ylim=(-0.03, 1.05), xlim=(0, 1.03 * end))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    caption = (
        f"Kaplan-Meier curves of the runs that have not reached {GROKKED:.0%} test accuracy, "
        f"{len(by_case['c1'])} seeds a curve: c = 1 solid, c = 10 dashed, c measured in training by Proposition 4.1 "
        f"dash-dotted and by the curvature ratio dotted; c = 1 and 10 at "
        "a larger learning rate long-dashed, the latter with dots. "
        f"Bands are pointwise {LEVEL:.0%} intervals; a tick marks runs censored at the last step. Set-up: {setup}."
    )
    return Panel("policies_survival", figure, pd.concat(parts), caption)


def _seeds(by_case: dict[str, pd.DataFrame], present: list[tuple[str, str]]) -> Panel:
    figure, parts = new_figure(len(present)), []
    end = max(t["last"].max() for t in by_case.values())
    for axes, (case, other) in zip(figure.axes, present, strict=True):
        colour = sns.color_palette("colorblind")[LINES[case][1]]
        pairs = _pairs(by_case[case], by_case[other])
        for _, pair in pairs.iterrows():
            ends = np.array([pair["base"], pair["c"]])
            axes.plot([0, 1], ends.clip(max=end), color=colour, linewidth=1, alpha=0.7)
            for x, y in enumerate(ends):
                face = colour if np.isfinite(y) else "white"
                axes.plot(x, min(y, end), "o", color=colour, markerfacecolor=face, markersize=4, clip_on=False)
        axes.set(
            xticks=[0, 1],
            xticklabels=[NAMES[one].replace(", ", "\n").replace(". ", ".\n") for one in (other, case)],
            xlim=(-0.5, 1.5),
            ylim=(0, 1.04 * end),
        )
        axes.axhline(end, color="0.6", linestyle="--", linewidth=1)
        parts.append(pairs.reset_index().assign(case=case, against=other))
        axes.tick_params(axis="x", labelsize="small")
        axes.tick_params(axis="y", labelleft=axes is figure.axes[0])
    figure.axes[0].set_ylabel("steps to grok")
    caption = (
        f"Steps to {GROKKED:.0%} test accuracy of the same seed under two policies, one line a seed "
        f"({len(by_case['c1'])} seeds). A hollow mark at the dashed line, step {end:,.0f}, is a run that had not "
        "grokked by then (censored)."
    )
    return Panel("policies_seeds", figure, pd.concat(parts), caption)


def _measured(found: list[Run]) -> Panel:
    figure, parts = new_figure(1), []
    axes = figure.axes[0]
    for case in dict.fromkeys(r.labels["case"] for r in found):
        line, colour = LINES[case]
        for i, r in enumerate(r for r in found if r.labels["case"] == case):
            t = pd.DataFrame({**r.labels, "step": r.data["metric_step"].values, "c": _ratio(r)})
            look = {"color": sns.color_palette("colorblind")[colour], "linewidth": 1, "alpha": 0.7}
            axes.plot(t["step"], t["c"], linestyle=line, label="" if i else NAMES[case], **look)
            parts.append(t)
    axes.set(xlabel="step", ylabel="c = $\\eta_E/\\eta_W$", yscale="log", xlim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    caption = "The ratio of learning rates that each run trained with, one line a seed; a run ends when it groks."
    return Panel("policies_ratio", figure, pd.concat(parts), caption)


if __name__ == "__main__":
    run("c8_adam_lr", claim)
