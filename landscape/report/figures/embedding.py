"""Figures of the embedding's geometry: shares of frequencies, circles, and progress over training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns

from landscape.report.figures.panels import (
    PERCENT,
    Drawn,
    Panel,
    events,
    legend,
    lines,
    long,
    looks,
    over_steps,
    scaled,
    step_axis,
    subplots,
)
from landscape.report.sources import Frames
from landscape.report.style import GREY, shades
from landscape.report.words import percent, spread

_CHANCE = "chance, p = 1 %"
_BINS = 40
"""Steps of a heat map at most."""


def fourier_shares(frames: Frames) -> Drawn | None:
    """The share of each frequency in the variance of the first run's embedding, and the largest beside chance."""
    table, summary = (frames.get(f"geometry_{name}", pd.DataFrame()) for name in ("by_step_frequency", "by_step"))
    if not {"fourier_share"} <= set(table) or summary["step"].nunique() < 2:
        return None
    run = table["run"].iloc[0]
    shares = table[(table["run"] == run) & (table["frequency"] > 0)]
    steps = np.sort(shares["step"].unique())
    kept = steps[np.unique(np.linspace(0, len(steps) - 1, _BINS).round().astype(int))]
    figure, (left, right) = subplots(2, height=3.2)
    square = shares[shares["step"].isin(kept)].pivot(index="frequency", columns="step", values="fourier_share")
    sns.heatmap(
        square,
        cmap="rocket_r",
        vmin=0,
        rasterized=True,
        ax=left,
        xticklabels=max(1, len(kept) // 6),
        cbar_kws={"label": "share of the variance", "format": PERCENT},
    )
    left.invert_yaxis()
    left.tick_params(axis="both", labelrotation=0)
    left.set(xlabel="training step", ylabel="frequency")
    top = long(summary, "share", "top_frequency_share").assign(share="largest frequency")
    chance = long(summary, "share", "top_frequency_share_null").assign(share=_CHANCE)
    both = pd.concat([top, chance])
    lines(right, both, "share", *looks(frames, ["largest frequency", _CHANCE]))
    right.set(ylabel="share of the variance")
    scaled(right, "share")
    right.set_ylim(bottom=0)
    step_axis(right, both["step"].max())
    events(right, frames)
    legend(figure, [right])
    last = table[table["step"] == table.groupby("run")["step"].transform("max")]
    used = (
        last[last["frequency_in_use"] == "used"]
        if "used" in set(last["frequency_in_use"])
        else last[~last["frequency_in_use"].isin(["unused", "unknown", "none"])]
    )
    used = used[used["frequency"] > 0].groupby("run")
    if used.ngroups:
        number, share = used.size().to_list(), used["fourier_share"].sum()
        are = "is" if number == [1] else "are"
        title = f"{spread(number, '.0f')} frequencies {are} in use at the last step"
        title += f", with {spread(share.to_list(), '%')} of the variance"
    else:
        title = "No frequency has more of the variance than chance gives at the last step"
    return Drawn(
        title.replace("1 frequencies", "1 frequency"),
        figure,
        shares[["run", "step", "frequency", "fourier_share", "frequency_in_use"]],
    )


def embedding_circles(frames: Frames) -> Drawn | None:
    """The numbers in the planes of the largest frequencies of the first run's embedding, at the last step."""
    positions, planes, fits, numbers = (
        frames.get(f"geometry_{name}", pd.DataFrame())
        for name in ("by_step_plane_place_side", "by_step_plane", "by_step_frequency", "numbers_by_place")
    )
    if positions.empty or planes.empty or fits.empty or numbers.empty:
        return None
    run, step = positions["run"].iloc[0], positions["step"].max()
    positions, planes, fits = (
        table[(table["run"] == run) & (table["step"] == step)] for table in (positions, planes, fits)
    )
    numbers = numbers[numbers["run"] == run]
    wide = positions.pivot(index=["plane", "place"], columns="side", values="plane_position").dropna().reset_index()
    wide = (
        wide.rename(columns={0: "x", 1: "y"})
        .merge(planes[["plane", "plane_frequency"]])
        .merge(numbers[["place", "number"]])
    )
    wide = wide[wide["plane_frequency"] > 0]
    if wide.empty:
        return None
    shown = list(wide["plane"].unique())[:4]
    figure, axes = subplots(len(shown), height=2.4, columns=4)
    for axis, plane in zip(axes, shown, strict=True):
        data = wide[wide["plane"] == plane]
        frequency = int(data["plane_frequency"].iloc[0])
        around = data.assign(turn=frequency * data["place"] % len(data)).sort_values("turn")
        axis.plot(
            [*around["x"], around["x"].iloc[0]],
            [*around["y"], around["y"].iloc[0]],
            color=GREY,
            linewidth=0.7,
            zorder=0,
        )
        sns.scatterplot(data, x="x", y="y", hue="number", palette=shades(), s=18, linewidth=0, ax=axis, legend="brief")
        fit = fits[fits["frequency"] == frequency].iloc[0]
        axis.set(aspect="equal", xticks=[], yticks=[], xlabel="", ylabel="")
        axis.set_title(
            f"frequency {frequency}\n{percent(fit['fourier_share'])}, R² {fit['circle_r2']:.2f}", fontsize="small"
        )
        sns.despine(ax=axis, left=True, bottom=True)
    legend(figure, axes, "number")
    first = fits[fits["frequency"] == int(wide["plane_frequency"].iloc[0])]["circle_r2"].iloc[0]
    data = wide.assign(run=run, step=step)[["run", "step", "plane_frequency", "number", "x", "y"]]
    return Drawn(f"Numbers in the plane of the largest frequency: R² {first:.2f} of a circle", figure, data)


def geometry_progress(frames: Frames) -> Drawn | None:
    """Participation ratio, circle R², and restricted and excluded loss over steps."""
    summary, losses = (frames.get(f"geometry_{name}", pd.DataFrame()) for name in ("by_step", "by_step_split"))
    names = {"participation_ratio": "embedding", "participation_ratio_null": _CHANCE}
    circle = {"top_circle_r2": "embedding", "top_circle_r2_null": _CHANCE}
    waves = {"loss": "all logits", "restricted_loss": "only key waves", "excluded_loss": "without key waves"}
    if not {*names, *circle} <= set(summary) or not {*waves} <= set(losses):
        return None
    if frames["runs"]["setting"].nunique() > 1:
        names, circle = ({name: label for name, label in of.items() if label != _CHANCE} for of in (names, circle))
    of_test = losses[losses["split"] == "test"]

    def named(table: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
        return pd.concat([long(table, "of", name).assign(of=label) for name, label in columns.items()])

    drawn = over_steps(
        frames,
        [
            Panel("participation ratio", "participation ratio", named(summary, names)),
            Panel("circle R2", "R² of a circle", named(summary, circle)),
            Panel("test loss", "test loss (nat)", named(of_test, waves), "log"),
        ],
        "of",
    )
    if drawn is None:
        return None
    last = of_test[of_test["step"] == of_test.groupby("run")["step"].transform("max")]
    restricted, whole = (spread(last[name].to_list()) for name in ("restricted_loss", "loss"))
    return Drawn(
        f"Test loss at the last step: {whole} nat, {restricted} with the waves of the key frequencies alone", *drawn
    )
