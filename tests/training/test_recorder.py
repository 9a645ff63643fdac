"""A Recorder keeps every row of a foreign training, whatever is killed, and changes nothing of that training."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.recording import move, small, states
from helpers.refusals import refused, warned
from torch import nn

import landscape
from landscape import Recorder, TrainConfig, train, write_report
from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.files.inspect import inspect
from landscape.files.runs import RunReader


class Tied(nn.Module):
    """A model whose output layer is its embedding."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3, dtype=dtype)
        self.body = nn.Sequential(nn.Linear(3, 3, dtype=dtype), nn.Dropout(0.3), nn.BatchNorm1d(3, dtype=dtype))
        self.head = nn.Linear(3, 5, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.scale * self.body(self.embed(x)))
        return out


def run(steps: int, path: Path | None) -> dict[str, Any]:
    """A training with dropout, on fresh random numbers; all that it leaves behind."""
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    model.body.eval()
    model.head.train()
    seen = []
    with Recorder(path, model) if path else contextlib.nullcontext() as recorder:
        for step in range(steps):
            if recorder:
                recorder.checkpoint(step)
            if step == 3:
                model.train()
            loss = nn.functional.cross_entropy(model(torch.randint(5, (8,))), torch.arange(8) % 5)
            optimizer.zero_grad()
            loss.backward()
            if recorder:
                recorder.metrics(step, loss=loss)
            optimizer.step()
            seen += [loss.item(), random.random(), np.random.rand()]  # noqa: NPY002
    return {
        "seen": seen,
        "modes": [m.training for m in model.modules()],
        "state": {n: t.clone() for n, t in model.state_dict().items()},
        "grads": {n: p.grad for n, p in model.named_parameters()},
        "wants": [p.requires_grad for p in model.parameters()],
        "moments": copy.deepcopy(optimizer.state_dict()),
        "rng": torch.get_rng_state(),
    }


def test_a_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    """Losses, parameters, gradients, buffers, modes, moments and three random generators, bit for bit."""
    alone, recorded = run(8, None), run(8, tmp_path / "run.h5")
    torch.testing.assert_close(recorded, alone, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_are_the_parameters_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    """Under the names of the model, tied ones once; small floats exactly in float32; blocks as they were declared."""
    model, kept = Tied(dtype), {}
    with Recorder(
        tmp_path / "run.h5", model, blocks={"embed": "emb*", "body": ["body.0.*"]}, pairs=[("embed", "body")]
    ) as r:
        for step in (0, 1, 5, 7):
            torch.manual_seed(step)
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.randn_like(p))
                model.body[2].running_mean.copy_(torch.randn(3))
                model.body[2].num_batches_tracked.fill_(2**40 + step)
            kept[step] = {n: p.detach().clone() for n, p in (*model.named_parameters(), *model.named_buffers())}
            assert r.checkpoint(step)
    stored = states(tmp_path / "run.h5")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert list(stored) == [0, 1, 5, 7]
    for step, row in stored.items():
        assert list(row) == [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
        assert row.pop("body.2.num_batches_tracked") == 2**40 + step
        for name, values in row.items():
            assert values.dtype == np.dtype(str(wide).removeprefix("torch."))
            assert torch.equal(torch.from_numpy(np.asarray(values)).to(dtype), kept[step][name])
            assert torch.equal(torch.from_numpy(np.asarray(values)), kept[step][name].to(wide))
    with RunReader(tmp_path / "run.h5") as reader:
        c = reader.config
        assert reader.is_recorded
        assert c["aliases"] == {"head.weight": "embed.weight"}
        assert c["blocks"] == {"embed": ["emb*"], "body": ["body.0.*"]}
        assert c["pairs"] == [["embed", "body"]]
        assert c["num_parameters"] == sum(p.numel() for p in model.parameters())
        assert c["model"].endswith("test_recorder.Tied")


@pytest.mark.slow
def test_room_grows_as_needed(tmp_path: Path) -> None:
    """Hundreds of checkpoints and thousands of metrics, of a number that nobody said; a plain reader sees them all."""
    model, path = small(), tmp_path / "run.h5"
    with Recorder(path, model) as recorder:
        for step in range(3000):
            if step % 20 == 0:
                move(model, step)
                recorder.checkpoint(step)
            recorder.metrics(step, loss=step / 2)
    data = landscape.open(path).to_xarray()
    assert data["loss"].values.tolist() == [step / 2 for step in range(3000)]
    assert data["0.bias"].values[:, 0].tolist() == [step + 1 / 8 for step in range(0, 3000, 20)]
    with h5py.File(path) as file:
        assert file["checkpoints/0.weight"].shape == (150, 3, 2)
        assert file["metrics/loss"].shape == (3000,)
        assert file.attrs["status"] == "complete"


def test_metrics_that_come_late_and_seldom(tmp_path: Path) -> None:
    """Names may come at any step and stay away; what a row lacks is NaN; numbers of any kind are numbers."""
    model, path = small(), tmp_path / "run.h5"
    with Recorder(path, model) as recorder:
        recorder.checkpoint(0)
        assert not recorder.metrics(0)
        recorder.metrics(0, loss=torch.tensor(1.5, requires_grad=True), accuracy=np.float32(0.25))
        recorder.metrics(1, {"loss": np.array(1)})
        assert not recorder.metrics(1, loss=7)
        recorder.metrics(
            500, {"val/loss": torch.ones(1, dtype=torch.bfloat16), "top": {"k 5": True}}, loss=float("nan")
        )
        recorder.metrics(501, val_loss=np.float64(3))
    data = landscape.open(path).to_xarray()
    assert data["loss"].values[:2].tolist() == [1.5, 1]
    assert np.isnan(data["loss"].values).tolist() == [False, False, True, True]
    assert np.isnan(data["accuracy"].values).tolist() == [False, True, True, True]
    assert data["val_loss"].values[2:].tolist() == [1, 3]
    assert data["top_k_5"].values[2] == 1
    with Recorder(tmp_path / "declared.h5", model, metrics=["a", "b"]) as recorder:
        recorder.metrics(0, b=2)
    assert landscape.open(tmp_path / "declared.h5").to_xarray()["b"].values.tolist() == [2]


def test_metrics_that_are_no_numbers(tmp_path: Path) -> None:
    """Each is said once; what else came with it is stored."""
    ring: dict[str, Any] = {"a": 1}
    ring["ring"] = ring
    none = {
        "text": "high",
        "none": None,
        "many": torch.ones(2),
        "complex": 1j,
        "huge": 10**400,
        "0.bias": 1,
        "x" * 300: 1,
    }
    with Recorder(tmp_path / "run.h5", small()) as recorder:
        for step, (name, value) in enumerate(none.items()):
            with pytest.warns(UserWarning, match=f"run.h5 lacks metric {name[:60]}") as said:
                assert recorder.metrics(2 * step, {name: value, "loss": step})
            assert len(said) == 1
            assert recorder.metrics(2 * step + 1, {name: value, "loss": step})
        warned(lambda: recorder.metrics(50, ring), "recursion")
        warned(lambda: recorder.metrics(51, [1, 2]), "lacks metrics 51")  # type: ignore[arg-type]
        assert recorder.metrics(52, loss=9)
    losses = landscape.open(tmp_path / "run.h5").metrics["loss"]
    assert losses.values.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 9]


@pytest.mark.slow
def test_resuming_appends(tmp_path: Path) -> None:
    """After the last stored step; steps stored before are left as they are, new ones between them are refused."""
    model, path = small(), tmp_path / "run.h5"
    recorder = Recorder(path, model, blocks={"first": "0.*"}, seed=4)
    for step in (0, 10, 20):
        move(model, step)
        recorder.checkpoint(step)
    recorder.metrics(20, loss=1)
    with pytest.raises(ZeroDivisionError), recorder:
        _ = 1 / 0
    before, state = states(path), inspect(path)
    assert (state.status, state.attributes["seed"]) == ("interrupted", 4)
    with Recorder(path, model, resume=True) as recorder:
        move(model, 99)
        assert not recorder.checkpoint(20)
        warned(lambda: recorder.checkpoint(-1), "a step cannot be -1", "whole number")
        warned(lambda: recorder.checkpoint("a"), "a step cannot be 'a'", "whole number")  # type: ignore[arg-type]
        warned(lambda: recorder.checkpoint(15), "step 15 comes after step 20 was stored", "ascending order")
        assert not recorder.checkpoint(16)
        assert recorder.checkpoint(30)
        assert recorder.steps == [0, 10, 20, 30]
        recorder.metrics(30, loss=2)
    after = states(path)
    for step, row in before.items():
        assert all(np.array_equal(after[step][name], values) for name, values in row.items())
    assert after[30]["0.weight"][0, 0] == 99
    assert landscape.open(path).to_xarray()["loss"].values.tolist() == [1, 2]
    with RunReader(path) as reader:
        assert reader.attrs["run_id"] == state.attributes["run_id"]
        assert reader.config["blocks"] == {"first": ["0.*"]}
    new = tmp_path / "new.h5"
    with Recorder(new, model, resume=True, metrics=["loss"]):
        pass
    with Recorder(new, model, resume=True, metrics=["loss"], blocks={"second": "2.*"}, seed=1) as recorder:
        recorder.checkpoint(1)
    with RunReader(new) as reader:
        assert (reader.config["blocks"], reader.attrs["seed"]) == ({"second": ["2.*"]}, 1)


def test_what_cannot_be_resumed_is_named(tmp_path: Path, tiny_run: Path) -> None:
    """Other shapes, names, types and buffers, runs of `landscape train`; the file stays as it was."""
    path = tmp_path / "run.h5"
    with Recorder(path, small(), metrics=["loss"]) as recorder:
        recorder.checkpoint(0)
    before, own = path.read_bytes(), "a file of its own"
    wider, longer = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), small().append(nn.Linear(2, 2))
    shapes, types = r"0.weight is f4 \[4, 2\], not f4 \[3, 2\]", r"0.weight is f8 \[3, 2\], not f4"
    missing = "no 0.weight; no 0.bias; no 2.weight and 3 more"
    refused(lambda: Recorder(path, wider, resume=True), shapes, own)
    refused(lambda: Recorder(path, longer, resume=True), "3.weight is not in the file; 3.bias is not", own)
    refused(lambda: Recorder(path, nn.Linear(2, 3), resume=True), missing, own)
    refused(lambda: Recorder(path, small().double(), resume=True), types, own)
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with Recorder(tmp_path / "norm.h5", norm):
        norm[1].register_buffer("extra", torch.ones(1))
    refused(lambda: Recorder(tmp_path / "norm.h5", norm, resume=True), "1.extra is not in the file", own)
    mine = tmp_path / "mine.h5"
    shutil.copy(tiny_run, mine)
    refused(lambda: Recorder(mine, small(), resume=True), "was not written by a Recorder", "landscape train --resume")
    assert path.read_bytes() == before
    assert mine.read_bytes() == tiny_run.read_bytes()


def test_nothing_is_overwritten_and_one_process_writes(tmp_path: Path) -> None:
    """An existing file needs `overwrite`, a file of another program cannot have it; a second recorder is refused."""
    model, path, other = small(), tmp_path / "run.h5", tmp_path / "notes.h5"
    with Recorder(path, model) as recorder:
        recorder.checkpoint(0)
        refused(lambda: Recorder(path, model, resume=True), "is being written by another process", "wait for it")
        assert states(path).keys() == {0}
    refused(lambda: Recorder(path, model), "run.h5 exists", "resume=True resumes it, overwrite=True replaces it")
    other.write_text("mine")
    refused(lambda: Recorder(other, model, overwrite=True), "is not a run file", "remove it yourself")
    with Recorder(path, model, overwrite=True) as recorder:
        recorder.checkpoint(5)
    assert states(path).keys() == {5}
    warned(lambda: recorder.checkpoint(6), "the recorder of .* is closed", "resume=True")
    assert {p.name for p in tmp_path.iterdir()} == {"run.h5", "notes.h5"}


def named(*names: str) -> nn.Module:
    """A module with parameters of any names."""
    module = nn.Module()
    module._parameters.update({name: nn.Parameter(torch.ones(2)) for name in names})
    return module


WORDS: dict[str, tuple[Any, str, str]] = {
    "no module": (lambda at: Recorder(at, "gpt"), "the model is str, not a torch module", "nn.Module itself"),
    "no parameters": (lambda at: Recorder(at, nn.Tanh()), "Tanh has no parameters", "that is trained"),
    "lazy": (lambda at: Recorder(at, nn.LazyLinear(3)), "weight has no shape yet", "run a batch"),
    "complex": (
        lambda at: Recorder(at, nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])),
        "0 is dense, of type complex64",
        "floating",
    ),
    "meta": (lambda at: Recorder(at, nn.Linear(2, 2, device="meta")), "weight is meta, of type float32", "dense"),
    "both": (lambda at: Recorder(at, small(), resume=True, overwrite=True), "exclude each other", "one of them"),
    "pattern": (lambda at: Recorder(at, small(), blocks={"a": "1.*"}), "'1.\\*' matches no parameter", "0.weight"),
    "too many": (
        lambda at: Recorder(at, small(), expected=2**40),
        "expected is 1,099,511,627,776 checkpoints; a file holds at most 1,048,576",
        "record fewer",
    ),
    "10,000 tensors": (
        lambda at: Recorder(at, named(*map(str, range(10_000)))),
        "checkpoints would hold 10,000 datasets along an axis; at most 4,084 fit",
        "stack parameters of one shape",
    ),
    "no metrics": (lambda at: Recorder(at, small(), metrics=3), "metrics are 3", "list of names"),  # type: ignore[arg-type]
    "slash": (
        lambda at: Recorder(at, small(), metrics=["val/loss"]),
        "'val/loss' cannot be the name of a metric",
        "slash",
    ),
    "twice": (lambda at: Recorder(at, small(), metrics=["a", "a"]), "name one twice", "each once"),
    "row": (
        lambda at: Recorder(at, nn.ParameterDict({"metric_step": torch.ones(2)})),
        "'metric_step' cannot be the name of a parameter",
        "rename",
    ),
    "axis": (
        lambda at: Recorder(at, named("w", "w.0")),
        "'w.0' cannot be the name of a parameter",
        "rename",
    ),
    "taken": (lambda at: Recorder(at, small(), metrics=["0.bias"]), "'0.bias' cannot be the name", "rename it"),
    "seed": (lambda at: Recorder(at, small(), seed="x"), "a seed cannot be 'x'", "whole number"),  # type: ignore[arg-type]
    "path": (lambda at: Recorder(3, small()), "the path of a file cannot be 3", "pathlib.Path"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "words", "hint"), WORDS.values(), ids=WORDS.keys())
def test_mistakes(make: Any, words: str, hint: str, tmp_path: Path) -> None:
    """Each is refused with a hint before anything is written."""
    refused(lambda: make(tmp_path / "run.h5"), words, hint)
    assert not (tmp_path / "run.h5.lock").exists()


def test_a_model_that_changes(tmp_path: Path) -> None:
    """A layer more, or another width: what differs is named, and what was stored stays."""
    model = small()
    with Recorder(tmp_path / "run.h5", model) as recorder:
        recorder.checkpoint(0)
        model[2] = nn.Linear(3, 4)
        warned(lambda: recorder.checkpoint(1), r"the model has changed: 2.weight is f4 \[4, 3\], not", "its own")
    assert states(tmp_path / "run.h5").keys() == {0}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run. Read only."""
    path, model = tmp_path_factory.mktemp("recorded") / "run.h5", small()
    with Recorder(
        path, model, metrics=["train_loss", "test_loss", "train_accuracy", "test_accuracy", "lr"]
    ) as recorder:
        for step in range(0, 50, 10):
            move(model, step)
            recorder.checkpoint(step)
            recorder.metrics(step, train_loss=1 / (1 + step), test_loss=2, train_accuracy=step / 40, lr=0.1)
            recorder.metrics(step + 5, test_accuracy=0.5)
    return path


@pytest.mark.slow
def test_every_command_reads_it(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`info`, `check` and `report` show what is there."""
    assert cli.run(["info", str(recorded)]) == 0
    # Lines are folded to the terminal.
    said = " ".join(capsys.readouterr().out.split())
    assert "5 rows of 0.weight, 0.bias, 2.weight, 2.bias" in said
    assert "model=torch.nn.modules.container.Sequential num_parameters=17" in said
    assert "--problem mine.py:problem" in said
    assert "lacks" not in said
    assert "seed=" not in said
    with Recorder(tmp_path / "seeded.h5", small(), seed=4):
        pass
    assert cli.run(["info", str(tmp_path / "seeded.h5")]) == 0
    assert "seed=4" in capsys.readouterr().out
    assert cli.run(["info", "--json", str(recorded)]) == 0
    assert json.loads(capsys.readouterr().out)["attributes"]["seed"] is None
    assert cli.run(["check", str(recorded)]) == 0
    assert "whole and complete" in capsys.readouterr().out
    page = write_report([recorded], tmp_path / "report", quiet=True).read_text()
    assert (tmp_path / "report/figures/training_curves.svg").stat().st_size > 0
    table = pd.read_csv(tmp_path / "report/figures/training_curves.csv").set_index(["quantity", "split", "step"])
    assert table["value"]["accuracy", "test", 45] == 0.5
    assert "Traceback" not in page


def test_commands_that_need_more_say_so(recorded: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A problem, for what needs data and loss; the loop itself, for what trains."""
    for argv in (["hessian"], ["critical", "--step", "10"], ["slice", "--step", "10", "--out", str(tmp_path / "s")]):
        assert cli.run([*argv, "--run", str(recorded)]) in (1, 2)
        said = capsys.readouterr().err
        assert "was recorded from" in said
        assert "--problem mine.py:problem" in said
    assert cli.run(["train", "--resume", "--out", str(recorded), "--quiet"]) == 1
    assert "landscape.Recorder(path, model, resume=True)" in capsys.readouterr().err
    with pytest.raises(FileError, match="was recorded from"):
        train(TrainConfig(), recorded, resume=True, quiet=True)
