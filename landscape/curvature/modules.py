"""A torch module as a function of its parameters; the module is never changed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from landscape.errors import ArgumentError, suggest
from landscape.text import first_few


class ModuleFunction:
    """A module as a function of (parameters by name, inputs), in one precision.

    inputs: one argument; a tuple or list of them; a dict of keyword arguments.

    Parameters that are not given, and buffers, are constants, copied so that none is changed. Raises
    ArgumentError for names and shapes that the module does not have, for one tied tensor given twice, and for
    submodules whose training mode changes the loss.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self._by_mode = {name: m for name, m in module.named_modules() if _depends_on_mode(m)}
        self._require_eval()

    def __call__(self, params: Mapping[str, Tensor], inputs: Any) -> Any:
        self._require_eval()
        own = {
            **dict(self.module.named_parameters(remove_duplicate=False)),
            **dict(self.module.named_buffers(remove_duplicate=False)),
        }
        self._require_names(params, own)
        # By identity: one tensor for all places of a tied parameter.
        values = {id(own[n]): p for n, p in params.items()}
        values |= {id(p): in_precision(p.detach(), self.dtype).clone() for p in own.values() if id(p) not in values}
        everything = {n: values[id(p)] for n, p in _each_place(self.module).items()}
        # As a DataLoader's collated samples are usually passed on.
        arguments, keywords = (), {}
        if isinstance(inputs, dict):
            keywords = inputs
        else:
            arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        return torch.func.functional_call(self.module, everything, arguments, keywords, tie_weights=False)

    @property
    def is_training(self) -> bool:
        """Whether any part of the module is in training mode."""
        return any(module.training for module in self.module.modules())

    def replaced(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's own trainable parameters, in whose place these are given."""
        own = dict(self.module.named_parameters(remove_duplicate=False))
        return {name: own[name] for name in params if name in own and own[name].requires_grad}

    def _require_eval(self) -> None:
        active = [f"{type(m).__name__} {name!r}" for name, m in self._by_mode.items() if m.training]
        if active:
            raise ArgumentError(
                f"in training mode: {first_few(active, 3)}",
                "call model.eval(): dropout is random, and batch norm ties the samples of a chunk together",
            )

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


def _each_place(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by one name for each place that holds them: all of a tied one, one of a shared submodule.

    By a second name of the same place functional_call would leave in the module what it has put there.
    """
    return {
        name: held
        for prefix, part in module.named_modules()
        for named in (part.named_parameters, part.named_buffers)
        for name, held in named(prefix, recurse=False, remove_duplicate=False)
    }


def first_names(module: nn.Module) -> dict[str, str]:
    """The name that a tied parameter, or buffer, counts under, by each of its other names."""
    found = dict[str, str]()
    for named in (module.named_parameters, module.named_buffers):
        first = {id(p): name for name, p in named()}
        found |= {name: first[id(p)] for name, p in named(remove_duplicate=False) if name != first[id(p)]}
    return found


def device_of(model: object) -> torch.device | None:
    """The device of a module's parameters; None without any."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else first.device


def constants(of: object) -> list[Tensor]:
    """Dense tensors beside parameters that a module, or a functools.partial, holds: buffers and plain attributes."""
    found: list[object] = []
    if isinstance(of, functools.partial):
        found = [*of.args, *of.keywords.values()]
    elif isinstance(of, nn.Module):
        found = [*of.buffers(), *(value for module in of.modules() for value in vars(module).values())]
    # What has a gradient comes from parameters, as by weight norm.
    dense = [x for x in found if isinstance(x, Tensor) and x.layout == torch.strided and not x.is_meta]
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
def plain_attention() -> Iterator[None]:
    """Context in which attention takes torch's plain kernels, as the fused ones have no second derivative.

    Nor does nn.TransformerEncoder take its fast path, which it does without gradients alone: where tokens are masked,
    its outputs are others than those that are differentiated.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def in_precision(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point tensors in `dtype`, complex ones in its complex counterpart, others as they are."""
    return x.to(dtype.to_complex() if x.is_complex() else dtype) if x.is_floating_point() or x.is_complex() else x


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether training mode changes the outputs of a submodule."""
    if isinstance(module, _BatchNorm | nn.RReLU):
        return True
    if isinstance(module, _InstanceNorm):
        return module.track_running_stats
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0
