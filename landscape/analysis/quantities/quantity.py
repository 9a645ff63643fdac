"""What a quantity is: datasets of the Hessian file, and the function that computes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.storage.schema import Field

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the tables on the terminal and in the report.

    title: may name {pair}, the first pair of the file, and {parts}. cell: its text, from the datasets of one block; of
    the first pair, and of its joint block under `joint`, where the quantity is one of pairs or points.
    """

    title: str
    cell: Callable[[Row], str]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """Datasets of the Hessian file that are computed together.

    `compute` takes a Checkpoint and returns one value a field: by block, where the first axis of the fields is `block`
    (it then takes the block, too, and leaves that axis out); by pair, where it is `pair`, and the joint block is
    analysed (it takes the pair); once a checkpoint otherwise. reads_blocks: it reads `Checkpoint.rows`, so that it is
    computed again when a file grows by blocks. place: where its columns stand in the tables, ascending.
    """

    fields: tuple[Field, ...]
    compute: Callable[..., Row]
    reads_blocks: bool = False
    columns: tuple[Column, ...] = ()
    place: int = 100

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
    """(end, found) -> (end, k)."""
    padded = np.full((len(values), k), fill)
    padded[:, : values.shape[1]] = values
    return padded


def quotient(a: float, b: float) -> float:
    """a / b, NaN for b = 0."""
    return a / b if b else float("nan")


def number(x: float) -> str:
    """Four digits; a dash for what is missing."""
    return "-" if np.isnan(x) else f"{x:.4g}"


def count(x: int) -> str:
    """A count; a dash for what is not known."""
    return "-" if x < 0 else str(x)
