"""Null vectors of a Transformer's blocks (F20) and the scales that LayerNorm takes no notice of (F21)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from conftest import SMALL_TRANSFORMER
from helpers.draws import drawn, draws
from helpers.transformers import at_random, problem_of
from torch import Tensor, nn

from landscape.config import TrainConfig, preset
from landscape.models.transformer import model as module
from landscape.models.transformer.model import load_model
from landscape.models.transformer.problem import TransformerProblem

# More classes and hidden units than directions, so that no matrix has a null space by its shape; every token is seen.
BASE = dataclasses.replace(
    SMALL_TRANSFORMER, p=7, embed_dim=6, hidden=8, activation="gelu", train_fraction=0.9, tokens=4
)
TABLE: dict[str, dict[str, Any]] = {
    "none": {},
    "none, tied": {"tied": True},
    "pre": {"norm": "pre"},
    "pre, tied": {"norm": "pre", "tied": True},
    "post": {"norm": "post"},
    "post, tied": {"norm": "post", "tied": True},
}
MORE: dict[str, dict[str, Any]] = {
    f"{norm}, {name}": {"norm": norm, **changes}
    for norm in ("none", "pre", "post")
    for name, changes in {
        "one head": {"heads": 1},
        "two layers": {"layers": 2, "tokens": 2},
        "no bias, sinusoids": {"bias": False, "positions": "sinusoidal", "tokens": 3},
        "few classes": {"p": 5, "layers": 2, "train_fraction": 0.95},
        "few classes, tied": {"p": 5, "layers": 2, "tied": True, "train_fraction": 0.95},
    }.items()
}
DIMENSIONS = {
    "E": "0, 0, 9, 3, 0, 0",
    "P": "0, 0, 4, 4, 0, 0",
    "Q": "30, 30, 30, 30, 30, 30",
    "K": "24, 24, 26, 26, 24, 24",
    "V": "0, 0, 1, 1, 0, 0",
    "O": "0, 0, 6, 6, 6, 6",
    "mlp_in": "0, 0, 0, 0, 0, 0",
    "mlp_out": "0, 0, 8, 8, 8, 8",
    "b_out.0": "0, 0, 1, 1, 1, 1",
    "U": "6, –, 6, –, 6, –",
    "Q,K": "30 (50), 30 (50), 36 (52), 36 (52), 30 (50), 30 (50)",
    "V,O": "0, 0, 6, 6, 6, 6",
    "mlp_in,mlp_out": "0, 0, 8, 8, 8, 8",
    "E,U": "6, –, 15, –, 6, –",
    "E,mlp_in": "0, 0, 9, 3, 0, 0",
    "E,Q,K": "0 (45), 0 (45), 15 (57), 9 (51), 0 (45), 0 (45)",
    "all": "24 (69), 18 (63), 49 (96), 37 (84), 39 (86), 33 (80)",
}
"""Null vectors of each block in the networks of TABLE; in brackets zero eigenvalues at a random point, if more."""
ROUNDING = 1e-13


def variant(changes: Mapping[str, Any]) -> TrainConfig:
    return dataclasses.replace(BASE, **changes)


@functools.cache
def point(name: str, seed: int) -> tuple[TransformerProblem, dict[str, Tensor]]:
    config = variant((TABLE | MORE)[name])
    return problem_of(config), at_random(config, seed, spread=0.2)


def block_of(problem: TransformerProblem, params: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    matrix = problem.structure(params, 0.0).dense(names)
    assert matrix is not None
    return matrix / torch.linalg.eigvalsh(matrix).abs().max()


def checked(problem: TransformerProblem, params: Mapping[str, Tensor], names: Sequence[str]) -> int:
    """The dimension of a block's null vectors, which are null in it and the whole range of a projector."""
    H, null = block_of(problem, params, names), problem.structure(params, 0.0).null_vectors(names)
    if null is None:
        return 0
    projector = null.remove(torch.eye(len(H), dtype=torch.float64))
    torch.testing.assert_close(projector @ projector, projector, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(projector, projector.T, rtol=0, atol=ROUNDING)
    assert float((H - H @ projector).norm()) < ROUNDING
    vector = torch.linspace(-1, 1, len(H), dtype=torch.float64)
    torch.testing.assert_close(null.remove(vector), projector @ vector, rtol=0, atol=ROUNDING)
    assert null.dimension == len(H) - round(float(projector.trace()))
    return null.dimension


def moved(params: Mapping[str, Tensor], names: Sequence[str], seed: int) -> dict[str, Tensor]:
    """Another point that differs in a block alone."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: p + 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype) if name in names else p
        for name, p in params.items()
    }


# A configuration takes ten CPU seconds.
FIRST = ("pre", "post, tied", "none, few classes")
EVERY = sorted(TABLE | MORE, key=lambda name: name not in FIRST)


@drawn
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", EVERY[: draws(len(FIRST), len(EVERY))])
def test_f20_nothing_else_is_null_wherever_a_block_moves(name: str) -> None:
    """What Hessians of a block at several points annihilate, all else held, has the dimension of its null vectors."""
    problem, params = point(name, 0)
    for block in problem.blocks:
        names = problem.blocks[block]
        dimension, stacked = checked(problem, params, names), block_of(problem, params, names)
        # At one point more may be null, by its gradient. As many points as a matrix has columns leave none of that.
        for seed in range(1, problem.train.embed_dim + 2):
            nullity = int((torch.linalg.svdvals(stacked) < ROUNDING).sum())
            if nullity == dimension:
                break
            at = moved(params, names, seed)
            assert checked(problem, at, names) == dimension
            stacked = torch.cat([stacked, block_of(problem, at, names)])
        assert nullity == dimension, block


def test_f20_at_full_size() -> None:
    """Of the preset of 226,688 parameters, in a moment and without a basis."""
    config = preset("nanda")
    problem = problem_of(config)
    structure = problem.structure(at_random(config), 0.0)
    spans = {block: structure.null_vectors(problem.blocks[block]) for block in ("Q", "K", "mlp_in,mlp_out")}
    sizes = {"Q": 128 * 127, "K": 128 * (128 - 4), "mlp_in,mlp_out": 512 * (128 - 112)}
    assert {block: null and null.dimension for block, null in spans.items()} == sizes


def zeros(problem: TransformerProblem, params: Mapping[str, Tensor], names: Sequence[str]) -> int:
    """Eigenvalues of a block that are 0 up to rounding."""
    return int((torch.linalg.eigvalsh(block_of(problem, params, names)).abs() < ROUNDING).sum())


@pytest.mark.long
def test_the_table_of_dimensions_is_measured() -> None:
    """Dimensions, and zero eigenvalues at a random point where there are more."""
    measured: dict[str, list[str]] = {block: [] for block in DIMENSIONS}
    for name in TABLE:
        problem, params = point(name, 0)
        for block, cells in measured.items():
            if block not in problem.blocks:
                cells.append("–")
                continue
            names = problem.blocks[block]
            dimension, nullity = checked(problem, params, names), zeros(problem, params, names)
            cells.append(f"{dimension}" if nullity == dimension else f"{dimension} ({nullity})")
    assert {block: ", ".join(cells) for block, cells in measured.items()} == DIMENSIONS


def loss_of(
    problem: TransformerProblem, params: Mapping[str, Tensor], grown: Sequence[str], epsilon: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, with `epsilon` in the LayerNorms of these scales, and what it depends on."""
    model, plain = load_model(problem.train, params), module.layer_norm
    theta = dict(model.named_parameters())

    def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            if any(scale is theta[name] for name in grown):
                patch.setattr(module, "EPSILON", epsilon)
            return plain(x, scale, shift)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "layer_norm", layer_norm)
        loss = nn.functional.cross_entropy(model(problem.tokens), problem.labels)
    return loss, {name: theta[name] for name in params}


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


# Powers of t with which parameters grow without a change of the loss, and the LayerNorms whose inputs grow as t: the
# writers of the stream before LayerNorm; the first sum of a network with LayerNorm after it, whose queries read E and
# P, too; and a later sum.
WRITERS = ("E", "P", "O.0", "O.1", "mlp_out.0", "mlp_out.1", "b_out.0", "b_out.1")
SCALES: dict[str, tuple[str, dict[str, float], tuple[str, ...]]] = {
    "pre": ("pre", dict.fromkeys(WRITERS, 1.0), ("norm_1.0", "norm_2.0", "norm_1.1", "norm_2.1", "norm")),
    "post, first sum": ("post", {"E": 1.0, "P": 1.0, "Q.0": -2.0}, ("norm_1.0",)),
    "post, second sum": (
        "post",
        {"norm_1.0": 1.0, "shift_1.0": 1.0, "mlp_in.0": -1.0, "mlp_out.0": 1.0, "b_out.0": 1.0},
        ("norm_2.0",),
    ),
}


@pytest.mark.parametrize("case", SCALES)
def test_f21_scales_that_layernorm_does_not_see(case: str) -> None:
    """Hv = -Dg - 2 epsilon dg/depsilon, exactly: v = D theta is null where the gradient is, which is small here."""
    norm, powers, grown = SCALES[case]
    config = variant({"norm": norm, "layers": 2})
    problem, params = problem_of(config), at_random(config, 3)
    epsilon = torch.tensor(module.EPSILON, dtype=torch.float64, requires_grad=True)
    loss, theta = loss_of(problem, params, grown, epsilon)
    values = list(theta.values())
    g = torch.autograd.grad(loss, [*values, epsilon], create_graph=True)
    D = flat([torch.full_like(p, powers.get(name, 0.0)) for name, p in theta.items()])
    g, by_epsilon = flat(g[:-1]), g[-1]
    v = D * flat(values).detach()
    Hv = flat(torch.autograd.grad(g @ v, values, retain_graph=True))
    bent = flat(torch.autograd.grad(by_epsilon, values))
    g, by_epsilon, epsilon = g.detach(), by_epsilon.detach(), epsilon.detach()
    assert float((Hv + D * g + 2 * epsilon * bent).norm()) < 1e-13 * float(Hv.norm())
    assert abs(float(g @ v + 2 * epsilon * by_epsilon)) < 1e-13 * float(g.norm() * v.norm())
    # How far epsilon alone lets the identity fail, and how far v is from a null vector.
    assert float((Hv + D * g).norm()) < 1e-3 * float(Hv.norm())
    assert float((D * g).norm()) > 0.01


def test_f21_a_gradient_makes_the_writers_a_saddle() -> None:
    """lambda_min <= (c - sqrt(c^2 + 4 b^2)) / 2 with b = |g| / |theta| and c the curvature along g."""
    config = variant({"norm": "pre"})
    problem, params = problem_of(config), at_random(config, 3)
    names = [name for name in WRITERS if name in params]
    H = problem.structure(params, 0.0).dense(names)
    assert H is not None
    gradient = problem.objective(0.0).gradient(params)
    g, theta = flat([gradient[name] for name in names]), flat([params[name] for name in names])
    b, c = float(g.norm() / theta.norm()), float(g @ H @ g / (g @ g))
    bound = (c - (c * c + 4 * b * b) ** 0.5) / 2
    # Epsilon bends the bound by less than a thousandth.
    assert float(torch.linalg.eigvalsh(H)[0]) < 0.999 * bound < 0
    assert abs(float(theta @ H @ theta)) < 1e-3 * float(theta @ theta) * b
