"""Figures of the tokens' tables: rare beside frequent ones over steps, rank correlations, equilibrium."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from evidence import Panel

from landscape.report.style import new_figure

LABELS = {
    "embedding_norm": "embedding norm $|e_i|$",
    "grad_norm": "accumulated\ngradient norm",
    "presence": "share of steps\nwith an update",
    "test_accuracy": "test accuracy",
}
COLUMNS = {
    "weight decay, B = 32": ("decay", "32"),
    "no decay, B = 32": ("nodecay", "32"),
    "weight decay, full batch": ("decay", "full"),
}
ROWS = {
    "weight decay,\nshared checkpoint": ("decay", "shared checkpoint"),
    "weight decay,\nend of run": ("decay", "end of run"),
    "no decay,\nend of run": ("nodecay", "end of run"),
}
BATCHES = ["32", "128", "512", "full"]


def sampler_looks() -> dict[str, tuple[str, tuple[float, float, float]]]:
    """Marker and colour of each sampler."""
    names = ("uniform", "random", "skewed", "zipf")
    return dict(zip(names, zip("osD^", sns.color_palette("colorblind", 4), strict=True), strict=True))


def over_steps(quartiles: pd.DataFrame) -> Panel:
    """Rare and frequent tokens over steps, where the mechanism acts and where it cannot."""
    rows = ["embedding_norm", "grad_norm", "presence"]
    shown = quartiles[(quartiles["sampler"] == "zipf") & quartiles["quartile"].isin(["rare", "frequent"])]
    shown = shown[(shown["step"] > 0) & shown[["case", "batch_size"]].apply(tuple, axis=1).isin(COLUMNS.values())]
    figure = new_figure(len(COLUMNS), height=1.75, rows=len(rows))
    colours = dict(zip(["frequent", "rare"], sns.color_palette("colorblind", 2), strict=True))
    for i, axis in enumerate(figure.axes):
        quantity, (title, (case, batch)) = rows[i // 3], list(COLUMNS.items())[i % 3]
        group = shown[(shown["case"] == case) & (shown["batch_size"] == batch)]
        for quartile, colour in colours.items():
            at = group[group["quartile"] == quartile].groupby("step")[quantity].agg(["median", "min", "max"])
            dashes = "--" if quartile == "rare" else "-"
            axis.plot(at.index, at["median"], dashes, color=colour, label=f"{quartile} quarter")
            axis.fill_between(at.index, at["min"], at["max"], color=colour, alpha=0.2, linewidth=0)
        axis.set(xscale="log", yscale="log" if quantity == "grad_norm" else "linear")
        axis.set(
            title=title if i < 3 else "", xlabel="step" if i >= 6 else "", ylabel="" if i % 3 else LABELS[quantity]
        )
    for row in range(3):
        same = figure.axes[3 * row : 3 * row + 3]
        limits = [axis.get_ylim() for axis in same]
        for axis in same:
            axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    figure.axes[0].legend(fontsize="small")
    seeds = shown["seed"].nunique()
    caption = (
        "Zipf sampling (p = 59, two tokens, Adam, learning rate 0.01, weight decay 0.001 or none), batches of B pairs "
        f"or the full training set. Lines: median over {seeds} seeds of the mean over the rare (dashed) and the "
        "frequent (solid) quarter of the tokens, by their share of training pairs; bands: lowest to highest "
        "seed. A seed ends where it reaches 95 % test accuracy."
    )
    return Panel("rare_and_frequent", figure, shown, caption)


def correlation_grid(groups: pd.DataFrame) -> Panel:
    """rho by batch size, sampler and weight decay at both moments."""
    columns, looks = ["embedding_norm", "grad_norm", "test_accuracy"], sampler_looks()
    del looks["uniform"]
    shown = groups[groups["sampler"].isin(looks)]
    shown = shown[shown[["case", "moment"]].apply(tuple, axis=1).isin(ROWS.values())]
    figure = new_figure(len(columns), height=2.0, rows=len(ROWS))
    for i, axis in enumerate(figure.axes):
        quantity, (row, (case, moment)) = columns[i % 3], list(ROWS.items())[i // 3]
        axis.axhline(0, color="0.6", linewidth=0.8)
        group = shown[(shown["case"] == case) & (shown["moment"] == moment)]
        for shift, (sampler, (marker, colour)) in enumerate(looks.items()):
            at = group[group["sampler"] == sampler].set_index("batch_size").reindex(BATCHES)
            middle = at[quantity].to_numpy()
            error = np.abs([middle - at[f"{quantity}_low"], at[f"{quantity}_high"] - middle])
            x = np.arange(len(BATCHES)) + 0.15 * (shift - 1)
            axis.errorbar(x, middle, error, fmt=marker, color=colour, markersize=4, capsize=2, label=sampler)
        axis.set(ylim=(-1.05, 1.05), xlabel="batch size B (pairs)" if i >= 6 else "", ylabel="" if i % 3 else row)
        axis.set_xticks(range(len(BATCHES)), BATCHES)
        axis.set_title(LABELS[quantity].replace("\n", " ") if i < 3 else "")
    figure.axes[1].legend(fontsize="small", loc="lower left")
    figure.supylabel("rank correlation with frequency", fontsize="medium")
    caption = (
        "Spearman's correlation over tokens between frequency (share of training pairs) and the quantity above each "
        "column, at the last checkpoint that all runs of a sampler and seed share, and at the end of each run. "
        f"Markers: median over {shown['runs'].max()} seeds; bars: its 95 % bootstrap interval. Above 0: rare tokens "
        "have less. Uniform sampling, where all tokens are about equally frequent, is left out."
    )
    return Panel("correlations", figure, shown, caption)


def equilibrium_panel(last: pd.DataFrame, quartiles: pd.DataFrame) -> Panel:
    """The equilibrium that the flow predicts beside the measured norms, and how fast Adam lets go."""
    figure = new_figure(2, height=3.1)
    left, right = figure.axes
    shown = last[(last["case"] == "decay") & (last["sampler"] == "zipf") & last["batch_size"].isin(["32", "full"])]
    colours = sns.color_palette("colorblind", 4)
    for (batch, group), marker, colour in zip(shown.groupby("batch_size"), "o^", colours[2:], strict=True):
        name = "full batch" if batch == "full" else f"B = {batch}"
        left.plot(
            group["equilibrium_norm"],
            group["embedding_norm"],
            marker,
            color=colour,
            markersize=3,
            alpha=0.5,
            label=name,
        )
    ends = np.array([shown["embedding_norm"].min(), shown["embedding_norm"].max()])
    left.plot(ends, ends, color="0.3", linewidth=1, label="equilibrium")
    left.set(
        xlabel=r"predicted norm $|\partial L/\partial e_i|\,/\,\lambda$",
        ylabel="measured norm $|e_i|$",
    )
    left.legend(fontsize="small")
    rates = quartiles[(quartiles["case"] == "decay") & (quartiles["sampler"] == "zipf") & (quartiles["step"] > 0)]
    for batch, dashes in (("32", "-"), ("full", "--")):
        for quartile, colour in zip(("frequent", "rare"), colours, strict=False):
            at = rates[(rates["batch_size"] == batch) & (rates["quartile"] == quartile)].groupby("step")["decay_rate"]
            name = f"{quartile}, " + ("full batch" if batch == "full" else f"B = {batch}")
            right.plot(at.median(), dashes, color=colour, label=name)
    right.axhline(1e-5, color="0.3", linewidth=1, label=r"gradient flow, $\eta\lambda$")
    right.set(xscale="log", yscale="log", ylim=(5e-6, 5), xlabel="step", ylabel=r"decay rate of $e_i$ (1/step)")
    right.legend(fontsize="small", loc="upper left")
    caption = (
        f"Zipf sampling with weight decay, {shown['seed'].nunique()} seeds. Left: every token at the end of every run; "
        "on the line -lambda e_i = p_i grad L could hold, to its left decay wins. Right: the rate at which Adam with "
        "coupled decay would shrink a token's embedding without gradient, lr lambda / sqrt(v), median over dimensions, "
        "mean over the quarter, median over seeds."
    )
    columns = ["case", "sampler", "batch_size", "seed", "step", "token", "quartile"]
    columns += ["equilibrium_norm", "embedding_norm", "decay_rate"]
    return Panel("equilibrium", figure, pd.concat([shown, rates])[columns], caption)
