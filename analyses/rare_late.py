"""How the norms of embeddings follow the frequency of their tokens over training, in the runs of study `rare-late`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from runs import Run, used_for
from scipy import stats

RARE_LATE = "rare-late"
"""Study of skewed tokens in small batches, in full ones and without weight decay, each to its last step."""


def tokens(run: Run, step: int) -> pd.DataFrame:
    """One row an operand token: in how many places of training pairs it stands, and the norm of its embedding."""
    pairs, p = run.data["tokens"].values[used_for(run.data, "train")], run.planned.config.p
    count = np.bincount(pairs.ravel(), minlength=p)[:p]
    norms = run.data["embedding_norm"].sel(step=step).values[:p]
    known = {**run.identity, "batch_size": run.planned.config.batch_size, "step": step}
    return pd.DataFrame({**known, "token": np.arange(p), "count": count, "norm": norms})


def last_tokens(run: Run) -> pd.DataFrame:
    """The same at the last step."""
    return tokens(run, int(run.data["step"].values[-1]))


def frequency_and_norm(table: pd.DataFrame) -> float:
    """The rank correlation of a token's places in training samples with the norm of its embedding."""
    return float(stats.spearmanr(table["count"], table["norm"]).statistic)


def correlations(run: Run) -> pd.DataFrame:
    """One row a stored step: that correlation."""
    rows = (tokens(run, int(step)) for step in run.data["step"].values)
    return pd.DataFrame(
        [{**run.identity, "step": of["step"].iat[0], "correlation": frequency_and_norm(of)} for of in rows]
    )
