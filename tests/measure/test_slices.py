"""Slices along eigenvectors, eigenvectors followed over steps, and the edge of stability."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TINY
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from torch import Tensor

from landscape import Recorder
from landscape.choices.optimizers import SGD, Adam
from landscape.cli import main as cli
from landscape.config import AnalysisConfig, HessianConfig, SliceConfig
from landscape.curvature.eigsh import eigsh, track
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, MatrixOperator
from landscape.curvature.slices import slice_lines, slice_plane
from landscape.errors import ArgumentError
from landscape.measure.slices import slice as slice_checkpoint
from landscape.training.loop import train


def net(activation: torch.nn.Module) -> tuple[Objective, dict[str, Tensor]]:
    """A small classifier with an unnormalised, anisotropic parameter scale."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), activation, torch.nn.Linear(8, 3)).double()
    params = {n: p.detach() * (5.0 if n == "0.weight" else 1.0) for n, p in model.named_parameters()}
    return Objective(model, x, y, weight_decay=0.01, chunk_size=16), params


@pytest.mark.slow
@pytest.mark.parametrize("block", [["0.weight"], ["0.weight", "2.weight"]])
def test_the_curvature_of_a_slice_is_its_eigenvalue(block: list[str]) -> None:
    """To 1e-6 by differences of the drawn values, and to rounding by automatic differentiation."""
    objective, params = net(torch.nn.Tanh())
    eigen = eigsh(HessianOperator(objective, params, block), 2)
    h = 1e-3
    t = h * np.arange(-3, 4)
    for end in range(2):
        lines = slice_lines(objective, params, block, eigen.vectors[end], t)
        sixth = lines.loss @ np.array([2, -27, 270, -490, 270, -27, 2]) / (180 * h**2)
        np.testing.assert_allclose(sixth, eigen.values[end], atol=1e-6 * eigen.operator_norm)
        np.testing.assert_allclose(lines.curvature, eigen.values[end], atol=1e-13)
        assert lines.loss[:, 3] == pytest.approx(lines.value, rel=1e-14)
        slope = lines.loss @ np.array([-1, 9, -45, 0, 45, -9, 1]) / (60 * h)
        np.testing.assert_allclose(lines.slope, slope, atol=1e-10)


@pytest.mark.slow
def test_relu_slices_are_exact_at_the_checkpoint() -> None:
    """With kinks, where differences fail, the second derivative at 0 is still the eigenvalue."""
    objective, params = net(torch.nn.ReLU())
    eigen = eigsh(HessianOperator(objective, params), 3)
    lines = slice_lines(objective, params, list(params), eigen.vectors[0], np.zeros(1))
    np.testing.assert_allclose(lines.curvature, eigen.values[0], atol=1e-13)


def test_a_loss_that_draws_numbers_has_no_picture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)).double()
    objective = Objective(model, torch.ones(8, 3).double(), torch.arange(8) % 2)
    params = dict(model.named_parameters())
    plane = torch.nn.functional.normalize(torch.ones(26, 2).double(), dim=0)
    for draw in (slice_plane, slice_lines):
        with pytest.raises(ArgumentError, match=r"deterministic|random"):
            draw(objective, params, list(params), plane, np.linspace(-1, 1, 3))


def test_the_plane_holds_the_lines() -> None:
    """The first direction runs along the columns, the second along the rows."""
    objective, params = net(torch.nn.Tanh())
    vectors = eigsh(HessianOperator(objective, params, ["0.weight"]), 2).vectors[1]
    t = np.linspace(-0.5, 0.5, 5)
    lines = slice_lines(objective, params, ["0.weight"], vectors, t).loss
    plane = slice_plane(objective, params, ["0.weight"], vectors, t)
    np.testing.assert_allclose(plane[2], lines[0], rtol=1e-13)
    np.testing.assert_allclose(plane[:, 2], lines[1], rtol=1e-13)
    W = params["0.weight"] + 0.5 * vectors[:, 0].view(8, 5) - 0.5 * vectors[:, 1].view(8, 5)
    assert plane[0, 4] == pytest.approx(objective.value({**params, "0.weight": W}), rel=1e-13)


@pytest.mark.parametrize("targets", ["torch.ones(6, 1)", "torch.full((6, 1), 9.0)", "x @ torch.ones(2, 1)"])
def test_objectives_that_are_negative_or_zero_have_slices(tmp_path: Path, targets: str) -> None:
    """Of (f - y)^2 - c the slices are parabolas, of the default radius; the last one is 0 where it begins."""
    shift = 0 if "@" in targets else 100
    (tmp_path / "model.py").write_text(
        "import torch\nfrom landscape import ModuleProblem\n\ndef factory():\n"
        "    x = torch.arange(12.0).view(6, 2) / 8\n"
        f"    loss = lambda f, y: (f - y).square().mean(1) - {shift}\n"
        f"    return ModuleProblem(torch.nn.Linear(2, 1, bias=False), x, {targets}, loss)\n"
    )
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(1.0)
    with Recorder(tmp_path / "run.h5", model) as recorder:
        recorder.checkpoint(0)
    analysis = AnalysisConfig(problem=f"{tmp_path}/model.py:factory", device="cpu")
    slices = slice_checkpoint(tmp_path / "run.h5", 0, SliceConfig(points=5), analysis)
    assert not slices.unit
    radius = (2 * abs(slices.value) / np.abs(slices.eigenvalues).max()) ** 0.5 if shift else 1.0
    np.testing.assert_allclose(slices.t, radius * np.linspace(-1, 1, 5), rtol=1e-12)
    for i, loss in enumerate(slices.loss):
        parabola = slices.value + slices.slope[i] * slices.t + slices.eigenvalues[i] * slices.t**2 / 2
        np.testing.assert_allclose(loss, parabola, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_the_command_writes_the_figure_with_its_data(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PNG, PDF, SVG and CSV; the dashed parabola in the CSV has the file's eigenvalue."""
    out = tmp_path / "slices"
    command = ["slice", str(tiny_run), "--step", "60", "--block", "W,V", "--out", str(out), "--points", "21"]
    assert cli.run([*command, "--plane-points", "7", "--radius", "0.5", "--formats", "png,pdf"]) == 0
    assert sorted(p.suffix for p in out.glob("slices.*")) == [".csv", ".pdf", ".png", ".svg"]
    table = pd.read_csv(out / "slices.csv")
    eigenvalues = analyse(tiny_run, HessianConfig(steps="60", blocks=("W,V",)), tmp_path / "h.h5", quiet=True).row(60)
    low = table[table["direction"].str.startswith("lowest 1,") & (table["curve"] == "quadratic")]
    assert low["t"].min() == -0.5
    second = np.polynomial.polynomial.polyfit(low["t"], low["loss"], 2)[2] * 2
    assert second == pytest.approx(eigenvalues["eigenvalues"][0, 0, 0], rel=1e-6)
    assert (table["direction"] == "plane").sum() == 49
    printed = capsys.readouterr().out
    assert f"lambda {eigenvalues['eigenvalues'][0, 0, 0]:.6g}" in printed
    assert f"{out / 'slices.csv'}\n" in printed


@pytest.mark.slow
def test_only_slices_are_replaced(tiny_run: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """One that stands there is kept without --overwrite, and a file of somebody else's, or edited, with it."""
    out, own = tmp_path / "slices", tmp_path / "own"
    command = ["slice", tiny_run, "--step", 60, "--block", "W", "--points", 3, "--plane-points", 3, "--quiet", "--out"]
    assert cli.run([*map(str, command), str(out)]) == 0
    figure, notes = out / "slices.svg", out / "notes.md"
    assert_refused([*command, out], 1, f"{out} exists", "--overwrite", [figure])
    notes.write_text("mine")
    assert cli.run([*map(str, command), str(out), "--overwrite"]) == 0
    assert notes.read_text() == "mine"
    figure.write_text("with my labels")
    assert_refused([*command, out, "--overwrite"], 1, f"{figure} was edited", "move it away", [figure])
    own.mkdir()
    figure = own / "slices.svg"
    figure.write_text("a photograph")
    assert_refused([*command, own, "--overwrite"], 2, f"{own} exists and is no slice", "another folder", [figure])


def test_a_refused_slice_leaves_no_folder(tmp_path: Path, assert_refused: Refusal) -> None:
    """Neither its own nor one above it; a folder that was there stays."""
    run = tmp_path / "x.h5"
    run.write_bytes(b"x")
    for folder in ("a/b", "there/b"):
        (tmp_path / "there").mkdir(exist_ok=True)
        for command in ("slice", "critical"):
            asked = [command, run, "--step", 1, "--out", tmp_path / folder / "x.h5"]
            assert_refused(asked, 1, "not an HDF5 file", "name a file")
        assert sorted(p.name for p in tmp_path.rglob("*")) == ["there", "x.h5"]


@pytest.mark.slow
def test_slices_of_unconverged_vectors_are_refused(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pictures of directions that are no eigenvectors, or that the products did not suffice for."""
    from landscape.measure import slices as sections

    def wrong(*args: object, **kwargs: object) -> object:
        eigen = eigsh(*args, **kwargs)  # type: ignore[arg-type]
        return dataclasses.replace(eigen, vectors=eigen.vectors.roll(1, dims=1))

    monkeypatch.setattr(sections, "eigsh", wrong)
    assert cli.run(["slice", str(tiny_run), "--step", "60", "--out", str(tmp_path / "s")]) == 1
    error = capsys.readouterr().err
    assert "the curvature of a slice differs from its eigenvalue by" in error
    monkeypatch.undo()
    few = ["--block", "all", "--method", "lanczos", "--max-hvps", "20"]
    assert cli.run(["slice", str(tiny_run), "--step", "60", "--out", str(tmp_path / "s"), *few]) == 1
    error = capsys.readouterr().err
    assert "block all: 4 of 4 eigenvectors have not converged" in error
    assert "hint: raise --max-hvps, or take fewer with --k" in error


def test_tracking_finds_rotations_and_crossings() -> None:
    """Two eigenvalues that change places are matched to themselves; a rotated pair keeps its subspace."""
    one = torch.diag(torch.tensor([5.0, 4.0, 3.0, 0.0, -1.0, -2.0], dtype=torch.float64))
    two = torch.diag(torch.tensor([4.0, 5.0, 3.0, 0.0, -2.5, -2.0], dtype=torch.float64))
    before, after = (eigsh(MatrixOperator(A), 2).vectors for A in (one, two))
    tracking = track(before, after)
    assert tracking.previous_rank.tolist() == [[1, 0], [1, 0]]
    assert tracking.crossings.tolist() == [1, 1]
    np.testing.assert_allclose(tracking.subspace_overlap, 1.0, atol=1e-12)
    np.testing.assert_allclose(tracking.previous_overlap, 1.0, atol=1e-12)
    angle = torch.tensor(0.3, dtype=torch.float64)
    turn = torch.eye(6, dtype=torch.float64)
    turn[2, 2] = turn[0, 0] = angle.cos()
    turn[0, 2], turn[2, 0] = -angle.sin(), angle.sin()
    tracking = track(before, eigsh(MatrixOperator(turn @ one @ turn.T), 2).vectors)
    assert tracking.subspace_overlap[1] == pytest.approx((1 + np.cos(0.3) ** 2) / 2)
    assert tracking.crossings.tolist() == [0, 0]


@pytest.mark.slow
def test_the_file_tracks_from_row_to_row(tiny_run: Path, tmp_path: Path) -> None:
    """Overlaps in the file are those of the stored eigenvectors; the first row has none; a resumed file is the same."""
    path = tmp_path / "h.h5"
    config = HessianConfig(steps="0,20,40,60", blocks=("E,W", "all"), k=4, vectors=True, device="cpu")
    whole = analyse(tiny_run, config, path, quiet=True)
    with h5py.File(path) as file:
        vectors = file["eigenvectors/all"][()]
        overlap, rank = file["subspace_overlap"][:, 1], file["previous_rank"][:, 1]
    assert np.isnan(overlap[0]).all()
    assert (rank[0] == -1).all()
    for row in range(1, 4):
        for end in range(2):
            cosines = vectors[row - 1, end] @ vectors[row, end].T
            assert overlap[row, end] == pytest.approx((cosines**2).sum() / 4, rel=1e-9)
    other = tmp_path / "other.h5"
    analyse(tiny_run, dataclasses.replace(config, steps="0,20"), other, quiet=True)
    resumed = analyse(tiny_run, config, other, quiet=True)
    for step in (40, 60):
        for name, value in whole.row(step).items():
            if name != "seconds":
                np.testing.assert_array_equal(resumed.row(step)[name], value, err_msg=name)


@pytest.mark.parametrize(("optimizer", "momentum"), [(SGD, 0.0), (SGD, 0.9), (Adam, 0.0)])
def test_edge_of_stability(optimizer: type[SGD | Adam], momentum: float) -> None:
    """The linear recurrence of a step on a quadratic contracts just below the edge and expands just above."""
    edge = optimizer(momentum).edge_of_stability()
    for factor in (0.999, 1.001):
        sharpness = factor * edge
        if optimizer is SGD:
            step = np.array([[1 + momentum - sharpness, -momentum], [1.0, 0.0]])
        else:
            # m <- 0.9 m + 0.1 g, x <- x - m with g = sharpness * x and the preconditioner at rest.
            step = np.array([[1 - 0.1 * sharpness, -0.9], [0.1 * sharpness, 0.9]])
        assert (np.abs(np.linalg.eigvals(step)).max() < 1) == (factor < 1)


def test_sharpness_is_that_of_torchs_own_optimiser(tiny_run: Path, tiny_hessian: HessianReader) -> None:
    """sharpness_gd and sharpness_adam from the dense Hessian and the second moments in the resume slot."""
    H = None
    with h5py.File(tiny_run) as file:
        slot = int(file["resume/step"][()].argmax())
        names = ("E", "W", "b1", "V", "b2")
        v = np.concatenate([file[f"resume/v_{n}"][slot].ravel() for n in names]).astype(float)
        stored = np.concatenate([file[f"moments/v_{n}"][-1].ravel() for n in names]).astype(float)
        np.testing.assert_array_equal(v, stored)
        params = {n: torch.from_numpy(file["checkpoints"][n][-1]).double() for n in names}
        rows = file["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(file["data"][n][()][rows]).long() for n in ("tokens", "labels"))
    model = lambda P, x: torch.relu(P["E"][x].flatten(1) @ P["W"].T + P["b1"]) @ P["V"].T + P["b2"]  # noqa: E731
    H = HessianOperator(Objective(model, tokens, labels), params).dense().numpy()
    rate = TINY.lr / (np.sqrt(v / (1 - 0.999**60)) + 1e-8)
    row = tiny_hessian.row(60)
    assert row["sharpness_gd"] == pytest.approx(TINY.lr * np.linalg.eigvalsh(H)[-1], rel=1e-6)
    expected = np.linalg.eigvals(np.diag(rate) @ H).real.max()
    assert row["sharpness_adam"] == pytest.approx(expected, rel=1e-6)
    assert np.isnan(tiny_hessian.row(0)["sharpness_adam"])


@pytest.mark.slow
def test_sharpness_takes_the_rates_of_its_step_in_a_warm_up(tmp_path: Path) -> None:
    """Between two rows of metrics the rates rise: they are those of the step that follows the checkpoint."""
    steps = (0, 4, 7, 15, 20)
    config = dataclasses.replace(TINY, warmup=10, steps=20, checkpoint_every=0, checkpoint_log=0, checkpoint_at=steps)
    train(config, tmp_path / "run.h5", quiet=True)
    asked = HessianConfig(steps=",".join(map(str, steps)), blocks=("all",), device="cpu")
    reader = analyse(tmp_path / "run.h5", asked, quiet=True)
    for step, share in zip(steps, (0.1, 0.5, 0.8, 1, 1), strict=True):
        row = reader.row(step)
        assert row["sharpness_gd"] == pytest.approx(share * TINY.lr * row["eigenvalues"][0, 1, 0], rel=1e-6)


@pytest.mark.slow
def test_a_sharpness_that_has_not_converged_is_missing(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ritz value is below lambda_max, and has no error bar in the file."""
    from landscape.curvature import eigsh as lanczos

    monkeypatch.setattr(lanczos, "eigsh", functools.partial(eigsh, max_hvps=0))
    config = HessianConfig(steps="60", blocks=("b1",), device="cpu")
    row = analyse(tiny_run, config, tmp_path / "h.h5", quiet=True).row(60)
    assert np.isnan([row["sharpness_gd"], row["sharpness_adam"]]).all()
    assert row["eigenvalues"][0, 1, 0] > 0


@pytest.mark.slow
def test_runs_of_sgd_have_no_second_moments(tmp_path: Path) -> None:
    """No group of zeros in the file, and no Adam sharpness."""
    train(dataclasses.replace(TINY, optimizer="sgd", steps=20), tmp_path / "run.h5", quiet=True)
    with h5py.File(tmp_path / "run.h5") as file:
        assert "moments" not in file
    row = analyse(tmp_path / "run.h5", HessianConfig(steps="20", blocks=("E",), device="cpu"), quiet=True).row(20)
    assert np.isnan(row["sharpness_adam"])
    assert row["sharpness_gd"] > 0
