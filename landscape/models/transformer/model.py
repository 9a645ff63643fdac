"""A decoder-only Transformer in explicit matrix products, differentiable twice, and the same of torch's functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig

EPSILON = 1e-5
"""What LayerNorm adds to the variance, as torch's does."""


class Transformer(nn.Module):
    """tokens (sample, slot) -> logits (sample, class) at the last token; parameters named as in the files.

    Causal softmax attention without biases. norm: LayerNorm nowhere, before attention, MLP and unembedding (pre), or
    after each residual sum (post). Every matrix starts from N(0, 1 / fan-in), where E, P and U count `embed_dim` as
    theirs; biases start at 0. tied: the unembedding is the operands' part of E.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.heads, self.norms, self.classes = config.heads, config.norm, config.classes
        self.activation = ACTIVATIONS[config.activation]
        d, h = config.embed_dim, config.hidden
        generator = torch.Generator().manual_seed(config.seed)
        dtype = getattr(torch, config.dtype)

        def normal(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            # Drawn in float64 whatever the precision, so that both precisions start at the same point.
            draw = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            return nn.Parameter((draw * scale / math.sqrt(columns)).to(dtype))

        def layers(rows: int, columns: int) -> nn.ParameterList:
            return nn.ParameterList([normal(rows, columns) for _ in range(config.layers)])

        def constant(value: float, length: int) -> nn.ParameterList:
            return nn.ParameterList([torch.full((length,), value, dtype=dtype) for _ in range(config.layers)])

        self.E = normal(config.num_tokens, d, config.init_scale_E)
        self.P = normal(config.slots, d) if config.positions == "learned" else None
        # No buffer: in float64 it is to be exact, whatever precision the network was made in.
        self._positions = sinusoids(config.slots, d)
        self.Q, self.K, self.V, self.O = (layers(d, d) for _ in range(4))
        self.mlp_in, self.mlp_out = layers(h, d), layers(d, h)
        self.U = None if config.tied else normal(config.classes, d)
        self.b_in, self.b_out = (constant(0.0, n) if config.bias else None for n in (h, d))
        if self.norms != "none":
            self.norm_1, self.norm_2 = constant(1.0, d), constant(1.0, d)
            self.shift_1, self.shift_2 = constant(0.0, d), constant(0.0, d)
        if self.norms == "pre":
            self.norm, self.shift = (nn.Parameter(torch.full((d,), x, dtype=dtype)) for x in (1.0, 0.0))
        if config.is_frozen(config.freeze, 0):
            getattr(self, config.freeze).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.before_last_mlp(tokens)
        x = self._after_mlp(x, len(self.Q) - 1)
        if self.norms == "pre":
            x = layer_norm(x, self.norm, self.shift)
        logits: Tensor = x @ (self.E[: self.classes] if self.U is None else self.U).T
        return logits

    def before_last_mlp(self, tokens: Tensor) -> Tensor:
        """The residual stream (sample, embed) of the last token that the last layer's MLP reads and adds to."""
        x = nn.functional.embedding(tokens, self.E)
        x = x + (self._positions.to(x) if self.P is None else self.P)
        last = len(self.Q) - 1
        for layer in range(last):
            x = self._after_mlp(self._after_attention(x, layer), layer)
        return self._after_attention(x, last, is_last=True)[:, 0]

    def _after_attention(self, x: Tensor, layer: int, is_last: bool = False) -> Tensor:
        """The residual stream (sample, slot, embed); of the last layer its last token alone."""
        attended = self._attention(self._norm("pre", x, 1, layer), layer, is_last)
        return self._norm("post", (x[:, -1:] if is_last else x) + attended, 1, layer)

    def _after_mlp(self, x: Tensor, layer: int) -> Tensor:
        return self._norm("post", x + self._mlp(self._norm("pre", x, 2, layer), layer), 2, layer)

    def _attention(self, x: Tensor, layer: int, is_last: bool) -> Tensor:
        """(sample, query, embed): each query reads the tokens up to its own."""
        n, slots, d = x.shape
        asking = x[:, -1:] if is_last else x
        q, k, v = (
            (y @ W[layer].T).view(n, -1, self.heads, d // self.heads)
            for y, W in ((asking, self.Q), (x, self.K), (x, self.V))
        )
        scores = torch.einsum("nqhi,nkhi->nhqk", q, k) / math.sqrt(d // self.heads)
        if not is_last:
            later = torch.ones(slots, slots, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        heads = torch.einsum("nhqk,nkhi->nqhi", scores.softmax(-1), v)
        return nn.functional.linear(heads.reshape(n, -1, d), self.O[layer])

    def _mlp(self, x: Tensor, layer: int) -> Tensor:
        bias_in, bias_out = (None if b is None else b[layer] for b in (self.b_in, self.b_out))
        hidden = self.activation(nn.functional.linear(x, self.mlp_in[layer], bias_in))
        return nn.functional.linear(hidden, self.mlp_out[layer], bias_out)

    def _norm(self, where: str, x: Tensor, which: int, layer: int) -> Tensor:
        """LayerNorm `which` of a layer, if that is where the network has it."""
        if self.norms != where:
            return x
        scales, shifts = (self.norm_1, self.shift_1) if which == 1 else (self.norm_2, self.shift_2)
        return layer_norm(x, scales[layer], shifts[layer])


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm over the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt() * scale + shift


def sinusoids(slots: int, d: int) -> Tensor:
    """Positions (slot, embed) of arXiv 1706.03762, section 3.5, in float64: even columns sin, odd ones cos."""
    rates = 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(slots, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :d]


def load_model(config: TrainConfig, parameters: Mapping[str, Tensor]) -> Transformer:
    """A model at given parameters, in their precision and on their device, every parameter trainable."""
    model, some = Transformer(config).requires_grad_(True), next(iter(parameters.values()))
    model = model.to(some.device, some.dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])
    return model


class _Plain(nn.Module):
    """torch's multi-head attention over every token, its LayerNorm and Linear."""

    def __init__(self, config: TrainConfig, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        # Names of a module's parameters have no dots.
        self.theta = nn.ParameterDict({name.replace(".", "_"): tensor for name, tensor in parameters.items()})

    def get(self, name: str, layer: int | None = None) -> Tensor | None:
        key = name if layer is None else f"{name}_{layer}"
        tensor: Tensor | None = self.theta.get(key)
        return tensor

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
        output, _ = functional.multi_head_attention_forward(
            x, x, x, d, self.config.heads, None, None, None, None, False, 0.0,
            self.theta[f"O_{layer}"], None, need_weights=True, use_separate_proj_weight=True,
            attn_mask=torch.ones(slots, slots, dtype=torch.bool, device=x.device).triu(1),
            q_proj_weight=self.theta[f"Q_{layer}"],
            k_proj_weight=self.theta[f"K_{layer}"],
            v_proj_weight=self.theta[f"V_{layer}"],
        )  # fmt: skip
        return output.transpose(0, 1)


def plain_model(
    config: TrainConfig, parameters: Mapping[str, NDArray[Any]], device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network from torch's own functions in float64, and its parameters by the names in the files."""
    named = {n: nn.Parameter(torch.from_numpy(a).to(device, torch.float64)) for n, a in parameters.items()}
    return _Plain(config, named), dict(named)
