"""The networks: learned embeddings, one-hot tokens, tables of their products, and the tokens' numbers."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.errors import lookup


class MLP(nn.Module):
    """tokens (sample, slot) -> logits (sample, class); parameters named E, W, b1, V, b2 as in the files.

    Tables are the network of one-hot tokens, W = [T_1^T ... T_s^T], which starts as the embedding network of the same
    options and seed: T_k = E W_k^T. With --start folded so does the network of two tokens as that of four.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.kind, self.activation = config.model, ACTIVATIONS[config.activation]
        self.slots, vocabulary, p, h = config.slots, config.num_tokens, config.classes, config.hidden
        generator = torch.Generator().manual_seed(config.seed)
        dtype = getattr(torch, config.dtype)

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            # Drawn in float64 whatever the precision, so that both precisions start at the same point.
            draw = torch.rand(*shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(((2 * draw - 1) / math.sqrt(fan_in)).to(dtype))

        d = config.embed_dim
        width = lookup({"embedding": d, "tables": d, "onehot": vocabulary, "scalar": 1}, "model", config.model)
        if config.model in ("embedding", "tables"):
            normal = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
            E = (normal * config.init_scale_E).to(dtype)
        if config.model == "embedding":
            self.E = nn.Parameter(E)
        fan_in = self.slots * width
        self.W = uniform(h, fan_in, fan_in=fan_in)
        with torch.no_grad():
            self.W.mul_(config.init_scale_W)
        if config.model == "tables":
            W_k = self.W.detach().double().view(h, self.slots, d)
            self.W = nn.Parameter((W_k @ E.double().T).to(dtype).flatten(1))
        self.b1 = uniform(h, fan_in=fan_in) if config.bias else None
        self.V = uniform(p, h, fan_in=h)
        self.b2 = uniform(p, fan_in=h) if config.bias else None
        if config.start == "folded":
            self._fold(MLP(dataclasses.replace(config, tokens=4, start="own")))
        if config.is_frozen(config.freeze, 0):
            getattr(self, config.freeze).requires_grad_(False)

    @torch.no_grad()
    def _fold(self, four: MLP) -> None:
        """Take the place of a network of four tokens, with what its two constant ones add in b1."""
        p, W_k = len(self.V), four.W.view(len(four.W), four.slots, -1)
        operands, constants = (0, 2), {1: p, 3: p + 1}
        self.E.copy_(four.E[:p])
        self.W.copy_(W_k[:, operands].flatten(1))
        added = [W_k[:, k].double() @ four.E[token].double() for k, token in constants.items()]
        assert self.b1 is not None
        assert four.b1 is not None
        self.b1.copy_(four.b1.double() + sum(added))
        self.V.copy_(four.V)
        assert self.b2 is not None
        assert four.b2 is not None
        self.b2.copy_(four.b2)

    def tables(self) -> Tensor:
        """T_k = E W_k^T, shape (slot, token, hidden): the first layer of every possible input token."""
        W = self.W.view(len(self.W), self.slots, -1)
        if self.kind == "embedding":
            tables: Tensor = torch.einsum("td,hkd->kth", self.E, W)
            return tables
        return W.permute(1, 2, 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.kind == "scalar":
            pre = tokens.to(self.W.dtype) @ self.W.T
        else:
            tables = self.tables()
            pre = nn.functional.embedding(tokens[:, 0], tables[0])
            for k in range(1, self.slots):
                pre = pre + nn.functional.embedding(tokens[:, k], tables[k])
        if self.b1 is not None:
            pre = pre + self.b1
        return nn.functional.linear(self.activation(pre), self.V, self.b2)
