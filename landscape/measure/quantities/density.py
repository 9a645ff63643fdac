"""Smoothed spectral densities of the blocks on one grid, and the distances between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Checkpoint, Row

if TYPE_CHECKING:
    from landscape.curvature.density import Smoothed

POINTS = 512
FINEST = 0.004
"""Bandwidth at which the points are a standard deviation apart, so that sums over them are integrals to 1e-8."""
FIELDS = (
    Field(
        "jensen_shannon",
        ("block", "other_block"),
        "f8",
        "Jensen-Shannon distance of the blocks' spectral densities",
        formula="base 2, 0 to 1, of /density; NaN where a density is missing",
    ),
    Field(
        "jensen_shannon_error",
        ("block", "other_block"),
        "f8",
        "half the width of a 95 % interval about the Jensen-Shannon distance; 0 where both spectra are known",
    ),
)


def compute(
    at: Checkpoint, spectra: Mapping[str, Any], kept: Collection[str], old: Mapping[str, Row]
) -> tuple[Row, Row]:
    """A row of the table of densities, and the distances of the blocks.

    spectra: every eigenvalue of the dense blocks; kept: blocks whose densities are in `old`. The grid follows the
    largest block: if that changes, all densities are computed again.
    """
    from landscape.curvature.density import Smoothed, density_grid, density_of, jensen_shannon, jensen_shannon_error

    blocks, before = at.config.blocks, old["density"]
    norm = max(row["operator_norm"] for row in at.rows.values())
    grid, width = density_grid(norm, at.config.bandwidth, POINTS)
    same = bool(before) and np.array_equal(grid, before["eigenvalue"]) and width == before["width"]
    held = set(kept) if same else set()
    new: dict[str, Smoothed] = {}
    if held != set(blocks):
        for b in blocks:
            known = Smoothed.known(density_of(spectra[b], grid, width)) if b in spectra else None
            new[b] = known or at.rule(b).density(grid, width)
    row: Row = {"eigenvalue": grid, "width": width}
    for b in blocks:
        row[b], row[f"{b}_error"] = (
            (before[b], before[f"{b}_error"]) if b in held else (new[b].mean, new[b].standard_error)
        )
    distance, error = (np.zeros((len(blocks), len(blocks))) for _ in range(2))
    for i in np.ndindex(*distance.shape):
        a, b = (blocks[j] for j in i)
        if {a, b} <= held:
            distance[i], error[i] = (old["/"][name][i] for name in ("jensen_shannon", "jensen_shannon_error"))
        else:
            distance[i] = jensen_shannon(new[a].mean, new[b].mean)
            error[i] = jensen_shannon_error(new[a], new[b])
    return row, {"jensen_shannon": distance, "jensen_shannon_error": error}
