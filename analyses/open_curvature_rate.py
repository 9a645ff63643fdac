"""Open question 2: can c = lr_E/lr_W be chosen by measured curvature, without tuning?

Rule, fixed before the numbers were seen. Policies that recompute c during training (prop41: Proposition 4.1's ratio;
curvature: the square root of lambda_max(H_WW)/lambda_max(H_EE)) are compared with the fixed c = 10 and c = 1, seed by
seed: one that has not reached 95 % test accuracy counts with its last step. "Sooner" is supported if the 95 % bootstrap
interval over seeds of the median paired difference of steps lies below 0, not supported if it holds none below 0.
"Without tuning" is supported if that of the median paired ratio of steps, curvature over c = 10, is at most 1.1, not
supported if wholly above. Else undecided. The log-rank test is shown beside, and decides nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from evidence import Finding, Panel, Run, Verdict, draw_survival, rule, run, study, table_of
from intervals import columns, interval, km_median, logrank, summary, survival_table, within, words
from matplotlib.figure import Figure

from landscape.report.style import new_figure

NAMES = {"c1": "c = 1", "c10": "c = 10", "prop41": "Proposition 4.1", "curvature": "curvature"}
PAIRS = [
    ("prop41", "c10"),
    ("curvature", "c10"),
    ("curvature", "prop41"),
    ("prop41", "c1"),
    ("curvature", "c1"),
    ("c10", "c1"),
]
SOONER, UNTUNED = (-np.inf, -1e-9), (0.0, 1.1)


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row per seed and pair of policies: the steps of both, or their last step, and the difference."""
    steps = table.assign(steps=table["grokked"].fillna(table["last"])).pivot(index="seed", columns="case")
    rows, never = [], steps["grokked"].isna()
    for a, b in PAIRS:
        both = pd.DataFrame({"steps": steps["steps", a], "steps_of_other": steps["steps", b]})
        both = both.assign(policy=a, other=b, censored=never[a] | never[b])
        both["difference"], both["ratio"] = (
            both["steps"] - both["steps_of_other"],
            both["steps"] / both["steps_of_other"],
        )
        rows.append(both.reset_index())
    return pd.concat(rows, ignore_index=True)


def comparisons(table: pd.DataFrame, paired: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of policies: median difference and ratio over seeds with intervals, seeds won, log-rank p."""
    rows = []
    for (a, b), part in paired.groupby(["policy", "other"], sort=False):
        row = {"policy": a, "other": b, "seeds": len(part), "sooner": int((part["difference"] < 0).sum())}
        row |= {"later": int((part["difference"] > 0).sum()), "censored": int(part["censored"].sum())}
        for name in ("difference", "ratio"):
            row |= columns(name, interval(part[name]))
        rows.append({**row, "logrank_p": logrank(*(table[table["case"] == case] for case in (a, b)))[1]})
    return pd.DataFrame(rows)


def rates(runs: list[Run]) -> pd.DataFrame:
    """lr_E / lr_W along every run."""
    each = []
    for one in runs:
        # At step 0 no policy has set its rates yet.
        rows = one.data[["lr_E", "lr_W"]].isel(metric_step=slice(1, None))
        ratio = rows["lr_E"].values / rows["lr_W"].values
        each.append(pd.DataFrame({**one.labels, "step": rows["metric_step"].values, "lr_ratio": ratio}))
    return pd.concat(each, ignore_index=True)


def drawing(along: pd.DataFrame, table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The ratio that each policy sets along training, and the share of runs that have not grokked yet."""
    figure, drawn = new_figure(2, height=3.2), []
    (left, right), lines = figure.axes, ("-", "--", "-.", ":")
    for (case, name), colour, line in zip(NAMES.items(), sns.color_palette("colorblind", 4), lines, strict=True):
        steps = along[along["case"] == case].groupby("step")["lr_ratio"]
        band = steps.agg(["min", "median", "max"])[steps.size() > 1].reset_index()
        left.fill_between(band["step"], band["min"], band["max"], color=colour, alpha=0.2, linewidth=0)
        left.plot(band["step"], band["median"], color=colour, linestyle=line, label=name)
        part = table[table["case"] == case]
        curve = survival_table(part["grokked"], part["last"])
        draw_survival(right, curve, colour, name, line)
        drawn += [band.assign(case=case, panel="lr_ratio"), curve.assign(case=case, panel="survival")]
    left.set_xscale("log")
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter("{x:g}")
    left.set(xlabel="step", ylabel="c = lr_E / lr_W", title="Ratio in force")
    right.set(xlabel="step", ylabel="share of runs below 95 % test", title="Steps to grokking", ylim=(0, 1.03))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure, pd.concat(drawn, ignore_index=True)


def differences(paired: pd.DataFrame, compared: pd.DataFrame) -> Figure:
    """Paired differences of the steps, seed by seed, with the median and its interval."""
    figure = new_figure(1, height=3.0)
    axes = figure.axes[0]
    for row in compared.itertuples():
        part = paired[(paired["policy"] == row.policy) & (paired["other"] == row.other)]
        y = row.Index + np.linspace(-0.25, 0.25, len(part))
        for shown, face in ((~part["censored"], "0.55"), (part["censored"], "w")):
            axes.plot(part["difference"][shown], y[shown], "o", color="0.55", mfc=face, markersize=4)
        ends = [[row.difference - row.difference_low], [row.difference_high - row.difference]]
        axes.errorbar(row.difference, row.Index, xerr=ends, fmt="D", color="k", capsize=4, markersize=6)
    axes.axvline(0, color="k", linewidth=1, linestyle="--")
    labels = [f"{NAMES[row.policy]} − {NAMES[row.other]}" for row in compared.itertuples()]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("difference of the steps to 95 % test accuracy (below 0: the first is sooner)")
    return figure


def sentences(table: pd.DataFrame, swept: pd.DataFrame, compared: pd.DataFrame, along: pd.DataFrame) -> list[str]:
    """The report's paragraphs."""
    medians = "; ".join(
        f"{NAMES[row.case]} {words(row.median, row.low, row.high)} ({row.reached} of {row.runs} runs)"
        for row in summary(table, ["case"]).itertuples()
    )
    told = "; ".join(
        f"{NAMES[row.policy]} against {NAMES[row.other]} {words(*number(compared, row.policy, row.other), digits=4)}, "
        f"sooner in {row.sooner} and later in {row.later} of {row.seeds} seeds, log-rank p = {row.logrank_p:.2g}"
        for row in compared.itertuples()
    )
    of_seeds = along.groupby(["case", "seed"])["lr_ratio"].agg(["first", "median", "last"]).groupby("case").median()
    spans = "; ".join(
        f"{NAMES[case]} starts at {row['first']:.3g}, has the median {row['median']:.3g} and ends at {row['last']:.3g}"
        for case, row in of_seeds.loc[["prop41", "curvature"]].iterrows()
    )
    balanced = swept[swept["case"] == "balanced"]
    by_c = {c: km_median(part["grokked"], part["last"]) for c, part in balanced.groupby("lr_ratio")}
    tuned, seeds = min(by_c, key=by_c.get), set(balanced["seed"])
    own = table[(table["case"] == "curvature") & table["seed"].isin(seeds)]
    medians_of_c = ", ".join(f"c = {c:g}: {steps(value)}" for c, value in by_c.items())
    return [
        f"Median steps to 95 % test accuracy (Kaplan-Meier): {medians}.",
        f"Median paired differences of the steps: {told}.",
        f"**What the policies do.** lr_E/lr_W along a run, median over seeds: {spans}.",
        f"**What tuning would have found.** A sweep of fixed c with the same configuration, over {len(seeds)} of the "
        f"seeds, has the medians {medians_of_c}. In hindsight c = {tuned:g} is best, with {steps(by_c[tuned])}; "
        f"the curvature policy has {steps(km_median(own['grokked'], own['last']))} on the same seeds.",
        "The curvature policy equates lr² λ_max of both layers, the second-order change of the loss by a step of SGD. "
        "Adam's step has another size, so that under it both policies are recipes rather than derivations; and lr_W is "
        "fixed, so that a policy that chooses a larger c takes larger steps as a whole. The time that measuring the "
        "curvature takes is not counted here.",
    ]


def steps(value: float) -> str:
    """A median of steps in words."""
    return f"{value:,.0f} steps" if np.isfinite(value) else "not reached"


def number(compared: pd.DataFrame, a: str, b: str, name: str = "difference") -> tuple[float, float, float]:
    """One number of a comparison with its interval."""
    row = compared.set_index(["policy", "other"]).loc[(a, b)]
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def claim(folder: Path) -> Finding:
    """The study `policies`, and the sweep `prop41` for the c that tuning would have found."""
    # Other learning rates than that of the sweep are for C8.
    runs = [one for one in study("policies", folder) if one.labels["case"] in NAMES]
    sweep = study("prop41", folder)
    table = table_of(runs)
    paired, along, n = pairs(table), rates(runs), table["seed"].nunique()
    compared = comparisons(table, paired)
    verdicts = []
    for label, a, b in (("C8", "prop41", "c10"), ("O2", "curvature", "c10"), ("O2", "curvature", "c1")):
        difference = number(compared, a, b)
        what, line = f"c by {NAMES[a]} groks sooner than {NAMES[b]}", f"{words(*difference, digits=4)} steps"
        judged = within(difference, *SOONER)
        verdicts.append(Verdict(label, what, judged, f"median paired difference {line}", n))
    ratio = number(compared, "curvature", "c10", "ratio")
    what, line = "c by curvature, untuned, is at most 10 % slower than c = 10", f"median paired ratio {words(*ratio)}"
    verdicts.append(Verdict("O2", what, within(ratio, *UNTUNED), line, n))
    figure, drawn = drawing(along, table)
    left = (
        "Left: lr_E/lr_W in force, median and range over the seeds still training (two or more). Right: Kaplan-Meier "
        f"estimate of the share of {n} runs that have not reached 95 % test accuracy, with its pointwise 95 % "
        "interval; ticks: censored."
    )
    right = (
        "Paired differences of the steps to 95 % test accuracy, one grey mark a seed (open: one of the two not there "
        "at its last step, which counts); black: median with 95 % bootstrap interval over seeds."
    )
    panels = [
        Panel("open_curvature_rate", figure, drawn, left),
        Panel("open_curvature_rate_pairs", differences(paired, compared), paired, right),
    ]
    tables = {"runs": table, "pairs": paired, "comparisons": compared, "groups": summary(table, ["case"])}
    text = [rule(__doc__), *sentences(table, table_of(sweep), compared, along)]
    files = [path for one in [*runs, *sweep] for path in one.planned.files]
    title = "Open question 2: a learning rate ratio from measured curvature"
    return Finding(title, verdicts, panels, tables, text, files)


if __name__ == "__main__":
    run("open_curvature_rate", claim)
