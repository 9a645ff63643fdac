"""The primary tests of studies/PROTOCOL.md: one number a seed from the files of a scale, and thirteen verdicts."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from exact import ALPHA, Judgement, holm, later, median_interval, seeds_to_decide, signed_rank_p
from runs import Run
from scale import HALF, Scale, prop41_constant, tables
from scipy import stats

from landscape.errors import LandscapeError, complain
from landscape.text import write_csv

Numbers = Mapping[int, float]
"""x by seed."""
Test = Callable[[Scale], Numbers]
TESTS: dict[str, tuple[str, Test]] = {}
"""Claim in a sentence, and its test, by name."""


def primary(name: str, statement: str) -> Callable[[Test], Test]:
    """Register the test of a claim."""

    def register(test: Test) -> Test:
        TESTS[name] = statement, test
        return test

    return register


def grokked(run: Run, counted: bool = False) -> float:
    """The step at which a run grokked; NaN if it never did, or, if that is `counted`, the steps that it was watched."""
    found = run.times["grokked"]
    return float(run.planned.config.steps) if counted and math.isnan(found) else found


def over_seeds(x: Callable[..., float], *groups: Mapping[int, Run]) -> Numbers:
    """x of the runs of each seed that all groups have."""
    return {seed: x(*(group[seed] for group in groups)) for seed in groups[0] if all(seed in g for g in groups)}


def depth(run: Run, analysis: str, block: str) -> float:
    """|λ_min| of a block in an analysis of one step."""
    lowest = run.hessian(analysis)["eigenvalues"].sel(block=block, end="lowest", rank=0)
    return -float(lowest.values[0])


@primary("C1", "An embedding lengthens the delay")
def delay(scale: Scale) -> Numbers:
    pair = (scale.runs("delay", case=case) for case in ("embedding", "onehot"))
    return over_seeds(lambda a, b: later(a.times["delay"], b.times["delay"]), *pair)


@primary("C2", "Rare tokens stay behind because batches leave them out while they decay")
def rare_tokens(scale: Scale) -> Numbers:
    def correlation(tokens: pd.DataFrame) -> float:
        return float(stats.spearmanr(tokens["count"], tokens["norm"]).statistic)

    return {seed: correlation(small) - correlation(full) for seed, (small, full) in scale.rare().items()}


@primary("C3", "Uniform sampling groks before skewed")
def sampling(scale: Scale) -> Numbers:
    sizes = []
    for size in (64, 512):
        pair = (scale.runs("sampling", sampler=sampler, batch_size=size) for sampler in ("skewed", "uniform"))
        sizes.append(over_seeds(lambda a, b: later(grokked(a, True), grokked(b, True)), *pair))
    return {seed: float(np.mean([x[seed] for x in sizes])) for seed in sizes[0]}


@primary("C4", "The coupling of E and W is deeper than that of W and V on the plateau")
def coupling(scale: Scale) -> Numbers:
    def ratio(run: Run) -> float:
        return math.log(depth(run, "plateau", "E,W") / depth(run, "plateau", "W,V"))

    return over_seeds(ratio, scale.runs("curvature", case="c1"))


@primary("C5", "W is more curved than E, and Adam-LR narrows the gap")
def curvature(scale: Scale) -> Numbers:
    def gap(run: Run) -> float:
        return abs(math.log(float(run.hessian("top-plateau")["curvature_ratio"].values[0])))

    pair = (scale.runs("curvature", case=case) for case in ("c1", "c10"))
    return over_seeds(lambda a, b: gap(a) - gap(b), *pair)


@primary("C6", "Memorising goes with the fall of W's top eigenvalue, grokking with that of E's")
def events(scale: Scale) -> Numbers:
    def nearer(event: float, one: float, other: float) -> float:
        # An event that never came is later than both.
        return one - other if math.isnan(event) else abs(event - other) - abs(event - one)

    def nearness(run: Run) -> float:
        top = run.hessian("top")["eigenvalues"].sel(end="highest", rank=0).to_series().drop(0, level="step")
        fall = {block: math.log(top.xs(block, level="block").idxmax()) for block in ("E", "W")}
        m, g = math.log(run.times["memorised"]), math.log(run.first("test_accuracy", HALF))
        return nearer(m, fall["W"], fall["E"]) + nearer(g, fall["E"], fall["W"])

    return over_seeds(nearness, scale.runs("curvature", case="c1"))


@primary("C7", "Gradients obey Proposition 4.1 to a factor of two on the plateau")
def balance(scale: Scale) -> Numbers:
    def room(run: Run) -> float:
        return float((math.log(2) - prop41_constant(run).abs()).median())

    return over_seeds(room, scale.runs("curvature", case="c1"))


@primary("C8", "Adam-LR (c = 10) groks sooner")
def adam_lr(scale: Scale) -> Numbers:
    pair = (scale.runs("curvature", case=case) for case in ("c1", "c10"))
    return over_seeds(lambda a, b: later(grokked(a), grokked(b)), *pair)


@primary("C9", "The frequency term f_W/f_E changes c at the paper's batch size")
def frequency(scale: Scale) -> Numbers:
    def term(run: Run) -> float:
        return -math.log(float(run.data["f_E"].values[-1])) - math.log(1.05)

    return over_seeds(term, scale.runs("curvature", case="c1"))


@primary("O2", "c from measured curvature groks sooner than c = 10")
def measured_rate(scale: Scale) -> Numbers:
    pair = scale.runs("curvature", case="c10"), scale.runs("pace", case="curvature")
    return over_seeds(lambda a, b: later(grokked(a), grokked(b)), *pair)


@primary("O3", "Skewed tokens cost more time under more weight decay")
def decay(scale: Scale) -> Numbers:
    def cost(weight_decay: float) -> Numbers:
        pair = (scale.runs("decay", sampler=sampler, weight_decay=weight_decay) for sampler in ("skewed", "uniform"))
        return over_seeds(lambda a, b: later(grokked(a, True), grokked(b, True)), *pair)

    more, less = cost(0.002), cost(0.0005)
    return {seed: more[seed] - less[seed] for seed in more}


@primary("D1", "The depth of E,W lies on the constant tokens")
def constants(scale: Scale) -> Numbers:
    def ratio(run: Run) -> float:
        return math.log(depth(run, "plateau", "E,W") / depth(run, "plateau", "E[operands],W")) - math.log(2)

    runs = scale.runs("curvature", case="c1")
    four = next(iter(runs.values())).planned.config.tokens == 4
    return over_seeds(ratio, runs if four else scale.runs("constants", case="four"))


@primary("D2", "It is the regulariser of the embedding that generalises, not its coupling")
def regulariser(scale: Scale) -> Numbers:
    pair = (scale.runs("tables", case=case) for case in ("l2", "nuclear"))
    return over_seeds(lambda a, b: later(grokked(a), grokked(b)), *pair)


def measured(name: str, numbers: Numbers) -> Numbers:
    """The numbers themselves. Raises LandscapeError for a seed without one."""
    for seed, value in numbers.items():
        if math.isnan(value):
            raise LandscapeError(
                f"{name} has no number for seed {seed}: its run never memorised, or a quantity was not measured",
                "look at the run with `landscape info`; a primary test leaves no seed out",
            )
    return numbers


def judge(x: Mapping[str, Numbers]) -> pd.DataFrame:
    """One row a test: the median of x with its interval, p, Holm's p, the verdict, and how many seeds would decide."""
    p = {name: signed_rank_p(list(numbers.values())) for name, numbers in x.items()}
    corrected = holm(p)
    rows = []
    for name, numbers in x.items():
        values = np.array(list(numbers.values()))
        median, low, high = median_interval(values)
        verdict: Judgement = "undecided"
        if corrected[name] < ALPHA:
            verdict = "supported" if median > 0 else "not supported"
        needed = seeds_to_decide(values, len(x)) if verdict == "undecided" else None
        statement = TESTS[name][0]
        found = {"median": median, "low": low, "high": high, "p": p[name], "holm": corrected[name]}
        rows.append({"claim": name, "statement": statement, "verdict": verdict, "seeds": len(values)} | found)
        rows[-1]["seeds_to_decide"] = needed
    return pd.DataFrame(rows)


def main() -> None:
    """Write OUT/SCALE: the verdicts, x of every seed, and the tables that anybody can compute both from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", help="folder of the scale's studies, such as checkpoints/trial/quick")
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder to write to")
    args = parser.parse_args()
    scale = Scale(Path(args.scale))
    try:
        x = {name: measured(name, test(scale)) for name, (_, test) in TESTS.items()}
        found = {"verdicts": judge(x), **tables(scale)}
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    each = [{"claim": name, "seed": seed, "x": value} for name, by in x.items() for seed, value in by.items()]
    found["seeds"] = pd.DataFrame(each)
    folder = args.out / scale.folder.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in found.items():
        write_csv(table, folder / f"{name}.csv")
    print(found["verdicts"].to_string(index=False))


if __name__ == "__main__":
    main()
