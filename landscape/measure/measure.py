"""Measure all quantities of a point, and what its eigenvectors have in common with those of the step before."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.eigsh import EigenResult
from landscape.files.schema import Scales
from landscape.measure import datasets
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.datasets import Datasets
from landscape.measure.measurement import Measurement, Point, Vectors
from landscape.measure.quantities import QUANTITIES, density, tracking
from landscape.measure.quantities.quantity import Quantity, Row, pad
from landscape.models.blocks import Block

Progress = Callable[[str, float], object]
"""Called with the name of a block: with 0 before it is measured, 1 after, in between the share of a factorisation."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The datasets of one point, without the axis of steps, and the eigenvectors of blocks that were sought."""

    datasets: Datasets
    vectors: dict[str, Tensor]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with arrays: tensors would be shared through files that end with their process."""
        return _of_arrays, (self.datasets, {name: vectors.cpu().numpy() for name, vectors in self.vectors.items()})


def measure(what: Measurement, point: Point, progress: Progress = lambda block, done: None) -> Measured:
    """Measure every block at one point.

    Args:
        what: problem, blocks and settings.
        point: parameters, what the trainer knew, and start vectors.
        progress: called around each block.

    Returns:
        Groups "/", "spectrum", "density" and, if they are to be stored, "eigenvectors". What takes two steps is
        missing; `track` adds it.
    """
    tables, scales = what.layout()
    with what.threads():
        checkpoint = Checkpoint(what, point)
        spectra: Row = {}
        for block in what.blocks:
            progress(block.name, False)
            checkpoint.progress = functools.partial(_during, progress, block.name)
            checkpoint.rows[block.name] = _of_block(checkpoint, block)
            if what.is_full(block):
                spectra[block.name] = checkpoint.eigen(block).ritz
            progress(block.name, True)
        rows = checkpoint.rows
        root: Row = {name: np.array([rows[b.name][name] for b in what.blocks]) for name in rows[what.blocks[0].name]}
        for quantity in asked_for(what):
            if quantity.scope == "point":
                root |= quantity.compute(checkpoint)
            elif quantity.scope == "pair":
                root |= _of_pairs(checkpoint, quantity, scales)
        values: dict[str, datasets.Row] = {"/": root, "spectrum": spectra, "settled": point.settled}
        if what.config.density:
            values["density"], distances = density.compute(checkpoint, spectra)
            root |= distances
        eigen = {block.name: checkpoint.eigen(block) for block in what.blocks}
    if what.config.vectors:
        values["eigenvectors"] = {name: pad(e.vectors.mT.cpu().numpy(), what.config.k) for name, e in eigen.items()}
    return Measured({t.group: datasets.dataset(t, scales, values[t.group]) for t in tables}, _sought(what, eigen))


def _during(progress: Progress, block: str, share: float) -> None:
    progress(block, min(max(share, 0.01), 0.99))


def asked_for(what: Measurement) -> list[Quantity]:
    """The quantities that the settings ask for."""
    return [quantity for quantity in QUANTITIES if quantity.is_asked_for(what.config)]


def eigenvectors(what: Measurement, point: Point, progress: Progress) -> Measured:
    """The eigenvectors of every block alone, from which the next step is tracked."""
    eigen = {}
    with what.threads():
        checkpoint = Checkpoint(what, point)
        for block in what.blocks:
            progress(block.name, False)
            eigen[block.name] = checkpoint.eigen(block)
            progress(block.name, True)
    return Measured({}, _sought(what, eigen))


def track(what: Measurement, measured: Measured, before: Vectors) -> Datasets:
    """The datasets of a step with what has become of the eigenvectors of the step before; before: none if it is first.

    measured.vectors and before: eigenvectors at the step and at the one before it.
    """
    root = measured.datasets["/"].copy(deep=True)
    if what.config.only:
        return {**measured.datasets, "/": root}
    with what.threads():
        for i, block in enumerate(what.blocks):
            row = tracking.tracked(before.get(block.name), measured.vectors.get(block.name), what.config.k)
            for name, value in row.items():
                root[name].values[i] = value
    return {**measured.datasets, "/": root}


def _sought(what: Measurement, eigen: Mapping[str, EigenResult]) -> dict[str, Tensor]:
    """The eigenvectors of blocks in which all were sought: others say nothing of how a subspace moves."""
    return {name: one.vectors for name, one in eigen.items() if what.config.certify or one.converged.all()}


def _of_arrays(rows: Datasets, vectors: dict[str, NDArray[Any]]) -> Measured:
    return Measured(rows, {name: torch.from_numpy(array) for name, array in vectors.items()})


def _of_block(checkpoint: Checkpoint, block: Block) -> Row:
    """All quantities of one block, and their cost."""
    started = time.monotonic()
    row: Row = {}
    for quantity in asked_for(checkpoint.what):
        if quantity.scope == "block":
            row |= quantity.compute(checkpoint, block)
    return row | {"num_products": checkpoint.products[block.name], "seconds": time.monotonic() - started}


def _of_pairs(checkpoint: Checkpoint, quantity: Quantity, scales: Scales) -> Row:
    """A quantity of all pairs; missing where the joint block is not analysed."""
    root: Row = {field.name: datasets.missing(field, scales) for field in quantity.fields}
    for i, pair in enumerate(checkpoint.what.pairs):
        if pair.name in checkpoint.rows:
            for name, value in quantity.compute(checkpoint, pair).items():
                root[name][i] = value
    return root
