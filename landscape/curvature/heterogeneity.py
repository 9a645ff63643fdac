"""Spectral densities of the blocks of one operator, and how far they are apart: block heterogeneity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from landscape.curvature.checks import require_choice, require_positive, require_seed
from landscape.curvature.density import Quadrature, Smoothed, density_grid, density_of, distances, quadrature
from landscape.curvature.eigsh import Method, is_dense
from landscape.curvature.operators import LinearOperator, require_symmetric
from landscape.curvature.vectors import Array, require_range, to_array
from landscape.errors import ArgumentError, kind_of
from landscape.results import Result, curves, heat_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Blocks = Mapping[str, Sequence[str]]
POINTS = 512
_DECADES = 1e-4
"""Densities below this share of the highest are not drawn."""


@dataclasses.dataclass(frozen=True, repr=False)
class BlockDensities(Result):
    """The spectral density of each block, all on one grid, and the Jensen-Shannon distances between them.

    Attributes:
        block: names.
        grid: (point,); spans the spectrum of the largest block.
        density, standard_error: (block, point); errors of 0 where every eigenvalue is known.
        jensen_shannon: (block, other_block), from 0, for equal densities, to 1.
        jensen_shannon_error: (block, other_block), half the width of a 95 % interval.
        width: standard deviation of the Gaussian that the densities are smoothed by.
        num_products: Hessian-vector products.
    """

    axes = {
        "density": ("block", "point"),
        "standard_error": ("block", "point"),
        "grid": ("point",),
        "jensen_shannon": ("block", "other_block"),
        "jensen_shannon_error": ("block", "other_block"),
        "block": ("block",),
    }

    block: list[str]
    grid: Array
    density: Array
    standard_error: Array
    jensen_shannon: Array
    jensen_shannon_error: Array
    width: float
    num_products: int

    def _labels(self) -> Mapping[str, Sequence[str]]:
        return {"other_block": self.block}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the distances as a heat map; by default in a figure of their own, beside the densities."""
        from matplotlib import pyplot

        distances = self.to_xarray()["jensen_shannon"].to_pandas()
        if ax is not None:
            return heat_map(distances, ax)
        side = 3 + 0.25 * len(self.block)
        _, (left, right) = pyplot.subplots(1, 2, figsize=(2.4 * side, side), layout="constrained")
        data, peak = self.to_dataframe(), float(self.density.max())
        # Unknown to matplotlib, not left out: a line would join what is on either side.
        data["density"] = data["density"].where(data["density"] > _DECADES * peak)
        curves(data, left, "grid", "density", "block", marker="")
        left.set(yscale="log", ylim=(_DECADES * peak, 3 * peak), xlabel="eigenvalue", ylabel="spectral density")
        return heat_map(distances, right)


def block_densities(
    op: LinearOperator,
    blocks: Blocks | Literal["parameter", "layer"] = "parameter",
    bandwidth: float = 1e-2,
    probes: int = 8,
    steps: int = 80,
    method: Method = "auto",
    seed: int = 0,
) -> BlockDensities:
    """How different the spectra of the blocks are, as "Why Transformers Need Adam" (arXiv 2402.16788) measures it.

    Args:
        op: a symmetric operator with named rows, such as a HessianOperator.
        blocks: lists of parameters by the name of a block; or one block for each "parameter" or "layer", which holds
            all parameters of a module.
        bandwidth: standard deviation of the smoothing, relative to the largest |eigenvalue| of all blocks.
        probes: Gaussian vectors of each block's quadrature.
        steps: products for each probe.
        method: "dense", from every eigenvalue; "lanczos"; or "auto", by which blocks of up to 8000 rows are dense.
        seed: of the probes.

    Returns:
        The densities and their distances, with errors.

    Raises:
        ArgumentError: for an operator without named rows, unknown names and invalid numbers.
    """
    require_symmetric(op)
    require_positive("bandwidth", bandwidth)
    require_seed(seed)
    if not op.rows:
        hint = "give a HessianOperator, or from_curvlinops(operator, params)"
        raise ArgumentError(f"{kind_of(op)} has no named rows to make blocks of", hint)
    chosen = _chosen(blocks, op.rows)
    spectra = [_spectrum(op.block(names), probes, steps, method, seed + i) for i, names in enumerate(chosen.values())]
    norm = max(float(np.abs(x.nodes if isinstance(x, Quadrature) else x).max()) for x in spectra)
    grid, width = density_grid(norm, bandwidth, POINTS)
    smoothed = [
        x.density(grid, width) if isinstance(x, Quadrature) else Smoothed.known(density_of(x, grid, width))
        for x in spectra
    ]
    products = sum(x.num_products if isinstance(x, Quadrature) else len(x) for x in spectra)
    means, errors = (np.stack([getattr(x, name) for x in smoothed]) for name in ("mean", "standard_error"))
    return BlockDensities(list(chosen), grid, means, errors, *distances(smoothed), width, products)


def _chosen(blocks: Blocks | str, rows: Sequence[str]) -> Blocks:
    if isinstance(blocks, str):
        require_choice("blocks", blocks, ("parameter", "layer"))
        layers: dict[str, list[str]] = {}
        for name in rows:
            layers.setdefault(name if blocks == "parameter" else name.rpartition(".")[0] or name, []).append(name)
        return layers
    if not isinstance(blocks, Mapping) or not blocks:
        what = "empty" if isinstance(blocks, Mapping) else kind_of(blocks)
        raise ArgumentError(f"blocks are {what}", 'give lists of names by block: {"first": ["0.weight", "0.bias"]}')
    return blocks


def _spectrum(op: LinearOperator, probes: int, steps: int, method: Method, seed: int) -> Array | Quadrature:
    """Every eigenvalue of a block, or a quadrature."""
    if not is_dense(method, op.shape[0]):
        return quadrature(op, probes, steps, seed)
    values = to_array(torch.linalg.eigvalsh(op.symmetric().double().matrix))
    require_range(float(np.abs(values).max()), op.dtype)
    return values
