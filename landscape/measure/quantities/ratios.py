"""Ratios of two factors of a layer, each beside its prediction (arXiv 2505.15624)."""

from __future__ import annotations

import numpy as np

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Checkpoint, Column, Quantity, Row, number, quotient
from landscape.models.embedding_mlp.blocks import BALANCED


def compute(at: Checkpoint) -> Row:
    """Gradient ratio and predictions for the problem's two balanced factors."""
    import torch

    row: Row = dict.fromkeys((f.name for f in FIELDS), np.nan)
    if at.problem.balanced and at.training:
        first, second = at.problem.balanced
        sigmas = (float(torch.linalg.matrix_norm(at.params[n], 2)) for n in (first, second))
        ratio = quotient(*sigmas)
        row["curvature_ratio_predicted"] = ratio**2
        row["gradient_ratio"] = quotient(float(at.gradient[second].norm()), float(at.gradient[first].norm()))
        row["gradient_ratio_predicted"] = ratio
        row["prop41_ratio"] = quotient(ratio, at.training.update_frequency)
    return row


def compute_measured(at: Checkpoint) -> Row:
    """The curvature ratio, once the blocks of both factors are measured."""
    if at.problem.balanced and set(at.problem.balanced) <= at.rows.keys():
        first, second = (at.rows[name]["eigenvalues"][1, 0] for name in at.problem.balanced)
        return {"curvature_ratio": quotient(second, first)}
    return {"curvature_ratio": np.nan}


FIELDS = (
    Field(
        "curvature_ratio_predicted",
        (),
        "f8",
        "curvature ratio of a bilinear least-squares model",
        formula="(sigma_max(1) / sigma_max(2))^2 of the two factors",
    ),
    Field("gradient_ratio", (), "f8", "gradient ratio", formula="|dL/d2|_F / |dL/d1|_F of the two factors"),
    Field(
        "gradient_ratio_predicted",
        (),
        "f8",
        "gradient ratio of arXiv 2505.15624, eq. 22",
        formula="sigma_max(1) / sigma_max(2)",
    ),
    Field(
        "prop41_ratio",
        (),
        "f8",
        "ratio of learning rates, factor 1 over 2, that Proposition 4.1 asks for",
        formula="(sigma_max(1) / sigma_max(2)) * (f_2 / f_1)",
    ),
)
MEASURED = (
    Field(
        "curvature_ratio", (), "f8", "curvature ratio", formula="lambda_max(H_22) / lambda_max(H_11) of the two factors"
    ),
)
COLUMNS = (
    Column("curv. pred.", lambda row: number(row["curvature_ratio_predicted"])),
    Column("grad. ratio", lambda row: number(row["gradient_ratio"])),
    Column("grad. pred.", lambda row: number(row["gradient_ratio_predicted"])),
    Column("prop41", lambda row: number(row["prop41_ratio"])),
)
CURVATURE = (Column("curv. ratio", lambda row: _curvature(row)),)


def _curvature(row: Row) -> str:
    """The ratio, starred as the blocks of the two factors are."""
    star = "" if np.isnan(row["curvature_ratio"]) or row["unconverged"].isdisjoint(BALANCED) else "*"
    return f"{number(row['curvature_ratio'])}{star}"


CURVATURE_RATIO = Quantity(MEASURED, compute_measured, columns=CURVATURE, place=50)
RATIOS = Quantity(FIELDS, compute, columns=COLUMNS, place=51)
