"""Couplings of blocks with negative curvature of their own: the excess index, and ratios to Gauss-Newton curvature."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from landscape.errors import ArgumentError, NumericsError
from landscape.files.schema import LEVEL, LEVELS, Field, counted
from landscape.measure.quantities import coupling
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Pair, Quantity, Row, count

if TYPE_CHECKING:
    from landscape.curvature.inertia import Inertia


def compute(at: Checkpoint, pair: Pair) -> Row:
    """The excess index at the tolerance of the joint block; missing where a matrix-free block is not analysed."""
    from landscape.curvature.coupling import combined
    from landscape.curvature.inertia import Inertia, certified
    from landscape.curvature.operators import MatrixOperator

    missing: Row = {field.name: 0 if field.dtype == "i1" else np.nan for field in FIELDS}
    row = at.rows[pair.name]
    whole = _known(row)
    first, _, second = at.parts(pair)
    alone = []
    if at.what.is_dense(pair.joint) and at.coupling(pair, whole.tolerance):
        # Coupling ratios are defined where both shifted blocks are proved positive definite, errors included.
        alone = [Inertia(0, -1, -1, 0, 0, whole.tolerance, "certified")] * 2
    try:
        for block, op in () if alone else zip(pair.both, (first, second), strict=True):
            if isinstance(op, MatrixOperator):
                norm = row["operator_norm"]
                alone.append(certified(op.matrix, whole.tolerance, norm, op.error, negative_only=True))
            elif block.name in at.rows:
                alone.append(_searched(at, block, whole.tolerance))
            else:
                return missing
    except NumericsError:
        return missing
    excess = combined(whole, alone[0], alone[1], (first.shape[0], second.shape[0]))
    return {
        "excess_index_lower": excess.lower,
        "excess_index_upper": excess.upper,
        "excess_level": LEVELS.index(excess.level),
        "excess_failure_probability": excess.failure_probability,
        "excess_estimate": excess.estimate,
        "excess_estimate_low": excess.estimate_low,
        "excess_estimate_high": excess.estimate_high,
    }


def compute_gauss_newton(at: Checkpoint, pair: Pair) -> Row:
    """Coupling ratios to the Gauss-Newton diagonal blocks, which are the others' where these are Gauss-Newton alone."""
    tolerance = at.rows[pair.name]["inertia_tolerance"]
    ratios = at.coupling(pair, tolerance)
    try:
        G = [at.gauss_newton(block) for block in pair.both] if any(map(at.has_residual, pair.both)) else None
    except ArgumentError:
        # The loss is not convex in the outputs, or has none of its own.
        ratios = None
    else:
        ratios = at.ratios(pair, tolerance, G[0], at.parts(pair)[1], G[1]) if G else ratios
    return coupling.as_row(ratios, GAUSS_NEWTON_FIELDS, at.config.k)


def _known(row: Row) -> Inertia:
    """The index of a block as its row has it."""
    from landscape.curvature.density import Count
    from landscape.curvature.inertia import Inertia

    value, low, high = (row[f"inertia_estimate{end}"] for end in ("", "_low", "_high"))
    negative, zero, positive = map(int, row["inertia"])
    return Inertia(
        negative,
        zero,
        positive,
        int(row["inertia_lower"]),
        int(row["inertia_upper"]),
        float(row["inertia_tolerance"]),
        LEVELS[row["inertia_level"]],
        float(row["inertia_error"]),
        float(row["inertia_failure_probability"]),
        None if np.isnan(value) else Count(value, np.nan, low, high),
    )


def _searched(at: Checkpoint, block: Block, tolerance: float) -> Inertia:
    """The index of a matrix-free block below -tolerance: as in its row where that says it all, else searched for.

    An index does not grow with the tolerance, so that the row's upper bound holds for any larger one.
    """
    from landscape.curvature.inertia import bracketed

    row = at.rows[block.name]
    known = _known(row)
    if tolerance < known.tolerance:
        known = dataclasses.replace(known, level="estimated")
    bound = None if known.level == "estimated" else known.upper
    lower = int((row["eigenvalues"][0] < -tolerance - known.error).sum())
    if lower == bound:
        return dataclasses.replace(known, lower=lower, upper=lower, tolerance=tolerance)
    config = at.config
    bracket = bracketed(
        at.block(block), at.eigen(block), at.rule(block), None, config.seed, bound, config.max_hvps, tolerance
    )
    return dataclasses.replace(bracket, failure_probability=bracket.failure_probability + known.failure_probability)


FIELDS = (
    Field(
        "excess_index_lower",
        ("pair",),
        "f8",
        "lower bound of the excess index: what the coupling adds to the saddle indices of the two blocks",
        formula="n_-(H_[1,2]) - n_-(H_11) - n_-(H_22), all below -tau of the joint block; NaN: not measured",
    ),
    Field("excess_index_upper", ("pair",), "f8", "upper bound of the excess index"),
    Field("excess_level", ("pair",), "i1", "how the least known of the three indices is known", attrs=LEVEL),
    Field(
        "excess_failure_probability",
        ("pair",),
        "f8",
        "probability that a bound of the excess index fails; 0: both are proved",
    ),
    Field(
        "excess_estimate",
        ("pair",),
        "f8",
        "stochastic estimate of the excess index; NaN where it is certified",
    ),
    Field("excess_estimate_low", ("pair",), "f8", "lower end of the estimate's 85 % confidence interval"),
    Field("excess_estimate_high", ("pair",), "f8", "upper end of the estimate's 85 % confidence interval"),
)
GAUSS_NEWTON_FIELDS = (
    Field(
        "gauss_newton_ratios",
        ("pair", "rank"),
        "f8",
        "coupling ratios to the Gauss-Newton parts of the diagonal blocks; NaN where the loss is not convex in the "
        "outputs",
        formula="singular values of (G_11 + tau)^(-1/2) H_12 (G_22 + tau)^(-1/2), tau of the joint block",
    ),
    Field(
        "gauss_newton_ratio_error",
        ("pair", "rank"),
        "f8",
        "bound on the error of gauss_newton_ratios, as coupling_ratio_error",
    ),
    Field(
        "gauss_newton_ratio_distance",
        ("pair", "rank"),
        "f8",
        "distance of gauss_newton_ratios from a true one, as coupling_ratio_distance",
    ),
    counted(
        "gauss_newton_index",
        ("pair",),
        "gauss_newton_ratios above 1, the saddle index of the joint block with Gauss-Newton diagonal blocks; missing "
        "(-1): not certified",
    ),
)
COLUMNS = (Column("excess index", lambda row: _excess(row)),)
GAUSS_NEWTON_COLUMNS = (
    Column("kappa_1 (GN)", lambda row: coupling.leading(row, "gauss_newton")),
    Column("kappa>1 (GN)", lambda row: count(row["gauss_newton_index"])),
)


def _excess(row: Row) -> str:
    """The excess index, or its bracket with an estimate."""
    lower, upper, estimate = (row[f"excess_{name}"] for name in ("index_lower", "index_upper", "estimate"))
    if np.isnan(lower):
        return "-"
    about = "" if np.isnan(estimate) else f" (about {estimate:.0f})"
    return f"{lower:.0f}" if lower == upper else f"{lower:.0f}..{upper:.0f}{about}"


EXCESS = Quantity(FIELDS, compute, columns=COLUMNS, place=65, needs="certify")
GAUSS_NEWTON = Quantity(
    GAUSS_NEWTON_FIELDS, compute_gauss_newton, columns=GAUSS_NEWTON_COLUMNS, place=66, needs="certify"
)
