"""C7: what Proposition 4.1 leaves out when it turns proportionality into a learning rate ratio.

Rule, fixed before the numbers were seen. The prediction without a constant, as a learning rate uses it, is supported if
the 95 % interval (bootstrap over runs) of the mean factor between ratio and prediction, over all checkpoints and every
run with the same weight, lies within 1/2 ... 2; not supported if it lies wholly outside; else undecided. Adam and SGD
are judged apart.
"""

from __future__ import annotations

from pathlib import Path

import c7_figures
import numpy as np
import pandas as pd
from c7_balance import GRADIENT, PARTS, all_points, all_runs, fit
from c7_figures import OPTIMIZERS, PHASES, PREDICTION
from evidence import Finding, Panel, Run, Verdict, rule, run
from intervals import clustered_line, columns, within, words

FACTOR = (-1.0, 1.0)


def alignments(one: Run) -> pd.DataFrame:
    """The factors that the proportionalities omit: |dL/dW| and |dL/dE| over sigma_max(G) sigma_max of the other.

    dL/dW_k = G_k E and dL/dE = sum of G_k' W_k (F14): their quotient is gradient_ratio over its prediction.
    """
    hessian = one.hessian("top")
    at = one.data.sel(step=hessian["step"].values)
    sigma = {b: np.linalg.norm(at[b].values.astype(float), 2, axis=(1, 2)) for b in ("E", "W")}
    share = {b: hessian["grad_norm"].sel(block=b).values / hessian["saddle_bound"].values for b in ("E", "W")}
    label = {"optimizer": one.planned.config.optimizer, "step": at["step"].values}
    return pd.DataFrame({**label, "of_W": share["W"] / sigma["E"], "of_E": share["E"] / sigma["W"]})


def by_norms(one: Run) -> pd.DataFrame:
    """log2 of gradient_ratio beside that of the Frobenius norms' ratio, at every row of metrics."""
    data = one.data
    with np.errstate(all="ignore"):
        x, y = (np.log2(data[a].values / data[b].values) for a, b in (("weight_norm_E", "weight_norm_W"), GRADIENT[1]))
    table = pd.DataFrame({"x": x, "y": y, "optimizer": one.planned.config.optimizer, "run": one.name})
    return table.replace([np.inf, -np.inf], np.nan).dropna()


def phases(known: pd.DataFrame) -> pd.DataFrame:
    """One row per ratio, optimizer and phase: the mean factor between ratio and prediction with its interval."""
    rows = []
    for key in PARTS:
        part = known[(known["quantity"] == key[0]) & (known["optimizer"] == key[1])]
        for phase in ("all", *PHASES):
            chosen = part if phase == "all" else part[part["phase"] == phase]
            if len(chosen):
                row = {"quantity": key[0], "optimizer": key[1], "phase": phase, "runs": chosen["run"].nunique()}
                rows.append({**row, "seeds": chosen["seed"].nunique(), **columns("factor", fit(chosen)["factor"])})
    return pd.DataFrame(rows)


def middle(sample: pd.Series) -> str:
    """Median and middle 80 % in words."""
    return f"{sample.median():.3g} (middle 80 %: {sample.quantile(0.1):.3g} to {sample.quantile(0.9):.3g})"


def claim(folder: Path) -> Finding:
    """The factor between ratio and prediction over all checkpoints of five studies."""
    runs = all_runs(folder)
    known = all_points(runs)
    share = pd.concat([alignments(one) for one in runs if one.planned.hessian], ignore_index=True)
    norms, factors, verdicts = pd.concat(map(by_norms, runs)), phases(known), []
    text = [rule(__doc__)]
    for row in factors[factors["phase"] == "all"].itertuples():
        number = (row.factor, row.factor_low, row.factor_high)
        what = f"{row.quantity}_ratio under {OPTIMIZERS[row.optimizer]} is {PREDICTION[row.quantity]}"
        judged = within(tuple(np.log2(number)), *FACTOR)
        line = f"measured / predicted {words(*number)}"
        verdicts.append(Verdict("C7", f"{what} within a factor of 2, with no constant", judged, line, row.seeds))
        mine = factors[(factors["quantity"] == row.quantity) & (factors["optimizer"] == row.optimizer)]
        told = [f"{p.phase} {words(p.factor, p.factor_low, p.factor_high)}" for p in mine.itertuples()]
        text.append(f"**{row.quantity.capitalize()} ratio, {OPTIMIZERS[row.optimizer]}.** By phase: {'; '.join(told)}.")
    for optimizer, part in share.groupby("optimizer"):
        spread = np.log2(part[["of_W", "of_E"]]).std()
        other = norms[norms["optimizer"] == optimizer]
        by_norm = clustered_line(other["x"], other["y"], other["run"])
        text.append(
            f"**Where it comes from, {OPTIMIZERS[optimizer]}.** With G the gradient by the table rows (F14), ‖∂L/∂W‖ "
            f"is σ_max(G) σ_max(E) times {middle(part['of_W'])} in {len(part)} checkpoints, and ‖∂L/∂E‖ is "
            f"σ_max(G) σ_max(W) times {middle(part['of_E'])}. The quotient of the two is what stands between gradient "
            f"ratio and prediction; the proposition takes both for constants, and the standard deviation of their log₂ "
            f"is {spread['of_W']:.2g} and {spread['of_E']:.2g}. With Frobenius norms in place of σ_max, ‖E‖/‖W‖, the "
            f"slope of the gradient ratio is {words(*by_norm['slope'])} and R² {words(*by_norm['r2'])}."
        )
    figure, drawn = c7_figures.constants(known)
    caption = (
        f"What the proportionality leaves out, along training: measured over predicted ratio, median (line) and middle "
        f"80 % (band) over the checkpoints of {len(runs)} runs. A constant would be level."
    )
    title = "Proposition 4.1: the constants it leaves out"
    tables = {"phases": factors, "alignments": share}
    files = [path for one in runs for path in one.planned.files]
    return Finding(title, verdicts, [Panel("c7_constants", figure, drawn, caption)], tables, text, files)


if __name__ == "__main__":
    run("c7_constants", claim)
