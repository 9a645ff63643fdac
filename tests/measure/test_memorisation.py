"""Networks far into memorisation: the measurement must hold where the training loss is all but zero."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import analyse
from helpers.run_files import put

from landscape import models
from landscape.config import HessianConfig, TrainConfig
from landscape.curvature.operators import HessianOperator
from landscape.files.runs import RunReader
from landscape.files.schema import LEVELS
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.measure.verify import verify
from landscape.models.problem import Training
from landscape.training.loop import train

MEMORISED = dataclasses.replace(
    TINY,
    p=5,
    embed_dim=8,
    hidden=24,
    activation="quadratic",
    batch_size="full",
    lr=0.03,
    weight_decay=0.0,
    steps=300,
    checkpoint_every=0,
    checkpoint_log=0,
    metrics_every=300,
)
TRAINING = Training(300, dict.fromkeys(("E", "W", "b1", "V", "b2"), 0.01), None, 1.0)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without weight decay that has fitted its training pairs. Read only."""
    path = tmp_path_factory.mktemp("runs") / "memorised.h5"
    train(MEMORISED, path, quiet=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("margin", [1.0, 2.0, 4.0, 8.0])
def test_closed_forms_hold_at_any_training_loss(memorised: Path, margin: float) -> None:
    """Scaling the output layer drives the loss down to 1e-40; dense blocks are still those of the products."""
    with h5py.File(memorised) as file:
        data = {n: file["data"][n][()] for n in ("tokens", "labels", "split")}
        params = {n: file["checkpoints"][n][-1].astype(float) for n in ("E", "W", "b1", "V", "b2")}
    params["V"], params["b2"] = margin * params["V"], margin * params["b2"]
    blocks = ("E", "W", "V", "E,W", "all")
    measurement = Measurement.of(models.of_config(MEMORISED, data), HessianConfig(blocks=blocks, device="cpu"))
    datasets = measure(measurement, Point(params, TRAINING)).datasets
    row, spectra = {name: x.values for name, x in datasets["/"].items()}, datasets["spectrum"]
    assert row["train_loss"] < 1e-4**margin
    point = Checkpoint(measurement, Point(params))
    for i, block in enumerate(measurement.blocks):
        H = HessianOperator(point.objective, point.params, block.members).dense()
        values = np.linalg.eigvalsh(H.numpy())
        assert row["operator_norm"][i] == pytest.approx(np.abs(values).max(), rel=1e-9)
        assert np.abs(spectra[block.name].values - values).max() <= 1e-9 * np.abs(values).max()
        if LEVELS[row["inertia_level"][i]] == "certified":
            assert row["inertia"][i][0] == int((values < -row["inertia_tolerance"][i]).sum())


@pytest.mark.slow
def test_second_opinion_holds_at_low_training_loss(memorised: Path, tmp_path: Path) -> None:
    """A right file is confirmed, not doubted, however low the training loss of the run."""
    path = tmp_path / "sharp.h5"
    path.write_bytes(memorised.read_bytes())
    sharpen(path, 3.0)
    result = analyse(path, HessianConfig(steps="300", blocks=("E", "W"), device="cpu"), quiet=True)
    assert result.row(300)["train_loss"] < 1e-10
    opinions = verify(path, result)
    assert [v.block for v in opinions] == ["E", "W"]
    assert all(v.agrees and v.dense_difference is not None for v in opinions)


def sharpen(path: Path, factor: float) -> None:
    """Multiply the output layer of a run's last checkpoint, and commit the row anew."""
    with RunReader(path) as reader:
        last = reader.steps[-1]
        row = reader.checkpoint(last)
    put(path, last, V=factor * row["V"], b2=factor * row["b2"])


def test_saturated_networks_have_a_finite_hessian(memorised: Path) -> None:
    """One sample whose margin exceeds the range of exp must not turn every product into NaN."""
    with h5py.File(memorised) as file:
        data = {n: file["data"][n][()] for n in ("tokens", "labels", "split")}
        params = {n: file["checkpoints"][n][-1].astype(float) for n in ("E", "W", "b1", "V", "b2")}
    params["V"] = 100 * params["V"]
    params["b2"] = 100 * params["b2"]
    hessian = Checkpoint(
        Measurement.of(models.of_config(MEMORISED, data), HessianConfig(device="cpu")), Point(params)
    ).hessian
    assert bool(torch.isfinite(hessian @ torch.ones(hessian.shape[1], dtype=torch.float64)).all())


# --- what the file says beside the spectra ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["data", "regularised"])
def test_train_loss_is_the_data_loss(tiny_run: Path, tmp_path: Path, objective: str) -> None:
    """train_loss is the mean cross-entropy of the stored parameters, without the L2 term, whatever the objective."""
    settings = HessianConfig(steps="0,60", blocks=("V",), objective=objective, device="cpu")
    result = analyse(tiny_run, settings, tmp_path / "out.h5", quiet=True)
    with h5py.File(tiny_run) as file:
        train_rows = file["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(file["data"][n][train_rows]).long() for n in ("tokens", "labels"))
        for step in (0, 60):
            row = list(file["checkpoints/step"]).index(step)
            E, W, b1, V, b2 = (torch.from_numpy(file["checkpoints"][n][row]).double() for n in PARAMETERS)
            logits = torch.relu(E[tokens].flatten(1) @ W.T + b1) @ V.T + b2
            expected = torch.nn.functional.cross_entropy(logits, labels).item()
            assert result.row(step)["train_loss"] == pytest.approx(expected, rel=1e-12)


PARAMETERS = ("E", "W", "b1", "V", "b2")


@pytest.mark.slow
@pytest.mark.parametrize("end", [0, 1])
def test_second_opinion_doubts_either_end(tiny_run: Path, tmp_path: Path, end: int) -> None:
    """One eigenvalue wrong by 1e-6 of |H|, at either end, is noticed; PyHessian finds the largest magnitude."""
    settings = HessianConfig(steps="60", blocks=("E", "W"), device="cpu")
    result = analyse(tiny_run, settings, tmp_path / "out.h5", quiet=True)
    confirmed = verify(tiny_run, result)
    assert all(v.agrees for v in confirmed)
    for v in confirmed:
        assert v.pyhessian == pytest.approx(v.largest, rel=1e-3)
    row = result.row(60)
    row["eigenvalues"][1, end, 3] += 1e-6 * row["operator_norm"][1]
    assert [v.agrees for v in verify(tiny_run, result)] == [True, False]


@pytest.mark.slow
def test_products_are_counted_where_blocks_are_made_of_them(tmp_path: Path) -> None:
    """A block without a closed form takes one product a column."""
    config = TrainConfig(p=5, tokens=2, embed_dim=3, hidden=6, train_fraction=0.6, steps=3, batch_size=8, device="cpu")
    train(config, tmp_path / "run.h5", quiet=True)
    settings = HessianConfig(steps="3", blocks=("E", "b1", "b2"), device="cpu")
    row = analyse(tmp_path / "run.h5", settings, quiet=True).row(3)
    assert row["num_products"].tolist() == [0, 6, 5]


@pytest.mark.slow
def test_update_frequency_is_of_operand_tokens_alone(tmp_path: Path) -> None:
    """With four tokens, the operator and `=` are in every batch and must not raise f_E."""
    config = TrainConfig(p=7, embed_dim=3, hidden=6, train_fraction=0.6, steps=20, batch_size=2, device="cpu")
    train(config, tmp_path / "run.h5", quiet=True)
    row = analyse(tmp_path / "run.h5", HessianConfig(steps="20", blocks=("E",), device="cpu"), quiet=True).row(20)
    with h5py.File(tmp_path / "run.h5") as file:
        count = file["tokens/count"][list(file["tokens/step"]).index(20)]
        E, W = (file["checkpoints"][n][list(file["checkpoints/step"]).index(20)].astype(float) for n in ("E", "W"))
    assert count[7] == count[8] == 20
    assert count[:7].mean() < 15
    ratio = np.linalg.norm(E, 2) / np.linalg.norm(W, 2)
    assert row["prop41_ratio"] == pytest.approx(ratio / (count[:7].mean() / 20), rel=1e-12)
