"""The optimiser of many networks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig
from landscape.models.embedding_mlp.networks import shrink, subgradient
from landscape.models.networks import Networks


class Optimizer:
    """The rule of the configs on `networks.flat`, with rates and decay of each member's own.

    m and v are the rule's state; zeros for what is frozen.

    Penalty nuclear replaces the decay of W by lambda |[T_1 ... T_s]|_*, which is what L2 on E and W is to the tables
    (F16). Where L2 is part of the gradient (SGD, Adam), so is the subgradient lambda U V^T. Adam's steps have a length
    of about lr however small the gradient is, and would outrun a proximal step of lr * lambda beside them; in the
    gradient the penalty decides their direction once the loss is small. Where decay is decoupled (AdamW), the proximal
    step is its counterpart: after each step all singular values are lowered by lr * lambda, down to 0.
    """

    def __init__(self, configs: Sequence[TrainConfig], networks: Networks, m: Tensor, v: Tensor) -> None:
        self._config, self._networks = configs[0], networks
        self.m, self.v = m.to(networks.flat), v.to(networks.flat)
        self._decay = torch.tensor([[c.weight_decay] for c in configs], dtype=torch.float64, device=m.device)
        self._rule = OPTIMIZERS[self._config.optimizer](self._config.momentum, self._config.betas)
        self._is_nuclear = self._config.penalty == "nuclear"
        if self._is_nuclear or self._config.weight_decay_V is not None:
            self._decay = self._decay.repeat(1, self.m.shape[1])
        if self._config.weight_decay_V is not None:
            networks.parts(self._decay)["V"].fill_(self._config.weight_decay_V)
        if self._is_nuclear:
            # One row a hidden unit and slot, as in `spectrum`.
            shape = (networks.members, -1, self._config.num_tokens)
            self._tables, self._of_tables = networks.params["W"].view(shape), networks.grads["W"].view(shape)
            self._lambda = torch.tensor([c.weight_decay for c in configs], dtype=torch.float64, device=m.device)
            networks.parts(self._decay)["W"].zero_()
        self._coupled = None if self._rule.decoupled else self._decay.to(networks.flat)

    def set_rates(self, rates: Sequence[dict[str, float]]) -> None:
        """The learning rate of every parameter, one mapping a member."""
        flat = torch.zeros_like(self.m, dtype=torch.float64)
        for name, part in self._networks.parts(flat).items():
            for member, values in zip(part, rates, strict=True):
                member.fill_(values[name])
        if self._is_nuclear:
            of_W = [values["W"] for values in rates]
            self._threshold = torch.tensor(of_W, dtype=torch.float64, device=self.m.device) * self._lambda
        self._rates, self._kept = flat.to(self.m), (1 - flat * self._decay).to(self.m)

    def step(self, number: int) -> None:
        """Step `number`, counted from 1, by `networks.grad`, which is overwritten."""
        theta, gradient, config = self._networks.flat, self._networks.grad, self._config
        if self._coupled is None:
            theta.mul_(self._kept)
        else:
            gradient.addcmul_(theta, self._coupled)
            if self._is_nuclear:
                self._of_tables.addcmul_(subgradient(self._tables), self._lambda[:, None, None].to(gradient))
        if config.is_frozen(config.freeze, number - 1):
            self._networks.grads[config.freeze].zero_()
        self._rule.step(theta, gradient, self.m, self.v, self._rates, number)
        if self._is_nuclear and self._rule.decoupled:
            self._tables.copy_(shrink(self._tables, self._threshold))
