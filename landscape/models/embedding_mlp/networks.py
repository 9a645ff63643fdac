"""Networks of one shape side by side: their outputs and gradients by hand-derived formulas, all members at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.models import networks
from landscape.models.embedding_mlp.blocks import BLOCKS
from landscape.models.embedding_mlp.model import MLP
from landscape.models.embedding_mlp.tables import effective_rank, spectrum


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
        taken = np.bincount(rows, minlength=slots * self.members * self.vocabulary)
        seen = np.logical_or.reduce(taken.reshape(slots, self.members, -1) > 0)
        for token in self._fixed.values():
            seen[:, token] = True
        return Batch(
            torch.from_numpy(rows.astype(np.int64)).to(device),
            _multiples(slots, len(rows), device),
            torch.from_numpy(rows.argsort(kind="stable") // slots).to(device),
            torch.from_numpy(taken.cumsum() - taken).to(device),
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
        found = self._first_layer(by_row.view(len(self._varying), self.members, self.vocabulary, -1))
        found["V"] = torch.bmm(residual, phi)
        found["b2"] = residual.sum(2)
        torch.cat([found[name].view(self.members, -1) for name in self.shapes], dim=1, out=self.grad)
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
        found = {"W": torch.cat(dW, dim=2), "b1": total}
        if "E" in self.params:
            dE = torch.bmm(G[0], W_k[self._varying[0]])
            for k, table in list(by_slot.items())[1:]:
                dE.baddbmm_(table, W_k[k])
            for k, token in self._fixed.items():
                dE[:, token] += torch.bmm(total[:, None], W_k[k])[:, 0]
            found["E"] = dE
        return found


def _residual(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean cross-entropy, (softmax - onehot) / samples; shapes as those of `logits`."""
    found = (logits - logits.amax(1, keepdim=True)).exp_()
    right = found.gather(1, labels)
    found.scatter_(1, labels, 0.0)
    others = found.sum(1, keepdim=True)
    scale = right.add_(others).mul_(logits.shape[2]).reciprocal_()
    # p_y - 1 is minus the sum of all others, which keeps its digits at any loss.
    return found.mul_(scale).scatter_(1, labels, others.mul_(scale).neg_())


def _sums(table: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Sums of a table's rows, one from each start to the next."""
    found: Tensor = torch.embedding_bag(table, rows, starts)[0]
    return found


@functools.cache
def _multiples(step: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(0, end, step, device=device)


def initial(config: TrainConfig) -> dict[str, NDArray[Any]]:
    """The parameters that a run starts from, by name."""
    return {name: parameter.detach().numpy() for name, parameter in MLP(config).named_parameters()}
