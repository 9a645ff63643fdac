"""Everything that is measured at one checkpoint: the rows of the Hessian file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import BLOCKS, PAIRS, HessianConfig, TrainConfig
from landscape.curvature.coupling import coupling, coupling_strength, saddle_bound, spectral_norm
from landscape.curvature.dense import EmbeddingMLP
from landscape.curvature.inertia import inertia_of
from landscape.curvature.lanczos import EigenResult, eigsh
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, MatrixOperator, Operator
from landscape.devices import pick_device, require_dense
from landscape.errors import ConfigError, NumericsError
from landscape.storage.schema import LEVELS
from landscape.storage.spectra import PARTS
from landscape.training.models import ACTIVATIONS, MLP, load_model
from landscape.training.tasks import TRAIN

SELF_CHECK = 1e-10
"""Largest relative difference allowed between a closed-form block and Hessian-vector products."""

Row = dict[str, Any]


class Measurement:
    """The curvature of one checkpoint after another, for one run and one HessianConfig."""

    def __init__(self, train: TrainConfig, config: HessianConfig, data: Mapping[str, NDArray[Any]]) -> None:
        """data: tokens, labels, split as in the run file.

        Raises, before any work, ConfigError for a block the model lacks or an objective the run had not, and
        DoesNotFitError for dense blocks that do not fit.
        """
        self.train, self.config = train, config
        self.device = pick_device(config.device)
        rows = data["split"] == TRAIN
        self.tokens = torch.from_numpy(data["tokens"][rows]).to(self.device, torch.int64)
        self.labels = torch.from_numpy(data["labels"][rows]).to(self.device, torch.int64)
        self.sizes = _parameter_sizes(train)
        if config.objective == "regularised" and train.optimizer == "adamw":
            raise ConfigError(
                "objective regularised, but adamw decouples its decay from the loss", "use --objective data"
            )
        self.decay = train.weight_decay if config.objective == "regularised" else 0.0
        for block in config.blocks:
            missing = [n for n in BLOCKS[block] if n not in self.sizes]
            if missing and block != "all":
                has = [b for b, names in BLOCKS.items() if b == "all" or set(names) <= set(self.sizes)]
                raise ConfigError(
                    f"block {block}: a {train.model} model has no {missing[0]}",
                    f"choose from {' '.join(has)}",
                )
            if self.is_dense(block):
                require_dense(block, self.size(block), self.device)

    def names(self, block: str) -> list[str]:
        """The parameters of a block that this model has, in the order of the block's rows."""
        return [n for n in BLOCKS[block] if n in self.sizes]

    def size(self, block: str) -> int:
        """Number of parameters of a block."""
        return sum(self.sizes[n] for n in self.names(block))

    def is_dense(self, block: str) -> bool:
        """Whether a block is treated as a dense matrix."""
        if self.config.method != "auto":
            return self.config.method == "dense"
        return self.size(block) <= self.config.dense_limit

    def run(self, parameters: Mapping[str, NDArray[Any]], f_E: float) -> tuple[Row, dict[str, NDArray[Any]]]:
        """One row of the Hessian file, and all eigenvalues of each dense block."""
        point = _Point(self, parameters)
        found: dict[str, EigenResult] = {}
        rows: dict[str, Row] = {}
        # The largest first: smaller dense blocks are cut out of larger ones.
        for block in sorted(self.config.blocks, key=self.size, reverse=True):
            found[block], rows[block] = self._block(point, block)
        row: Row = {name: np.array([rows[b][name] for b in self.config.blocks]) for name in next(iter(rows.values()))}
        row.update(self._scalars(point, found, f_E))
        tolerance = {b: float(r["inertia_tolerance"]) for b, r in rows.items()}
        row.update(self._couplings(point, found, tolerance))
        return row, {b: found[b].ritz for b in self.config.blocks if self.is_dense(b)}

    def _block(self, point: _Point, block: str) -> tuple[EigenResult, Row]:
        """Spectrum and inertia of one block."""
        started = time.monotonic()
        config, n = self.config, self.size(block)
        error, products = 0.0, 0
        if self.is_dense(block):
            matrix, error, products = point.matrix(block)
            eigen = eigsh(MatrixOperator(matrix), config.k, method="dense", tol=config.tol)
        else:
            op = point.hessian.block(self.names(block))
            eigen = eigsh(
                op,
                config.k,
                method="lanczos",
                tol=config.tol,
                seed=config.seed,
                max_products=config.max_products,
            )
        bound = point.bound.rank_bound if point.bound and block == "E,W" else None
        inertia = inertia_of(eigen, n, config.tau, error, bound)
        return eigen, {
            "eigenvalues": _pad(eigen.values, config.k),
            "residual_norm": _pad(eigen.residuals, config.k),
            "converged": _pad(eigen.converged.astype(float), config.k, 0),
            "num_products": eigen.num_products + products,
            "seconds": time.monotonic() - started,
            "inertia": [inertia.negative, inertia.zero, inertia.positive],
            "inertia_lower": inertia.lower,
            "inertia_upper": inertia.upper,
            "inertia_level": LEVELS.index(inertia.level),
            "inertia_tolerance": inertia.tolerance,
            "operator_norm": eigen.operator_norm,
            "grad_norm": float(torch.cat([point.gradient[m].reshape(-1) for m in self.names(block)]).norm()),
            "bottom_mass": self._masses(block, eigen.vectors[0, :, 0]),
        }

    def _scalars(self, point: _Point, found: Mapping[str, EigenResult], f_E: float) -> Row:
        """Losses, ratios and bounds, each beside its prediction."""
        row = dict.fromkeys(
            (
                "curvature_ratio",
                "curvature_ratio_predicted",
                "gradient_ratio",
                "gradient_ratio_predicted",
                "prop41_ratio",
            ),
            np.nan,
        )
        if {"E", "W"} <= found.keys():
            row["curvature_ratio"] = _quotient(found["W"].values[1, 0], found["E"].values[1, 0])
        if "E" in self.sizes:
            sigma_E, sigma_W = (float(torch.linalg.matrix_norm(point.params[n], 2)) for n in ("E", "W"))
            ratio = _quotient(sigma_E, sigma_W)
            row["curvature_ratio_predicted"] = ratio**2
            row["gradient_ratio"] = _quotient(float(point.gradient["W"].norm()), float(point.gradient["E"].norm()))
            row["gradient_ratio_predicted"] = ratio
            row["prop41_ratio"] = _quotient(ratio, f_E)
        row["train_loss"] = point.data_loss
        row["saddle_bound"] = point.bound.sigma_max if point.bound else np.nan
        row["saddle_rank_bound"] = point.bound.rank_bound if point.bound else -1
        return row

    def _couplings(self, point: _Point, found: Mapping[str, EigenResult], tolerance: Mapping[str, float]) -> Row:
        """Coupling ratios and strength of every pair whose joint block was analysed."""
        ratios = np.full((len(PAIRS), self.config.k), np.nan)
        index, strength = np.full(len(PAIRS), -1), np.full(len(PAIRS), np.nan)
        for i, pair in enumerate(PAIRS):
            if pair not in tolerance:
                continue
            first, second = self.names(pair)
            if self.is_dense(pair):
                H, at = point.matrix(pair)[0], self.sizes[first]
                H_11, H_12, H_22 = (M.contiguous() for M in (H[:at, :at], H[:at, at:], H[at:, at:]))
                ops: tuple[Operator, ...] = tuple(map(MatrixOperator, (H_11, H_12, H_22)))
                result = coupling(H_11, H_12, H_22, tolerance[pair])
                if result:
                    index[i] = result.index
                    ratios[i] = _pad(result.ratios[None, : self.config.k], self.config.k)[0]
            else:
                ops = tuple(
                    point.hessian.block([r], [c]) for r, c in ((first, first), (first, second), (second, second))
                )
            norms = [
                found[name].operator_norm if name in found else spectral_norm(op)
                for name, op in ((first, ops[0]), (second, ops[2]))
            ]
            strength[i] = coupling_strength(ops[1], *norms)
        return {"coupling_ratios": ratios, "coupling_index": index, "coupling_strength": strength}

    def _masses(self, block: str, vector: Tensor) -> list[float]:
        """Share of a unit vector on E, W, V and the biases."""
        masses = dict.fromkeys(PARTS, 0.0)
        for name, piece in zip(
            self.names(block), vector.split([self.sizes[n] for n in self.names(block)]), strict=True
        ):
            masses[name if name in masses else "bias"] += float(piece.square().sum())
        return list(masses.values())


class _Point:
    """One checkpoint on the device: parameters, gradient, Hessian, and the dense blocks made so far."""

    def __init__(self, measurement: Measurement, parameters: Mapping[str, NDArray[Any]]) -> None:
        self.owner = m = measurement
        self.params = {n: torch.from_numpy(a).to(m.device, torch.float64) for n, a in parameters.items()}
        model = load_model(m.train, self.params)
        chunk = m.config.chunk_size
        objective = Objective(model, m.tokens, m.labels, weight_decay=m.decay, chunk_size=chunk)
        self.data_loss = Objective(model, m.tokens, m.labels, chunk_size=chunk).value(self.params)
        self.gradient = objective.gradient(self.params)
        self.hessian = HessianOperator(objective, self.params)
        self._dense: dict[tuple[str, ...], tuple[Tensor, float]] = {}
        self.closed_form = (
            EmbeddingMLP(self.params, m.tokens, m.labels, ACTIVATIONS[m.train.activation])
            if m.train.model == "embedding"
            else None
        )
        # F14 is about the data loss of piecewise-linear networks.
        has_bound = self.closed_form and m.train.activation == "relu" and not m.decay
        self.bound = (
            saddle_bound(self.closed_form.table_gradient(), m.train.embed_dim)
            if self.closed_form and has_bound
            else None
        )

    def matrix(self, block: str) -> tuple[Tensor, float, int]:
        """A dense block, a bound on its error in norm, and the products it took."""
        names = tuple(self.owner.names(block))
        for known, (whole, error) in self._dense.items():
            if set(names) <= set(known):
                offsets = dict(zip(known, np.cumsum([0, *(self.owner.sizes[n] for n in known)]), strict=False))
                pick = torch.cat([torch.arange(offsets[n], offsets[n] + self.owner.sizes[n]) for n in names]).to(
                    whole.device
                )
                return (whole if names == known else whole[pick][:, pick]), error, 0
        op = self.hessian.block(names)
        if self.closed_form is None:
            matrix, error = op.dense(), 0.0
        else:
            matrix = self.closed_form.hessian(names)
            matrix.diagonal().add_(self.owner.decay)
            error = self._self_check(block, matrix, op)
        self._dense[names] = matrix, error
        return matrix, error, (op.shape[0] if self.closed_form is None else 0)

    def _self_check(self, block: str, matrix: Tensor, op: HessianOperator) -> float:
        """Estimated |matrix - H|_F from Hessian-vector products with random probes; raises if it is not rounding."""
        generator = torch.Generator().manual_seed(self.owner.config.seed)
        probes = torch.randn(len(matrix), 4, generator=generator, dtype=torch.float64).to(matrix)
        expected = op @ probes
        difference = matrix @ probes - expected
        if float(difference.norm()) > SELF_CHECK * float(expected.norm()):
            raise NumericsError(
                f"block {block}: closed form and Hessian-vector products differ by "
                f"{float(difference.norm() / expected.norm()):.1e} relative",
                "this is a defect of landscape: please report it with the run file; --method lanczos avoids it",
            )
        return float(difference.norm() / probes.shape[1] ** 0.5)


def _parameter_sizes(train: TrainConfig) -> dict[str, int]:
    """Number of entries of every parameter of a run's model."""
    return {n: p.numel() for n, p in MLP(train).named_parameters()}


def _quotient(a: float, b: float) -> float:
    return a / b if b else float("nan")


def _pad(values: NDArray[Any], k: int, fill: float = np.nan) -> NDArray[np.float64]:
    """(end, found) -> (end, k)."""
    padded = np.full((len(values), k), fill)
    padded[:, : values.shape[1]] = values
    return padded
