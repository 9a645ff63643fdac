"""Networks whose tables are parameters: closed forms and measurements against torch's own derivatives."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import analyse
from helpers.matrices import assert_close
from torch import Tensor, nn

from landscape import models
from landscape.choices.activations import ACTIVATIONS
from landscape.config import HessianConfig, TrainConfig
from landscape.curvature.operators import HessianOperator
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.problem import Problem, tensors
from landscape.models.tasks import make_data
from landscape.training.loop import train


def network(**changes: Any) -> tuple[Problem, dict[str, Tensor]]:
    """A run's problem, and its parameters at the start."""
    config = TrainConfig(**{"p": 5, "tokens": 2, "embed_dim": 3, "hidden": 6, "dtype": "float64"} | changes)
    data = make_data(config)
    problem = models.of_config(config, {"tokens": data.tokens, "labels": data.labels, "split": data.split}, "cpu")
    return problem, {n: p.detach() for n, p in MLP(config).named_parameters()}


def torchs_hessian(problem: Any, params: dict[str, Tensor]) -> Tensor:
    """torch.func.hessian over all parameters of the network of one-hot inputs, or of the tokens' numbers."""
    train = problem.train
    tokens = problem.tokens.double()
    z = (
        tokens
        if train.model == "scalar"
        else nn.functional.one_hot(problem.tokens, train.num_tokens).double().flatten(1)
    )

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split([p.numel() for p in params.values()])
        P = {n: v.view_as(p) for (n, p), v in zip(params.items(), pieces, strict=True)}
        hidden = ACTIVATIONS[train.activation](nn.functional.linear(z, P["W"], P.get("b1")))
        return nn.functional.cross_entropy(nn.functional.linear(hidden, P["V"], P.get("b2")), problem.labels)

    matrix: Tensor = torch.func.hessian(loss)(torch.cat([p.reshape(-1) for p in params.values()]))
    return matrix


@pytest.mark.parametrize("model", ["onehot", "tables", "scalar"])
@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_closed_form_equals_torchs_hessian(activation: str, bias: bool, tokens: int, model: str) -> None:
    """All sub-blocks in any order, symmetric to the last bit; the decay is on their diagonal."""
    problem, params = network(activation=activation, bias=bias, tokens=tokens, model=model)
    whole, structure = torchs_hessian(problem, params), problem.structure(params, 0.25)
    assert structure is not None
    rows = dict(zip(params, torch.arange(len(whole)).split([p.numel() for p in params.values()]), strict=True))
    pairs = [list(pair) for pair in itertools.permutations(params, 2)]
    for block in (*([n] for n in params), *pairs, list(params), list(params)[::-1]):
        index, matrix = torch.cat([rows[n] for n in block]), structure.dense(block)
        if ("b1" in block and "W" not in block) or ("b2" in block and "V" not in block):
            assert matrix is None
            continue
        assert matrix is not None
        assert torch.equal(matrix, matrix.T)
        assert_close(matrix, whole[index][:, index] + 0.25 * torch.eye(len(index)), 1e-12)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gauss_newton_part(activation: str) -> None:
    """Without residuals the closed form is J^T A J of automatic differentiation."""
    problem, params = network(activation=activation, tokens=4, model="onehot")
    structure = problem.structure(params, 0.0)
    assert structure is not None
    for block in (["W"], ["W", "V"], list(params)):
        expected = HessianOperator(problem.objective(0.0), params, block, part="gauss_newton").dense()
        matrix = structure.dense(block, gauss_newton=True)
        assert matrix is not None
        assert_close(matrix, expected, 1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [2, 4])
def test_what_no_sample_sees_is_null(tokens: int, bias: bool) -> None:
    """Unused rows of tables, and constants moved between slots and the bias; as many as the inputs lack in rank."""
    problem, params = network(tokens=tokens, bias=bias, model="onehot", activation="gelu", train_fraction=0.8)
    H, structure = HessianOperator(problem.objective(0.0), params), problem.structure(params, 0.0)
    x = problem.tokens  # type: ignore[attr-defined]
    z = nn.functional.one_hot(x, 5 + tokens - 2).double().flatten(1)
    for block in (["W"], ["W", "V"], ["V", "W"], list(params)):
        null = structure.null_vectors(block) if structure else None
        assert null is not None
        inputs = torch.cat([z, torch.ones(len(z), 1).double()], 1) if "b1" in block else z
        lacking = inputs.shape[1] - int(torch.linalg.matrix_rank(inputs))
        # By V the classes' means, by b2 one more.
        assert null.dimension == 6 * lacking + (6 if "V" in block else 0) + ("b2" in block)
        assert lacking == (1 if tokens == 2 else 2 * 2 + 2 * 6 + 3) + ("b1" in block)
        eye = torch.eye(H.block(block).shape[0], dtype=torch.float64)
        kept = null.remove(eye)
        assert float((kept @ kept - kept).norm()) <= 1e-13
        assert float(torch.trace(eye - kept)) == pytest.approx(null.dimension, rel=1e-12)
        torch.testing.assert_close(null.remove(eye[:, 3]), kept[:, 3], rtol=0, atol=1e-15)
        dense = H.block(block).dense()
        assert float((dense @ (eye - kept)).norm()) <= 1e-13 * float(dense.norm())
    regularised = problem.structure(params, 0.1)
    assert regularised is not None
    assert regularised.null_vectors(["W", "V"]) is None


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tokens"), [("onehot", 2), ("tables", 4)])
@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_a_run_is_measured(model: Any, tokens: int, method: str, tmp_path: Path) -> None:
    """Ends and saddle indices of blocks and of rows are those of torch's Hessian; dense ones take no product."""
    run, out = tmp_path / "run.h5", tmp_path / "h.h5"
    blocks = ("W", "V", "W,V", "all", "W[0:2]", "W[1:4],V")
    config = dataclasses.replace(TINY, model=model, p=5, hidden=6, tokens=tokens, dtype="float64")
    train(config, run, quiet=True)
    row = analyse(run, HessianConfig(steps="60", blocks=blocks, k=3, method=method), out, quiet=True).row(60)
    with RunReader(run) as reader:
        problem = models.of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(60))
    H = torchs_hessian(problem, params)
    width, start, rows = params["W"].shape[1], 0, {}
    for name, p in params.items():
        rows[name] = range(start, start + p.numel())
        start += p.numel()
    W = rows["W"]
    picked = {
        "W": [*W],
        "V": [*rows["V"]],
        "W,V": [*W, *rows["V"]],
        "all": [*range(len(H))],
        "W[0:2]": [*W[: 2 * width]],
        "W[1:4],V": [*W[width : 4 * width], *rows["V"]],
    }
    for i, block in enumerate(blocks):
        values = np.linalg.eigvalsh(H[picked[block]][:, picked[block]].numpy())
        norm = np.abs(values).max()
        eigenvalues = row["eigenvalues"][i]
        np.testing.assert_allclose(eigenvalues, [values[:3], values[::-1][:3]], atol=1e-6 * norm)
        index = int((values < -row["inertia_tolerance"][i]).sum())
        assert row["inertia_lower"][i] <= index <= row["inertia_upper"][i]
        if method == "dense":
            assert row["inertia"][i, 0] == index
            assert row["num_products"][i] == 0
