"""The embedding MLP as a problem: its blocks, exact results, bounds, and the same model in plain PyTorch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.curvature.operators import BlockOperator, Directions, Spanned
from landscape.curvature.part import current_part
from landscape.models.embedding_mlp.blocks import BALANCED, BLOCKS, DEFAULT_BLOCKS, PAIRS, PARAMETERS, PARTS
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.complement import Progress
from landscape.models.embedding_mlp.gauge import GaugeTangent, SoftmaxShift, Together, Unseen, unseen_inputs
from landscape.models.embedding_mlp.index import Orders, StructuredIndex
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes
from landscape.models.problem import Arrays, ParameterSpec, Plain, Structure, joint, shapes_of
from landscape.models.rows import located
from landscape.models.trained import TrainedProblem


@dataclasses.dataclass(frozen=True)
class SaddleBound:
    """lambda_min(H_[E,W]) >= -sigma_max(G) and saddle index <= d * rank(G) (F14)."""

    sigma_max: float
    rank_bound: int


def saddle_bound(G: Tensor, embed_dim: int) -> SaddleBound:
    """The bound from G = [dL/dT_1^T; ...; dL/dT_s^T], shape (s h, token), for piecewise-linear activations."""
    sigma = torch.linalg.svdvals(G)
    threshold = max(G.shape) * torch.finfo(G.dtype).eps * sigma[0]
    return SaddleBound(float(sigma[0]), embed_dim * int((sigma > threshold).sum()))


def plain_model(
    train: TrainConfig, parameters: Mapping[str, NDArray[Any]], device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network as its users write it, in float64: input layer, flatten, Linear, activation, Linear."""

    class Input(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            if train.model == "scalar":
                return tokens.double()
            return nn.functional.one_hot(tokens, train.num_tokens).double()

    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ACTIVATIONS[train.activation](x)

    tensors = {n: torch.from_numpy(a).double() for n, a in parameters.items()}
    named: dict[str, Tensor] = {}
    first: nn.Module = Input()
    if train.model == "embedding":
        first = nn.Embedding(train.num_tokens, train.embed_dim, dtype=torch.float64)
        named["E"] = first.weight
    hidden, inputs = tensors["W"].shape
    layers = [
        nn.Linear(inputs, hidden, bias=train.bias, dtype=torch.float64),
        nn.Linear(hidden, len(tensors["V"]), bias=train.bias, dtype=torch.float64),
    ]
    for layer, weight, bias in zip(layers, ("W", "V"), ("b1", "b2"), strict=True):
        named[weight] = layer.weight
        if train.bias:
            named[bias] = layer.bias
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(tensors[name])
    return nn.Sequential(first, nn.Flatten(), layers[0], Activation(), layers[1]).to(device), named


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """z_t - z_y + log(1 + sum of exp(z_c - z_t)), t the likeliest class: log_softmax has no digits left at low loss."""
    labels, top = labels[:, None], logits.argmax(1, keepdim=True)
    others = (logits - logits.gather(1, top)).scatter(1, top, -torch.inf)
    missed = others.gather(1, labels).masked_fill(labels == top, 0.0)
    return (others.exp().sum(1).log1p() - missed[:, 0]).mean()


_AT_ONCE = 16


def low_end(op: EmbeddingHessian, k: int) -> tuple[Tensor | None, int]:
    """Vectors (n, m) near the k lowest eigenvectors of a diagonal block, and the products they took.

    E,W: Ritz vectors in the lowest eigenspaces of K0 (F14). W: directions orthogonal to all samples. V: the softmax
    shift (F9). None for other blocks.
    """
    at, count = op.passes, max(24, 2 * k)
    match op.rows:
        case ["E", "W"]:
            return _coupled(op, count)
        case ["W"]:
            vectors = _unseen(at, count)
        case ["V"]:
            vectors = torch.eye(at.h).to(at.V)[:, :count].expand(len(at.V), at.h, -1) / len(at.V) ** 0.5
        case _:
            return None, 0
    m = vectors.shape[-1]
    return (vectors.reshape(-1, m) if m else None), 0


def _coupled(op: EmbeddingHessian, count: int) -> tuple[Tensor, int]:
    """Ritz vectors in the span of (-v a^T, u_k a^T) / sqrt 2 over all a, for leading singular pairs (u, v) of G.

    Whole eigenspaces are used: a search would have to find any omitted direction within its cluster.
    """
    at, layer = op.passes, op.passes.layer
    E, d = layer.E, layer.d
    U, sigma, v = torch.linalg.svd(at.table_gradient(), full_matrices=False)
    rank = min(4, int((sigma >= sigma[0] / 2).sum()))
    u, v = U[:, :rank].reshape(at.slots, at.h, rank) / 2**0.5, v[:rank] / 2**0.5

    def lift(a: Tensor) -> Tensor:
        m = a.shape[2]
        dE, dW = -torch.einsum("rt,rdm->tdm", v, a), torch.einsum("khr,rdm->hkdm", u, a)
        return torch.cat([dE.reshape(-1, m), dW.reshape(-1, m)])

    def lower(x: Tensor) -> Tensor:
        dE, dW = x[: E.numel()].view(*E.shape, -1), x[E.numel() :].view(at.h, at.slots, d, -1)
        return torch.einsum("khr,hkdm->rdm", u, dW) - torch.einsum("rt,tdm->rdm", v, dE)

    size = rank * d
    units = torch.eye(size).to(E).view(rank, d, size)
    T = torch.cat([lower(op @ lift(some)).flatten(0, 1) for some in units.split(_AT_ONCE, dim=2)], dim=1)
    S = torch.linalg.eigh((T + T.T) / 2)[1][:, :count]
    return lift(S.reshape(rank, d, -1)), size


def _unseen(at: Passes, count: int) -> Tensor:
    """e_j b^T for directions b of the first layer's input that are orthogonal to all samples."""
    z = at.layer.inputs(at.tokens)
    unseen = unseen_inputs(z)
    count = min(count, at.h * unseen.shape[1])
    W, m = z.new_zeros(*at.params["W"].shape, count), torch.arange(count, device=z.device)
    W[m % at.h, :, m] = unseen.T[m // at.h]
    return W


class EmbeddingMLPProblem(TrainedProblem):
    """A run of `landscape train`: learned embeddings, one-hot tokens or tables, or the tokens' numbers (cf. `Problem`).

    All but the first are without E; vectors: the constant inputs that take its place, (token, d).
    """

    parts = PARTS

    def __init__(self, train: TrainConfig, data: Arrays, device: torch.device, chunk_size: int) -> None:
        super().__init__(train, data, device, chunk_size)
        shapes = {n: tuple(p.shape) for n, p in self.model.named_parameters()}
        known = {field.name: field for field in PARAMETERS}
        self.parameters = {n: ParameterSpec(shape, known[n].dims, known[n].long_name) for n, shape in shapes.items()}
        self.blocks = blocks_of(list(shapes))
        self.pairs = tuple(pair for pair in PAIRS if joint(pair) in self.blocks)
        self.default_blocks = tuple(b for b in DEFAULT_BLOCKS if b in self.blocks)
        self.balanced = BALANCED if set(BALANCED) <= shapes.keys() else None
        numbers = torch.arange(train.num_tokens, dtype=torch.float64, device=device)
        inputs = numbers[:, None] if train.model == "scalar" else torch.diag(torch.ones_like(numbers))
        self.vectors = None if "E" in shapes else inputs

    def network(self) -> MLP:
        return MLP(self.train)

    def structure(self, params: Mapping[str, Tensor], decay: float) -> MLPStructure:
        """What theory knows at a point."""
        return MLPStructure(self, params, decay)

    def has_closed_form(self, names: Sequence[str]) -> bool:
        """All but a bias without its matrix, which is far larger."""
        return not any(bias in names and matrix not in names for bias, matrix in (("b1", "W"), ("b2", "V")))

    def factor(self, names: Sequence[str], limit: int) -> tuple[int, int]:
        """That of E,W, of rows of E with W, or of W,V."""
        rows = self.pair_rows(names)
        if rows is None:
            return 0, 0
        (d, h), count = (
            (self.parameters["W"].shape[1] // self.tokens.shape[1], self.parameters["W"].shape[0]),
            len(rows),
        )
        orders = Orders.of(self.tokens, d, h, count * d if count else math.prod(self.parameters["V"].shape))
        return orders.within(limit), orders.bytes(limit)

    def pair_rows(self, names: Sequence[str]) -> range | None:
        """The rows of E that a block joins with W, empty if it is W,V; None: it is no such block."""
        if len(names) != 2 or not ACTIVATIONS[self.train.activation].piecewise_linear:
            return None
        parameter, rows = located(names[0], shapes_of(self.parameters))
        if (parameter, names[1]) == ("E", "W"):
            return rows
        return range(0) if tuple(names) == ("W", "V") else None

    def plain(self, arrays: Arrays) -> Plain:
        """Input layer, flatten, Linear, activation, Linear, with torch's own gradients."""
        model, named = plain_model(self.train, arrays, self.device)
        return Plain(model, named, self.tokens, self.labels, mean_cross_entropy)


def blocks_of(parameters: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The blocks of a model that has only these parameters, in the order of their rows."""
    blocks = {b: tuple(n for n in names if n in parameters) for b, names in BLOCKS.items()}
    return {b: names for b, names in blocks.items() if b == "all" or names == BLOCKS[b]}


class MLPStructure(Structure):
    """Products, dense blocks, starts, null vectors and bounds of the MLP at one point (cf. `Structure`)."""

    def __init__(self, problem: EmbeddingMLPProblem, params: Mapping[str, Tensor], decay: float) -> None:
        self.problem, self.params, self.decay = problem, params, decay
        self.activation = ACTIVATIONS[problem.train.activation]
        self._closed: dict[bool, EmbeddingMLP] = {}

    @functools.cached_property
    def _passes(self) -> Passes:
        at = self.problem
        return Passes(self.params, at.tokens, at.labels, self.activation, at.vectors)

    def operator(self) -> BlockOperator:
        """The Hessian by products derived by hand."""
        if not (part := current_part()):
            return EmbeddingHessian(self._passes, self.decay)
        # The mean over all samples is that of the ranks' means, weighed by what each has; so is its decay.
        own = MLPStructure(self.problem.part(part), self.params, self.decay)
        share = len(own.problem.tokens) / len(self.problem.tokens)
        return EmbeddingHessian(own._passes, self.decay, over=lambda images: part.total(share * images))

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        """A block in closed form (theory.md, section 4), where it has one."""
        if not self.problem.has_closed_form(names):
            return None
        if gauss_newton not in self._closed:
            at = self.problem
            known = self.params, at.tokens, at.labels, self.activation, gauss_newton, at.vectors
            self._closed[gauss_newton] = EmbeddingMLP(*known)
        matrix = self._closed[gauss_newton].hessian(names)
        matrix.diagonal().add_(self.decay)
        return matrix

    def pulls(self) -> Mapping[str, float]:
        """Of the tables E W_k^T and of b1, which every table of a slot adds to."""
        if "E" not in self.params:
            return {}
        G = self._passes.table_gradient()
        bias = {"bias": float(G[: len(self.params["b1"])].sum(1).norm())} if "b1" in self.params else {}
        return {"tables": float(torch.linalg.matrix_norm(G, 2)), **bias}

    def starts(self, names: Sequence[str], k: int) -> tuple[Tensor | None, int]:
        """Start vectors for the low end of a block."""
        return low_end(EmbeddingHessian(self._passes, self.decay, names), k)

    def null_vectors(self, names: Sequence[str]) -> Directions | None:
        """The softmax shift of the data loss (F9), and of tables what no sample sees."""
        if self.decay:
            return None
        directions: list[Directions] = [SoftmaxShift(self.params, names)] if "V" in names else []
        if "W" in names and self.problem.train.model in ("onehot", "tables"):
            directions.append(Unseen(self._passes.layer.inputs(self.problem.tokens), self.params, names))
        return Together(directions) if directions else None

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
        bound = saddle_bound(G[:, rows.start : rows.stop], d)
        parts = {
            f"saddle_bound_{name}": saddle_bound(G[:, some.start : some.stop], d).sigma_max
            for name, some in self.problem.rows.get("E", {}).items()
            if names[0] == "E"
        }
        return {"saddle_bound": bound.sigma_max, "saddle_rank_bound": bound.rank_bound, **parts}

    def index(
        self,
        names: Sequence[str],
        tolerances: Sequence[float],
        limit: int,
        progress: Progress,
        share: float = 0.0,
    ) -> list[tuple[int, int]] | None:
        """F14, F17 and F18, for rows of E with W and for W,V, if the activation is piecewise linear."""
        index = self.structured(tuple(names), limit)
        # Decay moves every eigenvalue alike.
        shifted = [tau + self.decay for tau in tolerances]
        return index.brackets(shifted, progress, share) if index else None

    def gauge_free_index(self, names: Sequence[str], tolerance: float, limit: int, progress: Progress) -> int | None:
        """F17, if an exact factor is within the limit."""
        index = self.structured(tuple(names), limit, gauge=True) if tuple(names) == ("E", "W") else None
        if not index or index.orders.exact > limit:
            return None
        ((lower, upper),) = index.brackets([tolerance + self.decay], progress)
        return lower if lower == upper else None

    @functools.cache  # noqa: B019
    def structured(self, names: tuple[str, ...], limit: int, gauge: bool = False) -> StructuredIndex | None:
        """What brackets the index of a block."""
        at, rows = self.problem, self.problem.pair_rows(names)
        if rows is None:
            return None
        chosen = torch.arange(rows.start, rows.stop).to(at.tokens) if rows else None
        net = EmbeddingMLP(self.params, at.tokens, at.labels, self.activation, vectors=at.vectors)
        hessian = EmbeddingHessian(self._passes)
        return StructuredIndex(net, hessian, self._passes.G, chosen, limit, gauge)
