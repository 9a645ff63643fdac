"""The Transformer from torch's own functions, beside which ours is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.models.transformer.model import sinusoids


class _Plain(nn.Module):
    """torch's multi-head attention over every token, its LayerNorm and Linear."""

    def __init__(self, config: TrainConfig, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        # Names of a module's parameters have no dots.
        self.theta = nn.ParameterDict({name.replace(".", "_"): tensor for name, tensor in parameters.items()})

    def get(self, name: str, layer: int | None = None) -> Tensor | None:
        key = name if layer is None else f"{name}_{layer}"
        found: Tensor | None = self.theta.get(key)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        config, theta = self.config, self.theta
        slots = tokens.shape[1]
        fixed = sinusoids(slots, config.embed_dim).to(tokens.device)
        x = theta["E"][tokens] + theta.get("P", fixed)
        for layer in range(config.layers):
            x = self.normed("post", x + self.attention(self.normed("pre", x, 1, layer), layer), 1, layer)
            hidden = self.normed("pre", x, 2, layer)
            hidden = functional.linear(hidden, theta[f"mlp_in_{layer}"], self.get("b_in", layer))
            hidden = ACTIVATIONS[config.activation](hidden)
            x = x + functional.linear(hidden, theta[f"mlp_out_{layer}"], self.get("b_out", layer))
            x = self.normed("post", x, 2, layer)
        if config.norm == "pre":
            x = functional.layer_norm(x, x.shape[-1:], theta["norm"], theta["shift"])
        return functional.linear(x[:, -1], theta["U"] if "U" in theta else theta["E"][: config.classes])

    def normed(self, where: str, x: Tensor, which: int, layer: int) -> Tensor:
        scale, shift = self.get(f"norm_{which}", layer), self.get(f"shift_{which}", layer)
        return functional.layer_norm(x, x.shape[-1:], scale, shift) if where == self.config.norm else x

    def attention(self, x: Tensor, layer: int) -> Tensor:
        slots, d = x.shape[1:]
        # The first axis is time; with its weights asked for, torch takes a kernel that has second derivatives.
        x = x.transpose(0, 1)
        found, _ = functional.multi_head_attention_forward(
            x, x, x, d, self.config.heads, None, None, None, None, False, 0.0,
            self.theta[f"O_{layer}"], None, need_weights=True, use_separate_proj_weight=True,
            attn_mask=torch.ones(slots, slots, dtype=torch.bool, device=x.device).triu(1),
            q_proj_weight=self.theta[f"Q_{layer}"],
            k_proj_weight=self.theta[f"K_{layer}"],
            v_proj_weight=self.theta[f"V_{layer}"],
        )  # fmt: skip
        return found.transpose(0, 1)


def plain_model(
    config: TrainConfig, parameters: Mapping[str, NDArray[Any]], device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network from torch's own functions in float64, and its parameters by the names in the files."""
    named = {n: nn.Parameter(torch.from_numpy(a).to(device, torch.float64)) for n, a in parameters.items()}
    return _Plain(config, named), dict(named)
