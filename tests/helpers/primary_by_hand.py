"""x of the article's primary tests again, from the committed CSV, with the csv module and NumPy alone."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from helpers.trial_by_hand import log_ratio

X = dict[tuple[str, str], dict[tuple[str, int], float]]
"""x by test and size, by size and seed."""
FORK = {"quick": 1000, "mid": 300}
BEST = {"quick": (("0.1", "0.001"), ("0.1", "0.0002")), "mid": (("0.03", "0.001"), ("0.03", "0.0002"))}
"""Learning rate and weight decay of the embedding and of one-hot input."""


class Size:
    """The rows of a size from seed 700 on."""

    def __init__(self, folder: Path) -> None:
        self.name, self.rows = folder.name, {}
        for name in ("runs", "curvature", "settled"):
            with (folder / f"{name}.csv").open(encoding="utf-8") as file:
                self.rows[name] = [row for row in csv.DictReader(file) if int(row["seed"]) >= 700]

    def of(self, table: str, column: str, seed: int, **known: str) -> float:
        """The one number of a seed in the rows with these values; infinity where a run never got there."""
        chosen = {"seed": str(seed), **known}
        (row,) = [row for row in self.rows[table] if all(row[name] == value for name, value in chosen.items())]
        return float(row[column] or math.inf)

    def grokked(self, study: str, case: str, seed: int, column: str = "grokked", **known: str) -> float:
        return self.of("runs", column, seed, study=study, case=case, **known)


def settled(block: str, other: str) -> Callable[[Size, int], float]:
    def ratio(size: Size, seed: int) -> float:
        known = {"study": "settled", "analysis": "settled"}
        return math.log(
            size.of("curvature", "lowest", seed, block=block, **known)
            / size.of("curvature", "lowest", seed, block=other, **known)
        )

    return ratio


def wait(size: Size, one: str, other: str, seed: int) -> float:
    fork = FORK[size.name]
    if size.grokked("cut", "none", seed) <= fork:
        return 0.0
    return log_ratio(size.grokked("cut", one, seed) - fork, size.grokked("cut", other, seed) - fork)


def p4(size: Size, seed: int) -> float:
    has_wait = size.grokked("cut", "none", seed) > FORK[size.name]
    return math.log(0.8) - wait(size, "EW", "random", seed) if has_wait else 0.0


def cells(size: Size, seed: int) -> np.ndarray:
    """ln of the rate of E, of all else, and of the step, of the cells of a seed that grokked."""
    rows = [row for row in size.rows["runs"] if row["study"] == "rates" and row["seed"] == str(seed) and row["grokked"]]
    return np.log([[float(row[name]) for name in ("lr_E", "lr", "grokked")] for row in rows])


def p6(size: Size, seed: int) -> float:
    of_E, of_all_else, step = cells(size, seed).T
    _, b_E, b_W = np.linalg.pinv(np.stack([np.ones_like(step), of_E, of_all_else], axis=1)) @ step
    return float(abs(b_E) - 3 * abs(b_W))


def p7(size: Size, seed: int) -> float:
    table = cells(size, seed)
    best = []
    for product in range(-20, 20):
        on = table[np.round((table[:, 0] + table[:, 1]) / math.log(2.5)) == product]
        if len(on) >= 3:
            soonest = on[np.isclose(on[:, 2], on[:, 2].min())]
            best.append(np.mean(soonest[:, 0] - soonest[:, 1]))
    sigma = size.of("runs", "sigma_ratio", seed, study="rates", lr_E="0.01", lr="0.01")
    return math.log(2.5) - abs(float(np.median(best)) - math.log(sigma))


def delay(size: Size, model: str, seed: int, lr: str, decay: str) -> float:
    return max(25.0, size.grokked("grid", model, seed, "delay", lr=lr, weight_decay=decay))


def p8(size: Size, seed: int) -> float:
    each = []
    for lr, decay in itertools.product(("0.01", "0.03", "0.1"), ("0.0002", "0.001")):
        each.append(log_ratio(*(delay(size, model, seed, lr, decay) for model in ("embedding", "onehot"))))
    low, high = np.sort(each)[2:4]
    return 0.0 if low == -high else float(low + high) / 2


def p9(size: Size, seed: int) -> float:
    of = zip(("embedding", "onehot"), BEST[size.name], strict=True)
    return log_ratio(*(delay(size, model, seed, *setting) for model, setting in of))


def null(phase: str) -> Callable[[Size, int], float]:
    def better(size: Size, seed: int) -> float:
        one, prop41 = (size.grokked("cut", "none", seed, f"miss_{name}_{phase}") for name in ("one", "prop41"))
        return math.log(one / prop41)

    return better


TESTS: dict[str, Callable[[Size, int], float]] = {
    "P1": lambda size, seed: math.log(2) - settled("E,W", "E[operands],W")(size, seed),
    "P2": lambda size, seed: 2 - size.of("settled", "bias_gradient", seed, study="settled", analysis="settled"),
    "P3": settled("E,W", "W,V"),
    "P4": p4,
    "P5": lambda size, seed: wait(size, "held", "none", seed),
    "P6": p6,
    "P7": p7,
    "P8": p8,
    "P9": p9,
    "P10": null("plateau"),
    "P11": null("before"),
    "P12": lambda size, seed: log_ratio(*(size.grokked("crossed", case, seed) for case in ("l2", "nuclear-V"))),
    "P13": lambda size, seed: log_ratio(*(size.grokked("crossed", case, seed) for case in ("l2-V", "nuclear"))),
}


def every_primary_x(root: Path) -> X:
    """x of the 24 tests."""
    x: X = {}
    for name, test in TESTS.items():
        pooled = name in ("P6", "P7")
        for size in (Size(root / "quick"), Size(root / "mid")):
            for seed in range(700, 705 if pooled else 710):
                x.setdefault((name, "both" if pooled else size.name), {})[size.name, seed] = test(size, seed)
    return x
