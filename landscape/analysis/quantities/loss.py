"""The training loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.analysis.quantities.quantity import Column, Quantity, Row, number
from landscape.storage.schema import Field

if TYPE_CHECKING:
    from landscape.analysis.checkpoint import Checkpoint


def compute(at: Checkpoint) -> Row:
    """The data loss, without decay, whatever the objective."""
    return {"train_loss": at.data_loss}


FIELDS = (Field("train_loss", (), "f8", "data loss on the training set", "nat"),)
LOSS = Quantity(FIELDS, compute, columns=(Column("loss", lambda row: number(row["train_loss"])),), place=40)
