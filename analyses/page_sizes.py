"""What changes with the size of the network, one quantity at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_claims import capital, number
from page_dots import Row, Series, dots
from page_links import Link, Linked
from scale import ARMS

from landscape.report.style import colour

SIZES, GAUGE = "sizes", "gauge"
"""Studies that vary one quantity at a time: with blocks by products, and with certified indices of smaller ones."""
RUN = ["study", "case", "task", "seed"]
"""What names a run in both tables."""
DEPTHS = {
    "E,W over W,V": ("E,W", to_hex(colour("E,W"))),
    "operands' rows of E, and W, over W,V": ("E[operands],W", to_hex(colour("E[operands],W"))),
}
"""Ratios of depths, with the block and its colour."""


@dataclasses.dataclass(frozen=True)
class Varied:
    """A setting of the network: its column of runs.csv, and how the figure and the text call it."""

    column: str
    axis: str
    words: str


VARIED = {
    "d": Varied("embed_dim", "d, width of E", "the embedding's width d"),
    "h": Varied("hidden", "h, hidden units", "the hidden width h"),
    "p": Varied("p", "p, modulus", "the modulus p"),
    "tokens": Varied("tokens", "tokens of the input", "the input form"),
}


@dataclasses.dataclass(frozen=True)
class Measure:
    """What is asked of each setting: a column of `measured`, in words, and the study that varies d, h and p.

    table, block: where its numbers are. is_share: from 0 to 1; its changes are differences, those of others factors.
    """

    column: str
    words: str
    study: str
    table: str
    stroke: str
    block: str = ""
    is_share: bool = False

    def change(self, low: float, high: float) -> float:
        return high - low if self.is_share else high / low

    def text(self, value: float) -> str:
        return f"{value:.0%}" if self.is_share else number(value)


WHOLE, OPERANDS = (
    Measure(name, f"the depth of {words} over W,V", SIZES, "curvature", stroke, block)
    for (name, (block, stroke)), words in zip(DEPTHS.items(), ("E,W", "its operands' rows"), strict=True)
)
SHARE = Measure("gauge", "the gauge's share of E,W's index", GAUGE, "curvature", WHOLE.stroke, "E,W", is_share=True)
CONSTANT = Measure("prop41_constant", "the constant of C7", SIZES, "runs", "#7a828c")


def ratios(runs: pd.DataFrame, curvature: pd.DataFrame) -> pd.DataFrame:
    """One row a run whose plateau was analysed: its settings, ratios of depths and the constant of Proposition 4.1."""
    plateau = curvature[curvature["analysis"] == "plateau"]
    lowest = plateau.pivot_table(index=RUN, columns="block", values="lowest")
    lowest = lowest.reindex(columns=["E,W", "E[operands],W", "W,V"])
    # Of two tokens all rows are operands.
    lowest["E[operands],W"] = lowest["E[operands],W"].fillna(lowest["E,W"])
    found = pd.DataFrame({name: lowest[block] / lowest["W,V"] for name, (block, _) in DEPTHS.items()})
    return runs.merge(found.reset_index(), on=RUN)


def measured(runs: pd.DataFrame, curvature: pd.DataFrame) -> pd.DataFrame:
    """`ratios`, and which share of the certified index of E,W is gone off the gauge (NaN: not known)."""
    pair = curvature[(curvature["analysis"] == "plateau") & (curvature["block"] == "E,W")].set_index(RUN)
    share = 1 - pair["index_gauge_free"] / pair["index"].where(pair["index"] > 0)
    return ratios(runs, curvature).merge(share.rename(SHARE.column).reset_index(), on=RUN)


def settings(table: pd.DataFrame, measure: Measure, name: str) -> pd.DataFrame:
    """The rows of `measured` that vary one quantity alone, with its `value` and the measure `y`, by value.

    Those of the network that all of them vary, `quick` with four tokens, are among them.
    """
    base = table[(table["study"] == "constants") & (table["case"] == "four")]
    column = VARIED[name].column
    if name == "tokens":
        others = table[(table["study"] == "curvature") & (table["case"] == "c1")]
    else:
        others = table[(table["study"] == measure.study) & (table[column] != base[column].iloc[0])]
    rows = pd.concat([others, base])
    return rows.assign(value=rows[column], y=rows[measure.column]).dropna(subset="y").sort_values("value")


def sizes(scale: str, runs: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> dict[str, Any]:
    """The figure of what changes with size, and of each measure in words which quantity moves it most, with numbers."""
    table = measured(runs, curvature)
    told = {measure: moves(table, measure, link) for measure in (WHOLE, OPERANDS, SHARE, CONSTANT)}
    drivers: dict[str, list[str]] = {}
    for measure in (WHOLE, SHARE, CONSTANT):
        drivers.setdefault(told[measure][0]["words"], []).append(measure.words)
    parts = [
        f"{' and '.join(of)} {'change' if len(of) > 1 else 'changes'} most with {quantity}"
        for quantity, of in drivers.items()
    ]
    title = f"At {scale}, {'; '.join(parts)}"
    of = lambda measure, label="": series(table, measure, label)  # noqa: E731
    rows = [
        Row("Depth on the plateau over that of W,V", [of(WHOLE, WHOLE.block), of(OPERANDS, OPERANDS.block)]),
        Row("Gauge's share of the index of E,W", [of(SHARE)], is_share=True),
        Row("C7: constant of Proposition 4.1", [of(CONSTANT)]),
    ]
    figure = dots(rows, {name: one.axis for name, one in VARIED.items()}, title)
    return {"figure": figure, "title": title, "told": {capital(one.words): found for one, found in told.items()}}


def by_width(scale: Linked) -> list[Markup]:
    """The ratio of the depths of E,W and W,V at the widths of E with the least and the greatest median, in the arms."""
    rows = ratios(scale.tables["runs"], scale.tables["curvature"])
    rows = rows[(rows["study"] == ARMS) & rows["case"].str.fullmatch(r"base|d\d+")]
    middles = rows.groupby("case")[WHOLE.column].median().dropna()
    if len(middles) < 2:
        return []
    found = []
    for case in (middles.idxmin(), middles.idxmax()):
        d = rows.loc[rows["case"] == case, VARIED["d"].column].iloc[0]
        known = {"study": ARMS, "case": case, "block": WHOLE.block}
        found.append(scale.link("curvature", f"{WHOLE.text(middles[case])} at d = {d}", **known))
    return found


def series(table: pd.DataFrame, measure: Measure, label: str) -> Series:
    """The numbers of a measure by quantity and its value."""
    columns = {}
    for name in VARIED:
        rows = settings(table, measure, name)
        columns[name] = {float(value): part["y"].tolist() for value, part in rows.groupby("value")}
    return Series(label, measure.stroke, columns)


def moves(table: pd.DataFrame, measure: Measure, link: Link) -> Sequence[dict[str, Any]]:
    """How far the median of a measure goes with each quantity, that which moves it most first.

    The values with the least and with the greatest median, these as links, and whether all seeds of the one are below
    all of the other.
    """
    found = []
    for name in VARIED:
        rows = settings(table, measure, name)
        middles = rows.groupby("value")["y"].median()
        ends = [rows[rows["value"] == value] for value in (middles.idxmin(), middles.idxmax())]
        texts = []
        for part in ends:
            known = {column: part[column].iloc[0] for column in ("study", "case")}
            if measure.block:
                # Of two tokens all rows are operands.
                block = measure.block if part["tokens"].iloc[0] > 2 else WHOLE.block
                known |= {"analysis": "plateau", "block": block}
            texts.append(link(measure.table, f"{measure.text(part['y'].median())} at {part['value'].iloc[0]}", **known))
        row = {"quantity": name, "words": VARIED[name].words, "texts": texts}
        row |= {"change": measure.change(middles.min(), middles.max())}
        row |= {"apart": ends[0]["y"].max() < ends[1]["y"].min()}
        found.append(row)
    return sorted(found, key=lambda row: row["change"], reverse=True)
