"""Operators of curvlinops and SciPy as ours, and ours as curvlinops'."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.curvature.checks import chosen, require_parameters
from landscape.curvature.operators import BlockOperator, FunctionOperator, LinearOperator, Restricted, require_operator
from landscape.errors import ArgumentError, LandscapeError, kind_of


def curvlinops(module: str = "") -> Any:
    """The library curvlinops, or a module of it. Raises LandscapeError where it is not installed."""
    try:
        return importlib.import_module(f"curvlinops.{module}".rstrip("."))
    except ModuleNotFoundError as error:
        hint = "pip install curvlinops-for-pytorch"
        raise LandscapeError("this needs curvlinops, which is not installed", hint) from error


def to_curvlinops(op: LinearOperator) -> Any:
    """An operator as a curvlinops PyTorchLinearOperator, which that library's functions and inverses take.

    Args:
        op: any operator. Where its rows and columns are named parameters, the result takes lists of tensors of their
            shapes, too, in this order.

    Raises:
        LandscapeError: where curvlinops is not installed.
    """
    require_operator(op)

    class Wrapped(curvlinops("_torch_base").PyTorchLinearOperator):  # type: ignore[misc]
        SELF_ADJOINT = op.T is op
        device, dtype = op.device, op.dtype

        def _matmat(self, X: list[Tensor]) -> list[Tensor]:
            images = op @ torch.cat([x.flatten(end_dim=-2) for x in X])
            return [y.view(*s, -1) for y, s in zip(images.split(self._out_shape_flat), self._out_shape, strict=True)]

        def _adjoint(self) -> Any:
            return to_curvlinops(op.T)

    return Wrapped(_shapes(op.T, op.shape[1]), _shapes(op, op.shape[0]))


def from_curvlinops(
    op: Any, params: Mapping[str, Tensor] | None = None, symmetric: bool | None = None
) -> LinearOperator:
    """A linear operator of curvlinops, such as its Hessian, GGN, Fisher, K-FAC or EKFAC.

    Args:
        op: a PyTorchLinearOperator.
        params: the parameters that it was made of, by name and in its order: then the result has `block(names)`. A
            product with a block costs one with the whole.
        symmetric: whether it is. Default: what it says itself. Its inverses do not say so: give True.

    Raises:
        ArgumentError: for another object, and for parameters whose numbers are not its rows.
        LandscapeError: where curvlinops is not installed.
    """
    if not isinstance(op, curvlinops("_torch_base").PyTorchLinearOperator):
        raise ArgumentError(f"{kind_of(op)} is no operator of curvlinops", "give one, such as GGNLinearOperator(...)")
    if op.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"an operator of {op.dtype}: too few digits", "make it of parameters in torch.float64")
    like = torch.empty(0, dtype=op.dtype, device=op.device)
    is_symmetric = op.SELF_ADJOINT if symmetric is None else symmetric
    flat = _function(
        lambda V: (op @ V).detach(), lambda V: (op.adjoint() @ V).detach(), tuple(op.shape), like, is_symmetric
    )
    if params is None:
        return flat
    require_parameters(params, op.device)
    sizes = sum(p.numel() for p in params.values())
    if flat.shape != (sizes, sizes):
        raise ArgumentError(
            f"params with {sizes} numbers for an operator of shape {flat.shape}",
            "give the parameters that it was made of, in its order",
        )
    return _Named(flat, params)


def from_scipy(A: Any, symmetric: bool = True) -> LinearOperator:
    """A SciPy LinearOperator, a sparse matrix or an array, by its products in float64 on the CPU.

    Args:
        A: what scipy.sparse.linalg.aslinearoperator takes.
        symmetric: whether it is; if not, its `rmatmat` gives the products with the transpose.

    Raises:
        ArgumentError: for other objects and complex ones.
    """
    import numpy as np
    from scipy.sparse.linalg import aslinearoperator

    try:
        operator = aslinearoperator(A)
    except (TypeError, ValueError) as error:
        hint = "give a SciPy LinearOperator, a sparse matrix or an array (n, m)"
        raise ArgumentError(f"{kind_of(A)} is no linear operator of SciPy", hint) from error
    if operator.dtype is not None and np.issubdtype(operator.dtype, np.complexfloating):
        raise ArgumentError(f"an operator of {operator.dtype}", "give a real one")

    def through(product: Any) -> Any:
        return lambda V: torch.from_numpy(np.array(product(V.numpy()), dtype=np.float64))

    like = torch.empty(0, dtype=torch.float64)
    return _function(through(operator.matmat), through(operator.rmatmat), operator.shape, like, symmetric)


class _Named(BlockOperator):
    """An operator whose rows and columns are named parameters, or a block of it."""

    def __init__(
        self,
        op: LinearOperator,
        params: Mapping[str, Tensor],
        rows: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
    ) -> None:
        self._op, self._params, self.shapes = op, params, {name: p.shape for name, p in params.items()}
        self.rows = list(params) if rows is None else chosen(rows, params)
        self.cols = self.rows if cols is None else chosen(cols, params)
        at = self._at(self.rows)
        self._part = Restricted(op, at, at if self.is_symmetric else self._at(self.cols))
        self.shape, self.dtype, self.device, self.error = self._part.shape, op.dtype, op.device, op.error

    @property
    def is_symmetric(self) -> bool:
        return self.rows == self.cols and self._op.is_symmetric

    @property
    def T(self) -> BlockOperator:
        return self if self.is_symmetric else _Named(self._op.T, self._params, self.cols, self.rows)

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> _Named:
        return _Named(self._op, self._params, rows, cols)

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self._part @ vectors

    def _at(self, names: Sequence[str]) -> Tensor:
        """The positions of parameters in the whole operator."""
        sizes = [p.numel() for p in self._params.values()]
        ranges = dict(zip(self._params, torch.arange(sum(sizes)).split(sizes), strict=True))
        return torch.cat([ranges[name] for name in names])


def _function(product: Any, transposed: Any, shape: tuple[int, ...], like: Tensor, symmetric: bool) -> FunctionOperator:
    rows, cols = shape
    if symmetric and rows != cols:
        raise ArgumentError(f"an operator of shape {rows} x {cols} is not symmetric", "give symmetric=False")
    return FunctionOperator(product, (rows, cols), like, transposed=None if symmetric else transposed)


def _shapes(op: LinearOperator, n: int) -> list[torch.Size]:
    return [op.shapes[name] for name in op.rows] or [torch.Size([n])]
