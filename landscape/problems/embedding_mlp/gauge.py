"""Directions that leave the network or its loss unchanged: gauge tangents of (E, W), softmax shift, unseen inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.arguments import chosen
from landscape.curvature.deflation import Directions
from landscape.errors import ArgumentError
from landscape.results import Shown


class GaugeTangent(Shown):
    """The tangent space of E -> E A, W_k -> W_k A^{-T}: vectors (-E X^T, W_k X) for X of shape (d, d).

    params: E (V, d), W (h, s d) and whatever else the block `names` holds, in the order of its rows. With
    A = E^T E and B = sum_k W_k^T W_k the Gram operator of the tangents is X -> X A + B X, so that their projector is
    a Sylvester equation in the eigenbases of A and B: O(n d), without a basis of d^2 vectors. Raises ArgumentError for
    a block without E or W, and for shapes that do not belong together.
    """

    shown = ("dimension", "names")

    def __init__(self, params: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.names = chosen(names, params)
        if not {"E", "W"} <= set(self.names):
            raise ArgumentError(f"tangents of the block {','.join(self.names)}", "name E and W among others")
        self.E, self.W = params["E"], params["W"]
        self.sizes = [params[n].numel() for n in self.names]
        d = self.E.shape[1]
        if self.W.shape[1] % d:
            raise ArgumentError(
                f"W {tuple(self.W.shape)} is not (h, s d) of E {tuple(self.E.shape)}",
                f"give W as many columns of W as {d} for each token, or another E",
            )
        self.slots = self.W.reshape(len(self.W), -1, d)
        self.left: Tensor
        self.right: Tensor
        a, self.left = torch.linalg.eigh(self.E.T @ self.E)
        b, self.right = torch.linalg.eigh(torch.einsum("hka,hkb->ab", self.slots, self.slots))
        self.gram = b[:, None] + a[None, :]
        # Directions dead in E and in W alike move nothing: they are no tangents.
        self.alive = self.gram > d * torch.finfo(a.dtype).eps * self.gram.max()
        self.dimension = int(self.alive.sum())

    def remove(self, vectors: Tensor) -> Tensor:
        """The vectors' components orthogonal to every gauge tangent."""
        if vectors.ndim == 1:
            return self.remove(vectors[:, None])[:, 0]
        rounding = torch.finfo(vectors.dtype).eps * float(vectors.norm())
        # Once leaves rounding times the condition of the Gram operator: E and W may be of very unequal scale.
        for _ in range(5):
            part = self._tangent(self._coordinates(vectors))
            vectors = vectors - part
            if float(part.norm()) <= 10 * rounding:
                break
        return vectors

    def basis(self) -> Tensor:
        """Orthonormal columns (n, dimension) that span the tangents."""
        i, j = self.alive.nonzero(as_tuple=True)
        # In the eigenbases of A and B tangents are orthogonal to each other.
        tangents = self._tangent(self.right.T[i][:, :, None] * self.left.T[j][:, None, :])
        found: Tensor = torch.linalg.qr(tangents / self.gram[i, j].sqrt()).Q
        return found

    def _coordinates(self, columns: Tensor) -> Tensor:
        """X (m, d, d) of the tangents nearest to the columns."""
        pieces = dict(zip(self.names, columns.split(self.sizes), strict=True))
        dE = pieces["E"].T.reshape(-1, *self.E.shape)
        dW = pieces["W"].T.reshape(-1, *self.slots.shape)
        # The adjoint of X -> (-E X^T, W_k X).
        adjoint = torch.einsum("hka,mhkb->mab", self.slots, dW) - torch.einsum("mta,tb->mab", dE, self.E)
        rotated = self.right.T @ adjoint @ self.left
        solved = torch.where(self.alive, rotated / torch.where(self.alive, self.gram, 1.0), 0.0)
        return self.right @ solved @ self.left.T

    def _tangent(self, X: Tensor) -> Tensor:
        """The columns (-E X^T, W_k X), zero in all other parameters."""
        moved = {
            "E": -torch.einsum("tb,mab->mta", self.E, X),
            "W": torch.einsum("hka,mab->mhkb", self.slots, X),
        }
        pieces = [
            moved[n].reshape(len(X), -1) if n in moved else X.new_zeros(len(X), size)
            for n, size in zip(self.names, self.sizes, strict=True)
        ]
        return torch.cat(pieces, dim=1).T


class SoftmaxShift(Shown):
    """V -> V + 1 c^T and b2 -> b2 + c_0: exact null vectors of cross-entropy at every point (F9).

    params: V (C, h) and whatever else the block `names` holds. h dimensions for V, one more for b2. Raises
    ArgumentError for names that are not there.
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


class Unseen:
    """W -> W + a c^T, b1 -> b1 + a c_0 with z c + c_0 = 0 for the inputs z of all samples: exact null vectors of blocks
    without what z comes from.

    z: (N, columns of W); params: W (h, columns) and whatever else the block `names` holds, W among them. Of one-hot
    tokens these are tables' rows that no sample takes, and constants moved from one slot to another or to the bias.
    """

    def __init__(self, z: Tensor, params: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.names, self.sizes, self.h = list(names), [params[n].numel() for n in names], len(params["W"])
        self.members = [n for n in ("W", "b1") if n in names]
        z = torch.cat([z, z.new_ones(len(z), len(self.members) - 1)], dim=1)
        self.taken = z.any(0)
        seen = z[:, self.taken]
        squared, directions = torch.linalg.eigh(seen.T @ seen)
        self.basis = directions[:, squared <= len(squared) * torch.finfo(z.dtype).eps * squared[-1]]
        self.dimension = self.h * (int((~self.taken).sum()) + self.basis.shape[1])

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        pieces = dict(zip(self.names, vectors.split(self.sizes), strict=True))
        rows = [pieces[n].reshape(self.h, -1, *vectors.shape[1:]) for n in self.members]
        whole = torch.cat(rows, dim=1)
        seen = whole[:, self.taken]
        shares = torch.tensordot(self.basis, seen, ([0], [1]))
        found = torch.zeros_like(whole)
        found[:, self.taken] = seen - torch.tensordot(self.basis, shares, 1).transpose(0, 1)
        for name, piece in zip(self.members, found.split([r.shape[1] for r in rows], dim=1), strict=True):
            pieces[name] = piece.reshape(pieces[name].shape)
        return torch.cat(list(pieces.values()))


class Together:
    """The span of directions that are orthogonal to each other."""

    def __init__(self, parts: Sequence[Directions]) -> None:
        self.parts, self.dimension = parts, sum(part.dimension for part in parts)

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        for part in self.parts:
            vectors = part.remove(vectors)
        return vectors
