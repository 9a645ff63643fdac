"""Closed-form Hessian blocks of the embedding MLP, dense.

With p_n the softmax of sample n, r_n = (p_n - y_n)/N, A_n = (diag(p_n) - p_n p_n^T)/N and D_n = diag(phi'(pre_n)), the
curvature of the loss by pre_n is M_n = D_n V^T A_n V D_n + diag(phi''(pre_n) * V^T r_n). By the chain rule

    H_{E[t]E[t']} = sum over n, k, k' with x_nk = t and x_nk' = t' of W_k^T M_n W_k'
    H_{W_k W_k'}  = sum over n of M_n (x) E[x_nk] E[x_nk']^T

and H_EW is the same contraction of W_k^T M_n with E[x_nk'], plus dL/dpre_n (x) I_d on each pair of E[x_nk] and W_k.
Samples with equal tokens are summed first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.vectors import symmetrised


def others(p: Tensor, y: Tensor) -> Tensor:
    """1 - p_y of probabilities (N, C) without cancellation: the sum of all others."""
    return p.scatter(1, y[:, None], 0.0).sum(1)


def residuals(p: Tensor, y: Tensor) -> Tensor:
    """p - onehot(y) of probabilities (N, C), the gradient of the loss by the logits, without cancellation."""
    return p.scatter(1, y[:, None], -others(p, y)[:, None])


def softmax_slopes(p: Tensor) -> Tensor:
    """diag(p) - p p^T of probabilities (N, C), (N, C, C), the derivative of the softmax, without cancellation."""
    likeliest = p.argmax(1)
    slopes = -p[:, :, None] * p[:, None, :]
    rest = (1 - p).scatter(1, likeliest[:, None], others(p, likeliest)[:, None])
    slopes.diagonal(dim1=1, dim2=2).copy_(p * rest)
    return slopes


def derivatives(phi: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """phi, phi' and phi'' elementwise."""
    x = x.detach().requires_grad_()
    value = phi(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (slope,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        second = second if slope is None else slope
    return value.detach(), first.detach(), second


_SUMS_BYTES = 1 << 24
_PARTS = {"E": ("E",), "W": ("W", "b1"), "V": ("V", "b2")}


def by_token(slot: Tensor) -> Iterator[tuple[int, Tensor | slice]]:
    """Tokens that occur in a slot (n,) with the samples that contain them, as a slice where contiguous."""
    for t in slot.unique().tolist():
        of = (slot == t).nonzero()[:, 0]
        first, last = int(of[0]), int(of[-1])
        yield t, slice(first, last + 1) if last - first == len(of) - 1 else of


_CHUNK_BYTES = 1 << 29
_CACHE_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class Samples:
    """Of n samples: tokens x, inputs z of W as the model keeps them, phi (with a one for a bias), probabilities p,
    residuals r = (p - y)/N, D = phi'(pre), dpre = dL/dpre and second = phi''(pre) * V^T r.
    """

    x: Tensor
    z: Tensor
    phi: Tensor
    p: Tensor
    r: Tensor
    D: Tensor
    second: Tensor
    dpre: Tensor

    def part(self, at: slice) -> Samples:
        """A subset of the samples."""
        return Samples(*(getattr(self, f.name)[at] for f in dataclasses.fields(self)))


class EmbeddingMLP:
    """Second derivatives of mean cross-entropy for logits = V phi(sum_k T_k[x_k] + b1) + b2 with T_k = E W_k^T.

    params: W (h, s d), V (C, h) and optionally E (token, d), b1 (h,), b2 (C,), all of one precision; tokens (N, s),
    labels (N,); `activation` elementwise and twice differentiable almost everywhere. gauss_newton: J^T (d2 loss /
    d logits2) J instead, which is what is left without the residuals. vectors: constant inputs (token, d) of a network
    without E, one-hot ones the identity.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        tokens: Tensor,
        labels: Tensor,
        activation: Callable[[Tensor], Tensor],
        gauss_newton: bool = False,
        vectors: Tensor | None = None,
    ) -> None:
        self.gauss_newton = gauss_newton
        self.E = params["E"] if vectors is None else vectors
        self.vocabulary, self.d = self.E.shape
        # Sorted by first token, samples that share it are contiguous and need no copy.
        order = tokens[:, 0].argsort(stable=True)
        self.params, self.tokens, self.labels, self.activation = dict(params), tokens[order], labels[order], activation
        self.W, self.V = params["W"], params["V"]
        self.slots, self.h, self.C = tokens.shape[1], len(self.W), len(self.V)
        self.biases = {"b1", "b2"} & self.params.keys()
        self._between: dict[str, Tensor] = {}

    def hessian(self, names: Sequence[str], keep: bool = True) -> Tensor:
        """The Hessian block over the named parameters, in their order. Cost: N times the block's entries / C or h.

        What lies between two parts is computed once, if it is to be kept; a block has the same bits whatever was asked
        for before.
        """
        part = {name: p for p, members in _PARTS.items() for name in members}
        wanted = [p for p in _PARTS if p in {part[name] for name in names}]
        self._compute(list(itertools.combinations_with_replacement(wanted, 2)))
        sizes = [self.params[name].numel() for name in names]
        starts = [0, *itertools.accumulate(sizes)]
        at = {name: slice(*ends) for name, ends in zip(names, itertools.pairwise(starts), strict=True)}
        H = self.V.new_empty(sum(sizes), sum(sizes))
        for a, b in itertools.product(names, repeat=2):
            p, q = part[a], part[b]
            whole = self._between[p + q] if p + q in self._between else self._between[q + p].permute(2, 3, 0, 1)
            piece = whole[:, self._columns(a)][:, :, :, self._columns(b)]
            H[at[a], at[b]].unflatten(0, piece.shape[:2]).unflatten(2, piece.shape[2:]).copy_(piece)
        if not keep:
            self._between.clear()
        # Different summation orders leave the last bit asymmetric.
        return symmetrised(H)

    def _columns(self, name: str) -> slice:
        """A parameter's columns in its part, of which a bias is the last one."""
        parameter = self.params[name]
        return slice(parameter.shape[1]) if parameter.ndim == 2 else slice(-1, None)

    def _compute(self, pairs: Sequence[tuple[str, str]]) -> None:
        """The Hessian between parts, E, W with b1 as its last column, V with b2 as its last column, unless known."""
        new = {
            p + q: self.V.new_zeros(*self._shape(p), *self._shape(q)) for p, q in pairs if p + q not in self._between
        }
        self._add_first_layer(new)
        late = [pair for pair in new if pair[1] == "V"]
        for c in self._chunks() if late else ():
            for pair in late:
                getattr(self, f"_add_{pair}")(new[pair], c)
        self._between |= new

    def _chunks(self) -> Iterator[Samples]:
        """The samples in chunks that fit in memory with their B, A and phi z^T."""
        step = max(1, _CHUNK_BYTES // (8 * (3 * self.C * self.h + self.h * self.W.shape[1] + self.C**2)))
        for start in range(0, len(self.tokens), step):
            yield self.samples(slice(start, start + step))

    def samples(self, at: slice | Tensor) -> Samples:
        x, y, N = self.tokens[at], self.labels[at], len(self.tokens)
        z, pre = self._inputs(x)
        phi, D, second = derivatives(self.activation, pre + self.params.get("b1", 0.0))
        p = (phi @ self.V.T + self.params.get("b2", 0.0)).softmax(1)
        r = residuals(p, y)
        if self.gauss_newton:
            r.zero_()
        ones = phi.new_ones(len(x), 1)
        return Samples(
            x=x,
            z=z,
            phi=torch.cat([phi, ones], 1) if "b2" in self.biases else phi,
            p=p,
            r=r / N,
            D=D,
            second=second * (r / N @ self.V),
            dpre=D * (r / N @ self.V),
        )

    def slopes(self, c: Samples) -> tuple[Tensor, Tensor]:
        """V D_n, with rows relative to the likeliest class's, and B_n = A_n V D_n, both (n, C, h)."""
        # Only differences of logits matter: relative to the likeliest class nothing cancels at any loss.
        VD = (self.V - self.V[c.p.argmax(1)][:, None, :]).mul_(c.D[:, None, :])
        B = (VD - c.p[:, None, :] @ VD).mul_(c.p[:, :, None] / len(self.tokens))
        return VD, B

    def _add_first_layer(self, blocks: Mapping[str, Tensor]) -> None:
        """EE, EW and WW from M_n = D_n V^T A_n V D_n + phi'' in slices of its columns."""
        wanted = {name: blocks[name] for name in ("EE", "EW", "WW") if name in blocks}
        if not wanted:
            return
        samples = self.samples(slice(None))
        width = max(1, _CHUNK_BYTES // (8 * self.h * len(self.tokens)))
        for start in range(0, self.h, width):
            at = slice(start, start + width)
            self._add_slice(wanted, samples, self.curvature(samples, at), at)

    def curvature(self, samples: Samples, at: slice) -> Tensor:
        """Rows `at` of M_n as (n, row, h), computed in pieces that stay in cache."""
        N = len(samples.x)
        M = samples.D.new_empty(N, len(self.W[at]), self.h)
        step = N if M.is_cuda else max(1, _CACHE_BYTES // (8 * self.h * (2 * self.C + M.shape[1])))
        for start in range(0, N, step):
            c = samples.part(slice(start, start + step))
            VD, B = self.slopes(c)
            piece = torch.bmm(VD[:, :, at].mT, B, out=M[start : start + step])
            piece[:, :, at].diagonal(dim1=1, dim2=2).add_(c.second[:, at])
        return M

    def _add_VV(self, H: Tensor, c: Samples) -> None:
        """sum_n A_n[c, b] phi_n[j] phi_n[l] as [c, j, b, l]."""
        C, m = self.C, c.phi.shape[1]
        both = torch.einsum("nj,nl->njl", c.phi, c.phi).flatten(1)
        H += (softmax_slopes(c.p).flatten(1).T @ both).view(C, C, m, m).transpose(1, 2) / len(self.tokens)

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.E[x].flatten(1)
        pre = z @ self.W.T
        return torch.cat([z, z.new_ones(len(z), 1)], 1) if "b1" in self.biases else z, pre

    def _add_slice(self, blocks: Mapping[str, Tensor], c: Samples, M: Tensor, at: slice) -> None:
        if "WW" in blocks:
            self._add_WW(blocks["WW"][at], c, M)
        if blocks.keys() - {"WW"}:
            WM = self.W.T @ M.mT
        if "EE" in blocks:
            self._add_EE(blocks["EE"], c, WM, self.W[at])
        if "EW" in blocks:
            self._add_EW(blocks["EW"][:, :, at], c, WM, at)

    def _add_WW(self, H: Tensor, c: Samples, M: Tensor) -> None:
        """Samples are summed by token first, because those of one token share one side of z z^T."""
        d, columns = self.d, self.h * c.z.shape[1]
        for k in range(self.slots):
            tokens, groups = zip(*by_token(c.x[:, k]), strict=True)
            E = self.E[list(tokens)]
            width = max(1, _SUMS_BYTES // (8 * len(tokens) * columns))
            for start in range(0, len(H), width):
                sums = M.new_empty(len(tokens), len(H[start : start + width]), columns)
                for of, summed in zip(groups, sums, strict=True):
                    torch.mm(M[of, start : start + width].flatten(1).T, c.z[of], out=summed.view(-1, c.z.shape[1]))
                for j, rows in enumerate(H[start : start + width].flatten(2)):
                    rows[k * d : (k + 1) * d].addmm_(E.T, sums[:, j])
                    if k == 0 and c.z.shape[1] > self.slots * d:
                        rows[-1] += sums[:, j].sum(0)

    def _add_EE(self, H: Tensor, c: Samples, WM: Tensor, W: Tensor) -> None:
        V, d = self.vocabulary, self.d
        pairs = self.V.new_zeros(V**2, d, d)
        for k, m in itertools.product(range(self.slots), repeat=2):
            inner = WM[:, k * d : (k + 1) * d] @ W[:, m * d : (m + 1) * d]
            pairs.index_add_(0, c.x[:, k] * V + c.x[:, m], inner)
        H += pairs.view(V, V, d, d).transpose(1, 2)

    def _add_EW(self, H: Tensor, c: Samples, WM: Tensor, at: slice) -> None:
        d = self.d
        i = torch.arange(d, device=H.device)
        for k in range(self.slots):
            G = self.V.new_zeros(self.vocabulary, H.shape[2]).index_add_(0, c.x[:, k], c.dpre[:, at])
            H[:, i, :, k * d + i] += G
            for t, of in by_token(c.x[:, k]):
                H[t] += (WM[of, k * d : (k + 1) * d].flatten(1).T @ c.z[of]).view(H[t].shape)

    def _add_EV(self, H: Tensor, c: Samples) -> None:
        _, B = self.slopes(c)
        for k in range(self.slots):
            W_k = self.W[:, k * self.d : (k + 1) * self.d]
            BW = B @ W_k
            for t, of in by_token(c.x[:, k]):
                H[t] += torch.einsum("nci,nj->icj", BW[of], c.phi[of])
                H[t, :, :, : self.h] += (c.r[of].T @ c.D[of]) * W_k.T[:, None, :]

    def _add_WV(self, H: Tensor, c: Samples) -> None:
        _, B = self.slopes(c)
        both = torch.einsum("nl,na->nla", c.phi, c.z).flatten(1)
        mixed = (B.flatten(1).T @ both).view(self.C, self.h, c.phi.shape[1], c.z.shape[1])
        H += mixed.permute(1, 3, 0, 2)
        j = torch.arange(self.h, device=H.device)
        H[j, :, :, j] += torch.einsum("nc,nj,na->jac", c.r, c.D, c.z)

    def _shape(self, part: str) -> tuple[int, int]:
        if part == "E":
            return self.vocabulary, self.d
        if part == "W":
            return self.h, self.W.shape[1] + ("b1" in self.biases)
        return self.C, self.h + ("b2" in self.biases)
