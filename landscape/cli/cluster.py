"""The options of Slurm."""

from __future__ import annotations

import dataclasses
from typing import Any

from landscape.errors import ConfigError
from landscape.options import check_bounds, field


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Options of --executor slurm."""

    pack: int = field(1, "Runs of one job of Slurm, trained side by side.", at_least=1, at_most=10_000)
    slurm: tuple[str, ...] = field(
        (), "Options of Slurm: partition=gpu time=120 gpus=1 mem=8GB array_parallelism=50 and others of submitit."
    )

    def __post_init__(self) -> None:
        check_bounds(self)

    def require(self, executor: str) -> None:
        """Raise ConfigError where these are given to another executor."""
        if executor != "slurm" and self != Cluster():
            raise ConfigError("pack and slurm are options of Slurm", "add --executor slurm, or leave them out")

    @property
    def options(self) -> dict[str, Any]:
        """The parameters of submitit. Raises ConfigError for others."""
        from landscape.jobs.slurm import options

        return options(self.slurm)
