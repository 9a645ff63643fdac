"""Rounding measured: the same products once more, with every operation of torch moved in the last place.

A float64 result differs from the exact one by what its operations round. Asymmetry shows some of that; cancellation,
such as p - p^2 next to p = 1, is symmetric. So the computation is repeated in random rounding (Monte Carlo arithmetic,
Parker 1997; CESTAC, Vignes 1993), and what the result changes by is of the size of its error, whatever the model and
the loss, forward and backward.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from landscape.curvature.vectors import column_norms
from landscape.errors import NumericsError

RUNS = 2
_INTEGERS = {torch.float64: (torch.int64, 63, -7046029254386353131), torch.float32: (torch.int32, 31, -1640531527)}
"""By precision the integers of its bits, how far their sign lies, and an odd number to scramble them with."""
_MOVES = {
    "cat", "clone", "constant_pad_nd", "copy_", "embedding", "fill_", "flip", "gather", "index", "index_select",
    "lift_fresh", "masked_fill", "masked_fill_", "max_pool2d_with_indices", "neg", "relu", "repeat", "roll", "scatter",
    "scatter_", "select_backward", "slice_backward", "stack", "threshold_backward", "unfold", "where", "zero_",
}  # fmt: skip
"""Operations that move and choose numbers, and round none."""
_FUSED = {
    "binary_cross_entropy",
    "binary_cross_entropy_backward", "elu", "elu_backward", "gelu", "gelu_backward", "huber_loss",
    "huber_loss_backward", "log_sigmoid_backward", "log_sigmoid_forward", "logit", "logsumexp", "mish",
    "mish_backward", "mse_loss", "mse_loss_backward", "sigmoid_backward", "silu", "silu_backward", "smooth_l1_loss",
    "softplus", "softplus_backward", "tanh_backward",
}  # fmt: skip
"""Kernels of several operations, which torch has formulas of: what cancels inside would not be seen from outside."""
_active: ContextVar[bool] = ContextVar("active", default=False)


def is_rounding_randomly() -> bool:
    """Whether operations are moved now, so that nothing that was computed before may be used again."""
    return _active.get()


@contextlib.contextmanager
def random_rounding(seed: int, dtype: torch.dtype = torch.float64) -> Iterator[None]:
    """Context in which every operation in this precision is moved in the last place, in its own way for each seed."""
    before = _active.set(True)
    try:
        with _Moved(seed, dtype):
            yield
    finally:
        _active.reset(before)


def rounding_change(product: Callable[[Tensor], Tensor], vectors: Tensor, images: Tensor, seed: int) -> Tensor:
    """By how much rounding may have moved the images (n, m) of vectors: a norm of each (m,), with a margin.

    Costs RUNS times the products. Infinite where a moved operation leaves its domain: nothing is known there. norms: of
    columns.
    """
    moved = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
    for run in range(RUNS):
        with random_rounding(seed * RUNS + run, vectors.dtype), contextlib.suppress(NumericsError):
            change = column_norms(product(vectors).double() - images.double())
            moved = torch.maximum(moved, torch.where(change.isfinite(), change, torch.inf))
            continue
        moved = torch.full_like(moved, torch.inf)
    return moved


class _Moved(TorchDispatchMode):
    """Multiplies what operations return by 1 + (a + b) eps: whole numbers a of the operation and b of the number.

    The same a for an operation shows what adds up over samples, such as a rounding that is always down. b, from the
    bits of each number, shows what cancels within a sum, and is the same for equal samples, as rounding is. Moves of up
    to 31 units rarely cancel; as an operation rounds by half a unit, the change is an error with a margin. Sums and
    products of matrices round within: there, what they take is moved, too.
    """

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # What a float64 computation makes in float32 by itself are constants, but for what is cast to it.
        self._dtype = dtype
        self._random = random.Random(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would else import its compiler, which takes seconds, to have it leave this class alone."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        formula: Callable[..., Any] | None = _OWN.get(name) or (_formula(func) if name in _FUSED else None)
        if formula:
            with self:
                return formula(*args, **kwargs)
        returned = func._schema.returns
        is_inplace = any(r.alias_info is not None and r.alias_info.is_write for r in returned)
        is_view = not is_inplace and any(r.alias_info is not None for r in returned)
        # What ranks send each other goes into what they give.
        if is_view or "c10d" in func.namespace or name in _MOVES:
            return func(*args, **kwargs)
        if name == "_to_copy":
            copy = func(*args, **kwargs)
            # torch.func also copies numbers that are no tensors.
            is_rounded = isinstance(args[0], Tensor) and args[0].dtype == self._dtype != copy.dtype
            return self._moved(copy, copy.dtype) if is_rounded else copy
        if torch.Tag.pointwise not in func.tags:
            first, rest = (args[:1], args[1:]) if is_inplace else ((), args)
            args = (*first, *pytree.tree_map_only(Tensor, self._moved, rest))
        output = func(*args, **kwargs)
        if is_inplace:
            pytree.tree_map_only(Tensor, lambda x: x.copy_(self._moved(x)), output)
            return output
        return pytree.tree_map_only(Tensor, self._moved, output)

    def _moved(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        if x.is_complex():
            return torch.view_as_complex(self._moved(torch.view_as_real(x.resolve_conj()), dtype))
        # A tensor of zeros that autograd makes has no memory.
        if x.dtype not in _INTEGERS or x.dtype != (dtype or self._dtype):
            return x
        if x.numel() == 0 or x.layout != torch.strided or x._is_zerotensor():
            return x
        integer, sign, odd = _INTEGERS[x.dtype]
        eps, salt = torch.finfo(x.dtype).eps, self._random.getrandbits(sign - 1)
        # -16 to 15 units of the number's bits, and 0 to 16 of the operation.
        units = ((x.view(integer) ^ salt) * odd) >> (sign - 4)
        return x * (units.to(x.dtype) * eps + (1 + eps * self._random.randint(0, 16)))


def _log_softmax(x: Tensor, dim: int, _: bool) -> Tensor:
    apart = x - x.amax(dim, keepdim=True)
    return apart - apart.exp().sum(dim, keepdim=True).log()


def _log_softmax_backward(grad: Tensor, output: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return grad - output.exp() * grad.sum(dim, keepdim=True)


_OWN: dict[str, Callable[..., Any]] = {
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    # Zeros without memory, which torch.func makes: torch ends the process where they are multiplied in a dispatch mode.
    "_efficientzerotensor": torch.zeros,
}
"""Formulas of our own: torch's would import SymPy, or there is none."""


@functools.cache
def _formula(func: Any) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table

    formula = decomposition_table.get(func)
    # Without what makes it an operation of its own, which imports the compiler of torch.
    return formula and inspect.unwrap(formula)
