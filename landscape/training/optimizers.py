"""SGD, Adam and AdamW for many networks at once, and the policies that set lr_E / lr_W."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from landscape.config import TrainConfig
from landscape.errors import lookup
from landscape.problems.embedding_mlp.networks import Networks

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class Optimizer:
    """torch.optim's SGD, Adam or AdamW on `networks.flat`, with rates and decay of each member's own.

    m and v are the first and second moments, or the momentum and zeros; zeros for what is frozen.
    """

    def __init__(self, configs: Sequence[TrainConfig], networks: Networks, m: Tensor, v: Tensor) -> None:
        self._config, self._networks = configs[0], networks
        self.m, self.v = m.to(networks.flat), v.to(networks.flat)
        self._scratch = torch.empty_like(self.m)
        self._decay = torch.tensor([[c.weight_decay] for c in configs], dtype=torch.float64, device=m.device)
        self._update, decoupled = lookup(_RULES, "optimizer", configs[0].optimizer)
        self._coupled = None if decoupled else self._decay.to(networks.flat)

    def set_rates(self, rates: Sequence[dict[str, float]]) -> None:
        """The learning rate of every parameter, one mapping a member."""
        flat = torch.zeros_like(self.m, dtype=torch.float64)
        for name, part in self._networks.parts(flat).items():
            for member, values in zip(part, rates, strict=True):
                member.fill_(values[name])
        self._rates, self._kept = flat.to(self.m), (1 - flat * self._decay).to(self.m)

    def step(self, number: int) -> None:
        """Step `number`, counted from 1, by `networks.grad`, which is overwritten."""
        theta, gradient, config = self._networks.flat, self._networks.grad, self._config
        if self._coupled is None:
            theta.mul_(self._kept)
        else:
            gradient.addcmul_(theta, self._coupled)
        if config.freeze != "none":
            self._networks.grads[config.freeze].zero_()
        self._update(self, theta, gradient, number)

    def _sgd(self, theta: Tensor, gradient: Tensor, number: int) -> None:
        if self._config.momentum:
            gradient = self.m.mul_(self._config.momentum).add_(gradient)
        theta.addcmul_(gradient, self._rates, value=-1)

    def _adam(self, theta: Tensor, gradient: Tensor, number: int) -> None:
        self.m.lerp_(gradient, 1 - _BETA_1)
        self.v.mul_(_BETA_2).addcmul_(gradient, gradient, value=1 - _BETA_2)
        # Bias corrections of the moments, as scalars.
        first, second = 1 - _BETA_1**number, math.sqrt(1 - _BETA_2**number)
        torch.sqrt(self.v, out=self._scratch).add_(_EPSILON * second)
        torch.div(self.m, self._scratch, out=self._scratch)
        theta.addcmul_(self._scratch, self._rates, value=-second / first)


_RULES = {
    "sgd": (Optimizer._sgd, False),
    "adam": (Optimizer._adam, False),
    "adamw": (Optimizer._adam, True),
}
"""The update rule, and whether weight decay is decoupled from the gradient."""
