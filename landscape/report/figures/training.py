"""Figures of a run: learning curves, Proposition 4.1's ratio, embeddings by token frequency."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from landscape.choices.tasks import TEXT
from landscape.files.runs import GROK, MEMORISE
from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.report.figures.axes import last_record, legend, over_steps, scale_of
from landscape.report.figures.captions import listed, what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.numbers import asked_of_rates, median_step, step_text
from landscape.report.figures.settings import spread_over
from landscape.report.figures.several import Panel, are_several, lines, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having, lacking
from landscape.report.style import new_figure, palette


@family(10)
def training_curves(sources: Sequence[Source]) -> Drawn:
    """Loss and accuracy on both sets over steps, with the memorise and the grok step."""
    columns = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
    kept = having([source for source in sources if not source.is_recorded], "metrics", *columns)
    blue, orange = palette(2)
    figure = new_figure(2)
    rows, numbers, events = [], {}, []
    for source in kept:
        data = source.metrics
        for axis, quantity in zip(figure.axes, ("loss", "accuracy"), strict=True):
            for part, colour in (("train", blue), ("test", orange)):
                axis.plot(data["metric_step"].values, data[f"{part}_{quantity}"].values, color=colour, label=part)
        memorise, grok = source.event(*MEMORISE), source.event(*GROK)
        events.append((memorise, grok))
        last = data["test_accuracy"].values[-1:]
        told = (
            f"train 99 % at step {_or_never(memorise)}, test 95 % at step {_or_never(grok)}",
            f"last test accuracy {f'{last[0]:.4f}' if len(last) else 'not known'}",
            source.gaps,
        )
        numbers[source.label] = ", ".join(filter(None, told))
        rows.append(_rows(source, columns))
    over_steps(figure.axes, kept, last_record(kept))
    for axis, quantity in zip(figure.axes, ("cross-entropy (nat)", "accuracy"), strict=True):
        axis.set_ylabel(quantity)
    table = pd.concat(rows)
    scale = scale_of(table[["train_loss", "test_loss"]].to_numpy(float))
    figure.axes[0].set_yscale(scale)
    figure.axes[1].set_ylim(-0.03, 1.03)
    legend(figure.axes[1])
    if are_several(kept):
        scales = {"loss": (" (nat)", scale), "accuracy": ("", "linear")}
        shown = [(name, *scales[name.partition("_")[2]]) for name in columns]
        panels = [Panel(f"{name.replace('_', ' ')}{of}", table, (name,), "", scale) for name, of, scale in shown]
        figure = several(kept, panels)
    caption = f"{what_was_run(kept)}{lines(kept)} {listed(numbers)}"
    return Drawn(_grokking(events, kept), figure, table, caption, numbers)


def _grokking(events: Sequence[tuple[int | None, int | None]], sources: Sequence[Source]) -> str:
    """When the runs memorised and grokked, and which of them diverged or lack rows of metrics, as a title."""
    told = []
    diverged = [source.diverged for source in sources]
    for verb, steps in zip(("memorised", "grokked"), zip(*events, strict=True), strict=True):
        there = len(steps) - steps.count(None)
        middle = median_step(steps)
        at = f"at step {step_text(middle)}"
        if len(steps) > 1:
            told.append(f"{there} of {len(steps)} runs {verb}{f', {at} in the median' * math.isfinite(middle)}")
        elif sources[0].may_be_earlier(steps[0]):
            told.append(f"{verb} by step {step_text(middle)}" if there else f"not seen to have {verb}")
        else:
            told.append(f"{verb} {at}" if there else f"never {verb}")
    if ended := [step for step in diverged if step is not None]:
        told.append(f"diverged at step {ended[0]:,}" if len(diverged) == 1 else f"{len(ended)} diverged")
    ending = lacking(sources) if len(sources) > 1 else ""
    return (told[0][0].upper() + told[0][1:]) + "; " + "; ".join(told[1:]) + ending


@family(90)
def prop41_ratio(sources: Sequence[Source]) -> Drawn:
    """The ratio of learning rates of Proposition 4.1 over steps, beside the one in use."""
    first, second = BALANCED
    rates, norms = ([f"{kind}_{name}" for name in BALANCED] for kind in ("lr", "sigma_max"))
    frequency = f"f_{first}"
    kept = having(sources, "metrics", "prop41_ratio", *norms, frequency, *rates)
    blue, orange, green = palette(3)
    figure = new_figure(2)
    left, right = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.metrics
        step = data["metric_step"].values
        used, other = (data[rate].values for rate in rates)
        left.plot(step, data["prop41_ratio"].values, color=blue, label="Proposition 4.1")
        left.plot(step, used / np.where(other == 0, np.nan, other), color=orange, linestyle="--", label="in use")
        for name, norm, colour in zip(BALANCED, norms, (blue, green), strict=True):
            right.plot(step, data[norm].values, color=colour, label=rf"$\sigma_{{\max}}({name})$")
        right.plot(step, data[frequency].values, color="0.45", linestyle=":", label=rf"$f_{first}$")
        finite = data["prop41_ratio"].values[np.isfinite(data["prop41_ratio"].values)]
        if len(finite):
            numbers[source.label] = (
                f"from {finite[0]:.3g} at the first row after step 0 to {finite[-1]:.3g} at the last; "
                f"{frequency} {float(data[frequency][-1]):.4f}"
            )
        rows.append(_rows(source, ("prop41_ratio", *norms, frequency, *rates)))
    if not numbers:
        raise NotDrawnError("no row of metrics after step 0 holds Proposition 4.1's ratio")
    over_steps(figure.axes, kept, last_record(kept))
    left.set_ylabel(" / ".join(rates))
    right.set_ylabel("its factors")
    for axis in figure.axes:
        axis.set_ylim(bottom=0)
        legend(axis)
    caption = (
        f"{what_was_run(kept)} Proposition 4.1's ratio is (σ_max({first})/σ_max({second}))·(f_{second}/f_{first}) "
        f"with f_{second} = 1 and {frequency} measured from the batches drawn. {listed(numbers)}{lines(kept)}"
    )
    table = pd.concat(rows)
    if are_several(kept):
        labels = ("Proposition 4.1's ratio", *(rf"$\sigma_{{\max}}({name})$" for name in BALANCED), rf"$f_{first}$")
        shown = zip(labels, ("prop41_ratio", *norms, frequency), strict=True)
        figure = several(kept, [Panel(label, table, (column,), "", "linear") for label, column in shown])
    return Drawn(_balance(table, rates, spread_over(kept)), figure, table, caption, numbers)


def _balance(table: pd.DataFrame, rates: Sequence[str], told: Callable[..., str]) -> str:
    """What Proposition 4.1 asks for and what was in use, as a title."""
    known = table[np.isfinite(table["prop41_ratio"]) & (table[rates[1]] > 0)]
    if known.empty:
        return "Proposition 4.1 over training"
    by_run = known.groupby("run", sort=False)
    ends = by_run.first(), by_run.last()
    ratios, steps = (list(zip(*(end[name] for end in ends), strict=True)) for name in ("prop41_ratio", "step"))
    return asked_of_rates(ratios, steps, list(known[rates[0]] / known[rates[1]]), told)


_THIRDS = ("rare", "middle", "frequent")


@family(100)
def embedding_norms(sources: Sequence[Source]) -> Drawn:
    """Embedding norms of operand tokens by the number of training pairs that contain them."""
    kept = having(sources, "tokens", "embedding_norm", "grad_norm")
    figure = new_figure(2)
    left, right = figure.axes
    rows, means, numbers, longer = [], [], {}, []
    for source in kept:
        p = source.num_operands
        data = source.tokens.isel(token=slice(0, p))
        step, pairs = data["step"].values, source.pairs_of_token[:p]
        groups = np.array_split(np.argsort(pairs, kind="stable"), 3)
        for group, name, colour, sign in zip(groups, _THIRDS, palette(3), "ox^", strict=True):
            if not len(group):
                continue
            norms = data["embedding_norm"].values[:, group].mean(axis=1)
            means.append(source.table(step=step, third=name, norm=norms))
            left.plot(step, norms, color=colour, label=f"{name} third")
            right.scatter(pairs[group], data["embedding_norm"].values[-1, group], color=colour, s=16, marker=sign)
        rare, _, frequent = (data["embedding_norm"].values[-1, group] for group in groups)
        if rare.size and frequent.size and 0 < rare.mean() < np.inf and frequent.mean() < np.inf:
            longer.append(float(frequent.mean() / rare.mean()))
        steps = max(int(step[-1]), 1)
        share = data["count"].values[-1] / steps
        numbers[source.label] = (
            f"{pairs.min()} to {pairs.max()} training samples hold a token; share of batches with it "
            f"{share.min():.4f} to {share.max():.4f}"
        )
        columns = {name: data[name].values.ravel() for name in ("count", "embedding_norm", "grad_norm")}
        token, held = (np.tile(column, len(step)) for column in (data["token"].values, pairs))
        rows.append(source.table(step=np.repeat(step, p), token=token, pairs=held, **columns))
    over_steps([left], kept, max(int(source.tokens["step"].values[-1]) for source in kept))
    left.set_ylabel(r"mean $\|e_i\|$")
    left.set_ylim(bottom=0)
    right.set(xlabel="training samples that hold the token", ylabel=r"$\|e_i\|$ at the last step")
    if any(source.config.get("task") == TEXT for source in kept):
        right.set_xscale("symlog")
    legend(left)
    caption = (
        f"{what_was_run(kept)} Operand tokens in thirds by the number of training samples that hold them. "
        f"{listed(numbers)}{lines(kept)}"
    )
    if are_several(kept):
        by_third = pd.concat(means)
        of_third = {name: by_third[by_third["third"] == name] for name in _THIRDS}
        panels = [Panel(r"mean $\|e_i\|$", of, ("norm",), f"{name} third", "linear") for name, of in of_third.items()]
        figure = several(kept, panels)
    title = "Embedding norms by token frequency"
    if longer:
        times = spread_over(kept)(longer)
        title = f"At last, embeddings of frequent tokens are {times} times as long as those of rare ones"
    return Drawn(title, figure, pd.concat(rows), caption, numbers)


def _rows(source: Source, metrics: Sequence[str]) -> pd.DataFrame:
    """Some metrics of a run by step."""
    columns = {name: source.metrics[name].values for name in metrics}
    return source.table(step=source.metrics["metric_step"].values, **columns)


def _or_never(step: int | None) -> str:
    return "never" if step is None else str(step)
