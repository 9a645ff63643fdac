"""Measure all quantities of a point, and what its eigenvectors have in common with those of the step before."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.files.schema import Scales
from landscape.measure import datasets
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.datasets import Datasets
from landscape.measure.fields import BOOKKEEPING
from landscape.measure.measurement import Measurement, Point, Vectors
from landscape.measure.quantities import QUANTITIES, density, tracking
from landscape.measure.quantities.quantity import Quantity, Row, pad
from landscape.models.blocks import Block

Progress = Callable[[str, bool], object]
"""Called with the name of a block before and after it is measured."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The datasets of one point, without the axis of steps, and the eigenvectors of blocks that were measured."""

    datasets: Datasets
    vectors: dict[str, Tensor]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with arrays: tensors would be shared through files that end with their process."""
        return _of_arrays, (self.datasets, {name: vectors.cpu().numpy() for name, vectors in self.vectors.items()})


def measure(
    what: Measurement, point: Point, known: Datasets | None = None, progress: Progress = lambda block, done: None
) -> Measured:
    """Measure every block at one point.

    Args:
        what: problem, blocks and settings.
        point: parameters, what the trainer knew, and start vectors.
        known: datasets of this point in which some blocks are measured: these stay, and so does what couples them.
        progress: called around each block.

    Returns:
        Groups "/", "spectrum", "density" and, if they are to be stored, "eigenvectors". What takes two steps is
        missing; `track` adds it.
    """
    tables, scales = what.layout()
    held = datasets.measured(known["/"]) if known else []
    with what.threads():
        checkpoint = Checkpoint(what, point)
        spectra: Row = {}
        for i, block in enumerate(what.blocks):
            name, full = block.name, checkpoint.is_full(block)
            if known and name in held:
                checkpoint.rows[name] = _stored(known, i)
                spectra |= {name: known["spectrum"][name].values} if full else {}
            else:
                progress(name, False)
                checkpoint.rows[name] = _of_block(checkpoint, block)
                spectra |= {name: checkpoint.eigen(block).ritz} if full else {}
                progress(name, True)
        rows = checkpoint.rows
        root: Row = {name: np.array([rows[b.name][name] for b in what.blocks]) for name in rows[what.blocks[0].name]}
        root |= {field.name: known["/"][field.name].values for field in tracking.FIELDS} if known else {}
        for quantity in QUANTITIES:
            if quantity.scope == "point":
                root |= _of_point(checkpoint, quantity, known)
            elif quantity.scope == "pair":
                root |= _of_pairs(checkpoint, quantity, known, scales)
        densities, distances = density.compute(checkpoint, spectra)
        vectors = {b.name: checkpoint.eigen(b).vectors for b in what.blocks if b.name not in held}
    values = {"/": root | distances, "spectrum": spectra, "density": densities}
    if what.config.eigenvectors:
        values["eigenvectors"] = {name: pad(v.mT.cpu().numpy(), what.config.k) for name, v in vectors.items()}
        values["eigenvectors"] |= {name: known["eigenvectors"][name].values for name in held} if known else {}
    return Measured({t.group: datasets.dataset(t, scales, values[t.group]) for t in tables}, vectors)


def eigenvectors(
    what: Measurement, point: Point, names: Collection[str], progress: Progress = lambda block, done: None
) -> dict[str, Tensor]:
    """The eigenvectors of some blocks alone, from which the next step is tracked."""
    found = {}
    with what.threads():
        checkpoint = Checkpoint(what, point)
        for block in what.blocks:
            if block.name in names:
                progress(block.name, False)
                found[block.name] = checkpoint.eigen(block).vectors
                progress(block.name, True)
    return found


def track(what: Measurement, measured: Measured, before: Vectors) -> Datasets:
    """The datasets of a step with what has become of the eigenvectors of the step before, in all blocks that have some.

    measured.vectors and before: eigenvectors at the step and at the one before it, none if it is the first.
    """
    root = measured.datasets["/"].copy(deep=True)
    with what.threads():
        for i, block in enumerate(what.blocks):
            if block.name in measured.vectors:
                row = tracking.tracked(before.get(block.name), measured.vectors[block.name], what.config.k)
                for name, value in row.items():
                    root[name].values[i] = value
    return {**measured.datasets, "/": root}


def _of_arrays(rows: Datasets, vectors: dict[str, NDArray[Any]]) -> Measured:
    return Measured(rows, {name: torch.from_numpy(array) for name, array in vectors.items()})


def _of_block(checkpoint: Checkpoint, block: Block) -> Row:
    """All quantities of one block, and their cost."""
    started = time.monotonic()
    row: Row = {}
    for quantity in QUANTITIES:
        if quantity.scope == "block":
            row |= quantity.compute(checkpoint, block)
    return row | {"num_products": checkpoint.products[block.name], "seconds": time.monotonic() - started}


def _stored(known: Datasets, i: int) -> Row:
    """The row of a block that was measured before."""
    fields = [field for q in QUANTITIES if q.scope == "block" for field in q.fields]
    names = [field.name for field in (*fields, *BOOKKEEPING) if field.dims[:1] == ("block",)]
    return {name: known["/"][name].values[i] for name in names}


def _of_point(checkpoint: Checkpoint, quantity: Quantity, known: Datasets | None) -> Row:
    """A quantity of the whole point, which does not change with blocks unless it reads them."""
    if known and not quantity.reads_blocks:
        return {name: known["/"][name].values for name in quantity.names}
    row: Row = quantity.compute(checkpoint)
    return row


def _of_pairs(checkpoint: Checkpoint, quantity: Quantity, known: Datasets | None, scales: Scales) -> Row:
    """A quantity of all pairs; missing where the joint block is not analysed."""
    root: Row = {field.name: datasets.missing(field, scales) for field in quantity.fields}
    held = datasets.measured(known["/"]) if known else []
    for i, pair in enumerate(checkpoint.what.pairs):
        if pair.name not in checkpoint.rows:
            continue
        new = [block.name for block in pair.both if block.name in checkpoint.rows and block.name not in held]
        if known and pair.name in held and not (quantity.reads_blocks and new):
            row = {name: known["/"][name].values[i] for name in quantity.names}
        else:
            row = quantity.compute(checkpoint, pair)
        for name, value in row.items():
            root[name][i] = value
    return root
