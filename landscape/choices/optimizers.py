"""Optimisers: how a gradient moves the parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from landscape.choices.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8
"""torch.optim.Adam's default, which every run uses."""


class Optimizer(ABC):
    """One step of all parameters; m and v are its state, zeros at first and stored whole in checkpoints to resume."""

    decoupled = False
    """Whether weight decay shrinks the parameters directly; otherwise it is added to the gradient (L2)."""
    second_moments = False
    """Whether v is the mean of the squared gradient as in Adam; it is then stored beside each checkpoint."""

    def __init__(self, momentum: float, betas: Sequence[float] = (0.9, 0.999)) -> None:
        self.momentum = momentum
        self.beta_1, self.beta_2 = betas

    @abstractmethod
    def step(self, theta: Tensor, gradient: Tensor, m: Tensor, v: Tensor, rates: Tensor, number: int) -> None:
        """Step `number`, counted from 1: change theta, m and v in place; `gradient` may be overwritten.

        All tensors are (member, parameter); rates are the learning rates.
        """

    def edge_of_stability(self) -> float:
        """Learning rate times largest eigenvalue up to which steps on a quadratic are stable; NaN if not known.

        Of an optimiser with second moments, the eigenvalue of the Hessian that they precondition.
        """
        return math.nan


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer")


def optimizer(kind: type[Optimizer]) -> type[Optimizer]:
    """Register a class as an optimiser of its name in lower case."""
    OPTIMIZERS.add(kind.__name__.lower(), kind, kind.__doc__)
    return kind


@optimizer
class SGD(Optimizer):
    """gradient descent with momentum, coupled weight decay (L2)"""

    def step(self, theta: Tensor, gradient: Tensor, m: Tensor, v: Tensor, rates: Tensor, number: int) -> None:
        if self.momentum:
            gradient = m.mul_(self.momentum).add_(gradient)
        theta.addcmul_(gradient, rates, value=-1)

    def edge_of_stability(self) -> float:
        """2 (1 + momentum) for heavy-ball steps (Cohen et al., arXiv 2103.00065)."""
        return 2 * (1 + self.momentum)


@optimizer
class Adam(Optimizer):
    """adaptive moments, coupled weight decay (L2)"""

    second_moments = True

    def step(self, theta: Tensor, gradient: Tensor, m: Tensor, v: Tensor, rates: Tensor, number: int) -> None:
        import torch

        m.lerp_(gradient, 1 - self.beta_1)
        v.mul_(self.beta_2).addcmul_(gradient, gradient, value=1 - self.beta_2)
        # Bias corrections of the moments, as scalars.
        first, second = 1 - self.beta_1**number, math.sqrt(1 - self.beta_2**number)
        update = torch.sqrt(v, out=gradient).add_(EPSILON * second)
        torch.div(m, update, out=update)
        theta.addcmul_(update, rates, value=-second / first)

    def edge_of_stability(self) -> float:
        """(2 + 2 beta_1) / (1 - beta_1), 38 for beta_1 = 0.9 (arXiv 2207.14484)."""
        return (2 + 2 * self.beta_1) / (1 - self.beta_1)


@optimizer
class AdamW(Adam):
    """adam with decoupled weight decay"""

    decoupled = True


def coupled_decay(config: Mapping[str, Any]) -> float:
    """lambda of the lambda/2 |theta|^2 that a run of these options minimised beside its loss; NaN for one without."""
    kind = OPTIMIZERS.get(config.get("optimizer", ""))
    is_another = config.get("penalty") == "nuclear" or config.get("weight_decay_V") is not None
    if kind is None or kind.decoupled or is_another:
        return math.nan
    return float(config["weight_decay"]) or math.nan
