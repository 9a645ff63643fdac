"""Recording from the loops of other libraries, with the libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.recording import states
from helpers.vision import torchvision

from landscape.errors import ArgumentError
from landscape.storage.runs import RunReader
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


@pytest.mark.slow
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
    callback = RecorderCallback(path, every=4, blocks={"attn": "*.attn.*"})
    trainer = Trainer(model=model, args=options, train_dataset=data, eval_dataset=data, callbacks=[callback, Watch()])
    trainer.train()
    found = states(path)
    assert list(found) == [0, 4, 6]
    for name, parameter in model.named_parameters():
        assert np.array_equal(found[6][name], parameter.detach().numpy())
    assert not np.array_equal(found[0]["transformer.wte.weight"], found[6]["transformer.wte.weight"])
    with RunReader(path) as reader:
        assert reader.config["aliases"] == {"lm_head.weight": "transformer.wte.weight"}
        assert reader.attrs["status"] == "complete"
    assert seen == {1: [], 2: [], 3: [2], 4: [2], 5: [2, 4], 6: [2, 4]}
    logged: dict[int, dict[str, float]] = {}
    for entry in trainer.state.log_history:
        kept = {name: entry[name] for name in ("loss", "learning_rate", "grad_norm", "eval_loss") if name in entry}
        logged[entry["step"]] = logged.get(entry["step"], {}) | kept
    assert stored_metrics(path) == logged
    assert "eval_loss" in logged[4]


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "10"])
def test_an_interval_that_is_none(every: Any, tmp_path: Path) -> None:
    """It is refused where the callback is made, before anything is trained."""
    with pytest.raises(ArgumentError, match=f"every is {every!r}") as refused:
        Recording(tmp_path / "run.h5", every, (), {})
    assert "give the number of steps between two checkpoints" in refused.value.hint
