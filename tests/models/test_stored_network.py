"""The network of a run as plain PyTorch: its losses and gradients are those that the run recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import SMALL_TRANSFORMER

import landscape
from landscape.training.loop import train


def assert_recorded(path: Path, step: int | None) -> None:
    """In float64, where the run was trained in float32."""
    network = landscape.network(path, step)
    loss = network.loss(network.model(network.inputs), network.targets)
    slopes = torch.autograd.grad(loss, [network.parameters[name] for name in ("E",)])
    with landscape.open(path) as file:
        at = file.to_dataframe().set_index("metric_step").loc[file.steps[-1] if step is None else step]
        stored = file.checkpoints["E"].sel(step=file.steps[-1] if step is None else step).values
    assert loss.item() == pytest.approx(at["train_loss"], rel=1e-4)
    assert slopes[0].norm().item() == pytest.approx(at["grad_norm_E"], rel=1e-3)
    torch.testing.assert_close(network.parameters["E"].detach().float(), torch.from_numpy(stored))


@pytest.mark.parametrize("step", [0, 20, None])
def test_an_mlp(tiny_run: Path, step: int | None) -> None:
    assert_recorded(tiny_run, step)


@pytest.mark.slow
def test_a_transformer(tmp_path: Path) -> None:
    train(SMALL_TRANSFORMER, tmp_path / "run.h5", quiet=True)
    assert_recorded(tmp_path / "run.h5", None)


def test_a_step_that_is_not_stored(tiny_run: Path) -> None:
    with pytest.raises(landscape.LandscapeError, match="1000"):
        landscape.network(tiny_run, 1000)
