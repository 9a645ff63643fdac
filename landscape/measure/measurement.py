"""Measure all quantities of a checkpoint, as rows of the Hessian file."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import AnalysisConfig
from landscape.curvature.operators import HessianOperator
from landscape.devices import one_thread, require_dense
from landscape.errors import ConfigError
from landscape.files.schema import UNKNOWN, Field, Scales, Table
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.fields import ENDS, ROOT, density_table, losses_in, spectrum_table, vectors_table
from landscape.measure.quantities import QUANTITIES, density, tracking
from landscape.measure.quantities.quantity import Quantity, Row, pad
from landscape.models.choice import choose
from landscape.models.problem import Arrays, Problem, Training, joint, selection, size, tensors, with_state

Rows = dict[str, Row]
"""One row of each table of the Hessian file, by group; "/" is the root."""


class Measurement:
    """Measurements of successive checkpoints, for one problem and one AnalysisConfig.

    The eigenvectors of a checkpoint are tracked to the next one, where matrix-free searches start from them.
    """

    def __init__(self, problem: Problem, config: AnalysisConfig) -> None:
        """Without blocks in `config`, the problem's default blocks are measured.

        Raises ConfigError for an unknown block, an objective that the run did not minimise or a bandwidth that the grid
        of the densities does not resolve, and DoesNotFitError for dense blocks that do not fit in memory.
        """
        if config.bandwidth < density.FINEST:
            raise ConfigError(
                f"bandwidth is {config.bandwidth}, but densities have {density.POINTS} points, too few for that",
                f"raise --bandwidth to {density.FINEST} or more",
            )
        config = config if config.blocks else dataclasses.replace(config, blocks=problem.default_blocks)
        self.problem, self.config = choose(problem, config.blocks), config
        problem.decay(config.objective)
        self.vectors: dict[str, Tensor] = {}
        """Eigenvectors at the checkpoint measured last, by block."""
        self.progress: Callable[[str, bool], object] = lambda block, done: None
        """Called with a block before and after it is measured."""
        for block in config.blocks:
            n = self.order(block)
            if config.is_dense(n):
                require_dense(block, n, problem.device)

    def order(self, block: str) -> int:
        """Order of the largest matrix that a block takes: one of some rows is cut from that of the whole parameters."""
        chosen = selection(self.problem, block)
        return chosen.total if self.config.is_dense(chosen.total) else sum(chosen.sizes)

    def require_sound(self, parameters: Arrays) -> None:
        """Raise ArgumentError or NumericsError, before any file is made, for a loss that has no Hessian there."""
        problem = with_state(self.problem, parameters)
        objective = problem.objective(problem.decay(self.config.objective))
        HessianOperator(objective, tensors(self.problem, parameters))

    def layout(self) -> tuple[list[Table], Scales]:
        """The tables of a file of these measurements, and the labels of all axes except those of rows."""
        sizes = {b: size(self.problem, b) for b in self.config.blocks}
        blocks, full = tuple(sizes), tuple(b for b, n in sizes.items() if self.config.is_full(n))
        vectors = [vectors_table(blocks)] if self.config.eigenvectors else []
        named = {"block": list(blocks), "other_block": list(blocks)}
        named |= {"pair": [joint(pair) for pair in self.problem.pairs], "part": list(self.problem.parts)}
        rows = {f"param_row_{b}": range(n) for b, n in sizes.items()}
        scales = {**named, **ENDS, "rank": range(self.config.k), "density_point": range(density.POINTS), **rows}
        return [losses_in(ROOT, self.config), spectrum_table(full), density_table(blocks), *vectors], scales

    def run(
        self,
        parameters: Arrays,
        training: Training,
        known: Rows | None = None,
        again: Collection[str] = (),
        retrack: bool = False,
    ) -> Rows:
        """Measure every block at one checkpoint.

        parameters: what `RunReader.checkpoint` returns, the buffers of a problem that has some among them.
        known: rows of an earlier analysis of this checkpoint, kept except for blocks that are NaN there and for
        quantities of several blocks. again: known blocks whose eigenvectors are computed again, to track them to the
        next step; retrack: replace their tracking, too.
        """
        with self._threads():
            return self._run(parameters, training, known, again, retrack)

    def _run(
        self, parameters: Arrays, training: Training, known: Rows | None, again: Collection[str], retrack: bool
    ) -> Rows:
        at = Checkpoint(self.problem, self.config, parameters, training, self.vectors)
        blocks, stored = self.config.blocks, known or {"/": {}, "spectrum": {}, "density": {}, "eigenvectors": {}}
        at.rows, spectra = self._stored(known), dict(stored["spectrum"])
        kept, self.vectors = set(at.rows), {}
        for block in blocks:
            if block in kept and block not in again:
                continue
            self.progress(block, False)
            if block not in kept:
                at.rows[block] = self._block(at, block)
                if at.is_full(block):
                    spectra[block] = at.eigen(block).ritz
            elif retrack:
                at.rows[block] |= tracking.compute(at, block)
            self.vectors[block] = at.eigen(block).vectors
            self.progress(block, True)
        root: Row = {name: np.array([at.rows[b][name] for b in blocks]) for name in at.rows[blocks[0]]}
        for quantity in QUANTITIES:
            root |= self._of_point(at, quantity, stored["/"])
            root |= self._of_pairs(at, quantity, kept, stored["/"])
        densities, distances = density.compute(at, spectra, kept, stored)
        rows = {"/": root | distances, "spectrum": spectra, "density": densities}
        if self.config.eigenvectors:
            found = {b: vectors.mT.cpu().numpy() for b, vectors in self.vectors.items() if b not in kept}
            made = {b: pad(vectors, self.config.k) for b, vectors in found.items()}
            rows["eigenvectors"] = {b: stored["eigenvectors"][b] for b in kept} | made
        return rows

    def follow(self, parameters: Arrays, blocks: Collection[str]) -> None:
        """Compute the eigenvectors of some blocks, from which the next checkpoint is tracked."""
        with self._threads():
            at = Checkpoint(self.problem, self.config, parameters, before=self.vectors)
            self.vectors = {}
            for block in blocks:
                self.progress(block, False)
                self.vectors[block] = at.eigen(block).vectors
                self.progress(block, True)

    def tracked(
        self, rows: Rows | None, vectors: dict[str, Tensor], known: Rows | None, retrack: bool = False
    ) -> Rows | None:
        """What `run` returns, from its rows and eigenvectors measured apart from the checkpoint before."""
        kept, before, self.vectors = self._stored(known), self.vectors, vectors
        if rows is not None:
            for i, block in enumerate(self.config.blocks):
                if block in vectors and (retrack or block not in kept):
                    with self._threads():
                        found = tracking.tracked(before.get(block), vectors[block], self.config.k)
                    for name, value in found.items():
                        rows["/"][name][i] = value
        return rows

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        """One thread for dense blocks, whose results are reproduced bit for bit."""
        sizes = (size(self.problem, block) for block in self.config.blocks)
        return one_thread() if all(map(self.config.is_dense, sizes)) else contextlib.nullcontext()

    def _stored(self, known: Rows | None) -> dict[str, Row]:
        """The rows of blocks measured earlier."""
        if not known:
            return {}
        root, fields = known["/"], [f for q in QUANTITIES if q.scope == "block" for f in q.fields]
        spent = {name: root[name] for name in ("num_products", "seconds")}
        columns = spent | {f.name: root[f.name] if f.name in root else self._missing(f) for f in fields}
        is_known = ~np.isnan(root["operator_norm"])
        return {b: {n: c[i] for n, c in columns.items()} for i, b in enumerate(self.config.blocks) if is_known[i]}

    def _missing(self, field: Field) -> NDArray[Any]:
        """A dataset's row of missing values."""
        _, scales = self.layout()
        # Of codes, the first stands for nothing.
        nothing = field.attrs["flag_values"][0] if "flag_values" in field.attrs else UNKNOWN  # type: ignore[index]
        return np.full([len(scales[dim]) for dim in field.dims], np.nan if field.dtype == "f8" else nothing)

    def _block(self, at: Checkpoint, block: str) -> Row:
        """All quantities of one block, and their cost."""
        started = time.monotonic()
        row: Row = {}
        for quantity in QUANTITIES:
            if quantity.scope == "block":
                row |= quantity.compute(at, block)
        return row | {"num_products": at.products[block], "seconds": time.monotonic() - started}

    def _of_pairs(self, at: Checkpoint, quantity: Quantity, kept: Collection[str], old: Row) -> Row:
        """A quantity of all pairs; missing where the joint block is not analysed."""
        if quantity.scope != "pair":
            return {}
        row: Row = {field.name: self._missing(field) for field in quantity.fields}
        for i, pair in enumerate(self.problem.pairs):
            if joint(pair) not in at.rows:
                continue
            is_kept = joint(pair) in kept and not (quantity.reads_blocks and {*pair} & (at.rows.keys() - set(kept)))
            found = {n: old[n][i] for n in quantity.names if n in old} if is_kept else quantity.compute(at, pair)
            for name, value in found.items():
                row[name][i] = value
        return row

    def _of_point(self, at: Checkpoint, quantity: Quantity, old: Row) -> Row:
        """A quantity of the whole checkpoint, from an earlier row unless it depends on the blocks."""
        if quantity.scope != "point":
            return {}
        if old and not quantity.reads_blocks:
            return {f.name: old[f.name] if f.name in old else self._missing(f) for f in quantity.fields}
        found: Row = quantity.compute(at)
        return found
