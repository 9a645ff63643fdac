"""Everything that is measured at one checkpoint: the rows of the Hessian file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import PAIRS, AnalysisConfig, TrainConfig
from landscape.curvature.coupling import coupling, coupling_strength, masses, principal_angles, spectral_norm
from landscape.curvature.deflation import Deflated
from landscape.curvature.density import (
    Quadrature,
    Smoothed,
    density_grid,
    density_of,
    jensen_shannon,
    jensen_shannon_error,
    quadrature,
)
from landscape.curvature.inertia import bracketed, certified, from_spectrum
from landscape.curvature.lanczos import EigenResult, eigsh
from landscape.curvature.operators import MatrixOperator, Operator
from landscape.curvature.tracking import Scaled, track
from landscape.devices import require_dense
from landscape.errors import NumericsError
from landscape.problems.embedding_mlp.gauge import GaugeTangent, SoftmaxShift
from landscape.problems.embedding_mlp.problem import Point, Problem, Training
from landscape.storage import schema_hessian
from landscape.storage.contents import PARTS
from landscape.storage.hessians import Layout
from landscape.storage.schema import LEVELS

DENSITY_POINTS = 512
_BY_BLOCK = {f.name for f in schema_hessian.ROOT.fields if f.dims[:1] == ("block",) and "other_block" not in f.dims}
_SCALARS = {f.name for f in schema_hessian.ROOT.fields if not f.dims}
Row = dict[str, Any]


Rows = dict[str, Row]
"""One row of each table of the Hessian file, by group; "/" is the root."""
TRACKED = ("subspace_overlap", "previous_rank", "previous_overlap", "crossings")


@dataclasses.dataclass(frozen=True)
class _Found:
    """What is known of one block: its part of the root's row, every eigenvalue if it is dense.

    The eigenvectors (end, n, k) and the quadrature of a matrix-free block only where they were made this time.
    """

    row: Row
    spectrum: NDArray[np.float64] | None
    vectors: Tensor | None = None
    rule: Quadrature | None = None


class Measurement:
    """The curvature of one checkpoint after another, for one run and one AnalysisConfig.

    Each row is compared with the one before: its eigenvectors are tracked, and matrix-free searches start from them.
    """

    def __init__(self, train: TrainConfig, config: AnalysisConfig, data: Mapping[str, NDArray[Any]]) -> None:
        """data: tokens, labels, split as in the run file.

        Raises, before any work, ConfigError for a block the model lacks or an objective the run had not, and
        DoesNotFitError for dense blocks that do not fit.
        """
        self.config, self.problem = config, Problem(train, config, data)
        self._before: dict[str, Tensor] = {}
        self.progress: Callable[[str, bool], object] = lambda block, done: None
        """Called with a block before and after it is measured."""
        for block in config.blocks:
            self.problem.require(block)
            if self.is_dense(block):
                require_dense(block, self.problem.size(block), self.problem.device)

    def is_dense(self, block: str) -> bool:
        """Whether a block is treated as a dense matrix."""
        return self.config.is_dense(self.problem.size(block))

    def layout(self) -> Layout:
        """What a file of these measurements has room for."""
        return Layout(
            sizes={b: self.problem.size(b) for b in self.config.blocks},
            full=tuple(b for b in self.config.blocks if self.is_dense(b)),
            density_points=DENSITY_POINTS,
            k=self.config.k,
            eigenvectors=self.config.eigenvectors,
        )

    def run(
        self,
        parameters: Mapping[str, NDArray[Any]],
        training: Training,
        known: Rows | None = None,
        again: Collection[str] = (),
        retrack: bool = False,
    ) -> Rows:
        """Measure every block at one checkpoint.

        known: rows of an earlier analysis of this checkpoint, which are kept but for blocks that are NaN there and for
        what the blocks make together. again: known blocks to be followed at the next step, for which their
        eigenvectors are found again; retrack: their tracking is taken from this time, too.
        """
        point, blocks = Point(self.problem, parameters), self.config.blocks
        found = self._stored(known) if known else {}
        kept = set(found)
        for block in blocks:
            if block not in kept:
                found[block] = self._block(point, block)
            elif block in again:
                new = self._block(point, block)
                tracks = {name: new.row[name] for name in TRACKED} if retrack else {}
                found[block] = dataclasses.replace(new, row=found[block].row | tracks, spectrum=found[block].spectrum)
        root: Row = {name: np.array([found[b].row[name] for b in blocks]) for name in found[blocks[0]].row}
        stored: Rows = known or {"/": {}, "density": {}, "eigenvectors": {}}
        root.update(self._scalars(point, found, training, stored["/"]))
        root.update(self._couplings(point, found, kept, stored["/"]))
        densities, distances = self._smoothed(point, found, kept, stored)
        root.update(distances)
        self._before = {b: f.vectors for b, f in found.items() if f.vectors is not None}
        spectra = {b: f.spectrum for b, f in found.items() if self.is_dense(b)}
        rows = {"/": root, "spectrum": spectra, "density": densities}
        if self.config.eigenvectors:
            made = {b: vectors.mT.cpu().numpy() for b, vectors in self._before.items() if b not in kept}
            rows["eigenvectors"] = {b: stored["eigenvectors"][b] for b in kept} | made
        return rows

    def follow(self, parameters: Mapping[str, NDArray[Any]], blocks: Collection[str]) -> None:
        """Find the eigenvectors of some blocks at a checkpoint, from which the next one is tracked."""
        point = Point(self.problem, parameters)
        self._before = {b: v for b in blocks if (v := self._block(point, b).vectors) is not None}

    def _stored(self, known: Rows) -> dict[str, _Found]:
        """The blocks that were measured before."""
        root = known["/"]
        return {
            block: _Found({n: v[i] for n, v in root.items() if n in _BY_BLOCK}, known["spectrum"].get(block))
            for i, block in enumerate(self.config.blocks)
            if not np.isnan(root["operator_norm"][i])
        }

    def _block(self, point: Point, block: str) -> _Found:
        """Spectrum, inertia and eigenvectors of one block."""
        self.progress(block, False)
        started = time.monotonic()
        config = self.config
        before = self._before.get(block)
        bound = point.bound.rank_bound if point.bound and block == "E,W" else None
        rule, gauge_free, products = None, -1, 0
        names = self.problem.names(block)
        shift = self._shift(point, block)
        if self.is_dense(block):
            H, products = point.matrix(block)
            H = Deflated(H, shift).symmetric() if shift else H
            eigen = eigsh(H, config.k, method="dense", tol=config.tol)
            inertia = from_spectrum(eigen, config.tau, bound)
            trace, trace_error = float(eigen.ritz.sum()), 0.0
            if {"E", "W"} <= set(names):
                rest = Deflated(H, GaugeTangent(point.params, names)).symmetric()
                norm = eigen.operator_norm
                gauge_free = certified(rest.matrix, inertia.tolerance, norm, rest.error, negative_only=True).negative
        else:
            op = self._operator(point, block)
            starts, products = point.starts(block)
            eigen = eigsh(
                op,
                config.k,
                method="lanczos",
                tol=config.tol,
                seed=config.seed,
                v0=before if starts is None else starts,
                max_products=config.max_products,
            )
            rule = self._rule(op)
            inertia = bracketed(op, eigen, rule, config.tau, config.seed, bound, config.max_products)
            trace, trace_error = rule.trace()
        estimate = inertia.estimate
        row = {
            "eigenvalues": _pad(eigen.values, config.k),
            "residual_norm": _pad(eigen.residuals, config.k),
            "converged": _pad(eigen.converged.astype(float), config.k, 0),
            "hidden": eigen.hidden,
            "hidden_failure_probability": eigen.hidden_failure_probability,
            "num_products": eigen.num_products + inertia.num_products + products,
            "inertia": [inertia.negative, inertia.zero, inertia.positive],
            "inertia_lower": inertia.lower,
            "inertia_upper": inertia.upper,
            "inertia_level": LEVELS.index(inertia.level),
            "inertia_tolerance": inertia.tolerance,
            "inertia_error": inertia.error,
            "inertia_failure_probability": inertia.failure_probability,
            "inertia_estimate": estimate.value if estimate else np.nan,
            "inertia_estimate_low": estimate.low if estimate else np.nan,
            "inertia_estimate_high": estimate.high if estimate else np.nan,
            "saddle_index_gauge_free": gauge_free,
            "operator_norm": eigen.operator_norm,
            "grad_norm": float(torch.cat([point.gradient[m].reshape(-1) for m in self.problem.names(block)]).norm()),
            "trace": trace,
            "trace_error": trace_error,
            **self._directions(block, eigen, inertia.tolerance),
            **self._tracks(before, eigen.vectors),
            "seconds": time.monotonic() - started,
        }
        self.progress(block, True)
        return _Found(row, eigen.ritz if self.is_dense(block) else None, eigen.vectors, rule)

    def _shift(self, point: Point, block: str) -> SoftmaxShift | None:
        """Exact null vectors of the data loss (F9): left in, rounding would give them random signs."""
        names = self.problem.names(block)
        return SoftmaxShift(point.params, names) if "V" in names and not self.problem.decay else None

    def _operator(self, point: Point, block: str) -> Operator:
        shift = self._shift(point, block)
        return Deflated(point.block(block), shift) if shift else point.block(block)

    def _rule(self, op: Operator) -> Quadrature:
        return quadrature(op, self.config.probes, self.config.probe_steps, self.config.seed)

    def _directions(self, block: str, eigen: EigenResult, tolerance: float) -> Row:
        """Where the eigenvectors lie: masses on E, W, V and the biases, and angles of the negative subspace."""
        k, names = self.config.k, self.problem.names(block)
        sizes = [self.problem.sizes[n] for n in names]
        part = [PARTS.index(n if n in PARTS else "bias") for n in names]
        shares = np.full((2, k, len(PARTS)), np.nan)
        found = eigen.vectors.shape[2]
        for end in range(2):
            shares[end, :found] = 0
            np.add.at(shares[end, :found].T, part, masses(eigen.vectors[end], sizes))
        angles = np.full((len(PARTS), k), np.nan)
        negative = eigen.vectors[0][:, torch.from_numpy(eigen.values[0] < -tolerance).to(eigen.vectors.device)]
        for i, found_angles in zip(part, principal_angles(negative, sizes), strict=True):
            if PARTS[i] != "bias":
                angles[i, : len(found_angles)] = found_angles
        return {"bottom_mass": shares[0, 0], "eigenvector_mass": shares, "principal_angles": angles}

    def _tracks(self, before: Tensor | None, vectors: Tensor) -> Row:
        k = self.config.k
        rank, overlap = np.full((2, k), -1), np.full((2, k), np.nan)
        if before is None or before.shape != vectors.shape:
            return {
                "subspace_overlap": [np.nan, np.nan],
                "previous_rank": rank,
                "previous_overlap": overlap,
                "crossings": [-1, -1],
            }
        found = track(before, vectors)
        rank[:, : vectors.shape[2]], overlap[:, : vectors.shape[2]] = found.previous_rank, found.previous_overlap
        return {
            "subspace_overlap": found.subspace_overlap,
            "previous_rank": rank,
            "previous_overlap": overlap,
            "crossings": found.crossings,
        }

    def _scalars(self, point: Point, found: Mapping[str, _Found], training: Training, old: Row) -> Row:
        """What belongs to no block: taken from an earlier row where there is one, but for the curvature ratio."""
        row = {name: old[name] for name in _SCALARS} if old else self._measured_scalars(point, training)
        row["curvature_ratio"] = np.nan
        if {"E", "W"} <= found.keys():
            top_E, top_W = (found[n].row["eigenvalues"][1, 0] for n in ("E", "W"))
            row["curvature_ratio"] = _quotient(top_W, top_E)
        return row

    def _measured_scalars(self, point: Point, training: Training) -> Row:
        """Losses, ratios and bounds, each beside its prediction, and the sharpness in units of the step."""
        ratios = ("curvature_ratio_predicted", "gradient_ratio", "gradient_ratio_predicted")
        row: Row = dict.fromkeys((*ratios, "prop41_ratio"), np.nan)
        if "E" in self.problem.sizes:
            sigma_E, sigma_W = (float(torch.linalg.matrix_norm(point.params[n], 2)) for n in ("E", "W"))
            ratio = _quotient(sigma_E, sigma_W)
            row["curvature_ratio_predicted"] = ratio**2
            row["gradient_ratio"] = _quotient(float(point.gradient["W"].norm()), float(point.gradient["E"].norm()))
            row["gradient_ratio_predicted"] = ratio
            row["prop41_ratio"] = _quotient(ratio, training.f_E)
        row["train_loss"] = point.data_loss
        row["saddle_bound"] = point.bound.sigma_max if point.bound else np.nan
        row["saddle_rank_bound"] = point.bound.rank_bound if point.bound else -1
        for name, adaptive in (("sharpness_gd", False), ("sharpness_adam", True)):
            rates = point.rates(training, adaptive)
            row[name] = np.nan
            if rates is not None:
                step = Scaled(point.block("all"), rates)
                top = eigsh(step, 1, which="highest", method="lanczos", tol=1e-4, seed=self.config.seed)
                row[name] = top.values[0, 0]
        return row

    def _couplings(self, point: Point, found: Mapping[str, _Found], kept: Collection[str], old: Row) -> Row:
        """Coupling ratios and strength of every pair whose joint block was analysed."""
        shape = (len(PAIRS), self.config.k)
        row = {
            "coupling_ratios": np.full(shape, np.nan),
            "coupling_ratio_error": np.full(shape, np.nan),
            "coupling_ratio_distance": np.full(shape, np.nan),
            "coupling_index": np.full(len(PAIRS), -1),
            "coupling_strength": np.full(len(PAIRS), np.nan),
        }
        for i, pair in enumerate(PAIRS):
            if pair not in found:
                continue
            if pair in kept:
                for name, values in row.items():
                    values[i] = old[name][i]
            first, second = self.problem.names(pair)
            # Where the blocks of a pair are measured, their norms are taken from there.
            if pair in kept and not {first, second} & (found.keys() - set(kept)):
                continue
            ops = self._pair(point, pair, first, second)
            if pair not in kept:
                self._ratios(row, i, pair, ops, found[pair].row["inertia_tolerance"])
            norms = [
                found[name].row["operator_norm"] if name in found else spectral_norm(op)
                for name, op in ((first, ops[0]), (second, ops[2]))
            ]
            row["coupling_strength"][i] = coupling_strength(ops[1], *norms)
        return row

    def _ratios(self, row: Row, i: int, pair: str, ops: tuple[Operator, Operator, Operator], tolerance: float) -> None:
        """Put the coupling ratios of a pair into its place of a row."""
        k = self.config.k
        try:
            result = coupling(
                *ops,
                tolerance,
                k,
                "dense" if self.is_dense(pair) else "lanczos",
                seed=self.config.seed,
                max_products=self.config.max_products,
            )
        except NumericsError:
            # A diagonal block with negative curvature of its own has no coupling ratios.
            return
        row["coupling_index"][i] = result.index
        found = {"ratios": result.ratios, "ratio_error": result.errors, "ratio_distance": result.distances}
        for name, values in found.items():
            row[f"coupling_{name}"][i] = _pad(values[None, :k], k)[0]

    def _pair(self, point: Point, pair: str, first: str, second: str) -> tuple[Operator, Operator, Operator]:
        """H_11, H_12, H_22 of a pair, dense where they are."""
        if self.is_dense(pair):
            H, _ = point.matrix(pair)
            at, M = self.problem.sizes[first], H.matrix
            cut = (M[:at, :at], M[:at, at:], M[at:, at:])
            a, b, c = (MatrixOperator(part.contiguous(), H.error) for part in cut)
            return a, b, c
        # The diagonal ones are solved with: factorised if they are small enough.
        diagonal: list[Operator] = [
            point.matrix(name)[0] if self.is_dense(name) else point.block(name) for name in (first, second)
        ]
        return diagonal[0], point.hessian.block([first], [second]), diagonal[1]

    def _smoothed(self, point: Point, found: Mapping[str, _Found], kept: Collection[str], old: Rows) -> tuple[Row, Row]:
        """The blocks' densities on one grid, which another largest block would change, and their distances."""
        blocks, before = self.config.blocks, old["density"]
        norm = max(f.row["operator_norm"] for f in found.values())
        grid, width = density_grid(norm, self.config.bandwidth, DENSITY_POINTS)
        same = bool(before) and np.array_equal(grid, before["eigenvalue"]) and width == before["width"]
        held = set(kept) if same else set()
        new = {} if held == set(blocks) else {b: self._density(point, b, f, grid, width) for b, f in found.items()}
        row: Row = {"eigenvalue": grid, "width": width}
        for b in blocks:
            row[b], row[f"{b}_error"] = (
                (before[b], before[f"{b}_error"]) if b in held else (new[b].mean, new[b].standard_error)
            )
        distance, error = (np.zeros((len(blocks), len(blocks))) for _ in range(2))
        for at in np.ndindex(*distance.shape):
            a, b = (blocks[i] for i in at)
            if {a, b} <= held:
                distance[at], error[at] = (old["/"][name][at] for name in ("jensen_shannon", "jensen_shannon_error"))
            else:
                distance[at] = jensen_shannon(new[a].mean, new[b].mean)
                error[at] = jensen_shannon_error(new[a], new[b])
        return row, {"jensen_shannon": distance, "jensen_shannon_error": error}

    def _density(self, point: Point, block: str, found: _Found, grid: NDArray[np.float64], width: float) -> Smoothed:
        if found.spectrum is not None:
            return Smoothed.known(density_of(found.spectrum, grid, width))
        rule = found.rule or self._rule(self._operator(point, block))
        return rule.density(grid, width)


def _quotient(a: float, b: float) -> float:
    return a / b if b else float("nan")


def _pad(values: NDArray[Any], k: int, fill: float = np.nan) -> NDArray[np.float64]:
    """(end, found) -> (end, k)."""
    padded = np.full((len(values), k), fill)
    padded[:, : values.shape[1]] = values
    return padded
