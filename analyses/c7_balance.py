"""C7: do the gradient ratio and the curvature ratio follow sigma_max(E)/sigma_max(W) and its square?

Rule, fixed before the numbers were seen. Over all checkpoints, log2 of the ratio is fitted by log2 of its prediction,
every run with the same weight. The proportionality is supported if the 95 % interval (bootstrap over runs) of the slope
lies within 0.8 ... 1.25 and that of R2 above 0.5; not supported if one of the two lies wholly outside; else undecided.
Adam and SGD are judged apart.
"""

from __future__ import annotations

from pathlib import Path

import c7_figures
import numpy as np
import pandas as pd
from c7_figures import OPTIMIZERS, PHASES, PREDICTION, Numbers
from evidence import Finding, Panel, Run, Verdict, distinct, rule, run, study
from intervals import all_of, clustered_line, columns, within, words
from scipy import stats

STUDIES = ("curvature", "ratios", "prop41", "sgd", "policies")
SLOPE, R2 = (0.8, 1.25), (0.5, 1.0)
GRADIENT = (("sigma_max_E", "sigma_max_W"), ("grad_norm_W", "grad_norm_E"))
PARTS = [(quantity, optimizer) for quantity in PREDICTION for optimizer in OPTIMIZERS]


def points(one: Run) -> pd.DataFrame:
    """log2 of gradient_ratio at every row of metrics, of curvature_ratio at every analysed step, and of predictions."""
    config, data = one.planned.config, one.data
    with np.errstate(all="ignore"):
        x, y = (np.log2(data[a].values / data[b].values) for a, b in GRADIENT)
    found = [pd.DataFrame({"quantity": "gradient", "step": data["metric_step"].values, "predicted": x, "observed": y})]
    for name in one.planned.hessian:
        hessian = one.hessian(name)
        x, y = (np.log2(hessian[key].values) for key in ("curvature_ratio_predicted", "curvature_ratio"))
        at = hessian["step"].values
        found.append(pd.DataFrame({"quantity": "curvature", "step": at, "predicted": x, "observed": y}))
    table = pd.concat(found).replace([np.inf, -np.inf], np.nan)
    phase = sum((table["step"] >= one.times[when]).astype(int) for when in ("memorised", "grokked"))
    labels = {"optimizer": config.optimizer, "case": one.labels["case"], "seed": config.seed, "run": one.name}
    return table.assign(phase=[PHASES[i] for i in phase], **labels)


def per_run(table: pd.DataFrame) -> pd.DataFrame:
    """One row per run and ratio: slope, R2 and the mean factor between ratio and prediction."""
    rows = []
    for labels, part in table.groupby(["quantity", "optimizer", "case", "run", "seed"]):
        fit = stats.linregress(part["predicted"], part["observed"])
        factor = 2 ** (part["observed"] - part["predicted"]).mean()
        numbers = {"checkpoints": len(part), "slope": fit.slope, "r2": fit.rvalue**2, "factor": factor}
        rows.append({**dict(zip(("quantity", "optimizer", "case", "run", "seed"), labels, strict=True)), **numbers})
    return pd.DataFrame(rows)


def fit(table: pd.DataFrame) -> Numbers:
    """The line through some checkpoints, by runs, and the factor between ratio and prediction."""
    found = clustered_line(table["predicted"], table["observed"], table["run"])
    return {**found, "factor": tuple(2.0**end for end in found["offset"])}


def per_group(table: pd.DataFrame) -> pd.DataFrame:
    """One row per ratio, optimizer and group of checkpoints: all, one phase, the first step, one case, one seed."""
    rows = []
    for (quantity, optimizer), part in table.groupby(["quantity", "optimizer"]):
        # Runs that differ in c alone start as the same network.
        start = part[part["step"] == 0].drop_duplicates(["predicted", "observed"])
        groups = {"all": part, "step 0": start}
        for column in ("phase", "case", "seed"):
            groups |= {f"{column} {value}": chosen for value, chosen in part.groupby(column)}
        for group, chosen in groups.items():
            row = {"quantity": quantity, "optimizer": optimizer, "group": group, "runs": chosen["run"].nunique()}
            row["checkpoints"] = len(chosen)
            for name, number in fit(chosen).items():
                row |= columns(name, number)
            rows.append(row)
    return pd.DataFrame(rows)


def thin(table: pd.DataFrame, per_decade: int = 8) -> pd.DataFrame:
    """The checkpoints nearest to steps spread evenly over the logarithm, for a legible figure."""
    slot = np.floor(np.log10(table["step"].clip(lower=0.5)) * per_decade)
    return table.groupby([table["quantity"], table["run"], slot.rename("slot")]).first().reset_index()


def sentence(key: tuple[str, str], number: Numbers, groups: pd.DataFrame) -> str:
    """The report's paragraph on one ratio under one optimizer."""
    at = groups.set_index(["quantity", "optimizer", "group"]).loc[key]
    whole, start, by_seed = at.loc["all"], at.loc["step 0"], at.filter(like="seed", axis=0)["slope"]
    count = {name: f"{row['checkpoints']:,.0f}" for name, row in (("all", whole), ("start", start))}

    def of(row: pd.Series) -> str:
        slope, r2 = (words(row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in ("slope", "r2"))
        return f"slope {slope}, R² {r2}"

    phases = "; ".join(f"{name} {of(at.loc[f'phase {name}'])}" for name in PHASES if f"phase {name}" in at.index)
    return (
        f"**{key[0].capitalize()} ratio, {OPTIMIZERS[key[1]]}.** {count['all']} checkpoints of "
        f"{whole['runs']:.0f} runs: log₂ of the ratio rises by {words(*number['slope'])} for each unit of log₂ "
        f"{PREDICTION[key[0]]} (the proposition: 1), with intercept {words(*number['intercept'])} and R² "
        f"{words(*number['r2'])}; about the line of the prediction itself R² is {words(*number['r2_identity'])}. With "
        f"a constant of its own for every run the slope is {words(*number['slope_within'])}, and the line explains "
        f"{words(*number['r2_within'])} of what changes within runs. Seed by seed the slope is {by_seed.min():.3g} to "
        f"{by_seed.max():.3g}. Among the {count['start']} different networks at step 0, which differ in scale, "
        f"task, width and seed alone: {of(start)}. Within a phase of training, where the prediction changes less, "
        f"which decides nothing: {phases}."
    )


def all_points(runs: list[Run]) -> pd.DataFrame:
    """Every checkpoint of the runs at which ratio and prediction are known."""
    return pd.concat([points(one) for one in runs], ignore_index=True).dropna()


def all_runs(folder: Path) -> list[Run]:
    """The runs of five studies, without duplicates."""
    return distinct([one for name in STUDIES for one in study(name, folder)])


def claim(folder: Path) -> Finding:
    """C7 over all checkpoints of five studies."""
    runs = all_runs(folder)
    known = all_points(runs)
    by_part = dict(list(known.groupby(["quantity", "optimizer"])))
    found = {part: fit(by_part[part]) for part in PARTS if part in by_part}
    verdicts = []
    for (quantity, optimizer), number in found.items():
        follows = all_of(within(number["slope"], *SLOPE), within(number["r2"], *R2))
        what = f"{quantity}_ratio under {OPTIMIZERS[optimizer]} is proportional to {PREDICTION[quantity]}"
        line = f"log-log slope {words(*number['slope'])}, R² {words(*number['r2'])}"
        seeds = by_part[quantity, optimizer]["seed"].nunique()
        verdicts.append(Verdict("C7", what, follows, line, seeds))
    groups, drawn = per_group(known), thin(known)
    caption = (
        f"Measured ratio against its prediction over the checkpoints of {len(runs)} runs (eight per decade of steps "
        "and run are drawn). Dashed: prediction. Solid: least squares over checkpoints, each run of the same weight."
    )
    text = [
        rule(__doc__),
        *(sentence(key, number, groups) for key, number in found.items()),
        "Part of this is the chain rule: ∂L/∂W_k = G_k E and ∂L/∂E = Σ G_kᵀ W_k with the same G (F14), so that the "
        "larger factor goes with the smaller gradient in any bilinear layer. Runs of one seed share their split and "
        "initial draw, so that intervals over runs are, if anything, too narrow: the range over seeds stands beside. "
        "Seeds were added to the studies of ratios and of SGD, and checkpoints a run of ratios taken away, when "
        "results of fewer seeds were known.",
    ]
    panel = Panel("c7_balance", c7_figures.balance(drawn, found), drawn, caption)
    tables = {"runs": per_run(known), "groups": groups}
    title = "Proposition 4.1: gradients and curvature against σ_max(E)/σ_max(W)"
    return Finding(title, verdicts, [panel], tables, text, [path for one in runs for path in one.planned.files])


if __name__ == "__main__":
    run("c7_balance", claim)
