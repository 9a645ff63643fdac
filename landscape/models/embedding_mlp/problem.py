"""The embedding-coupled MLP of a grokking run as a problem, with all that is derived by hand for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.curvature.deflation import Directions, Spanned
from landscape.curvature.operators import Block
from landscape.curvature.part import taken
from landscape.models.embedding_mlp.blocks import BALANCED, BLOCKS, DEFAULT_BLOCKS, PAIRS, PARTS
from landscape.models.embedding_mlp.bounds import saddle_bound
from landscape.models.embedding_mlp.closed_form import ClosedForm
from landscape.models.embedding_mlp.dense import EmbeddingMLP
from landscape.models.embedding_mlp.dense_tables import TableMLP
from landscape.models.embedding_mlp.fields import PARAMETERS
from landscape.models.embedding_mlp.first_layer import Tables
from landscape.models.embedding_mlp.gauge import GaugeTangent, SoftmaxShift, Together, Unseen
from landscape.models.embedding_mlp.model import MLP
from landscape.models.embedding_mlp.plain import mean_cross_entropy, plain_model
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes
from landscape.models.embedding_mlp.starts import low_end
from landscape.models.problem import Arrays, ParameterSpec, Plain, shapes_of
from landscape.models.rows import located
from landscape.models.trained import TrainedProblem


class EmbeddingMLPProblem(TrainedProblem):
    """A run of `landscape train`: learned embeddings, one-hot tokens or tables, or the tokens' numbers (cf. `Problem`).

    All but the first are without E; vectors: what takes its place where the tokens' numbers do, (token, 1).
    """

    blocks: Mapping[str, tuple[str, ...]]
    pairs: Sequence[tuple[str, str]] = PAIRS
    parts: Mapping[str, tuple[str, ...]] = PARTS
    balanced: tuple[str, str] | None

    def __init__(self, train: TrainConfig, data: Arrays, device: torch.device, chunk_size: int) -> None:
        super().__init__(train, data, device, chunk_size)
        shapes = {n: tuple(p.shape) for n, p in self.model.named_parameters()}
        known = {field.name: field for field in PARAMETERS}
        self.parameters = {n: ParameterSpec(shape, known[n].dims, known[n].long_name) for n, shape in shapes.items()}
        self.blocks = blocks_of(list(shapes))
        self.default_blocks = tuple(b for b in DEFAULT_BLOCKS if b in self.blocks)
        self.balanced = BALANCED if set(BALANCED) <= shapes.keys() else None
        numbers = torch.arange(train.num_tokens, dtype=torch.float64, device=device)[:, None]
        self.vectors = numbers if train.model == "scalar" else None

    def network(self) -> MLP:
        return MLP(self.train)

    def structure(self, params: Mapping[str, Tensor], decay: float) -> MLPStructure:
        """What theory knows at a point."""
        return MLPStructure(self, params, decay)

    def plain(self, arrays: Arrays) -> Plain:
        """Input layer, flatten, Linear, activation, Linear, with torch's own gradients."""
        model, named = plain_model(self.train, arrays, self.device)
        return Plain(model, named, self.tokens, self.labels, mean_cross_entropy)


def blocks_of(parameters: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The blocks of a model that has only these parameters, in the order of their rows."""
    found = {b: tuple(n for n in names if n in parameters) for b, names in BLOCKS.items()}
    return {b: names for b, names in found.items() if b == "all" or names == BLOCKS[b]}


class MLPStructure:
    """Products, dense blocks, starts, null vectors and bounds of the MLP at one point (cf. `Structure`)."""

    def __init__(self, problem: EmbeddingMLPProblem, params: Mapping[str, Tensor], decay: float) -> None:
        self.problem, self.params, self.decay = problem, params, decay
        self.activation = ACTIVATIONS[problem.train.activation]
        self._closed: dict[bool, ClosedForm] = {}

    @functools.cached_property
    def _passes(self) -> Passes:
        at = self.problem
        return Passes(self.params, at.tokens, at.labels, self.activation, at.vectors)

    def operator(self) -> Block:
        """The Hessian by products derived by hand."""
        if not (part := taken()):
            return EmbeddingHessian(self._passes, self.decay)
        # The mean over all samples is that of the ranks' means, weighed by what each has; so is its decay.
        own = MLPStructure(self.problem.part(part), self.params, self.decay)
        share = len(own.problem.tokens) / len(self.problem.tokens)
        return EmbeddingHessian(own._passes, self.decay, over=lambda images: part.total(share * images))

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        """A block in closed form (theory.md, section 4); None for a bias without its matrix, which is far larger."""
        if any(bias in names and matrix not in names for bias, matrix in (("b1", "W"), ("b2", "V"))):
            return None
        if gauss_newton not in self._closed:
            self._closed[gauss_newton] = self._closed_form(gauss_newton)
        matrix = self._closed[gauss_newton].hessian(names)
        matrix.diagonal().add_(self.decay)
        return matrix

    def _closed_form(self, gauss_newton: bool) -> ClosedForm:
        at = self.problem
        known = self.params, at.tokens, at.labels, self.activation, gauss_newton
        has_tables = "E" not in self.params and at.vectors is None
        return TableMLP(*known) if has_tables else EmbeddingMLP(*known, at.vectors)

    def starts(self, names: Sequence[str], k: int) -> tuple[Tensor | None, int]:
        """Start vectors for the low end of a block."""
        return low_end(EmbeddingHessian(self._passes, self.decay, names), k)

    def null_vectors(self, names: Sequence[str]) -> Directions | None:
        """The softmax shift of the data loss (F9), and of tables what no sample sees."""
        if self.decay:
            return None
        found: list[Directions] = [SoftmaxShift(self.params, names)] if "V" in names else []
        layer = self._passes.layer
        if "W" in names and isinstance(layer, Tables):
            found.append(Unseen(layer.inputs(self.problem.tokens), self.params, names))
        return Together(found) if found else None

    def gauge(self, names: Sequence[str]) -> Spanned | None:
        """The tangents of E -> E A, W_k -> W_k A^{-T} (F7)."""
        return GaugeTangent(self.params, names) if {"E", "W"} <= set(names) else None

    def bounds(self, names: Sequence[str]) -> Mapping[str, float]:
        """F14, for rows of E with W, the data loss and piecewise-linear activations; for all of E also by F15."""
        if len(names) != 2 or names[1] != "W" or self.decay or not self.activation.piecewise_linear:
            return {}
        parameter, rows = located(names[0], shapes_of(self.problem.parameters))
        if parameter != "E":
            return {}
        G, d = self._passes.table_gradient(), self.problem.train.embed_dim
        found = saddle_bound(G[:, rows.start : rows.stop], d)
        parts = {
            f"saddle_bound_{name}": saddle_bound(G[:, some.start : some.stop], d).sigma_max
            for name, some in self.problem.rows.get("E", {}).items()
            if names[0] == "E"
        }
        return {"saddle_bound": found.sigma_max, "saddle_rank_bound": found.rank_bound, **parts}
