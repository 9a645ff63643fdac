"""Checkpoints of other programs as a run file: safetensors, torch files, folders of Hugging Face."""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import json
import pickle
import re
import uuid
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from landscape.curvature.modules import plain_names
from landscape.errors import ConfigError, FileError
from landscape.files import schema
from landscape.files.files import (
    REPLACE,
    as_path,
    make_folder,
    output,
    refuse_existing,
    refuse_foreign,
)
from landscape.files.hdf5 import RATIO, ROOM
from landscape.files.writer import new_run
from landscape.files.writing import sole_writer
from landscape.progress import Bar
from landscape.provenance import provenance
from landscape.results import Result
from landscape.text import first_few
from landscape.training.recorded import Form, array, buffer_forms, config, difference, form, scales, tables

_NESTED = ("model", "state_dict", "model_state_dict")
_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt")
_BUFFERS = ("running_mean", "running_var")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
"""A model of Hugging Face in one file; of several, NAME.index.json says where each tensor is."""
_SHOWN = 3
"""Files that a message names."""
_STATE = "save the state alone: torch.save(model.state_dict(), ...), or convert it where you trust it"
_SPARE, _INDEX = 1 << 20, 1 << 26
"""Bytes that a zip may declare beyond its own, and of the largest index of shards."""
_AGAIN = "copy it again from its source, or leave it out"
_NUMBER = re.compile(r"\d+(?:\.\d+)*(?:[A-Za-z%]+(?![A-Za-z]))?")
"""A number with the letters that follow it at once, such as the unit of 10k."""
_NAMED = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?)[=_-]?(\d+)(?![\d.]*[0-9A-Za-z%])", re.I)
"""A number that a name calls its step."""
_LONGEST = 15
"""Most digits of a step."""


@dataclasses.dataclass(frozen=True, repr=False)
class ImportSummary(Result):
    """An imported run: its file, steps and parameters; notes: a line for each kind of thing that was left out."""

    path: str
    steps: tuple[int, ...]
    num_tensors: int
    num_parameters: int
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    path: Path
    step: int
    files: tuple[Path, ...]


def import_checkpoints(
    sources: Sequence[Path | str],
    path: Path | str,
    step_pattern: str = "",
    skip: Sequence[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
) -> ImportSummary:
    """Write a run file of checkpoints that lie in other files, one in memory at a time.

    sources: .safetensors, .pt, .pth and Lightning's .ckpt files, folders of them, folders of Hugging Face, or globs.
    step_pattern: regex whose first group is the step in a name; by default the number after `step` or `iter`, or a
    name's only one; what that leaves in doubt is refused. skip: patterns of tensors to leave out. Nothing is left of an
    import that fails. Raises FileError for files that are missing, broken, would run code or differ in their tensors,
    ConfigError for patterns without a step, ArgumentError for names.
    """
    path, notes = output(as_path(path)), dict[str, None]()
    checkpoints = _with_steps(_files_of(sources, notes), step_pattern, notes)
    make_folder(path.parent)
    with sole_writer(path):
        if overwrite:
            refuse_foreign(path, schema.RUN)
        else:
            refuse_existing(path, REPLACE)
        first, aliases = _read(checkpoints[0], skip, notes)
        all_forms = {name: _form(name, tensor) for name, tensor in first.items()}
        forms = {name: form for name, form in all_forms.items() if not _is_buffer(name, form)}
        buffers = {name: form for name, form in all_forms.items() if _is_buffer(name, form)}
        if not forms:
            raise FileError(f"{checkpoints[0].path} holds no parameters", "name files of a model's state")
        described = config(forms, "imported checkpoints", aliases=aliases)
        attrs = {"run_id": uuid.uuid4().hex, "config": json.dumps(described), "seed": described["seed"]}
        attrs |= {"status": "complete", **provenance("cpu")}
        rooms = [(table, 0 if table.group == "metrics" else len(checkpoints)) for table in tables(forms, (), buffers)]
        with (
            new_run(path, attrs, rooms, scales(all_forms)) as writer,
            Bar(len(checkpoints), "checkpoint", quiet) as bar,
        ):
            for checkpoint in checkpoints:
                read = first if checkpoint is checkpoints[0] else _read(checkpoint, skip, notes)[0]
                first = {}
                if wrong := difference({name: _form(name, tensor) for name, tensor in read.items()}, all_forms):
                    raise FileError(
                        f"{checkpoint.path} differs from {checkpoints[0].path}: {wrong}", "import each model by itself"
                    )
                rows = {name: array(tensor, all_forms[name]) for name, tensor in read.items()}
                writer.append(checkpoint.step, {"checkpoints": rows, schema.BUFFERS: rows})
                bar.update()
    writer.close()
    steps = tuple(checkpoint.step for checkpoint in checkpoints)
    return ImportSummary(str(path), steps, len(forms), described["num_parameters"], tuple(notes))


def import_steps(sources: Sequence[Path | str], step_pattern: str = "") -> list[tuple[Path, int]]:
    """What `import_checkpoints` would take: each checkpoint and its step, ascending. Raises as it does."""
    return [(checkpoint.path, checkpoint.step) for checkpoint in _with_steps(_files_of(sources, {}), step_pattern, {})]


def _files_of(sources: Sequence[Path | str], notes: dict[str, None]) -> list[tuple[Path, tuple[Path, ...]]]:
    """Every checkpoint of the sources once: its name and its files."""
    if not sources:
        raise ConfigError("no file is named", "name files, folders or globs of checkpoints")
    checkpoints: dict[tuple[Path, str], tuple[Path, tuple[Path, ...]]] = {}
    for source in map(as_path, sources):
        if source.exists():
            matches = [source]
        else:
            matches = [Path(match) for match in sorted(glob.glob(str(source), recursive=True))]
            if not matches:
                raise FileError(f"{source} does not exist", "check the path; a glob must match at least one file")
        others = dict[str, None]()
        for match in matches:
            inside, beside = _in_folder(match) if match.is_dir() else _split([match])
            if not inside and match == source:
                what = "folder without checkpoints" if match.is_dir() else "file of an unknown kind"
                raise FileError(f"{source} is a {what}", f"checkpoints are {', '.join(_SUFFIXES)} or their folders")
            # Links by several names may lead to one file of equal contents, as git-annex and DVC make them.
            checkpoints |= {
                (checkpoint.resolve(), checkpoint.name): (checkpoint, files) for checkpoint, files in inside
            }
            others |= {path.name: None for path in beside}
        if others:
            notes[f"skipped in {source}: {first_few(list(others), _SHOWN)}"] = None
    if not checkpoints:
        raise FileError(f"{sources[0]} matches no checkpoint", f"checkpoints are {', '.join(_SUFFIXES)} or folders")
    # A link beside what it leads to is no checkpoint of its own.
    return [
        one for (real, name), one in checkpoints.items() if name == real.name or (real, real.name) not in checkpoints
    ]


def _in_folder(folder: Path) -> tuple[list[tuple[Path, tuple[Path, ...]]], list[Path]]:
    """A folder that is one checkpoint of Hugging Face, or the checkpoints that lie in it, and the other files."""
    if files := _of_hugging_face(folder):
        return [(folder, files)], []
    return _split(sorted(folder.iterdir()))


def _split(paths: Sequence[Path]) -> tuple[list[tuple[Path, tuple[Path, ...]]], list[Path]]:
    """The checkpoints among files and folders, and the files that are none."""
    checkpoints, others = [], []
    for path in paths:
        if path.is_dir():
            files = _of_hugging_face(path)
        elif path.suffix in _SUFFIXES:
            files = (path,)
        else:
            files = ()
            others.append(path)
        if files:
            checkpoints.append((path, files))
    return checkpoints, others


def _of_hugging_face(folder: Path) -> tuple[Path, ...]:
    """The files of the model in a folder such as checkpoint-500; none where it is no such folder."""
    for name in _WHOLE:
        index = folder / f"{name}.index.json"
        if not index.is_file():
            if (folder / name).is_file():
                return (folder / name,)
            continue
        try:
            if index.stat().st_size > _INDEX:
                raise ValueError("it is too large")
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if not all(isinstance(name, str) and Path(name).name == name for name in shards):
                raise ValueError("a shard lies elsewhere")
            if absent := [name for name in shards if not (folder / name).is_file()]:
                raise ValueError(f"{absent[0]} is missing")
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise FileError(f"{index} is no index of shards: {error}", _AGAIN) from error
        return tuple(folder / name for name in shards)
    return ()


def _with_steps(
    checkpoints: Sequence[tuple[Path, tuple[Path, ...]]], pattern: str, notes: dict[str, None]
) -> list[_Checkpoint]:
    """The checkpoints in the order of their steps. Raises FileError for a step of two, and where none has one."""
    by_step: dict[int, _Checkpoint] = {}

    def name_of(path: Path) -> str:
        # The suffix of a file has no step, unless the pattern says more of it.
        return path.name if pattern or path.suffix not in _SUFFIXES else path.name.removesuffix(path.suffix)

    steps = _steps([name_of(path) for path, _ in checkpoints], pattern)
    for path, files in checkpoints:
        step = steps.get(name_of(path))
        if step is None:
            notes[f"skipped {path}: no step in its name"] = None
            continue
        if step in by_step:
            raise FileError(
                f"{by_step[step].path} and {path} are both of step {step}", "leave one out, or choose a --step-pattern"
            )
        by_step[step] = _Checkpoint(path, step, files)
    if not by_step:
        raise FileError(
            f"no name has a step, such as {checkpoints[0][0].name}", r"say where it is: --step-pattern 'at(\d+)'"
        )
    return [by_step[step] for step in sorted(by_step)]


def _steps(names: Sequence[str], pattern: str) -> dict[str, int]:
    """The step of each name that has one: never guessed. Raises FileError, ConfigError."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"--step-pattern {pattern!r} is no regular expression: {error}", r"such as 'step(\d+)'"
        ) from error
    if pattern and not compiled.groups:
        raise ConfigError(f"--step-pattern {pattern!r} has no group", r"put the step in brackets: 'step(\d+)'")
    steps = {}
    for name in names:
        if pattern:
            match = compiled.search(name)
            numbers = [match[1] or ""] if match else []
        else:
            named = _NAMED.findall(name)
            numbers = named if len(named) == 1 else _NUMBER.findall(name)
            if len(numbers) > 1 or any(not number.isdigit() for number in numbers):
                raise FileError(
                    f"which number is the step of {name}? It has {first_few(numbers, 5)}",
                    r"say so by a pattern with the step in brackets, such as --step-pattern 'step(\d+)', or rename it",
                )
        for digits in numbers:
            if not re.fullmatch(rf"\d{{1,{_LONGEST}}}", digits, re.ASCII):
                raise ConfigError(
                    f"the step of {name} would be {digits!r}", "let the group of --step-pattern match digits"
                )
            steps[name] = int(digits)
    return steps


def _read(
    checkpoint: _Checkpoint, skip: Sequence[str], notes: dict[str, None]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The parameters of a checkpoint, and the other names of tied ones."""
    tensors: dict[str, Tensor] = {}
    for file in checkpoint.files:
        _require_plain(file)
        read = _safetensors(file) if file.suffix == ".safetensors" else _torch(file, notes)
        if (size := sum(_bytes(name, tensor) for name, tensor in read.items())) > ROOM + RATIO * file.stat().st_size:
            raise FileError(f"{file} declares {size:,} bytes of tensors, far more than it has", _AGAIN)
        for name, tensor in read.items():
            if any(fnmatch.fnmatchcase(name, wanted) for wanted in skip):
                notes[f"skipped {name!r}: as --skip says"] = None
            elif tensor.is_quantized or tensor.is_complex():
                kind = str(tensor.dtype).removeprefix("torch.")
                notes[f"skipped {name!r}: {kind} is no type of a parameter or buffer"] = None
            else:
                if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
                    small = str(tensor.dtype).removeprefix("torch.")
                    notes[f"{small} is stored in float32, which holds it exactly"] = None
                tensors[name] = tensor
    plain = plain_names(tensors)
    if any(name != short for name, short in plain.items()):
        notes["names are without module. and _orig_mod., which DistributedDataParallel and torch.compile add"] = None
    # Only now: of tied names those that are skipped must not take the others along.
    tensors = {plain[name]: tensor for name, tensor in tensors.items()}
    return tensors, _untie(tensors)


def _require_plain(file: Path) -> None:
    """Raise FileError for what is no file, which may go on for ever, and for a zip that declares more than it has.

    torch stores its records as they are; packed ones may unpack to any size.
    """
    if not file.is_file():
        raise FileError(f"{file} is a device or a pipe, or leads nowhere", "name a regular file")
    if file.suffix != ".safetensors" and zipfile.is_zipfile(file):
        try:
            with zipfile.ZipFile(file) as packed:
                declared = sum(record.file_size for record in packed.infolist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise FileError(f"{file} is damaged or no torch file: {_line(error):.200}", _AGAIN) from error
        if declared > 2 * (size := file.stat().st_size) + _SPARE:
            raise FileError(f"{file} declares {declared:,} bytes in a file of {size:,}", _AGAIN)


def _bytes(name: str, tensor: Tensor) -> int:
    if tensor.is_nested:
        raise FileError(f"{name!r} is a nested tensor, which has no shape", "save its parts as tensors of their own")
    return tensor.numel() * tensor.element_size()


def _form(name: str, tensor: Tensor) -> Form:
    return form(name, tensor) if tensor.is_floating_point() else buffer_forms({name: tensor})[name]


def _is_buffer(name: str, form: Form) -> bool:
    """Whether a tensor is no parameter: integers, and what norms keep. Other buffers look like parameters."""
    return not form.dtype.startswith("f") or name.rpartition(".")[2] in _BUFFERS


def _safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            named = opened.metadata() or {}
    except Exception as error:
        raise FileError(f"{file} is damaged or no safetensors file: {_line(error):.200}", _AGAIN) from error
    # What safetensors.torch.save_model says of the names that it left out.
    return tensors | {alias: tensors[name] for alias, name in named.items() if name in tensors and alias not in tensors}


def _torch(file: Path, notes: dict[str, None]) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            # It is refused below.
            warnings.filterwarnings("ignore", message=".*TorchScript archive")
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if match := re.search(r"GLOBAL (\S+)|Unsupported class|unrecognized function", str(error)):
            raise FileError(
                f"{file} would run code when it is read ({match[1] or match[0]}), and is not",
                _STATE,
            ) from error
        # What torch says first is advice to run the code.
        what = re.search(r"WeightsUnpickler error: *(\S.*?) *(Check the documentation|$)", _line(error))
        raise FileError(f"{file} is damaged or no torch file: {what[1] if what else 'no pickle'}", _AGAIN) from error
    except Exception as error:
        if "TorchScript" in str(error):
            raise FileError(f"{file} is a TorchScript program, which is not run", _STATE) from error
        raise FileError(f"{file} is damaged or no torch file: {_line(error):.200}", _AGAIN) from error
    state, where = _state(file, loaded)
    if where:
        notes[f"the state is under {where!r}"] = None
    others = [str(name) for name in loaded if name != where] if where else []
    others += [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    for name in others:
        notes[f"skipped {name!r}: no tensor of the model's state"] = None
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if wrong := [name for name in tensors if not isinstance(name, str)]:
        raise FileError(f"{file}: a parameter has the name {wrong[0]!r}, not a string", "name it in the state dict")
    return tensors


def _untie(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Leave each memory under its first name; returns the first name by each other one."""
    first, aliases = dict[Any, str](), dict[str, str]()
    for name, tensor in list(tensors.items()):
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if first.setdefault(place, name) != name:
            aliases[name] = first[place]
            del tensors[name]
    return aliases


def _state(file: Path, loaded: Any) -> tuple[Mapping[Any, Any], str]:
    """The state dict in what a file holds, and the key that it is under."""
    if isinstance(loaded, Mapping):
        # First, as a trainer may keep a loss or a step as a tensor beside it.
        for key in _NESTED:
            inner = loaded.get(key)
            if isinstance(inner, Mapping) and any(isinstance(value, Tensor) for value in inner.values()):
                return inner, key
        if any(isinstance(value, Tensor) for value in loaded.values()):
            return loaded, ""
    raise FileError(f"{file} holds no state dict", f"save one directly, or under {', '.join(map(repr, _NESTED))}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:1000] or type(error).__name__
