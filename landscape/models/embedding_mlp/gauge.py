"""Directions that leave the network or its loss unchanged: gauge tangents of (E, W), softmax shift, unseen inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.checks import chosen
from landscape.curvature.operators import Directions, Spanned
from landscape.errors import ArgumentError


class GaugeTangent(Spanned):
    """The tangent space of E -> E A, W_k -> W_k A^{-T}: vectors (-E X^T, W_k X) for X of shape (d, d) (F7).

    With E = sum_j s_j u_j l_j^T and W_k stacked = sum_i t_i w_i r_i^T, the vectors of X = r_i l_j^T are orthogonal:
    (-s_j u_j r_i^T, t_i w_i l_j^T). Their projector is therefore O(n d), without a basis of d^2 vectors. A direction is
    left out if it moves E or W by no more than rounding.

    Args:
        params: E (V, d), W (h, s d) and the other parameters of the block.
        names: the parameters of the block, in the order of its rows.

    Raises:
        ArgumentError: for a block without E or W, and for shapes that do not belong together.
    """

    shown = ("dimension", "names")

    def __init__(self, params: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.names = chosen(names, params)
        if not {"E", "W"} <= set(self.names):
            raise ArgumentError(f"tangents of the block {','.join(self.names)}", "name E and W among others")
        E, W = params["E"].detach(), params["W"].detach()
        self.dtype, self.d = E.dtype, E.shape[1]
        self.sizes = [params[n].numel() for n in self.names]
        if W.shape[1] % self.d:
            raise ArgumentError(
                f"W {tuple(W.shape)} is not (h, s d) of E {tuple(E.shape)}",
                f"give W as many columns of W as {self.d} for each token, or another E",
            )
        u, left, of_E = _factors(E.double())
        w, right, of_W = _factors(W.double().reshape(-1, self.d))
        norms = torch.hypot(of_W[:, None], of_E[None, :])
        # Directions dead in E and in W alike move nothing: they are no tangents.
        self.alive = norms > 0
        self.dimension = int(self.alive.sum())
        norms = torch.where(self.alive, norms, 1.0)
        self._factors = u, left, of_E / norms, w, right, of_W[:, None] / norms

    def remove(self, vectors: Tensor) -> Tensor:
        """The vectors' components orthogonal to every gauge tangent."""
        if vectors.ndim == 1:
            return self.remove(vectors[:, None])[:, 0]
        u, left, in_E, w, right, in_W = (factor.to(vectors) for factor in self._factors)
        pieces = dict(zip(self.names, vectors.split(self.sizes), strict=True))
        dE = pieces["E"].T.reshape(-1, len(u), self.d)
        dW = pieces["W"].T.reshape(-1, len(w), self.d)
        return vectors - self._tangents(in_W * (w.T @ dW @ left) - in_E * (u.T @ dE @ right).mT)

    def basis(self) -> Tensor:
        """Orthonormal columns (n, dimension) that span the tangents."""
        i, j = self.alive.nonzero(as_tuple=True)
        shares = self._factors[0].new_zeros(self.dimension, self.d, self.d)
        shares[torch.arange(self.dimension, device=i.device), i, j] = 1.0
        return self._tangents(shares).to(self.dtype)

    def _tangents(self, shares: Tensor) -> Tensor:
        """Sums (n, m) of the orthonormal tangents, of which [:, i, j] are the shares (m, d, d); zero elsewhere."""
        u, left, in_E, w, right, in_W = (factor.to(shares) for factor in self._factors)
        moved = {"E": -u @ (in_E * shares).mT @ right.T, "W": w @ (in_W * shares) @ left.T}
        zeros = (shares.new_zeros(len(shares), size) for size in self.sizes)
        pieces = [
            moved[n].reshape(len(shares), size) if n in moved else zero
            for n, size, zero in zip(self.names, self.sizes, zeros, strict=True)
        ]
        return torch.cat(pieces, dim=1).T


def _factors(M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u (m, d), v (d, d) and s (d) of M v = u diag(s): v orthogonal, u orthonormal or zero where s is."""
    # Not by M^T M, which would lose what is below 1e-8 of the largest.
    _, sigma, v = torch.linalg.svd(M, full_matrices=len(M) < M.shape[1])
    v = v.T
    rank = int((sigma > max(M.shape) * torch.finfo(M.dtype).eps * sigma.max()).sum())
    # Unlike u of that decomposition, a QR one keeps the digits of each column, however small.
    Q, R = torch.linalg.qr(M @ v[:, :rank])
    u, s = torch.zeros_like(M), M.new_zeros(M.shape[1])
    u[:, :rank], s[:rank] = Q, R.diagonal()
    return u, v, s


class SoftmaxShift(Directions):
    """V -> V + 1 c^T and b2 -> b2 + c_0: exact null vectors of cross-entropy at every point (F9).

    There are h dimensions for V and one more for b2.

    Args:
        params: V (C, h) and the other parameters of the block.
        names: the parameters of the block, in the order of its rows.

    Raises:
        ArgumentError: for names that are not there.
    """

    shown = ("dimension", "names")

    def __init__(self, params: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.names = chosen(names, params)
        chosen(["V"], params)
        self.sizes = [params[n].numel() for n in self.names]
        self.classes = len(params["V"])
        self.dimension = sum(params[n].numel() // self.classes for n in names if n in ("V", "b2"))

    def remove(self, vectors: Tensor) -> Tensor:
        """The vectors with zero mean over classes in V and in b2."""
        pieces = []
        for name, piece in zip(self.names, vectors.split(self.sizes), strict=True):
            if name in ("V", "b2"):
                by_class = piece.reshape(self.classes, -1)
                piece = (by_class - by_class.mean(0)).reshape(piece.shape)
            pieces.append(piece)
        return torch.cat(pieces)


class Unseen(Directions):
    """W -> W + a c^T, b1 -> b1 + a c_0 with z c + c_0 = 0 for the inputs z of all samples: exact null vectors of blocks
    without what z comes from.

    z: (N, columns of W); params: W (h, columns) and whatever else the block `names` holds, W among them. Of one-hot
    tokens these are tables' rows that no sample takes, and constants moved from one slot to another or to the bias.
    """

    def __init__(self, z: Tensor, params: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.names, self.sizes, self.h = list(names), [params[n].numel() for n in names], len(params["W"])
        self.members = [n for n in ("W", "b1") if n in names]
        z = torch.cat([z, z.new_ones(len(z), len(self.members) - 1)], dim=1)
        self.active = z.any(0)
        seen = z[:, self.active]
        self.basis = unseen_inputs(seen)
        self.dimension = self.h * (int((~self.active).sum()) + self.basis.shape[1])

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        pieces = dict(zip(self.names, vectors.split(self.sizes), strict=True))
        rows = [pieces[n].reshape(self.h, -1, *vectors.shape[1:]) for n in self.members]
        whole = torch.cat(rows, dim=1)
        seen = whole[:, self.active]
        shares = torch.tensordot(self.basis, seen, ([0], [1]))
        components = torch.zeros_like(whole)
        components[:, self.active] = seen - torch.tensordot(self.basis, shares, 1).transpose(0, 1)
        for name, piece in zip(self.members, components.split([r.shape[1] for r in rows], dim=1), strict=True):
            pieces[name] = piece.reshape(pieces[name].shape)
        return torch.cat(list(pieces.values()))


def unseen_inputs(z: Tensor) -> Tensor:
    """Orthonormal columns that span what is orthogonal to the inputs z (N, column) of all samples, to rounding."""
    squared, directions = torch.linalg.eigh(z.T @ z)
    unseen: Tensor = directions[:, squared <= len(squared) * torch.finfo(z.dtype).eps * squared[-1]]
    return unseen


class Together(Directions):
    """The span of directions that are orthogonal to each other."""

    def __init__(self, parts: Sequence[Directions]) -> None:
        self.parts, self.dimension = parts, sum(part.dimension for part in parts)
        self.sizes = parts[0].sizes

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        for part in self.parts:
            vectors = part.remove(vectors)
        return vectors
