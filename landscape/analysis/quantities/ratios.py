"""Ratios of two factors of a layer, each beside its prediction (arXiv 2505.15624)."""

from __future__ import annotations

import numpy as np

from landscape.analysis.quantities.quantity import Checkpoint, Column, Quantity, Row, number, quotient
from landscape.storage.schema import Field


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
        formula="(sigma_max(E) / sigma_max(W))^2",
    ),
    Field("gradient_ratio", (), "f8", "gradient ratio", formula="|dL/dW|_F / |dL/dE|_F"),
    Field(
        "gradient_ratio_predicted",
        (),
        "f8",
        "gradient ratio of arXiv 2505.15624, eq. 22",
        formula="sigma_max(E) / sigma_max(W)",
    ),
    Field(
        "prop41_ratio",
        (),
        "f8",
        "lr_E / lr_W that Proposition 4.1 asks for",
        formula="(sigma_max(E) / sigma_max(W)) * (f_W / f_E)",
    ),
)
MEASURED = (Field("curvature_ratio", (), "f8", "curvature ratio", formula="lambda_max(H_WW) / lambda_max(H_EE)"),)
COLUMNS = (
    Column("curv. pred.", lambda row: number(row["curvature_ratio_predicted"])),
    Column("grad. ratio", lambda row: number(row["gradient_ratio"])),
    Column("grad. pred.", lambda row: number(row["gradient_ratio_predicted"])),
    Column("prop41", lambda row: number(row["prop41_ratio"])),
)
CURVATURE = (Column("curv. ratio", lambda row: number(row["curvature_ratio"])),)
CURVATURE_RATIO = Quantity(MEASURED, compute_measured, reads_blocks=True, columns=CURVATURE, place=50)
RATIOS = Quantity(FIELDS, compute, columns=COLUMNS, place=51)
