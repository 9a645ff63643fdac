"""MLPs of one shape, trained side by side by hand-derived gradients, and the same MLP as a torch module."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.errors import lookup
from landscape.models import networks
from landscape.models.embedding_mlp.blocks import BLOCKS


def singular_values(gram: Tensor) -> Tensor:
    """Singular values (..., n), ascending, of matrices with these Gram matrices (..., n, n), as float64.

    NaN for a Gram matrix that is not finite; 0 below 1.5e-8 sqrt(n) of the largest, where they are rounding.
    """
    is_bad = ~gram.isfinite().all(-1).all(-1)
    squared: Tensor = torch.linalg.eigvalsh(gram.masked_fill(is_bad[..., None, None], 0.0))
    return _roots(squared).masked_fill(is_bad[..., None], torch.nan)


def spectrum(E: Tensor, W: Tensor) -> Tensor:
    """Singular values (member, token), ascending, of the tables of E (member, token, d) and W (member, hidden, s d)."""
    # One row a hidden unit and slot; their order changes no singular value.
    W_k = W.double().reshape(len(W), -1, E.shape[2])
    E = E.double()
    return singular_values(E @ (W_k.mT @ W_k) @ E.mT)


def effective_rank(sigma: Tensor) -> Tensor:
    """exp of the entropy of singular values (..., n) as shares of their sum; NaN where all are 0.

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality" (2007).
    """
    rank: Tensor = torch.special.entr(sigma / sigma.sum(-1, keepdim=True)).sum(-1).exp()
    return rank


def shrink(matrices: Tensor, by: Tensor) -> Tensor:
    """argmin_X |X - Y|_F^2 / 2 + t |X|_* of each matrix Y (..., m, n): its singular values lowered by t, down to 0.

    by: t >= 0 of each matrix, shape (...). Computed in float64 from the n x n Gram matrix; a singular value is right to
    about 1e-16 sigma_max^2 / t. A matrix whose Gram matrix is not finite becomes NaN. Source: Cai, Candes and Shen,
    "A singular value thresholding algorithm for matrix completion" (2010), theorem 2.1.
    """
    t = by[..., None]
    return _rescaled(matrices, lambda sigma: torch.where(sigma > t, 1 - t / sigma, 0.0))


def subgradient(matrices: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T (..., m, n), the subgradient of its nuclear norm that is least in norm.

    Singular values below 1.5e-8 sqrt(n) of the largest count as 0. Computed as in `shrink`.
    """
    return _rescaled(matrices, lambda sigma: torch.where(sigma > 0, 1 / sigma, 0.0))


def _rescaled(matrices: Tensor, factors: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrices with their singular values (..., n), ascending, multiplied by `factors` of them."""
    Y = matrices.double()
    gram = Y.mT @ Y
    is_bad = ~gram.isfinite().all(-1).all(-1)
    squared, right = torch.linalg.eigh(gram.masked_fill(is_bad[..., None, None], 0.0))
    by = factors(_roots(squared)).masked_fill(is_bad[..., None], torch.nan)
    rescaled: Tensor = Y @ (right * by[..., None, :] @ right.mT)
    return rescaled.to(matrices)


def _roots(squared: Tensor) -> Tensor:
    """Singular values (..., n) from the eigenvalues of a Gram matrix in float64, ascending."""
    least = squared.shape[-1] * torch.finfo(squared.dtype).eps * squared[..., -1:]
    return squared.where(squared > least, 0.0).sqrt()


class MLP(nn.Module):
    """tokens (sample, slot) -> logits (sample, class); parameters named E, W, b1, V, b2 as in the files.

    Tables are the network of one-hot tokens, W = [T_1^T ... T_s^T], which starts as the embedding network of the same
    options and seed: T_k = E W_k^T. With --start folded so does the network of two tokens as that of four.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.kind, self.activation = config.model, ACTIVATIONS[config.activation]
        self.slots, vocabulary, p, h = config.slots, config.num_tokens, config.classes, config.hidden
        generator = torch.Generator().manual_seed(config.seed)
        dtype = getattr(torch, config.dtype)

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            # Drawn in float64 whatever the precision, so that both precisions start at the same point.
            draw = torch.rand(*shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(((2 * draw - 1) / math.sqrt(fan_in)).to(dtype))

        d = config.embed_dim
        width = lookup({"embedding": d, "tables": d, "onehot": vocabulary, "scalar": 1}, "model", config.model)
        if config.model in ("embedding", "tables"):
            normal = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
            E = (normal * config.init_scale_E).to(dtype)
        if config.model == "embedding":
            self.E = nn.Parameter(E)
        fan_in = self.slots * width
        self.W = uniform(h, fan_in, fan_in=fan_in)
        with torch.no_grad():
            self.W.mul_(config.init_scale_W)
        if config.model == "tables":
            W_k = self.W.detach().double().view(h, self.slots, d)
            self.W = nn.Parameter((W_k @ E.double().T).to(dtype).flatten(1))
        self.b1 = uniform(h, fan_in=fan_in) if config.bias else None
        self.V = uniform(p, h, fan_in=h)
        self.b2 = uniform(p, fan_in=h) if config.bias else None
        if config.start == "folded":
            self._fold(MLP(dataclasses.replace(config, tokens=4, start="own")))
        if config.is_frozen(config.freeze, 0):
            getattr(self, config.freeze).requires_grad_(False)

    @torch.no_grad()
    def _fold(self, four: MLP) -> None:
        """Take the place of a network of four tokens, with what its two constant ones add in b1."""
        p, W_k = len(self.V), four.W.view(len(four.W), four.slots, -1)
        operands, constants = (0, 2), {1: p, 3: p + 1}
        self.E.copy_(four.E[:p])
        self.W.copy_(W_k[:, operands].flatten(1))
        added = [W_k[:, k].double() @ four.E[token].double() for k, token in constants.items()]
        assert self.b1 is not None
        assert four.b1 is not None
        self.b1.copy_(four.b1.double() + sum(added))
        self.V.copy_(four.V)
        assert self.b2 is not None
        assert four.b2 is not None
        self.b2.copy_(four.b2)

    def tables(self) -> Tensor:
        """T_k = E W_k^T, shape (slot, token, hidden): the first layer of every possible input token."""
        W = self.W.view(len(self.W), self.slots, -1)
        if self.kind == "embedding":
            tables: Tensor = torch.einsum("td,hkd->kth", self.E, W)
            return tables
        return W.permute(1, 2, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.kind == "scalar":
            pre = tokens.to(self.W.dtype) @ self.W.T
        else:
            tables = self.tables()
            pre = nn.functional.embedding(tokens[:, 0], tables[0])
            for k in range(1, self.slots):
                pre = pre + nn.functional.embedding(tokens[:, k], tables[k])
        if self.b1 is not None:
            pre = pre + self.b1
        return nn.functional.linear(self.activation(pre), self.V, self.b2)


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch of each member: which table rows its samples add up, and which samples come back to each row."""

    rows: Tensor
    """(member * sample * slot), rows of the flattened tables by the sample that takes them."""
    row_starts: Tensor
    """(member * sample), where those of each sample start."""
    samples: Tensor
    """(member * sample * slot), samples by the row that they take."""
    sample_starts: Tensor
    """(slot * member * token), where those of each row start."""
    labels: Tensor
    """(member, 1, sample)."""
    seen: NDArray[np.bool_]
    """(member, token), whether a token occurs."""


class Networks(networks.Networks):
    """Networks with logits = V phi(sum_k W_k E[x_k] + b1) + b2.

    tokens (pair, slot) and labels (pair) are those of all pairs, of which batches are made; with a first axis `member`,
    those of each.

    One-hot tokens, which tables are for, are those with E = 1, tokens as numbers those with E = (0, 1, 2, ...)^T. The
    first layer goes through the tables T_k = E W_k^T (theory.md, section 1). Sums over samples are sums over sorted
    rows, so that a GPU repeats them bit for bit.
    """

    def __init__(
        self,
        config: TrainConfig,
        parameters: Sequence[Mapping[str, NDArray[Any]]],
        tokens: NDArray[np.integer[Any]],
        labels: NDArray[np.integer[Any]],
        device: torch.device,
    ) -> None:
        super().__init__(BLOCKS["all"], parameters, device)
        self.vocabulary = config.num_tokens
        numbers = torch.arange(self.vocabulary, dtype=self.flat.dtype, device=device)
        inputs = numbers[:, None] if config.model == "scalar" else torch.diag(torch.ones_like(numbers))
        self._E = self.params["E"] if "E" in self.params else inputs.expand(self.members, -1, -1)
        self._W_k = self.params["W"].split(self._E.shape[2], dim=2)
        # A slot that always holds the same token, such as `op` and `=`, adds the same to every sample.
        column = {k: tokens[..., k].ravel() for k in range(len(self._W_k))}
        self._fixed = {k: int(of[0]) for k, of in column.items() if (of == of[0]).all()}
        self._varying = [k for k in range(len(self._W_k)) if k not in self._fixed]
        count = len(self._varying) * self.members * self.vocabulary
        # Of 16 bits or fewer, numbers are sorted by their digits, which is many times as fast.
        kind = np.min_scalar_type(count)
        first = np.arange(0, count, self.vocabulary).reshape(-1, self.members).T[:, None]
        self._rows = (tokens[..., self._varying] + first).astype(kind).reshape(-1, len(self._varying))
        self._labels = np.broadcast_to(labels, (self.members, labels.shape[-1])).astype(np.int64)
        self._first_row = np.arange(self.members)[:, None] * labels.shape[-1]
        self._activation = ACTIVATIONS[config.activation]
        self.by_hand = self._activation.by_hand is not None

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        rows = self._rows.take(pairs + self._first_row, axis=0).reshape(-1)
        slots, device = len(self._varying), self.flat.device
        counts = np.bincount(rows, minlength=slots * self.members * self.vocabulary)
        seen = np.logical_or.reduce(counts.reshape(slots, self.members, -1) > 0)
        for token in self._fixed.values():
            seen[:, token] = True
        return Batch(
            torch.from_numpy(rows.astype(np.int64)).to(device),
            _multiples(slots, len(rows), device),
            torch.from_numpy(rows.argsort(kind="stable") // slots).to(device),
            torch.from_numpy(counts.cumsum() - counts).to(device),
            torch.from_numpy(np.take_along_axis(self._labels, pairs, 1)[:, None]).to(device),
            seen,
        )

    def logits(self, batch: Batch) -> Tensor:
        return self._outputs(self._activation(self._inputs(batch)))

    def backward(self, batch: Batch) -> Tensor:
        pre = self._inputs(batch)
        phi = self._activation(pre)
        logits = self._outputs(phi)
        residual = _residual(logits, batch.labels)
        back = self._activation.slope(torch.bmm(residual.mT, self.params["V"]), pre, phi)
        by_row = _sums(back.view(-1, back.shape[2]), batch.samples, batch.sample_starts)
        gradients = self._first_layer(by_row.view(len(self._varying), self.members, self.vocabulary, -1))
        gradients["V"] = torch.bmm(residual, phi)
        gradients["b2"] = residual.sum(2)
        torch.cat([gradients[name].view(self.members, -1) for name in self.shapes], dim=1, out=self.grad)
        return logits

    def measures(self) -> networks.Parts:
        """Effective rank and nuclear norm of the tables."""
        sigma = spectrum(self._E, self.params["W"])
        return {"effective_rank": effective_rank(sigma), "nuclear_norm": sigma.sum(1)}

    def _inputs(self, batch: Batch) -> Tensor:
        """What the hidden layer takes in, (member, sample, hidden)."""
        E, W_k = self._E, self._W_k
        tables = E.new_empty(len(self._varying), self.members, self.vocabulary, W_k[0].shape[1])
        for i, k in enumerate(self._varying):
            torch.bmm(E, W_k[k].mT, out=tables[i])
        for k, token in self._fixed.items():
            tables[0] += torch.bmm(E[:, token : token + 1], W_k[k].mT)
        if "b1" in self.params:
            tables[0] += self.params["b1"][:, None]
        inputs = _sums(tables.view(-1, tables.shape[3]), batch.rows, batch.row_starts)
        return inputs.view(self.members, -1, tables.shape[3])

    def _outputs(self, phi: Tensor) -> Tensor:
        logits = torch.bmm(self.params["V"], phi.mT)
        # `baddbmm`, which first copies the bias to every sample, takes twice as long.
        return logits.add_(self.params["b2"][:, :, None]) if "b2" in self.params else logits

    def _first_layer(self, G: Tensor) -> networks.Parts:
        """Gradients of E, W and b1 from those of the tables, (slot, member, token, hidden)."""
        E, W_k = self._E, self._W_k
        total = G[0].sum(1)
        by_slot = dict(zip(self._varying, G, strict=True))
        dW = [
            torch.bmm(by_slot[k].mT, E) if k in by_slot else total[:, :, None] * E[:, self._fixed[k], None]
            for k in range(len(W_k))
        ]
        gradients = {"W": torch.cat(dW, dim=2), "b1": total}
        if "E" in self.params:
            dE = torch.bmm(G[0], W_k[self._varying[0]])
            for k, table in list(by_slot.items())[1:]:
                dE.baddbmm_(table, W_k[k])
            for k, token in self._fixed.items():
                dE[:, token] += torch.bmm(total[:, None], W_k[k])[:, 0]
            gradients["E"] = dE
        return gradients


def _residual(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy, (softmax - onehot) / samples; shapes as those of `logits`."""
    exps = (logits - logits.amax(1, keepdim=True)).exp_()
    right = exps.gather(1, labels)
    exps.scatter_(1, labels, 0.0)
    others = exps.sum(1, keepdim=True)
    scale = right.add_(others).mul_(logits.shape[2]).reciprocal_()
    # p_y - 1 is minus the sum of all others, which keeps its digits at any loss.
    return exps.mul_(scale).scatter_(1, labels, others.mul_(scale).neg_())


def _sums(table: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Sums of a table's rows, one from each start to the next."""
    sums: Tensor = torch.embedding_bag(table, rows, starts)[0]
    return sums


@functools.cache
def _multiples(step: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(0, end, step, device=device)


def initial(config: TrainConfig) -> dict[str, NDArray[Any]]:
    """The parameters that a run starts from, by name."""
    return {name: parameter.detach().numpy() for name, parameter in MLP(config).named_parameters()}
