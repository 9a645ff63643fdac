"""Critical points: found from nearby, certified by their index, told apart from points that are only flat."""

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
from helpers.bilinear import SUBSETS, balanced, bilinear
from helpers.hessians import HessianReader
from torch import Tensor

from landscape.cli import main as cli
from landscape.curvature.critical import find_critical_point
from landscape.curvature.inertia import saddle_index
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.models.embedding_mlp.problem import plain_model
from landscape.training.loop import train

SMOOTH = dataclasses.replace(TINY, activation="tanh", steps=400, checkpoint_every=200, weight_decay=0.03)


def nearby(x: Tensor, size: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return x + size * torch.randn(x.shape, generator=generator, dtype=x.dtype)


@pytest.mark.parametrize("S", SUBSETS)
def test_every_saddle_of_the_bilinear_problem_is_found_from_nearby(S: tuple[int, ...]) -> None:
    """From a point beside a balanced critical point the search returns to one of the same index (F3)."""
    Y, W, E, sigma = balanced(S)
    objective = bilinear(Y)
    start = {"W": nearby(W, 1e-2, 1), "E": nearby(E, 1e-2, 2)}
    point = find_critical_point(objective, start)
    assert point.status == "critical"
    assert point.grad_norm <= 1e-10
    gradient = objective.gradient(point.params)
    assert float(torch.cat([g.reshape(-1) for g in gradient.values()]).norm()) == pytest.approx(point.grad_norm)
    k, rest = W.shape[1], [i for i in range(len(sigma)) if i not in S]
    expected = (k - len(S)) * len(rest) + sum(sigma[i] > sigma[j] for j in S for i in rest)
    index = saddle_index(HessianOperator(objective, point.params), rel_tau=1e-6)
    assert (index.negative, index.level) == (expected, "certified")


@pytest.mark.slow
def test_an_inflection_is_gradient_flat_and_not_critical() -> None:
    """Where the slope is smallest but not zero, and the curvature zero, the search says so."""
    cubic = Objective(lambda P, x: (P["x"] ** 3 / 3 + 1e-3 * P["x"])[None], torch.zeros(1, 1), torch.zeros(1, 1),
                      loss=lambda out, _: out[:, 0])  # fmt: skip
    point = find_critical_point(cubic, {"x": torch.tensor([0.3], dtype=torch.float64)}, max_hvps=2000)
    assert point.status == "gradient-flat"
    assert point.grad_norm == pytest.approx(1e-3, rel=1e-2)
    assert abs(float(point.params["x"])) < 1e-2
    assert point.flatness <= 1e-2


def test_a_search_that_is_stopped_is_unfinished() -> None:
    """Neither the budget nor a stop signal is taken for an arrival."""
    Y, W, E, _ = balanced((0,))
    start = {"W": nearby(W, 0.5, 1), "E": nearby(E, 0.5, 2)}
    assert find_critical_point(bilinear(Y), start, max_hvps=1).status == "unfinished"
    seen: list[tuple[float, int]] = []
    point = find_critical_point(bilinear(Y), start, progress=lambda g, n: bool(seen.append((g, n))) or True)
    assert (point.status, len(seen)) == ("unfinished", 1)
    assert seen[0] == (point.grad_norm, point.num_products)


def test_a_critical_point_is_left_as_it_is() -> None:
    """No step is taken where the gradient is already zero."""
    Y, W, E, _ = balanced((0, 1))
    point = find_critical_point(bilinear(Y), {"W": W, "E": E})
    assert (point.status, point.iterations, point.num_products) == ("critical", 0, 0)
    assert torch.equal(point.params["W"], W)


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained smooth net and the file of the critical point beside its last checkpoint. Read only."""
    run = tmp_path_factory.mktemp("critical") / "smooth.h5"
    train(SMOOTH, run, quiet=True)
    code = cli.run(["critical", str(run), "--step", "400", "--quiet", "--blocks", "E", "W", "E,W", "all"])
    assert code == 0
    return run, run.with_name("smooth.critical-400.h5")


@pytest.mark.slow
def test_the_refined_point_is_critical_for_an_independent_model(refined: tuple[Path, Path]) -> None:
    """From the file alone: the gradient of a plain PyTorch model vanishes, and the index is that of its Hessian."""
    run, path = refined
    with h5py.File(path) as file, h5py.File(run) as source:
        point = {n: file["critical_point"][n][0] for n in ("E", "W", "b1", "V", "b2")}
        stated = float(file["critical_point/grad_norm"][0])
        status = file["critical_point/status"].attrs["flag_meanings"].split()[file["critical_point/status"][0]]
        index, tolerance = file["inertia"][0, 3, 0], file["inertia_tolerance"][0, 3]
        rows = source["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(source["data"][n][()][rows]).long() for n in ("tokens", "labels"))
        before = {n: source["checkpoints"][n][-1].astype(float) for n in point}
        distance = np.sqrt(sum(((point[n] - before[n]) ** 2).sum() for n in point))
        assert float(file["critical_point/distance"][0]) == pytest.approx(distance, rel=1e-9)
    assert status == "critical"
    model, named = plain_model(SMOOTH, point, torch.device("cpu"))
    names, sizes = list(named), [p.numel() for p in named.values()]
    keys = {id(p): k for k, p in model.named_parameters()}

    def loss(theta: Tensor) -> Tensor:
        pieces = {keys[id(named[n])]: v.view_as(named[n]) for n, v in zip(names, theta.split(sizes), strict=True)}
        logits = torch.func.functional_call(model, pieces, (tokens,))
        decay = SMOOTH.weight_decay / 2 * theta.square().sum()
        return torch.nn.functional.cross_entropy(logits, labels) + decay

    theta = torch.cat([p.detach().reshape(-1) for p in named.values()]).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(theta), theta)
    assert float(gradient.norm()) <= 1.1e-10
    assert float(gradient.norm()) == pytest.approx(stated, abs=1e-13)
    H = torch.autograd.functional.hessian(loss, theta.detach())
    assert index == int((torch.linalg.eigvalsh(H) < -tolerance).sum())


def test_f7b_at_a_stationary_point(refined: tuple[Path, Path]) -> None:
    """E^T E = sum_k W_k^T W_k, and the data Hessian has eigenvalue -+ weight decay on the gauge directions."""
    with h5py.File(refined[1]) as file, h5py.File(refined[0]) as source:
        point = {n: torch.from_numpy(file["critical_point"][n][0]) for n in ("E", "W", "b1", "V", "b2")}
        rows = source["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(source["data"][n][()][rows]).long() for n in ("tokens", "labels"))
    d = point["E"].shape[1]
    slots = point["W"].reshape(len(point["W"]), -1, d)
    gram = point["E"].T @ point["E"]
    torch.testing.assert_close(gram, torch.einsum("hka,hkb->ab", slots, slots), atol=1e-8, rtol=0)
    rank = int((torch.linalg.eigvalsh(gram) > 1e-8).sum())

    def logits(P: Any, x: Tensor) -> Tensor:
        return torch.tanh(P["E"][x].flatten(1) @ P["W"].T + P["b1"]) @ P["V"].T + P["b2"]

    H = HessianOperator(Objective(logits, tokens, labels), point, ["E", "W"]).dense()
    values = torch.linalg.eigvalsh(H)
    dead = d - rank
    antisymmetric, symmetric = (d * (d + s) // 2 - dead * (dead + s) // 2 for s in (-1, 1))
    for sign, count in ((-1, antisymmetric), (1, symmetric)):
        near = (values - sign * SMOOTH.weight_decay).abs() < 1e-7
        assert int(near.sum()) >= count > 0


@pytest.mark.slow
def test_a_search_is_resumed_and_never_overwritten(
    refined: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short search ends unfinished with exit code 3; the same command continues, other settings are refused."""
    run, out = refined[0], tmp_path / "short.h5"
    command = ["critical", str(run), "--step", "400", "--quiet", "--blocks", "E,W", "--out", str(out)]
    assert cli.run([*command, "--search-hvps", "600"]) == 3
    assert "not critical" in capsys.readouterr().out
    first = HessianReader(out).critical_point(400)
    assert cli.run([*command, "--rtol", "1e-3"]) == 1
    assert "use --overwrite to replace it" in capsys.readouterr().err
    assert cli.run([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["critical_point"]["status"] == "critical"
    assert document["critical_point"]["num_products"] > first["num_products"]
    assert document["critical_point"]["start_grad_norm"] == pytest.approx(first["start_grad_norm"], rel=1e-12)
    other = [*command[:3], "200", *command[4:]]
    assert cli.run([*other, "--resume"]) == 1
    assert "does not start from step 200" in capsys.readouterr().err
    assert cli.run([*command, "--search-tol", "2", "--overwrite"]) == 2
    assert "tol is 2.0" in capsys.readouterr().err
