"""Figures of training: losses and accuracies, recorded metrics, Proposition 4.1, and embeddings by frequency."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import seaborn as sns

from landscape.models.embedding_mlp.blocks import BALANCED, RATE_RATIO
from landscape.report.figures.panels import (
    Drawn,
    Panel,
    label,
    legend,
    lines,
    long,
    over_steps,
    readable,
    scaled,
    step_axis,
    subplots,
)
from landscape.report.numbers import RATES, is_accuracy
from landscape.report.sources import Frames
from landscape.report.style import markers, palette
from landscape.report.words import median_step, median_step_text, spread, step_text

_MOST = 6
"""Recorded metrics that are drawn."""
_THIRDS = ("rare tokens", "middle third", "frequent tokens")


def training_curves(frames: Frames) -> Drawn | None:
    """Accuracies and losses over steps."""
    of_accuracy, of_loss = accuracies(frames), losses(frames)
    is_ours = not frames["runs"]["is_recorded"].any()
    scale = "log" if len(of_loss) and (of_loss["value"] > 0).all() else "linear"
    drawn = over_steps(
        frames,
        [
            Panel("accuracy", "accuracy", of_accuracy, "share"),
            Panel("loss", "cross-entropy (nat)" if is_ours else "loss", of_loss, scale),  # type: ignore[arg-type]
        ],
        "split",
    )
    return drawn and Drawn(trained(frames), *drawn)


def accuracies(frames: Frames) -> pd.DataFrame:
    """All accuracies as shares, a row each, by split."""
    metrics = frames.get("metrics", pd.DataFrame())
    shares = _by_split(metrics, [str(name) for name in metrics if is_accuracy(str(name))])
    if len(shares) and shares["value"].max() > 1:
        shares["value"] /= 100
    return shares


def losses(frames: Frames) -> pd.DataFrame:
    """All losses, a row each, by split."""
    metrics = frames.get("metrics", pd.DataFrame())
    return _by_split(metrics, [str(name) for name in metrics if "loss" in str(name).lower()])


def _by_split(metrics: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Metrics in a row each, by the split that their names begin with."""
    parts = [long(metrics, "split", name).assign(split=_split(name)) for name in names]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["run", "setting", "step", "value", "split"])


def _split(name: str) -> str:
    return re.sub(r"[_/ ]?(accuracy|acc|loss)$", "", name, flags=re.IGNORECASE) or name


def trained(frames: Frames) -> str:
    """When the runs memorised and grokked, or what was recorded last."""
    runs = frames["runs"][~frames["runs"]["is_recorded"]]
    if runs.empty:
        of_accuracy = accuracies(frames)
        data, what = (of_accuracy, "accuracy") if len(of_accuracy) else (losses(frames), "loss")
        last = data.sort_values("step").groupby(["split", "run"], sort=False)["value"].last()
        form = "%" if len(of_accuracy) else ".3g"
        parts = [f"{spread(last[name].to_list(), form)} ({name})" for name in data["split"].unique()]
        return f"Last recorded {what}: {', '.join(parts)}"
    if len(runs) == 1:
        (memorised,), (grokked,) = (runs[event] for event in ("memorised", "grokked"))
        last_step = step_text(frames["metrics"]["step"].max())
        if pd.isna(memorised) and pd.isna(grokked):
            return f"Neither memorised nor grokked by step {last_step}"
        parts = [
            f"{verb} at step {step_text(step)}" if pd.notna(step) else f"not {verb} by step {last_step}"
            for verb, step in (("memorised", memorised), ("grokked", grokked))
        ]
    else:
        parts = []
        for event in ("memorised", "grokked"):
            steps = [None if pd.isna(step) else int(step) for step in runs[event]]
            median = f" at median step {median_step_text(steps)}" if math.isfinite(median_step(steps)) else ""
            parts.append(f"{len(steps) - steps.count(None)} of {len(steps)} runs {event}{median}")
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}"


def recorded_metrics(frames: Frames) -> Drawn | None:
    """What other training loops recorded besides losses and accuracies."""
    recorded = frames["runs"]["run"][frames["runs"]["is_recorded"]]
    metrics = frames.get("metrics", pd.DataFrame(columns=["run"]))
    metrics = metrics[metrics["run"].isin(recorded)]
    labels = ("run", "setting", "seed", "step")
    names = [str(name) for name in metrics if name not in labels and metrics[name].notna().any()]
    names = [name for name in names if not is_accuracy(name) and "loss" not in name.lower()][:_MOST]
    drawn = over_steps(
        frames,
        [
            Panel(name, label(name.replace("_", " ")), long(metrics.assign(metric=name), "metric", name))
            for name in names
        ],
        "metric",
    )
    return drawn and Drawn("What the training loop recorded besides", *drawn)


def prop41_ratio(frames: Frames) -> Drawn | None:
    """The ratio of learning rates of Proposition 4.1 over steps, beside the one in use, and its factors."""
    metrics = frames.get("metrics", pd.DataFrame())
    norms = [f"sigma_max_{name}" for name in BALANCED]
    if not {"prop41_ratio", *norms, *RATES} <= set(metrics):
        return None
    used = metrics[RATES[0]] / metrics[RATES[1]].replace(0, np.nan)
    asked = long(metrics, "ratio", "prop41_ratio").assign(ratio="Proposition 4.1")
    in_use = long(metrics.assign(used=used), "ratio", "used").assign(ratio="in use")
    factors = [long(metrics, "ratio", name).assign(ratio=of) for name, of in zip(norms, BALANCED, strict=True)]
    drawn = over_steps(
        frames,
        [
            Panel("ratio of learning rates", RATE_RATIO, pd.concat([asked, in_use])),
            Panel("largest singular value", "largest singular value σ_max", pd.concat(factors)),
        ],
        "ratio",
    )
    if drawn is None or asked.empty:
        return None
    last = asked.sort_values("step").groupby("run")["value"].last()
    title = f"Proposition 4.1 asks for {RATE_RATIO} = {spread(last.to_list())} at the last step"
    title += f"; {spread(in_use['value'].to_list())} is in use"
    return Drawn(title, *drawn)


def embedding_norms(frames: Frames) -> Drawn | None:
    """Embedding norms of tokens by the number of training samples that hold them."""
    tokens = frames.get("tokens", pd.DataFrame())
    if not {"samples", "embedding_norm"} <= set(tokens):
        return None
    tokens = tokens[tokens["samples"] > 0]
    if tokens["step"].nunique() < 2 or tokens["samples"].nunique() < len(_THIRDS):
        return None
    rank = tokens.groupby(["run", "step"])["samples"].rank(method="first", pct=True)
    third = np.array(_THIRDS)[np.clip(np.ceil(3 * rank).astype(int) - 1, 0, 2)]
    tokens = tokens.assign(third=third).rename(columns={"embedding_norm": "value"})
    means = tokens.groupby(["run", "setting", "third", "step"], sort=False)["value"].mean().reset_index()
    last = tokens[tokens["step"] == tokens.groupby("run")["step"].transform("max")]
    colours = palette(_THIRDS)
    figure, (left, right) = subplots(2)
    lines(left, means, "third", colours, markers(_THIRDS))
    step_axis(left, means["step"].max())
    sns.scatterplot(
        last, x="samples", y="value", hue="third", palette=colours, s=14, linewidth=0, ax=right, legend=False
    )
    left.set(ylabel="mean norm of an embedding")
    right.set(xlabel="training samples that hold the token", ylabel="norm at the last step")
    if last["samples"].max() > 10 * last["samples"].min():
        right.set_xscale("log")
        readable(right.xaxis)
    for axis in (left, right):
        scaled(axis, "linear")
    legend(figure, [left, right])
    ratio = (
        last[last["third"] == _THIRDS[2]].groupby("run")["value"].mean()
        / last[last["third"] == _THIRDS[0]].groupby("run")["value"].mean()
    )
    times = spread(ratio.to_list())
    title = f"At the last step, embeddings of frequent tokens are {times} times as long as those of rare ones"
    drawn = tokens.rename(columns={"value": "embedding_norm"})
    return Drawn(title, figure, drawn[["run", "setting", "step", "token", "samples", "third", "embedding_norm"]])
