"""Saddle indices of the embedding MLP beyond dense matrices, by Schur complements (theory.md, F17).

With a piecewise-linear activation the Hessian of `E,W` or `W,V` is positive semi-definite on W. A tolerance added, W is
eliminated by a Cholesky factorisation, and what is left, of the order of E or V, has the index. Of the directions of
W_k that the rows of E in slot k do not reach only the coupling with E is left; they are eliminated by hand.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from landscape.curvature.inertia import count_below
from landscape.curvature.operators import BlockOperator
from landscape.curvature.schur import Elimination, Span
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP, Samples, by_token

_SMALL = 0.1
"""Singular values of a slot's rows that are small, beside the largest."""
Progress = Callable[[float], object]
"""Called with the share of a factorisation that is done."""
_SLICE_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Count:
    """At least n_-(high) and at most n_-(low) eigenvalues, n_-(tau) those below -tau."""

    negative: int
    low: float
    high: float


class Slot:
    """A slot of the input: its tokens (n,), their rows E (n, d), and W_k (h, d).

    left (n, rank), sigma (rank,), basis (d, rank): the singular value decomposition of E without what is rounding; null
    (d, d): the projector on what the rows do not reach; inverse (d, n): the pseudo-inverse of E.
    """

    def __init__(self, E: Tensor, W: Tensor, tokens: Tensor) -> None:
        self.tokens, self.E, self.W = tokens, E[tokens], W
        left, sigma, right = torch.linalg.svd(self.E, full_matrices=False)
        rank = int((sigma > max(self.E.shape) * torch.finfo(E.dtype).eps * sigma[0]).sum())
        self.basis, self.left, self.sigma = right[:rank].T, left[:, :rank], sigma[:rank]
        self.null = torch.eye(E.shape[1]).to(E) - self.basis @ self.basis.T
        self.inverse = (self.basis / self.sigma) @ self.left.T
        self.is_independent = rank == len(tokens)


def most_few(rest: int, h: int) -> int:
    """Directions of a slot that may be treated exactly in a token-wise factor, which each makes larger by h."""
    return max(1, rest // (8 * h))


class Rest(abc.ABC):
    """The factor that is left when W is eliminated. Its vectors are (order, m)."""

    order: int
    multipliers = 0
    """Lagrange multipliers among its rows."""
    reach = 0.0
    """A bound on how far it moves all tables T_k = E W_k^T, in norm."""

    @abc.abstractmethod
    def curvature(self, tau: float, shifts: Sequence[Tensor] | None = None) -> Iterator[tuple[Span, Tensor]]:
        """Columns of its own block, with tau added and W's null space eliminated.

        shifts (n, n) by slot, if W is in coordinates in which the tables move by what it and the rest do together.
        """

    @abc.abstractmethod
    def coupling(self, weights: Tensor, samples: Samples, M: Tensor, at: slice) -> Tensor:
        """The coupling (z, hidden, order) with rows `at` of W through samples n that weigh weights (n, z).

        M: their curvatures (n, hidden, h).
        """

    @abc.abstractmethod
    def gradient(self, slot: int, directions: Tensor) -> Tensor:
        """The coupling (z, h, order) with W_k along directions (d, z) that comes from the gradient."""

    @abc.abstractmethod
    def of_table(self, slot: int, u: int, shift: Tensor, samples: Samples) -> Tensor:
        """The coupling (h, order) with the row of a table that the slot's token u has.

        shift (n,): between that row and all; samples: those that hold the token.
        """

    def moved(self, slot: int, weights: Tensor) -> Tensor:
        """How it moves rows of a slot's table, weighed with weights (z, n), as (z, h, order)."""
        return weights.new_zeros(len(weights), 1, 1)

    def moves(self, slot: int, rest: Tensor) -> Tensor:
        """How vectors of it move a slot's table (n, h, m)."""
        return rest.new_zeros(1, 1, 1)

    def moved_back(self, slot: int, rows: Tensor) -> Tensor:
        """The transpose of `moves`, of (n, h, m)."""
        return rows.new_zeros(1, 1)

    @abc.abstractmethod
    def product(self, hessian: BlockOperator, dW: list[Tensor], rest: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """The block times (dW, rest), dW_k^T (d, h, m) by slot without what the null space takes, which is added."""


class Embedding(Rest):
    """Rows of E. gauge: with d^2 Lagrange multipliers that keep to the complement of the gauge tangents (F7).

    A tangent (-E X^T, W_k X) is coupled with W as an embedding would be whose gradients were W_k^T: the rows of X count
    as d more rows of E.
    """

    def __init__(
        self, net: EmbeddingMLP, slots: Sequence[Slot], G: Sequence[Tensor], rows: Tensor, gauge: bool
    ) -> None:
        self.net, self.slots, self.rows, self.gauge, self.d = net, slots, rows, gauge, net.d
        self.G = [torch.cat([g[rows], slot.W.T]) if gauge else g[rows] for g, slot in zip(G, slots, strict=True)]
        self.order = len(self.G[0]) * self.d
        place = torch.full((net.vocabulary,), -1).to(rows)
        place[rows] = torch.arange(len(rows)).to(rows)
        self.places = [place[slot.tokens] for slot in slots]
        """Which of the rows a slot's tokens are, -1: none."""
        self.multipliers = self.d**2 if gauge else 0
        self.reach = sum(float(torch.linalg.matrix_norm(slot.W, 2)) ** 2 for slot in slots) ** 0.5

    def curvature(self, tau: float, shifts: Sequence[Tensor] | None = None) -> Iterator[tuple[Span, Tensor]]:
        if shifts is not None:
            yield from self._through_tables(tau, shifts)
            return
        H = self.net.hessian(["E"], keep=False).unflatten(0, (-1, self.d)).unflatten(2, (-1, self.d))
        for c, (span, columns) in enumerate(self._own(tau)):
            if c < len(self.rows):
                columns[: len(self.rows)] += H[self.rows, :, self.rows[c]]
            yield span, columns.flatten(0, 1)

    def _through_tables(self, tau: float, shifts: Sequence[Tensor]) -> Iterator[tuple[Span, Tensor]]:
        for c, (span, columns) in enumerate(self._own(tau)):
            for slot, G, place, shift in zip(self.slots, self.G, self.places, shifts, strict=True):
                GW, seen = G @ slot.W, place >= 0
                columns[place[seen]] -= torch.einsum("i,lu->uil", GW[c], slot.inverse[:, seen])
                (here,) = (place == c).nonzero(as_tuple=True) if c < len(self.rows) else (place[:0],)
                for u in here.tolist():
                    columns[place[seen]] += shift[seen, u, None, None] * (slot.W.T @ slot.W)
                    columns -= torch.einsum("tl,i->til", GW, slot.inverse[:, u])
            yield span, columns.flatten(0, 1)

    def _own(self, tau: float) -> Iterator[tuple[Span, Tensor]]:
        """The columns (row, d, d) of each row: tau, the tangents' own coupling, and what W's null space leaves."""
        d, eye = self.d, torch.eye(self.d).to(self.G[0])
        E = self.net.E[self.rows]
        for c in range(len(self.G[0])):
            columns = eye.new_zeros(len(self.G[0]), d, d)
            for slot, G in zip(self.slots, self.G, strict=True):
                columns -= (G @ G[c])[:, None, None] * slot.null / tau
            if c < len(self.rows):
                columns[c] += tau * eye
                # Entry (X[a, i], E[c, l]) = -E[c, i] for a = l.
                columns[len(self.rows) :] -= torch.einsum("i,al->ail", E[c], eye) if self.gauge else 0
            else:
                columns[: len(self.rows), c - len(self.rows)] -= E
            yield (c * d, (c + 1) * d), columns

    def coupling(self, weights: Tensor, samples: Samples, M: Tensor, at: slice) -> Tensor:
        z, hidden = weights.shape[1], M.shape[1]
        out = M.new_zeros(z, hidden, len(self.G[0]), self.d)
        for k, slot in enumerate(self.slots):
            images = (M @ slot.W).flatten(1)
            for u, place in zip(slot.tokens.tolist(), self.places[k].tolist(), strict=True):
                of = samples.x[:, k] == u
                if place >= 0 and bool(of.any()):
                    out[:, :, place] += (weights[of].T @ images[of]).view(z, hidden, self.d)
        return out.flatten(2)

    def gradient(self, slot: int, directions: Tensor) -> Tensor:
        return torch.einsum("iz,tj->zjti", directions, self.G[slot]).flatten(2)

    def of_table(self, slot: int, u: int, shift: Tensor, samples: Samples) -> Tensor:
        # The shift is on what W does to the tables alone.
        return (self.gradient(slot, self.slots[slot].inverse[:, u, None]) - self.moved(slot, shift[None]))[0]

    def moved(self, slot: int, weights: Tensor) -> Tensor:
        place = self.places[slot]
        out, seen = weights.new_zeros(len(weights), self.net.h, len(self.G[0]), self.d), place >= 0
        out[:, :, place[seen]] = torch.einsum("zt,ji->zjti", weights[:, seen], self.slots[slot].W)
        return out.flatten(2)

    def moves(self, slot: int, rest: Tensor) -> Tensor:
        rows, place = rest.unflatten(0, (-1, self.d)), self.places[slot]
        out = rest.new_zeros(len(place), self.net.h, rest.shape[1])
        out[place >= 0] = torch.einsum("tim,ji->tjm", rows[place[place >= 0]], self.slots[slot].W)
        return out

    def moved_back(self, slot: int, rows: Tensor) -> Tensor:
        place, out = self.places[slot], rows.new_zeros(len(self.G[0]), self.d, rows.shape[2])
        out[place[place >= 0]] = torch.einsum("tjm,ji->tim", rows[place >= 0], self.slots[slot].W)
        return out.flatten(0, 1)

    def product(self, hessian: BlockOperator, dW: list[Tensor], rest: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        m, net = rest.shape[1], self.net
        rows = rest.unflatten(0, (-1, self.d))
        dE, X = rest.new_zeros(net.vocabulary, self.d, m), rows[len(self.rows) :]
        dE[self.rows] = rows[: len(self.rows)]
        whole = [
            y - torch.einsum("li,tim,tj->ljm", slot.null, rows, G) / tau
            for y, slot, G in zip(dW, self.slots, self.G, strict=True)
        ]
        stacked = torch.stack(whole).permute(2, 0, 1, 3)
        out = hessian.block(["E", "W"]) @ torch.cat([dE.flatten(0, 1), stacked.flatten(0, 2)])
        gE = out[: dE.shape[0] * self.d].view_as(dE)
        gW = out[dE.shape[0] * self.d :].view_as(stacked)
        images = gE[self.rows] + tau * dE[self.rows]
        if self.gauge:
            E = net.E[self.rows]
            images -= torch.einsum("ti,aim->tam", E, X)
            W = torch.stack([slot.W for slot in self.slots], 1)
            gW = gW + torch.einsum("jka,aim->jkim", W, X)
            multiplied = torch.einsum("jka,jkim->aim", W, stacked) - torch.einsum("ti,tam->aim", E, dE[self.rows])
            images = torch.cat([images, multiplied])
        return gW.permute(1, 2, 0, 3), images.flatten(0, 1)


class Output(Rest):
    """The output layer V."""

    def __init__(self, net: EmbeddingMLP) -> None:
        self.net, self.order = net, net.C * net.h

    def curvature(self, tau: float, shifts: Sequence[Tensor] | None = None) -> Iterator[tuple[Span, Tensor]]:
        H, h = self.net.hessian(["V"], keep=False), self.net.h
        H.diagonal().add_(tau)
        for c in range(self.net.C):
            yield (c * h, (c + 1) * h), H[:, c * h : (c + 1) * h]

    def coupling(self, weights: Tensor, samples: Samples, M: Tensor, at: slice) -> Tensor:
        net, hidden = self.net, range(self.net.h)[at]
        _, B = net.slopes(samples)
        phi = samples.phi[:, : net.h]
        out = B.new_empty(weights.shape[1], len(hidden), net.C, net.h)
        for w, piece in zip(weights.T, out, strict=True):
            through = (w[:, None, None] * B[:, :, at]).flatten(1).T @ phi
            piece.copy_(through.view(net.C, len(hidden), net.h).transpose(0, 1))
            piece[list(range(len(hidden))), :, list(hidden)] += ((w[:, None] * samples.r).T @ samples.D[:, at]).T
        return out.flatten(2)

    def of_table(self, slot: int, u: int, shift: Tensor, samples: Samples) -> Tensor:
        ones = samples.D.new_ones(len(samples.x), 1)
        return self.coupling(ones, samples, samples.D.new_empty(0), slice(None))[0]

    def gradient(self, slot: int, directions: Tensor) -> Tensor:
        return directions.new_zeros(directions.shape[1], self.net.h, self.order)

    def product(self, hessian: BlockOperator, dW: list[Tensor], rest: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        stacked = torch.stack(dW).permute(2, 0, 1, 3)
        out = hessian.block(["W", "V"]) @ torch.cat([stacked.flatten(0, 2), rest])
        size = stacked[..., 0].numel()
        return out[:size].view_as(stacked).permute(1, 2, 0, 3), out[size:] + tau * rest


@dataclasses.dataclass(frozen=True)
class Shift:
    """What is added to W, in coordinates dW_k^T = lift_k y_k of it, for a tolerance between `low` and `high`.

    matrices (z, z) by slot, of smallest eigenvalue `least`; more (z, m): of the first slot more more^T, too.
    is_token_wise: whether y_k is how W and the rest together move the table; then W's share is shifted.
    """

    lifts: Sequence[Tensor]
    matrices: Sequence[Tensor]
    more: Tensor
    least: float
    low: float
    high: float
    is_token_wise: bool

    @classmethod
    def exact(cls, slots: Sequence[Slot], tau: float) -> Shift:
        """The tolerance itself, in orthonormal coordinates."""
        lifts = [slot.basis for slot in slots]
        matrices = [tau * torch.eye(lift.shape[1]).to(lift) for lift in lifts]
        return cls(lifts, matrices, lifts[0].new_zeros(lifts[0].shape[1], 0), tau, tau, tau, False)

    @classmethod
    def token_wise(cls, slots: Sequence[Slot], tau: float, above: bool, few: int) -> Shift:
        """A multiple of the identity on the tables of the first slot, and the tolerance itself on all others.

        above: at least the tolerance. Then it is exact in the first slot, too, along the few directions in which its
        tables move least, which else would ask for a far larger multiple.
        """
        first, *others = slots
        few = few if above else 0
        sigma, some = first.sigma[: len(first.sigma) - few], first.sigma[len(first.sigma) - few :]
        own = tau / float(sigma[-1] if above else sigma[0]) ** 2
        more = first.left[:, len(sigma) :] * (tau / some**2 - own).sqrt()
        matrices = [own * torch.eye(len(first.tokens)).to(more), *(tau * s.inverse.T @ s.inverse for s in others)]
        apart = float(sigma[0] / sigma[-1]) ** 2
        least = min([own, *(tau / float(slot.sigma[0]) ** 2 for slot in others)])
        low, high = (tau, tau * apart) if above else (tau / apart, tau)
        return cls([slot.inverse for slot in slots], matrices, more, least, low, high, True)


class Factorisation:
    """One point and block, to be factorised at several tolerances.

    Args:
        net: the network; hessian: products of the whole Hessian, of the data loss.
        slots: of its input; rest: the factor that is left.
    """

    def __init__(self, net: EmbeddingMLP, hessian: BlockOperator, slots: Sequence[Slot], rest: Rest) -> None:
        self.net, self.hessian, self.slots, self.rest, self.h = net, hessian, slots, rest, net.h
        sigma = slots[0].sigma
        self.few = min(int((sigma < _SMALL * sigma[:1]).sum()), most_few(rest.order, net.h))
        """Directions of the first slot that are exact in a token-wise factor: they make it larger."""

    def exactly(self, tau: float, progress: Progress) -> Count | None:
        """The count at a tolerance, from one factor of order h times the ranks of the slots."""
        shift = Shift.exact(self.slots, tau)
        lifts = shift.lifts
        features = torch.cat([self.net.E[x] @ lift for x, lift in zip(self.net.tokens.T, lifts, strict=True)], 1)
        last = features.shape[1] * self.h
        work = Elimination(0, last, last + self.rest.order, self.h, features, progress)
        samples = self.net.samples(slice(None))
        width = max(1, _SLICE_BYTES // (8 * max(self.h * len(features), self.rest.order * features.shape[1])))
        for start in range(0, self.h, width):
            at = slice(start, min(start + width, self.h))
            M = self.net.curvature(samples, at)
            for z, weights in enumerate(features.T):
                blocks = (features[:, z:] * weights[:, None]).T @ M.flatten(1)
                for y, block in enumerate(blocks.unflatten(1, M.shape[1:]), z):
                    rows = y * self.h + at.start, y * self.h + at.stop
                    work.add(rows, self._span(z), block)
            for z, block in enumerate(self.rest.coupling(features, samples, M, at)):
                work.add((last, work.order), (z * self.h + at.start, z * self.h + at.stop), block.T)
        directions = ((k, direction) for k, lift in enumerate(lifts) for direction in lift.T)
        for z, (k, direction) in enumerate(directions):
            work.add((last, work.order), self._span(z), self.rest.gradient(k, direction[:, None])[0].T)
            work.add_identity(self._span(z), self._span(z), tau)
        self._add_rest(work, self.rest.curvature(tau))
        return self._counted(work, shift, tau)

    def by_tokens(self, tau: float, above: bool, progress: Progress) -> Count | None:
        """The count at a tolerance of at least tau, or else at most, from a factor without the first slot.

        In the coordinates of the tables, those of different tokens in the first slot do not interact but through the
        tolerance: there it is a multiple of the identity. The rows of E in every slot must be independent.
        """
        first, *others = self.slots
        shift, h = Shift.token_wise(self.slots, tau, above, self.few), self.h
        shifts, few = shift.matrices, shift.more.shape[1]
        starts = [0, *itertools.accumulate(len(slot.tokens) for slot in self.slots)]
        begin, last, end = starts[1] * h, starts[-1] * h, starts[-1] * h + self.rest.order
        order = end + few * h
        work = Elimination(begin, last, order, h, first.E, lambda done: progress((1 + done) / 2))
        place = [
            dict(zip(slot.tokens.tolist(), itertools.count(start), strict=False))
            for slot, start in zip(self.slots, starts, strict=False)
        ]
        for k, slot in enumerate(others, 1):
            for u, t in enumerate(slot.tokens.tolist()):
                samples = self.net.samples((self.net.tokens[:, k] == t).nonzero()[:, 0])
                work.add((last, end), self._span(starts[k] + u), self.rest.of_table(k, u, shifts[k][u], samples).T)
                for v in range(u + 1):
                    work.add_identity(self._span(starts[k] + u), self._span(starts[k] + v), float(shifts[k][u, v]))
        self._add_rest(work, self.rest.curvature(tau, shifts))
        # a |w|^2 is the largest 2 sqrt(a) s w - s^2: variables s, with as many negative eigenvalues, coupled with W.
        work.add_identity((end, order), (end, order), -1.0)
        if few and self.rest.reach:
            work.add((end, order), (last, end), -self.rest.moved(0, shift.more.T).flatten(0, 1))
        eye = torch.eye(h).to(first.E)
        for t, at in by_token(self.net.tokens[:, 0]):
            progress(place[0][t] / starts[1] / 2)
            samples = self.net.samples(at)
            M = self.net.curvature(samples, slice(None))
            coupled: dict[int, Tensor] = {}
            for x, curvature in zip(samples.x[:, 1:].tolist(), M, strict=True):
                others_at = [of[token] for of, token in zip(place[1:], x, strict=True)]
                for z in others_at:
                    coupled[z] = coupled[z] + curvature if z in coupled else curvature
                for y, z in itertools.combinations_with_replacement(others_at, 2):
                    work.add(self._span(z), self._span(y), curvature)
            u = place[0][t]
            diagonal = M.sum(0)
            diagonal.diagonal().add_(shifts[0][u, u])
            spans = [*map(self._span, sorted(coupled)), (last, order)]
            blocks = [*(coupled[z] for z in sorted(coupled)), self.rest.of_table(0, u, shifts[0][u], samples)]
            blocks += [weight * eye for weight in shift.more[u]]
            if not work.eliminate(self._span(u), diagonal, spans, torch.cat(blocks, 1)):
                return None
        return self._counted(work, shift, tau)

    def _counted(self, work: Elimination, shift: Shift, tau: float) -> Count | None:
        """Finish a factorisation and count.

        What is factorised differs from the Hessian with its shift by rounding. Where that is a share of the shift, the
        count is exact for tolerances that much lower and higher.
        """

        lifts, end = shift.lifts, work.last + self.rest.order

        def product(vectors: Tensor) -> Tensor:
            y, rest = vectors[: work.last], vectors[work.last : end]
            more = vectors[end:].unflatten(0, (shift.more.shape[1], self.h))
            parts = list(y.unflatten(0, (-1, self.h)).split([lift.shape[1] for lift in lifts]))
            if shift.is_token_wise:
                parts = [part - self.rest.moves(k, rest) for k, part in enumerate(parts)]
            dW = [torch.einsum("iz,zjm->ijm", lift, part) for lift, part in zip(lifts, parts, strict=True)]
            images, out = self.rest.product(self.hessian, dW, rest, tau)
            rows = [
                torch.einsum("iz,ijm->zjm", lift, image) + torch.einsum("yz,zjm->yjm", matrix, part)
                for lift, image, matrix, part in zip(lifts, images, shift.matrices, parts, strict=True)
            ]
            rows[0] += torch.einsum("zi,ijm->zjm", shift.more, more)
            for k, row in enumerate(rows if shift.is_token_wise else ()):
                out = out - self.rest.moved_back(k, row)
            more = torch.einsum("zi,zjm->ijm", shift.more, parts[0]) - more
            return torch.cat([*(row.flatten(0, 1) for row in rows), out, more.flatten(0, 1)])

        left = work.finish(product)
        if left is None:
            return None
        a, b, d = left.a, left.b, left.d
        if shift.is_token_wise:
            # The shift is on t - J x, with t how all of it moves the tables, and J x what the rest does:
            # |t|^2 <= 2 |t - J x|^2 + 2 |J x|^2.
            reach = self.rest.reach
            a, d = 2 * a, d + 2 * b * reach + 2 * a * reach**2
        # 2 b |y| |x| <= b s |y|^2 + b |x|^2 / s.
        of_W, of_rest = a / shift.least + b / (shift.least * tau) ** 0.5, d + b * (tau / shift.least) ** 0.5
        negative, off = count_below(left.matrix, 0.0, of_rest), of_W
        if negative is None and not self.rest.multipliers:
            negative, off = count_below(left.matrix, 0.0), max(of_W, of_rest / tau, of_rest)
        if negative is None or off >= 1:
            return None
        negative -= self.rest.multipliers + shift.more.shape[1] * self.h
        return Count(negative, shift.low * (1 - off), shift.high * (1 + off))

    def _add_rest(self, work: Elimination, columns: Iterator[tuple[Span, Tensor]]) -> None:
        for (start, end), block in columns:
            rows = work.last + start, work.last + self.rest.order
            work.add(rows, (work.last + start, work.last + end), block[start:])

    def _span(self, z: int) -> Span:
        return z * self.h, (z + 1) * self.h
