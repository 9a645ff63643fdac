"""Coupling ratios and coupling strength of the problem's pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscape.files.schema import Field, counted
from landscape.measure.quantities.quantity import Checkpoint, Column, Pair, Quantity, Row, count, number, pad

if TYPE_CHECKING:
    from landscape.curvature.coupling import CouplingResult


def compute(at: Checkpoint, pair: Pair) -> Row:
    """Coupling ratios of a pair with their errors; NaN where a diagonal block has negative curvature."""
    return as_row(at.coupling(pair, at.rows[pair.name]["inertia_tolerance"]), FIELDS, at.config.k)


def as_row(coupling: CouplingResult | None, fields: tuple[Field, ...], k: int) -> Row:
    """Ratios, errors, distances and index as four fields."""
    nothing = np.empty(0)
    values = (coupling.ratios, coupling.errors, coupling.distances) if coupling else (nothing,) * 3
    row: Row = {field.name: pad(value[None, :k], k)[1] for field, value in zip(fields, values, strict=False)}
    return row | {fields[3].name: coupling.index if coupling else -1}


def compute_strength(at: Checkpoint, pair: Pair) -> Row:
    """|H_12| over the norms of the two blocks, taken from their rows if analysed."""
    from landscape.curvature.coupling import coupling_strength, spectral_norm

    first, between, second = at.parts(pair)
    norms = [
        at.rows[block.name]["operator_norm"] if block.name in at.rows else spectral_norm(op)
        for block, op in zip(pair.both, (first, second), strict=True)
    ]
    return {"coupling_strength": coupling_strength(between, *norms)}


FIELDS = (
    Field(
        "coupling_ratios",
        ("pair", "rank"),
        "f8",
        "coupling ratios kappa_1 >= kappa_2 >= ...",
        formula="singular values of (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2), tau of the joint block",
    ),
    Field(
        "coupling_ratio_error",
        ("pair", "rank"),
        "f8",
        "bound on the error of the coupling ratio as that of its rank; NaN where only coupling_ratio_distance is "
        "known. Matrix-free ratios are also at most the true ones of their rank",
    ),
    Field(
        "coupling_ratio_distance",
        ("pair", "rank"),
        "f8",
        "distance within which a true coupling ratio lies, perhaps one of another rank",
    ),
    counted(
        "coupling_index",
        ("pair",),
        "coupling ratios above 1, the saddle index of the joint block; missing (-1): not certified",
    ),
)
STRENGTH = (
    Field("coupling_strength", ("pair",), "f8", "coupling strength", formula="|H_12|_2 / sqrt(|H_11|_2 |H_22|_2)"),
)
COLUMNS = (
    Column("kappa_1", lambda row: leading(row, "coupling")),
    Column("kappa>1", lambda row: count(row["coupling_index"])),
)


def leading(row: Row, kind: str) -> str:
    """The largest ratio, marked as a lower bound where nothing bounds its error."""
    ratio, error = row[f"{kind}_ratios"][0], row[f"{kind}_ratio_error"][0]
    return f"{'>=' if np.isnan(error) and not np.isnan(ratio) else ''}{number(ratio)}"


COUPLING = Quantity(FIELDS, compute, columns=COLUMNS, place=60)
STRENGTH_COLUMNS = (Column("coupling", lambda row: number(row["coupling_strength"])),)
COUPLING_STRENGTH = Quantity(STRENGTH, compute_strength, columns=STRENGTH_COLUMNS, place=70, needs="certify")
