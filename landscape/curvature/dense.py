"""Exact dense Hessian blocks of the embedding-coupled MLP in closed form (theory.md, section 4)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.activations import derivatives, others
from landscape.curvature.operators import symmetrised

_CHUNK_BYTES = 1 << 29


class EmbeddingMLP:
    """Second derivatives of mean cross-entropy for logits = V phi(sum_k W_k E[x_k] + b1) + b2.

    params: E (token, d), W (h, s d), V (C, h) and optionally b1 (h,), b2 (C,), all of one precision;
    tokens (N, s), labels (N,); `activation` elementwise and twice differentiable almost everywhere.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        tokens: Tensor,
        labels: Tensor,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        self.params, self.tokens, self.labels, self.activation = dict(params), tokens, labels, activation
        self.E, self.W, self.V = params["E"], params["W"], params["V"]
        self.slots = tokens.shape[1]
        (self.vocabulary, self.d), self.h, self.C = self.E.shape, len(self.W), len(self.V)
        self.biases = {"b1", "b2"} & self.params.keys()

    def hessian(self, names: Sequence[str]) -> Tensor:
        """The Hessian block over the named parameters, in their order. Cost: N times the block's entries / C or h."""
        parts = [p for p, members in _PARTS.items() if any(m in names for m in members)]
        chosen = copy.copy(self)
        chosen.biases = self.biases & set(names)
        full = chosen._assemble(parts)
        order = {}
        offset = 0
        for part in parts:
            for name, index in chosen._layout(part).items():
                order[name] = index + offset
            offset += chosen._size(part)
        pick = torch.cat([order[n] for n in names])
        return full if torch.equal(pick, torch.arange(len(full)).to(pick)) else full[pick][:, pick]

    def _assemble(self, parts: Sequence[str]) -> Tensor:
        """The Hessian over whole parts: E, W with b1 as its last column, V with b2 as its last column."""
        sizes = [self._size(p) for p in parts]
        full = self._zeros(sum(sizes), sum(sizes))
        starts = [0, *itertools.accumulate(sizes)]
        at = {p: slice(*ends) for p, ends in zip(parts, itertools.pairwise(starts), strict=True)}
        blocks = {
            (p, q): full[at[p], at[q]].unflatten(0, self._shape(p)).unflatten(2, self._shape(q))
            for i, p in enumerate(parts)
            for q in parts[i:]
        }
        for c in self._chunks():
            for (p, q), H in blocks.items():
                getattr(self, f"_add_{p}{q}")(H, c)
        for p, q in blocks:
            if p != q:
                full[at[q], at[p]] = full[at[p], at[q]].T
        # Sums in another order leave the last bit asymmetric.
        return symmetrised(full)

    def _chunks(self) -> Iterator[dict[str, Tensor]]:
        """Per chunk of samples n, the ingredients of section 4: x, z, phi, r, D, B = A V D, M, dL/dpre."""
        N = len(self.tokens)
        row_bytes = 8 * (3 * self.C * self.h + 2 * self.h**2 + self.C**2)
        step = max(1, _CHUNK_BYTES // row_bytes)
        for start in range(0, N, step):
            x, y = self.tokens[start : start + step], self.labels[start : start + step]
            z = self.E[x].flatten(1)
            pre = z @ self.W.T + self.params.get("b1", 0.0)
            phi, D, second = derivatives(self.activation, pre)
            p = (phi @ self.V.T + self.params.get("b2", 0.0)).softmax(1)
            r = p.clone()
            r[torch.arange(len(x)), y] = -others(p, y)
            r = r / N
            back = r @ self.V
            # Logits count only by their differences: relative to the likeliest class nothing cancels at any loss.
            top = p.argmax(1)
            VD = (self.V - self.V[top][:, None, :]) * D[:, None, :]
            B = p[:, :, None] * (VD - torch.einsum("nc,ncj->nj", p, VD)[:, None, :]) / N
            M = torch.einsum("cj,ncl->njl", self.V, B) * D[:, :, None]
            M.diagonal(dim1=1, dim2=2).add_(back * second)
            A = -p[:, :, None] * p[:, None, :] / N
            rest = (1 - p).scatter(1, top[:, None], others(p, top)[:, None])
            A.diagonal(dim1=1, dim2=2).copy_(p * rest / N)
            ones = z.new_ones(len(x), 1)
            yield {
                "x": x,
                "z": torch.cat([z, ones], 1) if "b1" in self.biases else z,
                "phi": torch.cat([phi, ones], 1) if "b2" in self.biases else phi,
                "r": r,
                "D": D,
                "A": A,
                "B": B,
                "M": M,
                "dpre": back * D,
            }

    def _add_EE(self, H: Tensor, c: dict[str, Tensor]) -> None:
        pairs = self._zeros(self.vocabulary**2, self.d, self.d)
        for k in range(self.slots):
            WM = torch.einsum("ji,njl->nil", self._slot(k), c["M"])
            for m in range(self.slots):
                pairs.index_add_(0, c["x"][:, k] * self.vocabulary + c["x"][:, m], WM @ self._slot(m))
        H += pairs.view(self.vocabulary, self.vocabulary, self.d, self.d).transpose(1, 2)

    def _add_EW(self, H: Tensor, c: dict[str, Tensor]) -> None:
        d = self.d
        i = torch.arange(d, device=H.device)
        for k in range(self.slots):
            WM = torch.einsum("ji,njl->nil", self._slot(k), c["M"])
            G = self._zeros(self.vocabulary, self.h).index_add_(0, c["x"][:, k], c["dpre"])
            H[:, i, :, k * d + i] += G
            for t, at in self._by_token(c, k):
                H[t] += torch.einsum("nij,na->ija", WM[at], c["z"][at])

    def _add_EV(self, H: Tensor, c: dict[str, Tensor]) -> None:
        for k in range(self.slots):
            W_k = self._slot(k)
            BW = c["B"] @ W_k
            for t, at in self._by_token(c, k):
                H[t] += torch.einsum("nci,nj->icj", BW[at], c["phi"][at])
                rD = torch.einsum("nc,nj->cj", c["r"][at], c["D"][at])
                H[t, :, :, : self.h] += rD * W_k.T[:, None, :]

    def _add_WW(self, H: Tensor, c: dict[str, Tensor]) -> None:
        """Samples are summed by token first: all of a token's share one side of z z^T."""
        z, h, d = c["z"], self.h, self.d
        for k in range(self.slots):
            tokens, groups = zip(*self._by_token(c, k), strict=True)
            E = self.E[list(tokens)]
            width = max(1, _CHUNK_BYTES // (8 * h * z.shape[1] * len(tokens)))
            for j in range(0, h, width):
                M = c["M"][:, j : j + width].flatten(1)
                summed = torch.stack([M[at].T @ z[at] for at in groups])
                added = (E.T @ summed.flatten(1)).view(d, -1, h, z.shape[1])
                H[j : j + width, k * d : (k + 1) * d] += added.transpose(0, 1)
                if k == 0 and z.shape[1] > self.slots * d:
                    H[j : j + width, -1] += summed.sum(0).view(-1, h, z.shape[1])

    def _add_VV(self, H: Tensor, c: dict[str, Tensor]) -> None:
        """sum_n A_n[c, b] phi_n[j] phi_n[l] as [c, j, b, l]."""
        C, m = self.C, c["phi"].shape[1]
        summed = c["A"].flatten(1).T @ torch.einsum("nj,nl->njl", c["phi"], c["phi"]).flatten(1)
        H += summed.view(C, C, m, m).transpose(1, 2)

    def _add_WV(self, H: Tensor, c: dict[str, Tensor]) -> None:
        """H [hidden j, input a, class c, hidden l]."""
        both = torch.einsum("nl,na->nla", c["phi"], c["z"]).flatten(1)
        mixed = (c["B"].flatten(1).T @ both).view(self.C, self.h, c["phi"].shape[1], c["z"].shape[1])
        H += mixed.permute(1, 3, 0, 2)
        j = torch.arange(self.h, device=H.device)
        H[j, :, :, j] += torch.einsum("nc,nj,na->jac", c["r"], c["D"], c["z"])

    def _by_token(self, c: dict[str, Tensor], k: int) -> Iterator[tuple[int, Tensor]]:
        """Tokens that occur in slot k with the samples that hold them."""
        for t in c["x"][:, k].unique().tolist():
            yield t, (c["x"][:, k] == t).nonzero()[:, 0]

    def _slot(self, k: int) -> Tensor:
        return self.W[:, k * self.d : (k + 1) * self.d]

    def _shape(self, part: str) -> tuple[int, int]:
        if part == "E":
            return self.vocabulary, self.d
        if part == "W":
            return self.h, self.slots * self.d + ("b1" in self.biases)
        return self.C, self.h + ("b2" in self.biases)

    def _size(self, part: str) -> int:
        rows, columns = self._shape(part)
        return rows * columns

    def _layout(self, part: str) -> dict[str, Tensor]:
        """Where a part's parameters lie among its entries."""
        at = torch.arange(self._size(part), device=self.E.device).view(self._shape(part))
        bias = _PARTS[part][-1]
        if bias == part or bias not in self.biases:
            return {part: at.reshape(-1)}
        return {part: at[:, :-1].reshape(-1), bias: at[:, -1]}

    def _zeros(self, *shape: int) -> Tensor:
        return self.E.new_zeros(*shape)


_PARTS = {"E": ("E",), "W": ("W", "b1"), "V": ("V", "b2")}
