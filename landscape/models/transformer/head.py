"""Second derivatives of the last MLP and the unembedding in closed form, where no LayerNorm lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from landscape.models.embedding_mlp.activations import derivatives, residuals, softmax_slopes

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
            found = self._block(first, second)[:, at, :, of]
        else:
            found = self._block(second, first)[:, of, :, at].permute(2, 3, 0, 1)
        return found.reshape(self.params[a].numel(), self.params[b].numel())

    def _place(self, name: str) -> tuple[str, slice]:
        """The matrix that a parameter is of, and its columns there."""
        width = {"mlp_in": self.d, "mlp_out": self.h}
        matrix = {"b_in": "mlp_in", "b_out": "mlp_out"}.get(name, name)
        return matrix, slice(width[matrix], None) if matrix != name else slice(width.get(name))

    def _block(self, first: str, second: str) -> Tensor:
        if (first, second) not in self._blocks:
            block = _BLOCKS[first, second]
            found = torch.stack([block(self, at) for at in self._samples()]).sum(0)
            # To the last bit, parts of it with each other too.
            self._blocks[first, second] = (found + found.permute(2, 3, 0, 1)) / 2 if first == second else found
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
        found = _outer(moved, at.x[:, :, None] * at.phi[:, None]).permute(0, 2, 1, 3)
        slopes = torch.einsum("nj,na,ni->jai", at.D, at.x, at.g)
        found[:, :, :, : self.h].diagonal(dim1=0, dim2=3).add_(slopes.permute(1, 2, 0))
        return found

    def _out_out(self, at: _Samples) -> Tensor:
        """phi_k phi_l A_ij."""
        return _outer(at.A, at.phi[:, :, None] * at.phi[:, None]).permute(0, 2, 1, 3)

    def _in_U(self, at: _Samples) -> Tensor:
        """x_a D_j ((M^T U^T S)_jc y_e + r_c M_ej)."""
        M = self.params["mlp_out"]
        moved = at.D[:, :, None] * (at.SU @ M).mT
        found = _outer(moved, at.x[:, :, None] * at.y[:, None]).permute(0, 2, 1, 3)
        slopes = torch.einsum("nj,na,nc->jac", at.D, at.x, at.r)
        return found + slopes[..., None] * M.T[:, None, None]

    def _out_U(self, at: _Samples) -> Tensor:
        """phi_k ((U^T S)_ic y_e + [i = e] r_c)."""
        found = _outer(at.SU.mT, at.phi[:, :, None] * at.y[:, None]).permute(0, 2, 1, 3)
        found.diagonal(dim1=0, dim2=3).add_((at.phi.T @ at.r)[..., None])
        return found

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
    found = left.flatten(1).T @ right.flatten(1)
    return found.view(*left.shape[1:], *right.shape[1:])
