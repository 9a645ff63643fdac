"""Checks of the arguments of public functions: numbers, tensors, names, operators and densities that mean something."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.errors import ArgumentError, kind_of, suggest


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ArgumentError for an argument that is not a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name} is {value!r}", f"give a whole number of at least {least}")


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


def require_matrix(matrix: Any, error: Any) -> None:
    """Raise ArgumentError for what is no dense matrix of float32 or float64 with a bound on its error."""
    if not isinstance(matrix, Tensor) or matrix.ndim != 2 or not matrix.is_floating_point():
        is_tensor = isinstance(matrix, Tensor)
        what = f"{matrix.dtype}, shape {tuple(matrix.shape)}" if is_tensor else type(matrix).__name__
        raise ArgumentError(f"not a real matrix: {what}", "give a two-dimensional tensor of torch.float64")
    if matrix.layout != torch.strided:
        layout = str(matrix.layout).removeprefix("torch.")
        raise ArgumentError(f"a matrix with the layout {layout}: solvers take dense ones", "give matrix.to_dense()")
    if matrix.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(f"a matrix of {matrix.dtype}: too few digits", "give matrix.to(torch.float64)")
    require_not_negative("error", error)


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ArgumentError for an argument that is not among the choices."""
    if value not in choices:
        raise ArgumentError(f"{name} is {value!r}", f"choose from {', '.join(choices)}")


def require_tensor(name: str, value: Any, verb: str = "are") -> None:
    """Raise ArgumentError for an argument that is not a tensor."""
    if not isinstance(value, Tensor):
        hint = "give torch.from_numpy(array)" if hasattr(value, "__array__") else "give a tensor"
        raise ArgumentError(f"{name} {verb} {kind_of(value)}, not a tensor", hint)


def require_vectors(name: str, value: Any, rows: int, before: str = "") -> None:
    """Raise ArgumentError for what are no finite vectors (rows, m); before: an axis that may come first."""
    require_tensor(name, value, "is")
    if value.ndim not in ((2, 3) if before else (2,)) or value.shape[-2] != rows:
        also = f", or ({before}, {rows}, m)" if before else ""
        raise ArgumentError(f"{name} has the shape {tuple(value.shape)}", f"give vectors ({rows}, m){also}")
    if not bool(torch.isfinite(value).all()):
        raise ArgumentError(f"{name} holds NaN or infinity", "give finite vectors, or none")


def require_operator(op: Any) -> None:
    """Raise ArgumentError for what has no products with tensors."""
    if isinstance(op, Tensor):
        raise ArgumentError(f"a tensor of shape {tuple(op.shape)} is no operator", "give MatrixOperator(tensor)")
    if not isinstance(getattr(op, "dtype", None), torch.dtype):
        is_array = hasattr(op, "__array__")
        hint = "MatrixOperator(torch.from_numpy(array))" if is_array else "a HessianOperator or MatrixOperator"
        raise ArgumentError(f"{kind_of(op)} is no operator", f"give {hint}")


def require_symmetric(op: Any) -> None:
    """Raise ArgumentError for what is no operator, or one without eigenvalues: rectangular or off-diagonal."""
    require_operator(op)
    hint = "name the same parameters for rows and columns: op.block(names)"
    if op.shape[0] != op.shape[1]:
        raise ArgumentError(f"eigenvalues of a {op.shape[0]} x {op.shape[1]} operator: take a diagonal block", hint)
    if op.shape[0] == 0:
        raise ArgumentError("eigenvalues of an operator without rows", "give at least one row")
    rows, cols = getattr(op, "rows", None), getattr(op, "cols", None)
    if rows != cols:
        raise ArgumentError(f"eigenvalues of the coupling {rows} x {cols}: take a diagonal block", hint)


def require_whole(op: Any) -> None:
    """Raise ArgumentError, on every rank and before any product, for an operator on rows spread over ranks."""
    ranks = getattr(getattr(op, "space", None), "ranks", 1)
    if ranks > 1:
        raise ArgumentError(
            f"the rows of its vectors are spread over {ranks} ranks, and this takes whole ones",
            "give an operator on whole vectors; eigsh, operator_norm and spectral_density take a Sharded",
        )


def require_pair(H_11: Any, H_12: Any, H_22: Any, abs_tau: Any) -> None:
    """Raise ArgumentError unless these are two diagonal blocks, what is between them, and a tolerance or None."""
    require_symmetric(H_11)
    require_operator(H_12)
    require_symmetric(H_22)
    for H in (H_11, H_12, H_22):
        require_whole(H)
    shapes = [tuple(H.shape) for H in (H_11, H_12, H_22)]
    if shapes[1] != (shapes[0][0], shapes[2][0]):
        raise ArgumentError(
            f"blocks of shapes {', '.join(map(str, shapes))}",
            "give (m, m), (m, n), (n, n): H.block(first), H.block(first, second), H.block(second)",
        )
    if abs_tau is not None:
        require_not_negative("abs_tau", abs_tau)


def as_densities(p: Any, q: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two densities, each divided by its sum. Raises ArgumentError for what are none on one grid."""
    try:
        found = [np.asarray(x, dtype=np.float64) for x in (p, q)]
    except (TypeError, ValueError, RuntimeError):
        found = []
    if (
        not found
        or any(x.ndim != 1 or not (np.isfinite(x) & (x >= 0)).all() or not x.any() for x in found)
        or len(found[0]) != len(found[1])
    ):
        raise ArgumentError(
            "not two densities of one length, of finite numbers that are not negative, nor all 0",
            "give `density` of two results on one grid",
        )
    return found[0] / found[0].sum(), found[1] / found[1].sum()


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
