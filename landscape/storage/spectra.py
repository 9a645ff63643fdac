"""The Hessian file: one row a step, appended as the analysis goes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.config import PAIRS
from landscape.storage import schema
from landscape.storage.files import open_file
from landscape.storage.rewrite import rewrite, table_groups
from landscape.storage.table import committed_rows, create_table, read_row, table_size
from landscape.storage.writing import Disk, TableWriter, create_hdf5, temporary_file

Arrays = dict[str, np.ndarray[Any, Any]]
PARTS = ["E", "W", "V", "bias"]
SIGNS = ["negative", "zero", "positive"]
ENDS = ["lowest", "highest"]


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
        with h5py.File(path, "r", locking=False) as file:
            self._tables = {group: TableWriter(file[group], row, self) for group, row in table_groups(file).items()}

    @classmethod
    def create(
        cls, path: Path, attrs: Mapping[str, Any], steps: int, k: int, layout: Layout, fsync: bool = False
    ) -> SpectrumWriter:
        """Allocate a file for `steps` steps and k eigenvalues at each end."""
        scales: dict[str, Any] = {
            "block": list(layout.sizes),
            "other_block": list(layout.sizes),
            "end": ENDS,
            "rank": np.arange(k),
            "sign": SIGNS,
            "part": PARTS,
            "pair": list(PAIRS),
            "density_point": np.arange(layout.density_points),
            **{f"param_row_{b}": np.arange(n) for b, n in layout.sizes.items()},
            **{axis: np.arange(n) for axis, n in layout.axes.items()},
        }
        tables = [schema.HESSIAN_ROOT, schema.spectrum_table(layout.full), schema.density_table(tuple(layout.sizes))]
        if layout.eigenvectors:
            tables.append(schema.vectors_table(tuple(layout.sizes)))
        if layout.parameters:
            tables.append(schema.CRITICAL.present(layout.parameters))
        size = sum(table_size(table, steps, scales) for table in tables)
        with temporary_file(path, size) as temporary, create_hdf5(temporary) as file:
            file.attrs.update({"schema": schema.HESSIAN, "schema_version": schema.VERSION, **attrs})
            for table in tables:
                create_table(file, table, steps, scales)
        return cls(path, fsync)

    @classmethod
    def extend(cls, path: Path, steps: int, fsync: bool = False) -> SpectrumWriter:
        """Go on with a file, which gets room for `steps` steps if it has less."""
        with h5py.File(path, "r", locking=False) as file:
            room = len(file["step"])
            groups = table_groups(file)
        if room < steps:
            rewrite(path, {"status": "running"}, dict.fromkeys(groups, steps))
        return cls(path, fsync)

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return self._tables["/"].labels

    def append(self, step: int, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Commit one step: a row for each group, "/" the last."""
        for group, table in self._tables.items():
            if group != "/":
                table.write(len(self.steps), step, rows[group])
        self._tables["/"].append(step, rows["/"])

    def finish(self) -> None:
        """Trim the file to its committed rows and mark it complete."""
        self.close()
        rewrite(self.path, {"status": "complete"})


class SpectrumReader:
    """A Hessian file's committed rows, in memory."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for what is missing, broken, of another schema or too new."""
        with open_file(Path(path), schema.HESSIAN) as file:
            self.attrs: dict[str, Any] = dict(file.attrs)
            self.config: dict[str, Any] = json.loads(self.attrs["config"])
            self.blocks = _labels(file, "block")
            self.pairs = _labels(file, "pair")
            rows = committed_rows(file, "step")
            self.steps = [int(file["step"][i]) for i in rows]
            self._rows = [read_row(file, "step", i) or {} for i in rows]
            self._spectra, self._densities, self._critical = (
                [(read_row(file[group], "step", i) if group in file else None) or {} for i in rows]
                for group in ("spectrum", "density", "critical_point")
            )

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis."""
        return self._rows[self.steps.index(step)]

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._spectra[self.steps.index(step)]

    def densities(self, step: int) -> dict[str, Any]:
        """The spectral densities at one step, with their grid `eigenvalue`, `width` and errors."""
        return self._densities[self.steps.index(step)]

    def critical_point(self, step: int) -> dict[str, Any]:
        """The refined point of a step and how it was found; empty for a plain checkpoint."""
        return self._critical[self.steps.index(step)]

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())


def _labels(file: h5py.File, name: str) -> list[str]:
    return [x.decode() for x in file[name][()]]
