"""Rare and frequent words of a text: what becomes of their embeddings, and when they are learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray
from decay_map import rests
from numpy.typing import NDArray
from runs import Run, used_for
from scipy import stats
from scipy.special import log_softmax

from landscape.files.runs import RunReader
from landscape.models import of_run
from landscape.models.problem import tensors

Floats = NDArray[np.float64]
WORDS = "words"
"""Study whose tokens the primary tests read."""
JUDGED = ("decay", "none", "large")
"""Its cases that they do."""
BY_RANK = (WORDS, "decays", "samplers")
"""Studies whose words are compared by ranges of ranks."""
OTHERS = "texts"
"""Study of a second text and of more words."""
BY_STEP: Sequence[tuple[str, Mapping[str, str]]] = (
    (WORDS, {"case": "decay"}),
    (WORDS, {"case": "none"}),
    ("rates", {}),
    ("runaway", {}),
)
"""Studies and cases whose test loss is followed."""
RANGES = 10
"""Of ranks, equal in logarithms."""


def places(data: xarray.Dataset) -> NDArray[np.int64]:
    """In how many places of training contexts each word stands, most frequent in the text first; without <unknown>."""
    held = data["tokens"].values[used_for(data, "train")]
    return np.bincount(held.ravel(), minlength=data.sizes["token"])[:-1]


def words(run: Run) -> pd.DataFrame:
    """One row a word: its places in training contexts and the norm of its embedding at the last step."""
    norm = run.data["embedding_norm"].values[-1, :-1].round(5)
    return pd.DataFrame({**run.identity, "token": np.arange(len(norm)), "count": places(run.data), "norm": norm})


def zipf(run: Run) -> dict[str, object]:
    """One row: how the norms of all words follow their places in training contexts."""
    config, held = run.planned.config, words(run)
    return {
        **run.identity,
        "text": Path(config.text).stem,
        "words": config.vocabulary,
        "weight_decay": config.weight_decay,
        "batch_size": config.batch_size,
        "correlation": float(stats.spearmanr(held["count"], held["norm"]).statistic),
    }


def losses(run: Run) -> pd.DataFrame:
    """One row a recorded step: test loss, and the rate of E over that of W, or of all else in a Transformer."""
    data = run.data
    ratio = data["lr_E"].values / data["lr_W" if "lr_W" in data else "lr"].values
    return pd.DataFrame(
        {**run.identity, "step": data["metric_step"].values, "test_loss": data["test_loss"], "c": ratio}
    )


def range_of(count: int) -> NDArray[np.int64]:
    """By word, the most frequent first, the range of its rank."""
    found = np.floor(RANGES * np.log(np.arange(1, count + 1)) / np.log(count + 1)).astype(int)
    return found.clip(max=RANGES - 1)


def ranges(run: Run) -> pd.DataFrame:
    """One row a range of ranks: medians over its words at the last step, and when they rest and are learned."""
    config, data = run.planned.config, run.data
    norms, steps = data["embedding_norm"].values[:, :-1], data["step"].values
    of_word = {
        "places": places(data),
        "norm": norms[-1],
        "gradient": data["grad_norm"].values[-1, :-1],
        "updated": data["count"].values[-1, :-1] / steps[-1],
        "rest": rests(steps, norms),
        **at_rest(run),
    }
    at = range_of(norms.shape[1])
    ranks = np.arange(1, len(at) + 1)
    table = pd.DataFrame(of_word).groupby(at).median()
    ends = pd.DataFrame({"first": ranks, "last": ranks}).groupby(at).agg({"first": "min", "last": "max"})
    known = {**run.identity, **{name: getattr(config, name) for name in ("sampler", "batch_size", "weight_decay")}}
    table = pd.concat([ends, table], axis=1).assign(learned=learned(run, at))
    return pd.DataFrame([known] * len(table)).join(table.reset_index(drop=True))


def at_rest(run: Run) -> Mapping[str, Floats]:
    """By word, at the last step: how much decay pulls over how much the training loss does, and how much they oppose.

    balance: decay ‖e_i‖ / ‖∂L/∂e_i‖; opposed: cosine of -e_i with ∂L/∂e_i. Both are 1 where -decay e_i - ∂L/∂e_i = 0.
    balance is NaN under AdamW, whose decay is no part of the loss.
    """
    with RunReader(run.planned.path) as reader:
        problem = of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(reader.steps[-1]))
    slopes = problem.objective(0.0).gradient(params)
    e, g = (np.asarray(of["E"], float)[:-1] for of in (params, slopes))
    sizes = np.linalg.norm(e, axis=1), np.linalg.norm(g, axis=1)
    config = run.planned.config
    decay = math.nan if config.optimizer == "adamw" else config.weight_decay
    # A word that the training places lack has no gradient to oppose, and decay outweighs it without bound.
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"balance": decay * sizes[0] / sizes[1], "opposed": -(e * g).sum(axis=1) / sizes[0] / sizes[1]}


def learned(run: Run, at: NDArray[np.int64]) -> Floats:
    """By range, the first stored step with half of the largest gain in test loss over the words' frequencies alone.

    Of the test places whose last word is in the range; NaN where there is no gain. at: by word, its range.
    """
    data = run.data
    test = used_for(data, "test")
    tokens, labels = data["tokens"].values[test], data["labels"].values[test]
    inside = tokens[:, -1] < len(at)
    tokens, labels = tokens[inside], labels[inside]
    # One more of each, so that no word has the probability 0.
    seen = 1 + np.bincount(data["labels"].values[used_for(data, "train")], minlength=data.sizes["class"])
    alone = -np.log(seen / seen.sum())[labels]
    gains = []
    with RunReader(run.planned.path) as reader:
        problem = of_run(reader, "cpu")
        for step in data["step"].values:
            log_p = log_softmax(problem.logits(reader.checkpoint(int(step)), tokens), axis=1)
            gains.append(pd.Series(alone + log_p[np.arange(len(labels)), labels]).groupby(at[tokens[:, -1]]).mean())
    gain = pd.DataFrame(gains, index=data["step"].values).reindex(columns=range(RANGES))
    half = gain >= gain.max() / 2
    return half.idxmax().where(gain.max() > 0).to_numpy(float)
