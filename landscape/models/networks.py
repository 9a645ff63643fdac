"""What the training loop asks of the networks that it trains side by side."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Parts = dict[str, Tensor]


class Batch(Protocol):
    """One batch of each member: labels (member, 1, sample), and seen (member, token), whether a token occurs."""

    @property
    def labels(self) -> Tensor: ...
    @property
    def seen(self) -> NDArray[np.bool_]: ...


class Networks(ABC):
    """Members of one shape, with parameters of their own, and the pairs in common or of their own.

    `flat` (member, parameter) holds all parameters and `grad` what `backward` found; `params` and `grads` are their
    parts by name, (member, ...). Logits have the samples last, (member, class, sample), which is what BLAS and sums
    over classes like best.
    """

    by_hand = False
    """Whether no method differentiates automatically."""

    def __init__(
        self, names: Sequence[str], parameters: Sequence[Mapping[str, NDArray[Any]]], device: torch.device
    ) -> None:
        self.members = len(parameters)
        self.shapes = {name: parameters[0][name].shape for name in names if name in parameters[0]}
        self.flat = self.stack(parameters).to(device)
        self.grad = torch.zeros_like(self.flat)
        self.params, self.grads = self.parts(self.flat), self.parts(self.grad)

    @abstractmethod
    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        """The batch of pairs (member, sample) of the table."""

    @abstractmethod
    def logits(self, batch: Any) -> Tensor:
        """Logits (member, class, sample)."""

    @abstractmethod
    def backward(self, batch: Any) -> Tensor:
        """Put the gradient of each member's mean cross-entropy into `grad`; the logits (member, class, sample)."""

    def reader(self) -> Tensor:
        """The matrix that reads E in Proposition 4.1, (member, row, column)."""
        return self.params["W"]

    def measures(self) -> Parts:
        """What only this kind of network has in a row of /metrics, (member) by name."""
        return {}

    def parts(self, flat: Tensor) -> Parts:
        """Views of a tensor like `flat`, (member, ...) by name."""
        pieces = flat.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return {n: x.view(-1, *shape) for (n, shape), x in zip(self.shapes.items(), pieces, strict=True)}

    def stack(self, parameters: Sequence[Mapping[str, NDArray[Any]]], prefix: str = "") -> Tensor:
        """Arrays by name, one mapping a member, as one tensor like `flat`."""
        return torch.from_numpy(
            np.stack([np.concatenate([p[prefix + n].reshape(-1) for n in self.shapes]) for p in parameters])
        )


def scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's mean cross-entropy and its share of right answers, (member); a tie is no right answer.

    logits (member, class, sample), labels (member, 1, sample). The loss is softplus(logsumexp of the others - right)
    as in `cross_entropy`, at its precision, without a transposed copy of the logits.
    """
    right = logits.gather(1, labels)
    others = logits.scatter(1, labels, -math.inf)
    top = others.amax(1, keepdim=True)
    # A class at -inf is one that nothing else is larger than.
    margin = others.sub_(top).exp_().sum(1, keepdim=True).log_().add_(top).sub_(right)
    losses = margin.clamp(min=0) + margin.abs().neg_().exp_().log1p_()
    return losses.double().mean((1, 2)), (right > top).double().mean((1, 2))
