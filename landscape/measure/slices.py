"""Slices of a checkpoint's loss along its eigenvectors, and other planes: `landscape slice`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from landscape import models
from landscape.config import AnalysisConfig, SliceConfig
from landscape.curvature.eigsh import eigsh
from landscape.curvature.objective import differentiable
from landscape.curvature.slices import slice_lines, slice_plane
from landscape.errors import NumericsError
from landscape.files.files import as_path
from landscape.files.runs import RunReader
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measurement import Measurement, Point
from landscape.measure.planes import LossPlane, plane
from landscape.models.blocks import in_order
from landscape.models.problem import Problem, joint
from landscape.progress import Bar
from landscape.results import Curve

Array = NDArray[np.float64]
AGREEMENT = 1e-6
"""Largest difference, relative to |H|, between the curvature of a slice and its eigenvalue."""


@dataclasses.dataclass(frozen=True, repr=False)
class Slices(Curve):
    """The objective along eigenvectors.

    t (point,); loss, eigenvalues, slope by direction, the lowest first and then the highest;
    names (direction,); plane (low_point, high_point): rows along the lowest eigenvector, columns along the highest.
    """

    axes = {
        "loss": ("direction", "point"),
        "t": ("point",),
        "slope": ("direction",),
        "eigenvalues": ("direction",),
        "names": ("direction",),
        "plane_t": ("plane_point",),
        "plane": ("low_point", "high_point"),
    }
    x, y, by = "t", "loss", "names"

    t: Array
    loss: Array
    value: float
    slope: Array
    eigenvalues: Array
    names: tuple[str, ...]
    plane_t: Array
    plane: Array
    run: str
    step: int
    block: str
    objective: str
    agreement: float
    """Largest difference between a slice's curvature at 0 and its eigenvalue, relative to |H|."""
    unit: str = ""
    """Unit of the objective, where it is known: that of a problem of one's own may be anything."""
    problem_checksum: str = ""
    """Of a problem of one's own, checksums of its data, constants and loss (JSON)."""

    def summary(self) -> list[str]:
        """A line for each direction."""
        numbers = zip(self.names, self.eigenvalues, self.slope, strict=True)
        return [f"{name}: lambda {value:.6g}, slope {slope:.3g}" for name, value, slope in numbers]


@differentiable
def slice(  # noqa: A001
    run: Path | str, step: int, config: SliceConfig, analysis: AnalysisConfig, quiet: bool = True
) -> Slices | LossPlane:
    """The objective along unit eigenvectors of a block and on the plane of the lowest and the highest, or on another.

    Args:
        run: the run file.
        step: a stored step.
        config: the plane, the block, how many eigenvectors, how far and how many points.
        analysis: problem, objective, method and device.
        quiet: show no progress bar.

    Returns:
        The values of the objective, with eigenvalues and residuals; of a random or PCA plane, with its directions'
        lengths or the path.

    Raises:
        NumericsError: if the second derivative of a slice at 0 differs from its eigenvalue by more than 1e-6 |H|.
    """
    if config.plane != "eigen":
        return plane(as_path(run), step, config, analysis, quiet)
    with Bar(3, "part", quiet) as bar:
        return _slices(as_path(run), step, config, analysis, bar)


def _slices(run: Path, step: int, config: SliceConfig, analysis: AnalysisConfig, bar: Bar) -> Slices:
    bar.set_postfix_str("eigenvectors")
    with RunReader(run) as reader:
        problem, source = models.opened(reader, analysis)
        (block,) = in_order([config.block or _default_block(problem)], problem.blocks)
        what = Measurement.of(problem, dataclasses.replace(analysis, blocks=(block,)))
        (chosen,) = what.blocks
        at = Checkpoint(what, Point(reader.checkpoint(step)))
    dense = what.is_full(chosen)
    op = at.matrix(chosen) if dense else at.restricted(at.hessian, chosen)
    eigen = eigsh(
        op,
        config.k,
        method="dense" if dense else "lanczos",
        rtol=AGREEMENT,
        seed=analysis.seed,
        max_hvps=analysis.max_hvps,
    )
    if not eigen.converged.all():
        raise NumericsError(
            f"block {block}: {int((~eigen.converged).sum())} of {eigen.converged.size} eigenvectors have not converged",
            "raise --max-hvps, or take fewer with --k",
        )
    _next(bar, "lines")
    directions = chosen.within(torch.cat([eigen.vectors[0], eigen.vectors[1].flip(1)], dim=1))
    eigenvalues = np.concatenate([eigen.values[0], eigen.values[1][::-1]])
    value = at.objective.value(at.params)
    # A loss of one's own may be negative or 0.
    radius = config.radius or ((2 * abs(value) / eigen.operator_norm) ** 0.5 if value and eigen.operator_norm else 1.0)
    t, plane_t = (np.linspace(-radius, radius, n) for n in (config.points, config.plane_points))
    names = chosen.parameters
    lines = slice_lines(at.objective, at.params, names, directions, t)
    worst = float(np.abs(lines.curvature - eigenvalues).max())
    if worst > AGREEMENT * eigen.operator_norm:
        raise NumericsError(
            f"the curvature of a slice differs from its eigenvalue by {worst / eigen.operator_norm:.1e} of |H|",
            "this is a defect of landscape: please report it with the run file",
        )
    _next(bar, "plane")
    k = eigen.values.shape[1]
    slices = Slices(
        t=t,
        loss=lines.loss,
        value=value,
        slope=lines.slope,
        eigenvalues=eigenvalues,
        names=(*(f"lowest {i + 1}" for i in range(k)), *(f"highest {k - i}" for i in range(k))),
        plane_t=plane_t,
        plane=slice_plane(at.objective, at.params, names, directions[:, [-1, 0]], plane_t),
        run=run.name,
        step=step,
        block=block,
        objective=analysis.objective,
        agreement=worst / (eigen.operator_norm or 1),
        unit="" if analysis.problem else "nat",
        problem_checksum=source.checksum if source else "",
    )
    if not all(np.isfinite(values).all() for values in (slices.loss, slices.plane)):
        raise NumericsError(f"the objective overflows within {radius:.3g} of the checkpoint", "lower --radius")
    bar.update()
    return slices


def _next(bar: Bar, part: str) -> None:
    bar.set_postfix_str(part, refresh=False)
    bar.update()
    bar.refresh()


def _default_block(problem: Problem) -> str:
    """The first pair if the model has it, else all parameters."""
    first = joint(problem.pairs[0]) if problem.pairs else ""
    return first if first in problem.blocks else "all"
