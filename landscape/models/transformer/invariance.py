"""What a Transformer's loss takes no notice of, parameter by parameter, and so the exact null vectors of a block (F17).

They come from five facts. Logits, and the scores of one query, only count up to a constant. E and P act by their sum.
LayerNorm takes no notice of the mean of what it reads. What it gives lies in a hyperplane. A constant query reads one
vector and is read as one vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import TrainConfig
from landscape.models.transformer.model import layer_norm, sinusoids
from landscape.models.transformer.null import NullVectors, Part

Ints = NDArray[np.int64]


def null_vectors(train: TrainConfig, params: Mapping[str, Tensor], tokens: Tensor, names: Sequence[str]) -> NullVectors:
    """Those of the block `names`, for the loss of some tokens (sample, slot) and any labels.

    They are the same at every point that differs from `params` within the block alone. Not among them are the rows of
    E of tokens that no sample holds, which are 0 in every product.
    """
    parts = _Block(train, params, tokens, names).parts()
    return NullVectors(names, [params[name].numel() for name in names], parts)


class _Block:
    """A block within the network around it; what is outside it may decide about directions, what is inside may not."""

    def __init__(self, train: TrainConfig, params: Mapping[str, Tensor], tokens: Tensor, names: Sequence[str]) -> None:
        self.train, self.params, self.tokens, self.names = train, params, tokens, names
        self.none = params["E"].new_zeros(train.embed_dim, 0)
        self.ones = _unit(params["E"].new_ones(train.embed_dim))
        self.unread = self.none if train.norm == "none" else self.ones
        """What any LayerNorm takes out of the residual stream."""

    def parts(self) -> list[Part]:
        """Those of each parameter, or of two that act together."""
        last, norm = self.train.layers - 1, self.train.norm
        found = [self._embeddings(), self._unembedding()]
        for layer in range(last + 1):
            found += [self._queries(layer), self._keys(layer), self._values(layer), self._mlp_in(layer)]
            found.append(self._writers(self.unread, f"O.{layer}"))
            into_logits = norm == "none" and layer == last
            found.append(
                self._writers(
                    self._without_logits() if into_logits else self.unread, f"mlp_out.{layer}", f"b_out.{layer}"
                )
            )
        if norm != "none":
            found.append(self._writers(self._without_logits(), "shift" if norm == "pre" else f"shift_2.{last}"))
        return [part for part in found if part and part.dimension]

    def _embeddings(self) -> Part | None:
        """E[x] + c against P[slot] - c for what is looked up together; before LayerNorm any constant in any row."""
        tables = self._inside("E", "P")
        if not tables:
            return None
        vocabulary, slots = self.train.num_tokens, self.train.slots
        seen = np.stack([self.tokens.cpu().numpy(), np.broadcast_to(np.arange(slots), self.tokens.shape)], axis=-1)
        pairs = np.unique(seen.reshape(-1, 2), axis=0) + [0, vocabulary]
        # Rows of a tied E are those of U too, where they may only move together.
        alike = np.array([[0, c] for c in range(self.train.classes if self.train.tied else 0)], np.int64).reshape(-1, 2)
        rows = np.r_[: vocabulary * ("E" in tables), vocabulary : vocabulary + slots * ("P" in tables)]

        def patterns(edges: Ints, fewest: int) -> Tensor:
            """Unit columns: 1 on the tokens and -1 on the slots of what edges join, where it lies in the tables."""
            joined = _components(vocabulary + slots, edges)
            inside = [nodes for nodes in joined if len(nodes) >= fewest and np.isin(nodes, rows).all()]
            found = np.zeros((len(rows), len(inside)))
            for column, nodes in enumerate(inside):
                signs = np.where(nodes < vocabulary, 1.0, -1.0)
                found[np.searchsorted(rows, nodes), column] = signs / len(nodes) ** 0.5
            return torch.as_tensor(found).to(self.none)

        left = patterns(np.concatenate([pairs, alike]), fewest=2)
        if self.train.norm != "pre":
            return Part(tables, left, left, self.none)
        return Part(tables, left, patterns(alike, fewest=1) if self.train.tied else None, self.ones)

    def _unembedding(self) -> Part | None:
        """A constant added to all logits."""
        shift = _unit(self.none.new_ones(self.train.classes))
        return self._reader("U", self._norm("logits", self.train.layers), shift, shift)

    def _queries(self, layer: int) -> Part | None:
        norm, left = self._norm("attention", layer), self.none
        hyperplane = self._hyperplane(norm)
        if self.train.heads == 1 and hyperplane and f"K.{layer}" not in self.names:
            # Keys of one context differ by vectors of a hyperplane, and only differences of scores count.
            normal = hyperplane[0]
            left = _least((self.params[f"K.{layer}"] @ (torch.eye(len(normal)).to(normal) - normal @ normal.T)).T, 1)
        query = self._constant_query()
        if query is None:
            return self._reader(f"Q.{layer}", norm, left, left)
        return self._part(left, None, _least(query[None], len(query) - 1), f"Q.{layer}")

    def _keys(self, layer: int) -> Part | None:
        """What all keys have in common moves all scores of a query alike."""
        query, left = self._constant_query(), self.none
        if query is not None and f"Q.{layer}" not in self.names:
            heads = (self.params[f"Q.{layer}"] @ query).reshape(self.train.heads, 1, -1)
            left = torch.block_diag(*[_least(head, head.shape[1] - 1) for head in heads])
        return self._reader(f"K.{layer}", self._norm("attention", layer), left, None)

    def _values(self, layer: int) -> Part | None:
        """One vector goes through O into what LayerNorm takes out; of several heads only a constant reaches it."""
        into_mean = self.none
        if self.train.norm != "none" and f"O.{layer}" not in self.names:
            outputs = self.params[f"O.{layer}"]
            into_mean = _least(outputs - outputs.mean(0), 1)
        left = into_mean if self.train.heads == 1 else self.none
        return self._reader(f"V.{layer}", self._norm("attention", layer), left, into_mean)

    def _mlp_in(self, layer: int) -> Part | None:
        """A constant goes from the matrix to the bias."""
        norm = self._norm("mlp", layer)
        hyperplane, members = self._hyperplane(norm), (f"mlp_in.{layer}", f"b_in.{layer}")
        left = self.none.new_zeros(self.train.hidden, 0)
        if not hyperplane or self._inside(*members) != members:
            return self._reader(members[0], norm, left, left)
        normal, offset = hyperplane
        return None if offset is None else self._part(left, None, _unit(torch.cat([normal[:, 0], -offset])), *members)

    def _reader(self, name: str, norm: tuple[str, str] | None, left: Tensor, constants: Tensor | None) -> Part | None:
        """A matrix that reads a LayerNorm and whose output takes no notice of `left`, nor, if constant, of `constants`.

        constants None: of no constant. Without a constant every row can have the normal of the hyperplane.
        """
        hyperplane = self._hyperplane(norm)
        if not hyperplane:
            return self._part(left, left, self.none, name)
        normal, offset = hyperplane
        return self._part(left, None if offset is not None and not offset.any() else constants, normal, name)

    def _writers(self, unread: Tensor, *names: str) -> Part | None:
        """A matrix, and its bias as a column, that add to the stream what is not read in some directions."""
        members = self._inside(*names)
        columns = sum(self.params[name].numel() for name in members) // self.train.embed_dim
        return self._part(unread, unread, self.none.new_zeros(columns, 0), *members)

    def _without_logits(self) -> Tensor:
        """Directions that move all logits alike because there are fewer logits than directions."""
        holder = "E" if self.train.tied else "U"
        if holder in self.names:
            return self.none
        rows = self.params[holder][: self.train.classes]
        return _least(rows - rows.mean(0), max(0, self.train.embed_dim - (len(rows) - 1)))

    def _constant_query(self) -> Tensor | None:
        """What the only query of every sample reads, if that is one vector and the block leaves it alone."""
        train, params = self.train, self.params
        norm = self._norm("attention", 0)
        if (
            train.layers > 1
            or {"E", "P", *(norm or ())} & set(self.names)
            or (self.tokens[:, -1] != self.tokens[0, -1]).any()
        ):
            return None
        places = params.get("P")
        x = (
            params["E"][self.tokens[0, -1]]
            + (sinusoids(train.slots, train.embed_dim).to(self.none) if places is None else places)[-1]
        )
        return layer_norm(x, *(params[name] for name in norm)) if norm else x

    def _norm(self, reader: str, layer: int) -> tuple[str, str] | None:
        """Scale and shift of the LayerNorm that attention, MLP or logits read."""
        of_kind = {
            ("pre", "attention"): f"_1.{layer}",
            ("pre", "mlp"): f"_2.{layer}",
            ("pre", "logits"): "",
            ("post", "attention"): f"_2.{layer - 1}" if layer else None,
            ("post", "mlp"): f"_1.{layer}",
            ("post", "logits"): f"_2.{layer - 1}",
        }
        which = of_kind.get((self.train.norm, reader))
        return None if which is None else (f"norm{which}", f"shift{which}")

    def _hyperplane(self, norm: tuple[str, str] | None) -> tuple[Tensor, Tensor | None] | None:
        """Normal (embed, 1) and offset (1,) of what a LayerNorm gives; None for what moves within the block."""
        if norm is None or norm[0] in self.names:
            return None
        scale, shift = (self.params[name] for name in norm)
        dead = scale == 0
        normal = _unit(dead.to(scale) if dead.any() else 1 / scale)
        return normal, None if norm[1] in self.names else normal.T @ shift

    def _inside(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.names)

    def _part(self, left: Tensor, wide: Tensor | None, right: Tensor, *names: str) -> Part | None:
        """Of matrices side by side, if they are in the block."""
        return Part(names, left, wide, right, beside=True) if names and self._inside(*names) == names else None


def _unit(vector: Tensor) -> Tensor:
    """As a column of length 1."""
    column: Tensor = (vector / vector.norm())[:, None]
    return column


def _least(matrix: Tensor, count: int) -> Tensor:
    """The right singular vectors of the `count` least singular values, as columns."""
    right = torch.linalg.svd(matrix, full_matrices=True).Vh
    least: Tensor = right[len(right) - count :]
    return least.T


def _components(count: int, edges: Ints) -> list[Ints]:
    """The nodes of each connected component, in ascending order."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
