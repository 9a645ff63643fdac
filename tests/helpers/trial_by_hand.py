"""The primary tests again, from HDF5 files or from the committed CSV, with h5py, NumPy and SciPy alone."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
X = dict[str, dict[int, float]]
"""x by claim and seed."""


class Source(Protocol):
    """Where the numbers of a scale stand. run: STUDY/RUN; what never happened happened at infinity."""

    def seeds(self) -> list[int]: ...

    def four_tokens(self) -> bool:
        """Whether the runs of the study `curvature` have four tokens."""
        ...

    def event(self, run: str, metric: str, least: float) -> float: ...

    def watched(self, run: str) -> float: ...

    def f_E(self, run: str) -> float: ...

    def ends(self, run: str, analysis: str, block: str) -> Floats:
        """Rows of step, lowest and highest eigenvalue."""
        ...

    def gradients(self, run: str) -> Floats:
        """Rows of step, gradient norms of W and E, largest singular values of E and W."""
        ...

    def tokens(self, run: str, other: str) -> Floats:
        """Rows of places in training pairs and norm, a token, of the first run at the last step of both."""
        ...


class Files:
    """The HDF5 files of a scale."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _read(self, run: str, names: tuple[str, ...], analysis: str = "") -> list[Any]:
        with h5py.File(self.folder / f"{run}{f'.hessian-{analysis}' if analysis else ''}.h5") as file:
            return [file[name].asstr()[()] if file[name].dtype.kind == "O" else file[name][()] for name in names]

    def seeds(self) -> list[int]:
        return sorted(int(path.stem.partition("-s")[2]) for path in self.folder.glob("curvature/c1-s???.h5"))

    def four_tokens(self) -> bool:
        (tokens,) = self._read(f"curvature/c1-s{self.seeds()[0]}", ("data/tokens",))
        return bool(tokens.shape[1] == 4)

    def event(self, run: str, metric: str, least: float) -> float:
        steps, values = self._read(run, ("metrics/metric_step", f"metrics/{metric}"))
        return float(min(steps[values >= least], default=math.inf))

    def watched(self, run: str) -> float:
        with h5py.File(self.folder / f"{run}.h5") as file:
            return float(file.attrs["config"].partition('"steps": ')[2].partition(",")[0])

    def f_E(self, run: str) -> float:
        return float(self._read(run, ("metrics/f_E",))[0][-1])

    def ends(self, run: str, analysis: str, block: str) -> Floats:
        steps, blocks, ends, values = self._read(run, ("step", "block", "end", "eigenvalues"), analysis)
        of_block = values[:, list(blocks).index(block)]
        return np.column_stack([steps, *(of_block[:, list(ends).index(end), 0] for end in ("lowest", "highest"))])

    def gradients(self, run: str) -> Floats:
        names = ("metric_step", "grad_norm_W", "grad_norm_E", "sigma_max_E", "sigma_max_W")
        return np.column_stack(self._read(run, tuple(f"metrics/{name}" for name in names)))

    def tokens(self, run: str, other: str) -> Floats:
        (others,) = self._read(other, ("tokens/step",))
        split, pairs, steps, norms = self._read(
            run, ("data/split", "data/tokens", "tokens/step", "tokens/embedding_norm")
        )
        (labels,) = self._read(run, ("data/labels",))
        p = labels.max() + 1
        # Training pairs are those of code 0.
        count = [(pairs[split == 0] == token).sum() for token in range(p)]
        at = np.flatnonzero(np.isin(steps, others))[-1]
        return np.column_stack([count, norms[at, :p]])


class Tables:
    """The committed CSV of a scale."""

    def __init__(self, folder: Path) -> None:
        rows: dict[str, list[dict[str, str]]] = {}
        for name in ("runs", "curvature", "metrics", "tokens"):
            with (folder / f"{name}.csv").open(encoding="utf-8") as file:
                rows[name] = list(csv.DictReader(file))
        self.runs = {row["file"].removesuffix(".h5"): row for row in rows["runs"]}
        self.rows = rows

    def _of(self, table: str, run: str, **chosen: str) -> list[dict[str, str]]:
        chosen |= {name: self.runs[run][name] for name in ("study", "case", "seed")}
        return [row for row in self.rows[table] if all(row[name] == value for name, value in chosen.items())]

    def seeds(self) -> list[int]:
        return sorted(
            int(row["seed"]) for row in self.runs.values() if (row["study"], row["case"]) == ("curvature", "c1")
        )

    def four_tokens(self) -> bool:
        return self.runs[f"curvature/c1-s{self.seeds()[0]}"]["tokens"] == "4"

    def event(self, run: str, metric: str, least: float) -> float:
        column = {0.99: "memorised", 0.95: "grokked", 0.5: "half"}[least]
        return float(self.runs[run][column] or math.inf)

    def watched(self, run: str) -> float:
        return float(self.runs[run]["watched"])

    def f_E(self, run: str) -> float:
        return float(self.runs[run]["f_E"])

    def ends(self, run: str, analysis: str, block: str) -> Floats:
        rows = self._of("curvature", run, analysis=analysis, block=block)
        return np.array([[float(row[name]) for name in ("step", "lowest", "highest")] for row in rows])

    def gradients(self, run: str) -> Floats:
        names = ("step", "grad_norm_W", "grad_norm_E", "sigma_max_E", "sigma_max_W")
        return np.array([[float(row[name]) for name in names] for row in self._of("metrics", run)])

    def tokens(self, run: str, other: str) -> Floats:
        rows = self._of("tokens", run)
        return np.array([[float(row["count"]), float(row["norm"])] for row in rows])


def every_x(source: Source) -> X:
    """x of the thirteen primary tests."""
    claims = (c1, c2, c3, c4, c5, c6, c7, c8, c9, o2, o3, d1, d2)
    return {claim.__name__.upper(): {seed: claim(source, seed) for seed in source.seeds()} for claim in claims}


def grokked(source: Source, run: str) -> float:
    return source.event(run, "test_accuracy", 0.95)


def log_ratio(a: float, b: float) -> float:
    """ln(a / b) of two times, either of which may be infinite."""
    with np.errstate(divide="ignore"):
        return 0.0 if a == b else float(np.log(a) - np.log(b))


def at_most(source: Source, run: str) -> float:
    return min(grokked(source, run), source.watched(run)) if math.isinf(grokked(source, run)) else grokked(source, run)


def c1(source: Source, seed: int) -> float:
    runs = [f"delay/{case}-s{seed}" for case in ("embedding", "onehot")]
    return log_ratio(*(grokked(source, run) - source.event(run, "train_accuracy", 0.99) for run in runs))


def c2(source: Source, seed: int) -> float:
    runs = f"sampling/base-sampler=skewed-batch_size=64-s{seed}", f"rare/full-s{seed}"
    rho = []
    for run, other in (runs, runs[::-1]):
        ranks = [stats.rankdata(column) for column in source.tokens(run, other).T]
        rho.append(np.corrcoef(*ranks)[0, 1])
    return float(rho[0] - rho[1])


def c3(source: Source, seed: int) -> float:
    stem = "sampling/base-sampler={}-batch_size={}-s{}"
    at = [[at_most(source, stem.format(s, size, seed)) for s in ("skewed", "uniform")] for size in (64, 512)]
    return float(np.log([skewed / uniform for skewed, uniform in at]).mean())


def lowest(source: Source, run: str, block: str) -> float:
    ((_, value, _),) = source.ends(run, "plateau", block)
    return float(value)


def c4(source: Source, seed: int) -> float:
    run = f"curvature/c1-s{seed}"
    return float(np.log(lowest(source, run, "E,W") / lowest(source, run, "W,V")))


def c5(source: Source, seed: int) -> float:
    gaps = []
    for case in ("c1", "c10"):
        E, W = (source.ends(f"curvature/{case}-s{seed}", "top-plateau", block)[0, 2] for block in "EW")
        gaps.append(abs(np.log(W) - np.log(E)))
    return float(gaps[0] - gaps[1])


def c6(source: Source, seed: int) -> float:
    run = f"curvature/c1-s{seed}"
    E, W = (np.log(max((r for r in source.ends(run, "top", b) if r[0] > 0), key=lambda r: r[2])[0]) for b in "EW")
    m = np.log(source.event(run, "train_accuracy", 0.99))
    g = np.log(min(source.event(run, "test_accuracy", 0.5), 1e300))
    return float(abs(m - E) + abs(g - W) - abs(m - W) - abs(g - E))


def c7(source: Source, seed: int) -> float:
    run = f"curvature/c1-s{seed}"
    steps, of_W, of_E, sigma_E, sigma_W = source.gradients(run).T
    chosen = (steps >= source.event(run, "train_accuracy", 0.99)) & (steps <= grokked(source, run))
    off = np.log(of_W) - np.log(of_E) - np.log(sigma_E) + np.log(sigma_W)
    return float(np.median(np.log(2) - np.abs(off[chosen])))


def c8(source: Source, seed: int) -> float:
    return log_ratio(*(grokked(source, f"curvature/{case}-s{seed}") for case in ("c1", "c10")))


def c9(source: Source, seed: int) -> float:
    return float(np.log(1 / source.f_E(f"curvature/c1-s{seed}") / 1.05))


def o2(source: Source, seed: int) -> float:
    return log_ratio(*(grokked(source, f"{run}-s{seed}") for run in ("curvature/c10", "pace/curvature")))


def o3(source: Source, seed: int) -> float:
    stem = "decay/base-weight_decay={}-sampler={}-s{}"
    more, less = (
        np.log(at_most(source, stem.format(decay, "skewed", seed)))
        - np.log(at_most(source, stem.format(decay, "uniform", seed)))
        for decay in ("0.002", "0.0005")
    )
    return float(more - less)


def d1(source: Source, seed: int) -> float:
    run = f"curvature/c1-s{seed}" if source.four_tokens() else f"constants/four-s{seed}"
    return float(np.log(0.5 * lowest(source, run, "E,W") / lowest(source, run, "E[operands],W")))


def d2(source: Source, seed: int) -> float:
    return log_ratio(*(grokked(source, f"tables/{case}-s{seed}") for case in ("l2", "nuclear")))


def verdict(x: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[float, str]]:
    """Holm's p and the verdict of each claim, over all 2^n signs of its signed ranks."""
    p = {name: enumerated(np.array(list(numbers.values()))) for name, numbers in x.items()}
    verdicts: dict[str, tuple[float, str]] = {}
    worst = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        worst = max(worst, min(1.0, p[name] * (len(p) - rank)))
        median = float(np.sort(list(x[name].values()))[[(len(x[name]) - 1) // 2, len(x[name]) // 2]].sum())
        verdicts[name] = worst, "inconclusive" if worst >= 0.05 else "supported" if median > 0 else "contradicted"
    return verdicts


def enumerated(x: Floats) -> float:
    """p of the test of signed ranks, sign by sign."""
    x = np.array([float(f"{value:.12f}") for value in x])
    ranks = stats.rankdata(np.abs(x)) * (x != 0)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(x))))
    return float(np.mean(np.abs(signs @ ranks) >= abs(np.sign(x) @ ranks) - 1e-9))
