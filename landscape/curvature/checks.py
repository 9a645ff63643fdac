"""Checks of objectives and parameters where they are made: without them their Hessian would be meaningless."""

from __future__ import annotations

import contextlib
import math
import numbers
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

from landscape.errors import ArgumentError, DoesNotFitError, LandscapeError, NumericsError, kind_of
from landscape.text import first_few

_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
Value = Callable[[Mapping[str, Tensor]], Tensor]


def require_data(inputs: Any, targets: Any, where: str = "") -> tuple[int, torch.device]:
    """The number of samples and the device of trees of tensors.

    Raises ArgumentError unless they are finite numbers, one target per input; where: of which part of the data.
    """
    count, device, first = -1, torch.device("cpu"), ""
    for what, data in (("inputs", inputs), ("targets", targets)):
        leaves = [(what + pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(data)[0]]
        for name, leaf in leaves:
            if hasattr(leaf, "__array__") and not isinstance(leaf, Tensor):
                raise ArgumentError(f"{name}{where} are {kind_of(leaf)}, not a tensor", _how_to_stack(leaf))
        found = [(name, leaf) for name, leaf in leaves if isinstance(leaf, Tensor)]
        if not found:
            raise ArgumentError(f"{what}{where} are {kind_of(data)}, not a tensor", _how_to_stack(data))
        for name, leaf in found:
            if leaf.ndim == 0:
                raise ArgumentError(
                    f"{name}{where} are a single number", "give a tensor whose first axis is the samples"
                )
            if count < 0:
                count, device, first = len(leaf), leaf.device, name
            if len(leaf) != count:
                raise ArgumentError(f"{count} {first} and {len(leaf)} {name}{where}", "give one target per input")
            if leaf.device != device:
                raise ArgumentError(
                    f"{first} are on {device}, {name} on {leaf.device}{where}", f"move one: targets.to({str(device)!r})"
                )
    if count == 0:
        raise ArgumentError(f"0 inputs and 0 targets{where}", "give one target per input")
    for what, data in (("inputs", inputs), ("targets", targets)):
        for path, leaf in pytree.tree_flatten_with_path(data)[0]:
            if isinstance(leaf, Tensor) and not is_finite(leaf):
                bad = ~torch.isfinite(leaf).reshape(len(leaf), -1).all(1)
                raise ArgumentError(
                    f"{int(bad.sum())} of {len(leaf)} {what}{pytree.keystr(path)}{where} have NaN or infinite numbers, "
                    f"the first at row {int(bad.nonzero()[0])}",
                    "leave these samples out, or mend them",
                )
    return count, device


def require_settings(model: Any, loss: Any, weight_decay: Any, dtype: Any) -> None:
    """Raise ArgumentError for meaningless settings of an objective."""
    if not callable(model):
        raise ArgumentError(f"the model is {kind_of(model)}", "give a module or a function of (params, inputs)")
    reduction = getattr(loss, "reduction", "none")
    if reduction != "none":
        raise ArgumentError(
            f"{type(loss).__name__} has reduction {reduction!r}; the objective takes the mean itself",
            f"pass {type(loss).__name__}(reduction='none')",
        )
    if not callable(loss):
        raise ArgumentError(f"the loss is {kind_of(loss)}", "give a function of (outputs, targets)")
    if not isinstance(weight_decay, numbers.Real) or not math.isfinite(weight_decay):
        raise ArgumentError(f"weight_decay is {weight_decay!r}", "give a finite number")
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"dtype is {dtype}", "take torch.float64, or torch.float32 where the model needs it")


def require_parameters(params: Any, device: torch.device) -> None:
    """Raise for parameters that are not real floating-point tensors by name on one device, or not finite."""
    if not isinstance(params, Mapping):
        raise ArgumentError(f"params are {kind_of(params)}", "give tensors by name: dict(model.named_parameters())")
    if not params:
        raise ArgumentError("params are empty", "give tensors by name: dict(model.named_parameters())")
    for name, p in params.items():
        require_real(name, p)
        if p.device != device:
            raise ArgumentError(
                f"parameter {name!r} is on {p.device}, the data on {device}", "move the model or the data"
            )
        if not is_finite(p):
            bad = int((~torch.isfinite(p)).sum())
            raise NumericsError(
                f"parameter {name!r} has {bad} NaN or infinite numbers", "take an earlier checkpoint, or a smaller lr"
            )


def require_real(name: str, p: Any) -> None:
    """Raise ArgumentError for a parameter that is no real floating-point tensor."""
    if not isinstance(p, Tensor):
        raise ArgumentError(f"parameter {name!r} is {kind_of(p)}", "give a tensor")
    if isinstance(p, UninitializedParameter):
        raise ArgumentError(f"parameter {name!r} has no shape yet", "call the module once on its inputs")
    if p.is_complex():
        raise ArgumentError(
            f"parameter {name!r} is {p.dtype}: the Hessian is defined here for real parameters",
            "give torch.view_as_real(p), and have the model apply torch.view_as_complex to it",
        )
    if not p.is_floating_point():
        raise ArgumentError(
            f"parameter {name!r} is {p.dtype}, which has no derivatives", "leave it out, or convert it to float"
        )


def require_outputs(outputs: Any, dtype: torch.dtype) -> Tensor:
    """The outputs of a model. Raises ArgumentError unless they are one real tensor in the objective's precision."""
    if not isinstance(outputs, Tensor):
        raise ArgumentError(
            f"the model returns {kind_of(outputs)}, not a tensor",
            f"say which tensor the loss takes: outputs=lambda out: out{_first_part(outputs)}",
        )
    _require_dtype("the model's outputs", outputs, dtype)
    return outputs


def require_values(values: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ArgumentError for a loss that does not return one number per sample (n,), or per token (n, T)."""
    if not isinstance(values, Tensor):
        raise ArgumentError(f"the loss returns {kind_of(values)}", "return a tensor, one value per sample")
    if values.shape != shape:
        n = shape[0]
        wanted = "sample" if len(shape) == 1 else "token"
        if values.ndim == 0:
            hint = "pass reduction='none', or leave out the mean or sum: the objective takes the mean itself"
        elif len(shape) == 1 and values.shape[:1] == shape and values.numel() == n:
            hint = "flatten it: loss(outputs, targets).reshape(len(outputs))"
        elif len(shape) == 2 and values.shape[:2] == shape:
            hint = "flatten the axes of the tokens to one, outputs to (N, T, ...) and targets to (N, T)"
        elif len(shape) == 1 and values.shape[:1] == shape:
            hint = "sum or average over the other axes; for one value per token (n, T) pass per_token=True"
        else:
            hint = "check that outputs and targets have the shapes which the loss expects"
        raise ArgumentError(
            f"the loss returns shape {tuple(values.shape)} for {n} samples; one value per {wanted}, {shape}, is needed",
            hint,
        )
    _require_dtype("the values of the loss", values, dtype)


def require_labels(labels: Tensor, classes: int) -> None:
    """Raise ArgumentError for class indices outside 0 ... classes - 1, such as torch's ignore_index."""
    low, high = (int(x) for x in labels.aminmax())
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"labels run from {low} to {high}; the model has {classes} classes, 0 to {classes - 1}",
            "number the classes from 0, and leave out samples without a class (with per_token=True, tokens of label "
            "-100 are left out)",
        )


def require_finite(values: Tensor) -> None:
    """Raise NumericsError for a loss that is NaN or infinite somewhere."""
    if not is_finite(values):
        bad = int((~values.isfinite()).sum())
        raise NumericsError(
            f"the loss of {bad} of the {values.numel()} samples tried is NaN or infinite",
            "look at the model's outputs there: overflow, log of 0, or parameters that diverged",
        )


def require_independent(whole: Tensor, parts: Tensor, outputs: Tensor) -> None:
    """Raise ArgumentError if the losses of samples change when they go through the model in two parts."""
    eps = torch.finfo(whole.dtype).eps
    scale, difference = (float(x.abs().max()) for x in (torch.cat([whole, parts]), whole - parts))
    if difference > eps**0.5 * scale + 1e3 * eps * (1 + float(outputs.abs().max())):
        raise ArgumentError(
            f"the loss of a sample changes by {difference / scale:.1%} with the samples beside it in its chunk",
            "pass chunk_size=None, so that all samples go together, in one process; or remove what ties them (batch "
            "norm without running statistics, losses of pairs, means over the batch)",
        )


def require_same(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Raise ArgumentError for a parameter that is not in `after`, or differs there."""
    for name, p in before.items():
        if name not in after or not torch.allclose(p, after[name], rtol=0, atol=0, equal_nan=True):
            raise ArgumentError(
                f"the model changes its parameter {name!r} in place",
                "compute a new tensor from it instead; make nn.Embedding without max_norm, and scale its rows once "
                "before",
            )


def unused_in(terms: Iterable[Value], params: Mapping[str, Tensor]) -> list[str]:
    """Parameters that none of the terms depends on. Raises ArgumentError for a sparse gradient."""
    unused = list(params)
    leaves = leaves_of(params)
    for term in terms:
        value = term(leaves)
        if value.requires_grad:
            found = torch.autograd.grad(value, [leaves[n] for n in unused], allow_unused=True)
            sparse = [n for n, g in zip(unused, found, strict=True) if g is not None and g.layout != torch.strided]
            if sparse:
                raise ArgumentError(f"the gradient of {sparse[0]!r} is sparse", "make its module with sparse=False")
            unused = [n for n, g in zip(unused, found, strict=True) if g is None]
        if not unused:
            break
    return unused


def require_used(unused: Sequence[str]) -> None:
    """Raise ArgumentError for parameters that the loss does not depend on, if there are any."""
    if not unused:
        return
    raise ArgumentError(
        f"the loss does not depend on {first_few(list(map(repr, unused)), 3)}",
        "leave out of params what the model does not use; check the spelling, and for detach() or no_grad in the "
        "model; in a module, take the part away before it is recorded, or have forward add 0 * p.sum() of its p",
    )


def require_replaced(value: Tensor, own: Mapping[str, Tensor]) -> None:
    """Raise ArgumentError for a value that depends on a module's own parameters, in whose place others were given."""
    found = torch.autograd.grad(value, list(own.values()), allow_unused=True) if own and value.requires_grad else ()
    read = [name for name, gradient in zip(own, found, strict=False) if gradient is not None]
    if read:
        raise ArgumentError(
            f"the loss reads {read[0]!r} of the module itself, a constant beside the parameter that is given",
            "in forward reach it as an attribute of its module, such as self.head.weight, not in a list or closure; in "
            "loss= and outputs= use what the model returns; L2 is weight_decay=",
        )


def random_state(device: torch.device) -> tuple[Any, ...]:
    """The state of every generator that a model draws random numbers from."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    # Models that draw by NumPy mostly draw from its global generator.
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), pickle.dumps(legacy), [state.tolist() for state in states]


def is_finite(x: Tensor) -> bool:
    """Whether all numbers of a tensor are finite; a finite sum proves it at once."""
    return not (x.is_floating_point() or x.is_complex()) or bool(x.sum().isfinite()) or bool(x.isfinite().all())


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn any exception of the user's model or loss into an ArgumentError that names it."""
    try:
        yield
    except LandscapeError:
        raise
    except Exception as error:
        words = next(iter(str(error).strip().splitlines()), "")[:200]
        if isinstance(error, MemoryError) or any(w in words for w in _NO_MEMORY):
            raise DoesNotFitError(f"{what}: {words}", "take a smaller chunk_size") from error
        raise ArgumentError(
            f"{what}: {type(error).__name__}: {words}",
            "it must work on these shapes and in the objective's dtype, and be differentiable twice (torch.compile, "
            "torch.utils.checkpoint, recurrent layers of cuDNN and fused attention are not)",
        ) from error


def leaves_of(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.detach().requires_grad_() for n, p in params.items()}


def _require_dtype(what: str, x: Tensor, dtype: torch.dtype) -> None:
    if x.dtype == dtype:
        return
    hint = "return floating-point numbers, which have derivatives"
    if x.is_complex():
        hint = "return real parts, torch.view_as_real(z)"
    elif x.is_floating_point():
        hint = f"remove casts from model and loss, such as .float() and autocast; or pass dtype={x.dtype}"
    raise ArgumentError(f"{what} are {x.dtype} in an objective of {dtype}", hint)


def _first_part(outputs: Any) -> str:
    """The expression for the tensor that is most likely meant."""
    names = outputs.keys() if isinstance(outputs, Mapping) else getattr(outputs, "__dict__", {})
    held = [n for n in names if isinstance(outputs[n] if isinstance(outputs, Mapping) else getattr(outputs, n), Tensor)]
    name = next((n for n in ("logits", *held) if n in held), None)
    if name is None:
        return "[0]"
    return f"[{name!r}]" if type(outputs) is dict else f".{name}"


def _how_to_stack(data: Any) -> str:
    if hasattr(data, "__array__"):
        return "give torch.from_numpy(array)"
    if isinstance(data, Mapping | list | tuple | int | float):
        return "give a tensor, or a dict, tuple or list of tensors"
    return "a loader gives inputs and targets: pass it alone, without targets"
