"""Recording from the loops of other libraries, with the libraries themselves."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.recording import states
from helpers.vision import torchvision

from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.training.callbacks.recording import Recording


def stored_metrics(path: Path) -> dict[int, dict[str, float]]:
    """The metrics in a file by step, without those that are NaN."""
    with RunReader(path) as reader:
        columns = reader.metrics()
    steps = columns.pop("metric_step").tolist()
    return {
        step: {name: float(values[i]) for name, values in columns.items() if not np.isnan(values[i])}
        for i, step in enumerate(steps)
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    """A tiny GPT-2: the last row is the trained model, tied weights stand once, logs are stored by the next step."""
    torchvision()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from landscape.training.callbacks.transformers import RecorderCallback

    path = tmp_path / "run.h5"
    seen: dict[int, list[int]] = {}

    class Watch(TrainerCallback):
        """What a reader finds while a step is taken, and would find had the process been killed there."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen[state.global_step] = list(stored_metrics(path))

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    data = [{"input_ids": torch.arange(8) % 11, "labels": torch.arange(8) % 11}] * 8
    options = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=2, logging_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=4,
    )  # fmt: skip
    callback = RecorderCallback(path, every=4, blocks={"attn": "*.attn.*"}, optimizer=True)
    trainer = Trainer(model=model, args=options, train_dataset=data, eval_dataset=data, callbacks=[callback, Watch()])
    trainer.train()
    rows = states(path)
    assert list(rows) == [0, 4, 6]
    for name, parameter in model.named_parameters():
        assert np.array_equal(rows[6][name], parameter.detach().numpy())
    assert not np.array_equal(rows[0]["transformer.wte.weight"], rows[6]["transformer.wte.weight"])
    with RunReader(path) as reader:
        assert reader.config["aliases"] == {"lm_head.weight": "transformer.wte.weight"}
        assert reader.attrs["status"] == "complete"
        rates = [reader.optimizer_at(step)["optimizer_lr"] for step in (0, 4, 6)]  # type: ignore[index]
        stored = reader.second_moments(6)
    assert trainer.optimizer is not None
    for name, parameter in model.named_parameters():
        assert np.array_equal((stored or {})[name], trainer.optimizer.state[parameter]["exp_avg_sq"].numpy())
    # It falls linearly to 0, at the start of a step to what that step takes.
    assert [rate[0] for rate in rates] == pytest.approx([5e-5, 5e-5 * 2 / 6, 0])
    assert seen == {1: [], 2: [], 3: [2], 4: [2], 5: [2, 4], 6: [2, 4]}
    logged: dict[int, dict[str, float]] = {}
    for entry in trainer.state.log_history:
        kept = {name: entry[name] for name in ("loss", "learning_rate", "grad_norm", "eval_loss") if name in entry}
        logged[entry["step"]] = logged.get(entry["step"], {}) | kept
    assert stored_metrics(path) == logged
    assert "eval_loss" in logged[4]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
def test_the_best_model_is_not_the_last_step(tmp_path: Path) -> None:
    """With load_best_model_at_end the model goes back to an earlier step; the last row is what was trained."""
    torchvision()  # transformers imports it
    from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments as Arguments

    from landscape.training.callbacks.transformers import RecorderCallback

    trained: dict[int, np.ndarray[Any, Any]] = {}

    class Watch(TrainerCallback):
        """The embedding after each step."""

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            trained[state.global_step] = model.transformer.wte.weight.detach().numpy().copy()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    options = Arguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=4, per_device_train_batch_size=2, learning_rate=0.01,
        report_to=[], use_cpu=True, disable_tqdm=True, load_best_model_at_end=True,
        # The loss falls: the first evaluation stays the best, and the second one stops the training.
        metric_for_best_model="loss", greater_is_better=True,
        eval_strategy="steps", save_strategy="steps", eval_steps=3, save_steps=3,
    )  # fmt: skip
    callbacks = [RecorderCallback(tmp_path / "run.h5", every=5), Watch(), EarlyStoppingCallback(1)]
    trainer = Trainer(model=model, args=options, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train()
    assert trainer.state.global_step == 6
    assert not np.array_equal(model.transformer.wte.weight.detach().numpy(), trained[6])
    stored = states(tmp_path / "run.h5")
    assert list(stored) == [0, 5, 6]
    for step in stored.keys() - {0}:
        assert np.array_equal(stored[step]["transformer.wte.weight"], trained[step])


@pytest.fixture
def lightning() -> ModuleType:
    """The library."""
    torchvision()  # lightning imports it
    return importlib.import_module("lightning")


@pytest.fixture
def module(lightning: ModuleType) -> Callable[[], Any]:
    """A small network; `logged` has the losses that it logged, by the number of steps taken when they were shown."""

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(2, 1)
            self.logged: dict[str, dict[int, float]] = {"train/loss": {}, "val_loss": {}, "mean": {}}
            self.fails_at = -1

        def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
            value: torch.Tensor = ((self.net(batch[0]) - 1) ** 2).mean()
            return value

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            if self.global_step == self.fails_at:
                raise ValueError("the batch is broken")
            value = self.loss(batch)
            self.logged["train/loss"][self.global_step + 1] = value.item()
            self.log("train/loss", value)
            self.log("mean", value, on_step=False, on_epoch=True)
            return value

        def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
            value = self.loss(batch)
            self.logged["val_loss"][self.global_step] = value.item()
            self.log("val_loss", value)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    return Module


def fit(lightning: ModuleType, model: Any, callbacks: list[Any]) -> None:
    """Two epochs of four batches."""
    data = torch.utils.data.TensorDataset(torch.randn(8, 2, generator=torch.Generator().manual_seed(1)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=callbacks, logger=False,
        enable_checkpointing=any(hasattr(one, "save_top_k") for one in callbacks), enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    load = torch.utils.data.DataLoader
    trainer.fit(model, load(data, 2), load(data, 8))


WARNINGS = pytest.mark.filterwarnings(
    r"ignore:The '\w+_dataloader' does not have many workers", "ignore:.*isinstance.treespec, LeafSpec.:FutureWarning",
    "ignore:The number of training batches", "ignore:The `srun` command is available",
)  # fmt: skip


@pytest.mark.slow
@WARNINGS
def test_the_trainer_of_lightning(lightning: ModuleType, module: Callable[[], Any], tmp_path: Path) -> None:
    """Checkpoints are the model's, losses those of their steps and never shown again; the training stays the same."""
    from landscape.training.callbacks.lightning import RecorderCallback

    path = tmp_path / "run.h5"
    seen: dict[int, list[int]] = {}
    weights: dict[int, torch.Tensor] = {}

    class Watch(lightning.Callback):  # type: ignore[misc, name-defined]
        """What a reader finds while a step is taken, and would find had the process been killed there."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            seen[trainer.global_step] = list(stored_metrics(path))
            weights[trainer.global_step] = pl_module.net.weight.detach().clone()

    model, alone = module(), module()
    callback = RecorderCallback(
        path, every=3, metrics=["train/loss", "val_loss", "mean"], blocks={"net": "net.*"}, pairs=[], seed=3
    )
    fit(lightning, model, [callback, Watch()])
    fit(lightning, alone, [])
    rows = states(path)
    assert list(rows) == [0, 3, 6, 8]
    for step in (3, 6, 8):
        assert np.array_equal(rows[step]["net.weight"], weights[step].numpy())
    assert torch.equal(model.net.weight, alone.net.weight)
    assert not np.array_equal(rows[0]["net.weight"], rows[3]["net.weight"])
    train, val = model.logged["train/loss"], model.logged["val_loss"]
    mean = [float(np.mean(np.float32([train[step] for step in steps]))) for steps in (range(1, 5), range(5, 9))]
    stored = stored_metrics(path)
    assert [stored[4].pop("mean"), stored[8].pop("mean")] == pytest.approx(mean, rel=1e-6)
    assert stored == {
        3: {"train_loss": train[3]},
        4: {"val_loss": val[4]},
        6: {"train_loss": train[6]},
        8: {"train_loss": train[8], "val_loss": val[8]},
    }
    assert seen == {1: [], 2: [], 3: [], 4: [3], 5: [3, 4], 6: [3, 4], 7: [3, 4, 6], 8: [3, 4, 6]}
    with RunReader(path) as reader:
        assert reader.attrs["status"] == "complete"
        assert (reader.config["blocks"], reader.config["pairs"], reader.config["seed"]) == ({"net": ["net.*"]}, [], 3)


@pytest.mark.slow
@WARNINGS
def test_a_training_of_lightning_that_fails(lightning: ModuleType, module: Callable[[], Any], tmp_path: Path) -> None:
    """The file is closed with what was recorded, and is resumed by the next training."""
    from landscape.training.callbacks.lightning import RecorderCallback

    path = tmp_path / "run.h5"
    model = module()
    model.fails_at = 5
    with pytest.raises(ValueError, match="the batch is broken"):
        fit(lightning, model, [RecorderCallback(path, every=3)])
    assert list(states(path)) == [0, 3]
    assert stored_metrics(path) == {4: {"val_loss": model.logged["val_loss"][4]}}
    with RunReader(path) as reader:
        assert reader.attrs["status"] == "interrupted"
    again = module()
    fit(lightning, again, [RecorderCallback(path, every=3, resume=True, optimizer=True)])
    assert list(states(path)) == [0, 3, 6, 8]
    with RunReader(path) as reader:
        optimizer = again.trainer.optimizers[0]
        stored = reader.second_moments(8)
        assert stored is not None
        for name, parameter in again.named_parameters():
            assert np.array_equal(stored[name], optimizer.state[parameter]["exp_avg_sq"].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_library_that_is_not_installed(library: str) -> None:
    """The error names the extra."""
    code = f"import sys; sys.modules[{library!r}] = None; import landscape.training.callbacks.{library}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"ImportError: the callback needs {library}: pip install {library}"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "10"])
def test_an_interval_that_is_none(every: Any, tmp_path: Path) -> None:
    """It is refused where the callback is made, before anything is trained."""
    with pytest.raises(ArgumentError, match=f"every is {every!r}") as refused:
        Recording(tmp_path / "run.h5", every, (), {})
    assert "give the number of steps between two checkpoints" in refused.value.hint


@pytest.mark.slow
@WARNINGS
def test_curvature_in_lightning(lightning: ModuleType, module: Callable[[], Any], tmp_path: Path) -> None:
    """A squared error has the Hessian of its data; the logger's own file has it at the steps that were measured."""
    from lightning.pytorch.loggers import CSVLogger

    from landscape import Objective
    from landscape.training.callbacks.lightning import MonitorCallback

    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x)

    def objective(module: torch.nn.Module) -> Objective:
        return Objective(module, [[x]], lambda m, batch: m.loss(batch))

    callback = MonitorCallback(objective, every=4, share=1e9)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[callback], logger=CSVLogger(tmp_path),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    load = torch.utils.data.DataLoader
    trainer.fit(module(), load(data, 2), load(data, 8))
    (path,) = tmp_path.rglob("metrics.csv")
    table = pd.read_csv(path).dropna(subset="curvature/sharpness")
    X = torch.cat([x, torch.ones(8, 1)], 1).double()
    largest = float(torch.linalg.eigvalsh(2 * X.T @ X / 8)[-1])
    assert table["step"].tolist() == [1, 4, 8]
    assert table["curvature/sharpness"].to_numpy() == pytest.approx(largest, rel=1e-3)
    assert table["curvature/preconditioned_sharpness_limit"].to_numpy() == pytest.approx(38 / 0.1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
def test_curvature_in_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    """A tiny GPT-2: what the log has is the Hessian's largest eigenvalue at the last step."""
    torchvision()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from landscape import HessianOperator, Objective, eigsh
    from landscape.training.callbacks.transformers import MonitorCallback

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    data = [{"input_ids": torch.arange(8) % 11, "labels": torch.arange(8) % 11}] * 8
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    options = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = MonitorCallback(lambda model: Objective(model.eval(), [batch]), every=2, share=1e9)
    trainer = Trainer(model=model, args=options, train_dataset=data, callbacks=[callback])
    trainer.train()
    model.eval()
    rows = [row for row in trainer.state.log_history if "curvature/sharpness" in row]
    assert [row["step"] for row in rows] == [1, 2, 4]
    H = HessianOperator(Objective(model, [batch]), dict(model.named_parameters()))
    sharpness = eigsh(H, 1, "highest", "lanczos").values[0, 0]
    assert rows[-1]["curvature/sharpness"] == pytest.approx(sharpness, rel=1e-3)
    # Its rate falls linearly to 0; the Trainer wraps the optimiser.
    assert rows[0]["curvature/preconditioned_sharpness_limit"] == pytest.approx(38 / (5e-5 * 3 / 4))
