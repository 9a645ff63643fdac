"""How often the 95 % intervals of the estimators hold the truth, on random matrices of five families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch

from landscape import MatrixOperator, diagonal, effective_dimension, frobenius_norm, log_determinant, trace
from landscape.curvature.density import quadrature

Array = np.ndarray[Any, Any]
STEPS = 20
"""Of each quadrature: few enough that it has an error beside that of its probes."""
MATRICES = 60
"""Of each family."""
TEXT = """## Coverage of the intervals

How many of 100 intervals that claim 95 % hold the truth, on {count} random matrices of 60 to 300 rows, with the
default number of random vectors and {steps} steps of each quadrature. Of a diagonal, how many elements. The scatter
of {matrices} trials is 2.8 points. –: not defined where there are negative eigenvalues."""


def _wishart(n: int, rng: np.random.Generator) -> Array:
    X = rng.standard_normal((n, n // 3))
    return X @ X.T / n


def _goe(n: int, rng: np.random.Generator) -> Array:
    X = rng.standard_normal((n, n))
    return (X + X.T) / (2 * n) ** 0.5


def _rotated(values: Array, rng: np.random.Generator) -> Array:
    Q = np.linalg.qr(rng.standard_normal((len(values), len(values)))).Q
    return (Q * values) @ Q.T


FAMILIES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "Wishart, rank n/3": _wishart,
    "Gaussian orthogonal": _goe,
    "power law k^-1.5": lambda n, rng: _rotated(np.arange(1.0, n + 1) ** -1.5, rng),
    "3 outliers, bulk": lambda n, rng: _rotated(np.r_[50.0, 30, 20, rng.uniform(0, 0.1, n - 3)], rng),
    "cluster, tiny": lambda n, rng: _rotated(
        np.r_[rng.uniform(1, 1.1, n // 4), 10 ** rng.uniform(-8, 0, n - n // 4)], rng
    ),
}


def section() -> str:
    """The part of docs/accuracy.md about coverage."""
    shares = 100 * measured(MATRICES)
    text = TEXT.format(count=MATRICES * len(FAMILIES), steps=STEPS, matrices=MATRICES)
    lines = [["interval", *shares], ["---"] * (1 + len(FAMILIES))]
    lines += [[str(name), *("–" if np.isnan(x) else f"{x:.1f}" for x in row)] for name, row in shares.iterrows()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{table}"


def measured(matrices: int) -> pd.DataFrame:
    """The share of intervals that hold the truth, by estimator (rows) and family; NaN where it is not defined."""
    rows = [
        {"family": family, "estimator": name, "holds": holds}
        for family in FAMILIES
        for seed in range(matrices)
        for name, holds in _held(family, seed)
    ]
    return pd.DataFrame(rows).pivot_table("holds", "estimator", "family", sort=False)


def _held(family: str, seed: int) -> Iterator[tuple[str, float]]:
    """Each estimator's name, and the share of its intervals that hold the truth, for one matrix."""
    rng = np.random.default_rng([seed, [*FAMILIES].index(family)])
    A = FAMILIES[family](int(rng.integers(60, 301)), rng)
    A = (A + A.T) / 2
    op, values = MatrixOperator(torch.from_numpy(A)), np.linalg.eigvalsh(A)
    norm, shift = np.abs(values).max(), np.abs(values).max() * 10 ** rng.uniform(-4, -1)
    for method in ("xtrace", "hutch++"):
        yield f"trace, {method}", _holds(trace(op, seed=seed, method=method), values.sum())  # type: ignore[arg-type]
    for method in ("xdiag", "hutchinson"):
        yield f"diagonal, {method}", _holds(diagonal(op, method, seed=seed), A.diagonal())  # type: ignore[arg-type]
    yield "Frobenius norm", _holds(frobenius_norm(op, seed=seed, method="xtrace"), np.linalg.norm(values))
    floor = min(float(values.min()), 0.0) * (1 + 1e-12) - 1e-12 * norm
    lifted = shift - floor
    estimate = log_determinant(op, lifted, floor, steps=STEPS, method="lanczos", seed=seed)
    yield "log-determinant", _holds(estimate, np.log(values + lifted).sum())
    if floor > -1e-9 * norm:
        kept = values.clip(0)
        estimate = effective_dimension(op, shift, steps=STEPS, method="lanczos", seed=seed)
        yield "effective dimension", _holds(estimate, (kept / (kept + shift)).sum())
    below = quadrature(op, steps=STEPS, seed=seed).count_below(shift)
    yield "count of eigenvalues", _holds(below, (values < shift).sum())


def _holds(estimate: Any, true: Array | float) -> float:
    low, high = (np.asarray(getattr(estimate, end)) for end in ("low", "high"))
    return float(np.mean((low <= true) & (true <= high)))
