"""What a run file says of a network that `landscape train` did not train: its tables, its axes and its config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.errors import ArgumentError
from landscape.problems.blocks import Blocks, Pairs, declared, named_blocks
from landscape.problems.problem import plain_axes
from landscape.storage.layout import NAME
from landscape.storage.runs import RunReader
from landscape.storage.schema import NUMBERS, PARAMETER, RECORDED, STEP, UNKNOWN, Field, Scales, Table
from landscape.text import first_few

_METRIC_STEP = "metric_step"
_SHOWN = 3
"""Differences that a message names."""


@dataclasses.dataclass(frozen=True)
class Form:
    """Shape of a parameter and the type it is stored in, f4 or f8."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Forms = Mapping[str, Form]


def form(name: str, parameter: Tensor) -> Form:
    """How a parameter is stored: float64 as it is, smaller floats exactly in float32. Raises ArgumentError."""
    if torch.nn.parameter.is_lazy(parameter):
        raise ArgumentError(f"{name} has no shape yet", "run a batch through the model first")
    if not parameter.is_floating_point() or parameter.layout != torch.strided or parameter.is_meta:
        kind = "meta" if parameter.is_meta else str(parameter.layout).removeprefix("torch.").replace("strided", "dense")
        what = f"{kind}, of type {str(parameter.dtype).removeprefix('torch.')}"
        raise ArgumentError(f"{name} is {what}", "only dense floating-point parameters can be recorded")
    return Form(tuple(parameter.shape), "f8" if parameter.dtype == torch.float64 else "f4")


def array(parameter: Tensor, form: Form) -> np.ndarray[Any, Any]:
    """The numbers of a parameter in the type of its form; not copied where they lie in memory as they are."""
    dtype = torch.float64 if form.dtype == "f8" else torch.float32
    found: np.ndarray[Any, Any] = parameter.detach().to("cpu", dtype).resolve_neg().numpy()
    return found


def tables(forms: Forms, metrics: Iterable[str]) -> tuple[Table, Table]:
    """The tables of a recorded run's file. Raises ArgumentError for names that no file has."""
    fields = tuple(Field(name, plain_axes(name, len(f.shape)), f.dtype, "parameter") for name, f in forms.items())
    taken = {STEP, _METRIC_STEP, "crc32", PARAMETER, *NUMBERS, *scales(forms)}
    for name in forms:
        _require_name("parameter", name, taken)
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise ArgumentError(f"metrics are {metrics!r}", 'give a list of names: metrics=["train_loss"]')
    metrics = list(metrics)
    for name in metrics:
        _require_name("metric", name, taken | forms.keys() | {f"v_{form}" for form in forms})
    if len(set(metrics)) < len(metrics):
        raise ArgumentError(f"metrics {metrics!r} name one twice", "name each once")
    columns = tuple(Field(name, (), "f8", "metric") for name in metrics)
    return Table("checkpoints", STEP, fields), Table("metrics", _METRIC_STEP, columns)


def scales(forms: Forms) -> Scales:
    """The axes of a recorded run's file."""
    return {
        axis: range(length)
        for name, form in forms.items()
        for axis, length in zip(plain_axes(name, len(form.shape)), form.shape, strict=True)
    }


def forms_of(reader: RunReader) -> dict[str, Form]:
    """The forms of the parameters that a run file holds."""
    stored = reader.tables["checkpoints"].stored
    return {f.name: Form(stored[f.name].shape[1:], f.dtype) for f in reader.layout["checkpoints"].fields}


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


def difference(found: Forms, wanted: Forms) -> str:
    """What tells parameters from those of a file, by name; empty if nothing does."""
    said = [f"no {name}" for name in wanted if name not in found]
    said += [f"{name} is not in the file" for name in found if name not in wanted]
    both = [name for name in wanted if name in found]
    said += [f"{name} is {found[name]}, not {wanted[name]}" for name in both if found[name] != wanted[name]]
    return first_few(said, _SHOWN, "; ")


def _require_name(kind: str, name: Any, taken: set[str]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME or not name.isprintable() or {"/", " "} & set(name):
        raise ArgumentError(
            f"{str(name)[:60]!r} cannot be the name of a {kind}",
            f"a name is at most {NAME} printable characters without spaces and slashes",
        )
    if name in taken or name in (".", ".."):
        raise ArgumentError(f"{name!r} cannot be the name of a {kind}: it means something else", "rename it")
