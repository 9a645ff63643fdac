"""The Hessian file: one row a step, appended as the analysis goes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from landscape.storage import schema
from landscape.storage.contents import hessian_scales
from landscape.storage.files import open_file
from landscape.storage.making import new_file
from landscape.storage.rewrite import rewrite
from landscape.storage.table import listed
from landscape.storage.writing import Disk, TableWriter

GROUPS = ("spectrum", "density", "eigenvectors", "critical_point", "/")
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a Hessian file has room for: parameters by block, blocks with full spectra, points of a density."""

    sizes: Mapping[str, int]
    full: tuple[str, ...]
    density_points: int
    eigenvectors: bool
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Lengths of the parameters' axes, where a refined point is stored."""
    parameters: tuple[str, ...] = ()


class SpectrumWriter(Disk):
    """Appends analysed steps to a Hessian file; each survives the process once `append` returns."""

    def __init__(self, path: Path, fsync: bool = False) -> None:
        """Go on with a Hessian file that `create` made."""
        super().__init__(path, fsync)
        with contextlib.closing(open_file(path, schema.HESSIAN)) as file:
            self._tables = {group: TableWriter(file.tables[group], self) for group in GROUPS if group in file.tables}

    @classmethod
    def create(
        cls, path: Path, attrs: Mapping[str, Any], steps: int, k: int, layout: Layout, fsync: bool = False
    ) -> SpectrumWriter:
        """Allocate a file for `steps` steps and k eigenvalues at each end.

        Raises ConfigError and FileError for a file that no reader would take, or the disk has no room for.
        """
        scales = {
            **hessian_scales(layout.sizes, k),
            "density_point": range(layout.density_points),
            **{axis: range(n) for axis, n in layout.axes.items()},
        }
        tables = [schema.HESSIAN_ROOT, schema.spectrum_table(layout.full), schema.density_table(tuple(layout.sizes))]
        if layout.eigenvectors:
            tables.append(schema.vectors_table(tuple(layout.sizes)))
        if layout.parameters:
            tables.append(schema.CRITICAL.present(layout.parameters))
        with new_file(path, schema.HESSIAN, attrs, [(table, steps) for table in tables], scales):
            pass
        return cls(path, fsync)

    @classmethod
    def extend(cls, path: Path, more: int, fsync: bool = False) -> SpectrumWriter:
        """Resume a file, which gets room for `more` steps beyond those it holds.

        It is laid out anew: rows can only be written to a copy by another tool where they are not packed.
        """
        rewrite(path, {"status": "running"}, dict.fromkeys(GROUPS, more))
        return cls(path, fsync)

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return self._tables["/"].labels

    def append(self, step: int, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Commit one step: a row for each group, "/" the last."""
        for group, table in self._tables.items():
            if group != "/":
                # Over one that a killed analysis left without its row in the root.
                table.write(len(self.steps), step, rows[group])
        self._tables["/"].append(step, rows["/"])

    def finish(self) -> None:
        """Trim the file to its committed rows and mark it complete."""
        self.close()
        rewrite(self.path, {"status": "complete"})


class SpectrumReader:
    """A Hessian file's committed rows, in memory."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for what is missing, broken, of another schema, too new or not as `landscape` writes it."""
        with contextlib.closing(open_file(Path(path), schema.HESSIAN)) as file:
            self.attrs, self.config = file.attrs, file.config
            self.blocks, self.pairs = file.scales["block"], file.scales["pair"]
            served = {group: table for group, table in file.tables.items() if group != "eigenvectors"}
            root, *beside = served.values()
            steps = {step for step in root.rows if all(step in table.rows for table in beside)}
            self.steps = sorted(steps)
            self.damage = listed(sorted({*root.damaged, *root.rows} - steps))
            """The rows that fail their checksums, by the step that they name; empty if none does."""
            self._rows = {group: {s: table.row(s) or {} for s in self.steps} for group, table in served.items()}

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis."""
        return self._rows["/"][step]

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._rows["spectrum"][step]

    def densities(self, step: int) -> dict[str, Any]:
        """The spectral densities at one step, with their grid `eigenvalue`, `width` and errors."""
        return self._rows["density"][step]

    def critical_point(self, step: int) -> dict[str, Any]:
        """The refined point of a step and how it was found; empty for a plain checkpoint."""
        return self._rows["critical_point"][step] if "critical_point" in self._rows else {}

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())
