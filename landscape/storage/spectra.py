"""The Hessian file: one row a step, appended as the analysis goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from landscape.config import PAIRS
from landscape.storage import schema
from landscape.storage.files import open_file, open_for_writing, temporary_file
from landscape.storage.table import TableWriter, committed_rows, create_table, read_row

Arrays = dict[str, np.ndarray[Any, Any]]
PARTS = ["E", "W", "V", "bias"]
SIGNS = ["negative", "zero", "positive"]
ENDS = ["lowest", "highest"]


class SpectrumWriter:
    """Appends analysed steps to a Hessian file; each survives the process once `append` returns."""

    def __init__(self, path: Path) -> None:
        """Go on with a Hessian file that `create` made."""
        self.path = path
        self._file = open_for_writing(path)
        self._spectra = TableWriter(self._file["spectrum"], "step")
        self._root = TableWriter(self._file, "step")

    @classmethod
    def create(
        cls, path: Path, attrs: Mapping[str, Any], steps: int, blocks: list[str], k: int, full: dict[str, int]
    ) -> SpectrumWriter:
        """Allocate a file for `steps` steps; `full` gives the size of each block whose whole spectrum is kept."""
        scales: dict[str, Any] = {
            "block": blocks,
            "end": ENDS,
            "rank": np.arange(k),
            "sign": SIGNS,
            "part": PARTS,
            "pair": list(PAIRS),
            **{f"param_row_{b}": np.arange(n) for b, n in full.items()},
        }
        with temporary_file(path) as file:
            file.attrs.update({"schema": schema.HESSIAN, "schema_version": schema.VERSION, **attrs})
            create_table(file, schema.HESSIAN_ROOT, steps, scales)
            create_table(file, schema.spectrum_table(tuple(full)), steps, scales)
        return cls(path)

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return [int(s) for s in self._file["step"][: self._root.size]]

    def append(self, step: int, values: Mapping[str, Any], spectra: Mapping[str, Any]) -> None:
        """Commit one step."""
        self._spectra.write(self._root.size, step, spectra)
        self._root.append(step, values)

    def finish(self) -> None:
        """Mark the file complete."""
        self._file.attrs["status"] = "complete"
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def __enter__(self) -> SpectrumWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
            spectra = [read_row(file["spectrum"], "step", i) or {} for i in rows]
            self._spectra = spectra

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis."""
        return self._rows[self.steps.index(step)]

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._spectra[self.steps.index(step)]

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())


def _labels(file: h5py.File, name: str) -> list[str]:
    return [x.decode() for x in file[name][()]]
