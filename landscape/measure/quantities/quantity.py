"""A quantity: datasets of the Hessian file, and the function that computes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.config import AnalysisConfig
from landscape.files.schema import Field

if TYPE_CHECKING:
    from landscape.measure.checkpoint import Checkpoint as Checkpoint
    from landscape.models.blocks import Block as Block
    from landscape.models.blocks import Pair as Pair
else:
    # Tables and documentation do without torch.
    Block = Checkpoint = Pair = Any

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the tables on the terminal and in the report.

    title: may contain {pair}, the first pair of the file, and {parts}. cell: text from the datasets of one block, with
    the run's `weight_decay` if that is part of its loss, else NaN; for quantities of pairs and points from those of the
    first analysed pair, with the first pair's joint block under `joint` and the names of blocks of which not every
    eigenvalue converged under `unconverged`.
    """

    title: str
    cell: Callable[[Row], str]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """Datasets of the Hessian file that are computed together.

    `compute` takes a Checkpoint and returns one value per field. If the first axis of the fields is `block`, it also
    takes the Block and omits that axis; if it is `pair`, it takes a Pair whose joint block is analysed. place: sort
    key of its columns. needs: a setting without which it is not measured; sharp: also where the sharpness alone is
    asked for.
    """

    fields: tuple[Field, ...]
    compute: Callable[..., Row]
    columns: tuple[Column, ...] = ()
    place: int = 100
    needs: str = ""
    sharp: bool = False

    def is_asked_for(self, config: AnalysisConfig) -> bool:
        """Whether an analysis measures it; its datasets are missing otherwise."""
        return (not self.needs or getattr(config, self.needs)) and (config.only is None or self.sharp)

    @property
    def scope(self) -> str:
        """block, pair or point."""
        first = self.fields[0].dims[:1]
        return first[0] if first in (("block",), ("pair",)) else "point"

    @property
    def names(self) -> list[str]:
        """The datasets."""
        return [field.name for field in self.fields]


def pad(values: NDArray[Any], k: int, fill: float = np.nan) -> NDArray[np.float64]:
    """(end, m, ...) -> (end, k, ...) of m <= k; a single end is the highest of two."""
    padded = np.full((2, k, *values.shape[2:]), fill)
    padded[-len(values) :, : values.shape[1]] = values
    return padded


def quotient(a: float, b: float) -> float:
    """a / b, NaN for b = 0."""
    return a / b if b else float("nan")


def number(x: float, digits: int = 4) -> str:
    """So many digits; a dash if missing."""
    return "-" if np.isnan(x) else f"{x:.{digits}g}"


def star(row: Row, end: int) -> str:
    """A mark for the outermost eigenvalue of an end if it has not converged."""
    return "*" if row["converged"][end, 0] == 0 and not np.isnan(row["eigenvalues"][end, 0]) else ""


def count(x: int) -> str:
    """A count; a dash if unknown."""
    return "-" if x < 0 else str(x)
