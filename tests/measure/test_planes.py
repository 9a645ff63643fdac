"""Planes of random directions and of the path of a training: against Li et al.'s code, NumPy's SVD and the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TINY
from helpers.commands import Refusal
from helpers.matrices import draw
from torch import Tensor, nn

import landscape
from landscape import Objective, Recorder, pca_plane, random_plane, slice_plane
from landscape.cli import main as cli
from landscape.curvature.planes import Normalisation
from landscape.errors import NumericsError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))


def pieces(model: nn.Module, direction: Tensor) -> list[Tensor]:
    params = list(model.parameters())
    return [x.view_as(p) for x, p in zip(direction.split([p.numel() for p in params]), params, strict=True)]


@pytest.mark.parametrize("normalisation", ["filter", "layer", "none"])
def test_random_directions_are_those_of_the_papers_code(normalisation: Normalisation) -> None:
    """Its normalize_directions_for_weights, from raw directions of the same seed."""
    model = net()
    params = dict(model.named_parameters())
    raw = random_plane(params, 3, "none", biases=True)
    for first, expected in zip(random_plane(params, 3, normalisation).T, raw.T, strict=True):
        for d, r, w in zip(pieces(model, first), pieces(model, expected), model.parameters(), strict=True):
            if w.dim() <= 1:
                r = torch.zeros_like(r)
            elif normalisation == "filter":
                r = torch.stack([x * (y.norm().double() / x.norm()) for x, y in zip(r, w, strict=True)])
            elif normalisation == "layer":
                r = r * (w.norm() / r.norm())
            torch.testing.assert_close(d, r, rtol=1e-6, atol=1e-7)


def test_biases_move_by_their_norm() -> None:
    """Each as one filter; the weights move as without them."""
    model = net()
    params = dict(model.named_parameters())
    for plain, moved in zip(random_plane(params).T, random_plane(params, biases=True).T, strict=True):
        for x, y, p in zip(pieces(model, plain), pieces(model, moved), params.values(), strict=True):
            if p.ndim < 2:
                assert float(y.norm()) == pytest.approx(float(p.detach().double().norm()), rel=1e-12)
            else:
                assert torch.equal(x, y)


def test_the_plane_of_a_path_is_that_of_a_singular_value_decomposition() -> None:
    """Its span, shares and coordinates; with the sign that has the start at the lower left."""
    points = draw(7, 9, seed=0) * torch.linspace(3, 0.1, 9)
    plane = pca_plane([{"a": p[:4], "b": p[4:].view(1, 5)} for p in points])
    _, values, rows = np.linalg.svd((points - points.mean(0)).numpy(), full_matrices=False)
    np.testing.assert_allclose(plane.share, values[:2] ** 2 / (values**2).sum(), rtol=1e-12)
    directions = plane.directions.numpy()
    np.testing.assert_allclose(directions @ directions.T, rows[:2].T @ rows[:2], atol=1e-12)
    offsets = (points - points[-1]).numpy()
    np.testing.assert_allclose(np.column_stack([plane.first, plane.second]), offsets @ directions, atol=1e-12)
    assert max(plane.first[0], plane.second[0]) <= 0
    outside = offsets - offsets @ directions @ directions.T
    sizes, lengths = (np.linalg.norm(x[:-1], axis=1) for x in (outside, offsets))
    np.testing.assert_allclose(plane.outside[:-1], sizes / lengths, rtol=1e-9)
    assert plane.outside[-1] == 0


def test_a_path_that_diverged_is_refused() -> None:
    with pytest.raises(NumericsError, match="parameter 'w' has 1 NaN"):
        pca_plane([{"w": torch.tensor([1.0, x])} for x in (0.0, np.nan, 1.0)])


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_plane_of_a_path_of_any_size(scale: float) -> None:
    """The same shares and directions, and coordinates in its units."""
    points = [{"w": x} for x in draw(5, 6, seed=5)]
    one, other = pca_plane(points), pca_plane([{"w": scale * p["w"]} for p in points])
    np.testing.assert_allclose(other.share, one.share, rtol=1e-12)
    np.testing.assert_allclose(other.first, scale * one.first, rtol=1e-9, atol=1e-12 * scale)
    torch.testing.assert_close(other.directions, one.directions, rtol=0, atol=1e-12)


def test_a_path_in_a_plane_has_all_its_variance_there() -> None:
    """And none outside, however flat it is."""
    span = torch.linalg.qr(draw(50, 2, seed=1))[0]
    along = torch.tensor([[0.0, 0.0], [1.0, 1e-4], [2.0, 0.0], [3.0, 1e-4]]).double()
    plane = pca_plane([{"w": 1 + span @ x} for x in along])
    assert plane.share.sum() == pytest.approx(1, abs=1e-12)
    assert plane.outside.max() <= 1e-7
    torch.testing.assert_close(plane.directions.T @ plane.directions, torch.eye(2).double(), rtol=0, atol=1e-13)


def test_a_random_walk_has_the_shares_of_theory() -> None:
    """6/pi^2 and a quarter of it (arXiv 1806.08805)."""
    walk = draw(400, 4000, seed=2).cumsum(0)
    share = pca_plane([{"w": x} for x in walk]).share
    np.testing.assert_allclose(share, [6 / np.pi**2, 6 / np.pi**2 / 4], rtol=0.1)


def test_the_loss_on_a_plane_of_two_ranges() -> None:
    """Of a quadratic, in units of the directions' lengths."""
    A = torch.diag(torch.arange(1.0, 7.0).double())
    objective = Objective(lambda P, x: x * (P["w"] @ A @ P["w"]), torch.ones(1, 1), torch.zeros(1, 1), nn.L1Loss())
    params, plane = {"w": draw(6, seed=3)}, 3 * draw(6, 2, seed=4)
    t, s = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 1.0])
    points = [[params["w"] + x * plane[:, 0] + y * plane[:, 1] for x in t] for y in s]
    expected = [[float(w @ A @ w) for w in row] for row in points]
    np.testing.assert_allclose(slice_plane(objective, params, ["w"], plane, t, s), expected, rtol=1e-13)


@pytest.mark.slow
def test_the_command_draws_a_random_plane(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The losses in the CSV file are those of the plain network, moved by directions of the stated lengths."""
    command = ["slice", str(tiny_run), "--step", "60", "--plane", "random", "--seed", "5", "--out", str(tmp_path / "s")]
    assert cli.run([*command, "--plane-points", "5", "--quiet", "--formats", "png"]) == 0
    table = pd.read_csv(tmp_path / "s/random.csv").set_index("part")
    network = landscape.network(tiny_run, 60)
    params = dict(network.parameters)
    directions = random_plane(params, 5)
    np.testing.assert_allclose(table.loc[["first direction", "second direction"], "length"], directions.norm(dim=0))
    originals = {name: p.detach().clone() for name, p in params.items()}
    for _, row in table.loc["plane"].iloc[::4].iterrows():
        step = directions @ torch.tensor([row["first"], row["second"]], dtype=torch.float64)
        moved = step.split([p.numel() for p in params.values()])
        with torch.no_grad():
            for (name, p), piece in zip(params.items(), moved, strict=True):
                p.copy_(originals[name] + piece.view_as(p))
            loss = float(network.loss(network.model(network.inputs), network.targets))
        assert row["loss"] == pytest.approx(loss, rel=1e-9)
    printed = capsys.readouterr().out
    assert "within 1 filter-normalised step" in printed
    assert "second direction: curvature" in printed
    assert f"{tmp_path / 's/random.png'}\n" in printed


@pytest.mark.slow
def test_the_command_draws_the_path(tiny_run: Path, tmp_path: Path) -> None:
    """Up to the step, which is at 0; the checkpoints are within the range."""
    command = ["slice", str(tiny_run), "--step", "40", "--plane", "pca", "--out", str(tmp_path / "s"), "--quiet"]
    assert cli.run([*command, "--plane-points", "5"]) == 0
    table = pd.read_csv(tmp_path / "s/pca.csv").set_index("part")
    path, plane = table.loc["path"], table.loc["plane"]
    steps = [step for step in landscape.open(tiny_run).checkpoints["step"].values if step <= 40]
    assert path["step"].tolist() == steps
    assert path.iloc[-1][["first", "second"]].abs().max() == 0
    for name in ("first", "second"):
        assert plane[name].min() < path[name].min()
        assert path[name].max() < plane[name].max()
    assert 0.5 < table["share"].sum() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "pca"])
def test_planes_of_a_recorded_run_and_of_rows(tmp_path: Path, kind: str) -> None:
    """A network of one's own, and a block of rows, outside of which nothing moves."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom landscape import ModuleProblem\n\ndef factory():\n"
        "    x = torch.arange(12.0).view(6, 2) / 8\n"
        "    return ModuleProblem(torch.nn.Linear(2, 3), x, torch.arange(6) % 3)\n"
    )
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    with Recorder(tmp_path / "run.h5", model) as recorder:
        for step in range(4):
            recorder.checkpoint(step)
            with torch.no_grad():
                model.weight[:2] += torch.randn(2, 2)
    command = ["slice", str(tmp_path / "run.h5"), "--step", "3", "--problem", f"{tmp_path}/model.py:factory", "--quiet"]
    command += ["--plane", kind, "--plane-points", "3", "--radius", "0.5"]
    for name, block in (("rows", "weight[0:2]"), ("all", "all")):
        assert cli.run([*command, "--block", block, "--out", str(tmp_path / name)]) == 0
    rows, whole = (pd.read_csv(tmp_path / name / f"{kind}.csv").set_index("part") for name in ("rows", "all"))
    if kind == "pca":
        # The other row and the bias did not move.
        np.testing.assert_allclose(rows.loc["plane", "loss"], whole.loc["plane", "loss"], rtol=1e-9)
    else:
        assert (rows["length"].dropna() < whole["length"].dropna()).all()


def test_refusals(run_file: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """Options of another plane, a path of too few steps, a block that does not move, and values beyond all floats."""
    assert TINY.steps == 60
    command = ["slice", run_file, "--out", tmp_path / "s", "--quiet", "--step"]
    planes = [*command, "60", "--plane"]
    assert_refused([*planes, "pca", "--seed", "3"], 2, "seed is of plane random, but plane is pca", "--plane random")
    assert_refused([*planes, "random", "--k", "3"], 2, "k is of plane eigen", "leave out --k")
    assert_refused([*planes, "grid"], 2, "grid", "eigen")
    assert_refused([*command, "0", "--plane", "pca"], 2, "1 stored steps up to 0", "--plane random")
    assert_refused([*planes, "random", "--block", "b1"], 1, "the random directions over b1 are 0", "--biases")
    assert_refused([*planes, "random", "--radius", "1e300"], 1, "the objective overflows", "lower --radius")
