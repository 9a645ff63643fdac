"""Extreme eigenvalues of a block with residuals, its norm and its trace."""

from __future__ import annotations

import math

import numpy as np

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row, number, pad, quotient, star


def compute(at: Checkpoint, block: Block) -> Row:
    """Ends, residuals and trace of a block."""
    eigen, k = at.eigen(block), at.config.k
    trace, error = np.nan, np.nan
    if at.what.is_dense(block):
        trace, error = float(at.matrix(block).matrix.trace()), 0.0
    elif at.config.density:
        trace, error = at.rule(block).trace()
    return {
        "eigenvalues": pad(eigen.values, k),
        "residual_norm": pad(eigen.residuals, k),
        "converged": pad(eigen.converged.astype(float), k, 0),
        "hidden": pad(eigen.hidden[:, None], 1)[:, 0],
        "hidden_failure_probability": eigen.hidden_failure_probability,
        "operator_norm": eigen.operator_norm,
        "trace": trace,
        "trace_error": error,
    }


FIELDS = (
    Field("eigenvalues", ("block", "end", "rank"), "f8", "extreme eigenvalues, outermost first"),
    Field("residual_norm", ("block", "end", "rank"), "f8", "residual", formula="|H v - lambda v|_2, |v| = 1"),
    Field(
        "converged",
        ("block", "end", "rank"),
        "i1",
        "residual within tolerance and the complement searched (1) or not, or no such rank (0)",
    ),
    Field(
        "hidden",
        ("block", "end"),
        "f8",
        "how far each converged eigenvalue may be from the true one of its rank, copies counted, and an eigenvalue "
        "that is not reported may lie beyond them; 0: dense; inf: the complement was not searched",
    ),
    Field(
        "hidden_failure_probability",
        ("block",),
        "f8",
        "probability that `hidden` fails at an end; 0: every eigenvalue was computed",
    ),
    Field("operator_norm", ("block",), "f8", "norm of the block", formula="max |lambda|"),
    Field("trace", ("block",), "f8", "trace"),
    Field("trace_error", ("block",), "f8", "standard error of the trace; 0: sum of the diagonal; NaN: not measured"),
)
COLUMNS = (
    Column("lambda_min", lambda row: _outermost(row, 0)),
    Column("lmin/|H|", lambda row: number(quotient(row["eigenvalues"][0, 0], row["operator_norm"]), 3)),
    Column("lmin/wd", lambda row: number(row["eigenvalues"][0, 0] / row["weight_decay"], 3)),
    Column("lambda_max", lambda row: _outermost(row, 1)),
    Column("hidden/|H|", lambda row: _hidden(row)),
)


def _outermost(row: Row, end: int) -> str:
    """The outermost eigenvalue of an end, with its residual where six digits would say more than that."""
    value, residual = float(row["eigenvalues"][end, 0]), float(row["residual_norm"][end, 0])
    if not residual > 1e-5 * abs(value) > 0:
        return f"{number(value, 6)}{star(row, end)}"
    digits = max(1, math.floor(math.log10(abs(value))) - math.floor(math.log10(residual)) + 1)
    return f"{number(value, digits)}±{residual:.0e}{star(row, end)}"


def _hidden(row: Row) -> str:
    """What may be hidden at either end relative to the norm."""
    return f"{np.nanmax(row['hidden']) / (row['operator_norm'] or 1):.1g}"


SPECTRUM = Quantity(FIELDS, compute, columns=COLUMNS, place=10, sharp=True)
