"""Extreme eigenvalues of a block with residuals, its norm and its trace."""

from __future__ import annotations

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row, pad, star


def compute(at: Checkpoint, block: Block) -> Row:
    """Ends, residuals and trace of a block."""
    eigen, k = at.eigen(block), at.config.k
    trace, error = (float(at.matrix(block).matrix.trace()), 0.0) if at.is_dense(block) else at.rule(block).trace()
    return {
        "eigenvalues": pad(eigen.values, k),
        "residual_norm": pad(eigen.residuals, k),
        "converged": pad(eigen.converged.astype(float), k, 0),
        "hidden": eigen.hidden,
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
        "how far each reported eigenvalue may be from the true one of its rank, copies counted, and an eigenvalue "
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
    Field("trace_error", ("block",), "f8", "standard error of the trace; 0: sum of the diagonal"),
)
COLUMNS = (
    Column("lambda_min", lambda row: f"{row['eigenvalues'][0, 0]:.6g}{star(row)}"),
    Column("lambda_max", lambda row: f"{row['eigenvalues'][1, 0]:.6g}{star(row)}"),
    Column("hidden/|H|", lambda row: _hidden(row)),
)


def _hidden(row: Row) -> str:
    """What may be hidden at either end relative to the norm."""
    return f"{row['hidden'].max() / (row['operator_norm'] or 1):.1g}"


SPECTRUM = Quantity(FIELDS, compute, columns=COLUMNS, place=10)
