"""The loss on a plane of random directions, or of the path of a training: `landscape slice --plane`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape import models
from landscape.config import AnalysisConfig, SliceConfig
from landscape.curvature.planes import PathPlane, pca_plane, random_plane
from landscape.curvature.slices import slice_lines, slice_plane
from landscape.errors import ConfigError, DoesNotFitError, NumericsError
from landscape.files.runs import RunReader
from landscape.memory import free_bytes
from landscape.models.blocks import Block, choose, in_order
from landscape.models.problem import tensors, with_state
from landscape.progress import Bar
from landscape.results import Surface

Array = NDArray[np.float64]
_MARGIN = 0.15
"""What the plane of a path shows beyond the path on each side, as a share of its range."""


@dataclasses.dataclass(frozen=True, repr=False)
class LossPlane(Surface):
    """The objective on a plane through a checkpoint.

    loss (row, column): at t along the first direction and t_second along the second, in units of `lengths`, their norms
    as vectors of parameters; slope and curvature (direction,): the first and second derivative along each at the
    checkpoint, in the same units. Of the plane of a path: its steps and coordinates (checkpoint,), the share of its
    variance (direction,), and `outside` (checkpoint,) as in `PathPlane`. Of a random one: normalisation and seed.
    """

    axes = {
        "loss": ("row", "column"),
        "t": ("column",),
        "t_second": ("row",),
        "lengths": ("direction",),
        "slope": ("direction",),
        "curvature": ("direction",),
        "share": ("direction",),
        "coordinates": ("checkpoint", "direction"),
        "outside": ("checkpoint",),
        "steps": ("checkpoint",),
    }
    x, y, z, level = "t", "t_second", "loss", "value"

    loss: Array
    t: Array
    t_second: Array
    value: float
    lengths: Array
    slope: Array
    curvature: Array
    run: str
    step: int
    block: str
    objective: str
    steps: tuple[int, ...]
    coordinates: Array
    outside: Array
    share: Array
    normalisation: str
    seed: int | None
    unit: str
    """Unit of the objective, where it is known."""
    problem_checksum: str
    """Of a problem of one's own, checksums of its data, constants and loss (JSON)."""

    def summary(self) -> list[str]:
        """A line for each direction."""
        numbers = zip(("first", "second"), self.curvature, self.slope, strict=True)
        return [f"{name} direction: curvature {value:.6g}, slope {slope:.3g}" for name, value, slope in numbers]


def plane(run: Path, step: int, config: SliceConfig, analysis: AnalysisConfig, quiet: bool) -> LossPlane:
    """The objective on a plane of random directions, or of the stored steps up to `step`.

    Raises ConfigError for an unknown block and a path of fewer than three steps, DoesNotFitError for a path that does
    not fit in memory, NumericsError where the objective overflows.
    """
    with RunReader(run) as reader:
        problem, source = models.opened(reader, analysis)
        (block,) = choose(problem, in_order([config.block or "all"], problem.blocks)).blocks
        stored = reader.checkpoint(step)
        problem = with_state(problem, stored)
        params = tensors(problem, stored)
        path, steps = _path(reader, block, step) if config.plane == "pca" else (None, ())
    objective = problem.objective(problem.decay(analysis.objective))
    names = block.parameters
    if path:
        directions = path.directions
    else:
        moved = {name: params[name] for name in names}
        directions = block.of(random_plane(moved, config.seed, config.normalisation, config.biases))
    directions = block.within(directions).to(problem.device, objective.dtype)
    lengths = directions.norm(dim=0)
    lines = slice_lines(objective, params, names, directions / lengths, np.zeros(1))
    of_length = lengths.double().cpu().numpy()
    t, t_second = (np.linspace(*ends, config.plane_points) for ends in _ranges(config.radius, path))
    with Bar(len(t_second), "row", quiet) as bar:
        rows = []
        for at in t_second:
            rows.append(slice_plane(objective, params, names, directions, t, np.array([at]))[0])
            bar.update()
    loss = np.array(rows)
    if not np.isfinite(loss).all():
        raise NumericsError("the objective overflows on the plane", "lower --radius")
    return LossPlane(
        loss=loss,
        t=t,
        t_second=t_second,
        value=lines.value,
        lengths=of_length,
        slope=lines.slope * of_length,
        curvature=lines.curvature * of_length**2,
        run=run.name,
        step=step,
        block=block.name,
        objective=analysis.objective,
        steps=steps,
        coordinates=np.column_stack([path.first, path.second]) if path else np.empty((0, 2)),
        outside=path.outside if path else np.empty(0),
        share=path.share if path else np.full(2, np.nan),
        normalisation="" if path else config.normalisation,
        seed=None if path else config.seed,
        unit="" if analysis.problem else "nat",
        problem_checksum=source.checksum if source else "",
    )


def _path(reader: RunReader, block: Block, step: int) -> tuple[PathPlane, tuple[int, ...]]:
    """The plane of a block's path up to a step, and the steps."""
    steps = tuple(s for s in reader.steps if s <= step)
    if len(steps) < 3:
        raise ConfigError(
            f"{reader.path} has {len(steps)} stored steps up to {step}: a path of fewer than three spans no plane",
            "name a later --step, or take --plane random",
        )
    # The checkpoints, and a copy of them in one tensor.
    need, free = 2 * 8 * len(steps) * block.total, free_bytes()
    if need > free:
        raise DoesNotFitError(
            f"{len(steps)} checkpoints of block {block.name} take {need / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            "name a smaller --block",
        )
    return pca_plane([{block.name: _flat(block, reader, s)} for s in steps]), steps


def _flat(block: Block, reader: RunReader, step: int) -> Tensor:
    arrays = reader.checkpoint(step)
    return block.flat({name: torch.as_tensor(arrays[name]).double() for name in block.parameters})


def _ranges(radius: float | None, path: PathPlane | None) -> list[tuple[float, float]]:
    """The ends of the steps along both directions."""
    if radius or path is None:
        return [(-(radius or 1.0), radius or 1.0)] * 2
    ends = [(float(c.min()), float(c.max())) for c in (path.first, path.second)]
    return [(low - _MARGIN * (high - low), high + _MARGIN * (high - low)) for low, high in ends]
