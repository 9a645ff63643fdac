"""Everything that is measured at one checkpoint: the rows of the Hessian file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import PAIRS, AnalysisConfig, TrainConfig
from landscape.curvature.coupling import coupling, coupling_strength, masses, principal_angles, spectral_norm
from landscape.curvature.density import (
    Quadrature,
    Smoothed,
    density_grid,
    density_of,
    jensen_shannon,
    jensen_shannon_error,
    quadrature,
)
from landscape.curvature.gauge import Deflated, GaugeTangent, SoftmaxShift
from landscape.curvature.inertia import Inertia, bracketed, certified, from_spectrum
from landscape.curvature.lanczos import EigenResult, eigsh
from landscape.curvature.operators import MatrixOperator, Operator
from landscape.curvature.tracking import Scaled, track
from landscape.devices import require_dense
from landscape.errors import NumericsError
from landscape.point import Point, Problem, Training
from landscape.storage.contents import PARTS
from landscape.storage.schema import LEVELS
from landscape.storage.spectra import Layout

DENSITY_POINTS = 512
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Found:
    """What was found of one block; the quadrature if it is matrix-free."""

    eigen: EigenResult
    inertia: Inertia
    rule: Quadrature | None
    row: Row


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
            eigenvectors=self.config.eigenvectors,
        )

    def run(self, parameters: Mapping[str, NDArray[Any]], training: Training) -> dict[str, Row]:
        """One row of each table of the Hessian file, by group; "/" is the root."""
        point = Point(self.problem, parameters)
        # The largest first: smaller dense blocks are cut out of larger ones.
        by_size = sorted(self.config.blocks, key=self.problem.size, reverse=True)
        found = {block: self._block(point, block) for block in by_size}
        blocks = self.config.blocks
        row: Row = {name: np.array([found[b].row[name] for b in blocks]) for name in found[blocks[0]].row}
        row.update(self._scalars(point, found, training))
        row.update(self._couplings(point, found))
        grid, width, smoothed = self._densities(found)
        pairs = [[(smoothed[a], smoothed[b]) for a in blocks] for b in blocks]
        row["jensen_shannon"] = np.array([[jensen_shannon(a.mean, b.mean) for a, b in line] for line in pairs])
        row["jensen_shannon_error"] = np.array([[jensen_shannon_error(a, b) for a, b in line] for line in pairs])
        self._before = {b: f.eigen.vectors for b, f in found.items()}
        return {
            "/": row,
            "spectrum": {b: found[b].eigen.ritz for b in blocks if self.is_dense(b)},
            "density": {
                "eigenvalue": grid,
                "width": width,
                **{b: s.mean for b, s in smoothed.items()},
                **{f"{b}_error": s.standard_error for b, s in smoothed.items()},
            },
            "eigenvectors": {b: found[b].eigen.vectors.mT.cpu().numpy() for b in blocks},
        }

    def _block(self, point: Point, block: str) -> _Found:
        """Spectrum, inertia and eigenvectors of one block."""
        started = time.monotonic()
        config = self.config
        before = self._before.get(block)
        bound = point.bound.rank_bound if point.bound and block == "E,W" else None
        rule, gauge_free, products = None, -1, 0
        names = self.problem.names(block)
        # Exact null vectors of the data loss (F9): left in, rounding would give them random signs.
        shift = SoftmaxShift(point.params, names) if "V" in names and not self.problem.decay else None
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
            op = Deflated(point.block(block), shift) if shift else point.block(block)
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
            rule = quadrature(op, config.probes, config.probe_steps, config.seed)
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
        return _Found(eigen, inertia, rule, row)

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

    def _scalars(self, point: Point, found: Mapping[str, _Found], training: Training) -> Row:
        """Losses, ratios and bounds, each beside its prediction, and the sharpness in units of the step."""
        ratios = ("curvature_ratio", "curvature_ratio_predicted", "gradient_ratio", "gradient_ratio_predicted")
        row = dict.fromkeys((*ratios, "prop41_ratio"), np.nan)
        if {"E", "W"} <= found.keys():
            row["curvature_ratio"] = _quotient(found["W"].eigen.values[1, 0], found["E"].eigen.values[1, 0])
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

    def _couplings(self, point: Point, found: Mapping[str, _Found]) -> Row:
        """Coupling ratios and strength of every pair whose joint block was analysed."""
        shape = (len(PAIRS), self.config.k)
        ratios, errors, distances = (np.full(shape, np.nan) for _ in range(3))
        index, strength = np.full(len(PAIRS), -1), np.full(len(PAIRS), np.nan)
        for i, pair in enumerate(PAIRS):
            if pair not in found:
                continue
            first, second = self.problem.names(pair)
            ops = self._pair(point, pair, first, second)
            try:
                result = coupling(
                    *ops,
                    found[pair].inertia.tolerance,
                    self.config.k,
                    "dense" if self.is_dense(pair) else "lanczos",
                    seed=self.config.seed,
                    max_products=self.config.max_products,
                )
                index[i] = result.index
                for row, values in ((ratios, result.ratios), (errors, result.errors), (distances, result.distances)):
                    row[i] = _pad(values[None, : shape[1]], shape[1])[0]
            except NumericsError:
                # A diagonal block with negative curvature of its own has no coupling ratios.
                pass
            norms = [
                found[name].eigen.operator_norm if name in found else spectral_norm(op)
                for name, op in ((first, ops[0]), (second, ops[2]))
            ]
            strength[i] = coupling_strength(ops[1], *norms)
        return {
            "coupling_ratios": ratios,
            "coupling_ratio_error": errors,
            "coupling_ratio_distance": distances,
            "coupling_index": index,
            "coupling_strength": strength,
        }

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

    def _densities(self, found: Mapping[str, _Found]) -> tuple[NDArray[np.float64], float, dict[str, Smoothed]]:
        """One grid for all blocks, the width, and every block's smoothed density."""
        norm = max(f.eigen.operator_norm for f in found.values())
        grid, width = density_grid(norm, self.config.bandwidth, DENSITY_POINTS)
        smoothed = {
            block: f.rule.density(grid, width) if f.rule else Smoothed.known(density_of(f.eigen.ritz, grid, width))
            for block, f in found.items()
        }
        return grid, width, smoothed


def _quotient(a: float, b: float) -> float:
    return a / b if b else float("nan")


def _pad(values: NDArray[Any], k: int, fill: float = np.nan) -> NDArray[np.float64]:
    """(end, found) -> (end, k)."""
    padded = np.full((len(values), k), fill)
    padded[:, : values.shape[1]] = values
    return padded
