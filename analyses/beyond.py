"""The primary tests beyond the paper, as studies/PROTOCOL.md fixes them: one number a seed."""

from __future__ import annotations

import dataclasses
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import primary
from decay_map import MAP
from exact import later
from lags import CLAIM, LAGS, REFERENCE
from primary import Numbers, Tests
from rare_late import RARE_LATE
from scale import Scale

from landscape.errors import LandscapeError, complain
from landscape.text import write_csv

SEEDS: Mapping[str, Sequence[int]] = {
    "transformer": range(200, 210),
    "text": range(300, 310),
    "text-transformer": range(300, 310),
}
"""By scale."""


def coupling(scale: Scale) -> Numbers:
    of, over = (primary.depth(scale, block) for block in ("E,mlp_in", "mlp_in,mlp_out"))
    return primary.difference(of, over, primary.log_ratio)


def weight_decay(scale: Scale) -> Numbers:
    return rank_correlations(scale, "decay", "none")


def small_batches(scale: Scale) -> Numbers:
    return rank_correlations(scale, "decay", "large")


def rank_correlations(scale: Scale, *cases: str, table: str = "words", **known: object) -> Numbers:
    """How much more norms follow frequency in one case than in another, of words or of these rows of a table."""
    pair = (primary.frequency_and_norm(scale.rows(table, case=case, **known)) for case in cases)
    return primary.difference(*pair, operator.sub)


def measured_rate(scale: Scale) -> Numbers:
    return sooner(scale, ("words", "decay"), ("rates", "prop41"))


def adam_lr(scale: Scale) -> Numbers:
    return sooner(scale, ("rates", "c1"), ("rates", "c10"))


def sooner(scale: Scale, *runs: tuple[str, str]) -> Numbers:
    """How much lower the test loss of one study and case comes than that of the one before."""
    of = (scale.rows("losses", study=study, case=case) for study, case in runs)
    return primary.difference(*(rows.groupby("seed")["test_loss"].min() for rows in of), operator.sub)


def words_coupling(scale: Scale) -> Numbers:
    return on_text(scale, "E,W", "W,V")


def text_coupling(scale: Scale) -> Numbers:
    return on_text(scale, "E,mlp_in", "mlp_in,mlp_out")


def on_text(scale: Scale, *blocks: str) -> Numbers:
    """The logarithm of one block's depth over the other's, where a text is learned best."""
    pair = (primary.depth(scale, block, "curvature", "base", "middle") for block in blocks)
    return primary.difference(*pair, primary.log_ratio)


def geometry_first(scale: Scale) -> Numbers:
    """How much later half of the test pairs are right than the frequencies of the embedding appear."""
    steps = scale.tables["lags"].pivot(index="seed", columns="event", values="step").clip(lower=1)
    return primary.difference(steps[CLAIM], steps[REFERENCE])


DECAYS, SKEWS = (0.0005, 0.002), (0.0, 0.7)
"""Of the map's test: least first."""


def cost_of_skew(scale: Scale) -> Numbers:
    """How much more skewed tokens cost under more weight decay."""
    table = scale.tables["map"]
    at = primary.counted(table).groupby([table["seed"], table["weight_decay"], table["skew"]]).first()
    (low, high), (flat, skewed) = DECAYS, SKEWS
    cost = lambda seed, decay: math.log(at[seed, decay, skewed] / at[seed, decay, flat])  # noqa: E731
    return {int(seed): cost(seed, high) - cost(seed, low) for seed in table["seed"].unique()}


def trained_decay(scale: Scale) -> Numbers:
    return rank_correlations(scale, "small", "nodecay", table="tokens", study=RARE_LATE)


def trained_batches(scale: Scale) -> Numbers:
    return rank_correlations(scale, "small", "full", table="tokens", study=RARE_LATE)


SENSITIVITY, SLOW = "sensitivity", "sampling-slow"
"""Studies of samplers and starts on fresh seeds, and of C3 at a smaller learning rate."""


def groks_later(scale: Scale, *cases: str) -> Numbers:
    """How much later one case of `sensitivity` groks than another."""
    return primary.difference(*(scale.runs(SENSITIVITY, case=case)["grokked"] for case in cases))


def aware(scale: Scale) -> Numbers:
    return groks_later(scale, "random", "aware")


def start_of_E(scale: Scale) -> Numbers:
    return groks_later(scale, "E-double", "E-half")


def start_of_W(scale: Scale) -> Numbers:
    return groks_later(scale, "W-double", "W-half")


def slow_sampling(scale: Scale) -> Numbers:
    return primary.skewed_later(scale, SLOW)


AUTO = "auto"
"""Study of the rate of E that follows its edge of stability, and that rate's name."""
BEST = {"quick": "256.0", "mid": "64.0", "paper": "16.0", "transformer": "10.0"}
"""The c of the pilots that grokked soonest, by scale, as studies/PROTOCOL.md names it."""


def at_rate(scale: Scale, c: str) -> pd.Series:
    steps: pd.Series = scale.runs(AUTO, lr_ratio=c)["grokked"]
    return steps


def follows_the_edge(scale: Scale) -> Numbers:
    return primary.difference(at_rate(scale, "1.0"), at_rate(scale, AUTO))


def within_the_best(scale: Scale) -> Numbers:
    return primary.difference(at_rate(scale, AUTO), at_rate(scale, BEST[scale.name]), by=within)


def within(auto: float, best: float) -> float:
    """How far below 110 % of the best step that under auto lies; 0 where neither came."""
    return 0.0 if math.isnan(auto) and math.isnan(best) else math.log(1.1) - later(auto, best)


ELSEWHERE = "auto-settings"
"""Study of that rate with other tasks, starts and weight decays."""
SETTINGS = {
    "mul": "a · b",
    "squares": "a² + b²",
    "E-small": "E starts at half its scale",
    "E-large": "E starts at twice its scale",
    "decay-low": "half the weight decay",
    "decay-high": "twice the weight decay",
}
"""Its settings: each has a case at c = 1 (even), one at the best c of the pilots (swept) and one under auto."""


def elsewhere(scale: Scale, one: str, other: str, by: Callable[[float, float], float]) -> Numbers:
    """By seed, the median over settings of a measure of two cases."""

    def steps(setting: str, case: str) -> pd.Series:
        found: pd.Series = scale.runs(ELSEWHERE, case=f"{setting}-{case}")["grokked"]
        return found

    x = pd.DataFrame({name: primary.difference(steps(name, one), steps(name, other), by) for name in SETTINGS})
    return {seed: middle(row) for seed, row in zip(x.index, x.to_numpy().tolist(), strict=True)}


def middle(values: Sequence[float]) -> float:
    """The median of an even number of values; 0 between opposite infinities, NaN where one is missing."""
    if any(map(math.isnan, values)):
        return math.nan
    low, high = sorted(values)[len(values) // 2 - 1 :][:2]
    return 0.0 if low == -high else (low + high) / 2


def follows_elsewhere(scale: Scale) -> Numbers:
    return elsewhere(scale, "even", AUTO, later)


def within_elsewhere(scale: Scale) -> Numbers:
    return elsewhere(scale, AUTO, "swept", within)


TESTS: Mapping[str, Tests] = {
    "transformer": {
        "T1": (
            "The coupling of E and the MLP that reads it is deeper than that within the MLP on the plateau",
            coupling,
        ),
        "T2": ("Adam-LR (c = 10) groks sooner", primary.adam_lr),
        "T3": ("Uniform sampling groks before skewed", primary.sampling),
    },
    "text": {
        "N1": ("Weight decay leaves rare words behind", weight_decay),
        "N2": ("Rare words stay behind because batches leave them out", small_batches),
        "N3": ("c by Proposition 4.1 learns sooner than equal rates", measured_rate),
        "N4": ("The coupling of E and W is deeper than that of W and V", words_coupling),
    },
    "text-transformer": {
        "N5": ("The coupling of E and the MLP that reads it is deeper than that within the MLP", text_coupling),
        "N6": ("Adam-LR (c = 10) learns sooner", adam_lr),
    },
}
"""Claims, and their tests, by name, by scale."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Tests that are corrected together at each scale that has their study."""

    table: str
    study: str
    seeds: Sequence[int]
    tests: Tests


FRESH = range(500, 510)
"""Seeds of what was exploratory before."""
LAST = range(610, 620)
"""Seeds of the rate of E that follows its edge."""
FAMILIES = (
    Family(
        "lags",
        LAGS,
        range(200, 210),
        {"G1": ("The circles of the embedding are there before the network generalises", geometry_first)},
    ),
    Family(
        "map",
        MAP,
        range(200, 210),
        {"G2": ("Skewed tokens cost more time under more weight decay, in batches of 32", cost_of_skew)},
    ),
    Family(
        "runs",
        AUTO,
        LAST,
        {
            "A1": ("c from E's edge of stability groks sooner than c = 1", follows_the_edge),
            "A2": ("It takes at most 10 % longer than the best c of a sweep", within_the_best),
        },
    ),
    Family(
        "runs",
        ELSEWHERE,
        LAST,
        {
            "A3": ("With other tasks, starts and weight decays it groks sooner than c = 1", follows_elsewhere),
            "A4": ("There it takes at most 10 % longer than the best c of a sweep", within_elsewhere),
        },
    ),
    Family(
        "rare_late",
        RARE_LATE,
        FRESH,
        {
            "R1": ("Weight decay leaves rare tokens behind", trained_decay),
            "R2": ("Rare tokens stay behind because batches leave them out", trained_batches),
        },
    ),
    Family(
        "runs",
        SENSITIVITY,
        FRESH,
        {
            "S1": ("Frequency-aware sampling groks before random sampling, in batches of 64", aware),
            "I1": ("A larger start of E delays grokking", start_of_E),
            "I2": ("A larger start of W delays grokking", start_of_W),
        },
    ),
    Family(
        "runs",
        SLOW,
        FRESH,
        {"S2": ("Uniform sampling groks before skewed, at the learning rate 0.001", slow_sampling)},
    ),
)


def families(scale: Scale) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The verdicts of all families whose study the scale has, and x of every seed; None: it has none."""
    studied = [one for one in FAMILIES if (scale.tables.get(one.table, NONE)["study"] == one.study).any()]
    found = [primary.decided(scale, one.tests, one.seeds) for one in studied]
    verdicts, each = ([part[i] for part in found] for i in (0, 1))
    return (pd.concat(verdicts, ignore_index=True), pd.concat(each, ignore_index=True)) if found else None


NONE = pd.DataFrame(columns=["study"])


def main() -> None:
    """Command line: verdicts.csv of Transformers or text, and beyond.csv of the tests that several scales have."""
    scale = primary.asked()
    if scale.name in TESTS:
        primary.decide(scale, TESTS[scale.name], SEEDS[scale.name])
    try:
        found = families(scale)
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    if found is not None:
        verdicts, each = found
        write_csv(verdicts, scale.folder / "beyond.csv")
        write_csv(each, scale.folder / "beyond-seeds.csv")
        print(verdicts.to_string(index=False))


if __name__ == "__main__":
    main()
