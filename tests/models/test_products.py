"""Products derived by hand are those of automatic differentiation, for every block, coupling and form of the model."""

from __future__ import annotations

import pytest
import torch
from helpers.marking import slow
from torch import Tensor

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.models.embedding_mlp.blocks import BLOCKS
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes
from landscape.models.tasks import TRAIN, make_data


def both(scale: float = 1.0, decay: float = 0.0, **changes: object) -> tuple[EmbeddingHessian, HessianOperator]:
    """The two operators of a model at its initialisation, its output layer scaled."""
    config = TrainConfig(**{"p": 7, "tokens": 2, "embed_dim": 3, "hidden": 6, "dtype": "float64"} | changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = MLP(config)
    params = {n: p.detach() * (scale if n in ("V", "b2") else 1.0) for n, p in model.named_parameters()}
    x, y = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    numbers = torch.arange(config.num_tokens, dtype=torch.float64)
    inputs = numbers[:, None] if config.model == "scalar" else torch.eye(config.num_tokens, dtype=torch.float64)
    vectors = None if "E" in params else inputs
    mine = EmbeddingHessian(Passes(params, x, y, ACTIVATIONS[config.activation], vectors), decay)
    return mine, HessianOperator(Objective(model, x, y, weight_decay=decay), params)


def normal(n: int, m: int) -> Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["embedding", *map(slow, ("tables", "onehot", "scalar"))])
@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "quadratic"])
def test_every_block_and_coupling(activation: str, bias: bool, tokens: int, model: str) -> None:
    """One vector, several and none; with decay; blocks in any order of names, and their transposes."""
    mine, theirs = both(activation=activation, bias=bias, tokens=tokens, decay=0.3, model=model)
    pairs = [
        *((g, g) for g in BLOCKS.values()),
        (["E"], ["W"]),
        (["W"], ["E"]),
        (["V"], ["W"]),
        (["V", "E"], ["W", "V"]),
    ]
    pairs += [(["b1"], ["E", "b2"]), (["b2", "V"], ["b1"]), (["b1"], ["b1"])]
    whole = theirs.dense()
    close = 1e-14 * (1 + float(whole.norm()))
    for both_sides in pairs:
        rows, cols = ([n for n in names if n in mine.rows] for names in both_sides)
        if not rows or not cols:
            continue
        a, b = mine.block(rows, cols), theirs.block(rows, cols)
        assert a.shape == b.shape
        V = normal(a.shape[1], 5)
        expected = b @ V
        torch.testing.assert_close(a @ V, expected, rtol=0, atol=close)
        torch.testing.assert_close(a @ V[:, 0], expected[:, 0], rtol=0, atol=close)
        torch.testing.assert_close(a.T @ normal(a.shape[0], 2), b.T @ normal(a.shape[0], 2), rtol=0, atol=close)
        assert (a @ V[:, :0]).shape == (a.shape[0], 0)
    torch.testing.assert_close(mine.dense(), whole, rtol=0, atol=close)
