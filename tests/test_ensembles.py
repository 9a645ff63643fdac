"""The hand-derived step against autograd and torch.optim, and runs side by side against each run alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from torch import nn

from landscape.config import TrainConfig
from landscape.training.networks import Networks, initial
from landscape.training.optimizers import Optimizer
from landscape.training.tasks import make_data
from landscape.verify import plain_model

CPU = torch.device("cpu")
MOST_SEEDS = [(0, 1.0), (5, 0.5), (6, 3.0)]
"""Seeds and factors on lr, weight decay and lr_ratio of the members of the small ensembles."""


def variant(**changes: Any) -> TrainConfig:
    return dataclasses.replace(TINY, **changes)


def ensemble_of(config: TrainConfig) -> tuple[list[TrainConfig], Networks]:
    """Three members that differ in seed, learning rate and decay."""
    configs = [
        dataclasses.replace(config, seed=seed, lr=config.lr * factor, weight_decay=config.weight_decay * factor)
        for seed, factor in MOST_SEEDS
    ]
    return configs, Networks(config, [initial(c) for c in configs], make_data(config), CPU)


def some_pairs(config: TrainConfig, rng: np.random.Generator, size: int = 12) -> np.ndarray[Any, Any]:
    return rng.integers(0, config.p**2 - (config.p if config.task == "div" else 0), (len(MOST_SEEDS), size))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "quadratic"])
@pytest.mark.parametrize(
    ("model", "tokens"), [("embedding", 2), ("embedding", 4), ("onehot", 2), ("onehot", 4), ("scalar", 2)]
)
def test_gradients_are_autograds(model: Any, tokens: Any, activation: Any, bias: bool) -> None:
    """Logits and gradients of every member equal those of Embedding -> Flatten -> Linear -> activation -> Linear."""
    config = variant(model=model, tokens=tokens, activation=activation, bias=bias, dtype="float64", task="div")
    configs, networks = ensemble_of(config)
    data, pairs = make_data(config), some_pairs(config, np.random.default_rng(0))
    batch = networks.batch(pairs)
    logits = networks.logits(batch)
    networks.backward(batch)
    for i, member in enumerate(configs):
        plain, named = plain_model(member, initial(member), CPU)
        x, y = (torch.from_numpy(array[pairs[i]]).long() for array in (data.tokens, data.labels))
        torch.testing.assert_close(logits[i].T, plain(x), rtol=1e-11, atol=1e-12)
        nn.functional.cross_entropy(plain(x), y).backward()
        assert set(named) == set(networks.shapes)
        for name, parameter in named.items():
            assert parameter.grad is not None
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(networks.grads[name][i], parameter.grad, rtol=1e-11, atol=1e-12 * scale)
        assert set(np.flatnonzero(batch.seen[i])) == set(data.tokens[pairs[i]].ravel())


def test_a_small_loss_keeps_its_gradient() -> None:
    """Where every p_y rounds to 1, the gradient in float32 is still that of float64."""
    found = []
    for dtype in ("float32", "float64"):
        _, networks = ensemble_of(variant(dtype=dtype))
        batch = networks.batch(some_pairs(TINY, np.random.default_rng(1), 1))
        networks.params["b2"].scatter_(1, batch.labels[:, 0], 40.0)
        networks.backward(batch)
        found.append(networks.grads["V"].double())
    assert 0 < float(found[1].abs().max()) < 1e-15
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6 * float(found[1].abs().max()))


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.02},
        {"optimizer": "adam", "weight_decay": 0.02},
        {"optimizer": "adam", "weight_decay": 0.0},
        {"optimizer": "adamw", "weight_decay": 0.5},
        {"optimizer": "adam", "weight_decay": 0.02, "freeze": "E"},
        {"optimizer": "adamw", "weight_decay": 0.5, "freeze": "W"},
        {"optimizer": "sgd", "momentum": 0.5, "freeze": "W"},
        {"optimizer": "adam", "model": "onehot"},
    ],
    ids=str,
)
def test_two_hundred_steps_equal_torch_optim(changes: dict[str, Any]) -> None:
    """Parameters and moments of every member, each with rates and decay of its own, after 200 mini-batches."""
    config = variant(dtype="float64", **changes)
    configs, networks = ensemble_of(config)
    zeros = torch.zeros_like(networks.flat)
    mine = Optimizer(configs, networks, zeros, zeros.clone())
    ratios = [factor for _, factor in MOST_SEEDS]

    def rate(c: TrainConfig, ratio: float, name: str) -> float:
        return 0.0 if name == c.freeze else c.lr * (ratio if name == "E" else 1.0)

    mine.set_rates([{n: rate(c, r, n) for n in networks.shapes} for c, r in zip(configs, ratios, strict=True)])
    plain = [plain_model(c, initial(c), CPU) for c in configs]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    extra = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    theirs = [
        kind(
            [{"params": [p], "lr": rate(c, r, n)} for n, p in named.items() if n != c.freeze],
            lr=c.lr,
            weight_decay=c.weight_decay,
            **extra,
        )
        for c, r, (_, named) in zip(configs, ratios, plain, strict=True)
    ]
    data, rng = make_data(config), np.random.default_rng(2)
    for number in range(1, 201):
        pairs = some_pairs(config, rng)
        networks.backward(networks.batch(pairs))
        mine.step(number)
        for (model, _), optimizer, rows in zip(plain, theirs, pairs, strict=True):
            optimizer.zero_grad()
            x, y = (torch.from_numpy(array[rows]).long() for array in (data.tokens, data.labels))
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    keys = {"m": ("exp_avg", "momentum_buffer"), "v": ("exp_avg_sq",)}
    for i, ((_, named), optimizer) in enumerate(zip(plain, theirs, strict=True)):
        for name, parameter in named.items():
            torch.testing.assert_close(networks.params[name][i], parameter.detach(), rtol=1e-8, atol=1e-9)
            for moment in ("m", "v"):
                state = optimizer.state.get(parameter, {})
                held = [state[k] for k in keys[moment] if state.get(k) is not None]
                expected = held[0] if held else torch.zeros_like(parameter)
                found = networks.parts(getattr(mine, moment))[name][i]
                torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-10)
