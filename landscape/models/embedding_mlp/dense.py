"""Dense Hessian blocks of the MLP whose tables are products, T_k = E W_k^T (theory.md, section 4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from landscape.models.embedding_mlp.closed_form import ClosedForm, Samples, by_token

_SUMS_BYTES = 1 << 24


class EmbeddingMLP(ClosedForm):
    """T_k = E W_k^T: E (token, d), W (h, s d) among the parameters, or `vectors` (token, d) in the place of E."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        tokens: Tensor,
        labels: Tensor,
        activation: Callable[[Tensor], Tensor],
        gauss_newton: bool = False,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__(params, tokens, labels, activation, gauss_newton)
        self.E = params["E"] if vectors is None else vectors
        self.vocabulary, self.d = self.E.shape

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
        _, B = self._VD_and_B(c)
        for k in range(self.slots):
            W_k = self.W[:, k * self.d : (k + 1) * self.d]
            BW = B @ W_k
            for t, of in by_token(c.x[:, k]):
                H[t] += torch.einsum("nci,nj->icj", BW[of], c.phi[of])
                H[t, :, :, : self.h] += (c.r[of].T @ c.D[of]) * W_k.T[:, None, :]

    def _add_WV(self, H: Tensor, c: Samples) -> None:
        _, B = self._VD_and_B(c)
        both = torch.einsum("nl,na->nla", c.phi, c.z).flatten(1)
        mixed = (B.flatten(1).T @ both).view(self.C, self.h, c.phi.shape[1], c.z.shape[1])
        H += mixed.permute(1, 3, 0, 2)
        j = torch.arange(self.h, device=H.device)
        H[j, :, :, j] += torch.einsum("nc,nj,na->jac", c.r, c.D, c.z)

    def _shape(self, part: str) -> tuple[int, int]:
        return (self.vocabulary, self.d) if part == "E" else super()._shape(part)
