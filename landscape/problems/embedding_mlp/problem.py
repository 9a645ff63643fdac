"""One checkpoint on the device: parameters, gradient, Hessian, and the dense blocks made so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import BLOCKS, PAIRS, AnalysisConfig, TrainConfig
from landscape.curvature.objective import Objective
from landscape.curvature.operators import Block, HessianOperator, MatrixOperator
from landscape.devices import pick_device
from landscape.errors import ConfigError, NumericsError
from landscape.problems.embedding_mlp.bounds import saddle_bound
from landscape.problems.embedding_mlp.dense import EmbeddingMLP
from landscape.problems.embedding_mlp.model import ACTIVATIONS, MLP, load_model
from landscape.problems.embedding_mlp.products import EmbeddingHessian
from landscape.problems.embedding_mlp.starts import low_end
from landscape.problems.tasks import TRAIN

SELF_CHECK = 1e-10
"""Largest relative difference allowed between a closed-form block and Hessian-vector products."""
Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Training:
    """What the trainer knew at a checkpoint: step, f_E, learning rates, and Adam's second moments if it keeps any."""

    step: int
    f_E: float
    lr_E: float
    lr_W: float
    second_moments: Arrays | None


class Problem:
    """A run's model, training set and objective, at whatever parameters."""

    def __init__(self, train: TrainConfig, config: AnalysisConfig, data: Arrays) -> None:
        """data: tokens, labels, split as in the run file. Raises ConfigError for an objective the run had not."""
        self.train, self.config = train, config
        self.device = pick_device(config.device)
        rows = data["split"] == TRAIN
        self.tokens = torch.from_numpy(data["tokens"][rows]).to(self.device, torch.int64)
        self.labels = torch.from_numpy(data["labels"][rows]).to(self.device, torch.int64)
        self.sizes = {n: p.numel() for n, p in MLP(train).named_parameters()}
        if config.objective == "regularised" and train.optimizer == "adamw":
            raise ConfigError(
                "objective regularised, but adamw decouples its decay from the loss", "use --objective data"
            )
        self.decay = train.weight_decay if config.objective == "regularised" else 0.0

    def names(self, block: str) -> list[str]:
        """The parameters of a block that this model has, in the order of the block's rows."""
        return [n for n in BLOCKS[block] if n in self.sizes]

    def require(self, block: str) -> None:
        """Raise ConfigError for a block of parameters that the model lacks."""
        missing = [n for n in BLOCKS[block] if n not in self.sizes]
        if missing and block != "all":
            has = [b for b, names in BLOCKS.items() if b == "all" or set(names) <= set(self.sizes)]
            raise ConfigError(
                f"block {block}: a {self.train.model} model has no {missing[0]}", f"choose from {' '.join(has)}"
            )

    def size(self, block: str) -> int:
        """Number of parameters of a block."""
        return sum(self.sizes[n] for n in self.names(block))

    def parameters(self, arrays: Arrays) -> dict[str, Tensor]:
        """Stored parameters in float64 on the device."""
        return {n: torch.from_numpy(a).to(self.device, torch.float64) for n, a in arrays.items()}

    def objective(self, params: Mapping[str, Tensor], decay: float) -> Objective:
        """The mean cross-entropy over the training set, with decay/2 |theta|^2."""
        model = load_model(self.train, params)
        return Objective(model, self.tokens, self.labels, weight_decay=decay, chunk_size=self.config.chunk_size)

    def hessian(self, params: Mapping[str, Tensor]) -> Block:
        """The Hessian of the objective chosen: by products derived by hand where the model has them."""
        if self.train.model != "embedding":
            return HessianOperator(self.objective(params, self.decay), params)
        return EmbeddingHessian(params, self.tokens, self.labels, ACTIVATIONS[self.train.activation], self.decay)


class Point:
    """A problem at one checkpoint."""

    def __init__(self, problem: Problem, arrays: Arrays) -> None:
        self.problem = problem
        self.params = problem.parameters(arrays)
        self.data_loss = problem.objective(self.params, 0.0).value(self.params)
        self.objective = problem.objective(self.params, problem.decay)
        self.gradient = self.objective.gradient(self.params)
        self._autograd = HessianOperator(self.objective, self.params)
        self._dense: dict[str, MatrixOperator] = {}
        train = problem.train
        self.closed_form = (
            EmbeddingMLP(self.params, problem.tokens, problem.labels, ACTIVATIONS[train.activation])
            if train.model == "embedding"
            else None
        )
        self.hessian = problem.hessian(self.params)
        generator = torch.Generator().manual_seed(problem.config.seed)
        probe = torch.randn(self.hessian.shape[0], generator=generator, dtype=torch.float64).to(problem.device)
        _agree("products", self.hessian @ probe, self._autograd @ probe)
        # F14 is about the data loss of piecewise-linear networks.
        has_bound = train.activation == "relu" and not problem.decay
        self.bound = (
            saddle_bound(self.hessian.table_gradient(), train.embed_dim)
            if isinstance(self.hessian, EmbeddingHessian) and has_bound
            else None
        )

    def block(self, block: str) -> Block:
        """A block by Hessian-vector products."""
        return self.hessian.block(self.problem.names(block))

    def starts(self, block: str) -> tuple[Tensor | None, int]:
        """Vectors (n, m) near the low end of a block, where theory knows any, and the products they took."""
        op = self.block(block)
        return low_end(op, self.problem.config.k) if isinstance(op, EmbeddingHessian) else (None, 0)

    def matrix(self, block: str) -> tuple[MatrixOperator, int]:
        """A dense block with a bound on its error, and the products it took.

        Each is made by itself: cut out of a larger one, its last bits would depend on which others are analysed.
        """
        if block in self._dense:
            return self._dense[block], 0
        op = self._autograd.block(self.problem.names(block))
        if self.closed_form is None:
            found, products = op.symmetric(), op.shape[0]
        else:
            matrix = self.closed_form.hessian(self.problem.names(block))
            matrix.diagonal().add_(self.problem.decay)
            found, products = MatrixOperator(matrix, self._self_check(block, matrix, op)), 0
        # Those that the couplings need again.
        if block in ("E", "W", "V", *PAIRS):
            self._dense[block] = found
        return found, products

    def rates(self, training: Training, adaptive: bool) -> Tensor | None:
        """Learning rate of every parameter, over Adam's preconditioner if `adaptive`; None where one is not known."""
        moments = training.second_moments
        if np.isnan(training.lr_W) or adaptive and (moments is None or training.step == 0):
            return None
        pieces = []
        for name in self.problem.names("all"):
            lr = torch.full_like(self.params[name], training.lr_E if name == "E" else training.lr_W)
            if self.problem.train.freeze == name:
                lr = torch.zeros_like(lr)
            if adaptive and moments is not None:
                v = torch.from_numpy(moments[name]).to(lr) / (1 - ADAM_BETA_2**training.step)
                lr = lr / (v.sqrt() + ADAM_EPS)
            pieces.append(lr.reshape(-1))
        return torch.cat(pieces)

    def _self_check(self, block: str, matrix: Tensor, op: HessianOperator) -> float:
        """Estimated |matrix - H|_F from Hessian-vector products with random probes; raises if it is not rounding."""
        generator = torch.Generator().manual_seed(self.problem.config.seed)
        probes = torch.randn(len(matrix), 4, generator=generator, dtype=torch.float64).to(matrix)
        expected = op @ probes
        difference = _agree(f"block {block}: closed form", matrix @ probes, expected)
        return float(difference / probes.shape[1] ** 0.5)


def _agree(what: str, found: Tensor, expected: Tensor) -> float:
    """|found - expected|; raises NumericsError if that is more than rounding."""
    difference = float((found - expected).norm())
    if difference > SELF_CHECK * float(expected.norm()):
        raise NumericsError(
            f"{what} and automatic differentiation differ by {difference / float(expected.norm()):.1e} relative",
            "this is a defect of landscape: please report it with the run file",
        )
    return difference


ADAM_BETA_2, ADAM_EPS = 0.999, 1e-8
"""torch.optim.Adam's defaults, which every run uses."""
