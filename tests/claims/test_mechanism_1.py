"""What the scripts on rare tokens say of data whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import c2_rare_tokens as c2
import c9_absence as c9
import numpy as np
import pandas as pd
import pytest
import token_tables
import torch
import xarray

from landscape.config import preset, replace
from landscape.problems.fields import SPLIT

SEEDS, TOKENS = range(5), 59
QUICK = preset("quick")


def tokens_of(order: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Tokens at both moments whose quantities follow their frequency in the settings of `order`, and are noise else."""
    rng = np.random.default_rng(0)
    rows = []
    for case, batch in (c2.MECHANISM, *c2.NO_DECAY.values(), *c2.FULL.values()):
        for sampler in c2.ACTING:
            for seed in SEEDS:
                frequency = rng.permutation(np.linspace(0.01, 0.06, TOKENS))
                noise = {x: rng.normal(size=TOKENS) for x in c2.QUANTITIES}
                values = {x: order.get((case, batch), 0.0) * 100 * frequency + noise[x] for x in c2.QUANTITIES}
                one = {"case": case, "sampler": sampler, "batch_size": batch, "seed": seed, "frequency": frequency}
                rows.append(pd.DataFrame({**one, **values, "step": 10, "shared": 10, "last": 10}))
    return token_tables.two_moments(pd.concat(rows))


@pytest.mark.parametrize(
    ("order", "judgement"),
    [
        ({c2.MECHANISM: 2.0}, "supported"),
        # The same order where the mechanism cannot act: something else makes it.
        ({c2.MECHANISM: 2.0, ("decay", "full"): 2.0}, "not supported"),
        ({c2.MECHANISM: 2.0, ("nodecay", "32"): 2.0}, "not supported"),
        # Half of the order remains.
        ({c2.MECHANISM: 2.0, ("decay", "full"): 0.3}, "undecided"),
        # Frequent tokens have less.
        ({c2.MECHANISM: -2.0}, "not supported"),
    ],
)
def test_a_constructed_order_gets_its_verdict(order: dict[tuple[str, str], float], judgement: str) -> None:
    rho = token_tables.correlations(tokens_of(order), c2.QUANTITIES)
    verdict, text = c2.verdict_of("embedding_norm", rho)
    assert (verdict.judgement, verdict.seeds) == (judgement, len(SEEDS))
    assert "end of run" in text
    assert "shared checkpoint" in text


def test_moments_that_disagree_leave_it_undecided() -> None:
    acts = token_tables.correlations(tokens_of({c2.MECHANISM: 2.0}), c2.QUANTITIES)
    does_not = token_tables.correlations(tokens_of({}), c2.QUANTITIES)
    rho = pd.concat([acts[acts["moment"] == "end of run"], does_not[does_not["moment"] != "end of run"]])
    assert c2.verdict_of("norm_change", rho)[0].judgement == "undecided"


def test_gradients_need_not_care_for_weight_decay() -> None:
    rho = token_tables.correlations(tokens_of({c2.MECHANISM: 2.0, ("nodecay", "32"): 2.0}), c2.QUANTITIES)
    assert c2.verdict_of("grad_norm", rho)[0].judgement == "supported"


@pytest.fixture(scope="module")
def constructed() -> tuple[Any, xarray.Dataset]:
    """A run of p = 5 whose last embeddings are at the equilibrium of its own gradient."""
    p, d, h = 5, 3, 4
    rng = np.random.default_rng(1)
    shapes = {"W": (h, 2 * d), "b1": (h,), "V": (p, h), "b2": (p,)}
    axes = {"W": ("hidden", "slot_embed"), "b1": ("hidden",), "V": ("class", "hidden"), "b2": ("class",)}
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(p), np.arange(p), indexing="ij"))
    data = {name: (("step", *axes[name]), rng.normal(size=(3, *shape))) for name, shape in shapes.items()}
    E = rng.normal(size=(3, p, d))
    data |= {
        "E": (("step", "token", "embed"), E),
        "v_E": (("step", "token", "embed"), np.full((3, p, d), 1e-4)),
        "embedding_norm": (("step", "token"), np.linalg.norm(E, axis=2)),
        "grad_norm": (("step", "token"), np.outer(np.arange(3), np.arange(p))),
        "count": (("step", "token"), np.outer([0, 1, 4], np.ones(p, int))),
        "tokens": (("sample", "slot"), np.stack([a, b], axis=1)),
        "labels": (("sample",), (a + b) % p),
        # Token 0 is in one training pair, token 4 in all pairs with another token than 0.
        "split": (("sample",), np.where((a * b > 0) | ((a == 0) & (b == 0)), 0, 1), SPLIT),
    }
    dataset = xarray.Dataset(data, coords={"step": [0, 2, 8]})
    labels = {"case": "decay", "sampler": "zipf", "batch_size": "full", "seed": 0}
    config = replace(QUICK, {"p": p, "batch_size": "full", "weight_decay": 0.1})
    return SimpleNamespace(data=dataset, labels=labels, planned=SimpleNamespace(config=config)), dataset


def test_a_token_s_gradient_is_that_of_autograd(constructed: tuple[Any, xarray.Dataset]) -> None:
    run, data = constructed
    E, W, b1, V, b2 = (torch.tensor(data[name].values[-1], requires_grad=True) for name in ("E", "W", "b1", "V", "b2"))
    train = data["split"].values == 0
    x, y = torch.tensor(data["tokens"].values[train]), torch.tensor(data["labels"].values[train])
    logits = torch.relu(E[x].flatten(1) @ W.T + b1) @ V.T + b2
    torch.nn.functional.cross_entropy(logits, y).backward()
    expected = E.grad.numpy()
    gradient, accuracy = token_tables.pass_through(data, -1)
    np.testing.assert_allclose(gradient, expected, atol=1e-14)
    assert accuracy.shape == (5,)

    table = token_tables.token_table(run, shared=2)
    end = table[table["step"] == 8]
    norm = data["embedding_norm"].values[-1]
    np.testing.assert_allclose(end["pull"], np.linalg.norm(expected, axis=1) / (0.1 * norm))
    np.testing.assert_allclose(end["presence"], 4 / 8)
    np.testing.assert_allclose(end["frequency"], np.r_[1, [7] * 4] / 17)
    assert end["quartile"].iloc[0] == "rare"
    # sqrt(v / (1 - 0.999^8)) = 0.112 in every dimension, learning rate 0.01.
    np.testing.assert_allclose(end["decay_rate"], 0.01 * 0.1 / np.sqrt(1e-4 / (1 - 0.999**8)), rtol=1e-6)


@pytest.mark.parametrize(
    ("pull", "cosine", "judgement"),
    [(1.0, 0.99, "supported"), (5.0, 0.99, "not supported"), (1.0, 0.0, "not supported")],
)
def test_an_equilibrium_is_told_from_none(pull: float, cosine: float, judgement: str) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"case": "decay", "sampler": s, "batch_size": "32", "seed": seed, "pull": x, "cosine": cosine}
        for s in c2.ACTING
        for seed in SEEDS
        for x in pull * rng.uniform(0.8, 1.2, TOKENS)
    ]
    assert c2.equilibrium(pd.DataFrame(rows))[1].judgement == judgement


def test_absence_of_uniform_tokens_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    held = (rng.integers(0, 7, (20000, 2 * 8)) == 0).any(axis=1).mean()
    assert 1 - c9.absence(7, 8) == pytest.approx(held, abs=0.01)


def test_the_term_s_verdicts() -> None:
    def between(low: float, high: float) -> pd.DataFrame:
        return pd.DataFrame({"value": (low + high) / 2, "low": [low, low], "high": [high, high]})

    assert c9.judge_term(between(1.4, 1.5)) == "supported"
    assert c9.judge_term(between(1.0, 1.01)) == "not supported"
    assert c9.judge_term(between(1.2, 1.3)) == "undecided"
    assert c9.judge_prediction(between(-0.001, 0.002)) == "supported"
    assert c9.judge_prediction(pd.concat([between(-0.001, 0.002), between(0.02, 0.03)])) == "not supported"
    assert c9.judge_prediction(between(-0.001, 0.02)) == "undecided"
    # Full batches hold every token: samplers that differ there differ for another reason.
    assert c9.judge_cause(p_acting=0.001, p_full=0.001) == "not supported"
    assert c9.judge_cause(p_acting=0.001, p_full=0.7) == "supported"
    assert c9.judge_cause(p_acting=0.3, p_full=0.7) == "undecided"
