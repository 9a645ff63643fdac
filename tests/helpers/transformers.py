"""Transformers of random options or parameters, and Hessians from run files alone, by formulas written again."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import h5py
import torch
from torch import Tensor

from landscape import models
from landscape.choices.optimizers import OPTIMIZERS
from landscape.choices.samplers import SAMPLERS
from landscape.choices.tasks import TASKS
from landscape.config import TrainConfig
from landscape.models.fields import parameters
from landscape.models.tasks import make_data
from landscape.models.transformer.model import Transformer
from landscape.models.transformer.problem import TransformerProblem

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "tanh": torch.tanh,
    "quadratic": torch.square,
}


def drawn(seed: int) -> TrainConfig:
    """A tiny Transformer that trains for twelve steps."""
    rng = random.Random(seed)
    heads, optimizer = rng.choice((1, 2, 3)), rng.choice(list(OPTIMIZERS))
    return TrainConfig(
        model="transformer",
        task=rng.choice([name for name, task in TASKS.items() if task.answer]),
        p=rng.choice((5, 7)),
        tokens=rng.choice((2, 3, 4)),
        layers=rng.choice((1, 2)),
        heads=heads,
        embed_dim=heads * rng.choice({1: (3, 4), 2: (2, 3), 3: (1, 2)}[heads]),
        hidden=rng.choice((3, 5)),
        norm=rng.choice(("none", "pre", "post")),
        positions=rng.choice(("learned", "sinusoidal")),
        tied=rng.random() < 0.5,
        activation=rng.choice(list(ACTIVATIONS)),
        bias=rng.random() < 0.5,
        freeze=rng.choice(("none", "none", "E")),
        init_scale_E=rng.choice((1.0, 0.5)),
        optimizer=optimizer,
        momentum=rng.choice((0.0, 0.9)) if optimizer == "sgd" else 0.0,
        betas=rng.choice(((0.9, 0.98), (0.8, 0.999))),
        lr=rng.choice((0.003, 0.03)),
        lr_ratio=rng.choice((1.0, 0.25, 4.0)),
        warmup=rng.choice((0, 8)),
        weight_decay=rng.choice((0.0, 0.1)),
        batch_size=rng.choice(("full", 4, 9)),
        sampler=rng.choice(list(SAMPLERS)),
        sampler_every=3,
        train_fraction=0.6,
        dtype=rng.choice(("float32", "float64")),
        seed=rng.randrange(100),
        steps=12,
        stop_test_accuracy=None,
        checkpoint_every=6,
        checkpoint_log=0,
        metrics_every=3,
        device="cpu",
    )


def at_random(config: TrainConfig, seed: int = 7, spread: float = 0.3) -> dict[str, Tensor]:
    """Parameters of which none, norms and biases among them, is what it starts from."""
    generator = torch.Generator().manual_seed(seed)
    named = dict(Transformer(config).double().named_parameters())
    return {
        name: named[name].detach() + spread * torch.randn(named[name].shape, generator=generator, dtype=torch.float64)
        for name in (field.name for field in parameters(config))
    }


def problem_of(config: TrainConfig) -> TransformerProblem:
    data = vars(make_data(config))
    problem = models.of_config(config, data, "cpu")
    assert isinstance(problem, TransformerProblem)
    return problem


def dense_hessian(path: Path, step: int, only: Collection[str] = ()) -> tuple[Tensor, dict[str, slice]]:
    """The Hessian of the mean cross-entropy over the training pairs at a checkpoint, and each parameter's rows.

    only: kinds of parameters, all by default.
    """
    with h5py.File(path) as file:
        config, stored = json.loads(file.attrs["config"]), file["checkpoints"]
        row = list(stored["step"][()]).index(step)
        names = str(stored["crc32"].attrs["fields"]).split()
        params = {n: torch.from_numpy(stored[n][row]).double() for n in names}
        is_train = file["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(file[f"data/{n}"][()][is_train]).long() for n in ("tokens", "labels"))
    moved = {n: p for n, p in params.items() if not only or n.partition(".")[0] in only}
    ends = [0, *itertools.accumulate(p.numel() for p in moved.values())]
    rows = {n: slice(a, b) for n, (a, b) in zip(moved, itertools.pairwise(ends), strict=True)}
    network = logits if config["model"] == "transformer" else mlp_logits

    def loss(flat: Tensor) -> Tensor:
        z = network(config, params | {n: flat[rows[n]].view(p.shape) for n, p in moved.items()}, tokens)
        return (z.logsumexp(1) - z[torch.arange(len(z)), labels]).mean()

    flat = torch.cat([p.flatten() for p in moved.values()])
    matrix: Tensor = torch.func.jacrev(torch.func.grad(loss), chunk_size=64)(flat)
    return matrix, rows


def mlp_logits(config: dict[str, Any], params: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """An embedding MLP, with W slot by slot."""
    parts = params["W"].chunk(tokens.shape[1], 1)
    drive = torch.stack([params["E"][t] @ W.T for t, W in zip(tokens.T, parts, strict=True)]).sum(0)
    return ACTIVATIONS[config["activation"]](drive + params["b1"]) @ params["V"].T + params["b2"]


def logits(config: dict[str, Any], params: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Head by head and token by token."""
    d, heads, slots = config["embed_dim"], config["heads"], tokens.shape[1]
    activation = ACTIVATIONS[config["activation"]]

    def norm(x: Tensor, scale: str, shift: str) -> Tensor:
        spread = x.var(-1, correction=0, keepdim=True) + 1e-5
        return (x - x.mean(-1, keepdim=True)) * spread.rsqrt() * params[scale] + params[shift]

    def attend(x: Tensor, layer: int) -> Tensor:
        Q, K, V, out = (params[f"{n}.{layer}"] for n in "QKVO")
        read = []
        for part in torch.arange(d).chunk(heads):
            q, k, v = x @ Q[part].T, x @ K[part].T, x @ V[part].T
            mixed = []
            for t in range(slots):
                weights = ((q[:, t : t + 1] * k[:, : t + 1]).sum(2) / math.sqrt(d // heads)).softmax(1)
                mixed.append((weights[:, :, None] * v[:, : t + 1]).sum(1))
            read.append(torch.stack(mixed, 1))
        return torch.cat(read, 2) @ out.T

    def mlp(x: Tensor, layer: int) -> Tensor:
        hidden = activation(x @ params[f"mlp_in.{layer}"].T + params.get(f"b_in.{layer}", 0.0))
        return hidden @ params[f"mlp_out.{layer}"].T + params.get(f"b_out.{layer}", 0.0)

    waves = torch.zeros(slots, d, dtype=torch.float64)
    for t, i in itertools.product(range(slots), range(d)):
        waves[t, i] = (math.cos if i % 2 else math.sin)(t / 10_000 ** (i // 2 * 2 / d))
    x = params["E"][tokens] + params.get("P", waves)
    for layer, (which, part) in itertools.product(range(config["layers"]), ((1, attend), (2, mlp))):
        names = f"norm_{which}.{layer}", f"shift_{which}.{layer}"
        x = x + part(norm(x, *names) if config["norm"] == "pre" else x, layer)
        x = norm(x, *names) if config["norm"] == "post" else x
    last = norm(x, "norm", "shift")[:, -1] if config["norm"] == "pre" else x[:, -1]
    return last @ (params["E"][: config["p"]] if config["tied"] else params["U"]).T
