"""The gradient norm of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.analysis.quantities.quantity import Column, Quantity, Row
from landscape.storage.schema import Field

if TYPE_CHECKING:
    from landscape.analysis.checkpoint import Checkpoint


def compute(at: Checkpoint, block: str) -> Row:
    """|gradient| of the objective over the block's parameters."""
    import torch

    return {"grad_norm": float(torch.cat([at.gradient[name].reshape(-1) for name in at.names(block)]).norm())}


FIELDS = (Field("grad_norm", ("block",), "f8", "gradient norm of the block's parameters"),)
GRADIENT = Quantity(FIELDS, compute, columns=(Column("|grad|", lambda row: f"{row['grad_norm']:.3g}"),), place=25)
