"""Networks with an embedding, written by hand."""

from __future__ import annotations

import torch
from helpers.matrices import draw
from helpers.modules import Point
from torch import Tensor

from landscape.choices.activations import ACTIVATIONS
from landscape.curvature.objective import Objective


def embedding_net(
    activation: str, bias: bool, tokens: int, scale: float = 1.0
) -> tuple[Point, Tensor, Tensor, Objective]:
    """A random embedding-coupled network with repeated tokens among its inputs; `scale` multiplies V."""
    p, d, h, C = 5, 3, 6, 4
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randint(0, p, (23, tokens), generator=generator)
    x[:4, -1] = x[:4, 0]
    point = {"E": draw(p, d, seed=1), "W": draw(h, tokens * d, seed=2) / 2, "V": scale * draw(C, h, seed=3)}
    if bias:
        point |= {"b1": draw(h, seed=4), "b2": draw(C, seed=5)}
    phi = ACTIVATIONS[activation]

    def model(P: Point, x: Tensor) -> Tensor:
        return phi(P["E"][x].flatten(1) @ P["W"].T + P.get("b1", 0.0)) @ P["V"].T + P.get("b2", 0.0)

    y = x.sum(1) % C
    return point, x, y, Objective(model, x, y)
