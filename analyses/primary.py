"""The primary tests of the article: x of each seed from the tables of a size, positive where what is asked is so.

Their definitions are those of studies/PROTOCOL.md; verdicts.py judges them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pandas as pd
from claims import Numbers, Test, difference, log_ratio, middle, ratio
from tables import Scale, studies

SIZES = ("quick", "mid")
FORK = {"quick": 1000, "mid": 300}
"""Step from which the runs of `cut` differ, by size."""
SETTINGS = tuple(itertools.product((0.01, 0.03, 0.1), (0.0002, 0.001)))
"""Learning rate and weight decay of the study `grid`."""
BEST = {
    "quick": {"embedding": (0.1, 0.001), "onehot": (0.1, 0.0002)},
    "mid": {"embedding": (0.03, 0.001), "onehot": (0.03, 0.0002)},
}
"""Learning rate and weight decay of the pilots that grokked soonest."""
RECORD = 25
"""Steps between two records."""
STEP = 2.5
"""Between neighbouring rates of the grid."""


def settled_depths(scale: Scale, *blocks: str) -> Numbers:
    """ln of the ratio of the depths of two blocks at settled points."""
    rows = (-scale.rows("curvature", study="settled", analysis="settled", block=b)["lowest"] for b in blocks)
    return difference(*rows, log_ratio)


def bias_gradient(scale: Scale) -> Numbers:
    return (2 - scale.rows("settled", study="settled", analysis="settled")["bias_gradient"]).to_dict()


def waits(scale: Scale, case: str) -> pd.Series:
    """Steps from the fork to grokking, at least those between two records; NaN: never."""
    return (scale.runs("cut", case=case)["grokked"] - FORK[scale.name]).clip(lower=RECORD)


def cut(scale: Scale, case: str, other: str, least: float = 1.0) -> Numbers:
    """How much longer the wait of a case is than `least` times that of another; 0 where a run had grokked before."""
    undisturbed = scale.runs("cut", case="none")["grokked"] - FORK[scale.name]
    x = {}
    for seed, longer in difference(waits(scale, case), waits(scale, other)).items():
        came = scale.runs("cut", seed=seed).query("case in [@case, @other]")["grokked"].notna().any()
        x[seed] = longer - math.log(least) if came and not undisturbed.get(seed, math.nan) <= 0 else 0.0
    return x


def grids(scale: Scale) -> dict[int, pd.Series]:
    """By seed with all cells, the step of grokking by the rates of E and of all else."""
    runs = scale.runs("rates").reset_index().set_index(["seed", "lr_E", "lr"])["grokked"]
    cells = math.prod(map(len, studies(scale.name)["rates"]["grid"].values()))
    return {seed: of.droplevel("seed") for seed, of in runs.groupby(level="seed") if len(of) == cells}


def plane(grid: pd.Series) -> tuple[float, float]:
    """Slopes of ln(step) in ln(rate of E) and ln(rate of all else), over the cells that grokked."""
    known = grid.dropna()
    if len(known) < 3:
        return math.nan, math.nan
    rates = np.log(np.array(known.index.tolist()))
    _, *slopes = np.linalg.lstsq(np.column_stack([np.ones(len(rates)), rates]), np.log(known), rcond=None)[0]
    return slopes[0], slopes[1]


def of_E_alone(scale: Scale) -> Numbers:
    slopes = {seed: plane(grid) for seed, grid in grids(scale).items()}
    return {seed: abs(of_E) - 3 * abs(of_W) for seed, (of_E, of_W) in slopes.items()}


def by_diagonal(grid: pd.Series) -> dict[float, pd.DataFrame]:
    """By ln of the product of both rates the cells that grokked, with ln of the rate of E over that of all else.

    Products of which three or more cells grokked.
    """
    table = grid.dropna().rename("step").reset_index()
    table["ratio"] = np.log(table["lr_E"] / table["lr"])
    product = np.log(table["lr_E"] * table["lr"])
    groups = table.groupby(product.div(math.log(STEP)).round())
    return {float(product[of.index].mean()): of for _, of in groups if len(of) >= 3}


def best_ratios(grid: pd.Series) -> pd.Series:
    """By ln of the product, ln of the best rate of E over that of all else."""
    return pd.Series(
        {at: of.loc[of["step"] == of["step"].min(), "ratio"].mean() for at, of in by_diagonal(grid).items()}
    )


def ridge(scale: Scale) -> Numbers:
    """How far within a step of the grid the best ratio of rates is from Proposition 4.1's."""
    equal = scale.runs("rates", lr_E=0.01, lr=0.01)["sigma_ratio"]
    return {
        seed: math.log(STEP) - abs(best_ratios(grid).median() - math.log(equal[seed]))
        for seed, grid in grids(scale).items()
    }


def delays(scale: Scale, model: str, lr: float, decay: float) -> pd.Series:
    """Steps from memorising to grokking, at least those between two records; NaN: never."""
    return scale.runs("grid", case=model, lr=lr, weight_decay=decay)["delay"].clip(lower=RECORD)


def at_equal(scale: Scale) -> Numbers:
    """The median over six settings of how much later an embedding groks than one-hot input."""
    each = pd.DataFrame(
        {at: difference(delays(scale, "embedding", *at), delays(scale, "onehot", *at)) for at in SETTINGS}
    )
    return {seed: middle(row) for seed, row in zip(each.index, each.to_numpy().tolist(), strict=True)}


def at_best(scale: Scale) -> Numbers:
    best = BEST[scale.name]
    return difference(*(delays(scale, model, *best[model]) for model in ("embedding", "onehot")))


def better_than_one(scale: Scale, phase: str) -> Numbers:
    runs = scale.runs("cut", case="none")
    return difference(runs[f"miss_one_{phase}"], runs[f"miss_prop41_{phase}"], log_ratio)


def crossed(scale: Scale, *cases: str) -> Numbers:
    return difference(*(scale.runs("crossed", case=case)["grokked"] for case in cases))


DELAY = "delay, embedding over one-hot input"
GROKKED = "step of grokking, L2 over nuclear norm"
MISS = "miss of the constant 1 over that of Proposition 4.1"
PRIMARY: dict[str, Test] = {
    "P1": Test(
        "Settled, E,W is no more than twice as deep as on the operands' rows",
        "λ_min(E,W) over λ_min(E[operands],W)",
        ratio(2, turned=True),
        lambda s: {seed: math.log(2) - x for seed, x in settled_depths(s, "E,W", "E[operands],W").items()},
    ),
    "P2": Test(
        "Settled, the constant tokens' regularised depth is below λ",
        "‖∂L/∂b₁‖ / λ (asked: below 2)",
        lambda x: 2 - x,
        bias_gradient,
    ),
    "P3": Test(
        "Settled, E,W is deeper than W,V",
        "λ_min(E,W) over λ_min(W,V)",
        ratio(),
        lambda s: settled_depths(s, "E,W", "W,V"),
    ),
    "P4": Test(
        "Steps along the lowest eigenvector of E,W cut the wait to at most 0.8 of that with random steps",
        "wait, kicked along E,W over kicked at random",
        ratio(0.8, turned=True),
        lambda s: {seed: -x for seed, x in cut(s, "EW", "random", 0.8).items()},
    ),
    "P5": Test(
        "Without its lowest directions of E,W a network waits longer",
        "wait, held over left alone",
        ratio(),
        lambda s: cut(s, "held", "none"),
    ),
    "P6": Test(
        "Grokking follows the rate of E alone", "|slope in η of E| − 3 |slope in η of all else|", float, of_E_alone
    ),
    "P7": Test(
        "The best ratio of rates at a product of both is that of Proposition 4.1, to a step of the grid",
        "factor between both ratios",
        ratio(STEP, turned=True),
        ridge,
    ),
    "P8": Test("At equal hyperparameters an embedding lengthens the delay", DELAY, ratio(), at_equal),
    "P9": Test("Each at its best an embedding lengthens the delay", DELAY, ratio(), at_best),
    "P10": Test(
        "From memorising to grokking Proposition 4.1 predicts better than the constant 1",
        MISS,
        ratio(),
        lambda s: better_than_one(s, "plateau"),
    ),
    "P11": Test(
        "Before memorising Proposition 4.1 predicts better than the constant 1",
        MISS,
        ratio(),
        lambda s: better_than_one(s, "before"),
    ),
    "P12": Test(
        "With the weight decay of V of the L2 arm the nuclear norm still groks sooner",
        GROKKED,
        ratio(),
        lambda s: crossed(s, "l2", "nuclear-V"),
    ),
    "P13": Test(
        "With the weight decay of V of the nuclear arm L2 still groks later",
        GROKKED,
        ratio(),
        lambda s: crossed(s, "l2-V", "nuclear"),
    ),
}
READS = {
    "settled": ("P1", "P2", "P3"),
    "cut": ("P4", "P5", "P10", "P11"),
    "rates": ("P6", "P7"),
    "grid": ("P8", "P9"),
    "crossed": ("P12", "P13"),
}
"""The tests that read the runs of a study; those of `rates` are over the seeds of both sizes."""


def measured(root: Path) -> dict[tuple[str, str], dict[Hashable, float]]:
    """x of every test, by its name and size, or "both", and by size and seed. Exits for a seed without one."""
    by_test: dict[tuple[str, str], dict[Hashable, float]] = {}
    study_of = {name: study for study, names in READS.items() for name in names}
    for (name, test), size in itertools.product(PRIMARY.items(), SIZES):
        x = test.x(Scale(root / size))
        for seed in studies(size)[study_of[name]]["seeds"]:
            if math.isnan(x.get(seed, math.nan)):
                sys.exit(f"error: {name} at {size} has no number for seed {seed}\nhint: make studies")
            at = "both" if study_of[name] == "rates" else size
            by_test.setdefault((name, at), {})[size, seed] = x[seed]
    return by_test
