"""The saddle index of a block: level, bracket, estimate, and the count without gauge directions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from landscape.files.schema import LEVEL, LEVELS, Field, counted
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row, count, number, star


def compute(at: Checkpoint, block: Block) -> Row:
    """The index of a block, also on the complement of its gauge directions."""
    inertia = at.inertia(block)
    estimate = inertia.estimate
    return {
        "inertia": [inertia.negative, inertia.zero, inertia.positive],
        "inertia_lower": inertia.lower,
        "inertia_upper": inertia.upper,
        "inertia_level": LEVELS.index(inertia.level),
        "inertia_tolerance": inertia.tolerance,
        "inertia_error": inertia.error,
        "inertia_failure_probability": inertia.failure_probability,
        "inertia_estimate": estimate.value if estimate else np.nan,
        "inertia_estimate_low": estimate.low if estimate else np.nan,
        "inertia_estimate_high": estimate.high if estimate else np.nan,
        "saddle_index_gauge_free": at.gauge_free_index(block),
    }


def compute_bounds(at: Checkpoint) -> Row:
    """Theoretical bounds on the saddles."""
    known: Mapping[str, float] = {}
    if at.structure:
        known = next(filter(None, map(at.structure.bounds, at.problem.blocks.values())), {})
    missing = {field.name: -1 if field.dtype == "i8" else np.nan for field in BOUNDS}
    return {name: known.get(name, nothing) for name, nothing in missing.items()}


FIELDS = (
    counted(
        "inertia",
        ("block", "sign"),
        "eigenvalues below -tolerance, within it, above it; missing (-1): only the bracket is known, or of the last "
        "two only the index",
    ),
    counted("inertia_lower", ("block",), "lower bound of the saddle index; missing (-1): not yet measured"),
    counted("inertia_upper", ("block",), "upper bound of the saddle index; missing (-1): not yet measured"),
    Field("inertia_level", ("block",), "i1", "how the saddle index is known", attrs=LEVEL),
    Field("inertia_tolerance", ("block",), "f8", "tolerance tau of the saddle index"),
    Field("inertia_failure_probability", ("block",), "f8", "probability that inertia_upper fails; 0: it is proved"),
    Field("inertia_error", ("block",), "f8", "error of the matrix or of its products that the bracket allows for"),
    Field("inertia_estimate", ("block",), "f8", "stochastic estimate of the index, within its bounds; NaN: certified"),
    Field("inertia_estimate_low", ("block",), "f8", "lower end of the estimate's 95 % confidence interval"),
    Field("inertia_estimate_high", ("block",), "f8", "upper end of the estimate's 95 % confidence interval"),
    counted(
        "saddle_index_gauge_free",
        ("block",),
        "saddle index on the complement of the factors' gauge tangents; missing (-1): not certified, or without both",
    ),
)
BOUNDS = (
    Field(
        "saddle_bound",
        (),
        "f8",
        "saddle bound: lambda_min of the two factors >= -sigma_max(G) for piecewise-linear activations",
        formula="sigma_max(G), G = [dL/dT_1^T; ...; dL/dT_s^T]",
    ),
    counted("saddle_rank_bound", (), "bound on the factors' saddle index", formula="d * rank(G); missing (-1): none"),
    Field(
        "saddle_bound_operands",
        (),
        "f8",
        "saddle bound of the two factors with the operands' rows alone; NaN for a text",
        formula="sigma_max of the operands' columns of G",
    ),
    Field(
        "saddle_bound_constants",
        (),
        "f8",
        "saddle bound with the rows of the tokens that every sample holds; NaN without any",
        formula="sigma_max of their columns of G: the norm of the first bias's gradient",
    ),
)
COLUMNS = (
    Column("saddle index", lambda row: _index(row)),
    Column("gauge-free", lambda row: count(row["saddle_index_gauge_free"])),
    Column("level", lambda row: LEVELS[row["inertia_level"]]),
    Column("tau", lambda row: f"{row['inertia_tolerance']:.1e}"),
)
BOUND_COLUMNS = (
    Column("lmin({pair})", lambda row: _lowest(row["joint"]) if row["joint"] else "-"),
    Column("-s_max(G)", lambda row: number(-row["saddle_bound"])),
    Column("n-({pair})", lambda row: count(row["joint"]["inertia"][0]) if row["joint"] else "-"),
    Column("d rank(G)", lambda row: count(row["saddle_rank_bound"])),
)


def _lowest(row: Row) -> str:
    return f"{number(row['eigenvalues'][0, 0])}{star(row, 0)}"


def _index(row: Row) -> str:
    """The saddle index, or its bracket with an estimate."""
    if row["inertia"][0] >= 0:
        return str(row["inertia"][0])
    estimate = row["inertia_estimate"]
    about = "" if np.isnan(estimate) else f" (about {estimate:.0f})"
    return f"{row['inertia_lower']}..{row['inertia_upper']}{about}"


INERTIA = Quantity(FIELDS, compute, columns=COLUMNS, place=20)
SADDLE_BOUNDS = Quantity(BOUNDS, compute_bounds, columns=BOUND_COLUMNS, place=90)
