"""The training loss, and the gradient norm of each block."""

from __future__ import annotations

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row, number


def compute(at: Checkpoint) -> Row:
    """The data loss, without decay, whatever the objective."""
    return {"train_loss": at.data_loss}


def compute_gradient(at: Checkpoint, block: Block) -> Row:
    """|gradient| of the objective over the block's parameters."""
    return {"grad_norm": float(block.flat(at.gradient).norm())}


FIELDS = (Field("train_loss", (), "f8", "data loss on the training set", "nat"),)
NORM = (Field("grad_norm", ("block",), "f8", "gradient norm of the block's parameters"),)
LOSS = Quantity(FIELDS, compute, columns=(Column("loss", lambda row: number(row["train_loss"])),), place=40, sharp=True)
GRADIENT = Quantity(
    NORM, compute_gradient, columns=(Column("|grad|", lambda row: f"{row['grad_norm']:.3g}"),), place=25, sharp=True
)
