"""The learning rate of E from its edge of stability (`--lr-ratio auto`)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from landscape import models
from landscape.choices.optimizers import EPSILON, OPTIMIZERS
from landscape.config import TrainConfig
from landscape.curvature.krylov import RandomRun
from landscape.curvature.operators import LinearOperator
from landscape.curvature.preconditioned import Preconditioned
from landscape.curvature.vectors import seeded
from landscape.models.problem import hessian

SHARE = 0.5
"""Share of the stable limit: of a quadratic, gradient descent at half its limit is the step 1 / lambda_max."""
HVPS = 8
"""Hessian-vector products of one measurement."""
LEARNT = 0.1
"""Share of the initial training loss by which it has fallen before a ratio can undo that; less may be noise."""
LOST = 0.5
"""Share of the way from the least training loss back to the initial one that no ratio may undo."""


@dataclasses.dataclass
class Climb:
    """What a ratio under `--lr-ratio auto` remembers from one measurement to the next."""

    can_rise: bool = True
    initial_loss: float = math.nan
    least_loss: float = math.nan
    ratio_of_least: float = 1.0

    def next(self, ratio: float, loss: float, bound: float) -> float:
        """The ratio from now on, of the one so far, the training loss that it has led to, and the bound of the edge.

        It at most doubles, as the edge is that of a quadratic and says nothing of large steps. Once the edge has held
        it back, it never rises again: too large a step throws E into flat regions, whose edge is further out still.
        Where the noise of small batches hides the edge, the loss tells: if it is half-way back to where it began, the
        ratio goes back to that of the least loss, and does not rise again either.
        """
        if math.isnan(self.initial_loss):
            self.initial_loss = self.least_loss = loss
            return ratio
        if loss < self.least_loss:
            self.least_loss, self.ratio_of_least = loss, ratio
        fallen = self.initial_loss - self.least_loss
        is_lost = fallen > LEARNT * self.initial_loss and loss - self.least_loss > LOST * fallen
        if is_lost and ratio > self.ratio_of_least:
            ratio, self.can_rise = self.ratio_of_least, False
        if not bound < math.inf:
            return ratio
        reach = 2 * ratio if self.can_rise else ratio
        self.can_rise = self.can_rise and bound >= reach
        return min(bound, reach)


def edge_ratio(config: TrainConfig, data: Any, theta: dict[str, Tensor], v: Tensor, step: int, drawn: Tensor) -> float:
    """lr_E / lr_W at which E takes `SHARE` of the steps that are stable for it; infinite where it has no such limit.

    data: tokens, labels, split by name; theta: parameters in float64; v: second moments of E after `step` steps;
    drawn (row of E,): which rows a batch has held. The others have no second moments of a loss yet, only of L2, or 0.
    Decoupled decay multiplies E by 1 - c lr weight_decay, which grows from 2 on; c stays within `SHARE` of that, too.
    """
    rule = OPTIMIZERS[config.optimizer]
    problem = models.of_config(config, data, theta["E"].device.type)
    H_E = hessian(problem, theta, 0.0 if rule.decoupled else config.weight_decay).block(["E"])
    D = (v / (1 - config.betas[1] ** step)).sqrt() + EPSILON if rule.second_moments else torch.ones_like(theta["E"])
    D[~drawn] = torch.inf
    limit = rule(config.momentum, config.betas).edge_of_stability()
    decay = config.weight_decay if rule.decoupled else 0.0
    slowest = max(largest(Preconditioned(H_E, {"E": D}), config.seed) / limit, decay / 2)
    return SHARE / (config.lr * slowest) if slowest > 0 and config.lr > 0 else math.inf


def largest(op: LinearOperator, seed: int) -> float:
    """The largest Ritz value after `HVPS` products from a random vector: lambda_max from below."""
    run = RandomRun(op, None, seeded(seed), HVPS)
    while not run.exhausted and run.num_products < HVPS:
        run.step()
    run.project()
    return float(run.theta[-1])
