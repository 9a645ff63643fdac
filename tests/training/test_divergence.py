"""Training that diverges: what ends, what is kept, and what is said."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY
from helpers.hessians import HessianReader, analyse
from helpers.run_files import poison

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import ConfigError, NumericsError
from landscape.files.runs import RunReader
from landscape.training.loop import summarise, train

WILD = dataclasses.replace(TINY, lr=1e30, checkpoint_log=8)


def test_a_diverging_run_ends_at_the_first_record_that_is_not_finite(tmp_path: Path) -> None:
    """Its checkpoints are finite and stay; the row of metrics of the step that is named is not finite."""
    path = tmp_path / "run.h5"
    summary = train(WILD, path, quiet=True)
    assert summary.status == "diverged"
    with RunReader(path) as reader:
        metrics = reader.metrics()
        assert all(np.isfinite(a).all() for step in reader.steps for a in reader.checkpoint(step).values())
        assert np.isfinite(metrics["train_loss"]).tolist() == [True] * (len(metrics["train_loss"]) - 1) + [False]
        assert summary.diverged_step == metrics["metric_step"][-1] == summary.steps
        assert 0 in reader.steps
        assert max(reader.steps) < TINY.steps
        state = reader.resume_state()
    assert all(np.isfinite(state[name]).all() for name in ("E", "W", "b1", "V", "b2"))
    assert str(summary.divergence) == (
        f"{path}: training diverged: the loss or a parameter is not finite at step {summary.diverged_step}"
    )


@pytest.mark.slow
def test_a_diverged_run_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 with the step each time; with another schedule it is left bit for bit, too."""
    path = tmp_path / "run.h5"
    train(WILD, path, quiet=True)
    before = path.read_bytes()
    assert cli.run(["train", "--out", str(path), "--resume", "--quiet"]) == 1
    said = capsys.readouterr()
    assert "training diverged: the loss or a parameter is not finite at step" in said.err
    assert "hint: the checkpoints before are kept and finite; lower --lr" in said.err
    assert path.read_bytes() == before
    assert cli.run(["check", str(path)]) == 0
    assert "whole and diverged" in capsys.readouterr().out
    for more in (["--steps", "100"], ["--steps", "1"], ["--metrics-every", "1"], ["--checkpoint-every", "3"]):
        assert cli.run(["train", "--out", str(path), "--resume", "--quiet", *more, "--json"]) == 1
        said = capsys.readouterr()
        assert json.loads(said.out)["status"] == "diverged"
        assert "use --overwrite" in said.err
        assert path.read_bytes() == before
    assert cli.run(["train", "--out", str(path), "--resume", "--quiet", "--seed", "5"]) == 2
    assert "seed is 5, but the run was started with 0" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["curvature", "prop41", "auto"])
@pytest.mark.parametrize(
    "changes",
    [{"init_scale_W": 0.0}, {"init_scale_E": 0.0}, {"lr": 1e30}],
    ids=str,
)
def test_a_measured_ratio_that_does_not_exist_leaves_the_last_one(
    policy: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Neither a matrix of zeros nor one that has diverged is an error; what is stored is finite and above 0."""
    path = tmp_path / "run.h5"
    config = dataclasses.replace(TINY, lr_ratio=policy, lr_ratio_every=5, metrics_every=1, **changes)
    assert train(config, path, quiet=True).status in ("complete", "diverged")
    with RunReader(path) as reader:
        metrics = reader.metrics()
        assert reader.resume_state()["lr_ratio"] > 0
    assert np.isfinite(metrics["lr_E"]).all()
    if "init_scale_W" in changes:
        assert metrics["lr_E"][0] == config.lr


def test_a_start_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    """Before a file is made; a start with a loss that is not finite ends at step 0, which is kept."""
    with pytest.raises(ConfigError, match="init_scale_E 1.0 and init_scale_W 1e\\+300 give parameters"):
        train(dataclasses.replace(TINY, init_scale_W=1e300), tmp_path / "run.h5", quiet=True)
    assert list(tmp_path.iterdir()) == []
    huge = dataclasses.replace(TINY, init_scale_W=1e30, init_scale_E=1e20)
    assert train(huge, tmp_path / "run.h5", quiet=True).diverged_step == 0
    with RunReader(tmp_path / "run.h5") as reader:
        assert reader.steps == [0]


@pytest.mark.slow
def test_an_analysis_leaves_out_steps_that_are_not_finite(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of an older version opens; its finite steps are measured, the others named; none at all is an error."""
    run, out = Path(shutil.copy(tiny_run, tmp_path / "run.h5")), tmp_path / "h.h5"
    poison(run, 20)
    assert summarise(run).status == "complete"
    for steps in ("0,20,40", "all"):
        config = HessianConfig(steps=steps, blocks=("E",), device="cpu")
        analyse(run, config, out, overwrite=True, quiet=True)
        reader = HessianReader(out)
        assert 20 not in reader.steps
        assert {0, 40} <= set(reader.steps)
        assert reader.attrs["status"] == "complete"
        assert "warning: " in (said := capsys.readouterr().err)
        assert "W at step 20 has" in said
    with pytest.raises(NumericsError, match="W at step 20 has .* non-finite values"):
        analyse(run, dataclasses.replace(config, steps="20"), out, overwrite=True, quiet=True)
