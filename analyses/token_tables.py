"""What the runs of a study say about each token: frequency, norms, gradients and accuracy over steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from evidence import Run, used_for
from intervals import Floats, columns, interval
from scipy import special, stats

if TYPE_CHECKING:
    import xarray

GROUP = ["case", "sampler", "batch_size"]
QUARTILES = ["rare", "second", "third", "frequent"]


def pass_through(data: xarray.Dataset, at: int) -> tuple[Floats, Floats]:
    """dL/dE over the training set, and the test accuracy of the pairs that hold each token, at one checkpoint."""
    E, W, b1, V, b2 = (data[name].values[at].astype(float) for name in ("E", "W", "b1", "V", "b2"))
    tokens, labels = (data[name].values for name in ("tokens", "labels"))
    pre = E[tokens].reshape(len(tokens), -1) @ W.T + b1
    logits = np.maximum(pre, 0) @ V.T + b2
    error = special.softmax(logits, axis=1)
    error[np.arange(len(labels)), labels] -= 1
    train, test = used_for(data, "train"), used_for(data, "test")
    back = ((error[train] @ V) * (pre[train] > 0) @ W).reshape(train.sum(), tokens.shape[1], -1) / train.sum()
    gradient = np.zeros_like(E)
    np.add.at(gradient, tokens[train], back)
    right = np.repeat(logits[test].argmax(axis=1) == labels[test], tokens.shape[1]).astype(float)
    held = tokens[test].ravel()
    accuracy = np.bincount(held, right, len(E)) / np.maximum(np.bincount(held, minlength=len(E)), 1)
    return gradient, accuracy


def shared_steps(runs: Iterable[Run]) -> dict[tuple[str, int], int]:
    """The last checkpoint that all runs of the same sampler and seed have."""
    steps: dict[tuple[str, int], set[int]] = {}
    for one in runs:
        key, own = (one.labels["sampler"], one.labels["seed"]), set(one.data["step"].values.tolist())
        steps[key] = steps.get(key, own) & own
    return {key: max(common) for key, common in steps.items()}


def token_table(one: Run, shared: int) -> pd.DataFrame:
    """One row per checkpoint and token of a run; gradients and accuracies at step `shared` and at the last step."""
    data, config = one.data, one.planned.config
    E, v_E, steps = data["E"].values.astype(float), data["v_E"].values, data["step"].values
    norms, count, grad_norm = (data[name].values for name in ("embedding_norm", "count", "grad_norm"))
    train = data["tokens"].values[used_for(data, "train")]
    frequency = (train[:, :, None] == np.arange(E.shape[1])).any(axis=1).mean(axis=0)
    quartile = np.empty(len(frequency), dtype=object)
    for name, members in zip(QUARTILES, np.array_split(np.argsort(frequency, kind="stable"), 4), strict=True):
        quartile[members] = name
    path = np.cumsum(np.linalg.norm(np.diff(E, axis=0, prepend=E[:1]), axis=2), axis=0)
    rows = []
    for at, step in enumerate(steps):
        row: dict[str, Any] = {"step": step, "token": np.arange(len(frequency)), "frequency": frequency}
        row |= {"quartile": quartile, "presence": count[at] / step if step else np.nan, "embedding_norm": norms[at]}
        row |= {"grad_norm": grad_norm[at], "path": path[at], "norm_change": np.log(norms[at] / norms[0])}
        if step:  # Adam turns the decay term lambda e into a decay at the rate lr lambda / sqrt(v).
            scale = np.sqrt(v_E[at] / (1 - 0.999 ** float(step))) + 1e-8
            row |= {"decay_rate": config.lr * config.weight_decay * np.median(1 / scale, axis=1)}
        if step in (shared, steps[-1]):
            gradient, row["test_accuracy"] = pass_through(data, at)
            size = np.linalg.norm(gradient, axis=1)
            row |= {"gradient": size, "cosine": -(gradient * E[at]).sum(axis=1) / (size * norms[at])}
            if config.weight_decay:
                row |= {
                    "equilibrium_norm": size / config.weight_decay,
                    "pull": size / (config.weight_decay * norms[at]),
                }
        rows.append(pd.DataFrame(row))
    labels = {key: str(value) if key == "batch_size" else value for key, value in one.labels.items()}
    return pd.concat(rows, ignore_index=True).assign(shared=shared, last=steps[-1], **labels)


def two_moments(tokens: pd.DataFrame) -> pd.DataFrame:
    """The rows of the shared checkpoint, and those of each run's end."""
    parts = {"shared checkpoint": "shared", "end of run": "last"}
    return pd.concat([tokens[tokens["step"] == tokens[at]].assign(moment=moment) for moment, at in parts.items()])


def correlations(tokens: pd.DataFrame, quantities: Iterable[str]) -> pd.DataFrame:
    """rho of every quantity with the tokens' frequency, one row per run and moment; NaN where either is constant."""

    def rho(group: pd.DataFrame) -> pd.Series:
        varies = {x: np.ptp(group[x]) > 0 and np.ptp(group["frequency"]) > 0 for x in quantities}
        found = {x: stats.spearmanr(group["frequency"], group[x]).statistic for x in quantities if varies[x]}
        return pd.Series({"step": group["step"].iloc[0]} | {x: found.get(x, np.nan) for x in quantities})

    return tokens.groupby([*GROUP, "seed", "moment"])[["step", "frequency", *quantities]].apply(rho).reset_index()


def medians(table: pd.DataFrame, by: list[str], quantities: list[str]) -> pd.DataFrame:
    """Median over runs with its 95 % interval, one row per group."""
    rows = []
    for key, group in table.groupby(by, sort=False):
        row = dict(zip(by, key, strict=True)) | {"runs": len(group)}
        for quantity in quantities:
            row |= columns(quantity, interval(group[quantity].dropna()))
        rows.append(row)
    return pd.DataFrame(rows)
