"""What becomes of words: their table from the raw files by other means."""

from __future__ import annotations

import json
import random

import collect_tokens
import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tiny_trial import STUDIES, swept
from runs import Run, studies

TINY = {
    "vocabulary": 60,
    "samples": 300,
    "embed_dim": 4,
    "hidden": 8,
    "batch_size": 16,
    "steps": 100,
    "metrics_every": 10,
    "device": "cpu",
}


def text(count: int) -> str:
    """Words of falling frequency, half of which follow from the one before."""
    drawn, words = random.Random(0), [first + second for first in "abcdefgh" for second in "klmnopqrst"]
    at = [0]
    for _ in range(count):
        chosen = drawn.choices(range(80), [1 / (i + 1) for i in range(80)])[0]
        at.append(chosen if drawn.random() < 0.5 else (7 * at[-1] + 3) % 80)
    return " ".join(words[i] for i in at)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("words")
    (folder / "bible.txt").write_text(text(4000))
    study = json.loads((STUDIES / "text/beyond/words.json").read_text())
    train = {**study["train"], **TINY, "text": str(folder / "bible.txt")}
    swept({**study, "train": train, "cases": {"decay": {}}, "seeds": [300]}, folder / "text")
    ((planned,),) = studies(folder / "text").values()
    return planned


@pytest.mark.long
def test_ranges_are_those_of_the_raw_files(run: Run) -> None:
    """The gradient by autograd; losses by PyTorch, place by place."""
    table = collect_tokens.ranges(run)
    with h5py.File(run.path) as file:
        read = lambda name: torch.from_numpy(file[name][:])  # noqa: E731
        tokens, labels, split = (read(f"data/{name}").long() for name in ("tokens", "labels", "split"))
        weights = [read(f"checkpoints/{name}").double() for name in ("E", "W", "b1", "V", "b2")]
        steps, seen = file["checkpoints/step"][:], file["tokens/count"][-1]
    each = []
    for i in range(len(steps)):
        E, W, b1, V, b2 = (w[i].clone().requires_grad_() for w in weights)
        logits = torch.relu(E[tokens].flatten(1) @ W.T + b1) @ V.T + b2
        each.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    each[-1][split == 0].mean().backward()
    e, g = E.detach()[:-1], E.grad[:-1]
    sizes = e.norm(dim=1), g.norm(dim=1)
    balance, opposed = 1e-3 * sizes[0] / sizes[1], -(e * g).sum(dim=1) / sizes[0] / sizes[1]
    frequency = torch.bincount(labels[split == 0], minlength=60) + 1.0
    alone = -(frequency / frequency.sum()).log()[labels]
    for row in table.itertuples():
        of = slice(row.first - 1, row.last)
        np.testing.assert_allclose(row.norm, np.median(e[of].norm(dim=1)), rtol=1e-6)
        np.testing.assert_allclose(row.balance, np.median(balance[of]), rtol=1e-6)
        np.testing.assert_allclose(row.opposed, np.nanmedian(opposed[of]), rtol=1e-6, atol=1e-9)
        assert row.updated == pytest.approx(np.median(seen[of]) / steps[-1])
        there = (split == 1) & (tokens[:, -1] >= row.first - 1) & (tokens[:, -1] < row.last)
        gain = [float((alone - loss.detach())[there].mean()) for loss in each]
        half = [step for step, value in zip(steps, gain, strict=True) if value >= max(gain) / 2]
        np.testing.assert_equal(row.learned, half[0] if max(gain) > 0 else np.nan)
    # Every word but the last of the vocabulary is in one range.
    assert table["first"].tolist()[1:] == [last + 1 for last in table["last"][:-1]]
    assert (table["first"].iloc[0], table["last"].iloc[-1]) == (1, 59)


@pytest.mark.long
def test_words_and_losses_are_those_of_the_raw_files(run: Run) -> None:
    words, losses = collect_tokens.words(run), collect_tokens.losses(run)
    with h5py.File(run.path) as file:
        tokens, split = file["data/tokens"][:], file["data/split"][:]
        norms = file["tokens/embedding_norm"][-1]
        loss, step = file["metrics/test_loss"][:], file["metrics/metric_step"][:]
    assert words["count"].tolist() == [int((tokens[split == 0] == word).sum()) for word in range(59)]
    np.testing.assert_allclose(words["norm"], norms[:-1], atol=1e-5)
    pd.testing.assert_series_equal(losses["test_loss"], pd.Series(loss, name="test_loss"))
    assert losses["step"].tolist() == step.tolist()
    assert set(losses["c"]) == {1.0}
