"""Transformers of one shape, trained in step with each other, by automatic differentiation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import TrainConfig
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import gradients
from landscape.models import networks
from landscape.models.transformer.blocks import parameters as declared
from landscape.models.transformer.model import Transformer


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch of each member (cf. `networks.Batch`); tokens (member, sample, slot)."""

    tokens: Tensor
    labels: Tensor
    seen: NDArray[np.bool_]


class Networks(networks.Networks):
    """Transformers side by side; each goes through its network by itself, and so has the bits that it has alone."""

    def __init__(
        self,
        config: TrainConfig,
        parameters: Sequence[Mapping[str, NDArray[Any]]],
        tokens: NDArray[np.integer[Any]],
        labels: NDArray[np.integer[Any]],
        device: torch.device,
    ) -> None:
        super().__init__([field.name for field in declared(config)], parameters, device)
        self._model = Transformer(config).to(device)
        self._vocabulary = config.num_tokens
        pairs = labels.shape[-1]
        self._tokens = np.broadcast_to(tokens, (self.members, pairs, tokens.shape[-1]))
        self._labels = np.broadcast_to(labels, (self.members, pairs)).astype(np.int64)

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        tokens = np.take_along_axis(self._tokens, pairs[..., None], 1).astype(np.int64)
        seen = np.zeros((len(pairs), self._vocabulary), np.bool_)
        for row, batch_tokens in zip(seen, tokens, strict=True):
            row[batch_tokens] = True
        device = self.flat.device
        return Batch(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(np.take_along_axis(self._labels, pairs, 1)[:, None]).to(device),
            seen,
        )

    def logits(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return torch.stack([self._of(i, self._member(i), batch) for i in range(self.members)]).mT

    def backward(self, batch: Batch) -> Tensor:
        outputs = []
        for i in range(self.members):
            leaves = {name: p.detach().requires_grad_() for name, p in self._member(i).items()}
            logits = self._of(i, leaves, batch)
            slopes = gradients(cross_entropy(logits, batch.labels[i, 0]).mean(), leaves.values())
            torch.cat([slope.reshape(-1) for slope in slopes], out=self.grad[i])
            outputs.append(logits.detach())
        return torch.stack(outputs).mT

    def reader(self) -> Tensor:
        """The first layer's matrices that read the residual stream, which begins as E, one below the other."""
        return torch.cat([self.params[f"{kind}.0"] for kind in ("Q", "K", "V", "mlp_in")], dim=1)

    def _member(self, i: int) -> dict[str, Tensor]:
        return {name: part[i] for name, part in self.params.items()}

    def _of(self, i: int, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        logits: Tensor = torch.func.functional_call(self._model, dict(parameters), (batch.tokens[i],))
        return logits


def initial(config: TrainConfig) -> dict[str, NDArray[Any]]:
    """The parameters that a run starts from, by name."""
    theta = dict(Transformer(config).named_parameters())
    return {field.name: theta[field.name].detach().numpy() for field in declared(config)}
