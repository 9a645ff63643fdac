"""Reader of Hessian files: one row per step, in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from landscape.files import schema
from landscape.files.files import as_path, open_file
from landscape.files.runs import RunReader
from landscape.files.table import Row, listed, no_step
from landscape.results import Described


class HessianReader(Described):
    """A Hessian file's committed rows, in memory."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for files that are missing, broken, foreign or too new."""
        self.path = as_path(path)
        # The working folder may be another one when it is opened again.
        self._place = self.path.absolute()
        with contextlib.closing(open_file(self.path, schema.HESSIAN)) as file:
            self.attrs, self.config = file.attrs, file.config
            self.layout, self.scales = file.layout, file.scales
            self.blocks, self.pairs, self.parts = (
                [str(name) for name in file.scales.get(axis, ())] for axis in ("block", "pair", "part")
            )
            # Eigenvectors take too much memory to be held.
            served = {group: table for group, table in file.by_step.items() if group != "eigenvectors"}
            root = served["/"]
            steps = set(root.rows).intersection(*(table.rows for table in served.values()))
            self.steps = sorted(steps)
            self.damage = listed(sorted({*root.damaged} | {*root.rows} - steps))
            """Rows that fail their checksums, by step; empty if none."""
            rows = {group: {s: table.row(s) or {} for s in self.steps} for group, table in served.items()}
            self._rows: dict[str, dict[int, dict[str, Any]]] = Row(self.path, rows)
            slots = [found for table in file.tables.values() if table.table.newest and (found := table.newest())]
            self.search: dict[str, Any] = slots[0] if slots else {}
            """The state of the search for a critical point; empty without one."""

    def facts(self) -> Iterator[tuple[str, object]]:
        """Path, status, analysed steps, blocks and pairs."""
        yield from {"path": self.path, "status": self.attrs["status"], "steps": np.array(self.steps)}.items()
        yield from {"blocks": "; ".join(self.blocks), "pairs": "; ".join(self.pairs)}.items()

    @property
    def is_refined(self) -> bool:
        """Whether the file holds a critical point instead of checkpoints."""
        return "critical_point" in self._rows

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis. Raises StepError, as all methods of a step but `rows`."""
        return self._at("/", step)

    def rows(self, step: int) -> dict[str, dict[str, Any]]:
        """The rows of all groups at one step, including eigenvectors."""
        with contextlib.closing(open_file(self._place, schema.HESSIAN)) as file:
            return {group: table.row(step) or {} for group, table in file.by_step.items()}

    def measured(self, step: int) -> list[str]:
        """The blocks measured at a step; fewer than all while an analysis adds blocks."""
        norms = self.row(step)["operator_norm"]
        return [block for block, norm in zip(self.blocks, norms, strict=True) if not np.isnan(norm)]

    def previous(self, step: int) -> int:
        """The step from which a step was tracked; -1: none."""
        row = self.row(step)
        return int(row.get("previous_step", max((s for s in self.steps if s < step), default=-1)))

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._at("spectrum", step)

    def densities(self, step: int) -> dict[str, Any]:
        """The spectral densities at one step, with their grid `eigenvalue`, `width` and errors."""
        return self._at("density", step)

    def critical_point(self, step: int) -> dict[str, Any]:
        """The refined point of a step and how it was found; empty for a plain checkpoint."""
        return self._at("critical_point", step) if self.is_refined else {}

    def _at(self, group: str, step: int) -> dict[str, Any]:
        rows = self._rows[group]
        if step not in rows:
            raise no_step(self.path, "", step, self.steps)
        return rows[step]

    def mismatch(self, run: RunReader) -> str:
        """Why this file does not belong to a run file; empty if it does."""
        records = {step: int(self.row(step).get("checkpoint_crc32", -1)) for step in self.steps}
        return run.disowns(self.attrs, records)

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())
