"""Hessian-vector products of the embedding MLP by hand, through the tables T_k = E W_k^T."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.operators import BlockOperator
from landscape.curvature.rounding import is_rounding_randomly
from landscape.devices import keep_freed_memory
from landscape.models.embedding_mlp.closed_form import derivatives, others

Parts = dict[str, Tensor]


class Factors:
    """T_k = E W_k^T; E (token, d) is a parameter or a constant, W (h, s d).

    vocabulary, slots, h: numbers of tokens, slots and hidden units.
    """

    names = frozenset({"E", "W"})
    """The parameters that the tables come from."""

    def __init__(self, E: Tensor, W: Tensor) -> None:
        self.E, self.d = E, E.shape[1]
        self.W_k = W.split(self.d, dim=1)
        self.vocabulary, self.slots, self.h = len(E), len(self.W_k), len(W)

    def inputs(self, tokens: Tensor) -> Tensor:
        """What W is applied to at tokens (n, s), as (n, columns of W)."""
        return self.E[tokens].flatten(1)

    def table(self, k: int) -> Tensor:
        """The table of slot k, (token, h)."""
        table: Tensor = self.E @ self.W_k[k].T
        return table

    def moved(self, v: Mapping[str, Tensor], k: int, tokens: slice) -> Tensor:
        """How fast rows of the table of slot k move along directions v, (m, token, h), as new memory."""
        moves = [v["E"][:, tokens] @ self.W_k[k].T] if "E" in v else []
        if "W" in v:
            moves.append(self.E[tokens] @ self._slope(v, k).mT)
        velocity: Tensor = sum(moves[1:], start=moves[0])
        return velocity

    def gradients(
        self,
        v: Mapping[str, Tensor],
        rows: Sequence[str],
        moved: Mapping[int, Tensor],
        fixed: Mapping[int, int],
        total: Tensor,
        G: Sequence[Tensor],
    ) -> Parts:
        """The change along v of the gradients of `rows`.

        moved: the change of dL/dT_k (m, token, h) by slot; fixed: token by slot of those that always hold the same,
        whose one row changes by `total` (m, h); G: dL/dT_k (token, h) by slot.
        """
        out: Parts = {}
        if "E" in rows:
            dE = self.E.new_zeros(len(total), *self.E.shape)
            for k, W in enumerate(self.W_k):
                if k in moved:
                    dE += moved[k] @ W
                else:
                    dE[:, fixed[k]] += total @ W
                if "W" in v:
                    dE += G[k] @ self._slope(v, k)
            out["E"] = dE
        if "W" in rows:
            pieces = []
            for k in range(self.slots):
                piece = moved[k].mT @ self.E if k in moved else total[:, :, None] * self.E[fixed[k]]
                pieces.append(piece + G[k].T @ v["E"] if "E" in v else piece)
            out["W"] = torch.cat(pieces, dim=2)
        return out

    def _slope(self, v: Mapping[str, Tensor], k: int) -> Tensor:
        return v["W"][:, :, k * self.d : (k + 1) * self.d]


_CACHE, _DEVICE = 4 << 20, 1 << 30
"""Bytes of one (vector, sample, hidden) array, so that a few of them stay in a CPU's cache."""
_TOGETHER = 1 << 19
"""Bytes of such an array above which a CPU is faster one vector at a time."""


class EmbeddingHessian(BlockOperator):
    """Blocks of the Hessian of mean cross-entropy for logits = V phi(sum_k T_k[x_k] + b1) + b2, plus decay.

    Rows and columns are those of `rows` and `cols`, names in their order; by default all. over: makes of the products
    over the samples of one rank those over all.
    """

    def __init__(
        self,
        passes: Passes,
        decay: float = 0.0,
        rows: Iterable[str] | None = None,
        cols: Iterable[str] | None = None,
        over: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.passes, self._decay, self._over, params = passes, decay, over, passes.params
        self.rows = list(params if rows is None else rows)
        self.cols = self.rows if cols is None else list(cols)
        self.shapes = {n: p.shape for n, p in params.items()}
        self.shape = (sum(self.numbers(self.rows)), sum(self.numbers(self.cols)))
        self.dtype, self.device = passes.V.dtype, passes.V.device

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> EmbeddingHessian:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""
        return EmbeddingHessian(self.passes, self._decay, rows, cols, self._over)

    def _matmat(self, vectors: Tensor) -> Tensor:
        images = self._product(vectors)
        return self._over(images) if self._over else images

    def _product(self, vectors: Tensor) -> Tensor:
        params, m = self.passes.params, vectors.shape[1]
        if m == 0:
            return vectors.new_zeros(self.shape[0], 0)
        if m > self.passes.width:
            return torch.cat([self._product(v).T for v in vectors.split(self.passes.width, dim=1)]).T
        pieces = vectors.T.split([params[n].numel() for n in self.cols], dim=1)
        directions = {n: v.reshape(m, *params[n].shape) for n, v in zip(self.cols, pieces, strict=True)}
        passes = self.passes.again() if is_rounding_randomly() else self.passes
        products = passes.product(directions, self.rows, m)
        for name in directions.keys() & products.keys():
            products[name] += self._decay * directions[name]
        return torch.cat([products[n].reshape(m, -1) for n in self.rows], dim=1).T


class Passes:
    """The forward and backward pass at the parameters, which all products share.

    params: W (h, s d), V (C, h) and optionally E (token, d), b1 (h,), b2 (C,), all of one precision; tokens (N, s),
    labels (N,); vectors: constant inputs (token, d) of a network without E, one-hot ones the identity. Kept are
    3 h + 2 C numbers a sample; the first layer goes through its tables T_k (theory.md, section 1). p, share, r (C, N):
    probabilities, p / N and dL/dlogits, with the samples last, which is fastest for BLAS and sums over classes;
    D (N, h): slopes of the activation; G: dL/dT_k (token, h) by slot.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        tokens: Tensor,
        labels: Tensor,
        activation: Callable[[Tensor], Tensor],
        vectors: Tensor | None = None,
    ) -> None:
        keep_freed_memory()
        self.again = functools.partial(Passes, params, tokens, labels, activation, vectors)
        self.params, self.V, self.tokens, self.N = dict(params), params["V"], tokens, len(tokens)
        self.layer = Factors(params["E"] if vectors is None else vectors, params["W"])
        self.slots, self.vocabulary, self.h = self.layer.slots, self.layer.vocabulary, self.layer.h
        # A slot with a constant token, such as `op` and `=`, adds the same to every sample.
        self.fixed = {k: int(tokens[0, k]) for k in range(self.slots) if bool((tokens[:, k] == tokens[0, k]).all())}
        self.varying = [k for k in range(self.slots) if k not in self.fixed]
        room = _DEVICE if self.V.is_cuda else _TOGETHER
        self.width = max(1, room // (self.N * self.h * self.V.element_size()))
        pre = self.V.new_zeros(self.N, self.h) + self.params.get("b1", 0.0)
        for k in range(self.slots):
            pre += self.layer.table(k).index_select(0, tokens[:, k])
        self.phi, self.D, second = derivatives(activation, pre)
        logits = self.V @ self.phi.T
        if "b2" in self.params:
            logits += self.params["b2"][:, None]
        self.p = logits.softmax(0)
        self.share = self.p / self.N
        self.top = self.p.argmax(0, keepdim=True)
        self.r = self.p.clone()
        self.r.scatter_(0, labels[None], -others(self.p.T, labels)[None])
        self.r /= self.N
        back = self.r.T @ self.V
        self.bend = back * second if bool(second.any()) else None
        self.G = [self.V.new_zeros(self.vocabulary, self.h) for _ in range(self.slots)]
        for k in range(self.slots):
            self.G[k].index_add_(0, tokens[:, k], back * self.D)

    def table_gradient(self) -> Tensor:
        """[dL/dT_1^T; ...; dL/dT_s^T], shape (s h, token), of F14."""
        return torch.cat([G.T for G in self.G])

    def product(self, v: Parts, rows: Sequence[str], m: int) -> Parts:
        """The rows' parts of H v for m directions at once, (m, ...) by name."""
        V, h, C = self.V, self.h, len(self.V)
        first = self.layer.names | {"b1"}
        moves_input, wants_input = bool(v.keys() & first), any(n in rows for n in first)
        tables, shift = self._tables(v, m)
        dV = v.get("V")
        out = {n: V.new_zeros(m, *self.params[n].shape) for n in ("V", "b2") if n in rows}
        total = V.new_zeros(m, h)
        S = {k: V.new_zeros(m * self.vocabulary, h) for k in self.varying}
        for at, index in self._chunks(m):
            D, phi, p, r, n = self.D[at], self.phi[at], self.p[:, at], self.r[:, at], len(self.D[at])
            da = dpre = None
            if moves_input:
                dpre = self._inputs(tables, shift, index, n)
                # Where nothing else reads them and they are no view, the inputs are overwritten.
                da = dpre.mul_(D) if tables and self.bend is None else D * dpre
            dz = (v["b2"] if "b2" in v else V.new_zeros(m, C))[:, :, None].expand(m, C, n)
            dz = dz.clone() if da is None else torch.baddbmm(dz, V.expand(m, C, h), da.mT)
            if dV is not None:
                dz.baddbmm_(dV, phi.T.expand(m, h, n))
            # Only differences of logits matter: relative to the likeliest class nothing cancels at any loss.
            dz -= dz.gather(1, self.top[:, at].expand(m, 1, n))
            q = dz.mul_(self.share[:, at])
            q.addcmul_(p, q.sum(1, keepdim=True), value=-1)
            if "V" in out:
                out["V"].baddbmm_(q, phi.expand(m, n, h))
                if da is not None:
                    out["V"].baddbmm_(r.expand(m, C, n), da)
            if "b2" in out:
                out["b2"] += q.sum(2)
            if wants_input:
                back = torch.bmm(q.mT, V.expand(m, C, h))
                if dV is not None:
                    back.baddbmm_(r.T.expand(m, n, C), dV)
                back *= D
                if self.bend is not None and dpre is not None:
                    back.addcmul_(self.bend[at], dpre)
                if not S:
                    total += back.sum(1)
                for k, gathered in S.items():
                    gathered.index_add_(0, index[k], back.view(-1, h))
        if wants_input:
            by_token = {k: s.view(m, self.vocabulary, h) for k, s in S.items()}
            total = next((gathered.sum(1) for gathered in by_token.values()), total)
            out |= self.layer.gradients(v, rows, by_token, self.fixed, total, self.G)
            if "b1" in rows:
                out["b1"] = total
        return out

    def _inputs(self, tables: Mapping[int, Tensor], shift: Tensor, index: Mapping[int, Tensor], n: int) -> Tensor:
        """The contribution of the tables' rows, or of their common shift, to the hidden layer's input, (m, n, h)."""
        if not tables:
            return shift[:, None].expand(-1, n, -1)
        first, *others = (table.view(-1, self.h).index_select(0, index[k]) for k, table in tables.items())
        for picked in others:
            first += picked
        return first.view(-1, n, self.h)

    def _tables(self, v: Parts, m: int) -> tuple[dict[int, Tensor], Tensor]:
        """The perturbed tables of the varying slots, (m, token, h), and what all samples have in common, (m, h).

        The first table holds the common part too.
        """
        shift = v["b1"].clone() if "b1" in v else self.V.new_zeros(m, self.h)
        tables: dict[int, Tensor] = {}
        if not v.keys() & self.layer.names:
            return tables, shift
        for k in self.varying:
            tables[k] = self.layer.moved(v, k, slice(None))
        for k, token in self.fixed.items():
            shift += self.layer.moved(v, k, slice(token, token + 1))[:, 0]
        for k in self.varying[:1]:
            # Each sample takes one row of it.
            tables[k] += shift[:, None]
        return tables, shift

    def _chunks(self, m: int) -> Iterator[tuple[slice, dict[int, Tensor]]]:
        """Chunks of samples, and the rows of the flattened tables (m token, h) that they use."""
        room = _DEVICE if self.V.is_cuda else _CACHE
        step = max(64, room // (m * self.h * self.V.element_size()))
        starts = torch.arange(m, device=self.V.device)[:, None] * self.vocabulary
        for start in range(0, self.N, step):
            at = slice(start, start + step)
            yield at, {k: (starts + self.tokens[at, k]).reshape(-1) for k in self.varying}
