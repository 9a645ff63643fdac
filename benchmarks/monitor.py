"""Sharpness of a small GPT over its training, beside its limit of stability, and what measuring it costs.

    python -m benchmarks.monitor docs/static/monitor.svg

Full-batch gradient descent and full-batch Adam, each without `landscape.Monitor`, with it at a share of 10 %, and with
a measurement every 50 steps for the figure: the sharpness rises to about 2/lr, the preconditioned one to 38/lr
(arXiv 2103.00065, 2207.14484).
"""

from __future__ import annotations

import pydoc_data.topics
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import landscape

CONTEXT, WIDTH, HEADS, LAYERS, SEQUENCES = 32, 16, 2, 2, 64
RUNS = {"gradient descent": ("sharpness", 2.0, 0.1, 2000), "Adam": ("preconditioned_sharpness", 38.0, 1e-3, 2000)}
"""What is measured, the limit times the learning rate, the learning rate, and steps."""


class Layer(nn.Module):
    """Causal attention and an MLP, before each of them a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x (sample, place, width)."""
        parts = self.qkv(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A language model; the embedding is the head."""

    def __init__(
        self, vocabulary: int, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS, context: int = CONTEXT
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers, self.norm = nn.Sequential(*(Layer(width, heads) for _ in range(layers))), nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (sample, place, token) of tokens x (sample, place)."""
        h = self.token(x) + self.place.weight[: x.shape[1]]
        logits: Tensor = self.norm(self.layers(h)) @ self.token.weight.T
        return logits


def text() -> Tensor:
    """Some of Python's manual as numbers of characters (sample, place)."""
    words = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    words = words[: SEQUENCES * (CONTEXT + 1)]
    numbers = {letter: i for i, letter in enumerate(sorted(set(words)))}
    return torch.tensor([numbers[letter] for letter in words]).reshape(SEQUENCES, CONTEXT + 1)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy of the next character."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def trained(kind: str, share: float) -> tuple[float, landscape.Monitor]:
    """Seconds of a training, and its monitor; share 0: none."""
    quantity, _, lr, steps = RUNS[kind]
    data = text()
    torch.manual_seed(0)
    model = GPT(int(data.max()) + 1)
    kinds: dict[str, Any] = {"gradient descent": torch.optim.SGD, "Adam": torch.optim.Adam}
    optimizer = kinds[kind](model.parameters(), lr=lr)
    objective = landscape.Objective(model, [data], loss_of, dtype=torch.float32)
    monitor = landscape.Monitor(objective, optimizer, every=50, quantities=[quantity], share=share or 1.0)
    started = time.monotonic()
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
        if share:
            monitor(step + 1)
    return time.monotonic() - started, monitor


def main(out: Path) -> None:
    """Train, print what it cost, and draw."""
    frames = []
    for kind, (quantity, limit, lr, steps) in RUNS.items():
        alone, _ = trained(kind, 0)
        seconds, monitor = trained(kind, 0.1)
        print(
            f"{kind}: {steps} steps in {alone:.1f} s, {seconds:.1f} s with {monitor.count} measurements "
            f"({seconds / alone - 1:.0%} more; by its own clock {monitor.overhead:.0%})"
        )
        data = trained(kind, 1e9)[1].to_dataframe()
        frames.append(pd.DataFrame({"step": data["step"], "share": data[quantity] * lr / limit, "optimiser": kind}))
    sns.set_theme(style="whitegrid", palette="colorblind")
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    sns.lineplot(pd.concat(frames), x="step", y="share", hue="optimiser", ax=ax, errorbar=None)
    ax.axhline(1, color="0.3", linestyle=":", linewidth=1.2)
    ax.set(
        xlabel="step", ylabel="sharpness / limit of stability", title="The sharpness of a small GPT climbs to its limit"
    )
    figure.savefig(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
