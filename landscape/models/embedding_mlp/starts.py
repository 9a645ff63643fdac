"""Start vectors for the low ends of the embedding-coupled MLP's blocks, from one backward pass.

The low ends of a memorised network's blocks are clusters that no Krylov space of a random vector resolves. Up to the
Gauss-Newton part, which is small there, their eigenvectors are known in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscape.models.embedding_mlp.first_layer import Factors
from landscape.models.embedding_mlp.gauge import unseen_inputs
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes

_AT_ONCE = 16


def low_end(op: EmbeddingHessian, k: int) -> tuple[Tensor | None, int]:
    """Vectors (n, m) near the k lowest eigenvectors of a diagonal block, and the products they took.

    E,W: Ritz vectors in the lowest eigenspaces of K0 (F14). W: directions orthogonal to all samples. V: the softmax
    shift (F9). None for other blocks.
    """
    at, count = op.passes, max(24, 2 * k)
    match op.rows:
        case ["E", "W"]:
            return _coupled(op, count)
        case ["W"]:
            found = _unseen(at, count)
        case ["V"]:
            found = torch.eye(at.h).to(at.V)[:, :count].expand(len(at.V), at.h, -1) / len(at.V) ** 0.5
        case _:
            return None, 0
    m = found.shape[-1]
    return (found.reshape(-1, m) if m else None), 0


def _coupled(op: EmbeddingHessian, count: int) -> tuple[Tensor, int]:
    """Ritz vectors in the span of (-v a^T, u_k a^T) / sqrt 2 over all a, for leading singular pairs (u, v) of G.

    Whole eigenspaces are used: a search would have to find any omitted direction within its cluster.
    """
    at, layer = op.passes, op.passes.layer
    assert isinstance(layer, Factors)
    E, d = layer.E, layer.d
    U, sigma, v = torch.linalg.svd(at.table_gradient(), full_matrices=False)
    rank = min(4, int((sigma >= sigma[0] / 2).sum()))
    u, v = U[:, :rank].reshape(at.slots, at.h, rank) / 2**0.5, v[:rank] / 2**0.5

    def lift(a: Tensor) -> Tensor:
        m = a.shape[2]
        dE, dW = -torch.einsum("rt,rdm->tdm", v, a), torch.einsum("khr,rdm->hkdm", u, a)
        return torch.cat([dE.reshape(-1, m), dW.reshape(-1, m)])

    def lower(x: Tensor) -> Tensor:
        dE, dW = x[: E.numel()].view(*E.shape, -1), x[E.numel() :].view(at.h, at.slots, d, -1)
        return torch.einsum("khr,hkdm->rdm", u, dW) - torch.einsum("rt,tdm->rdm", v, dE)

    size = rank * d
    units = torch.eye(size).to(E).view(rank, d, size)
    T = torch.cat([lower(op @ lift(some)).flatten(0, 1) for some in units.split(_AT_ONCE, dim=2)], dim=1)
    S = torch.linalg.eigh((T + T.T) / 2)[1][:, :count]
    return lift(S.reshape(rank, d, -1)), size


def _unseen(at: Passes, count: int) -> Tensor:
    """e_j b^T for directions b of the first layer's input that are orthogonal to all samples."""
    z = at.layer.inputs(at.tokens)
    unseen = unseen_inputs(z)
    count = min(count, at.h * unseen.shape[1])
    W, m = z.new_zeros(*at.params["W"].shape, count), torch.arange(count, device=z.device)
    W[m % at.h, :, m] = unseen.T[m // at.h]
    return W
