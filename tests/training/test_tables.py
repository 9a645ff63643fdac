"""Networks of free tables: the start, the penalty, and every command on their files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import analyse
from helpers.run_files import contents
from scipy.linalg import svd, svdvals

from landscape import models
from landscape.cli import main as cli
from landscape.config import HessianConfig, TrainConfig, replace
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
    found = stacked(networks.params["W"][0].numpy(), 2)
    U, sigma, V = svd(stacked(Y[0].numpy(), 2), full_matrices=False)
    assert sigma.min() > 1.5
    np.testing.assert_allclose(found, U * (sigma - 1.5) @ V, atol=1e-9)


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


@pytest.mark.slow
def test_the_tables_alone_have_no_saddle(tmp_path: Path) -> None:
    """With ReLU the block W has no negative eigenvalue (F8), though its pair with V has."""
    train(dataclasses.replace(NUCLEAR, dtype="float64"), tmp_path / "run.h5", quiet=True)
    result = analyse(tmp_path / "run.h5", HessianConfig(steps="0,20,60", blocks=("W", "W,V")), quiet=True)
    for step in (0, 20, 60):
        row = result.row(step)
        assert row["inertia"][:, 0].tolist()[0] == 0
        assert row["inertia"][1, 0] > 0
        assert result.spectra(step)["W"].min() >= -1e-12 * row["operator_norm"][0]


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


def test_files_without_a_penalty_have_l2(tiny_run: Path, tmp_path: Path) -> None:
    """The config of a run names its penalty; one of an older file means L2, and is resumed with it only."""
    stored = json.loads(h5py.File(tiny_run).attrs["config"])
    assert stored.pop("penalty") == "l2"
    assert replace(TrainConfig(), stored) == TINY
    path = tmp_path / "run.h5"
    train(NUCLEAR, path, quiet=True)
    with RunReader(path) as reader:
        assert replace(TrainConfig(), reader.config) == NUCLEAR
    with pytest.raises(ConfigError, match="penalty is l2, but the run was started with nuclear"):
        train(dataclasses.replace(NUCLEAR, penalty="l2", steps=80), path, resume=True, quiet=True)


def test_a_diverging_run_says_so(tmp_path: Path) -> None:
    """Tables out of range are not taken for tables of zeros."""
    config = dataclasses.replace(NUCLEAR, optimizer="sgd", lr=1e200, weight_decay=1e-210, dtype="float64")
    assert train(config, tmp_path / "run.h5", quiet=True).status == "diverged"
    assert np.isnan(contents(tmp_path / "run.h5")["metrics/nuclear_norm"][-1])


@pytest.mark.slow
@pytest.mark.long
def test_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train two seeds, then info, check, hessian with --verify, slice, critical, report and a sweep."""
    options = ["--p", "5", "--hidden", "6", "--embed-dim", "3", "--tokens", "2", "--activation", "quadratic"]
    options += ["--model", "tables", "--penalty", "nuclear", "--steps", "30", "--batch-size", "8", "--device", "cpu"]
    assert cli.run(["train", *options, "--seeds", "2", "--out", str(tmp_path / "run.h5"), "--quiet"]) == 0
    run = str(tmp_path / "run-s1.h5")
    for argv in (
        ["info", run],
        ["check", run],
        ["hessian", run, "--steps", "0,30", "--verify", "--device", "cpu", "--quiet"],
        ["slice", run, "--step", "30", "--block", "W", "--device", "cpu", "--out", str(tmp_path / "slices")],
        [
            "critical",
            "--run",
            run,
            "--step",
            "30",
            "--blocks",
            "W",
            "--objective",
            "data",
            "--device",
            "cpu",
            "--quiet",
        ],
        ["report", run, str(tmp_path / "run-s0.h5"), "--out", str(tmp_path / "report")],
    ):
        assert cli.run(argv) in ((0, 3) if argv[0] == "critical" else (0,)), argv
    page = (tmp_path / "report" / "report.html").read_text()
    assert "model tables" in page
    assert "penalty nuclear" in page
    train_options = {"p": 5, "hidden": 6, "embed_dim": 3, "tokens": 2, "steps": 20, "model": "tables", "device": "cpu"}
    plan = {"name": "tables", "preset": "quick", "train": train_options, "grid": {"penalty": ["l2", "nuclear"]}}
    (tmp_path / "sweep.json").write_text(json.dumps({**plan, "seeds": [0]}))
    assert cli.run(["sweep", "--config", str(tmp_path / "sweep.json"), "--out", str(tmp_path / "sweep")]) == 0
    capsys.readouterr()
