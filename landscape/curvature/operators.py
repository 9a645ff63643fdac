"""Linear operators: Hessians and their blocks, Gauss-Newton parts, matrices, sums and products of all of these."""

from __future__ import annotations

import abc
import copy
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.checks import (
    blaming,
    chosen,
    is_finite,
    require_choice,
    require_not_negative,
    require_parameters,
)
from landscape.curvature.objective import Objective, Parameters, differentiable, gradients, require_objective
from landscape.curvature.rounding import RUNS, is_rounding_randomly, rounding_change
from landscape.curvature.vectors import (
    asymmetry,
    column_norms,
    gaussian,
    probe_bound,
    require_finite,
    require_range,
    symmetrised,
)
from landscape.errors import ArgumentError, NumericsError, kind_of
from landscape.results import Shown
from landscape.text import first_few

Part = Literal["hessian", "gauss_newton", "residual"]
PROBES = 4
MEASURED = PROBES * (1 + RUNS)
"""Products that `product_error` takes; `coupling_error` takes PROBES more, of the transposed block."""
UNDERFLOW = torch.finfo(torch.float64).tiny
"""The error of products that are all 0: they may have vanished in float64."""


class LinearOperator(Shown):
    """A linear operator, by its products with vectors.

    A subclass sets `shape`, `dtype` and `device` and defines `_matmat`: the products with the columns of a tensor (n,
    m). If it is not symmetric, it also defines `T` and, if it is square, `is_symmetric`.

    Attributes:
        shape, dtype, device: of the matrix and of the vectors it takes.
        error: a bound, in norm, on its distance from the operator it stands for.
        rows, cols: names of the parameters, in order; empty where they have none.
        shapes: of the parameters, by name.
    """

    shown: ClassVar[tuple[str, ...]] = ("shape", "dtype", "device")
    __array_ufunc__: ClassVar[None] = None  # NumPy's numbers leave `2 * op` to the operator.

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    error: float = 0.0
    rows: list[str] = []  # noqa: RUF012
    cols: list[str] = []  # noqa: RUF012
    shapes: Mapping[str, torch.Size] = {}  # noqa: RUF012

    @abc.abstractmethod
    def _matmat(self, vectors: Tensor) -> Tensor:
        """The products (rows, m) with vectors (columns, m)."""

    @overload
    def __matmul__(self, vectors: Tensor) -> Tensor: ...

    @overload
    def __matmul__(self, vectors: LinearOperator) -> LinearOperator: ...

    def __matmul__(self, vectors: Tensor | LinearOperator) -> Tensor | LinearOperator:
        """The product with a vector (n,), with several (n, m) or with another operator."""
        if isinstance(vectors, LinearOperator):
            return Composed([self, vectors])
        if not isinstance(vectors, Tensor) or vectors.dtype != self.dtype or vectors.ndim not in (1, 2):
            what = f"{vectors.dtype}, {tuple(vectors.shape)}" if isinstance(vectors, Tensor) else type(vectors).__name__
            raise ArgumentError(
                f"not vectors: {what}", f"give a tensor (n,) or (n, m) of {self.dtype}, or use to_scipy()"
            )
        if vectors.shape[0] != self.shape[1]:
            raise ArgumentError(
                f"vectors of length {vectors.shape[0]}; this operator takes {self.shape[1]}",
                "give one number per parameter of the columns",
            )
        return self._matmat(vectors[:, None])[:, 0] if vectors.ndim == 1 else self._matmat(vectors)

    def __add__(self, other: LinearOperator) -> LinearOperator:
        return Sum([(1.0, self), (1.0, other)])

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        return Sum([(1.0, self), (-1.0, other)])

    def __mul__(self, factor: float) -> LinearOperator:
        return Sum([(factor, self)])

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> LinearOperator:
        _require_number(divisor)
        if divisor == 0:
            raise ArgumentError("an operator over 0", "divide by another number")
        return (1 / divisor) * self

    def __neg__(self) -> LinearOperator:
        return -1.0 * self

    def shift(self, tau: float) -> LinearOperator:
        """A + tau I, of which every eigenvalue is larger by tau. Raises ArgumentError for an off-diagonal block."""
        if self.shape[0] != self.shape[1] or self.rows != self.cols:
            raise ArgumentError(
                f"a shift of a {self.shape[0]} x {self.shape[1]} block of other rows than columns",
                "shift the whole operator, and take the block of that",
            )
        return Sum([(1.0, self), (tau, Identity(self))])

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> LinearOperator:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""
        raise ArgumentError(
            f"{type(self).__name__} has no named parameters", "take the block of the operators that it is made of"
        )

    def numbers(self, names: Sequence[str]) -> list[int]:
        """How many numbers each of these parameters has."""
        return [self.shapes[name].numel() for name in names]

    @property
    def is_symmetric(self) -> bool:
        """Whether the operator is its own transpose, so that it has eigenvalues; here, whether it is square."""
        return self.shape[0] == self.shape[1]

    @property
    def T(self) -> LinearOperator:
        """The transposed operator, which a symmetric one is itself."""
        return self

    def dense(self) -> Tensor:
        """The matrix, product by product, symmetrised if the operator is its own transpose."""
        return assembled(self, self.T is self).matrix

    def symmetric(self) -> MatrixOperator:
        """A symmetric operator as a matrix, symmetric to the last bit, with the error of its products."""
        return assembled(self, True)

    def in_double(self) -> LinearOperator | None:
        """The same operator by products in float64, of one in float32; None where there are none."""
        return None

    def to_scipy(self) -> Any:
        """A scipy.sparse.linalg.LinearOperator over NumPy vectors."""
        from scipy.sparse.linalg import LinearOperator as ScipyOperator

        def product(op: LinearOperator) -> Callable[[NDArray[Any]], NDArray[Any]]:
            to = op.device, op.dtype
            return lambda x: (op @ torch.from_numpy(np.asarray(x, dtype=np.float64)).to(*to)).cpu().numpy()

        forward = product(self)
        return ScipyOperator(self.shape, dtype=np.float64, matvec=forward, rmatvec=product(self.T), matmat=forward)


class FunctionOperator(LinearOperator):
    """An operator by a function of vectors (n, m) such as those of `like`.

    transposed: the function of the transposed operator; None: the operator is symmetric.
    """

    def __init__(
        self,
        apply: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        like: LinearOperator | Tensor,
        error: float = 0.0,
        transposed: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._apply, self._transposed, self._like = apply, transposed, like
        self.shape, self.dtype, self.device, self.error = shape, like.dtype, like.device, error

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self._apply(vectors)

    @property
    def is_symmetric(self) -> bool:
        return self._transposed is None

    @property
    def T(self) -> FunctionOperator:
        """The transposed operator."""
        if self._transposed is None:
            return self
        return FunctionOperator(self._transposed, (self.shape[1], self.shape[0]), self._like, self.error, self._apply)


class Sum(LinearOperator):
    """c_1 A_1 + c_2 A_2 + ..., as `A + B`, `A - B`, `2 * A`, `-A` and `A.shift(tau)` make it.

    It is symmetric if every term is, and has blocks if every term has those of the same parameters.

    Args:
        terms: pairs (c, A) of a finite number and an operator, all of one shape, precision and device.

    Raises:
        ArgumentError: for operators that do not fit together, and for coefficients that are no finite numbers.
    """

    shown = ("shape", "coefficients", "dtype", "device")

    def __init__(self, terms: Sequence[tuple[float, LinearOperator]]) -> None:
        flat: list[tuple[float, LinearOperator]] = []
        for coefficient, op in terms:
            _require_number(coefficient)
            require_operator(op)
            parts = op.terms if isinstance(op, Sum) else [(1.0, op)]
            flat += [(float(coefficient) * c, part) for c, part in parts]
        self.terms: list[tuple[float, LinearOperator]] = flat
        first = flat[0][1]
        for _, op in flat[1:]:
            if op.shape != first.shape:
                raise ArgumentError(
                    f"a sum of operators of the shapes {first.shape} and {op.shape}", "give operators of one shape"
                )
            _require_alike(first, op)
            for side, ours, theirs in (("rows", first.rows, op.rows), ("columns", first.cols, op.cols)):
                require_names(f"a sum with the {side}", ours, theirs)
        if all(op.rows for _, op in flat):
            self.rows, self.cols, self.shapes = first.rows, first.cols, first.shapes
        self.shape, self.dtype, self.device = first.shape, first.dtype, first.device
        self.error = sum(abs(c) * op.error for c, op in flat)

    @property
    def coefficients(self) -> list[float]:
        """Of the terms."""
        return [c for c, _ in self.terms]

    def _matmat(self, vectors: Tensor) -> Tensor:
        total = self.terms[0][0] * (self.terms[0][1] @ vectors)
        for c, op in self.terms[1:]:
            total.add_(op @ vectors, alpha=c)
        return total

    @property
    def is_symmetric(self) -> bool:
        return all(op.is_symmetric for _, op in self.terms)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        if all(op.T is op for _, op in self.terms):
            return self
        return Sum([(c, op.T) for c, op in self.terms])

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> LinearOperator:
        """The same sum of the terms' blocks."""
        return Sum([(c, op.block(rows, cols)) for c, op in self.terms]) if self.rows else super().block(rows, cols)

    def in_double(self) -> Sum | None:
        doubles = [op.in_double() for _, op in self.terms]
        return Sum([(c, op) for c, op in zip(self.coefficients, doubles, strict=True) if op]) if all(doubles) else None


class Composed(LinearOperator):
    """A_1 A_2 ..., as `A @ B` makes it.

    It counts as symmetric if its symmetric factors read the same from both ends, as those of `A @ A` and `A @ B @ A`.

    Args:
        factors: operators, each with as many columns as the next one has rows.

    Raises:
        ArgumentError: for operators that do not fit together.
    """

    shown = ("shape", "factors", "dtype", "device")

    def __init__(self, factors: Sequence[LinearOperator]) -> None:
        for op in factors:
            require_operator(op)
        self._factors: list[LinearOperator] = list(
            itertools.chain.from_iterable(op._factors if isinstance(op, Composed) else [op] for op in factors)
        )
        for left, right in itertools.pairwise(self._factors):
            if left.shape[1] != right.shape[0]:
                raise ArgumentError(
                    f"a product of operators of the shapes {left.shape} and {right.shape}",
                    "the columns of the first are the rows of the second",
                )
            _require_alike(left, right)
            require_names("a product that meets in the parameters", left.cols, right.rows)
        first, last = self._factors[0], self._factors[-1]
        self.shape, self.dtype, self.device = (first.shape[0], last.shape[1]), first.dtype, first.device
        self.error = self._error()

    @property
    def factors(self) -> int:
        """How many they are."""
        return len(self._factors)

    def _error(self) -> float:
        """What the factors' errors make of the product, by bounds of their norms that random probes give."""
        errors = [op.error for op in self._factors]
        if not any(errors):
            return 0.0
        norms = [probe_bound(op @ gaussian(op.shape[1], 2 * PROBES).to(op.device, op.dtype)) for op in self._factors]
        return math.prod(n + e for n, e in zip(norms, errors, strict=True)) - math.prod(norms)

    def _matmat(self, vectors: Tensor) -> Tensor:
        return functools.reduce(lambda images, op: op @ images, reversed(self._factors), vectors)

    @property
    def is_symmetric(self) -> bool:
        ends = zip(self._factors, reversed(self._factors), strict=True)
        return all(op is other and op.is_symmetric for op, other in ends)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        if self.is_symmetric and all(op.T is op for op in self._factors):
            return self
        return Composed([op.T for op in reversed(self._factors)])

    def in_double(self) -> Composed | None:
        # A factor that comes twice stays one operator.
        doubles = {id(op): op.in_double() for op in self._factors}
        factors = [double for op in self._factors if (double := doubles[id(op)])]
        return Composed(factors) if len(factors) == len(self._factors) else None


class Identity(LinearOperator):
    """The identity in the space of a symmetric operator, with the same blocks."""

    shown = ("shape", "dtype", "device")

    def __init__(self, like: LinearOperator) -> None:
        self.rows, self.cols, self.shapes = like.rows, like.cols, like.shapes
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device

    def _matmat(self, vectors: Tensor) -> Tensor:
        if self.rows == self.cols:
            return vectors.clone()
        pieces = dict(zip(self.cols, vectors.split(self.numbers(self.cols)), strict=True))
        nothing = vectors.new_zeros
        sizes = zip(self.rows, self.numbers(self.rows), strict=True)
        return torch.cat([pieces.get(name, nothing(size, vectors.shape[1])) for name, size in sizes])

    @property
    def T(self) -> LinearOperator:
        return self if self.rows == self.cols else self.block(self.cols, self.rows)

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> LinearOperator:
        new = copy.copy(self)
        new.rows, new.cols = list(rows), list(rows if cols is None else cols)
        new.shape = (sum(self.numbers(new.rows)), sum(self.numbers(new.cols)))
        return new

    def in_double(self) -> Identity:
        new = copy.copy(self)
        new.dtype = torch.float64
        return new


class BlockOperator(LinearOperator):
    """An operator whose rows and columns are named parameters, in the order of `rows` and `cols`."""

    @abc.abstractmethod
    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> BlockOperator:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""

    @property
    def is_symmetric(self) -> bool:
        return self.rows == self.cols

    @property
    def T(self) -> BlockOperator:
        return self if self.is_symmetric else self.block(self.cols, self.rows)


class MatrixOperator(LinearOperator):
    """A dense matrix as an operator.

    Args:
        matrix: (m, n), float32 or float64.
        error: a bound, in norm, on its distance from the exact matrix.

    Raises:
        ArgumentError: for another tensor, and for an error below 0.
    """

    shown = ("shape", "error", "dtype", "device")

    def __init__(self, matrix: Tensor, error: float = 0.0) -> None:
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
        self.matrix, self.error, self.dtype, self.device = matrix.detach(), error, matrix.dtype, matrix.device
        self.shape = (matrix.shape[0], matrix.shape[1])

    def _matmat(self, vectors: Tensor) -> Tensor:
        # (A V)^T = V^T A^T: with few columns the BLAS is several times faster in this order.
        return torch.nn.functional.linear(vectors.T.contiguous(), self.matrix).T

    @property
    def is_symmetric(self) -> bool:
        """Whether it is square: how far it is from its transpose is part of its error."""
        return self.shape[0] == self.shape[1]

    @property
    def T(self) -> MatrixOperator:
        """The transposed matrix."""
        return MatrixOperator(self.matrix.T, self.error)

    def dense(self) -> Tensor:
        """The matrix itself."""
        return self.matrix

    def symmetric(self) -> MatrixOperator:
        """(M + M^T) / 2, whose error includes |M - M^T|_F; itself if it is symmetric to the last bit."""
        error = asymmetry(self.matrix)
        if error == 0:
            return self
        return MatrixOperator(symmetrised(self.matrix.clone()), self.error + error)

    def double(self) -> MatrixOperator:
        """The matrix in float64: to factorise it in a lower precision would add to its error."""
        return self if self.dtype == torch.float64 else MatrixOperator(self.matrix.double(), self.error)


class ObjectiveOperator(BlockOperator):
    """A matrix of an objective's derivatives at some parameters, or a block of it, by products over the whole data.

    A subclass says what a product is made of, in `_terms_of`. Products run in the objective's precision.

    Args:
        objective: the objective.
        params: tensors to differentiate by, of which the operator takes a copy; everything else is constant.
        block: names of rows, in their order. Default: all.
        cols: names of columns. Default: those of the rows.
    """

    shown: ClassVar[tuple[str, ...]] = ("shape", "rows", "cols", "dtype", "device")

    @differentiable
    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        block: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
    ) -> None:
        require_objective(objective)
        require_parameters(params, objective.device)
        self.device = objective.device
        self.shapes = {n: p.shape for n, p in params.items()}
        self._place(objective, params)
        self._choose(params if block is None else block, cols)

    @abc.abstractmethod
    def _terms_of(self, rows: list[Tensor], cols: list[Tensor]) -> Sequence[Term]:
        """What a product with perturbations of `cols` is the sum of, some of `self.params`."""

    def _place(self, objective: Objective, params: Mapping[str, Tensor]) -> None:
        self.objective, self.dtype = objective, objective.dtype
        self.params = {n: p.detach().to(objective.dtype, copy=True).requires_grad_() for n, p in params.items()}
        objective.require_sound(self.params)

    def _choose(self, rows: Sequence[str] | Mapping[str, Tensor], cols: Sequence[str] | None) -> None:
        self.rows = chosen(rows, self.params)
        self.cols = self.rows if cols is None else chosen(cols, self.params)
        self.shape = (sum(self.numbers(self.rows)), sum(self.numbers(self.cols)))
        by_row, by_col = ([self.params[n] for n in names] for names in (self.rows, self.cols))
        self._terms = self._terms_of(by_row, by_col)
        # A graph takes as much memory as a chunk's activations: keep it between products only with a single chunk.
        self._keep = self.objective.num_pieces == 1

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> Self:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""
        new = copy.copy(self)
        new._choose(rows, cols)
        return new

    def _matmat(self, vectors: Tensor) -> Tensor:
        result = self.objective.total(self._product(vectors))
        if not is_finite(result):
            raise NumericsError(
                "a Hessian-vector product is NaN or infinite",
                "the loss or a derivative is not finite: overflow, log or sqrt or norm of 0, or a vector that is not",
            )
        return result

    @differentiable
    def _product(self, columns: Tensor) -> Tensor:
        """The products with vectors (n, m) of the objective's terms here."""
        columns = columns.clone() if columns.is_inference() else columns  # Autograd keeps no inference tensor.
        if is_rounding_randomly():
            # What was computed before was not moved.
            for term in self._terms:
                term.forget()
        result = columns.new_zeros(self.shape[0], columns.shape[1])
        with blaming("the product fails"), self.objective.at(self.params):
            for term in self._terms:
                if columns.is_cuda:
                    result += term.apply(columns.T.contiguous(), batched=True).T
                else:
                    # On a CPU one by one is quicker than torch's batching.
                    for j in range(columns.shape[1]):
                        result[:, j] += term.apply(columns[:, j].contiguous(), batched=False)
                if not self._keep or is_rounding_randomly():
                    term.forget()
        return result

    def in_double(self) -> Self | None:
        """The same block of an objective in float32 by products in float64; None where there are none."""
        if self.dtype == torch.float64:
            return None
        new = copy.copy(self)
        try:
            new._place(self.objective.in_dtype(torch.float64), self.params)
        except ArgumentError:
            # The model runs in float32 alone.
            return None
        new._choose(self.rows, self.cols)
        return new


class HessianOperator(ObjectiveOperator):
    """The Hessian of an objective, or a block of it, by exact products over the whole data set.

    Products run in the objective's precision. `.block(rows, cols)` gives diagonal and off-diagonal blocks.

    Args:
        objective: the objective.
        params: tensors to differentiate by, of which the operator takes a copy; everything else is constant.
        block: names of rows, in their order. Default: all.
        cols: names of columns. Default: those of the rows.
        part: "hessian" is H = G + R; "gauss_newton" is G = J^T (d2 loss / d outputs2) J, with the L2 term; "residual"
            is R = sum_c (d loss / d output_c) d2 output_c.

    Raises:
        ArgumentError: a ValueError, for parameters and losses without a Hessian (see `Objective`), names that are not
            in `params`, and a loss that changes between two calls.
        NumericsError: for numbers that are not finite.
    """

    shown = ("shape", "rows", "cols", "part", "dtype", "device")

    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        block: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
        part: Part = "hessian",
    ) -> None:
        require_choice("part", part, get_args(Part))
        self.part = part
        super().__init__(objective, params, block, cols)

    def _terms_of(self, rows: list[Tensor], cols: list[Tensor]) -> list[Term]:
        objective, terms = self.objective, list[Term]()
        if self.part == "gauss_newton":
            terms += [
                GaussNewton(f, second_derivative(loss), self.params, rows, cols) for f, loss in objective.chunks()
            ]
            # The L2 term is its own Gauss-Newton part.
            values = list(objective.terms())[objective.num_pieces :]
        else:
            values = list(objective.terms() if self.part == "hessian" else objective.linearised(self.params))
        return terms + [_SecondDerivative(value, self.params, rows, cols) for value in values]


def _require_number(coefficient: object) -> None:
    if not isinstance(coefficient, numbers.Real):
        raise ArgumentError(
            f"an operator times {kind_of(coefficient)}", "multiply by a number, such as x.item(); operators by A @ B"
        )
    if not math.isfinite(coefficient):
        raise ArgumentError(f"an operator times {coefficient}", "multiply by a finite number")


def _require_alike(one: LinearOperator, other: LinearOperator) -> None:
    if (one.dtype, one.device) != (other.dtype, other.device):
        raise ArgumentError(
            f"operators of {one.dtype} on {one.device} and of {other.dtype} on {other.device}",
            "make both in one precision on one device",
        )


def require_names(what: str, ours: Sequence[str], theirs: Sequence[str]) -> None:
    if ours and theirs and list(ours) != list(theirs):
        raise ArgumentError(
            f"{what} {first_few(list(ours), 3)} and {first_few(list(theirs), 3)}",
            "give both the same parameters in the same order: op.block(names)",
        )


def require_operator(op: Any) -> None:
    """Raise ArgumentError for what is no operator."""
    if isinstance(op, LinearOperator):
        return
    if isinstance(op, Tensor):
        raise ArgumentError(f"a tensor of shape {tuple(op.shape)} is no operator", "give MatrixOperator(tensor)")
    hint = "give a HessianOperator or MatrixOperator, or derive yours from LinearOperator"
    if isinstance(op, np.ndarray):
        hint = "give MatrixOperator(torch.from_numpy(array))"
    if isinstance(op, int | float):
        hint = f"add a multiple of the identity by op.shift({op})"
    raise ArgumentError(f"{kind_of(op)} is no operator", hint)


def require_symmetric(op: Any) -> None:
    """Raise ArgumentError for what is no operator, or one without eigenvalues: rectangular or off-diagonal."""
    require_operator(op)
    hint = "name the same parameters for rows and columns: op.block(names)"
    if op.shape[0] != op.shape[1]:
        raise ArgumentError(f"eigenvalues of a {op.shape[0]} x {op.shape[1]} operator: take a diagonal block", hint)
    if op.shape[0] == 0:
        raise ArgumentError("eigenvalues of an operator without rows", "give at least one row")
    if op.rows != op.cols:
        raise ArgumentError(f"eigenvalues of the coupling {op.rows} x {op.cols}: take a diagonal block", hint)
    if not op.is_symmetric:
        raise ArgumentError(
            f"eigenvalues of a {type(op).__name__} that is not symmetric", "give one that is, such as B @ A @ B"
        )


def assembled(op: LinearOperator, is_diagonal: bool) -> MatrixOperator:
    """The matrix of a block, product by product; a diagonal one symmetrised, with the error of the products.

    The error is that of rounding (`rounding_change`) or the asymmetry |H - H^T|_F, which vanishes for exact products,
    whichever is larger; beside it, the operator's own if it states one. Costs 8 products more. A matrix of zeros has
    UNDERFLOW as its error: it may have vanished in float64.
    """
    n = op.shape[1]
    result = torch.empty(op.shape, dtype=op.dtype, device=op.device)
    for start in range(0, n, 64):
        width = min(64, n - start)
        unit = torch.zeros(n, width, dtype=op.dtype, device=op.device)
        unit[start : start + width].fill_diagonal_(1.0)
        result[:, start : start + width] = op @ unit
    if not is_diagonal:
        return MatrixOperator(result, op.error)
    probes = gaussian(n, PROBES).to(result)
    rounding = _rounding(op, probes, result.double() @ probes.double(), 0)
    error = op.error + max(asymmetry(result), rounding, UNDERFLOW)
    return MatrixOperator(symmetrised(result), error)


def product_error(op: LinearOperator, seed: int = 0) -> float:
    """delta: the error of an operator's products, as a norm, measured with random probes.

    That of rounding, which every operation is moved for (`rounding_change`), or the asymmetry |H - H^T|_F, which
    vanishes for exact products; beside it, what the operator states. Costs MEASURED products, a matrix none.
    """
    require_symmetric(op)
    if isinstance(op, MatrixOperator):
        return op.error + asymmetry(op.matrix)
    probes = gaussian(op.shape[0], PROBES, seed).to(op.device, op.dtype)
    images = op @ probes
    require_range(float(images.abs().max()), op.dtype)
    gram = probes.double().T @ images.double()
    pairs = torch.triu_indices(PROBES, PROBES, offset=1)
    error = float((gram - gram.T)[pairs[0], pairs[1]].square().mean().sqrt())
    return op.error + max(error, _rounding(op, probes, images, seed), UNDERFLOW)


def coupling_error(op: LinearOperator, transposed: LinearOperator, seed: int) -> float:
    """`product_error` of an off-diagonal block: |H_12 - H_21^T|_F by 4 products with each of the two, or rounding's."""
    if isinstance(op, MatrixOperator):
        require_finite(float(op.matrix.abs().max()))
        return op.error
    left, right = (gaussian(op.shape[side], PROBES, seed + side).to(op.device, op.dtype) for side in (0, 1))
    images = op @ right
    require_range(float(images.abs().max()), op.dtype)
    difference = left.double().T @ images.double() - (right.double().T @ (transposed @ left).double()).T
    error = float(difference.square().mean().sqrt())
    return op.error + max(error, _norm_of(rounding_change(op.__matmul__, right, images, seed)))


def _rounding(op: LinearOperator, probes: Tensor, images: Tensor, seed: int) -> float:
    """What rounding does to products, as a norm: of float32 beside those of float64 where they can be had."""
    if exact := op.in_double():
        return 4 * _norm_of(column_norms(images.double() - exact @ probes.double()))
    return _norm_of(rounding_change(op.__matmul__, probes, images, seed))


def _norm_of(changes: Tensor) -> float:
    """The Frobenius norm of a matrix from the norms of its products with random probes (m,)."""
    return float(changes.square().mean().sqrt())


class Term(abc.ABC):
    """One summand of the products of an `ObjectiveOperator`, through a graph that is kept between products."""

    graph: Any = None

    @abc.abstractmethod
    def apply(self, weights: Tensor, batched: bool) -> Tensor:
        """Product with one vector (n,), or with each row of (m, n)."""

    def forget(self) -> None:
        """Free the graph."""
        self.graph = None


class _SecondDerivative(Term):
    """d2 value / (d rows d cols) of one summand of the objective."""

    def __init__(
        self, value: Callable[[Parameters], Tensor], params: Parameters, rows: list[Tensor], cols: list[Tensor]
    ) -> None:
        self.value, self.params, self.rows, self.cols = value, params, rows, cols

    def apply(self, weights: Tensor, batched: bool) -> Tensor:
        if self.graph is None:
            pieces = gradients(self.value(self.params), self.cols, create_graph=True)
            self.graph = torch.cat([g.reshape(-1) for g in pieces])
        return _flat(gradients(self.graph, self.rows, weights, keep=True, batched=batched), batched)


Curvature = Callable[[Tensor], Callable[[Tensor, bool], Tensor]]
"""Of outputs: the products of a matrix in their space with one tensor shaped as they are, or with several (batched)."""


class GaussNewton(Term):
    """J_rows^T C J_cols of one chunk, where the matrix C in the space of its outputs is a function of them."""

    def __init__(
        self,
        outputs: Callable[[Parameters], Tensor],
        curvature: Curvature,
        params: Parameters,
        rows: list[Tensor],
        cols: list[Tensor],
    ) -> None:
        self.outputs, self.curvature, self.params, self.rows, self.cols = outputs, curvature, params, rows, cols

    def apply(self, weights: Tensor, batched: bool) -> Tensor:
        if self.graph is None:
            f = self.outputs(self.params)
            self.graph = f, tangent(f, self.cols), self.curvature(f.detach())
        f, pushed, product = self.graph
        return _flat(
            gradients(f, self.rows, product(pushed(weights, batched), batched), keep=True, batched=batched), batched
        )


def tangent(outputs: Tensor, cols: list[Tensor]) -> Callable[[Tensor, bool], Tensor]:
    """Products J v of the outputs' derivatives by `cols` with one vector (n,) or with each row of (m, n)."""
    # J v is the derivative by u of J^T u, which is linear in u.
    u = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.cat([g.reshape(-1) for g in gradients(outputs, cols, u, create_graph=True)])
    return lambda weights, batched: gradients(pulled, [u], weights, keep=True, batched=batched)[0]


def second_derivative(loss: Callable[[Tensor], Tensor]) -> Curvature:
    """d2 loss / d outputs2."""

    def at(outputs: Tensor) -> Callable[[Tensor, bool], Tensor]:
        leaf = outputs.requires_grad_()
        (slope,) = gradients(loss(leaf), [leaf], create_graph=True)
        return lambda vectors, batched: gradients(slope, [leaf], vectors, keep=True, batched=batched)[0]

    return at


def _flat(pieces: Sequence[Tensor], batched: bool) -> Tensor:
    return torch.cat([g.flatten(1) if batched else g.reshape(-1) for g in pieces], dim=-1)


class Directions(Shown):
    """A subspace of a block's rows. sizes: of the block's parameters; dimension: of the subspace."""

    shown: ClassVar[tuple[str, ...]] = ("dimension", "sizes")

    sizes: list[int]
    dimension: int

    @abc.abstractmethod
    def remove(self, vectors: Tensor) -> Tensor:
        """The components of vectors (n,) or (n, m) orthogonal to the subspace."""


class Spanned(Directions):
    """A subspace that also has a basis small enough to write out."""

    @abc.abstractmethod
    def basis(self) -> Tensor:
        """Orthonormal columns (n, dimension)."""


class Deflated(LinearOperator):
    """P H P with the projector P onto the complement of some directions, which become exact null vectors.

    Args:
        op: a symmetric operator.
        directions: in the space of its rows, such as `GaugeTangent` or `SoftmaxShift`.

    Raises:
        ArgumentError: for directions of another block, and for an operator that is not symmetric.
    """

    shown = ("shape", "dimension", "dtype", "device")

    def __init__(self, op: LinearOperator, directions: Directions) -> None:
        require_symmetric(op)
        if not isinstance(directions, Directions):
            raise ArgumentError(
                f"the directions are {kind_of(directions)}", "give what projects them out, such as GaugeTangent(...)"
            )
        if sum(directions.sizes) != op.shape[0]:
            raise ArgumentError(
                f"directions of {sum(directions.sizes)} numbers for an operator of {op.shape[0]} rows",
                "make both of the same block",
            )
        self.op, self.directions, self.dimension = op, directions, directions.dimension
        # To project adds none to what is known of H.
        self.shape, self.dtype, self.device, self.error = op.shape, op.dtype, op.device, op.error

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.directions.remove(self.op @ self.directions.remove(vectors))

    def dense(self) -> Tensor:
        """The matrix, symmetric to the last bit."""
        return self.symmetric().matrix

    def symmetric(self) -> MatrixOperator:
        """The matrix, with the error of the one deflated and the rounding of what is projected out of it."""
        whole = self.op.symmetric().double()
        half = self.directions.remove(whole.matrix)
        full = self.directions.remove(half.T.contiguous())
        # What is projected out may be much larger than what is left, and so may its rounding.
        size, n = float(whole.matrix.norm()), len(full)
        rounding = 10 * n**0.5 * torch.finfo(full.dtype).eps * size if self.dimension else 0.0
        return MatrixOperator((full + full.T) / 2, whole.error + rounding)


class Restricted(LinearOperator):
    """The rows and columns of an operator at some positions; None: all of them.

    A product costs one of the whole operator.
    """

    def __init__(self, op: LinearOperator, rows: Tensor | None, cols: Tensor | None) -> None:
        self.op, self.dtype, self.device, self.error = op, op.dtype, op.device, op.error
        self._is_diagonal = rows is cols and op.is_symmetric
        self._rows, self._cols = (p if p is None else p.to(op.device) for p in (rows, cols))
        n, m = (whole if p is None else len(p) for whole, p in zip(op.shape, (self._rows, self._cols), strict=True))
        self.shape = (n, m)

    @property
    def is_symmetric(self) -> bool:
        return self._is_diagonal

    def _matmat(self, vectors: Tensor) -> Tensor:
        if self._cols is not None:
            whole = vectors.new_zeros(self.op.shape[1], *vectors.shape[1:])
            vectors = whole.index_copy_(0, self._cols, vectors)
        images = self.op @ vectors
        return images if self._rows is None else images[self._rows]

    @property
    def T(self) -> Restricted:
        """The transposed operator."""
        return self if self._is_diagonal and self.op.T is self.op else Restricted(self.op.T, self._cols, self._rows)


class Sound(LinearOperator):
    """An operator whose products are checked: finite, and with squares inside the range of the precision."""

    def __init__(self, op: LinearOperator) -> None:
        self.op, self.shape, self.dtype, self.device, self.error = op, op.shape, op.dtype, op.device, op.error
        self._largest = 0.0

    def _matmat(self, vectors: Tensor) -> Tensor:
        image = self.op @ vectors
        size = float(image.abs().amax()) if image.numel() else 0.0
        require_finite(size)
        # Images of null vectors are small: the largest image so far gives the size of the operator.
        self._largest = max(self._largest, size)
        require_range(self._largest, self.dtype)
        return image
