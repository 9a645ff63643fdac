"""Hessians as linear operators: solvers see shape, dtype, device and `@`, never the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.objective import Objective, gradients


class LinearMap(Protocol):
    """What a solver needs: vectors of one device and precision go in and come out."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Apply to a vector (n,) or to several (n, m)."""
        ...


class Operator(LinearMap, Protocol):
    """A linear map that can also be transposed and written out."""

    @property
    def T(self) -> Operator: ...
    def dense(self) -> Tensor:
        """The matrix itself."""
        ...


class MatrixOperator:
    """A dense matrix as an operator."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.dtype, self.device = matrix, matrix.dtype, matrix.device
        self.shape = (matrix.shape[0], matrix.shape[1])

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if vectors.ndim == 1:
            return self.matrix @ vectors
        # (A V)^T = V^T A^T: with few columns the BLAS is several times faster in this order.
        return torch.nn.functional.linear(vectors.T.contiguous(), self.matrix).T

    @property
    def T(self) -> MatrixOperator:
        """The transposed matrix."""
        return MatrixOperator(self.matrix.T)

    def dense(self) -> Tensor:
        return self.matrix


class HessianOperator:
    """The Hessian of an objective, or a block of it, by exact products over the whole data set.

    `params` names every tensor the objective reads; `block` the ones to differentiate by (default: all), in the
    order of the operator's rows. `.block(rows, cols)` gives diagonal and off-diagonal blocks alike. Products run in
    the objective's precision; parameters the objective does not depend on give zeros.
    Raises ValueError for a name that is not in `params`.
    """

    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        block: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
    ) -> None:
        self.objective = objective
        self._params = {n: p.detach().to(objective.dtype).requires_grad_() for n, p in params.items()}
        self.rows = list(params if block is None else block)
        self.cols = self.rows if cols is None else list(cols)
        for name in (*self.rows, *self.cols):
            if name not in params:
                raise ValueError(f"no parameter {name!r}; the objective has {', '.join(params)}")
        self.shape = (self._size(self.rows), self._size(self.cols))
        self.dtype, self.device = objective.dtype, objective.inputs.device
        self._graph: Tensor | None = None
        self._terms = list(objective.terms())

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> HessianOperator:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""
        return HessianOperator(self.objective, self._params, rows, cols)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        single = vectors.ndim == 1
        columns = vectors[:, None] if single else vectors
        if columns.shape[0] != self.shape[1]:
            raise ValueError(f"vectors of length {columns.shape[0]}; this operator takes {self.shape[1]}")
        result = columns.new_zeros(self.shape[0], columns.shape[1])
        for term in range(len(self._terms)):
            gradient = self._gradient(term)
            self._accumulate(gradient, columns, result)
        return result[:, 0] if single else result

    @property
    def T(self) -> HessianOperator:
        """The transposed block."""
        return self if self.rows == self.cols else self.block(self.cols, self.rows)

    def dense(self) -> Tensor:
        """The block as a matrix, symmetrised if it is a diagonal one."""
        n = self.shape[1]
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for start in range(0, n, 64):
            width = min(64, n - start)
            unit = torch.zeros(n, width, dtype=self.dtype, device=self.device)
            unit[start : start + width].fill_diagonal_(1.0)
            result[:, start : start + width] = self @ unit
        return (result + result.T) / 2 if self.rows == self.cols else result

    def to_scipy(self) -> Any:
        """A scipy.sparse.linalg.LinearOperator over NumPy vectors."""
        from scipy.sparse.linalg import LinearOperator

        def apply(operator: HessianOperator, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            vectors = torch.from_numpy(np.asarray(x, dtype=np.float64)).to(operator.device, operator.dtype)
            result: np.ndarray[Any, Any] = (operator @ vectors).cpu().numpy()
            return result

        transposed = self.T
        return LinearOperator(
            self.shape,
            dtype=np.float64,
            matvec=lambda x: apply(self, x.reshape(-1)),
            rmatvec=lambda x: apply(transposed, x.reshape(-1)),
            matmat=lambda x: apply(self, x),
        )

    def _size(self, names: Sequence[str]) -> int:
        return sum(self._params[n].numel() for n in names)

    def _gradient(self, term: int) -> Tensor:
        """Gradient by the columns with its graph. Kept between products where there is but one term."""
        if self._graph is not None:
            return self._graph
        pieces = gradients(self._terms[term](self._params), [self._params[n] for n in self.cols], create_graph=True)
        flat = torch.cat([g.reshape(-1) for g in pieces])
        if len(self._terms) == 1:
            self._graph = flat
        return flat

    def _accumulate(self, gradient: Tensor, columns: Tensor, result: Tensor) -> None:
        """result += d(gradient . column)/d(rows), on the GPU for all columns at once, on the CPU one by one."""
        inputs = [self._params[n] for n in self.rows]
        if columns.is_cuda:
            pieces = gradients(gradient, inputs, columns.T.contiguous(), keep=True, batched=True)
            result += torch.cat([g.flatten(1) for g in pieces], dim=1).T
            return
        for j in range(columns.shape[1]):
            pieces = gradients(gradient, inputs, columns[:, j].contiguous(), keep=True)
            result[:, j] += torch.cat([g.reshape(-1) for g in pieces])
