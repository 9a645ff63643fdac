"""The paper's nine claims

Verdict, median effect with its interval, and beside it, by size, a null predictor, a control, or what the runs cannot
show.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from claims import CLAIMS
from tables import PLAIN, SIZES, Scale, bound, factor, interval, log_ratios, main, prop41_misses, scales, step

NINE = tuple(f"C{i}" for i in range(1, 10))
UNTESTED = {"C2": SIZES, "C6": ("mid", "paper"), "C7": SIZES, "C9": SIZES}
"""Sizes whose runs do not test a claim."""


def wait_to_half(scale: Scale) -> str:
    of, over = (scale.runs("delay", case=case) for case in ("embedding", "onehot"))
    waits = (of["half"] - of["memorised"]) / (over["half"] - over["memorised"])
    with np.errstate(divide="ignore"):
        return factor(np.log(waits.dropna()))


def trained_by_then(scale: Scale) -> str:
    at = scale.rows("tokens", study="rare").groupby(level="seed")["step"].first()
    small = scale.runs("sampling", sampler="skewed", batch_size=64)["memorised"]
    full = scale.runs("rare", case="full")["memorised"]
    return f"{(small <= at).sum()} and {(full <= at).sum()} of {len(at)} (step {step(at)})"


def large_batches(scale: Scale) -> str:
    return factor(
        log_ratios(*(scale.runs("sampling", sampler=of, batch_size=512)["grokked"] for of in ("skewed", "uniform")))
    )


def without_constants(scale: Scale) -> str:
    lowest = scale.pivot("lowest", **PLAIN, analysis="plateau")
    block = "E[operands],W" if "E[operands],W" in lowest else "E,W"
    return factor(np.log(lowest[block] / lowest["W,V"]))


def more_curved(scale: Scale) -> str:
    ratios = scale.rows("curvature", **PLAIN, analysis="top-plateau", block="E")["curvature_ratio"]
    return f"{(ratios > 1).sum()} of {len(ratios)}"


def blind(scale: Scale) -> str:
    """Seeds in which both blocks are most curved before memorising, after which x is 0 whatever follows."""
    top = scale.rows("curvature", **PLAIN, analysis="top").reset_index()
    peaks = top[top["step"] > 0].sort_values("highest").groupby(["seed", "block"])["step"].last().unstack("block")
    return f"{(peaks.max(axis=1) <= scale.runs(**PLAIN)['memorised']).sum()} of {len(peaks)}"


def misses(scale: Scale) -> pd.DataFrame:
    """By seed, phase and predictor."""
    rows = {
        seed: prop41_misses(scale.rows("metrics", **PLAIN, seed=seed).set_index("step"), run)
        for seed, run in scale.runs(**PLAIN).iterrows()
    }
    return pd.DataFrame(rows).T


def nulls_of_C7(scale: Scale) -> str:
    on_plateau = misses(scale)["plateau"]
    return " and ".join(f"× {interval(on_plateau[predictor])}" for predictor in ("one", "inverse"))


def same_product(scale: Scale) -> str:
    return factor(log_ratios(scale.runs(**PLAIN)["grokked"], scale.runs("pace", case="equal-c10")["grokked"]))


def smallest_batches(scale: Scale) -> str:
    return factor(-np.log(scale.runs("sampling", sampler="random", batch_size=64)["f_E"]))


BESIDE: dict[str, tuple[str, Callable[[Scale], str]]] = {
    "C1": ("the wait to 50 % test accuracy", wait_to_half),
    "C2": ("memorised by the step compared, batches of 64 and full ones", trained_by_then),
    "C3": ("batches of 512 alone", large_batches),
    "C4": ("without the constant tokens", without_constants),
    "C5": ("W more curved than E under c = 1", more_curved),
    "C6": ("seeds that cannot tell", blind),
    "C7": ("miss of the constant 1, and of the inverse", nulls_of_C7),
    "C8": ("at the same product of both rates", same_product),
    "C9": ("in batches of 64", smallest_batches),
}


COMPARED = {"C1": ("delay", ("embedding", "onehot"), "delay"), "D2": ("tables", ("l2", "nuclear"), "grokked")}
"""The runs of which a claim takes a ratio, by study, and the event."""


def effect(scale: Scale, claim: str) -> str:
    """The effect of a claim with its interval; a bound where runs never grokked."""
    (row,) = scale.tables["verdicts"].query("claim == @claim").to_dict("records")
    verdict = "not tested" if scale.name in UNTESTED.get(claim, ()) else row["verdict"]
    if claim in COMPARED and np.isinf(row["median"]):
        study, cases, event = COMPARED[claim]
        return f"{verdict}: × {bound(*(scale.runs(study, case=case) for case in cases), event)}"
    measured = CLAIMS[claim].effect
    sign = "" if claim == "C2" else "× "
    return f"{verdict}: {sign}{interval(scale.rows('seeds', claim=claim)['x'], measured)}"


def table(root: Path) -> pd.DataFrame:
    sizes = scales(root)
    rows = []
    for claim in NINE:
        words, of = BESIDE[claim]
        beside = "; ".join(of(scale) for scale in sizes)
        cells = {scale.name: effect(scale, claim) for scale in sizes}
        rows.append({"claim": f"{claim}. {CLAIMS[claim].asked}", "effect": CLAIMS[claim].measure} | cells)
        rows[-1]["beside it"] = f"{words}: {beside}"
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
