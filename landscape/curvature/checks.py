"""Checks of an objective before it is used: derivatives, determinism, parameters without a use."""

from __future__ import annotations

import contextlib
import math
import numbers
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from landscape.errors import ArgumentError, DoesNotFitError, LandscapeError, NumericsError, kind_of, suggest
from landscape.text import first_few

_MATCH = 1e-6
"""Relative difference that counts as agreement, or the root of the precision: of a whole parameter, as a norm."""
_LARGE_STEP = 1e-4
_TRIES, _STRIKES = 4, 3
_VALUE = ""
"""Key of the value itself beside the names of parameters."""
Point = dict[str, Tensor]
Value = Callable[[Mapping[str, Tensor]], Tensor]
At = Callable[[Mapping[str, Tensor]], AbstractContextManager[None]]


def require_derivatives(value: Value, params: Mapping[str, Tensor], context: At) -> None:
    """Raise ArgumentError where automatic differentiation contradicts finite differences.

    Along random lines near `params`, where no kink is hit exactly: the value's slope against the gradient, and the
    gradient's against the Hessian, parameter by parameter. Finite differences that change with their step size, because
    of kinks or rounding, do not count, and three lines have to agree. Without errors the check costs three gradients
    and a Hessian-vector product. context: around the value and what is differentiated of it.
    """
    params = {n: p.detach() for n, p in params.items()}
    size = {n: float(p.norm()) / max(p.numel(), 1) ** 0.5 for n, p in params.items()}
    typical = max(size.values()) or 1.0
    generator = torch.Generator().manual_seed(0)

    def random(n: str) -> Tensor:
        numbers = torch.randn(params[n].shape, generator=generator, dtype=torch.float64)
        return (size[n] or typical) * numbers.to(params[n])

    strikes: dict[str, int] = {}
    for _ in range(_TRIES):
        centre, step = {n: p + 1e-3 * random(n) for n, p in params.items()}, {n: random(n) for n in params}
        wrong = _disagreements(value, centre, step, context)
        if wrong is None:
            return
        for name in wrong:
            strikes[name] = strikes.get(name, 0) + 1
        sure = {n: difference for n, difference in wrong.items() if strikes[n] == _STRIKES}
        if sure:
            name = max(sure, key=sure.__getitem__)
            order, of = ("first", "loss") if name == _VALUE else ("second", f"gradient of {name!r}")
            raise ArgumentError(
                f"the {order} derivative by automatic differentiation is {100 * sure[name]:.3g}% off finite "
                f"differences of the {of}",
                "build model and loss from torch operations that can be differentiated twice, without detach(), "
                "straight-through estimates, half precision, @once_differentiable, torch's "
                "weight_norm, and spectral_norm in training mode; where the loss is next to 0, take landscape's "
                "cross_entropy, which keeps its digits",
            )


def _disagreements(value: Value, centre: Point, step: Point, context: At) -> dict[str, float] | None:
    """Names whose derivative along a line is certainly wrong, with the relative difference; None if all are right.

    step: its entries without a gradient are set to 0.
    """
    leaves = {n: p.detach().requires_grad_() for n, p in centre.items()}
    with context(leaves):
        at, gradient = _gradient(value, leaves, create_graph=True)
        # Entries without a gradient are constant, such as the padding row of an embedding.
        for n, g in gradient.items():
            step[n] = torch.where(g != 0, step[n], 0)
        slope = torch.stack([(g * step[n]).sum() for n, g in gradient.items()]).sum()
        if slope.requires_grad:
            second = torch.autograd.grad(slope, list(leaves.values()), materialize_grads=True)
        else:
            second = tuple(torch.zeros_like(p) for p in centre.values())
    exact = {_VALUE: slope.detach(), **dict(zip(centre, second, strict=True))}
    largest = max(float(g.detach().norm()) for g in gradient.values())
    scale = {**dict.fromkeys(centre, largest), _VALUE: abs(float(at))}
    # With a large model each of these is a good part of the memory.
    del leaves, gradient, slope

    eps = torch.finfo(at.dtype).eps
    small, match = eps**0.45, max(_MATCH, eps**0.5)
    near = _differences(value, centre, step, small, context)
    off = {n: float((near[n] - exact[n]).norm()) for n in exact}
    size = {n: max(float(near[n].norm()), float(exact[n].norm())) for n in exact}
    suspects = [n for n in exact if not off[n] <= match * size[n] + 1e3 * eps / small * scale[n]]
    if not suspects:
        return None
    twice, far = (_differences(value, centre, step, h, context) for h in (2 * small, _LARGE_STEP))
    wrong = {}
    for n in suspects:
        is_steady = float((near[n] - twice[n]).norm()) <= 0.01 * off[n]
        # A small step is lost where a model rounds to float32.
        is_better_far = float((far[n] - exact[n]).norm()) <= 0.1 * off[n]
        if is_steady and not is_better_far:
            wrong[n] = off[n] / size[n]
    return wrong


def _differences(value: Value, centre: Point, step: Point, h: float, context: At) -> Point:
    """Central differences of the value and of each parameter's gradient along a step."""
    ends = []
    for t in (h, -h):
        leaves = {n: (p + t * step[n]).detach().requires_grad_() for n, p in centre.items()}
        with context(leaves):
            at, gradient = _gradient(value, leaves)
        ends.append({_VALUE: at, **gradient})
    return {n: (ends[0].pop(n) - ends[1].pop(n)) / (2 * h) for n in list(ends[0])}


def _gradient(value: Value, leaves: Point, create_graph: bool = False) -> tuple[Tensor, Point]:
    """Value and gradient by name."""
    at = value(leaves)
    gradients = torch.autograd.grad(at, list(leaves.values()), create_graph=create_graph, materialize_grads=True)
    return at.detach(), dict(zip(leaves, gradients, strict=True))


_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
WHOLE = (
    "leave chunk_size out, so that batches are whole, in one process; or remove what ties their samples (batch norm in "
    "training mode, losses of pairs, hard examples, means over the batch)"
)
"""What to do where a batch cannot be cut."""


def require_settings(model: Any, loss: Any, weight_decay: Any, dtype: Any, weight: Any = None) -> None:
    """Raise ArgumentError for meaningless settings of an objective."""
    if not callable(model):
        raise ArgumentError(f"the model is {kind_of(model)}", "give a module or a function of (params, inputs)")
    if loss is not None and not callable(loss):
        raise ArgumentError(
            f"the loss is {kind_of(loss)}", "give a torch loss, or a function of (outputs, targets) or (model, batch)"
        )
    if weight is not None and not callable(weight):
        raise ArgumentError(f"weight is {kind_of(weight)}", "give a function of a batch: weight=lambda batch: ...")
    if not isinstance(weight_decay, numbers.Real) or not math.isfinite(weight_decay):
        raise ArgumentError(f"weight_decay is {weight_decay!r}", "give a finite number")
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"dtype is {dtype}", "take torch.float64, or torch.float32 where the model needs it")


def require_parameters(params: Any, device: torch.device | None = None) -> None:
    """Raise for parameters that are not real floating-point tensors by name, on a device, or not finite."""
    if not isinstance(params, Mapping):
        raise ArgumentError(f"params are {kind_of(params)}", "give tensors by name: dict(model.named_parameters())")
    if not params:
        raise ArgumentError("params are empty", "give tensors by name: dict(model.named_parameters())")
    for name, p in params.items():
        require_real(name, p)
        if device and p.device != device:
            raise ArgumentError(
                f"parameter {name!r} is on {p.device}, the data on {device}", "move the model or the data"
            )
        if not is_finite(p):
            bad = int((~torch.isfinite(p)).sum())
            raise NumericsError(
                f"parameter {name!r} has {bad} NaN or infinite numbers", "take an earlier checkpoint, or a smaller lr"
            )


def require_real(name: str, p: Any) -> None:
    """Raise ArgumentError unless a parameter is a real floating-point tensor."""
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


def require_value(value: Any, dtype: torch.dtype) -> None:
    """Raise ArgumentError unless a loss is a real tensor of at least the objective's precision."""
    if not isinstance(value, Tensor):
        raise ArgumentError(f"the loss returns {kind_of(value)}", "return a tensor: a number, or one for each sample")
    hint = "return floating-point numbers, which have derivatives"
    if value.is_complex():
        hint = "return real parts, or absolute values"
    elif value.is_floating_point():
        if torch.finfo(value.dtype).eps <= torch.finfo(dtype).eps:
            return
        hint = f"remove casts from model and loss, such as .bfloat16() and autocast; or pass dtype={value.dtype}"
        if value.dtype not in (torch.float32, torch.float64):
            hint = "remove casts from model and loss, such as .bfloat16() and autocast"
    raise ArgumentError(f"the loss is {value.dtype} in an objective of {dtype}", hint)


def require_weight(weight: Any) -> float:
    """What a batch counts. Raises ArgumentError for what is no finite number of at least 0."""
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = weight.item()
    if not isinstance(weight, numbers.Real) or not 0 <= float(weight) < math.inf:
        raise ArgumentError(f"weight= returns {weight!r} for a batch", "return a number of at least 0")
    return float(weight)


def require_finite(values: Tensor) -> None:
    """Raise NumericsError for batches whose loss is NaN or infinite."""
    if not is_finite(values):
        bad = (~values.isfinite()).nonzero()
        raise NumericsError(
            f"the loss of {len(bad)} of {len(values)} batches is NaN or infinite, first of batch {int(bad[0])}",
            "look at the model's outputs there: overflow, log of 0, or parameters that diverged",
        )


def require_independent(whole: Tensor, parts: Tensor) -> None:
    """Raise ArgumentError if the loss of a batch is not the sum of those of its parts."""
    eps = torch.finfo(whole.dtype).eps
    difference, scale = float((whole - parts.sum()).abs()), max(float(whole.abs()), float(parts.abs().sum()))
    if not difference <= eps**0.5 * scale:
        raise ArgumentError(
            f"the loss of a batch changes by {100 * difference / scale:.2g}% when it is cut into parts of other sizes",
            WHOLE,
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


def unused_in(terms: Iterable[Value], params: Mapping[str, Tensor], at: At) -> list[str]:
    """Parameters that none of the terms depends on; at: around a term and its backward. ArgumentError: sparse ones."""
    unused = list(params)
    leaves = leaves_of(params)
    for term in terms:
        with at(leaves):
            value, wanted = term(leaves), [leaves[n] for n in unused]
            gradients = torch.autograd.grad(value, wanted, allow_unused=True) if value.requires_grad else ()
        if gradients:
            sparse = [n for n, g in zip(unused, gradients, strict=True) if g is not None and g.layout != torch.strided]
            if sparse:
                raise ArgumentError(f"the gradient of {sparse[0]!r} is sparse", "make its module with sparse=False")
            unused = [n for n, g in zip(unused, gradients, strict=True) if g is None]
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
    """Raise ArgumentError for a value that depends on a module's own parameters, which others should replace."""
    gradients = torch.autograd.grad(value, list(own.values()), allow_unused=True) if own and value.requires_grad else ()
    read = [name for name, gradient in zip(own, gradients, strict=False) if gradient is not None]
    if read:
        raise ArgumentError(
            f"the loss reads {read[0]!r} of the module itself, a constant beside the parameter that is given",
            "in forward reach it as an attribute of its module, such as self.head.weight, not in a list or closure; a "
            "loss takes it from the model that it is given, loss=lambda model, batch: ...; L2 is weight_decay=",
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
def blaming(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn an exception of the user's code into an ArgumentError that names it; hint: of others than model and loss."""
    try:
        yield
    except LandscapeError:
        raise
    except Exception as error:
        words = next(iter(str(error).strip().splitlines()), "")[:200]
        if isinstance(error, MemoryError) or any(w in words for w in _NO_MEMORY):
            raise DoesNotFitError(f"{what}: {words}", "take a smaller chunk_size") from error
        raise ArgumentError(f"{what}: {type(error).__name__}: {words}", hint or _mend(words)) from error


def _mend(words: str) -> str:
    """What to do about a failure of the user's model or loss."""
    if "complex" in words.lower():
        return "give a real model real inputs: torch.view_as_real(x) of complex ones"
    if "dtype" in words or "scalar type" in words:
        return (
            "make constants in the dtype of what they meet, as in torch.ones(3, dtype=x.dtype); or pass "
            "dtype=torch.float32, on the command line --dtype float32"
        )
    if "derivative for" in words or "does not require grad" in words or "double backward" in words:
        return "replace it by torch operations that can be differentiated twice (torch.compile's and fused ones cannot)"
    if "size" in words or "shape" in words:
        return (
            "call the model on this batch in Python; one with a batch size of its own takes a list of such batches, "
            "without chunk_size"
        )
    return "call the model and the loss on this batch in Python to see the whole traceback"


def leaves_of(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.detach().requires_grad_() for n, p in params.items()}


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ArgumentError for an argument that is not a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name} is {value!r}", f"give a whole number of at least {least}")


def require_place(what: str, value: Any, count: int) -> int:
    """The place of one of `count`. Raises ArgumentError for a place that none has."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= int(value) < count:
        raise ArgumentError(f"there is no {what} {value!r}", f"give a whole number from 0 to {count - 1}")
    return int(value)


def require_seed(value: Any) -> None:
    """Raise ArgumentError for an argument that does not start torch's random numbers."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= int(value) < 1 << 64:
        raise ArgumentError(f"seed is {value!r}", "give an integer from 0 to 2^64 - 1")


def require_positive(name: str, value: Any) -> None:
    """Raise ArgumentError for an argument that is not a finite positive number."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ArgumentError(f"{name} is {value!r}", "give a finite number above 0")


def require_not_negative(name: str, value: Any) -> None:
    """Raise ArgumentError for an argument that is not a number of at least 0."""
    if not isinstance(value, numbers.Real) or not float(value) >= 0:
        raise ArgumentError(f"{name} is {value!r}", "give a number of at least 0")


def require_number(name: str, value: Any) -> None:
    """Raise ArgumentError for an argument that is not a finite number."""
    if not isinstance(value, numbers.Real) or not math.isfinite(float(value)):
        raise ArgumentError(f"{name} is {value!r}", "give a finite number")


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ArgumentError for an argument that is not among the choices."""
    if value not in choices:
        raise ArgumentError(f"{name} is {value!r}", f"choose from {', '.join(choices)}")


def require_tensor(name: str, value: Any, verb: str = "are") -> None:
    """Raise ArgumentError for an argument that is not a tensor."""
    if not isinstance(value, Tensor):
        hint = "give torch.from_numpy(array)" if hasattr(value, "__array__") else "give a tensor"
        raise ArgumentError(f"{name} {verb} {kind_of(value)}, not a tensor", hint)
    if value.is_complex():
        raise ArgumentError(f"{name} {verb} complex, {value.dtype}", "give real numbers")


def require_vectors(name: str, value: Any, rows: int, before: str = "") -> None:
    """Raise ArgumentError for what are no finite vectors (rows, m); before: an axis that may come first."""
    require_tensor(name, value, "is")
    if value.ndim not in ((2, 3) if before else (2,)) or value.shape[-2] != rows:
        also = f", or ({before}, {rows}, m)" if before else ""
        raise ArgumentError(f"{name} has the shape {tuple(value.shape)}", f"give vectors ({rows}, m){also}")
    if not bool(torch.isfinite(value).all()):
        raise ArgumentError(f"{name} holds NaN or infinity", "give finite vectors, or none")


def chosen(names: Any, params: Mapping[str, Tensor]) -> list[str]:
    """The names of a block. Raises ArgumentError for a word, unknown names, names given twice and none at all."""
    if isinstance(names, str):
        raise ArgumentError(f"a block is a list of names, not {names!r}", f"give [{names!r}]")
    for name in names:
        if name not in params:
            raise ArgumentError(f"no parameter {name!r} among {', '.join(params)}", suggest(name, params))
    if len(set(names)) < len(names):
        raise ArgumentError(f"a block with names given twice: {', '.join(names)}", "give each name once")
    if sum(params[name].numel() for name in names) == 0:
        raise ArgumentError("a block of no parameters", "name at least one that has elements")
    return list(names)
