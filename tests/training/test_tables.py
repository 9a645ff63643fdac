"""Networks of free tables: the start, the penalty, and every command on their files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from scipy.linalg import svd, svdvals

from landscape import models
from landscape.errors import ConfigError
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP, Networks, initial
from landscape.models.tasks import make_data
from landscape.training.loop import train
from landscape.training.optimizers import Optimizer

CPU = torch.device("cpu")
NUCLEAR = dataclasses.replace(TINY, model="tables", penalty="nuclear", weight_decay=0.05)


def stacked(W: np.ndarray[Any, Any], slots: int) -> np.ndarray[Any, Any]:
    """[T_1 ... T_s] of W."""
    return np.hstack([part.T for part in np.split(W, slots, axis=1)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("changes", [{}, {"bias": False}, {"init_scale_E": 0.5, "init_scale_W": 3.0}], ids=str)
def test_the_start_is_that_of_the_embedding_network(tokens: Any, dtype: Any, changes: dict[str, Any]) -> None:
    """Same logits on every pair, same parameters behind the first layer, and the rank of the product."""
    embedding = dataclasses.replace(TINY, tokens=tokens, dtype=dtype, seed=3, embed_dim=5, **changes)
    tables = dataclasses.replace(embedding, model="tables")
    pairs = torch.from_numpy(make_data(embedding).tokens).long()
    eps = torch.finfo(getattr(torch, dtype)).eps
    with torch.no_grad():
        expected = MLP(embedding)(pairs)
        torch.testing.assert_close(MLP(tables)(pairs), expected, rtol=0, atol=20 * eps * float(expected.abs().max()))
    ours, theirs = initial(tables), initial(embedding)
    assert list(ours) == [name for name in theirs if name != "E"]
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours if name != "W")
    sigma = svdvals(stacked(ours["W"], tokens))
    assert sigma[4] > 1e-3 > 100 * eps * sigma[0] > sigma[5]


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_ends_where_the_penalised_loss_is_least(momentum: float) -> None:
    """Of |W - Y|^2/2 + lambda |[T_1 ... T_s]|_*, |W - Y|^2/2 in the place of the loss, whatever the momentum."""
    config = dataclasses.replace(
        NUCLEAR, optimizer="sgd", momentum=momentum, lr=0.05, weight_decay=1.5, dtype="float64"
    )
    data = make_data(config)
    networks = Networks(config, [initial(config)], data.tokens, data.labels, CPU)
    optimizer = Optimizer([config], networks, torch.zeros_like(networks.flat), torch.zeros_like(networks.flat))
    optimizer.set_rates([dict.fromkeys(networks.shapes, config.lr)])
    Y = torch.randn(networks.params["W"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for number in range(1, 1500):
        networks.grads["W"].copy_(networks.params["W"] - Y)
        optimizer.step(number)
    table = stacked(networks.params["W"][0].numpy(), 2)
    U, sigma, V = svd(stacked(Y[0].numpy(), 2), full_matrices=False)
    assert sigma.min() > 1.5
    np.testing.assert_allclose(table, U * (sigma - 1.5) @ V, atol=1e-9)


@pytest.mark.slow
def test_the_penalty_lowers_the_rank(tmp_path: Path) -> None:
    """The nuclear norm concentrates the tables on few singular values, L2 does not; /metrics follow the checkpoints."""
    ranks = {}
    for penalty in ("l2", "nuclear"):
        path = tmp_path / f"{penalty}.h5"
        config = dataclasses.replace(NUCLEAR, penalty=penalty, embed_dim=7, weight_decay=0.02, steps=1000)
        train(config, path, quiet=True)
        with RunReader(path) as reader:
            sigma, metrics = svdvals(stacked(reader.checkpoint(1000)["W"], 2)), reader.metrics()
        assert metrics["nuclear_norm"][-1] == pytest.approx(sigma.sum(), rel=1e-5)
        ranks[penalty] = metrics["effective_rank"][-1]
    assert ranks["nuclear"] < ranks["l2"] - 1


def test_the_regularised_objective_is_refused(tmp_path: Path) -> None:
    """The nuclear norm has no Hessian at the tables that it makes; L2 on tables has one."""
    data = dataclasses.asdict(make_data(NUCLEAR))
    plain = models.of_config(dataclasses.replace(NUCLEAR, penalty="l2"), data, "cpu")
    assert plain.decay("regularised") == 0.05
    with pytest.raises(
        ConfigError, match="penalty nuclear is not differentiable where a singular value is 0"
    ) as caught:
        models.of_config(NUCLEAR, data, "cpu").decay("regularised")
    assert caught.value.hint == "use --objective data"
    apart = models.of_config(dataclasses.replace(NUCLEAR, penalty="l2", weight_decay_V=0.1), data, "cpu")
    with pytest.raises(ConfigError, match="V has a weight decay of its own, 0.1"):
        apart.decay("regularised")
