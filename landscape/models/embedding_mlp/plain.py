"""The network as its users write it, beside which what is derived by hand is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig


def plain_model(
    train: TrainConfig, parameters: Mapping[str, NDArray[Any]], device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network as its users write it, in float64: input layer, flatten, Linear, activation, Linear."""

    class Input(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            if train.model == "scalar":
                return tokens.double()
            return nn.functional.one_hot(tokens, train.num_tokens).double()

    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ACTIVATIONS[train.activation](x)

    tensors = {n: torch.from_numpy(a).double() for n, a in parameters.items()}
    named: dict[str, Tensor] = {}
    first: nn.Module = Input()
    if train.model == "embedding":
        first = nn.Embedding(train.num_tokens, train.embed_dim, dtype=torch.float64)
        named["E"] = first.weight
    hidden, inputs = tensors["W"].shape
    layers = [
        nn.Linear(inputs, hidden, bias=train.bias, dtype=torch.float64),
        nn.Linear(hidden, len(tensors["V"]), bias=train.bias, dtype=torch.float64),
    ]
    for layer, weight, bias in zip(layers, ("W", "V"), ("b1", "b2"), strict=True):
        named[weight] = layer.weight
        if train.bias:
            named[bias] = layer.bias
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(tensors[name])
    return nn.Sequential(first, nn.Flatten(), layers[0], Activation(), layers[1]).to(device), named


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """z_t - z_y + log(1 + sum of exp(z_c - z_t)), t the likeliest class: log_softmax has no digits left at low loss."""
    labels, top = labels[:, None], logits.argmax(1, keepdim=True)
    others = (logits - logits.gather(1, top)).scatter(1, top, -torch.inf)
    missed = others.gather(1, labels).masked_fill(labels == top, 0.0)
    return (others.exp().sum(1).log1p() - missed[:, 0]).mean()
