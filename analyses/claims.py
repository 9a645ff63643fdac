"""Every claim that the trial tests: one number x a seed from the tables of a scale, positive where the claim holds.

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
from tables import PLAIN, SIZES, Scale, number, prop41_constant

Numbers = Mapping[int, float]
"""x by seed."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, what its effect measures, and its x.

    The effect that readers see is the difference x itself, or the ratio times · e^x, turned over: times / e^x.
    """

    statement: str
    measure: str
    x: Callable[[Scale], Numbers]
    is_difference: bool = False
    times: float = 1
    turned: bool = False

    def effect(self, x: float) -> float:
        if self.is_difference:
            return x
        return self.times * float(np.exp(-x if self.turned else x))

    def shown(self, median: float, low: float, high: float) -> str:
        """The effect with its interval, as text."""
        middle, *ends = (self.effect(value) for value in (median, low, high))
        between = "" if any(map(math.isnan, ends)) else f" [{', '.join(map(number, sorted(ends)))}]"
        return f"{'' if self.is_difference else '× '}{number(middle)}{between}"


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


def correlations(scale: Scale, table: str, *settings: Mapping[str, str]) -> Numbers:
    """How much more norms follow frequency in the first setting than in the second."""
    return difference(*(frequency_and_norm(scale.rows(table, **of)) for of in settings), operator.sub)


def skewed_later(scale: Scale, study: str) -> Numbers:
    """How much later skewed tokens grok than uniform ones, in the mean over sizes of batches."""

    def cost(size: int) -> Numbers:
        return difference(*(counted(scale.runs(study, sampler=s, batch_size=size)) for s in ("skewed", "uniform")))

    small, large = cost(64), cost(512)
    return {seed: float(np.mean([small[seed], large[seed]])) for seed in small.keys() & large.keys()}


def delay(scale: Scale) -> Numbers:
    return difference(*(scale.runs("delay", case=case)["delay"] for case in ("embedding", "onehot")))


def rare_tokens(scale: Scale) -> Numbers:
    return correlations(scale, "tokens", {"study": "sampling"}, {"study": "rare"})


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


def geometry_first(scale: Scale) -> Numbers:
    """How much later half of the test pairs are right than the main frequency of the embedding appears."""
    steps = scale.tables["lags"].pivot(index="seed", columns="event", values="step").clip(lower=1)
    return difference(steps["half"], steps["frequency"])


def cost_in_small_batches(scale: Scale) -> Numbers:
    table = scale.tables["map"]
    at = counted(table).groupby([table["seed"], table["weight_decay"], table["skew"]]).first()

    def cost(seed: int, decay: float) -> float:
        return math.log(at[seed, decay, 0.7] / at[seed, decay, 0.0])

    return {int(seed): cost(seed, 0.002) - cost(seed, 0.0005) for seed in table["seed"].unique()}


BEST = {"quick": "256.0", "mid": "64.0", "paper": "16.0", "transformer": "10.0"}
"""The c of the pilots that grokked soonest, by scale, as studies/PROTOCOL.md names it."""
SETTINGS = {
    "mul": "a · b",
    "squares": "a² + b²",
    "E-small": "E starts at half its scale",
    "E-large": "E starts at twice its scale",
    "decay-low": "half the weight decay",
    "decay-high": "twice the weight decay",
}
"""Settings of the study `auto-settings`: each has a case at c = 1 (even), one at the best c (swept) and one at auto."""


def within(auto: float, best: float) -> float:
    """How far below 110 % of the best step that under auto lies; 0 where neither came."""
    return 0.0 if math.isnan(auto) and math.isnan(best) else math.log(1.1) - later(auto, best)


def at_rates(scale: Scale, *c: str, by: Callable[[float, float], float] = later) -> Numbers:
    return difference(*(scale.runs("auto", lr_ratio=rate)["grokked"] for rate in c), by=by)


def elsewhere(scale: Scale, *cases: str, by: Callable[[float, float], float] = later) -> Numbers:
    """By seed, the median over settings of a measure of two cases."""
    pairs = {
        name: [scale.runs("auto-settings", case=f"{name}-{case}")["grokked"] for case in cases] for name in SETTINGS
    }
    x = pd.DataFrame({name: difference(*pair, by=by) for name, pair in pairs.items()})
    return {seed: middle(row) for seed, row in zip(x.index, x.to_numpy().tolist(), strict=True)}


def middle(values: Sequence[float]) -> float:
    """The median of an even number of values; 0 between opposite infinities, NaN where one is missing."""
    if any(map(math.isnan, values)):
        return math.nan
    low, high = sorted(values)[len(values) // 2 - 1 :][:2]
    return 0.0 if low == -high else (low + high) / 2


def rare_late(scale: Scale, *cases: str) -> Numbers:
    return correlations(scale, "tokens", *({"study": "rare-late", "case": case} for case in cases))


def sooner_learned(scale: Scale, *runs: tuple[str, str]) -> Numbers:
    """How much lower the test loss of the second study and case comes than that of the first."""
    of = (scale.rows("losses", study=study, case=case) for study, case in runs)
    return difference(*(rows.groupby("seed")["test_loss"].min() for rows in of), operator.sub)


ADAM_LR = Claim(
    "Adam-LR (c = 10) groks sooner",
    "step of grokking, c = 1 over c = 10",
    lambda s: grokked(s, "curvature", "c1", "c10"),
)
SAMPLING = Claim(
    "Uniform sampling groks before skewed",
    "step of grokking, skewed over uniform",
    lambda s: skewed_later(s, "sampling"),
)
RHO = "rank correlation of frequency and norm"
BATCHES, DECAY = f"{RHO}, small batches minus ", f"{RHO}, with weight decay minus without"
COST = "cost of skew at weight decay 0.002 over that at 0.0005"
ON_TEXT = {"study": "curvature", "case": "base", "analysis": "middle"}
CLAIMS: dict[str, Claim] = {
    "C1": Claim("An embedding lengthens the delay", "delay, embedding over one-hot input", delay),
    "C2": Claim(
        "Rare tokens stay behind because batches leave them out while they decay",
        BATCHES + "full ones",
        rare_tokens,
        is_difference=True,
    ),
    "C3": SAMPLING,
    "C4": Claim(
        "The coupling of E and W is deeper than that of W and V on the plateau",
        "λ_min(E,W) over λ_min(W,V)",
        lambda s: depths(s, "E,W", "W,V"),
    ),
    "C5": Claim("W is more curved than E, and Adam-LR narrows the gap", "gap of curvatures, c = 1 over c = 10", gap),
    "C6": Claim(
        "Memorising goes with the fall of W's top eigenvalue, grokking with that of E's",
        "distance of events from falls, the other order over the claimed one",
        falls,
    ),
    "C7": Claim(
        "Gradients obey Proposition 4.1 to a factor of two on the plateau",
        "factor by which the ratio of gradients misses the predicted one",
        balance,
        times=2,
        turned=True,
    ),
    "C8": ADAM_LR,
    "C9": Claim(
        "The frequency term f_W/f_E changes c at the paper's batch size",
        "f_W over f_E in the batches drawn",
        frequency_term,
        times=1.05,
    ),
    "O2": Claim(
        "c from measured curvature groks sooner than c = 10", "step of grokking, c = 10 over curvature", measured_rate
    ),
    "O3": Claim("Skewed tokens cost more time under more weight decay", COST, cost_of_decay),
    "D1": Claim(
        "The depth of E,W lies on the constant tokens", "λ_min(E,W) over λ_min(E[operands],W)", constant_tokens, times=2
    ),
    "D2": Claim(
        "It is the regulariser of the embedding that generalises, not its coupling",
        "step of grokking, tables with L2 over tables with a nuclear norm",
        lambda s: grokked(s, "tables", "l2", "nuclear"),
    ),
    "G1": Claim(
        "The circles of the embedding are there before the network generalises",
        "step of 50 % test accuracy over that of the main frequency",
        geometry_first,
    ),
    "G2": Claim("Skewed tokens cost more time under more weight decay, in batches of 32", COST, cost_in_small_batches),
    "A1": Claim(
        "c from E's edge of stability groks sooner than c = 1",
        "step of grokking, c = 1 over auto",
        lambda s: at_rates(s, "1.0", "auto"),
    ),
    "A2": Claim(
        "It takes at most 10 % longer than the best c of a sweep",
        "step of grokking, auto over the best c",
        lambda s: at_rates(s, "auto", BEST[s.name], by=within),
        times=1.1,
        turned=True,
    ),
    "A3": Claim(
        "With other tasks, starts and weight decays it groks sooner than c = 1",
        "step of grokking, c = 1 over auto, median of six settings",
        lambda s: elsewhere(s, "even", "auto"),
    ),
    "A4": Claim(
        "There it takes at most 10 % longer than the best c of a sweep",
        "step of grokking, auto over the best c, median of six settings",
        lambda s: elsewhere(s, "auto", "swept", by=within),
        times=1.1,
        turned=True,
    ),
    "R1": Claim("Weight decay leaves rare tokens behind", DECAY, lambda s: rare_late(s, "small", "nodecay"), True),
    "R2": Claim(
        "Rare tokens stay behind because batches leave them out",
        BATCHES + "full ones",
        lambda s: rare_late(s, "small", "full"),
        True,
    ),
    "S1": Claim(
        "Frequency-aware sampling groks before random sampling, in batches of 64",
        "step of grokking, random over frequency-aware",
        lambda s: grokked(s, "sensitivity", "random", "aware"),
    ),
    **{
        name: Claim(
            f"A larger start of {part} delays grokking",
            "step of grokking, twice the scale over half",
            lambda s, part=part: grokked(s, "sensitivity", f"{part}-double", f"{part}-half"),
        )
        for name, part in (("I1", "E"), ("I2", "W"))
    },
    "S2": Claim(
        "Uniform sampling groks before skewed, at the learning rate 0.001",
        SAMPLING.measure,
        lambda s: skewed_later(s, "sampling-slow"),
    ),
    "T1": Claim(
        "The coupling of E and the MLP that reads it is deeper than that within the MLP on the plateau",
        "λ_min(E,mlp_in) over λ_min(mlp_in,mlp_out)",
        lambda s: depths(s, "E,mlp_in", "mlp_in,mlp_out"),
    ),
    "T2": ADAM_LR,
    "T3": SAMPLING,
    "N1": Claim(
        "Weight decay leaves rare words behind",
        DECAY,
        lambda s: correlations(s, "words", {"case": "decay"}, {"case": "none"}),
        True,
    ),
    "N2": Claim(
        "Rare words stay behind because batches leave them out",
        BATCHES + "large ones",
        lambda s: correlations(s, "words", {"case": "decay"}, {"case": "large"}),
        True,
    ),
    "N3": Claim(
        "c by Proposition 4.1 learns sooner than equal rates",
        "lowest test loss, c = 1 minus Proposition 4.1",
        lambda s: sooner_learned(s, ("words", "decay"), ("rates", "prop41")),
        True,
    ),
    "N4": Claim(
        "The coupling of E and W is deeper than that of W and V",
        "λ_min(E,W) over λ_min(W,V)",
        lambda s: depths(s, "E,W", "W,V", **ON_TEXT),
    ),
    "N5": Claim(
        "The coupling of E and the MLP that reads it is deeper than that within the MLP",
        "λ_min(E,mlp_in) over λ_min(mlp_in,mlp_out)",
        lambda s: depths(s, "E,mlp_in", "mlp_in,mlp_out", **ON_TEXT),
    ),
    "N6": Claim(
        "Adam-LR (c = 10) learns sooner",
        "lowest test loss, c = 1 minus c = 10",
        lambda s: sooner_learned(s, ("rates", "c1"), ("rates", "c10")),
        True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Tests that are corrected together, at these scales, or at every scale whose table has the study."""

    claims: Sequence[str]
    seeds: Sequence[int]
    scales: Sequence[str] = ()
    table: str = ""
    study: str = ""

    def is_of(self, scale: Scale) -> bool:
        if self.scales:
            return scale.name in self.scales
        return len(scale.rows(self.table, study=self.study)) > 0


FRESH, LAST = range(500, 510), range(610, 620)
FAMILIES = (
    Family([*(f"C{i}" for i in range(1, 10)), "O2", "O3", "D1", "D2"], range(100, 110), SIZES),
    Family(["T1", "T2", "T3"], range(200, 210), ["transformer"]),
    Family(["N1", "N2", "N3", "N4"], range(300, 310), ["text"]),
    Family(["N5", "N6"], range(300, 310), ["text-transformer"]),
    Family(["G1"], range(200, 210), table="lags", study="lags"),
    Family(["G2"], range(200, 210), table="map", study="map"),
    Family(["A1", "A2"], LAST, table="runs", study="auto"),
    Family(["A3", "A4"], LAST, table="runs", study="auto-settings"),
    Family(["R1", "R2"], FRESH, table="rare_late", study="rare-late"),
    Family(["S1", "I1", "I2"], FRESH, table="runs", study="sensitivity"),
    Family(["S2"], FRESH, table="runs", study="sampling-slow"),
)
