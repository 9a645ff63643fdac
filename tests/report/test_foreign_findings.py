"""The report of a model of the user's own says what was measured, in words that hold for any model."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import analyse
from helpers.once import made_once
from torch import nn

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.report.figures.settings import settings
from landscape.report.figures.sources import Source, open_sources
from landscape.report.findings import findings
from landscape.report.page import write_report
from landscape.training.loop import train
from landscape.training.recorder import Recorder

OURS = re.compile(r"plateau|memoris|grok|proposition|prop\.? ?4|prop41|control", re.IGNORECASE)
"""Words of the networks that `landscape train` makes."""
UNSEEN = re.compile(r'<style>.*?</style>|<script.*?</script>|class="controls"|base64,[^"]*', re.DOTALL)
PROBLEMS = """
import torch
from torch import nn
from landscape import ModuleProblem, mse

def inputs():
    return torch.randn(24, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

def convnet():
    x = inputs()
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)).double()
    return ModuleProblem(model, x, (x.mean((1, 2, 3)) > 0).long())

def regression():
    x = inputs().flatten(1)
    E = nn.ModuleDict({"E": nn.Linear(25, 3), "W": nn.Linear(3, 2), "V": nn.Linear(2, 1)}).double()
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = E
        def forward(self, x):
            return E["V"](torch.tanh(E["W"](torch.tanh(E["E"](x)))))
    blocks = {name: f"parts.{name}.*" for name in "EWV"}
    return ModuleProblem(Model(), x, x[:, :1].sin(), mse, blocks=blocks, pairs=[("E", "W"), ("W", "V")])
"""


def record(path: Path, model: nn.Module, last: int, seed: int | None = None, **values: float) -> Path:
    """Some checkpoints and metrics of a model that changes."""
    with Recorder(path, model, seed=seed) as recorder:
        for step in range(0, last + 1, 10):
            recorder.metrics(step, **values)
            recorder.checkpoint(step)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.1)
    return path


def recorded_runs(folder: Path) -> None:
    """A convnet with accuracies, and a regression without, whose blocks have the names of ours; both analysed."""
    (folder / "mine.py").write_text(PROBLEMS)
    names: dict[str, object] = {}
    exec(PROBLEMS, names)
    for name, values in (
        ("convnet", {"train_accuracy": 1.0, "test_accuracy": 0.75, "train_loss": 0.5}),
        ("regression", {"val_loss": 0.25}),
    ):
        torch.manual_seed(0)
        model = names[name]()._model  # type: ignore[operator]
        run = record(folder / f"{name}.h5", model, 20, **values)
        config = HessianConfig(problem=f"{folder / 'mine.py'}:{name}", k=2, device="cpu")
        analyse(run, config, quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, recorded_runs)


@pytest.mark.parametrize("name", ["convnet", "regression"])
def test_nothing_speaks_of_our_networks(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Page, terminal and JSON: neither sentences nor titles, captions, columns and notes."""
    page = write_report(folder / f"{name}.h5", tmp_path / "page", quiet=True)
    assert not OURS.findall(page.with_suffix(".md").read_text())
    assert not OURS.findall(UNSEEN.sub("", page.read_text()))
    films = json.loads(re.search(r'id="films">(.*?)</script>', page.read_text(), re.DOTALL)[1])  # type: ignore[index]
    (film,) = films.values()
    assert film["memorised"] is film["grokked"] is None
    capsys.readouterr()
    assert cli.run(["compare", str(folder / f"{name}.h5")]) == 0
    problem = f"{folder / 'mine.py'}:{name}"
    assert cli.run(["hessian", str(folder / f"{name}.h5"), "--problem", problem, "--quiet", "--k", "2"]) == 0
    assert not OURS.findall(capsys.readouterr().out.replace(str(folder), ""))


def test_what_was_measured_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Extreme eigenvalues, index with its level, trace and steps as in the file, accuracies and losses as recorded."""
    with h5py.File(folder / "convnet.hessian.h5") as file:
        lowest, highest = file["eigenvalues"][-1, 0, :, 0]
        index, trace, began = file["inertia_lower"][-1, 0], file["trace"][-1, 0], file["eigenvalues"][0, 0, 1, 0]
    recorded, block, other = findings(open_sources([folder / "convnet.h5"]))
    assert other.startswith("The loss of the measured data is not the training loss that convnet")
    assert recorded == "Last recorded: train_accuracy 1, test_accuracy 0.75, train_loss 0.5 at step 20."
    said = (
        f"At the last analysed step, 20, block all has λ_max {highest:.3g}, λ_min {lowest:.3g}, saddle index {index} "
    )
    assert block.startswith(f"{said}(certified, τ ".replace("-", "−"))
    assert f" and trace {trace:.3g}; at step 0 it had λ_max {began:.3g}, λ_min " in block.replace("−", "-")
    assert findings(open_sources([folder / "regression.h5"]))[0] == "Last recorded: val_loss 0.25 at step 20."
    assert cli.run(["compare", str(folder / "convnet.h5"), "--csv"]) == 0
    titles, values = (line.split(",") for line in capsys.readouterr().out.splitlines()[:2])
    row = dict(zip(titles, values, strict=True))
    assert (row["test_accuracy"], row["index all"]) == ("0.75", f"{index} (certified)")
    assert float(row["lambda_max all"]) == pytest.approx(highest, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("train_accuracy", "val_acc", "accuracy", "eval_accuracy", "train.acc", "testAcc")),
        *((name, True) for name in ("acc@1", "eval_top1_acc", "Accuracy", "valid-accuracy", "ACC")),
        *((name, False) for name in ("train_loss", "acceleration", "vacc", "account", "inaccuracy")),
    ],
)
def test_accuracies_by_their_usual_names(name: str, is_one: bool, tmp_path: Path) -> None:
    (source,) = open_sources([record(tmp_path / "run.h5", nn.Linear(2, 1), 10, **{name: 0.5})])
    assert source.accuracies == [name] * is_one
    assert (f"Last recorded: {name} 0.5 at step 10." in findings([source])) == (is_one or "loss" in name)


def test_metrics_known_at_different_steps(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.h5", nn.Linear(2, 1), metrics=("train_acc", "val_acc")) as recorder:
        for step in range(4):
            recorder.metrics(step, **({"train_acc": 0.5} if step else {"val_acc": 0.25}))
    (told,) = findings(open_sources([tmp_path / "run.h5"]))
    assert told == "Last recorded: train_acc 0.5 at step 3; val_acc 0.25 at step 0."


def test_a_run_of_checkpoints_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.h5", nn.Linear(2, 1)) as recorder:
        recorder.checkpoint(0)
    (told,) = findings(open_sources([tmp_path / "run.h5"]))
    assert told == "Nothing is recorded but checkpoints: `landscape hessian` measures the curvature there."


def groups(folder: Path, *runs: tuple[int, int | None]) -> Iterator[tuple[str, int]]:
    """Settings of runs of linear models with this many inputs and this seed."""
    files = [
        record(folder / f"{i}.h5", nn.Linear(inputs, 1), 10, seed, loss=float(i))
        for i, (inputs, seed) in enumerate(runs)
    ]
    for group in settings(open_sources(files)):
        yield group.label, len(group.sources)


def test_runs_that_may_differ_in_more_than_their_seed_are_apart(tmp_path: Path) -> None:
    """Of equal models only runs with known seeds, each another, repeat each other."""
    model = "torch.nn.modules.linear.Linear with"
    cases = {
        ((2, 0), (2, 1)): [(f"{model} 3 parameters", 2)],
        ((2, 0), (3, 1)): [(f"{model} 3 parameters", 1), (f"{model} 4 parameters", 1)],
        ((2, 0), (2, 0)): [("0 (seed 0)", 1), ("1 (seed 0)", 1)],
        ((2, None), (2, None)): [("0 (seed not known)", 1), ("1 (seed not known)", 1)],
    }
    for i, (runs, expected) in enumerate(cases.items()):
        (tmp_path / str(i)).mkdir()
        assert [*groups(tmp_path / str(i), *runs)] == expected


def test_arms_of_a_sweep_are_not_pooled(tmp_path: Path) -> None:
    """Of two ratios of learning rates none is the median: each has its own sentence, and titles give both ends."""
    files = []
    for ratio in (1, 10):
        for seed in (0, 1):
            files.append(tmp_path / f"c{ratio}-s{seed}.h5")
            train(dataclasses.replace(TINY, lr_ratio=ratio, seed=seed, steps=20), files[-1], quiet=True)
    page = write_report(files, tmp_path / "page", quiet=True).with_suffix(".md").read_text()
    assert "5.5" not in page
    (told,) = (line for line in page.splitlines() if line.startswith("* ") and "asks for" in line)
    assert re.search(r"lr_E/lr_W 1: Proposition.*; 1 was in use; lr_E/lr_W 10: Proposition.*; 10 was in use\.$", told)
    assert "; 1 to 10 was in use" in next(line for line in page.splitlines() if line.startswith("## Proposition"))


@pytest.mark.parametrize(("recorded", "said"), [([0.5, 0.505], ""), ([np.nan, np.nan], ""), ([0.5, 2.0], "75 %")])
def test_a_loss_that_is_not_the_recorded_one(recorded: list[float], said: str, folder: Path) -> None:
    """More than 1 % is told with both losses and the step; NaN is not known."""
    source: Source
    (source,) = open_sources([folder / "convnet.h5"])
    data = source.measured.isel(step=[0, 1]).copy(deep=True)
    data["train_loss"][:] = 0.5
    source.__dict__["measured"] = data.assign(recorded_loss=("step", recorded))
    told = [line for line in findings([source]) if line.startswith("The loss of the measured data")]
    assert [line.rpartition("difference of ")[2].rstrip(".") for line in told] == [said] * bool(said)
    assert all(f"{0.5:.4g} against 2 at step 10" in line for line in told)
