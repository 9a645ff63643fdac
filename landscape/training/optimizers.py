"""The optimiser of many networks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig
from landscape.problems.networks import Networks


class Optimizer:
    """The rule of the configs on `networks.flat`, with rates and decay of each member's own.

    m and v are the rule's state; zeros for what is frozen.
    """

    def __init__(self, configs: Sequence[TrainConfig], networks: Networks, m: Tensor, v: Tensor) -> None:
        self._config, self._networks = configs[0], networks
        self.m, self.v = m.to(networks.flat), v.to(networks.flat)
        self._decay = torch.tensor([[c.weight_decay] for c in configs], dtype=torch.float64, device=m.device)
        self._rule = OPTIMIZERS[self._config.optimizer](self._config.momentum, self._config.betas)
        self._coupled = None if self._rule.decoupled else self._decay.to(networks.flat)

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
        self._rule.step(theta, gradient, self.m, self.v, self._rates, number)
