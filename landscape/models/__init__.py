"""The problems of run files: their parameters, data and loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.config import AnalysisConfig, TrainConfig
from landscape.errors import in_file

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from landscape.files.runs import RunReader
    from landscape.models.factory import Source
    from landscape.models.module import ModuleProblem
    from landscape.models.networks import Networks
    from landscape.models.problem import Plain, Problem


def opened(reader: RunReader, config: AnalysisConfig) -> tuple[Problem, Source | None]:
    """The problem that a run file is analysed by, and where it comes from if it is the user's own.

    A module without blocks of its own has those that were recorded with it, and its parameters are read under its own
    names. Raises LandscapeError kinds for a factory that fails, and for a problem of other parameters than the file
    holds.
    """
    if not config.problem:
        return of_run(reader, config.device, config.chunk_size), None
    from landscape.models.fit import other_names, shapes

    file_shapes = shapes(reader)
    problem, source = own(config, file_shapes, reader.path)
    reader.names = other_names(problem, file_shapes)
    if reader.is_recorded:
        with in_file(reader.path, "blocks"):
            pairs = [(first, second) for first, second in reader.config.get("pairs", ())]
            problem = problem.or_blocks(dict(reader.config.get("blocks", {})), pairs)
    return problem, source


def own(config: AnalysisConfig, shapes: Mapping[str, tuple[int, ...]], path: Path) -> tuple[ModuleProblem, Source]:
    """The problem that --problem names, for a run file `path` with parameters of these shapes."""
    import torch

    from landscape.models.factory import load
    from landscape.models.fit import require_device, require_fit

    problem, source = load(config.problem)
    if config.dtype != "float64":
        problem = problem.in_dtype(getattr(torch, config.dtype))
    require_device(problem, config.device)
    require_fit(problem, shapes, path)
    return problem, source


def of_run(reader: RunReader, device: str = "auto", chunk_size: int = 8192) -> Problem:
    """The problem that a run file holds.

    Raises DeviceError for a device that is not available, FileError for a file that contradicts its config.
    """
    from landscape.models.fields import read_problem

    return of_config(*read_problem(reader), device, chunk_size)


def of_config(train: TrainConfig, data: Any, device: str = "auto", chunk_size: int = 8192) -> Problem:
    """The problem of a run of `landscape train`; data: tokens, labels, split as in its file."""
    from landscape.devices import pick_device
    from landscape.models.embedding_mlp.problem import EmbeddingMLPProblem
    from landscape.models.transformer.problem import TransformerProblem

    if train.model == "transformer":
        return TransformerProblem(train, data, pick_device(device), chunk_size)
    return EmbeddingMLPProblem(train, data, pick_device(device), chunk_size)


def make_networks(
    config: TrainConfig,
    parameters: Sequence[Mapping[str, NDArray[Any]]],
    tokens: NDArray[Any],
    labels: NDArray[Any],
    device: torch.device,
) -> Networks:
    """Networks of one shape to be trained side by side, one for each entry of `parameters`.

    tokens (sample, slot), labels (sample): the table of pairs that batches are named from, or with a first axis
    `member`, where each has its own.
    """
    from landscape.models.embedding_mlp.networks import Networks as MLPs
    from landscape.models.transformer.networks import Networks as Transformers

    return (Transformers if config.model == "transformer" else MLPs)(config, parameters, tokens, labels, device)


def initial(config: TrainConfig) -> dict[str, NDArray[Any]]:
    """The parameters that a run starts from, by name."""
    from landscape.models.embedding_mlp.networks import initial as of_mlp
    from landscape.models.transformer.networks import initial as of_transformer

    return of_transformer(config) if config.model == "transformer" else of_mlp(config)


def network(path: Path | str, step: int | None = None) -> Plain:
    """The network of a run of `landscape train` at a stored step, as plain PyTorch in float64 on the CPU.

    Args:
        path: the run file.
        step: a stored step; None: the last one.

    Returns:
        `model`, a module that takes tokens (sample, slot) and gives logits (sample, class); its tensors `parameters`
        by the names of the file; the training samples `inputs` and `targets`; and `loss`, their mean cross-entropy.

    Raises:
        FileError: for a file that is missing, broken or no run of `landscape train`.
        StepError: for a step that is not stored.
    """
    from landscape.files.runs import RunReader

    with RunReader(path) as reader:
        problem = of_run(reader, "cpu")
        return problem.plain(reader.checkpoint(reader.steps[-1] if step is None else step))
