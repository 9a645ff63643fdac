"""A torch module as a function of its parameters; the module is never changed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscape.errors import ArgumentError, kind_of, suggest
from landscape.text import first_few


class ModuleFunction:
    """A module as a function of (parameters by name, inputs), in one precision; the module is left as it was.

    inputs: one argument, or a tuple or list of them; a mapping is keyword arguments where the module takes these, else
    one argument. Parameters that are not given, and buffers, are constants, copied so that none is changed. Names may
    have the prefixes of torch.compile, DataParallel and DistributedDataParallel. Raises ArgumentError for names and
    shapes that the module does not have, and for one tied tensor given twice.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module, self.dtype = unwrapped(module), dtype
        self._params: Mapping[str, Tensor] | None = None

    @contextlib.contextmanager
    def at(self, params: Mapping[str, Tensor]) -> Iterator[None]:
        """Context in which the module has these parameters, also where backward computes forward again."""
        if self._params is params:
            yield
            return
        own = {
            **dict(self.module.named_parameters(remove_duplicate=False)),
            **dict(self.module.named_buffers(remove_duplicate=False)),
        }
        plain = plain_names(params)
        replacements = {n if n in own else plain[n]: p for n, p in params.items()}
        self._require_names(replacements, own)
        # By identity: one tensor for all places of a tied parameter.
        values = {id(own[n]): p.to(self.dtype) for n, p in replacements.items()}
        values |= {id(p): in_precision(p.detach(), self.dtype).clone() for p in own.values() if id(p) not in values}
        places = [
            (holder, name, tensor)
            for part in self.module.modules()
            for holder in (part._parameters, part._buffers)
            for name, tensor in holder.items()
            if tensor is not None
        ]
        # Hooks, such as those of pruning, set tensors that are no parameters.
        plain_tensors = [
            (vars(part), name, x)
            for part in self.module.modules()
            for name, x in vars(part).items()
            if torch.is_tensor(x)
        ]
        before, self._params = self._params, params
        try:
            for holder, name, tensor in places:
                holder[name] = values[id(tensor)]  # type: ignore[assignment]
            yield
        finally:
            for holder, name, tensor in [*places, *plain_tensors]:
                holder[name] = tensor  # type: ignore[assignment]
            self._params = before

    def __call__(self, params: Mapping[str, Tensor], inputs: Any) -> Any:
        with self.at(params):
            return called(self.module, inputs)

    @property
    def is_training(self) -> bool:
        """Whether any part of the module is in training mode."""
        return any(module.training for module in self.module.modules())

    def replaced(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's own trainable parameters that these replace."""
        own = dict(self.module.named_parameters(remove_duplicate=False))
        names = {name if name in own else plain for name, plain in plain_names(params).items()}
        return {name: own[name] for name in own if name in names and own[name].requires_grad}

    def _require_names(self, params: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
        first: dict[int, str] = {}
        for name, p in params.items():
            if name not in known:
                raise ArgumentError(f"the module has no parameter {name!r}", suggest(name, known))
            if p.shape != known[name].shape:
                raise ArgumentError(
                    f"parameter {name!r} has shape {tuple(p.shape)}; in the module it is {tuple(known[name].shape)}",
                    "give the parameters of this module",
                )
            other = first.setdefault(id(known[name]), name)
            if other != name:
                raise ArgumentError(
                    f"{other!r} and {name!r} are one tied tensor",
                    "name it once, as dict(model.named_parameters()) does",
                )


def called(module: Callable[..., Any], inputs: Any) -> Any:
    """What a module returns for the inputs of a batch, as a DataLoader's collated samples are usually passed on."""
    if isinstance(inputs, Mapping):
        return module(**inputs) if _binds(module, (), inputs) else module(inputs)
    if type(inputs) in (tuple, list):
        return module(*inputs) if _binds(module, inputs, {}) else module(inputs)
    return module(inputs)


def _binds(module: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    function = module.forward if isinstance(module, nn.Module) else module
    with contextlib.suppress(ValueError):
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError:
            return False
    return True


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of torch.compile, DataParallel, DistributedDataParallel and DeepSpeed, which compute the same.

    Raises ArgumentError for a module of which each rank holds only a part: by FSDP, tensor parallelism or ZeRO-3.
    """
    while True:
        if isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif _is_a(module, "DeepSpeedEngine"):
            module = _replicated(module)
        else:
            break
    if any(_is_a(part, "FullyShardedDataParallel") for part in module.modules()):
        raise ArgumentError(
            "the model is sharded by FullyShardedDataParallel, whose parts have no names",
            "load its full state dict into a plain module; or shard by fully_shard, for landscape.gathered",
        )
    if any(_is_a(p, "DTensor") for p in module.parameters()):
        n, size = (sum(f(p) for p in module.parameters()) for f in (Tensor.numel, lambda p: p.numel() * p.itemsize))
        raise ArgumentError(
            f"the parameters of {type(module).__name__} are DTensors, of which each rank holds a part",
            f"give landscape.gathered(model, plain): a plain module with all {n:,} parameters, {size / 1e9:.1f} GB on "
            "each rank",
        )
    return module


def _replicated(engine: Any) -> nn.Module:
    """The module of a DeepSpeed engine. Raises ArgumentError where each rank holds only a part of the parameters."""
    if _is_a(engine, "PipelineEngine") or engine.zero_optimization_stage() > 2:
        raise ArgumentError(
            f"the {type(engine).__name__} of DeepSpeed holds only a part of the parameters on each rank",
            "load a consolidated checkpoint into a plain module; ZeRO-1 and ZeRO-2 hold whole parameters",
        )
    module: nn.Module = engine.module
    return module


def _is_a(x: object, name: str) -> bool:
    """Whether an object is of a class of this name, whose library would take seconds to import."""
    return any(kind.__name__ == name for kind in type(x).__mro__)


def gathered(sharded: nn.Module, plain: nn.Module) -> nn.Module:
    """Fill a plain module with the parameters and buffers of one that is sharded by torch's `fully_shard`.

    All ranks call it together. Each then holds every parameter, and while it is filled one more tensor of the largest
    size. The same serves for parameters that tensor parallelism distributes.

    Args:
        sharded: the module whose parameters are DTensors.
        plain: a module of the same architecture, on any device; it keeps its modes.

    Returns:
        `plain`.

    Raises:
        ArgumentError: for another architecture.
    """
    for module in (sharded, plain):
        if not isinstance(module, nn.Module):
            raise ArgumentError(f"{kind_of(module)} is no module", "give two of torch.nn.Module")
    parts, own = sharded.state_dict(), plain.state_dict()
    names = plain_names(parts)
    theirs, ours = {(names[name], x.shape) for name, x in parts.items()}, {(name, x.shape) for name, x in own.items()}
    if different := sorted({name for name, _ in theirs ^ ours}):
        raise ArgumentError(
            f"the sharded and the plain module differ in {first_few(different, 3)}",
            "make the plain module by the same constructor",
        )
    for name, x in parts.items():
        own[names[name]].copy_(whole(x))
    return plain


def is_dtensor(x: object) -> bool:
    """Whether it is a tensor that ranks share."""
    return _is_a(x, "DTensor")


def whole(x: Tensor) -> Tensor:
    """A tensor, gathered from all ranks where they share it."""
    full: Tensor = getattr(x, "full_tensor", lambda: x)()
    return full


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each name without `_orig_mod.` of torch.compile, and without `module.` of DataParallel and DDP if all have it."""
    plain = {name: re.sub(r"(^|\.)_orig_mod\.", r"\1", name) for name in names}
    while plain and all(name.startswith("module.") for name in plain.values()):
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    return plain


def first_names(module: nn.Module) -> dict[str, str]:
    """The name that a tied parameter, or buffer, counts under, by each of its other names."""
    aliases = dict[str, str]()
    for named in (module.named_parameters, module.named_buffers):
        first = {id(p): name for name, p in named()}
        aliases |= {name: first[id(p)] for name, p in named(remove_duplicate=False) if name != first[id(p)]}
    return aliases


def device_of(model: object) -> torch.device | None:
    """The device of a module's parameters; None without any."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else first.device


def constants(of: object) -> list[Tensor]:
    """Dense tensors beside parameters that a module, or a functools.partial, holds: buffers and plain attributes."""
    candidates: list[object] = []
    if isinstance(of, functools.partial):
        candidates = [*of.args, *of.keywords.values()]
    elif isinstance(of, nn.Module):
        candidates = [*of.buffers(), *(value for module in of.modules() for value in vars(module).values())]
    # What has a gradient comes from parameters, as by weight norm.
    dense = [x for x in candidates if isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta]
    return [x for x in dense if not x.requires_grad]


def loss_in_precision(loss: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """A loss whose tensors, such as class weights of a module or a functools.partial, are in `dtype`."""
    if isinstance(loss, nn.Module):
        function = ModuleFunction(loss, dtype)
        return lambda *arguments: function({}, arguments)
    if isinstance(loss, functools.partial):
        args, keywords = (
            [in_precision(x, dtype) if isinstance(x, Tensor) else x for x in values]
            for values in (loss.args, loss.keywords.values())
        )
        return functools.partial(loss.func, *args, **dict(zip(loss.keywords, keywords, strict=True)))
    return loss


@contextlib.contextmanager
def twice_differentiable(dtype: torch.dtype) -> Iterator[None]:
    """Context in which models are differentiated twice: with gradients, and without what forbids them.

    Attention takes torch's plain kernels, as the fused ones have no second derivative; nn.TransformerEncoder not its
    fast path, whose outputs are others where tokens are masked. Reentrant activation checkpointing, which
    torch.autograd.grad cannot pass, computes the same without it. What a model makes by torch.zeros is in `dtype`.
    """
    fast, default = torch.backends.mha.get_fastpath_enabled(), torch.get_default_dtype()
    reentrant = torch.utils.checkpoint.CheckpointFunction
    torch.backends.mha.set_fastpath_enabled(False)
    torch.utils.checkpoint.CheckpointFunction = _NotCheckpointed  # type: ignore[misc, assignment]
    torch.set_default_dtype(dtype)
    try:
        with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_default_dtype(default)
        torch.utils.checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]
        torch.backends.mha.set_fastpath_enabled(fast)


class _NotCheckpointed:
    """In the place of torch.utils.checkpoint.CheckpointFunction."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *arguments: Any) -> Any:
        return function(*arguments)


def in_precision(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point tensors in `dtype`, complex ones in its complex counterpart, others as they are."""
    return x.to(dtype.to_complex() if x.is_complex() else dtype) if x.is_floating_point() or x.is_complex() else x
