"""What a module or loss reads beside the parameters that are given: the module's own ones, and random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import X, Y, net, operator, refused, table
from torch import Tensor, nn

from landscape import cross_entropy
from landscape.curvature.objective import Objective

REACH = "in forward reach it as an attribute of its module, .* loss=lambda model, batch: .*; L2 is weight_decay="


class Listed(nn.Module):
    """A layer whose weight is used again, by way of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        self.again = [self.layer.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() @ self.again[0]


def penalised(module: nn.Sequential, name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy with L2 of the module's own parameter."""
    own = module.get_parameter(name)
    return lambda z, y: cross_entropy(z, y) + own.square().sum()


@table(
    {
        "list": (
            lambda: operator(model=Listed(), x=torch.cat([X, X[:, :1]], 1)),
            "the loss reads 'layer.weight' of the module itself, a constant beside the parameter that is given",
            REACH,
        ),
        "loss": (lambda: operator(penalised(m := net(), "0.weight"), m), "the loss reads '0.weight'", REACH),
    }
)
def test_own_parameters(make: Callable[[], Any], words: str, hint: str) -> None:
    """The module's own parameters are not those of the point: their part of the derivatives would be missing."""
    refused(make, words, hint)


def test_own_parameters_that_are_constants() -> None:
    """A parameter that is not given is a constant, however the loss reaches it."""
    module = net()
    params = {"2.bias": module[2].bias}
    matrix = operator(penalised(module, "0.weight"), module, params=params).dense()
    assert torch.equal(matrix, operator(model=module, params=params).dense())


def test_own_parameters_that_are_given() -> None:
    """Which they are changes nothing: reached by the module they are the point, by another way they are refused."""
    module, listed = net().double(), Listed()
    Objective(module, X, Y).require_sound(dict(module.named_parameters()))
    refused(
        lambda: Objective(listed, torch.cat([X, X[:, :1]], 1), Y).require_sound(dict(listed.named_parameters())),
        "the loss reads 'layer.weight' of the module itself",
        REACH,
    )
    penalty = operator(lambda z, y: cross_entropy(z, y) + module[0].weight.square().sum(), module).block(["0.weight"])
    plain = operator(model=module).block(["0.weight"])
    torch.testing.assert_close(penalty.dense(), plain.dense() + 2 * torch.eye(15), check_dtype=False)


class Skipped(nn.Module):
    """A layer that is left out by chance, next to never."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.first, self.second, self.draw = nn.Linear(3, 3), nn.Linear(3, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        is_skipped = self.draw() < 1e-9 and self.training
        return self.second(x if is_skipped else x + self.first(x).tanh())


def again() -> float:
    """The same number each time."""
    torch.manual_seed(0)
    return torch.rand(()).item()


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), np.random.random, random.random])
def test_random_numbers_that_do_not_matter_yet(draw: Callable[[], float]) -> None:
    """In training mode they are refused whether or not two losses differ; in eval mode they may have no effect."""
    module = Skipped(draw)
    refused(
        lambda: operator(model=module, x=X, y=Y), "the model draws random numbers in training mode", r"model.eval\(\)"
    )
    operator(model=module.eval())


def test_fixed_random_numbers() -> None:
    """A seed in forward makes them part of the function."""
    operator(model=Skipped(again))
