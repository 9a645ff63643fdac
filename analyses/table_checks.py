"""What the runs behind the claims can and cannot show

Exploratory, added after the verdicts. C2: if batches of 64 have not memorised by the step at which norms are compared,
untrained networks are compared with trained ones, which tests nothing. C6: where both blocks peak before memorising, x
is 0 whatever follows; the seeds left allow no smaller p than the one given.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from tables import PLAIN, Scale, count, factor, interval, main, number, ratio, scales, step, which

TOP = {**PLAIN, "analysis": "top-plateau", "block": "E"}


def wait_to_half(scale: Scale) -> str:
    of, over = (scale.runs("delay", case=case) for case in ("embedding", "onehot"))
    waits = (of["half"] - of["memorised"]) / (over["half"] - over["memorised"])
    with np.errstate(divide="ignore"):
        return factor(np.log(waits.dropna()).tolist())


def onehot_grokked(scale: Scale) -> str:
    return count(scale.runs("delay", case="onehot")["grokked"])


def scalars_memorised(scale: Scale) -> str:
    return count(scale.runs("delay", case="scalar")["memorised"])


def trained_by_then(scale: Scale) -> str:
    at = scale.rows("tokens", study="rare").groupby(level="seed")["step"].first()
    small = scale.runs("sampling", sampler="skewed", batch_size=64)["memorised"]
    full = scale.runs("rare", case="full")["memorised"]
    return f"{(small <= at).sum()} and {(full <= at).sum()} of {len(at)}, step {step(at)}"


def large_batches(scale: Scale) -> str:
    return ratio(*(scale.runs("sampling", sampler=sampler, batch_size=512) for sampler in ("skewed", "uniform")))


def without_constants(scale: Scale) -> str:
    lowest = scale.pivot("lowest", **PLAIN, analysis="plateau")
    block = "E[operands],W" if "E[operands],W" in lowest else "E,W"
    return factor(np.log(lowest[block] / lowest["W,V"]).tolist())


def more_curved(scale: Scale) -> str:
    ratios = scale.rows("curvature", **TOP)["curvature_ratio"]
    return f"{(ratios > 1).sum()} of {len(ratios)}"


def operands_curvature(scale: Scale) -> str:
    highest = scale.pivot("highest", **PLAIN, analysis="plateau")
    return factor(np.log(highest["E[operands]"] / highest["E"]).tolist()) if "E[operands]" in highest else "–"


def gap_of_operands(scale: Scale) -> str:
    rows = which(scale.tables["curvature"], study="operands", analysis="top-plateau")
    if rows.empty:
        return "–"
    highest = rows.set_index(["case", "seed", "block"])["highest"].unstack()
    gap = np.log(highest["W"] / highest["E[operands]"]).abs()
    return factor((gap["c1"] - gap["c10"]).dropna().tolist())


def peaks(scale: Scale) -> pd.DataFrame:
    """By seed, the analysed step after 0 at which λ_max of each block is highest under c = 1."""
    top = scale.rows("curvature", **PLAIN, analysis="top").reset_index()
    return top[top["step"] > 0].sort_values("highest").groupby(["seed", "block"])["step"].last().unstack("block")


def blind(scale: Scale) -> str:
    highest = peaks(scale).max(axis=1)
    return f"{(highest <= scale.runs(**PLAIN)['memorised']).sum()} of {len(highest)}"


def least_p(scale: Scale) -> str:
    moved = int((scale.rows("seeds", claim="C6")["x"] != 0).sum())
    return number(min(1.0, 2.0 ** (1 - moved)))


def slope(scale: Scale) -> str:
    slopes = []
    for seed, run in scale.runs(**PLAIN).iterrows():
        records = scale.rows("metrics", **PLAIN, seed=seed)
        records = records[(records["step"] >= run["memorised"]) & ~(records["step"] > run["grokked"])]
        x = np.log(records["sigma_max_E"] / records["sigma_max_W"])
        slopes.append(float(np.polyfit(x, np.log(records["grad_norm_W"] / records["grad_norm_E"]), 1)[0]))
    return interval(slopes)


def curvature_off(scale: Scale) -> str:
    distances = []
    for seed, row in scale.rows("curvature", **TOP).iterrows():
        records = scale.rows("metrics", **PLAIN, seed=seed)
        near = records.iloc[(records["step"] - row["step"]).abs().argmin()]
        distances.append(abs(math.log(row["curvature_ratio"] * (near.sigma_max_W / near.sigma_max_E) ** 2)))
    return factor(distances)


def smallest_batches(scale: Scale) -> str:
    f_E = scale.runs("sampling", sampler="random", batch_size=64)["f_E"]
    return factor((-np.log(f_E)).tolist())


CHECKS: dict[tuple[str, str], Callable[[Scale], str]] = {
    ("C1", "wait from memorising to 50 % test accuracy, embedding over one-hot"): wait_to_half,
    ("C1", "one-hot runs that grokked"): onehot_grokked,
    ("C1", "runs that read numbers as scalars and memorised"): scalars_memorised,
    ("C2", "runs that memorised by the compared step, batches of 64 and full ones"): trained_by_then,
    ("C3", "step of grokking, skewed over uniform, batches of 512 alone"): large_batches,
    ("C4", "depth of the operands' rows of E, and W, over W,V"): without_constants,
    ("C5", "runs with λ_max(W) above λ_max(E) under c = 1"): more_curved,
    ("C5", "λ_max of the operands' rows of E over that of E"): operands_curvature,
    ("C5", "gap with these rows in the place of E, c = 1 over c = 10"): gap_of_operands,
    ("C6", "seeds in which x is 0 by construction"): blind,
    ("C6", "least p that the other seeds allow"): least_p,
    ("C7", "slope of ln gradient ratio over ln σ ratio, 1 if proportional"): slope,
    ("C7", "factor by which the ratio of curvatures misses the predicted one"): curvature_off,
    ("C9", "f_W over f_E in random batches of 64"): smallest_batches,
}


def table(root: Path) -> pd.DataFrame:
    all_scales = scales(root)
    rows = [
        {"claim": claim, "check": words} | {one.name: of(one) for one in all_scales}
        for (claim, words), of in CHECKS.items()
    ]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
