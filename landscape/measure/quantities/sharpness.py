"""The sharpness in units of the optimiser's step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from landscape.choices.optimizers import EPSILON
from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Checkpoint, Column, Quantity, Row, number

if TYPE_CHECKING:
    from torch import Tensor


def compute(at: Checkpoint) -> Row:
    """lambda_max of the preconditioned Hessian over all parameters, if the rates are known and the search converges."""
    from landscape.curvature.eigsh import eigsh
    from landscape.curvature.operators import scaled

    row: Row = {}
    for name, adaptive in (("sharpness_gd", False), ("sharpness_adam", True)):
        rates, row[name] = _rates(at, adaptive), np.nan
        if rates is not None:
            step = scaled(at.hessian, rates)
            eigen = eigsh(step, 1, "highest", "lanczos", rtol=1e-4, seed=at.config.seed)
            if eigen.converged.all():
                row[name] = eigen.values[0, 0]
    return row


def _rates(at: Checkpoint, adaptive: bool) -> Tensor | None:
    """Learning rate of every parameter, over Adam's preconditioner if `adaptive`; None if one is unknown."""
    import torch

    training = at.training
    if training is None or any(map(math.isnan, training.rates.values())):
        return None
    moments = training.second_moments
    if adaptive and moments is None:
        return None
    pieces = []
    for name, parameter in at.params.items():
        rate = torch.full_like(parameter, training.rates[name])
        if adaptive and moments is not None:
            rate = rate / (torch.as_tensor(moments[name]).to(rate).sqrt() + training.epsilons.get(name, EPSILON))
        pieces.append(rate.reshape(-1))
    return torch.cat(pieces)


FIELDS = (
    Field(
        "sharpness_gd",
        (),
        "f8",
        "largest eigenvalue of diag(lr) H over all parameters; gradient descent is stable up to 2",
        formula="lambda_max(D^(1/2) H D^(1/2)), D = lr of each parameter, 0 if frozen; NaN if unknown or not converged",
    ),
    Field(
        "sharpness_adam",
        (),
        "f8",
        "the same for Adam's preconditioned Hessian; full-batch Adam with beta_1 = 0.9 is stable up to 38",
        formula="D = lr / (sqrt(v / (1 - beta_2^step)) + 1e-8); NaN without second moments or if not converged",
    ),
)
COLUMNS = (
    Column("GD/2", lambda row: number(row["sharpness_gd"] / 2)),
    Column("Adam/38", lambda row: number(row["sharpness_adam"] / 38)),
)
SHARPNESS = Quantity(FIELDS, compute, columns=COLUMNS, place=80, sharp=True)
