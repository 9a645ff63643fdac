"""The sharpness in units of the optimiser's step."""

from __future__ import annotations

import numpy as np

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Checkpoint, Column, Quantity, Row, number


def compute(at: Checkpoint) -> Row:
    """lambda_max of the preconditioned Hessian over all parameters, if the rates are known and the search converges."""
    from landscape.curvature.eigsh import eigsh
    from landscape.curvature.preconditioned import Preconditioned

    row: Row = {}
    shapes = {name: parameter.shape for name, parameter in at.params.items()}
    for name, is_adaptive in (("sharpness_gd", False), ("sharpness_adam", True)):
        row[name] = np.nan
        is_known = at.training and (at.training.is_adam or not is_adaptive)
        D = at.training.preconditioner(shapes, is_adaptive) if at.training and is_known else None
        if D is not None:
            eigen = eigsh(Preconditioned(at.hessian, D), 1, "highest", "lanczos", rtol=1e-4, seed=at.config.seed)
            if eigen.converged.all():
                row[name] = eigen.values[0, 0]
    return row


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
