"""Figures of a run: learning curves, Proposition 4.1's ratio, embeddings by token frequency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from landscape.report.figures.captions import what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.sources import Drawn, Source, having
from landscape.report.style import new_figure
from landscape.storage.runs import GROKKED, MEMORISED


@family(10)
def training_curves(sources: Sequence[Source]) -> Drawn:
    """Loss and accuracy on both sets over steps, with the memorise and the grok step."""
    import seaborn as sns

    kept = having(sources, "metrics", "train_loss", "test_loss")
    blue, orange = sns.color_palette("colorblind", 2)
    figure = new_figure(2)
    rows, numbers = [], {}
    for source in kept:
        data = source.metrics
        assert data is not None
        # Step 0 has no logarithm: the axis is linear up to the first rows of metrics.
        step = data["metric_step"].values
        for axis, quantity in zip(figure.axes, ("loss", "accuracy"), strict=True):
            for part, colour in (("train", blue), ("test", orange)):
                axis.plot(
                    step, data[f"{part}_{quantity}"].values, color=colour, label=part if source is kept[0] else None
                )
        memorise, grok = source.event("train_accuracy", MEMORISED), source.event("test_accuracy", GROKKED)
        for axis in figure.axes:
            for event, colour in ((memorise, blue), (grok, orange)):
                if event is not None:
                    axis.axvline(event, color=colour, linestyle=":", linewidth=1.2)
        numbers[source.label] = (
            f"train 99 % at step {_or_never(memorise)}, test 95 % at step {_or_never(grok)}, "
            f"last test accuracy {float(data['test_accuracy'][-1]):.4f}"
        )
        columns = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
        rows.append(pd.DataFrame({"run": source.label, "step": step, **{c: data[c].values for c in columns}}))
    for axis, quantity in zip(figure.axes, ("cross-entropy (nat)", "accuracy"), strict=True):
        axis.set(xlabel="step", ylabel=quantity, xlim=(0, None))
        axis.set_xscale("symlog", linthresh=100)
    figure.axes[0].set_yscale("log")
    figure.axes[1].set_ylim(-0.03, 1.03)
    figure.axes[1].legend(loc="center left")
    caption = (
        f"{what_was_run(kept)} Dotted lines: the first row of metrics with training accuracy ≥ {MEMORISED:.0%} (blue) "
        f"and test accuracy ≥ {GROKKED:.0%} (orange). {'; '.join(f'{k}: {v}' for k, v in numbers.items())}."
    )
    return Drawn("Training curves", figure, pd.concat(rows), caption, numbers)


@family(90)
def prop41_ratio(sources: Sequence[Source]) -> Drawn:
    """The ratio lr_E/lr_W of Proposition 4.1 over steps, beside the one in use."""
    import seaborn as sns

    kept = having(sources, "metrics", "prop41_ratio", "lr_E")
    blue, orange, green = sns.color_palette("colorblind", 3)
    figure = new_figure(2)
    left, right = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.metrics
        assert data is not None
        step = data["metric_step"].values
        used = data["lr_E"].values / np.where(data["lr_W"].values == 0, np.nan, data["lr_W"].values)
        first = source is kept[0]
        left.plot(step, data["prop41_ratio"].values, color=blue, label="Proposition 4.1" if first else None)
        left.plot(step, used, color=orange, linestyle="--", label="in use" if first else None)
        for name, colour in (("sigma_max_E", blue), ("sigma_max_W", green)):
            right.plot(
                step, data[name].values, color=colour, label=rf"$\sigma_{{\max}}({name[-1]})$" if first else None
            )
        right.plot(step, data["f_E"].values, color="0.45", linestyle=":", label=r"$f_E$" if first else None)
        finite = data["prop41_ratio"].values[np.isfinite(data["prop41_ratio"].values)]
        if len(finite):
            numbers[source.label] = (
                f"from {finite[0]:.3g} at the first row after step 0 to {finite[-1]:.3g} at the last; "
                f"f_E {float(data['f_E'][-1]):.4f}"
            )
        columns = ("prop41_ratio", "sigma_max_E", "sigma_max_W", "f_E", "lr_E", "lr_W")
        rows.append(pd.DataFrame({"run": source.label, "step": step, **{c: data[c].values for c in columns}}))
    left.set(xlabel="step", ylabel="lr_E / lr_W")
    right.set(xlabel="step", ylabel="its factors")
    for axis in figure.axes:
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.legend()
    caption = (
        f"{what_was_run(kept)} Proposition 4.1's ratio is (σ_max(E)/σ_max(W))·(f_W/f_E) with f_W = 1 and f_E measured "
        f"from the batches drawn. {'; '.join(f'{k}: {v}' for k, v in numbers.items())}."
    )
    return Drawn("Proposition 4.1 over training", figure, pd.concat(rows), caption, numbers)


@family(100)
def embedding_norms(sources: Sequence[Source]) -> Drawn:
    """Embedding norms of operand tokens by the number of training pairs that hold them."""
    import seaborn as sns

    kept = having(sources, "tokens", "embedding_norm", "grad_norm")
    palette = sns.color_palette("colorblind", 3)
    figure = new_figure(2)
    left, right = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.tokens
        assert data is not None
        p = source.config["p"]
        data = data.isel(token=slice(0, p))
        step, pairs = data["step"].values, source.pairs_of_token[:p]
        groups = np.array_split(np.argsort(pairs, kind="stable"), 3)
        for group, name, colour, sign in zip(groups, ("rare", "middle", "frequent"), palette, "ox^", strict=True):
            if not len(group):
                continue
            label = f"{name} third" if source is kept[0] else None
            left.plot(step, data["embedding_norm"].values[:, group].mean(axis=1), color=colour, label=label)
            right.scatter(pairs[group], data["embedding_norm"].values[-1, group], color=colour, s=16, marker=sign)
        steps = max(int(step[-1]), 1)
        share = data["count"].values[-1] / steps
        numbers[source.label] = (
            f"{pairs.min()} to {pairs.max()} training pairs hold a token; share of batches with it "
            f"{share.min():.4f} to {share.max():.4f}"
        )
        columns = {name: data[name].values.ravel() for name in ("count", "embedding_norm", "grad_norm")}
        token, at = np.tile(data["token"].values, len(step)), np.repeat(step, p)
        pairs_column = np.tile(pairs, len(step))
        rows.append(pd.DataFrame({"run": source.label, "step": at, "token": token, "pairs": pairs_column, **columns}))
    left.set(xlabel="step", ylabel=r"mean $\|e_i\|$", xlim=(0, None))
    left.set_ylim(bottom=0)
    right.set(xlabel="training pairs that hold the token", ylabel=r"$\|e_i\|$ at the last step")
    left.legend()
    caption = (
        f"{what_was_run(kept)} Operand tokens in thirds by the number of training pairs that hold them. "
        f"{'; '.join(f'{k}: {v}' for k, v in numbers.items())}."
    )
    return Drawn("Embedding norms by token frequency", figure, pd.concat(rows), caption, numbers)


def _or_never(step: int | None) -> str:
    return "never" if step is None else str(step)
