"""Dense blocks of a small Transformer's Hessian, from products that share work, and its exact null vectors (F20)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import TrainConfig
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import differentiable, gradients
from landscape.curvature.operators import Directions
from landscape.curvature.vectors import symmetrised
from landscape.models.embedding_mlp.closed_form import derivatives, residuals, softmax_slopes
from landscape.models.problem import Structure
from landscape.models.transformer.model import Transformer, layer_norm, load_model, sinusoids


@dataclasses.dataclass(frozen=True)
class Part:
    """Null vectors of a matrix (row, column): left with any columns, and wide with the columns `right`.

    names: the parameters that make the matrix, one below the other or, `beside`, one beside the other. left (row, k),
    wide (row, l) and right (column, m) have orthonormal columns; left lies in the span of wide. wide None: all rows.
    """

    names: tuple[str, ...]
    left: Tensor
    wide: Tensor | None
    right: Tensor
    beside: bool = False

    @property
    def dimension(self) -> int:
        """Of the span."""
        (rows, left), (columns, right) = self.left.shape, self.right.shape
        return left * columns + ((rows if self.wide is None else self.wide.shape[1]) - left) * right

    def remove(self, matrices: Tensor) -> Tensor:
        """The components orthogonal to all of them, of matrices (row, column, m)."""
        # The two projectors commute, because left lies in the span of wide.
        outside = matrices - _spanned(self.left, matrices)
        shares = torch.tensordot(outside, self.right, ([1], [0]))
        if self.wide is not None:
            shares = _spanned(self.wide, shares)
        rest: Tensor = outside - torch.tensordot(shares, self.right, ([2], [1])).transpose(1, 2)
        return rest


class NullVectors(Directions):
    """The span of parts of a block that share no parameter; sizes: the numbers in each parameter of the block."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], parts: Sequence[Part]) -> None:
        self.names, self.sizes, self.parts = list(names), list(sizes), list(parts)
        self.dimension = sum(part.dimension for part in parts)

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        pieces = dict(zip(self.names, vectors.reshape(len(vectors), -1).split(self.sizes), strict=True))
        for part in self.parts:
            axis, rows, columns = int(part.beside), len(part.left), len(part.right)
            shape = (rows, -1) if part.beside else (-1, columns)
            members = [pieces[name].reshape(*shape, pieces[name].shape[1]) for name in part.names]
            rest = part.remove(torch.cat(members, dim=axis))
            for name, piece in zip(part.names, rest.split([m.shape[axis] for m in members], dim=axis), strict=True):
                pieces[name] = piece.reshape(pieces[name].shape)
        return torch.cat(list(pieces.values())).reshape(vectors.shape)


def _spanned(basis: Tensor, vectors: Tensor) -> Tensor:
    """The components of vectors (row, ...) in the span of orthonormal columns."""
    spanned: Tensor = torch.tensordot(basis, torch.tensordot(basis, vectors, ([0], [0])), 1)
    return spanned


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
        parts = [self._embeddings(), self._unembedding()]
        for layer in range(last + 1):
            parts += [self._queries(layer), self._keys(layer), self._values(layer), self._mlp_in(layer)]
            parts.append(self._writers(self.unread, f"O.{layer}"))
            into_logits = norm == "none" and layer == last
            parts.append(
                self._writers(
                    self._without_logits() if into_logits else self.unread, f"mlp_out.{layer}", f"b_out.{layer}"
                )
            )
        if norm != "none":
            parts.append(self._writers(self._without_logits(), "shift" if norm == "pre" else f"shift_2.{last}"))
        return [part for part in parts if part and part.dimension]

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
            units = np.zeros((len(rows), len(inside)))
            for column, nodes in enumerate(inside):
                signs = np.where(nodes < vocabulary, 1.0, -1.0)
                units[np.searchsorted(rows, nodes), column] = signs / len(nodes) ** 0.5
            return torch.as_tensor(units).to(self.none)

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


_CHUNK = 1 << 25
"""Numbers that a pass over some samples may hold at once."""


class LastMLP:
    """Blocks of mean cross-entropy for logits = U (x + M phi(W x + b) + c) at fixed x.

    params: mlp_in (h, d), mlp_out (d, h), U (C, d) and optionally b_in (h,), b_out (d,), by these names; x (N, d),
    labels (N,). A bias is the last column of its matrix, beside an input that is 1. gauss_newton: without the terms of
    second derivatives of the logits.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        x: Tensor,
        labels: Tensor,
        activation: Callable[[Tensor], Tensor],
        gauss_newton: bool,
    ) -> None:
        self.params, self.x, self.labels, self.activation = params, x, labels, activation
        self.gauss_newton = gauss_newton
        self.d, self.h, self.C = x.shape[1], len(params["mlp_in"]), len(params["U"])
        width = max(self.h + 1, self.C, self.d + 1)
        self.chunk = max(1, _CHUNK // width**2)
        self._blocks: dict[tuple[str, str], Tensor] = {}

    def piece(self, a: str, b: str) -> Tensor:
        """d2 L / (d a d b), a matrix; a and b are names of `params`."""
        (first, at), (second, of) = self._place(a), self._place(b)
        if (first, second) in _BLOCKS:
            piece = self._block(first, second)[:, at, :, of]
        else:
            piece = self._block(second, first)[:, of, :, at].permute(2, 3, 0, 1)
        return piece.reshape(self.params[a].numel(), self.params[b].numel())

    def _place(self, name: str) -> tuple[str, slice]:
        """The matrix that a parameter is of, and its columns there."""
        width = {"mlp_in": self.d, "mlp_out": self.h}
        matrix = {"b_in": "mlp_in", "b_out": "mlp_out"}.get(name, name)
        return matrix, slice(width[matrix], None) if matrix != name else slice(width.get(name))

    def _block(self, first: str, second: str) -> Tensor:
        if (first, second) not in self._blocks:
            block = _BLOCKS[first, second]
            total = torch.stack([block(self, at) for at in self._samples()]).sum(0)
            # To the last bit, parts of it with each other too.
            self._blocks[first, second] = (total + total.permute(2, 3, 0, 1)) / 2 if first == second else total
        return self._blocks[first, second]

    def _samples(self) -> Iterator[_Samples]:
        for start in range(0, len(self.x), self.chunk):
            yield _Samples(self, slice(start, start + self.chunk))

    def _in_in(self, at: _Samples) -> Tensor:
        """x_a x_b (D_j D_l (M^T A M)_jl + [j = l] phi''_j (M^T g)_j)."""
        M = self.params["mlp_out"]
        curved = torch.einsum("nj,ij,nik,kl,nl->njl", at.D, M, at.A, M, at.D)
        curved.diagonal(dim1=1, dim2=2).add_(at.bend * (at.g @ M))
        return _outer(curved, at.x[:, :, None] * at.x[:, None]).permute(0, 2, 1, 3)

    def _in_out(self, at: _Samples) -> Tensor:
        """x_a D_j ((M^T A)_ji phi_l + [j = l] g_i)."""
        M = self.params["mlp_out"]
        moved = at.D[:, :, None] * (M.T @ at.A)
        piece = _outer(moved, at.x[:, :, None] * at.phi[:, None]).permute(0, 2, 1, 3)
        slopes = torch.einsum("nj,na,ni->jai", at.D, at.x, at.g)
        piece[:, :, :, : self.h].diagonal(dim1=0, dim2=3).add_(slopes.permute(1, 2, 0))
        return piece

    def _out_out(self, at: _Samples) -> Tensor:
        """phi_k phi_l A_ij."""
        return _outer(at.A, at.phi[:, :, None] * at.phi[:, None]).permute(0, 2, 1, 3)

    def _in_U(self, at: _Samples) -> Tensor:
        """x_a D_j ((M^T U^T S)_jc y_e + r_c M_ej)."""
        M = self.params["mlp_out"]
        moved = at.D[:, :, None] * (at.SU @ M).mT
        piece = _outer(moved, at.x[:, :, None] * at.y[:, None]).permute(0, 2, 1, 3)
        slopes = torch.einsum("nj,na,nc->jac", at.D, at.x, at.r)
        return piece + slopes[..., None] * M.T[:, None, None]

    def _out_U(self, at: _Samples) -> Tensor:
        """phi_k ((U^T S)_ic y_e + [i = e] r_c)."""
        piece = _outer(at.SU.mT, at.phi[:, :, None] * at.y[:, None]).permute(0, 2, 1, 3)
        piece.diagonal(dim1=0, dim2=3).add_((at.phi.T @ at.r)[..., None])
        return piece

    def _U_U(self, at: _Samples) -> Tensor:
        """S_cb y_e y_f."""
        return _outer(at.S, at.y[:, :, None] * at.y[:, None]).permute(0, 2, 1, 3)


_BLOCKS = {
    ("mlp_in", "mlp_in"): LastMLP._in_in,
    ("mlp_in", "mlp_out"): LastMLP._in_out,
    ("mlp_out", "mlp_out"): LastMLP._out_out,
    ("mlp_in", "U"): LastMLP._in_U,
    ("mlp_out", "U"): LastMLP._out_U,
    ("U", "U"): LastMLP._U_U,
}
"""By two matrices, (row, column, row, column)."""


class _Samples:
    """Of some samples: x (with a one), phi (with a one), D = phi'(pre), bend = phi''(pre), y = the MLP's output; of
    1/N the loss: r = dL/dlogits, S = d2L/dlogits2 = diag(p) - p p^T, SU, A = U^T S U and g = U^T r.
    """

    def __init__(self, of: LastMLP, at: slice) -> None:
        params, labels, N = of.params, of.labels[at], len(of.x)
        U = params["U"]
        self.x = _with_one(of.x[at])
        phi, self.D, self.bend = derivatives(of.activation, of.x[at] @ params["mlp_in"].T + params.get("b_in", 0.0))
        self.phi = _with_one(phi)
        self.y = of.x[at] + phi @ params["mlp_out"].T + params.get("b_out", 0.0)
        p = (self.y @ U.T).softmax(1)
        self.r = residuals(p, labels) / N
        if of.gauss_newton:
            self.r = torch.zeros_like(self.r)
        self.g = self.r @ U
        self.S = softmax_slopes(p) / N
        # Relative to the row of the likeliest class, U keeps its digits at any loss.
        apart = U - U[p.argmax(1)][:, None]
        apart = apart - (p[:, None] @ apart)
        self.SU = p[:, :, None] * apart / N
        self.A = apart.mT @ self.SU


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """sum_n left_nij right_nkl, (i, j, k, l)."""
    flat = left.flatten(1).T @ right.flatten(1)
    return flat.view(*left.shape[1:], *right.shape[1:])


MOST_KEPT = 1 << 13
"""Parameters of a model whose columns are kept for all blocks of a checkpoint: half a gigabyte."""


class TransformerStructure(Structure):
    """What is known of a Transformer at one point (cf. `Structure`); products take automatic differentiation.

    A dense block is put together from columns of the whole Hessian, each of which is computed once and in one way
    whatever the block. Where nothing lies between the last MLP and the logits, its own blocks and that of U are closed
    forms, and the products of the columns before give the rest by symmetry. Columns of an embedding take the samples
    that hold its token.
    """

    def __init__(
        self, train: TrainConfig, params: Mapping[str, Tensor], tokens: Tensor, labels: Tensor, decay: float
    ) -> None:
        self.train, self.decay, self._params = train, decay, params
        self.tokens, self.labels = tokens, labels
        self._size = sum(p.numel() for p in params.values())
        self._computed: dict[tuple[str, bool], Tensor] = {}

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        """A diagonal block or its Gauss-Newton part; None where it takes more columns than may be kept."""
        if self._size > MOST_KEPT and not self._late.keys() >= set(names):
            return None
        matrix = torch.cat([torch.cat([self._piece(a, b, gauss_newton) for b in names], dim=1) for a in names])
        matrix.diagonal().add_(self.decay)
        return matrix

    def null_vectors(self, names: Sequence[str]) -> Directions | None:
        """Those of the data loss alone, which decay moves (F20)."""
        directions = null_vectors(self.train, self._params, self.tokens, names)
        return directions if directions.dimension and not self.decay else None

    def _piece(self, a: str, b: str, gauss_newton: bool) -> Tensor:
        """d2 L / (d a d b), to the last bit the transpose of d2 L / (d b d a)."""
        if a in self._late and b in self._late:
            return self._heads[gauss_newton].piece(self._late[a], self._late[b])
        first, second = sorted((a, b), key=lambda name: (name in self._late, self._places[name].start))
        piece = self._columns(first, gauss_newton)[self._places[second]]
        if a == b:
            return symmetrised(piece.clone())
        return piece if second == a else piece.T

    @functools.cached_property
    def _model(self) -> Transformer:
        return load_model(self.train, self._params)

    @functools.cached_property
    def _theta(self) -> dict[str, Tensor]:
        """The model's parameters in the order of the blocks' rows."""
        theta = dict(self._model.named_parameters())
        return {name: theta[name] for name in self._params}

    @functools.cached_property
    def _places(self) -> dict[str, slice]:
        """Where each parameter stands among all."""
        ends = itertools.accumulate(p.numel() for p in self._params.values())
        return {n: slice(end - p.numel(), end) for (n, p), end in zip(self._params.items(), ends, strict=True)}

    @functools.cached_property
    def _late(self) -> dict[str, str]:
        """The parameters behind the last attention by their names in `LastMLP`, where its formulas hold."""
        train = self.train
        if train.norm != "none" or train.tied:
            return {}
        layer = train.layers - 1
        kinds = {f"{kind}.{layer}": kind for kind in ("mlp_in", "b_in", "mlp_out", "b_out")}
        return {name: kind for name, kind in (kinds | {"U": "U"}).items() if name in self._params}

    @functools.cached_property
    def _heads(self) -> dict[bool, LastMLP]:
        """By whether they give the Gauss-Newton part."""
        with torch.no_grad():
            x = self._model.before_last_mlp(self.tokens)
        params = {kind: self._theta[name].detach() for name, kind in self._late.items()}
        kinds = (False, True)
        return {kind: LastMLP(params, x, self.labels, self._model.activation, kind) for kind in kinds}

    def _columns(self, name: str, gauss_newton: bool) -> Tensor:
        """The whole Hessian's columns of a parameter."""
        if (name, gauss_newton) not in self._computed:
            tokens, size = self.tokens, self._theta[name].numel()
            if name == "E" and not self.train.tied:
                d = self.train.embed_dim
                samples = [(tokens == token).any(1).nonzero()[:, 0] for token in range(size // d)]
                columns = [
                    self._derivatives(name, slice(i * d, i * d + d), some, gauss_newton)
                    for i, some in enumerate(samples)
                ]
                self._computed[name, gauss_newton] = torch.cat(columns, dim=1)
            else:
                everything = torch.arange(len(tokens), device=tokens.device)
                self._computed[name, gauss_newton] = self._derivatives(name, slice(0, size), everything, gauss_newton)
        return self._computed[name, gauss_newton]

    @differentiable
    def _derivatives(self, name: str, at: slice, samples: Tensor, gauss_newton: bool) -> Tensor:
        """Derivatives of entries of a parameter's gradient by all parameters, (parameter, entry), from some samples."""
        if not len(samples):
            return self._theta[name].new_zeros(self._size, at.stop - at.start)
        logits = self._model(self.tokens[samples])
        losses = _quadratic(logits) if gauss_newton else cross_entropy(logits, self.labels[samples])
        loss = losses.sum() / len(self.tokens)
        (slopes,) = gradients(loss, [self._theta[name]], create_graph=True)
        slopes = slopes.reshape(-1)[at]
        columns = slopes.new_empty(self._size, len(slopes))
        for column, unit in zip(columns.T, torch.eye(len(slopes)).to(slopes), strict=True):
            rows = gradients(slopes, self._theta.values(), unit, keep=True)
            torch.cat([row.reshape(-1) for row in rows], out=column)
        return columns


def _quadratic(logits: Tensor) -> Tensor:
    """The second-order term alone of the cross-entropy in the logits (sample, class) about where they are."""
    at = logits.detach()
    p, moved = at.softmax(1), logits - at
    # Only differences count: relative to the likeliest class nothing cancels at any loss.
    moved = moved - moved.gather(1, at.argmax(1, keepdim=True))
    return 0.5 * (p * (moved - (p * moved).sum(1, keepdim=True)).square()).sum(1)
