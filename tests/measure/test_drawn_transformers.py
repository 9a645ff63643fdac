"""Transformers of any options: they resume bit for bit, and their analysis is that of a Hessian made apart from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.hessians import analyse
from helpers.run_files import contents
from helpers.transformers import dense_hessian, drawn

from landscape.config import HessianConfig, preset
from landscape.training.loop import train, train_ensemble

OPTIONS = (
    "task", "tokens", "layers", "heads", "norm", "positions", "tied", "activation", "bias", "freeze", "optimizer",
    "momentum", "lr_ratio", "warmup", "weight_decay", "batch_size", "sampler", "dtype",
)  # fmt: skip
SEEDS = (181, 321, 333, 342, 358)
"""Draws that together have every value of every option."""


def test_the_draws_have_every_value() -> None:
    """Of all options that are drawn, but for the seed."""

    def values(seeds: Iterable[int]) -> set[tuple[str, object]]:
        return {item for seed in seeds for item in dataclasses.asdict(drawn(seed)).items() if item[0] in OPTIONS}

    assert values(SEEDS) == values(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_training_and_analysis(seed: int, tmp_path: Path) -> None:
    """A run resumed beside another seed is an undisturbed one's equal; its blocks have the dense matrix's spectrum."""
    config, whole, parts = drawn(seed), tmp_path / "whole.h5", tmp_path / "parts.h5"
    train(config, whole, quiet=True)
    both = {parts: config, tmp_path / "other.h5": dataclasses.replace(config, seed=config.seed + 1)}
    train_ensemble({path: dataclasses.replace(c, steps=6) for path, c in both.items()}, quiet=True)
    train_ensemble(both, resume=True, quiet=True)
    undisturbed, resumed = contents(whole), contents(parts)
    assert undisturbed.keys() == resumed.keys()
    for name, value in undisturbed.items():
        # With full batches there is no order, and no place in it.
        if name != "resume/position" or config.batch_size != "full":
            kind = np.asarray(value).dtype.kind
            assert np.array_equal(value, resumed[name], equal_nan=kind == "f"), name

    out = tmp_path / "parts.hessian.h5"
    settings = HessianConfig(steps="12", k=1, probes=2, probe_steps=2, certify=True, density=True, device="cpu")
    analyse(parts, settings, out, quiet=True)
    H, rows = dense_hessian(parts, 12)
    norm = float(torch.linalg.matrix_norm(H, 2))
    with h5py.File(out) as file:
        blocks = list(file["block"].asstr())
        for at, block in enumerate(blocks):
            members = block.split(",")
            index = [
                i
                for n, r in rows.items()
                if block == "all" or n.partition(".")[0] in members
                for i in range(r.start, r.stop)
            ]
            expected = np.linalg.eigvalsh(H[index][:, index].numpy())
            assert np.abs(file[f"spectrum/{block}"][0] - expected).max() <= 1e-9 * norm
            lowest, highest = file["eigenvalues"][0, at, :, 0]
            assert abs(lowest - expected[0]) <= 1e-9 * norm
            assert abs(highest - expected[-1]) <= 1e-9 * norm
            tau = file["inertia_tolerance"][0, at]
            assert file["inertia_lower"][0, at] <= (expected < -tau).sum() <= file["inertia_upper"][0, at]
    assert {"E", "Q", "K", "V", "O", "mlp_in", "mlp_out", "E,Q,K"} <= set(blocks)
    assert ("U" in blocks) != config.tied


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), [("demo", "E"), ("transformer", "P")])
@pytest.mark.long
def test_presets_of_the_demos(name: str, block: str, tmp_path: Path) -> None:
    """A block of each network that the Makefile shows, from the numbers in its files alone."""
    config = dataclasses.replace(preset(name), steps=40, stop_test_accuracy=None, checkpoint_every=40, device="cpu")
    train(config, tmp_path / "run.h5", quiet=True)
    settings = HessianConfig(steps="40", blocks=(block,), probes=2, probe_steps=2, device="cpu")
    analyse(tmp_path / "run.h5", settings, quiet=True)
    expected = np.linalg.eigvalsh(dense_hessian(tmp_path / "run.h5", 40, only=(block,))[0].numpy())
    with h5py.File(tmp_path / "run.hessian.h5") as file:
        difference = np.abs(file[f"spectrum/{block}"][0] - expected).max()
        assert difference <= 1e-9 * np.abs(expected).max()
        tau = file["inertia_tolerance"][0, 0]
        assert file["inertia"][0, 0].tolist()[0] == (expected < -tau).sum()
