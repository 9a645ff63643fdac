"""The primary tests of studies/PROTOCOL.md: one number a seed from the tables of a scale, and thirteen verdicts."""

from __future__ import annotations

import argparse
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from exact import ALPHA, Judgement, holm, later, median_interval, seeds_to_decide, signed_rank_p
from rare_late import frequency_and_norm as correlation
from scale import Scale, prop41_constant

from landscape.errors import LandscapeError, complain
from landscape.text import write_csv

SEEDS: Sequence[int] = range(100, 110)
"""Of every primary test."""
Numbers = Mapping[int, float]
"""x by seed."""
Test = Callable[[Scale], Numbers]
Tests = Mapping[str, tuple[str, Test]]
"""Claim in a sentence, and its test, by name."""
TESTS: dict[str, tuple[str, Test]] = {}
"""Those of the paper's claims."""


def primary(name: str, statement: str) -> Callable[[Test], Test]:
    """Register the test of a claim. Registration raises ValueError for a name that is taken."""

    def register(test: Test) -> Test:
        if name in TESTS:
            raise ValueError(f"claim {name!r} is registered twice")
        TESTS[name] = statement, test
        return test

    return register


def counted(runs: pd.DataFrame) -> pd.Series:
    """The step at which each run grokked, or, if it never did, the steps that it was watched."""
    return runs["grokked"].fillna(runs["watched"])


def difference(one: pd.Series, other: pd.Series, by: Callable[[float, float], float] = later) -> Numbers:
    """How much later, or by another measure greater, one is than the other, for the seeds that both have."""
    return {seed: by(one[seed], other[seed]) for seed in one.index.intersection(other.index)}


def depth(scale: Scale, block: str, study: str = "curvature", case: str = "c1", analysis: str = "plateau") -> pd.Series:
    """|λ_min| of a block, on the plateau unless another analysis is named."""
    return -scale.rows("curvature", study=study, case=case, analysis=analysis, block=block)["lowest"]


def frequency_and_norm(tokens: pd.DataFrame) -> pd.Series:
    """By seed, the rank correlation of a token's places in training samples with the norm of its embedding."""
    return pd.Series({seed: correlation(rows) for seed, rows in tokens.groupby(level="seed")})


def skewed_later(scale: Scale, study: str) -> Numbers:
    """How much later skewed tokens grok than uniform ones, in the mean over sizes of batches."""

    def cost(size: int) -> Numbers:
        pair = (scale.runs(study, sampler=sampler, batch_size=size) for sampler in ("skewed", "uniform"))
        return difference(*map(counted, pair))

    small, large = cost(64), cost(512)
    return {seed: float(np.mean([small[seed], large[seed]])) for seed in small.keys() & large.keys()}


def log_ratio(one: float, other: float) -> float:
    return math.log(one / other)


@primary("C1", "An embedding lengthens the delay")
def delay(scale: Scale) -> Numbers:
    return difference(*(scale.runs("delay", case=case)["delay"] for case in ("embedding", "onehot")))


@primary("C2", "Rare tokens stay behind because batches leave them out while they decay")
def rare_tokens(scale: Scale) -> Numbers:
    small, full = (frequency_and_norm(scale.rows("tokens", study=study)) for study in ("sampling", "rare"))
    return difference(small, full, operator.sub)


@primary("C3", "Uniform sampling groks before skewed")
def sampling(scale: Scale) -> Numbers:
    return skewed_later(scale, "sampling")


@primary("C4", "The coupling of E and W is deeper than that of W and V on the plateau")
def coupling(scale: Scale) -> Numbers:
    return difference(depth(scale, "E,W"), depth(scale, "W,V"), log_ratio)


@primary("C5", "W is more curved than E, and Adam-LR narrows the gap")
def curvature(scale: Scale) -> Numbers:
    def gap(case: str) -> pd.Series:
        rows = scale.rows("curvature", study="curvature", case=case, analysis="top-plateau", block="E")
        gaps: pd.Series = np.log(rows["curvature_ratio"]).abs()
        return gaps

    return difference(gap("c1"), gap("c10"), operator.sub)


@primary("C6", "Memorising goes with the fall of W's top eigenvalue, grokking with that of E's")
def events(scale: Scale) -> Numbers:
    def nearer(event: float, one: float, other: float) -> float:
        # An event that never came is later than both.
        return one - other if math.isnan(event) else abs(event - other) - abs(event - one)

    top = scale.rows("curvature", study="curvature", case="c1", analysis="top")
    top = top[top["step"] > 0].set_index(["block", "step"], append=True)["highest"].sort_index()
    found = {}
    for seed, run in scale.runs("curvature", case="c1").iterrows():
        fall = {block: math.log(top.loc[seed, block].idxmax()) for block in ("E", "W")}
        m, g = math.log(run["memorised"]), math.log(run["half"])
        found[seed] = nearer(m, fall["W"], fall["E"]) + nearer(g, fall["E"], fall["W"])
    return found


@primary("C7", "Gradients obey Proposition 4.1 to a factor of two on the plateau")
def balance(scale: Scale) -> Numbers:
    found = {}
    for seed, run in scale.runs("curvature", case="c1").iterrows():
        records = scale.rows("metrics", study="curvature", case="c1").loc[[seed]].set_index("step")
        found[seed] = float((math.log(2) - prop41_constant(records, run).abs()).median())
    return found


@primary("C8", "Adam-LR (c = 10) groks sooner")
def adam_lr(scale: Scale) -> Numbers:
    return difference(*(scale.runs("curvature", case=case)["grokked"] for case in ("c1", "c10")))


@primary("C9", "The frequency term f_W/f_E changes c at the paper's batch size")
def frequency(scale: Scale) -> Numbers:
    runs = scale.runs("curvature", case="c1")
    return {seed: -math.log(f_E) - math.log(1.05) for seed, f_E in runs["f_E"].items()}


@primary("O2", "c from measured curvature groks sooner than c = 10")
def measured_rate(scale: Scale) -> Numbers:
    return difference(scale.runs("curvature", case="c10")["grokked"], scale.runs("pace", case="curvature")["grokked"])


@primary("O3", "Skewed tokens cost more time under more weight decay")
def decay(scale: Scale) -> Numbers:
    def cost(weight_decay: float) -> pd.Series:
        pair = (scale.runs("decay", sampler=sampler, weight_decay=weight_decay) for sampler in ("skewed", "uniform"))
        return pd.Series(difference(*map(counted, pair)))

    return difference(cost(0.002), cost(0.0005), operator.sub)


@primary("D1", "The depth of E,W lies on the constant tokens")
def constants(scale: Scale) -> Numbers:
    four = (scale.runs("curvature", case="c1")["tokens"] == 4).all()
    known = ("curvature", "c1") if four else ("constants", "four")
    ratios = difference(*(depth(scale, block, *known) for block in ("E,W", "E[operands],W")), by=log_ratio)
    return {seed: ratio - math.log(2) for seed, ratio in ratios.items()}


@primary("D2", "It is the regulariser of the embedding that generalises, not its coupling")
def regulariser(scale: Scale) -> Numbers:
    return difference(*(scale.runs("tables", case=case)["grokked"] for case in ("l2", "nuclear")))


def measured(name: str, numbers: Numbers, seeds: Sequence[int]) -> Numbers:
    """The numbers themselves. Raises LandscapeError for a seed of the protocol without one."""
    for seed in seeds:
        if math.isnan(numbers.get(seed, math.nan)):
            raise LandscapeError(
                f"{name} has no number for seed {seed}: a run or an analysis is missing, the run never memorised, or a "
                "quantity was not measured",
                "`make studies` makes what is missing; look at the others with `landscape info`. A primary test leaves "
                "no seed out",
            )
    return {seed: numbers[seed] for seed in seeds}


def judge(x: Mapping[str, Numbers], tests: Tests) -> pd.DataFrame:
    """One row a test: the median of x with its interval, p, Holm's p, the verdict, and how many seeds would decide."""
    p = {name: signed_rank_p(list(numbers.values())) for name, numbers in x.items()}
    corrected, family = holm(p), {name: list(numbers.values()) for name, numbers in x.items()}
    rows = []
    for name, numbers in x.items():
        values = np.array(list(numbers.values()))
        median, low, high = median_interval(values)
        verdict: Judgement = "undecided"
        if corrected[name] < ALPHA:
            verdict = "supported" if median > 0 else "not supported" if median < 0 else "undecided"
        needed = seeds_to_decide(family, name) if verdict == "undecided" else None
        statement = tests[name][0]
        found = {"median": median, "low": low, "high": high, "p": p[name], "holm": corrected[name]}
        rows.append({"claim": name, "statement": statement, "verdict": verdict, "seeds": len(values)} | found)
        rows[-1]["seeds_to_decide"] = needed
    return pd.DataFrame(rows)


def asked() -> Scale:
    """The scale that the command line names."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("folder", type=Path, help="tables of a scale, such as reports/reference/quick")
    return Scale(parser.parse_args().folder)


def decided(scale: Scale, tests: Tests, seeds: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The verdicts of tests that are corrected together, and x of every seed.

    Raises LandscapeError for a seed without x.
    """
    x = {name: measured(name, test(scale), seeds) for name, (_, test) in tests.items()}
    each = [{"claim": name, "seed": seed, "x": by[seed]} for name, by in x.items() for seed in seeds]
    return judge(x, tests), pd.DataFrame(each)


def decide(scale: Scale, tests: Tests, seeds: Sequence[int]) -> None:
    """Write the verdicts of a scale, and x of every seed, beside the tables that they are computed from."""
    try:
        verdicts, each = decided(scale, tests, seeds)
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    write_csv(verdicts, scale.folder / "verdicts.csv")
    write_csv(each, scale.folder / "seeds.csv")
    print(verdicts.to_string(index=False))


def main() -> None:
    """Command line: the paper's claims."""
    decide(asked(), TESTS, SEEDS)


if __name__ == "__main__":
    main()
