"""What a run file says of a network that `landscape train` did not train: its tables, its axes and its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.files.schema import BUFFERS, NAME, NUMBERS, PARAMETER, RECORDED, STEP, UNKNOWN, Field, Scales, Table
from landscape.models.blocks import Blocks, Pairs, declared, named_blocks
from landscape.models.problem import plain_axes
from landscape.models.state import stored_type
from landscape.text import first_few

_METRIC_STEP = "metric_step"
_SHOWN = 3
"""Differences that a message names."""


_TYPES = {"i1": torch.int8, "i4": torch.int32, "i8": torch.int64, "u8": torch.uint64}


@dataclasses.dataclass(frozen=True)
class Form:
    """Shape of a parameter or buffer and the type it is stored in: f4 or f8, of a buffer also i1, i4, i8 or u8."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Forms = Mapping[str, Form]


def form(name: str, parameter: Tensor) -> Form:
    """How a parameter is stored: float64 as it is, smaller floats exactly in float32. Raises ArgumentError."""
    _require_shape(name, parameter)
    dtype = stored_type(parameter)
    if not dtype.startswith("f"):
        layout = str(parameter.layout).removeprefix("torch.").replace("strided", "dense")
        kind = "nested" if parameter.is_nested else "meta" if parameter.is_meta else layout
        what = f"{kind}, of type {str(parameter.dtype).removeprefix('torch.')}"
        raise ArgumentError(f"{name} is {what}", "only dense floating-point parameters can be recorded")
    return Form(tuple(parameter.shape), dtype)


def buffer_forms(buffers: Mapping[str, Tensor]) -> dict[str, Form]:
    """How buffers are stored: floats as parameters, integers exactly in one of at least their size."""
    for name, buffer in buffers.items():
        _require_shape(name, buffer)
    return {name: Form(tuple(buffer.shape), stored_type(buffer)) for name, buffer in buffers.items()}


def array(parameter: Tensor, form: Form) -> np.ndarray[Any, Any]:
    """The numbers of a tensor in the type of its form; not copied where they lie in memory as they are."""
    dtype = _TYPES.get(form.dtype, torch.float64 if form.dtype == "f8" else torch.float32)
    numbers: np.ndarray[Any, Any] = parameter.detach().to("cpu", dtype).resolve_neg().numpy()
    return numbers


def tables(forms: Forms, metrics: Iterable[str], buffers: Forms | None = None) -> tuple[Table, ...]:
    """The tables of a recorded run's file: parameters, buffers if any, metrics. Raises ArgumentError for names."""
    buffers = buffers or {}
    groups = (("checkpoints", "parameter", forms), (BUFFERS, "buffer", buffers))
    tensor_tables = [
        Table(group, STEP, tuple(Field(n, plain_axes(n, len(f.shape)), f.dtype, kind) for n, f in of_group.items()))
        for group, kind, of_group in groups
        if of_group or group == "checkpoints"
    ]
    names = {**forms, **buffers}
    reserved = {STEP, _METRIC_STEP, "crc32", PARAMETER, *NUMBERS, *scales(names)}
    for name in names:
        _require_name("parameter" if name in forms else "buffer", name, reserved)
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ArgumentError(f"metrics are {metrics!r}", 'give a list of names: metrics=["train_loss"]')
    metrics = list(metrics)
    for name in metrics:
        _require_name("metric", name, reserved | names.keys() | {f"v_{form}" for form in forms})
    if len(set(metrics)) < len(metrics):
        raise ArgumentError(f"metrics {metrics!r} name one twice", "name each once")
    return (*tensor_tables, Table("metrics", _METRIC_STEP, tuple(Field(name, (), "f8", "metric") for name in metrics)))


def scales(forms: Forms) -> Scales:
    """The axes of a recorded run's file."""
    return {
        axis: range(length)
        for name, form in forms.items()
        for axis, length in zip(plain_axes(name, len(form.shape)), form.shape, strict=True)
    }


def forms_of(reader: RunReader, group: str = "checkpoints") -> dict[str, Form]:
    """The forms of the parameters, or of the buffers, that a run file holds."""
    if group not in reader.tables:
        return {}
    stored = reader.tables[group].data
    return {f.name: Form(stored[f.name].shape[1:], f.dtype) for f in reader.layout[group].fields}


def config(
    forms: Forms,
    model: str,
    blocks: Blocks | None = None,
    pairs: Pairs | None = None,
    aliases: Mapping[str, str] | None = None,
    seed: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The config of a recorded run. Raises ArgumentError for blocks and pairs that the parameters do not have."""
    return {
        "kind": RECORDED,
        "model": model,
        "num_parameters": sum(int(np.prod(form.shape)) for form in forms.values()),
        "seed": UNKNOWN if seed is None else seed,
        "aliases": dict(aliases or {}),
        **declarations(forms, {} if blocks is None else blocks, () if pairs is None else pairs),
        **more,
    }


def declarations(forms: Forms, blocks: Blocks, pairs: Pairs) -> dict[str, Any]:
    """Blocks as patterns by name, and pairs of them, as a config holds them. Raises ArgumentError."""
    named_blocks(blocks, pairs, {name: form.shape for name, form in forms.items()})
    patterns, couples = declared(blocks, pairs)
    return {"blocks": patterns, "pairs": [list(pair) for pair in couples]}


def difference(forms: Forms, wanted: Forms) -> str:
    """What tells parameters from those of a file, by name; empty if nothing does."""
    differences = [f"no {name}" for name in wanted if name not in forms]
    differences += [f"{name} is not in the file" for name in forms if name not in wanted]
    both = [name for name in wanted if name in forms]
    differences += [f"{name} is {forms[name]}, not {wanted[name]}" for name in both if forms[name] != wanted[name]]
    return first_few(differences, _SHOWN, "; ")


def _require_shape(name: str, tensor: Tensor) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise ArgumentError(f"{name} has no shape yet", "run a batch through the model first")


def _require_name(kind: str, name: Any, reserved: set[str]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME or not name.isprintable() or {"/", " "} & set(name):
        raise ArgumentError(
            f"{str(name)[:60]!r} cannot be the name of a {kind}",
            f"a name is at most {NAME} printable characters without spaces and slashes",
        )
    if name in reserved or name in (".", ".."):
        raise ArgumentError(f"{name!r} cannot be the name of a {kind}: it means something else", "rename it")
