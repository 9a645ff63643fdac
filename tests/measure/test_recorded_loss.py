"""The training loss that a run recorded stands beside that of the measured data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from torch import nn

from landscape import Recorder
from landscape.cli import main as cli

MINE = foreign.executed(foreign.TINY)


def record(metrics: dict[int, dict[str, Any]]) -> dict[int, float]:
    """A run of four steps with these metrics beside its losses, which are returned."""
    model, losses = MINE["model"](), {}
    with Recorder("run.h5", model, overwrite=True) as recorder:
        for step in range(4):
            recorder.checkpoint(step)
            losses[step] = nn.functional.cross_entropy(model(MINE["x"]), MINE["y"]).item()
            for name, value in metrics.get(step, {}).items():
                recorder.metrics(step, {name: value(losses[step])})
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.5)
    return losses


@pytest.mark.parametrize("name", ["train_loss", "loss", "training_loss", "train/loss"])
def test_a_recorded_loss(name: str, beside_the_user: None, capsys: pytest.CaptureFixture[str]) -> None:
    """At the steps that have one; of less than 1 % nothing is said, and what differs by more is a warning."""
    Path("mine.py").write_text(foreign.TINY)
    argv = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "all", "--quiet", "--overwrite"]
    losses = record({0: {name: lambda loss: loss}, 2: {name: lambda loss: 1.009 * loss}, 3: {"other": lambda loss: 9}})
    assert cli.run(argv) == 0
    assert "warning" not in capsys.readouterr().err
    rows = {step: HessianReader("run.hessian.h5").row(step) for step in losses}
    recorded = [float(row["recorded_loss"]) for row in rows.values()]
    np.testing.assert_allclose(recorded, [losses[0], np.nan, 1.009 * losses[2], np.nan], rtol=1e-6)
    np.testing.assert_allclose([float(row["train_loss"]) for row in rows.values()], [*losses.values()], rtol=1e-6)
    losses = record({1: {name: lambda loss: 1.02 * loss}, 3: {name: lambda loss: 2 * loss}})
    assert cli.run(argv) == 0
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1
    assert f"run.h5: at step 3 the loss of the measured data is {losses[3]:.6g}, but the training recorded" in said
    assert "(by 50%); it differs by more than 1% at 2 steps" in said
    assert cli.run(["critical", "run.h5", "--step", "3", *argv[2:4], "--quiet", "--search-hvps", "2"]) in (0, 3)
    assert np.isnan(HessianReader("run.critical-3.h5").row(3)["recorded_loss"])
