"""Settled checkpoints: what theory says of them, and that both commands measure the same."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import HessianReader

from landscape.cli import main as cli
from landscape.config import AnalysisConfig, HessianConfig
from landscape.files.runs import RunReader
from landscape.measure.hessian import hessian
from landscape.measure.settle import settle
from landscape.models.embedding_mlp.problem import plain_model
from landscape.training.loop import train


def numbers(path: Path, step: int) -> dict[str, Any]:
    return HessianReader(path).rows(step)["settled"]


@pytest.mark.slow
def test_f19_at_a_settled_point(tmp_path: Path) -> None:
    """sigma_max(G) is lambda, no more, where E has directions to spare, and |dL/db1| with constant tokens in use."""
    wide = dataclasses.replace(
        TINY, tokens=4, embed_dim=12, activation="tanh", steps=400, checkpoint_every=400, weight_decay=0.01
    )
    run, out = tmp_path / "run.h5", tmp_path / "run.settled-400.h5"
    train(wide, run, quiet=True)
    argv = ["settle", str(run), "--step", "400", "--blocks", "E,W", "--objective", "data", "--quiet"]
    assert cli.run([*argv, "--descent-steps", "3000"]) == 0
    point = numbers(out, 400)
    assert point["grad_norm"] <= 1e-2 * point["start_grad_norm"]
    assert point["start_saddle_excess"] > 0.5 * wide.weight_decay
    assert point["saddle_excess"] <= 0.01 * wide.weight_decay
    assert np.abs(point["E"][-2:]).max() > 0.1
    assert point["bias_gradient"] == pytest.approx(1, abs=0.01)
    assert point["start_bias_gradient"] > 1.5
    assert HessianReader(out).row(400)["eigenvalues"][0, 0, 0] < 0


def test_the_numbers_are_those_of_a_plain_model(tiny_run: Path, tmp_path: Path) -> None:
    """Loss, accuracies, |dL/db1| and sigma_max(G) of both points, by torch alone."""
    out = tmp_path / "s.h5"
    settle(tiny_run, 60, AnalysisConfig(blocks=("E",)), out, max_steps=5, quiet=True)
    point = numbers(out, 60)
    with RunReader(tiny_run) as reader:
        start, data, metrics = reader.checkpoint(60), reader.data(), reader.metrics_at(60) or {}
    names = ("E", "W", "b1", "V", "b2")
    for prefix, arrays in (("start_", start), ("", point)):
        model, named = plain_model(TINY, {n: np.asarray(arrays[n], float) for n in names}, torch.device("cpu"))
        tokens, labels = (torch.from_numpy(data[n]).long() for n in ("tokens", "labels"))
        is_train = torch.from_numpy(data["split"] == 0)
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits[is_train], labels[is_train])
        right = (logits.argmax(1) == labels).double()
        loss.backward()
        assert point[f"{prefix}loss"] == pytest.approx(float(loss.detach()))
        assert point[f"{prefix}train_accuracy"] == pytest.approx(float(right[is_train].mean()))
        assert point[f"{prefix}test_accuracy"] == pytest.approx(float(right[~is_train].mean()))
        slope = named["b1"].grad
        assert slope is not None
        assert point[f"{prefix}bias_gradient"] == pytest.approx(float(slope.norm()) / TINY.weight_decay)
        decay = sum(float(p.detach().square().sum()) for p in named.values()) * TINY.weight_decay / 2
        assert point[f"{prefix}objective"] == pytest.approx(float(loss.detach()) + decay)
    assert point["start_test_accuracy"] == pytest.approx(metrics["test_accuracy"])
    moved = math.sqrt(sum(float(((point[n] - start[n]) ** 2).sum()) for n in names))
    assert point["distance"] == pytest.approx(moved)


@pytest.mark.slow
def test_both_commands_measure_the_same_point(tiny_run: Path, tmp_path: Path) -> None:
    """`hessian --settle` of a step, and its bound of F14, are those of `settle`; more steps later change nothing."""
    run = tmp_path / "run.h5"
    run.write_bytes(tiny_run.read_bytes())
    settings = HessianConfig(steps="20,60", blocks=("E", "W", "E,W"), settle=True)
    hessian(run, dataclasses.replace(settings, steps="60"), quiet=True)
    out = tmp_path / "run.settled.h5"
    hessian(run, settings, quiet=True)
    hessian(run, settings, tmp_path / "whole.h5", quiet=True, jobs=2)
    ours, whole = HessianReader(out), HessianReader(tmp_path / "whole.h5")
    with settle(run, 60, AnalysisConfig(blocks=settings.blocks), quiet=True) as file:
        single = HessianReader(file.path)
    assert single.path.name == "run.settled-60.h5"
    for name, value in ours.rows(60)["settled"].items():
        assert np.array_equal(value, single.rows(60)["settled"][name], equal_nan=True)
    assert np.array_equal(ours.row(60)["eigenvalues"], single.row(60)["eigenvalues"], equal_nan=True)
    excess = ours.rows(60)["settled"]["saddle_excess"]
    assert np.nanmax(ours.row(60)["saddle_bound"]) - TINY.weight_decay == pytest.approx(excess)
    assert np.isnan(ours.row(60)["recorded_loss"])
    for step in (20, 60):
        for group, row in ours.rows(step).items():
            for name in row.keys() - {"seconds"}:
                assert np.array_equal(row[name], whole.rows(step)[group][name], equal_nan=row[name].dtype.kind == "f")


@pytest.mark.slow
def test_a_plain_analysis_is_not_in_the_way(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a file of its own, `info` names the command, and the report reads all of them."""
    run = tmp_path / "run.h5"
    run.write_bytes(tiny_run.read_bytes())
    plain = ["hessian", str(run), "--steps", "60", "--blocks", "E", "--quiet"]
    assert cli.run(plain) == 0
    assert cli.run([*plain, "--settle", "--verify"]) == 0
    assert "|dL/db1|/lambda" in capsys.readouterr().out
    assert cli.run([*plain, "--settle", "--out", str(tmp_path / "run.hessian.h5")]) == 1
    assert "it was made with settle False, not True" in capsys.readouterr().err
    single = ["settle", str(run), "--step", "60", "--blocks", "E", "--quiet", "--json", "--descent-steps", "3"]
    assert cli.run(single) == 0
    assert json.loads(capsys.readouterr().out)["settled"]["status"] == "unfinished"
    assert cli.run([*single, "--out", str(tmp_path / "run.settled.h5")]) == 1
    assert "it is no analysis of a settled point" in capsys.readouterr().err
    assert cli.run(["report", str(run), "--out", str(tmp_path / "report"), "--quiet"]) == 0
    page = (tmp_path / "report/report.html").read_text()
    assert "run.settled-60 (seed 0)" in page
    assert "run.settled (seed 0)" in page


@pytest.mark.slow
def test_one_run_counts_once(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where its only analysis settled every step."""
    run = tmp_path / "run.h5"
    run.write_bytes(tiny_run.read_bytes())
    assert cli.run(["hessian", str(run), "--steps", "60", "--blocks", "E", "--quiet", "--settle"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "run (seed 0)" in printed
    assert " of 2 runs" not in printed


def test_decay_outside_the_loss_is_left_out(tmp_path: Path) -> None:
    """AdamW decouples its decay: the data loss is descended, and there is no decay to compare with."""
    run = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, optimizer="adamw"), run, quiet=True)
    hessian(run, HessianConfig(steps="60", blocks=("E",), settle=True), quiet=True)
    point = numbers(tmp_path / "run.settled.h5", 60)
    assert point["weight_decay"] == 0
    assert point["objective"] == point["loss"] < point["start_loss"]
    assert np.isnan(point["saddle_excess"])
