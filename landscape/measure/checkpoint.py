"""One checkpoint of a problem, with cached results that several quantities share."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.config import ROUGH
from landscape.curvature.coupling import CouplingResult, coupling, require_convex
from landscape.curvature.curve import TAUS, IndexCurve, by_factorisations, by_products, by_spectrum
from landscape.curvature.density import Quadrature, quadrature
from landscape.curvature.eigsh import EigenResult, Glimpse, Method, eigsh, glimpse, shifted_ends
from landscape.curvature.inertia import (
    TAU_DENSE,
    Inertia,
    ShiftedLDL,
    absolute,
    between,
    bracketed,
    certified,
    certified_outside,
    from_spectrum,
    glimpsed,
    least,
)
from landscape.curvature.operators import (
    UNDERFLOW,
    BlockOperator,
    Deflated,
    Directions,
    HessianOperator,
    LinearOperator,
    MatrixOperator,
    Restricted,
)
from landscape.curvature.rounding import is_rounding_randomly, rounding_change
from landscape.curvature.vectors import gaussian
from landscape.errors import NumericsError
from landscape.measure.measurement import Measurement, Point
from landscape.models.blocks import Block, Pair
from landscape.models.problem import Structure, tensors, with_state

SELF_CHECK = 1e-10
"""Relative difference between hand-derived results and automatic differentiation that needs no look at rounding."""

FEW = 100
"""Products for the coupling ratios of a pair without a dense joint block, unless certified ones are asked for."""

KNOWN = 0.25
"""Share of an upper bound to which the points of an index curve need be known."""

UNDEFINED = 1e-2
"""What of the whole Hessian may be rounding of a hand-derived block: there is more only where it jumps."""


class Checkpoint:
    """A measurement at one point.

    rows: measurements so far by block; products: Hessian-vector products used by block. Both go by the block's name.
    progress: called with the share of a factorisation that is done.
    """

    def __init__(self, what: Measurement, point: Point) -> None:
        self.what, self.config, self.training, self.start = what, what.config, point.training, point.start
        self.problem = problem = with_state(what.problem, point.parameters)
        self.params = tensors(problem, point.parameters)
        self.decay = problem.decay(self.config.objective)
        self.data_loss = problem.objective(0.0).value(self.params)
        self.objective = problem.objective(self.decay)
        self.gradient = self.objective.gradient(self.params)
        self.structure = problem.structure(self.params, self.decay)
        self.progress: Callable[[float], object] = lambda share: None
        self.rows: dict[str, dict[str, Any]] = {}
        self.products: Counter[str] = Counter()
        self._autograd = HessianOperator(self.objective, self.params)
        self._matrices: dict[str, MatrixOperator] = {}
        self._eigen: dict[str, EigenResult] = {}
        self._inertia: dict[str, Inertia] = {}
        self._factored: dict[str, ShiftedLDL] = {}
        self._couplings: dict[str, CouplingResult | None] = {}
        self._rules: dict[str, Quadrature] = {}
        self._glimpses: dict[str, Glimpse] = {}
        self._bounds: dict[str, Mapping[str, float]] = {}
        by_hand = self.structure.operator() if self.structure else None
        self.hessian: BlockOperator = by_hand or self._autograd
        if by_hand:
            _agree("products", by_hand.__matmul__, self._autograd, self._probe, self._size)

    @functools.cached_property
    def _probe(self) -> Tensor:
        return gaussian(self.hessian.shape[0], 1, self.config.seed).to(self.problem.device, self.hessian.dtype)

    @functools.cached_property
    def _size(self) -> float:
        """The size of the whole Hessian."""
        return float((self.hessian @ self._probe).norm())

    def block(self, block: Block) -> LinearOperator:
        """A matrix-free block with its exact null vectors projected out."""
        op, null = self.restricted(self.hessian, block), self._null_vectors(block)
        return Deflated(op, null) if null else op

    def matrix(self, block: Block) -> MatrixOperator:
        """A dense block with a bound on its error.

        Its last bits do not depend on which other blocks were asked for.
        """
        if block.name not in self._matrices:
            matrix = self._assembled(block, self._autograd)
            # The couplings need these blocks again, and the gauge-free index the last one.
            kept = {coupled.name for pair in self.what.pairs for coupled in (pair.joint, *pair.both)}
            self._matrices = {name: H for name, H in self._matrices.items() if name in kept} | {block.name: matrix}
        return self._matrices[block.name]

    def gauss_newton(self, block: Block) -> LinearOperator:
        """The Gauss-Newton part of a block, dense where that is. Raises ArgumentError unless the loss is convex."""
        if self.what.is_dense(block):
            return self._assembled(block, self._gauss_newton)
        return self.restricted(self._gauss_newton, block)

    def has_residual(self, block: Block) -> bool:
        """Whether a block differs from its Gauss-Newton part; a single layer of a piecewise-linear net does not."""
        rest = self.restricted(HessianOperator(self.objective, self.params, part="residual"), block)
        return bool((rest @ gaussian(rest.shape[1], 1, self.config.seed).to(rest.device, rest.dtype)).any())

    def eigen(self, block: Block) -> EigenResult:
        """The k eigenpairs at each end of a block, or the highest alone."""
        if block.name not in self._eigen:
            self._eigen[block.name] = self._solved(block)
            self.products[block.name] += self._eigen[block.name].num_products
        return self._eigen[block.name]

    def inertia(self, block: Block) -> Inertia:
        """The saddle index of a block: certified if it is dense, else bracketed; without `certify` at no new search."""
        if block.name not in self._inertia:
            config, eigen, rank = self.config, self.eigen(block), self._rank_bound(block)
            if self.what.is_full(block):
                inertia = from_spectrum(eigen, config.rel_tau, rank)
            elif self.what.is_dense(block):
                inertia = self._counted(block)
            elif config.certify:
                inertia = bracketed(
                    self.block(block),
                    eigen,
                    self.rule(block),
                    config.rel_tau,
                    config.seed,
                    rank,
                    config.max_hvps,
                    proved=self._proved(block, config.factor_limit),
                )
                # Those of the rule are counted with it.
                self.products[block.name] -= self.rule(block).num_products
            else:
                inertia = glimpsed(self._glimpses[block.name], config.rel_tau, rank, self._proved(block, 0))
            self._inertia[block.name] = inertia
            self.products[block.name] += inertia.num_products
        return self._inertia[block.name]

    def curve(self, block: Block) -> IndexCurve:
        """The saddle index of a block over ten decades of the tolerance."""
        eigen, inertia, rank = self.eigen(block), self.inertia(block), self._rank_bound(block)
        norm = eigen.operator_norm
        if self.what.is_full(block):
            return by_spectrum(eigen, inertia.error, rank)
        if self.what.is_dense(block):
            return by_factorisations(self.matrix(block), norm, [inertia], rank)
        tolerances = [tau * norm for tau in TAUS]
        proved = self._bounds_of_index(block, tolerances, self.config.factor_limit, KNOWN) or []
        known = [between(block.size, tau, *bounds) for tau, bounds in zip(tolerances, proved, strict=False)]
        curve = by_products(eigen, inertia.error, None, [*known, inertia], rank)
        if (curve.lower == curve.upper).all():
            return curve
        return by_products(eigen, inertia.error, self.rule(block), [*known, inertia], rank)

    def _proved(self, block: Block, limit: int) -> Callable[[float], tuple[int, int] | None]:
        """Bounds of a block's index that its structure proves, at any tolerance, if it proves some."""

        def at(tolerance: float) -> tuple[int, int] | None:
            bounds = self._bounds_of_index(block, [tolerance], limit)
            return bounds[0] if bounds else None

        return at

    def _bounds_of_index(
        self, block: Block, tolerances: Sequence[float], limit: int, share: float = 0.0
    ) -> list[tuple[int, int]] | None:
        if self.structure is None or self.hessian.dtype != torch.float64 or not all(tolerances):
            return None
        return self.structure.index(block.members, tolerances, limit, self.progress, share)

    def gauge_free_index(self, block: Block) -> int:
        """The certified index on the complement of a block's gauge tangents; -1: not certain, or none are known."""
        structure, tolerance = self.structure, self.inertia(block).tolerance
        if not (self.config.certify and structure and tolerance and block.positions is None):
            return -1
        if self.what.is_dense(block) and (gauge := structure.gauge(block.parameters)):
            # L D L^T at -tolerance, if this index was the last to take one.
            norm, factored = self.eigen(block).operator_norm, self._factored.get(block.name)
            return certified_outside(self.matrix(block), gauge, tolerance, norm, factored).negative
        index = structure.gauge_free_index(block.members, tolerance, self.config.factor_limit, self.progress)
        return -1 if index is None else index

    def parts(self, pair: Pair) -> tuple[LinearOperator, LinearOperator, LinearOperator]:
        """H_11, H_12, H_22 of a pair, dense where possible."""
        if self.what.is_dense(pair.joint):
            H = self.matrix(pair.joint)
            cut, M = pair.first.size, H.matrix
            pieces = (M[:cut, :cut], M[:cut, cut:], M[cut:, cut:])
            a, b, c = (MatrixOperator(piece.contiguous(), H.error) for piece in pieces)
            return a, b, c
        # Systems with the diagonal blocks are solved: small ones are factorised.
        is_exact = self.hessian.dtype == torch.float64
        diagonal: list[LinearOperator] = [
            self.matrix(block) if self.what.is_dense(block) and is_exact else self.restricted(self.hessian, block)
            for block in pair.both
        ]
        return diagonal[0], self.restricted(self.hessian, *pair.both), diagonal[1]

    def coupling(self, pair: Pair, tolerance: float) -> CouplingResult | None:
        """The coupling ratios of a pair at the tolerance of its joint block; None where they are undefined."""
        if pair.name not in self._couplings:
            self._couplings[pair.name] = self.ratios(pair, tolerance, *self.parts(pair))
        return self._couplings[pair.name]

    def ratios(
        self, pair: Pair, tolerance: float, H_11: LinearOperator, H_12: LinearOperator, H_22: LinearOperator
    ) -> CouplingResult | None:
        """Coupling ratios to the given diagonal blocks; None where they are undefined."""
        config, is_whole = self.config, self.config.certify and self.what.is_dense(pair.joint)
        method: Method = "dense" if is_whole or self.what.is_full(pair.joint) else "lanczos"
        lowest = None if method == "dense" else self.eigen(pair.joint).vectors[0]
        # A third of the products goes further from these eigenvectors than all of them from random ones.
        most = config.max_hvps // 3 if config.certify or self.what.is_dense(pair.joint) else FEW
        try:
            rtol = ROUGH if config.certify else 10 * ROUGH
            result = coupling(H_11, H_12, H_22, tolerance, config.k, method, rtol, config.seed, most, lowest)
        except NumericsError:
            return None
        known = self._inertia.get(pair.name)
        if result.index < 0 and known and known.level == "certified" and known.tolerance == tolerance:
            # F0: the ratios above 1 are as many as the joint block has eigenvalues below -tau.
            return dataclasses.replace(result, index_lower=known.lower, index_upper=known.upper)
        return result

    def rule(self, block: Block) -> Quadrature:
        """The stochastic Lanczos quadrature of a matrix-free block."""
        if block.name not in self._rules:
            config = self.config
            self._rules[block.name] = quadrature(self.block(block), config.probes, config.probe_steps, config.seed)
            self.products[block.name] += self._rules[block.name].num_products
        return self._rules[block.name]

    def bounds(self, block: Block) -> Mapping[str, float]:
        """Theoretical bounds of a block."""
        if block.name not in self._bounds:
            self._bounds[block.name] = self.structure.bounds(block.members) if self.structure else {}
        return self._bounds[block.name]

    def _rank_bound(self, block: Block) -> int | None:
        """The bound on a block's saddle index from theory, if there is one."""
        bound = self.bounds(block).get("saddle_rank_bound")
        return None if bound is None else int(bound)

    def _counted(self, block: Block) -> Inertia:
        """The certified index of a dense block whose spectrum is not computed."""
        H, norm = self.matrix(block), self.eigen(block).operator_norm
        tolerance = absolute(self.config.rel_tau, TAU_DENSE, norm, least(H.matrix, norm, H.error))
        pair = next((pair for pair in self.what.pairs if pair.name == block.name and self.config.certify), None)
        if pair and norm and (ratios := self.coupling(pair, tolerance)) and ratios.index >= 0:
            # F0: ratios above 1 are counted with all errors.
            return Inertia(ratios.index, -1, -1, ratios.index, ratios.index, tolerance, "certified", H.error)
        self._factored = {block.name: ShiftedLDL(H.matrix, -tolerance)}
        return certified(H.matrix, tolerance, norm, H.error, True, self._factored[block.name])

    def _solved(self, block: Block) -> EigenResult:
        config, rtol = self.config, self.config.residual(self.what.is_dense(block))
        if config.only:
            start = self.start.get(block.name)
            return eigsh(self.block(block), 1, "highest", "lanczos", rtol, config.seed, start, config.max_hvps)
        if self.what.is_full(block):
            # Exact null vectors stay: rounding moves their eigenvalues far less than tau.
            H = self.matrix(block)
            if self.hessian.dtype == torch.float32:
                # Of products in float32 no residual with their error is smaller.
                rtol = max(rtol, 2 * H.error / max(float(H.matrix.norm()), H.error, 1e-300))
            return eigsh(H, config.k, method="dense", rtol=rtol)
        if not config.certify:
            matrix = self.matrix(block) if self.what.is_dense(block) else None
            op = self.block(block)
            op = matrix if matrix and op.dtype != matrix.dtype else op
            self._glimpses[block.name] = glimpse(op, config.k, rtol, config.seed, config.max_hvps, matrix)
            return self._glimpses[block.name].eigen
        if self.what.is_dense(block):
            # These depend on no other checkpoint, so that checkpoints can be measured in parallel.
            op, H = self.block(block), self.matrix(block)
            # A matrix of products in float32 is one of float64 with an error.
            op = op if op.dtype == H.dtype else H
            return shifted_ends(op, H, config.k, rtol, config.seed, config.max_hvps)
        structure = self.structure
        starts, spent = structure.starts(block.parameters, config.k) if structure else (None, 0)
        starts = None if starts is None else block.of(starts)
        self.products[block.name] += spent
        v0 = self.start.get(block.name) if starts is None else starts
        return eigsh(
            self.block(block),
            config.k,
            method="lanczos",
            rtol=rtol,
            seed=config.seed,
            v0=v0,
            max_hvps=config.max_hvps,
        )

    @functools.cached_property
    def _gauss_newton(self) -> HessianOperator:
        require_convex(self.objective, self.params)
        return HessianOperator(self.objective, self.params, part="gauss_newton")

    def _assembled(self, block: Block, whole: HessianOperator) -> MatrixOperator:
        """A diagonal block in closed form, checked, or by products."""
        op = self.restricted(whole, block)

        def closed_form(structure: Structure | None) -> Tensor | None:
            known = structure.dense(block.parameters, whole.part == "gauss_newton") if structure else None
            # Symmetric; transposed back, the block of all rows is no copy.
            return None if known is None else block.of(block.of(known).T).T.contiguous()

        closed = closed_form(self.structure) if self.what.is_cut(block) else None
        if closed is None:
            self.products[block.name] += op.shape[0]
            return op.symmetric()

        def anew(vectors: Tensor) -> Tensor:
            matrix = closed_form(self.problem.structure(self.params, self.decay)) if is_rounding_randomly() else closed
            assert matrix is not None
            return matrix @ vectors

        probes = gaussian(len(closed), 4, self.config.seed).to(self.problem.device)
        difference = _agree(f"block {block.name}: closed form", anew, op, probes, self._size)
        return MatrixOperator(closed, max(difference / probes.shape[1] ** 0.5, UNDERFLOW))

    def restricted(self, whole: BlockOperator, block: Block, cols: Block | None = None) -> LinearOperator:
        """A block, or the one between two blocks, of an operator over all parameters."""
        across = block if cols is None else cols
        op = whole.block(block.parameters, across.parameters)
        if block.positions is None and across.positions is None:
            return op
        return Restricted(op, block.positions, across.positions)

    def _null_vectors(self, block: Block) -> Directions | None:
        if self.structure is None or block.positions is not None:
            return None
        return self.structure.null_vectors(block.parameters)


def _agree(what: str, by_hand: Callable[[Tensor], Tensor], op: LinearOperator, probes: Tensor, whole: float) -> float:
    """|by_hand - op|_F of the products with probes. Raises NumericsError if that exceeds the rounding of both.

    The rounding is measured only where the difference exceeds SELF_CHECK: automatic differentiation may lose every
    digit of a block that all but vanishes. Where rounding moves the products by a share of the `whole` Hessian, no
    second derivative exists, and the error says so.
    """
    products, expected = by_hand(probes), op @ probes
    difference, size = float((products - expected).norm()), float(expected.norm())
    if difference > SELF_CHECK * size:
        own, theirs = (
            float(rounding_change(side, probes, images, 0).norm())
            for side, images in ((by_hand, products), (op.__matmul__, expected))
        )
        jump = own / probes.shape[1] ** 0.5
        if jump > UNDEFINED * whole:
            raise NumericsError(
                f"{what}: the Hessian here changes by {jump / whole:.1e} of its size with the last places",
                "an input of a ReLU is 0 to rounding, where the second derivative jumps: take another step, or a "
                "smooth activation",
            )
        if difference > own + theirs:
            raise NumericsError(
                f"{what} and automatic differentiation differ by {difference / (size or 1.0):.1e} relative, and not by "
                "rounding",
                "this is a defect of landscape: please report it with the run file",
            )
    return difference
