"""The network of a run file, for code that knows no file."""

from __future__ import annotations

from pathlib import Path

from landscape.files.runs import RunReader
from landscape.models import of_run
from landscape.models.problem import Plain


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
    with RunReader(path) as reader:
        problem = of_run(reader, "cpu")
        return problem.plain(reader.checkpoint(reader.steps[-1] if step is None else step))
