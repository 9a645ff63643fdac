"""Recording from the loops of other libraries, with the libraries themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.recording import states
from helpers.vision import torchvision

from landscape.storage.runs import RunReader


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    """A tiny GPT-2: the last row is the trained model, tied weights stand once, losses are those that were logged."""
    torchvision()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from landscape.training.callbacks.transformers import RecorderCallback

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    data = [{"input_ids": torch.arange(8) % 11, "labels": torch.arange(8) % 11}] * 8
    options = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=2, logging_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = RecorderCallback(tmp_path / "run.h5", every=4, blocks={"attn": "*.attn.*"})
    trainer = Trainer(model=model, args=options, train_dataset=data, callbacks=[callback])
    trainer.train()
    found = states(tmp_path / "run.h5")
    assert list(found) == [0, 4, 6]
    for name, parameter in model.named_parameters():
        assert np.array_equal(found[6][name], parameter.detach().numpy())
    assert not np.array_equal(found[0]["transformer.wte.weight"], found[6]["transformer.wte.weight"])
    with RunReader(tmp_path / "run.h5") as reader:
        assert reader.config["aliases"] == {"lm_head.weight": "transformer.wte.weight"}
        assert reader.attrs["status"] == "complete"
        metrics = reader.metrics()
    logged = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert dict(zip(metrics["metric_step"].tolist(), metrics["loss"].tolist(), strict=True)) == logged
