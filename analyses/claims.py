"""The paper's claims, and four beside them: one number x a seed from the tables of a size, positive where one holds.

Their definitions are those of studies/PROTOCOL.md; verdicts.py judges them.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from exact import later
from scipy import stats
from tables import PLAIN, Scale, prop41_constant

Numbers = Mapping[int, float]
"""x by seed."""


@dataclasses.dataclass(frozen=True)
class Test:
    """What is asked, what the effect that readers see measures and how it follows from x, and x itself."""

    asked: str
    measure: str
    effect: Callable[[float], float]
    x: Callable[[Scale], Numbers]


def ratio(times: float = 1.0, turned: bool = False) -> Callable[[float], float]:
    """The effect times · e^x, or times / e^x."""
    return lambda x: times * float(np.exp(-x if turned else x))


def counted(runs: pd.DataFrame) -> pd.Series:
    """The step at which each run grokked, or, if it never did, the steps that it was watched."""
    return runs["grokked"].fillna(runs["watched"])


def difference(one: pd.Series, other: pd.Series, by: Callable[[float, float], float] = later) -> Numbers:
    """How much later, or by another measure greater, one is than the other, for the seeds that both have."""
    return {seed: by(one[seed], other[seed]) for seed in one.index.intersection(other.index)}


def log_ratio(one: float, other: float) -> float:
    return math.log(one / other)


def grokked(scale: Scale, study: str, *cases: str) -> Numbers:
    """How much later the first case of a study groks than the second."""
    return difference(*(scale.runs(study, case=case)["grokked"] for case in cases))


def depth(scale: Scale, block: str, study: str = "curvature", case: str = "c1", analysis: str = "plateau") -> pd.Series:
    """|λ_min| of a block, on the plateau unless another analysis is named."""
    return -scale.rows("curvature", study=study, case=case, analysis=analysis, block=block)["lowest"]


def depths(scale: Scale, *blocks: str, **where: str) -> Numbers:
    """The logarithm of the first block's depth over the second's."""
    return difference(*(depth(scale, block, **where) for block in blocks), log_ratio)


def frequency_and_norm(tokens: pd.DataFrame) -> pd.Series:
    """By seed, the rank correlation of a token's places in training samples with the norm of its embedding."""
    of = {seed: stats.spearmanr(rows["count"], rows["norm"]).statistic for seed, rows in tokens.groupby(level="seed")}
    return pd.Series(of)


def skewed_later(scale: Scale) -> Numbers:
    """How much later skewed tokens grok than uniform ones, in the mean over sizes of batches."""

    def cost(size: int) -> Numbers:
        return difference(*(counted(scale.runs("sampling", sampler=s, batch_size=size)) for s in ("skewed", "uniform")))

    small, large = cost(64), cost(512)
    return {seed: float(np.mean([small[seed], large[seed]])) for seed in small.keys() & large.keys()}


def delay(scale: Scale) -> Numbers:
    return difference(*(scale.runs("delay", case=case)["delay"] for case in ("embedding", "onehot")))


def rare_tokens(scale: Scale) -> Numbers:
    rows = (scale.rows("tokens", study=study) for study in ("sampling", "rare"))
    return difference(*map(frequency_and_norm, rows), operator.sub)


def gap(scale: Scale) -> Numbers:
    """How much smaller |ln(λ_max(W)/λ_max(E))| is under c = 10."""
    rows = [scale.rows("curvature", **{**PLAIN, "case": c}, analysis="top-plateau", block="E") for c in ("c1", "c10")]
    return difference(*(np.log(of["curvature_ratio"]).abs() for of in rows), operator.sub)


def falls(scale: Scale) -> Numbers:
    """How much nearer, in logarithms of steps, events are to the falls of the claimed blocks than to the others."""

    def nearer(event: float, one: float, other: float) -> float:
        # An event that never came is later than both.
        return one - other if math.isnan(event) else abs(event - other) - abs(event - one)

    top = scale.rows("curvature", **PLAIN, analysis="top")
    top = top[top["step"] > 0].set_index(["block", "step"], append=True)["highest"].sort_index()
    gains = {}
    for seed, run in scale.runs(**PLAIN).iterrows():
        fall = {block: math.log(top.loc[seed, block].idxmax()) for block in ("E", "W")}
        m, g = math.log(run["memorised"]), math.log(run["half"])
        gains[seed] = nearer(m, fall["W"], fall["E"]) + nearer(g, fall["E"], fall["W"])
    return gains


def balance(scale: Scale) -> Numbers:
    """How far Proposition 4.1's constant stays within a factor of two on the plateau."""
    margins = {}
    for seed, run in scale.runs(**PLAIN).iterrows():
        records = scale.rows("metrics", **PLAIN, seed=seed).set_index("step")
        margins[seed] = float((math.log(2) - prop41_constant(records, run).abs()).median())
    return margins


def frequency_term(scale: Scale) -> Numbers:
    return {seed: -math.log(f_E) - math.log(1.05) for seed, f_E in scale.runs(**PLAIN)["f_E"].items()}


def measured_rate(scale: Scale) -> Numbers:
    return difference(scale.runs("curvature", case="c10")["grokked"], scale.runs("pace", case="curvature")["grokked"])


def cost_of_decay(scale: Scale) -> Numbers:
    """How much more skewed tokens cost under more weight decay."""

    def cost(decay: float) -> pd.Series:
        pair = (counted(scale.runs("decay", sampler=s, weight_decay=decay)) for s in ("skewed", "uniform"))
        return pd.Series(difference(*pair))

    return difference(cost(0.002), cost(0.0005), operator.sub)


def four_tokens(scale: Scale) -> dict[str, str]:
    """The runs with four tokens: the ordinary ones, but at `quick`."""
    four = (scale.runs(**PLAIN)["tokens"] == 4).all()
    return {"study": "curvature", "case": "c1"} if four else {"study": "constants", "case": "four"}


def constant_tokens(scale: Scale) -> Numbers:
    x = depths(scale, "E,W", "E[operands],W", **four_tokens(scale))
    return {seed: ratio - math.log(2) for seed, ratio in x.items()}


def middle(values: Sequence[float]) -> float:
    """The median of an even number of values; 0 between opposite infinities, NaN where one is missing."""
    if any(map(math.isnan, values)):
        return math.nan
    low, high = sorted(values)[len(values) // 2 - 1 :][:2]
    return 0.0 if low == -high else (low + high) / 2


RHO = "rank correlation of frequency and norm, small batches minus full ones"
COST = "cost of skew at weight decay 0.002 over that at 0.0005"
CLAIMS: dict[str, Test] = {
    "C1": Test("An embedding lengthens the delay", "delay, embedding over one-hot input", ratio(), delay),
    "C2": Test("Rare tokens stay behind because batches leave them out while they decay", RHO, float, rare_tokens),
    "C3": Test(
        "Uniform sampling groks before skewed",
        "step of grokking, skewed over uniform",
        ratio(),
        skewed_later,
    ),
    "C4": Test(
        "The coupling of E and W is deeper than that of W and V on the plateau",
        "λ_min(E,W) over λ_min(W,V)",
        ratio(),
        lambda s: depths(s, "E,W", "W,V"),
    ),
    "C5": Test(
        "W is more curved than E, and Adam-LR narrows the gap", "gap of curvatures, c = 1 over c = 10", ratio(), gap
    ),
    "C6": Test(
        "Memorising goes with the fall of W's top eigenvalue, grokking with that of E's",
        "distance of events from falls, the other order over the claimed one",
        ratio(),
        falls,
    ),
    "C7": Test(
        "Gradients obey Proposition 4.1 to a factor of two on the plateau",
        "factor by which the ratio of gradients misses the predicted one",
        ratio(2, turned=True),
        balance,
    ),
    "C8": Test(
        "Adam-LR (c = 10) groks sooner",
        "step of grokking, c = 1 over c = 10",
        ratio(),
        lambda s: grokked(s, "curvature", "c1", "c10"),
    ),
    "C9": Test(
        "The frequency term f_W/f_E changes c at the paper's batch size",
        "f_W over f_E in the batches drawn",
        ratio(1.05),
        frequency_term,
    ),
    "O2": Test(
        "c from measured curvature groks sooner than c = 10",
        "step of grokking, c = 10 over curvature",
        ratio(),
        measured_rate,
    ),
    "O3": Test("Skewed tokens cost more time under more weight decay", COST, ratio(), cost_of_decay),
    "D1": Test(
        "The depth of E,W lies on the constant tokens",
        "λ_min(E,W) over λ_min(E[operands],W)",
        ratio(2),
        constant_tokens,
    ),
    "D2": Test(
        "It is the regulariser of the embedding that generalises, not its coupling",
        "step of grokking, tables with L2 over tables with a nuclear norm",
        ratio(),
        lambda s: grokked(s, "tables", "l2", "nuclear"),
    ),
}
SEEDS = range(100, 110)
