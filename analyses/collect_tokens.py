"""Rare and frequent tokens, operands or words, in the runs of the trial: norms, pulls, and when they are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from runs import Run
from scipy import stats
from scipy.special import log_softmax

import landscape

Floats = NDArray[np.float64]
NEAR = 0.1
"""Relative distance from the last norm within which an embedding rests."""
FIFTHS, RANGES = 5, 10
"""Equal parts of the operands, and ranges of ranks of words, equal in logarithms."""


def tokens(run: Run, step: int) -> pd.DataFrame:
    """One row an operand token: in how many places of training pairs it stands, and the norm of its embedding."""
    p = run.config["p"]
    count = np.bincount(run.samples("train")[0].ravel(), minlength=p)[:p]
    norms = run.tokens["embedding_norm"].sel(step=step).values[:p]
    known = {"batch_size": run.config["batch_size"], "step": step}
    return run.labelled(pd.DataFrame({**known, "token": np.arange(p), "count": count, "norm": norms}))


def last_tokens(run: Run) -> pd.DataFrame:
    """The same at the last step."""
    return tokens(run, int(run.tokens["step"].values[-1]))


def correlations(run: Run) -> pd.DataFrame:
    """One row a stored step: the rank correlation of a token's places with the norm of its embedding."""
    rows = []
    for step in run.tokens["step"].values:
        of = tokens(run, int(step))
        rows.append({"step": int(step), "correlation": float(stats.spearmanr(of["count"], of["norm"]).statistic)})
    return run.labelled(pd.DataFrame(rows))


def rests(steps: NDArray[np.int64], norms: Floats) -> Floats:
    """By token, the first step from which its norm (step, token) stays near the last one."""
    away = np.abs(norms - norms[-1]) > NEAR * norms[-1]
    # The step after the last one away; the last norm is near itself.
    last = np.where(away.any(axis=0), len(steps) - np.argmax(away[::-1], axis=0), 0)
    return np.asarray(steps[last], float)


def map_row(run: Run) -> pd.DataFrame:
    """One row: weight decay and skew of a run, when it grokked, and when rare and frequent tokens came to rest."""
    config, p, steps = run.config, run.config["p"], run.tokens["step"].values
    shares = run.tokens["count"].values[-1, :p] / float(steps[-1])
    rest = rests(steps, run.tokens["embedding_norm"].values[:, :p])
    order, size = np.argsort(shares, kind="stable"), p // FIFTHS
    row = {"weight_decay": config["weight_decay"], "skew": config["skew"], "watched": config["steps"]}
    row["grokked"] = run.times["grokked"]
    for name, group in {"rare": order[:size], "frequent": order[-size:]}.items():
        row |= {f"rest_{name}": float(np.median(rest[group])), f"absent_{name}": float(1 - shares[group].mean())}
    return run.labelled(pd.DataFrame([row]))


def places(run: Run) -> NDArray[np.int64]:
    """In how many places of training contexts each word stands, most frequent in the text first; without <unknown>."""
    return np.bincount(run.samples("train")[0].ravel(), minlength=run.tokens.sizes["token"])[:-1]


def words(run: Run) -> pd.DataFrame:
    """One row a word: its places in training contexts and the norm of its embedding at the last step."""
    norm = run.tokens["embedding_norm"].values[-1, :-1].round(5)
    return run.labelled(pd.DataFrame({"token": np.arange(len(norm)), "count": places(run), "norm": norm}))


def zipf(run: Run) -> pd.DataFrame:
    """One row: how the norms of all words follow their places in training contexts."""
    config, table = run.config, words(run)
    row = {"text": Path(config["text"]).stem, "words": config["vocabulary"]}
    row |= {"weight_decay": config["weight_decay"], "batch_size": config["batch_size"]}
    row["correlation"] = float(stats.spearmanr(table["count"], table["norm"]).statistic)
    return run.labelled(pd.DataFrame([row]))


def losses(run: Run) -> pd.DataFrame:
    """One row a recorded step: test loss, and the rate of E over that of W, or of all else in a Transformer."""
    metrics = run.metrics
    c = metrics["lr_E"] / metrics["lr_W" if "lr_W" in metrics else "lr"]
    return run.labelled(pd.DataFrame({"test_loss": metrics["test_loss"], "c": c}).reset_index())


def range_of(count: int) -> NDArray[np.int64]:
    """By word, the most frequent first, the range of its rank."""
    indices = np.floor(RANGES * np.log(np.arange(1, count + 1)) / np.log(count + 1)).astype(int)
    return indices.clip(max=RANGES - 1)


def ranges(run: Run) -> pd.DataFrame:
    """One row a range of ranks: medians over its words at the last step, and when they rest and are learned."""
    norms, steps = run.tokens["embedding_norm"].values[:, :-1], run.tokens["step"].values
    of_word = {
        "places": places(run),
        "norm": norms[-1],
        "gradient": run.tokens["grad_norm"].values[-1, :-1],
        "updated": run.tokens["count"].values[-1, :-1] / steps[-1],
        "rest": rests(steps, norms),
        **at_rest(run),
    }
    at = range_of(norms.shape[1])
    rank = pd.Series(np.arange(1, len(at) + 1)).groupby(at)
    table = pd.concat(
        [rank.min().rename("first"), rank.max().rename("last"), pd.DataFrame(of_word).groupby(at).median()], axis=1
    )
    known = {name: run.config[name] for name in ("sampler", "batch_size", "weight_decay")}
    table = table.assign(learned=learned(run, at))
    return run.labelled(pd.DataFrame([known] * len(table)).join(table.reset_index(drop=True)))


def at_rest(run: Run) -> Mapping[str, Floats]:
    """By word, at the last step: how much decay pulls over how much the training loss does, and how much they oppose.

    balance: decay ‖e_i‖ / ‖∂L/∂e_i‖; opposed: cosine of −e_i with ∂L/∂e_i. Both are 1 where −decay e_i − ∂L/∂e_i = 0.
    balance is NaN under AdamW, whose decay is no part of the loss.
    """
    at = landscape.network(run.path)
    E = at.parameters["E"]
    (slope,) = torch.autograd.grad(at.loss(at.model(at.inputs), at.targets), [E])
    e, g = (of.detach().numpy()[:-1] for of in (E, slope))
    sizes = np.linalg.norm(e, axis=1), np.linalg.norm(g, axis=1)
    decay = math.nan if run.config["optimizer"] == "adamw" else run.config["weight_decay"]
    # A word that the training places lack has no gradient to oppose, and decay outweighs it without bound.
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"balance": decay * sizes[0] / sizes[1], "opposed": -(e * g).sum(axis=1) / sizes[0] / sizes[1]}


def learned(run: Run, at: NDArray[np.int64]) -> Floats:
    """By range, the first stored step with half of the largest gain in test loss over the words' frequencies alone.

    Of the test places whose last word is in the range; NaN where there is no gain. at: by word, its range.
    """
    tokens, labels = run.samples("test")
    inside = tokens[:, -1] < len(at)
    tokens, labels = tokens[inside], labels[inside]
    steps = run.tokens["step"].values
    outputs = run.file.checkpoints.sizes["class"]
    # One more of each, so that no word has the probability 0.
    seen = 1 + np.bincount(run.samples("train")[1], minlength=outputs)
    alone = -np.log(seen / seen.sum())[labels]
    gains = []
    for step in steps:
        with torch.no_grad():
            logits = landscape.network(run.path, int(step)).model(torch.as_tensor(tokens)).numpy()
        gain = alone + log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
        gains.append(pd.Series(gain).groupby(at[tokens[:, -1]]).mean())
    gain = pd.DataFrame(gains, index=steps).reindex(columns=range(RANGES))
    half = gain >= gain.max() / 2
    return half.idxmax().where(gain.max() > 0).to_numpy(float)
