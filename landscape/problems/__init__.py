"""The problems that run files can hold: what their parameters, data and loss are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landscape.config import TrainConfig

if TYPE_CHECKING:
    from landscape.problems.problem import Problem
    from landscape.storage.runs import RunReader


def of_run(reader: RunReader, device: str = "auto", chunk_size: int = 8192) -> Problem:
    """The problem that a run file holds.

    Raises DeviceError for a device that is not there, FileError for a file that is not what its config says.
    """
    from landscape.problems.embedding_mlp.fields import read_problem

    return of_config(*read_problem(reader), device, chunk_size)


def of_config(train: TrainConfig, data: Any, device: str = "auto", chunk_size: int = 8192) -> Problem:
    """The problem of a run of `landscape train`; data: tokens, labels, split as in its file."""
    from landscape.devices import pick_device
    from landscape.problems.embedding_mlp.problem import EmbeddingMLPProblem

    return EmbeddingMLPProblem(train, data, pick_device(device), chunk_size)
