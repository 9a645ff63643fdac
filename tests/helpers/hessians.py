"""Hessian files by step, as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import landscape
from landscape.measure import critical, hessian
from landscape.measure.tables import rows


class HessianReader:
    """A `landscape.File` in memory; unknown counts of its rows are -1; iterations: of its search, -1: none."""

    def __init__(self, path: Path | str) -> None:
        with landscape.open(path) as file:
            self.path, self.attrs, self.config = file.path, file.attrs, file.config
            self.steps, self.blocks, self.pairs = file.steps, file.blocks, file.pairs
            self.groups, self.datasets = file.groups, {name: data.load() for name, data in file.datasets.items()}
            self.iterations = int(file.to_xarray("resume").get("iterations", -1)) if "resume" in file.groups else -1
        self.parts = self.datasets["/"]["part"].values.tolist()
        self._rows = {name: rows(self, name) for name, data in self.datasets.items() if "step" in data.dims}  # type: ignore[arg-type]

    def row(self, step: int) -> dict[str, Any]:
        return self._rows["/"][step]

    def rows(self, step: int) -> dict[str, dict[str, Any]]:
        return {group: at[step] for group, at in self._rows.items()}

    def spectra(self, step: int) -> dict[str, Any]:
        return self._rows.get("spectrum", {}).get(step, {})

    def densities(self, step: int) -> dict[str, Any]:
        return self._rows["density"][step] if "density" in self._rows else {}

    def critical_point(self, step: int) -> dict[str, Any]:
        return self._rows["critical_point"][step]

    def measured(self, step: int) -> list[str]:
        return [b for b, x in zip(self.blocks, self.row(step)["operator_norm"], strict=True) if not np.isnan(x)]

    def converged(self, step: int, block: int | None = None) -> bool:
        row, at = self.row(step), slice(None) if block is None else block
        return bool(row["converged"][at][~np.isnan(row["eigenvalues"][at])].all())


def analyse(*args: Any, **options: Any) -> HessianReader:
    """`analyse`, and what its file holds."""
    with hessian.hessian(*args, **options) as file:
        return HessianReader(file.path)


def refine(*args: Any, **options: Any) -> HessianReader:
    """`refine`, and what its file holds."""
    with critical.critical(*args, **options) as file:
        return HessianReader(file.path)
