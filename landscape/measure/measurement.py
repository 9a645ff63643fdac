"""What is measured, and where."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Self

from torch import Tensor

from landscape.config import AnalysisConfig, HessianConfig
from landscape.curvature.curve import TAUS
from landscape.curvature.operators import HessianOperator
from landscape.devices import one_thread, require_dense, require_factor
from landscape.errors import ConfigError
from landscape.files.schema import Scales, Table
from landscape.measure.datasets import Row
from landscape.measure.fields import ENDS, density_table, root_table, settled_table, spectrum_table, vectors_table
from landscape.measure.quantities import curve, density
from landscape.models.blocks import Block, Pair, choose
from landscape.models.problem import Arrays, Problem, Training, tensors, with_state

Vectors = Mapping[str, Tensor]
"""Eigenvectors (end, entry of the block, rank) by the block's name."""
SETTLING = "settling"
"""The descent of a checkpoint among the blocks, in forecasts and bars."""


@dataclasses.dataclass(frozen=True)
class Point:
    """Parameters at which something is measured.

    parameters: what `RunReader.checkpoint` returns, the buffers of a problem that has some among them; training: what
    the trainer knew there; start: vectors that matrix-free searches start from, those of the step before; settled: how
    the descent to the point went, if there was one.
    """

    parameters: Arrays
    training: Training | None = None
    start: Vectors = dataclasses.field(default_factory=dict)
    settled: Row = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A problem, the blocks and pairs of it that are measured, and how."""

    problem: Problem
    config: AnalysisConfig
    blocks: tuple[Block, ...]
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, problem: Problem, config: AnalysisConfig) -> Self:
        """The measurement that settings ask for; without blocks there, of the problem's default blocks.

        Raises ConfigError for an unknown block, an objective that the run did not minimise or a bandwidth that the grid
        of the densities does not resolve, and DoesNotFitError for dense blocks that do not fit in memory.
        """
        if config.bandwidth < density.FINEST:
            raise ConfigError(
                f"bandwidth is {config.bandwidth}, but densities have {density.POINTS} points, too few for that",
                f"raise --bandwidth to {density.FINEST} or more",
            )
        config = config if config.blocks else dataclasses.replace(config, blocks=tuple(problem.default_blocks))
        problem.decay(config.objective)
        chosen = choose(problem, config.blocks)
        what = cls(problem, config, chosen.blocks, chosen.pairs)
        for block in what.blocks:
            if what.is_dense(block):
                require_dense(block.name, what.order(block), problem.device)
            else:
                require_factor(block.name, *what.factor(block), problem.device)
        return what

    @property
    def settles(self) -> bool:
        """Whether checkpoints are measured where they settle."""
        return isinstance(self.config, HessianConfig) and self.config.settle

    @property
    def stages(self) -> list[str]:
        """What there is to do at a step: its blocks, after the descent if there is one."""
        return [*([SETTLING] if self.settles else []), *(block.name for block in self.blocks)]

    def is_dense(self, block: Block) -> bool:
        """Whether a block is treated as a dense matrix."""
        return self.config.is_dense(block.size, self.problem.has_closed_form(block.parameters))

    def is_full(self, block: Block) -> bool:
        """Whether every eigenvalue of a block is computed."""
        return self.is_dense(block) and self.config.is_full(block.size)

    def is_cut(self, block: Block) -> bool:
        """Whether a block of some rows is cut from the closed form of the whole parameters."""
        has_closed_form = self.problem.has_closed_form(block.parameters)
        return has_closed_form and self.config.is_dense(block.total, has_closed_form)

    def order(self, block: Block) -> int:
        """Order of the largest matrix that a block takes."""
        return block.total if self.is_cut(block) else block.size

    def factor(self, block: Block) -> tuple[int, int]:
        """Order and bytes of the factor that counts a matrix-free block; 0, 0 without one."""
        is_asked_for = self.config.certify or self.config.curve
        return self.problem.factor(block.members, self.config.factor_limit) if is_asked_for else (0, 0)

    @property
    def depends_on_no_other(self) -> bool:
        """Whether all blocks are dense matrices, whose results depend on no other step."""
        return all(map(self.is_dense, self.blocks))

    def require_sound(self, parameters: Arrays) -> None:
        """Raise ArgumentError or NumericsError, before any file is made, for a loss that has no Hessian there."""
        problem = with_state(self.problem, parameters)
        HessianOperator(problem.objective(problem.decay(self.config.objective)), tensors(problem, parameters))

    def layout(self) -> tuple[list[Table], Scales]:
        """The tables of a file of these measurements, and the labels of all axes except those of rows."""
        names = [block.name for block in self.blocks]
        full = tuple(block.name for block in self.blocks if self.is_full(block))
        more = [density_table(tuple(names))] if self.config.density else []
        more += [vectors_table(tuple(names))] if self.config.vectors else []
        more += [settled_table()] if self.settles else []
        named = {"block": names, "other_block": names}
        named |= {"pair": [pair.name for pair in self.pairs], "part": list(self.problem.parts)}
        rows = {f"param_row_{block.name}": range(block.size) for block in self.blocks}
        counted = {"rank": range(self.config.k), "density_point": range(density.POINTS)}
        scales: Scales = {**named, **ENDS, **counted, curve.TAU: list(TAUS), **rows}
        return [root_table(self.config), spectrum_table(full), *more], scales

    def threads(self) -> contextlib.AbstractContextManager[None]:
        """One thread for dense blocks, whose results are reproduced bit for bit."""
        return one_thread() if self.depends_on_no_other else contextlib.nullcontext()
