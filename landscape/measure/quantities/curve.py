"""The index curve of a block: its saddle index over ten decades of the tolerance."""

from __future__ import annotations

from landscape.files.schema import Field, counted
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row

TAU = "tau"
"""The axis of tolerances relative to |H|."""
QUOTED = (2, 4, 6, 8, 10)
"""Decades of tau that tables and sentences quote."""


def compute(at: Checkpoint, block: Block) -> Row:
    """The curve of a block."""
    curve = at.curve(block)
    return {
        "index_curve_lower": curve.lower,
        "index_curve_upper": curve.upper,
        "index_curve_estimate": curve.estimate,
        "index_curve_estimate_low": curve.estimate_low,
        "index_curve_estimate_high": curve.estimate_high,
        "index_curve_failure_probability": curve.failure_probability,
    }


FIELDS = (
    counted(
        "index_curve_lower",
        ("block", TAU),
        "lower bound of the number of eigenvalues below -tau |H|; missing (-1): not yet measured",
    ),
    counted(
        "index_curve_upper",
        ("block", TAU),
        "upper bound of the number of eigenvalues below -tau |H|; missing (-1): not yet measured",
    ),
    Field(
        "index_curve_estimate",
        ("block", TAU),
        "f8",
        "stochastic estimate of that number, within its bounds; NaN: the bounds meet, or nothing was estimated",
    ),
    Field("index_curve_estimate_low", ("block", TAU), "f8", "lower end of the estimate's 95 % confidence interval"),
    Field("index_curve_estimate_high", ("block", TAU), "f8", "upper end of the estimate's 95 % confidence interval"),
    Field(
        "index_curve_failure_probability",
        ("block",),
        "f8",
        "probability that an upper bound of the curve fails; 0: all are proved",
    ),
)
COLUMNS = (Column(f"n- at {', '.join(f'1e-{decade}' for decade in QUOTED)}", lambda row: _counts(row)),)


def _counts(row: Row) -> str:
    """The index at some tolerances: a count, an estimate or a bracket."""
    return ", ".join(_count(row, decade) for decade in QUOTED)


def _count(row: Row, i: int) -> str:
    lower, upper, estimate = (row[f"index_curve_{name}"][i] for name in ("lower", "upper", "estimate"))
    if lower == upper:
        return str(lower)
    return f"{lower}..{upper}" if estimate != estimate else f"~{estimate:.0f}"


CURVE = Quantity(FIELDS, compute, columns=COLUMNS, place=25, needs="curve")
