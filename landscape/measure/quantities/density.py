"""Smoothed spectral densities of the blocks on one grid, and the distances between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Checkpoint, Row

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


def compute(at: Checkpoint, spectra: Mapping[str, Any]) -> tuple[Row, Row]:
    """A row of the table of densities, and the distances of the blocks.

    spectra: every eigenvalue of the dense blocks, by name. The grid follows the largest block.
    """
    from landscape.curvature.density import Smoothed, density_grid, density_of, distances

    blocks = at.what.blocks
    norm = max(row["operator_norm"] for row in at.rows.values())
    grid, width = density_grid(norm, at.config.bandwidth, POINTS)
    smooth = [
        Smoothed.known(density_of(spectra[block.name], grid, width))
        if block.name in spectra
        else at.rule(block).density(grid, width)
        for block in blocks
    ]
    row: Row = {"eigenvalue": grid, "width": width}
    for block, density in zip(blocks, smooth, strict=True):
        row |= {block.name: density.mean, f"{block.name}_error": density.standard_error}
    distance, error = distances(smooth)
    return row, {"jensen_shannon": distance, "jensen_shannon_error": error}
