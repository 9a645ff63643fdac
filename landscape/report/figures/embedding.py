"""Figures of the embedding's geometry: frequencies over steps, circles at the last step, and progress over training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscape.files.runs import GROK
from landscape.measure.embeddings import appears
from landscape.report.figures.axes import legend, nothing, over_steps
from landscape.report.figures.captions import what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.numbers import digits, percent, step_text
from landscape.report.figures.settings import spread_over
from landscape.report.figures.several import Panel, are_several, lines, several
from landscape.report.figures.sources import Drawn, Source, having, lacking
from landscape.report.style import new_figure, palette
from landscape.text import first_few

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection

_CHANCE = "chance, p = 1 %"
_CHANCE_ALONE = "No frequency is in use at last: none has more of the variance than chance gives"
_LISTED = 8
"""Frequencies that are named at most."""


@family(110)
def fourier_shares(sources: Sequence[Source]) -> Drawn:
    """The share of each frequency in the embedding's variance over steps."""
    kept = having(sources, "embedding", "fourier_share")
    source, data = kept[0], kept[0].embedding
    figure = new_figure(2, height=3.2)
    power, most = figure.axes
    share = data["fourier_share"].values[:, 1:]
    step, frequency = data["step"].values, data["frequency"].values[1:]
    if np.isfinite(share).any() and len(step) > 1:
        drawn = power.pcolormesh(step, frequency, share.T, shading="nearest", cmap="magma_r", vmin=0, rasterized=True)
        figure.colorbar(drawn, ax=power)
        power.set(ylabel="frequency", title="share of the variance")
        over_steps([power], [source], int(step[-1]))
    else:
        nothing(power, "shares over steps take\nat least two stored steps")
    blue, grey = palette(1)[0], "0.45"
    keys = keys_of(data)
    name = "frequencies in use at last" if keys else "largest at last"
    for k in keys or [int(data["top_frequency"].values[-1])]:
        if k > 0:
            of_key = data["fourier_share"].values[:, k]
            most.plot(step, of_key, color=blue, linewidth=1.2, label=name)
            most.annotate(
                str(k), (step[-1], of_key[-1]), (3, 0), textcoords="offset points", va="center", fontsize="small"
            )
    others = np.setdiff1d(frequency, keys)
    if len(others):
        of_others = data["fourier_share"].values[:, others].max(1)
        most.plot(step, of_others, color="0.7", linewidth=1.2, label="largest of the others")
    most.plot(step, data["top_frequency_share_null"].values, color=grey, linestyle="--", label=_CHANCE)
    most.set(ylabel="share of the variance", ylim=(0, None))
    over_steps([most], [source], int(step[-1]))
    legend(most, fontsize="small", loc="upper left")
    rows, numbers, told = [], {}, []
    for source in kept:
        data = source.embedding
        keys = keys_of(data)
        last = data["fourier_share"].values[-1]
        together = float(last[keys].sum())
        listed = first_few(list(map(str, keys)), _LISTED) or "none"
        numbers[source.label] = (
            f"in use at step {int(data['step'][-1])}: {listed}, together {together:.3f} of the variance; top "
            f"share {digits(float(data['top_frequency_share'][-1]))}, chance exceeds "
            f"{digits(float(data['top_frequency_share_null'][-1]))} with p = 1 %"
        )
        told.append((keys, together, len(last) - 1))
        table = data["fourier_share"].isel(frequency=slice(1, None)).to_dataframe().reset_index()
        used = data["frequency_in_use"].values[:, 1:].ravel()
        summary = {name: np.repeat(data[name].values, len(last) - 1) for name in _OF_SHARES}
        rows.append(source.table(**{name: table[name] for name in table}, in_use=used, **summary))
    table = pd.concat(rows)
    caption = (
        f"{what_was_run(kept)} Left: {kept[0].label}, the share of every frequency of the group's circle in the "
        "variance of the embedding's rows. Right: those in use at the last step, which beat chance at 1 % one after "
        f"the other, and the others.{lines(kept)}"
    )
    if are_several(kept):
        panels = [
            Panel("largest share", table, ("top_frequency_share",), "", "linear"),
            Panel("frequencies in use", table, ("num_frequencies",), "", "linear"),
        ]
        figure = several(kept, panels)
        caption = f"{what_was_run(kept)} Shares of frequencies in the variance of the embedding's rows.{lines(kept)}"
    keys, together, count = told[0]
    if len(told) > 1 and any(keys for keys, _, _ in told):
        over = spread_over(kept)
        title = f"At last {over([len(keys) for keys, _, _ in told])} frequencies are in use"
        title += f", with {over([together for _, together, _ in told])} of the variance"
    elif keys:
        are = "is" if len(keys) == 1 else "are"
        title = (
            f"At last {len(keys)} of {count} frequencies {are} in use, with {digits(together, '.2f')} of the variance"
        )
    else:
        title = _CHANCE_ALONE
    return Drawn(title, figure, table, caption, numbers)


_OF_SHARES = ("top_frequency_share", "top_frequency_share_null", "num_frequencies")


@family(120)
def embedding_circles(sources: Sequence[Source]) -> Drawn:
    """The numbers in the planes of the embedding's largest frequencies, at the last step."""
    kept = having(sources, "embedding", "plane_position")
    source = kept[0]
    count = int(source.embedding.sizes["plane"])
    figure = new_figure(count, height=2.5)
    number = source.numbers["number"].values
    last = source.embedding.isel(step=-1)
    points = None
    for axis, (k, z, share, r2) in zip(figure.axes, planes(last), strict=True):
        if k <= 0:
            nothing(axis, "no further frequency")
            continue
        points = draw_circle(axis, k, z, number, 13, 0.7)
        used = "" if last["frequency_in_use"].values[k] == 1 else " (chance)"
        axis.set_title(f"frequency {k}{used}\n{percent(share)}, R² {r2:.2f}", fontsize="small")
        axis.margins(0.08)
    if points is not None:
        figure.colorbar(points, ax=figure.axes, label="number", shrink=0.75)
    rows, numbers, fits = [], {}, []
    for source in kept:
        last, number = source.embedding.isel(step=-1), source.numbers["number"].values
        step = int(last["step"])
        said = []
        for k, z, share, r2 in planes(last):
            if k > 0:
                table = source.table(step=step, frequency=k, share=share, circle_r2=r2, place=np.arange(len(z)))
                rows.append(table.assign(number=number, x=z[:, 0], y=z[:, 1]))
                said.append(f"{k} (share {share:.3f}, R² {r2:.3f})")
        numbers[source.label] = f"step {step}, frequencies {', '.join(said) or 'none'}"
        fits += [float(last["top_circle_r2"])] if keys_of(source.embedding) else []
    caption = (
        f"{what_was_run(kept)} {kept[0].label}: the rows of the numbers, projected on the planes of the frequencies "
        "with the largest shares, turned to begin at the right. Grey lines join neighbours on the circle. Above: share "
        "of the frequency in the variance; share R² of the plane that lies on the best circle with equal steps."
    )
    table = pd.concat(rows) if rows else kept[0].table(step=[int(kept[0].embedding["step"][-1])])
    of_them = f" of {len(fits)} of {len(kept)} runs" * (len(fits) < len(kept))
    told = f"Numbers on circles: R² {spread_over(kept)(fits, '.2f')} in the plane of the largest share{of_them}"
    title = told if fits else _CHANCE_ALONE
    return Drawn(title, figure, table, caption, numbers)


@family(130)
def geometry_progress(sources: Sequence[Source]) -> Drawn:
    """Accuracy, participation ratio, share of the key frequencies, and restricted and excluded loss over steps."""
    kept = having(sources, "embedding", "participation_ratio", "restricted_loss")
    figure = new_figure(2, height=2.6, rows=2)
    accuracy, ratio, keys, losses = figure.axes
    blue, orange, green, red = palette(4)
    rows, numbers, when = [], {}, []
    for source in kept:
        data = source.embedding
        step = data["step"].values
        share = data["fourier_share"].values[:, keys_of(data)].sum(1)
        columns = _columns(data, share)
        rows.append(source.table(step=step, **columns))
        came = appears(step, data["top_frequency_share"].values, data["top_frequency_share_p"].values)
        grok = source.event(*GROK)
        when.append((came, grok))
        numbers[source.label] = (
            f"top share half there at step {step_text(came)}, test 95 % at step {step_text(grok)}; participation ratio "
            f"{columns['participation_ratio'][0]:.3g} to {columns['participation_ratio'][-1]:.3g}; last test loss "
            f"{columns['test_loss'][-1]:.3g}, restricted {columns['restricted_test_loss'][-1]:.3g}, excluded "
            f"{columns['excluded_train_loss'][-1]:.3g} (training){f'; {source.gaps}' * bool(source.gaps)}"
        )
        for part, colour in (("train", blue), ("test", orange)):
            if f"{part}_accuracy" in source.metrics:
                known = source.metrics[f"{part}_accuracy"].dropna("metric_step")
                accuracy.plot(known["metric_step"].values, known.values, color=colour, label=part)
        ratio.plot(step, columns["participation_ratio"], color=green, label="of the embedding")
        null = data["participation_ratio_null"].values
        ratio.plot(step, null, color="0.45", linestyle="--", label=_CHANCE)
        keys.plot(step, share, color=blue, label="key frequencies")
        keys.plot(step, data["top_circle_r2"].values, color=green, label="circle R²")
        keys.plot(step, data["top_circle_r2_null"].values, color="0.45", linestyle="--", label=f"{_CHANCE}, R²")
        losses.plot(step, columns["test_loss"], color=orange, label="test")
        losses.plot(step, columns["restricted_test_loss"], color=red, linestyle="--", label="test, restricted")
        losses.plot(step, columns["excluded_train_loss"], color=blue, linestyle="-.", label="train, excluded")
    last = max(int(source.embedding["step"].values[-1]) for source in kept)
    over_steps(figure.axes, kept[:1], last)
    accuracy.set(ylabel="accuracy", ylim=(-0.03, 1.03))
    ratio.set(ylabel="participation ratio", ylim=(0, None))
    keys.set(ylabel="share", ylim=(-0.03, 1.03))
    losses.set(ylabel="cross-entropy (nat)", yscale="log")
    for axis in figure.axes:
        legend(axis, fontsize="small")
    if not accuracy.lines:
        nothing(accuracy, "no accuracies without the run file")
    table = pd.concat(rows)
    caption = (
        f"{what_was_run(kept)} Key frequencies: those in use at the last step. Restricted: of the logits only their "
        f"waves and the constant, excluded: all but these waves (arXiv 2301.05217).{lines(kept)}"
    )
    if are_several(kept):
        shown = [
            ("participation ratio", "participation_ratio", "linear"),
            ("key frequencies' share", "key_share", "linear"),
            ("restricted test loss (nat)", "restricted_test_loss", "log"),
            ("excluded training loss (nat)", "excluded_train_loss", "linear"),
        ]
        figure = several(kept, [Panel(label, table, (name,), "", scale) for label, name, scale in shown])
    return Drawn(_order(when, kept), figure, table, caption, numbers)


def _columns(data: Any, share: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What is drawn over steps."""
    names = ("participation_ratio", "participation_ratio_null", "top_circle_r2", "top_circle_r2_null")
    columns = {name: data[name].values for name in names} | {"key_share": share}
    for name in ("loss", "restricted_loss", "excluded_loss"):
        for split in ("train", "test"):
            kind = name.removesuffix("loss").rstrip("_")
            columns["_".join(filter(None, (kind, split, "loss")))] = data[name].sel(split=split).values
    return columns


def _order(when: Sequence[tuple[int | None, int | None]], sources: Sequence[Source]) -> str:
    """Whether circles or generalisation came first, as a title."""
    if len(when) > 1:
        ending = lacking(sources)
        both = [(came, grok) for came, grok in when if came is not None and grok is not None]
        if not both:
            return f"No run has both a frequency out of chance and 95 % test accuracy{ending}"
        before = sum(came < grok for came, grok in both)
        return (
            f"The top frequency came before 95 % test accuracy in {before} of {len(both)} runs that have both{ending}"
        )
    ((came, grok),) = when
    if came is None:
        return "No frequency stands out of chance over this training"
    said = f"The top frequency has half of its last share at step {came:,}"
    (source,) = sources
    is_bound = source.may_be_earlier(grok)
    if grok is not None:
        return f"{said}; the network groks {'by' if is_bound else 'at'} step {grok:,}"
    if source.diverged is not None:
        return f"{said}; the network diverges at step {source.diverged:,}"
    return f"{said}; the network {'is not seen to grok' if is_bound else 'does not grok'}"


def keys_of(data: Any) -> list[int]:
    """The frequencies in use at the last step."""
    return [int(k) for k in np.flatnonzero(data["frequency_in_use"].values[-1] == 1)]


def draw_circle(
    axis: Axes, k: int, z: NDArray[np.float64], number: NDArray[np.int64], size: float, width: float
) -> PathCollection:
    """Draw the numbers in the plane of frequency k, with a line that joins neighbours on the circle; the points."""
    n = len(z)
    around = np.argsort(k * np.arange(n) % n, kind="stable")
    ring = np.concatenate([around, around[:1]])
    axis.plot(z[ring, 0], z[ring, 1], color="0.8", linewidth=width, zorder=0)
    axis.set(aspect="equal", xticks=[], yticks=[])
    for side in axis.spines.values():
        side.set_visible(False)
    return axis.scatter(z[:, 0], z[:, 1], c=number, cmap="viridis", s=size, linewidths=0)


def planes(last: Any) -> list[tuple[int, NDArray[np.float64], float, float]]:
    """Frequency, coordinates (number, 2), share and R^2 of each plane of a step; 0 for a plane that is not there."""
    found = []
    for i, k in enumerate(np.nan_to_num(last["plane_frequency"].values, nan=0).astype(int)):
        k = max(int(k), 0)
        z = last["plane_position"].values[i]
        found.append((k, z, float(last["fourier_share"].values[k]), float(last["circle_r2"].values[k])))
    return found
