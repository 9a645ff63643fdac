"""Transformers in the training loop: torch.optim's steps, resume and side by side bit for bit, and that one groks."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL_TRANSFORMER
from helpers.hessians import analyse
from helpers.run_files import contents
from torch import nn

from landscape.config import HessianConfig, TrainConfig, preset
from landscape.errors import ConfigError
from landscape.files.runs import RunReader
from landscape.models.tasks import TRAIN, make_data
from landscape.models.transformer.model import Transformer
from landscape.training.loop import train, train_ensemble


def variant(**changes: Any) -> TrainConfig:
    return dataclasses.replace(SMALL_TRANSFORMER, **changes)


def last(path: Path, step: int) -> dict[str, Any]:
    with RunReader(path) as reader:
        return reader.checkpoint(step)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"norm": "post", "layers": 2, "positions": "sinusoidal"}, {"tied": True}])
def test_steps_are_those_of_torchs_adamw(changes: dict[str, Any], tmp_path: Path) -> None:
    """Full batches, decoupled decay, betas and warm-up, E at a rate of its own: torch.optim.AdamW and LambdaLR."""
    config = variant(lr_ratio=3.0, dtype="float64", lr=0.02, steps=30, **changes)
    train(config, tmp_path / "run.h5", quiet=True)
    model = Transformer(config)
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n == "E") == is_E], "lr": config.lr * ratio}
        for is_E, ratio in ((True, 3.0), (False, 1.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=config.betas, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    tokens, labels = (torch.from_numpy(x).long() for x in make_data(config).subset(TRAIN))
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
        schedule.step()
    params = last(tmp_path / "run.h5", 30)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(params[name], parameter.detach(), rtol=0, atol=1e-9, err_msg=name)
    with RunReader(tmp_path / "run.h5") as reader:
        metrics = reader.metrics()
    np.testing.assert_allclose(metrics["lr"], [0.002, 0.02, 0.02, 0.02])
    np.testing.assert_allclose(metrics["lr_E"], 3 * metrics["lr"])


@pytest.mark.slow
def test_side_by_side_as_alone(tmp_path: Path) -> None:
    """Every committed number of each member is that of its own run, to the last bit."""
    configs = [variant(seed=0), variant(seed=1, lr=0.02, weight_decay=0.1), variant(seed=2, batch_size="full")]
    together = {tmp_path / f"together-{i}.h5": config for i, config in enumerate(configs)}
    train_ensemble(together, quiet=True)
    for path, config in together.items():
        train(config, tmp_path / "alone.h5", overwrite=True, quiet=True)
        ours, alone = contents(path), contents(tmp_path / "alone.h5")
        assert ours.keys() == alone.keys()
        for name, value in ours.items():
            assert np.array_equal(value, alone[name], equal_nan=np.asarray(value).dtype.kind == "f"), name


@pytest.mark.slow
def test_resume_after_a_kill(tmp_path: Path) -> None:
    """A process killed in the middle goes on to the file of an undisturbed run, bit for bit."""
    config = variant(batch_size=11, steps=40_000, checkpoint_every=20, metrics_every=20)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    path, argv = tmp_path / "run.h5", ["train", "--config", tmp_path / "config.json", "--quiet", "--out"]
    command = [sys.executable, "-m", "landscape", *map(str, argv), str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.02)
            if path.exists() and stored(path):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    before = stored(path)
    shorter = dataclasses.replace(config, steps=before[-1] + 30)
    train(shorter, path, resume=True, quiet=True)
    train(shorter, tmp_path / "whole.h5", quiet=True)
    resumed, whole = contents(path), contents(tmp_path / "whole.h5")
    for name, value in whole.items():
        assert np.array_equal(value, resumed[name], equal_nan=np.asarray(value).dtype.kind == "f"), name


def stored(path: Path) -> list[int]:
    with RunReader(path) as reader:
        return reader.steps


@pytest.mark.slow
def test_policy_prop41(tmp_path: Path) -> None:
    """lr_E / lr follows (sigma_max(E) / sigma_max(W)) / f_E, W being all that reads the first layer's stream."""
    config = variant(lr_ratio="prop41", lr_ratio_every=20, metrics_every=1, batch_size=3, layers=2, dtype="float64")
    train(config, tmp_path / "run.h5", quiet=True)
    with RunReader(tmp_path / "run.h5") as reader:
        metrics, tokens, operands = reader.metrics(), reader.tokens(), config.p
        for step in (20, 40):
            params = reader.checkpoint(step)
            f_E = tokens["count"][tokens["step"] == step][0, :operands].mean() / step
            assert f_E < 0.9
            W = np.vstack([params[f"{kind}.0"] for kind in ("Q", "K", "V", "mlp_in")])
            expected = np.linalg.norm(params["E"], 2) / np.linalg.norm(W, 2) / f_E
            used = metrics["lr_E"] / metrics["lr"]
            # The row of step s shows what moved the weights to step s.
            assert used[metrics["metric_step"] == step + 1] == pytest.approx(expected, rel=1e-9)
            assert used[metrics["metric_step"] == step + 19] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "error", "hint"),
    [
        ({"heads": 3}, "embed_dim 4 cannot be divided into 3 heads", "such as 1"),
        ({"heads": 8}, "embed_dim 4 cannot be divided into 8 heads", "such as 4"),
        ({"heads": 0}, "heads is 0", "--heads takes an integer >= 1"),
        ({"embed_dim": 1, "heads": 1, "norm": "post"}, "norm is post and embed_dim 1", "raise --embed-dim"),
        ({"embed_dim": 2, "norm": "pre"}, "embed_dim 2: LayerNorm of two numbers is their order", "raise --embed-dim"),
        ({"layers": 0}, "layers is 0", "--layers takes an integer >= 1"),
        ({"norm": "batch"}, "unknown norm 'batch'", "choose one of none, pre, post"),
        ({"freeze": "W"}, "model transformer has no W", "--freeze none or E"),
        ({"lr_ratio": "curvature"}, "model transformer has no W", "prop41, auto or a number for --lr-ratio"),
        ({"init_scale_W": 2.0}, "model transformer has no W", "leave out --init-scale-W"),
        ({"betas": (0.9,)}, r"betas is \[0.9\]", "two numbers from 0 to below 1"),
        ({"betas": (0.9, 1.0)}, r"betas is \[0.9, 1.0\]", "two numbers from 0 to below 1"),
        ({"warmup": -1}, "warmup is -1", "an integer from 0"),
        ({"model": "embedding", "heads": 4, "layers": 2}, "layers is 2, but model embedding", "--model transformer"),
        ({"model": "onehot", "heads": 4, "tied": True}, "tied is True, but model onehot", "leave out --tied"),
    ],
)
def test_options_that_cannot_be(changes: dict[str, Any], error: str, hint: str) -> None:
    """What no Transformer can have, and what only one has."""
    with pytest.raises(ConfigError, match=error) as raised:
        variant(**changes)
    assert hint in raised.value.hint


@pytest.mark.long
def test_the_preset_groks(tmp_path: Path) -> None:
    """As in the demo it memorises, later answers 95 % of the test pairs, and its dense blocks are certified."""
    config = dataclasses.replace(preset("transformer"), seed=1, device="cpu")
    assert config.steps == 1500
    # No further than it groks.
    summary = train(dataclasses.replace(config, stop_test_accuracy=0.95), tmp_path / "run.h5", quiet=True)
    assert summary.memorise_step is not None
    assert summary.grok_step is not None
    assert summary.memorise_step < summary.grok_step == summary.steps
    steps = str(summary.steps)
    reader = analyse(
        tmp_path / "run.h5", HessianConfig(blocks=("E", "Q,K", "mlp_in"), steps=steps, device="cpu"), quiet=True
    )
    assert set(reader.row(summary.steps)["inertia_level"]) == {3}
