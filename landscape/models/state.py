"""The state of a torch module: its persistent buffers, and names of tensors without what wrappers put before them."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.curvature.data import checksum
from landscape.errors import ArgumentError, suggest

_STORED = {
    **dict.fromkeys((torch.int8, torch.bool), "i1"),
    **dict.fromkeys((torch.int32, torch.int16, torch.uint8, torch.uint16), "i4"),
    **dict.fromkeys((torch.int64, torch.uint32), "i8"),
    torch.uint64: "u8",
    torch.float64: "f8",
}


def stored_type(tensor: Tensor) -> str:
    """The type in which a file holds exactly what a dense tensor does; empty if there is none."""
    if not _is_dense(tensor):
        return ""
    return _STORED.get(tensor.dtype, "f4" if tensor.is_floating_point() else "")


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state dict of the module has, by name; a shared one once. Complex and sparse ones are none."""
    hidden = _hidden(module)
    return {name: b for name, b in module.named_buffers() if name not in hidden and stored_type(b)}


def constants(module: nn.Module) -> dict[str, list[Tensor]]:
    """What the outputs depend on besides parameters and `buffers`: other buffers and tensors in attributes, by name."""
    stored = buffers(module)
    by_name = {f"buffer {name!r}": [b] for name, b in module.named_buffers() if name not in stored}
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            # What has a gradient comes from parameters, as by weight norm.
            tensors = [x for x in _tensors(value) if not x.requires_grad] if key not in _INTERNAL else []
            if tensors:
                by_name[f"tensor {f'{prefix}.{key}'.removeprefix('.')!r}"] = tensors
    return {name: dense for name, some in by_name.items() if (dense := [x for x in some if _is_dense(x)])}


def with_buffers(module: nn.Module, numbers: Mapping[str, Any]) -> nn.Module:
    """A copy of a module with these `numbers` in its `buffers`; it shares all else that is a tensor.

    numbers: tensors or arrays by name. Raises ArgumentError for a name or shape that the module does not have.
    """
    own = buffers(module)
    # What has its copy in here is not copied: attributes that refer to a buffer then have the new one, too.
    memo: dict[int, Any] = {id(x): x for part in module.modules() for v in vars(part).values() for x in _tensors(v)}
    for name, value in numbers.items():
        if name not in own:
            raise ArgumentError(f"the module has no buffer {name!r} in its state", suggest(name, own))
        if tuple(value.shape) != tuple(own[name].shape):
            raise ArgumentError(
                f"buffer {name!r} has shape {tuple(value.shape)}; in the module it is {tuple(own[name].shape)}",
                "give the buffers of this module",
            )
        memo[id(own[name])] = torch.as_tensor(value).detach().to(own[name]).clone()
    try:
        return copy.deepcopy(module, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise ArgumentError(
            f"{type(module).__name__}, whose buffers differ between steps, cannot be copied: {error}",
            "keep what cannot be copied outside of the module, or give it __deepcopy__",
        ) from error


def settings(value: object, seen: frozenset[int] = frozenset()) -> str:
    """A loss or another function of the user in words that are the same in every process: its settings and constants.

    Numbers, words and checksums of tensors, of a module, a functools.partial, a closure and of its defaults.
    """
    if isinstance(value, Tensor | np.ndarray):
        return f"{checksum(_tensors(value)):08x}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        return repr(value)
    if id(value) in seen:
        return "..."
    seen |= {id(value)}
    if isinstance(value, functools.partial):
        inner: list[object] = [value.func, value.args, value.keywords]
    elif isinstance(value, Mapping):
        inner = [item for pair in value.items() for item in pair]
    elif isinstance(value, list | tuple):
        inner = [*value]
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        inner = [value.__defaults__, value.__kwdefaults__, cells]
    elif isinstance(value, types.MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, nn.Module) or callable(value) and not isinstance(value, type):
        # Of a module its parameters and buffers, too.
        inner = [getattr(value, "__dict__", None)]
    else:
        inner = []
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{name}({', '.join(settings(part, seen) for part in inner)})"


def every_name(module: nn.Module) -> list[str]:
    """All names of parameters and buffers, the other ones of shared tensors among them."""
    both = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return [name for named in both for name, _ in named]


_INTERNAL = frozenset(vars(nn.Module()))
"""Attributes of every module, in which its parameters, buffers and submodules are."""


def _is_dense(tensor: Tensor) -> bool:
    return not (tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized)


def _hidden(module: nn.Module) -> set[str]:
    """The names of buffers that are not in the state dict."""
    return {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def _tensors(value: object) -> list[Tensor]:
    """The tensors, and the arrays of numbers, in a value and in lists, tuples and dicts of them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return [torch.from_numpy(value.copy())]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [x for part in inner for x in _tensors(part)]
