"""Whether a problem and a run file belong together: names and shapes of their parameters, device, and data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from landscape.curvature.modules import plain_names
from landscape.errors import ConfigError, DeviceError
from landscape.files.runs import RunReader
from landscape.files.schema import BUFFERS
from landscape.models.blocks import nearest
from landscape.models.module import ModuleProblem

_NO_BUFFER = "a constant that the problem makes anew is none of a checkpoint: register_buffer(..., persistent=False)"
_INNER = "model."
"""What a module that holds the model as .model puts before its names."""


def require_device(problem: ModuleProblem, device: str) -> None:
    """Raise DeviceError where the user asks for another device than that of the problem's own data."""
    if device not in ("auto", problem.device.type):
        raise DeviceError(
            f"--device {device}, but the data of the problem are on {problem.device}",
            "move model and data in the function that --problem names, and leave out --device",
        )


def shapes(reader: RunReader) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters and buffers that a run file holds, by name."""
    lengths = {axis: len(labels) for axis, labels in reader.scales.items()}
    groups = [reader.layout[group] for group in ("checkpoints", BUFFERS) if group in reader.layout]
    return {f.name: tuple(lengths[dim] for dim in f.dims) for table in groups for f in table.fields}


def other_names(problem: ModuleProblem, names: Collection[str]) -> dict[str, str]:
    """The problem's names of tensors that a run file holds under another name, by that one.

    It is another one of a tied tensor, or the same but for what torch.compile or DistributedDataParallel put there.
    """
    tied = problem.tied
    own = {plain: tied.get(name, name) for name, plain in plain_names([*_tensors(problem), *tied]).items()}
    renamed = dict[str, str]()
    for name, plain in plain_names(names).items():
        ours = own.get(plain, name)
        if ours != name and ours not in {*names, *renamed.values()}:
            renamed[name] = ours
    return renamed


def require_fit(problem: ModuleProblem, file_shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise ConfigError for the first tensor by which a problem and the checkpoints of a run file differ."""
    names, own = other_names(problem, file_shapes), _tensors(problem)
    file_shapes = {names.get(name, name): shape for name, shape in file_shapes.items()}
    for name, shape in own.items():
        kind = "parameter" if name in problem.parameters else "buffer"
        if name not in file_shapes:
            raise ConfigError(
                f"{path} holds no {kind} {name!r}, which {problem.name} has",
                _prefix(own, file_shapes) or (nearest(name, file_shapes) if kind == "parameter" else _NO_BUFFER),
            )
        if file_shapes[name] != shape:
            raise ConfigError(
                f"{kind} {name!r} has shape {file_shapes[name]} in {path}; in {problem.name} it is {shape}",
                "build the model with the sizes that it was trained with",
            )
    tied = problem.tied
    for name in file_shapes:
        if name in tied:
            raise ConfigError(
                f"{path} holds both {tied[name]!r} and {name!r}, which are tied in {problem.name}",
                f"import the files again with --skip {name}, or untie them in the model",
            )
        if name not in own:
            raise ConfigError(
                f"{path} holds {name!r}, which {problem.name} lacks",
                _prefix(own, file_shapes)
                or f"{nearest(name, own)}; `landscape import --skip {name}` leaves out what is none",
            )


def _tensors(problem: ModuleProblem) -> dict[str, tuple[int, ...]]:
    """The shapes of a problem's parameters and buffers, by name."""
    return {n: spec.shape for n, spec in problem.parameters.items()} | dict(problem.buffers)


def _prefix(names: Collection[str], stored_names: Collection[str]) -> str:
    """What to do about names that differ by what a wrapper puts before them; empty if they differ otherwise."""
    why = f"begin with {_INNER!r} (a module that holds the model as .model puts it there)"
    if set(stored_names) == {_INNER + name for name in names}:
        return f"all names in the file {why}: wrap the model of the problem likewise"
    if set(names) == {_INNER + name for name in stored_names}:
        return f"all names of the problem {why}: give it the model inside"
    return ""
