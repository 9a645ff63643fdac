"""The Transformer against torch's own layers, and its Hessian against torch.func.hessian of those."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL_TRANSFORMER
from helpers.transformers import at_random, problem_of
from torch import Tensor, nn

from landscape.config import TrainConfig, preset
from landscape.curvature.operators import HessianOperator
from landscape.errors import ConfigError
from landscape.models.blocks import choose
from landscape.models.fields import number_of_parameters
from landscape.models.transformer.model import Transformer, load_model, sinusoids
from landscape.models.transformer.problem import TransformerProblem

CPU = torch.device("cpu")
VARIANTS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"layers": 2, "tokens": 4},
    "pre-LN": {"norm": "pre", "layers": 2, "activation": "gelu"},
    "post-LN": {"norm": "post", "layers": 2, "positions": "sinusoidal", "bias": False, "tokens": 4},
    "tied": {"tied": True, "activation": "gelu", "bias": False},
    "GELU": {"activation": "gelu", "tokens": 2},
}


def variant(**changes: Any) -> TrainConfig:
    return dataclasses.replace(SMALL_TRANSFORMER, **changes)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def config(request: pytest.FixtureRequest) -> TrainConfig:
    return variant(**request.param)


def by_torch(config: TrainConfig, params: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits by nn.TransformerEncoderLayer, without LayerNorm by nn.MultiheadAttention and nn.Linear."""
    d, h, slots = config.embed_dim, config.hidden, config.tokens
    places = torch.arange(slots, dtype=torch.float64)[:, None] / 10_000 ** (2 * torch.arange(d // 2) / d)
    waves = torch.empty(slots, d, dtype=torch.float64)
    waves[:, 0::2], waves[:, 1::2] = places.sin(), places.cos()
    x = params["E"][tokens] + params.get("P", waves)
    mask = nn.Transformer.generate_square_subsequent_mask(slots, dtype=torch.float64)
    activation = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}[config.activation]
    for layer in range(config.layers):
        of = {name.removesuffix(f".{layer}"): p for name, p in params.items() if name.endswith(f".{layer}")}
        whole = nn.TransformerEncoderLayer(
            d, config.heads, h, 0.0, activation, batch_first=True, norm_first=config.norm == "pre", dtype=torch.float64
        )
        state = {
            "self_attn.in_proj_weight": torch.cat([of["Q"], of["K"], of["V"]]),
            "self_attn.in_proj_bias": torch.zeros(3 * d),
            "self_attn.out_proj.weight": of["O"],
            "self_attn.out_proj.bias": torch.zeros(d),
            "linear1.weight": of["mlp_in"],
            "linear1.bias": of.get("b_in", torch.zeros(h)),
            "linear2.weight": of["mlp_out"],
            "linear2.bias": of.get("b_out", torch.zeros(d)),
        }
        for which in "12":
            state[f"norm{which}.weight"] = of.get(f"norm_{which}", torch.ones(d))
            state[f"norm{which}.bias"] = of.get(f"shift_{which}", torch.zeros(d))
        whole.load_state_dict(state)
        if config.norm == "none":
            x = x + whole.self_attn(x, x, x, attn_mask=mask, need_weights=False)[0]
            x = x + whole.linear2(activation(whole.linear1(x)))
        else:
            x = whole(x, src_mask=mask)
    if config.norm == "pre":
        x = nn.functional.layer_norm(x, (d,), params["norm"], params["shift"])
    unembedding = params["E"][: config.p] if config.tied else params["U"]
    return x[:, -1] @ unembedding.T


def test_logits_are_those_of_torchs_layers(config: TrainConfig) -> None:
    """With weights copied into torch's own modules, for every kind of network."""
    params, problem = at_random(config), problem_of(config)
    with torch.no_grad():
        expected = by_torch(config, params, problem.tokens)
        torch.testing.assert_close(load_model(config, params)(problem.tokens), expected, rtol=1e-12, atol=1e-12)
        plain = problem.plain({name: p.numpy() for name, p in params.items()})
        torch.testing.assert_close(plain.model(problem.tokens), expected, rtol=1e-12, atol=1e-12)
    assert list(plain.parameters) == list(problem.parameters)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # W_E and W_pos, Q K V O, MLP with biases, W_U without the row of `=`, which is no answer.
        ("nanda", 114 * 128 + 3 * 128 + 4 * 128 * 128 + 2 * 512 * 128 + 512 + 128 + 113 * 128),
        ("power", 99 * 128 + 2 * (4 * 128 * 128 + 2 * 512 * 128 + 2 * 2 * 128) + 97 * 128),
        ("transformer", 5104),
    ],
)
def test_presets_have_their_sizes(name: str, count: int) -> None:
    """As published, and small enough for every block to be dense."""
    config = preset(name)
    assert number_of_parameters(config) == count
    assert sum(p.numel() for p in Transformer(config).parameters()) == count


def test_initial_weights() -> None:
    """N(0, 1/fan-in) for every matrix, ones and zeros for the rest, the same point in both precisions."""
    config = variant(p=97, embed_dim=64, hidden=256, heads=4, norm="pre", init_scale_E=3.0, dtype="float64")
    single = dict(Transformer(dataclasses.replace(config, dtype="float32")).named_parameters())
    for name, p in Transformer(config).named_parameters():
        assert torch.equal(p.float(), single[name])
        if p.ndim == 2:
            scale = 3.0 if name == "E" else 1.0
            assert float(p.detach().std()) * p.shape[1] ** 0.5 == pytest.approx(scale, rel=0.15)
        else:
            assert set(p.tolist()) == {1.0 if name.startswith("norm") else 0.0}


def test_positions_of_odd_width() -> None:
    """The last sine has no cosine."""
    assert sinusoids(3, 5).shape == (3, 5)
    angles = [2.0, 2 / 10_000**0.4, 2 / 10_000**0.8]
    expected = [math.sin(angles[0]), math.cos(angles[0]), math.sin(angles[1]), math.cos(angles[1]), math.sin(angles[2])]
    np.testing.assert_allclose(sinusoids(3, 5)[2], expected, rtol=1e-12)


def dense_by_torch(config: TrainConfig, params: Mapping[str, Tensor], problem: TransformerProblem) -> Tensor:
    """The Hessian of the mean cross-entropy over all parameters, from torch's own functions."""
    plain = problem.plain({name: p.numpy() for name, p in params.items()})
    keys = {id(p): key for key, p in plain.model.named_parameters()}
    sizes = [p.numel() for p in plain.parameters.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(plain.parameters.values(), flat.split(sizes), strict=True)
        theta = {keys[id(p)]: piece.view_as(p) for p, piece in pieces}
        logits = torch.func.functional_call(plain.model, theta, (plain.inputs,))
        return nn.functional.cross_entropy(logits, plain.targets)

    flat = torch.cat([p.detach().reshape(-1) for p in plain.parameters.values()])
    # torch's LayerNorm is wrong in forward over reverse mode, which torch.func.hessian takes: asymmetric by a tenth.
    matrix: Tensor = (torch.func.jacrev(torch.func.grad(loss)) if config.norm != "none" else torch.func.hessian(loss))(
        flat
    )
    return matrix


@pytest.mark.slow
def test_dense_blocks(config: TrainConfig) -> None:
    """Every block by shared columns and closed forms, against torch.func.hessian of torch's own functions."""
    problem, params = problem_of(config), at_random(config)
    whole = dense_by_torch(config, params, problem)
    ends = np.cumsum([0, *(p.numel() for p in params.values())])
    rows = {name: torch.arange(a, b) for name, a, b in zip(params, ends[:-1], ends[1:], strict=True)}
    structure = problem.structure(params, 0.0)
    for block in problem.blocks:
        index = torch.cat([rows[name] for name in problem.blocks[block]])
        matrix = structure.dense(problem.blocks[block])
        assert matrix is not None
        assert torch.equal(matrix, matrix.T)
        torch.testing.assert_close(matrix, whole[index][:, index], rtol=0, atol=1e-12 * float(whole.norm()))
    gauss_newton = HessianOperator(problem.objective(0.0), params, part="gauss_newton").dense()
    matrix = structure.dense(list(params), gauss_newton=True)
    torch.testing.assert_close(matrix, gauss_newton, rtol=0, atol=1e-12 * float(whole.norm()))
    # To the last bit whatever was asked for before.
    alone = problem.structure(params, 0.0).dense(problem.blocks["E,mlp_in"])
    again = structure.dense(problem.blocks["E,mlp_in"])
    assert alone is not None
    assert again is not None
    assert torch.equal(alone, again)


def test_decay_is_on_the_diagonal() -> None:
    """Of the regularised objective, as in the products."""
    config = variant(optimizer="adam", weight_decay=0.25)
    problem, params = problem_of(config), at_random(config)
    plain, regularised = (problem.structure(params, decay).dense(["Q.0", "U"]) for decay in (0.0, 0.25))
    assert plain is not None
    torch.testing.assert_close(regularised, plain + 0.25 * torch.eye(len(plain), dtype=torch.float64))
    assert problem.structure(params, 0.25).null_vectors(list(params)) is None


def test_blocks_by_kind_and_by_layer() -> None:
    """A kind holds its matrix of all layers, each of which has a name of its own; pairs are joint blocks."""
    problem = problem_of(variant(layers=2))
    assert problem.blocks["Q"] == ("Q.0", "Q.1")
    assert problem.blocks["Q.1"] == ("Q.1",)
    assert problem.blocks["E,Q,K"] == ("E", "Q.0", "Q.1", "K.0", "K.1")
    assert ("E", "Q,K") in problem.pairs
    assert choose(problem, ["all"]).blocks[0].size == number_of_parameters(variant(layers=2))
    tied = problem_of(variant(tied=True))
    assert "U" not in tied.blocks
    assert ("E", "U") not in tied.pairs
    with pytest.raises(ConfigError, match="the transformer model has no block 'U'"):
        choose(tied, ["U"])
