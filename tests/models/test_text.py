"""Texts as samples: which words are tokens, where they are learned from and tested on, and what is refused."""

from __future__ import annotations

import dataclasses
import gzip
import pydoc_data.topics
import re
import unicodedata
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest
import torch
import xarray

import landscape
from landscape.config import TrainConfig
from landscape.curvature.operators import HessianOperator
from landscape.errors import ConfigError, FileError
from landscape.models import of_config
from landscape.models.tasks import TEST, TRAIN, UNUSED, make_data
from landscape.models.text import STRETCHES, UNKNOWN, read_text

SMALL = {"vocabulary": 60, "context": 2, "samples": 400, "embed_dim": 4, "hidden": 8, "batch_size": 64, "steps": 40}


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The help topics of this Python."""
    path = tmp_path_factory.mktemp("text") / "topics.txt"
    path.write_text("\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    return path


def options(text: Path, **more: object) -> TrainConfig:
    """A small run on a text."""
    return TrainConfig(task="text", text=str(text), **{**SMALL, "train_fraction": 0.8, **more})


def written(tmp_path: Path, letters: str, **more: object) -> TrainConfig:
    """A run on a text of these letters."""
    (tmp_path / "text.txt").write_text(letters, encoding="utf-8")
    return options(tmp_path / "text.txt", **more)


def test_the_vocabulary_is_the_most_frequent_words_and_one_for_all_others(tmp_path: Path) -> None:
    config = written(tmp_path, "\ufeffDon’t stop; don’t STOP. Été 42 stop_here l'été!", vocabulary=4)
    text = read_text(config)
    # stop 3, don’t 2; of those that occur once the first in the alphabet.
    assert text.words == ["stop", "don’t", "here", UNKNOWN]
    assert text.tokens.tolist() == [1, 0, 1, 0, 3, 0, 2, 3]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_belong_to_words_in_either_form_of_unicode(form: Literal["NFC", "NFD"], tmp_path: Path) -> None:
    config = written(tmp_path, unicodedata.normalize(form, "Été naïve été señor été naïve"), vocabulary=4)
    text = read_text(config)
    assert text.words == ["été", "naïve", "señor", UNKNOWN]
    assert text.tokens.tolist() == [0, 1, 0, 2, 0, 1]


def test_every_sample_is_a_place_of_the_text(topics: Path) -> None:
    config = options(topics, test_fraction=0.1)
    text, data = read_text(config), make_data(config)
    places = set(zip(text.tokens[:-2].tolist(), text.tokens[1:-1].tolist(), text.tokens[2:].tolist(), strict=True))
    assert {(*row, label) for row, label in zip(data.tokens.tolist(), data.labels.tolist(), strict=True)} <= places
    assert [(data.split == part).sum() for part in (TRAIN, TEST, UNUSED)] == [320, 40, 40]
    counts = np.bincount(text.tokens)
    assert (np.diff(counts[:-1]) <= 0).all()


def test_no_word_is_learned_from_and_tested_on(tmp_path: Path) -> None:
    # Every word occurs once, so that a token tells its place.
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    config = written(tmp_path, " ".join(words), vocabulary=1001, context=3, samples=500)
    data = make_data(config)
    held = np.column_stack([data.tokens, data.labels])
    stretches = held * STRETCHES // len(words)
    assert (np.diff(held) == 1).all()
    assert (stretches[:, 0] == stretches[:, -1]).all()
    train, test = (set(stretches[data.split == part].ravel()) for part in (TRAIN, TEST))
    assert train
    assert test
    assert not train & test
    # Within the room that is left, every place is taken at most once.
    assert len(np.unique(held[:, 0])) == len(held)


def test_uniform_takes_every_last_word_equally_often(topics: Path) -> None:
    last = make_data(options(topics, sampler="uniform")).subset(TRAIN)[0][:, -1]
    counts = np.bincount(last, minlength=60)
    assert set(counts) <= {320 // 60, 320 // 60 + 1}
    natural = np.bincount(make_data(options(topics)).subset(TRAIN)[0][:, -1], minlength=60)
    assert natural.max() > 5 * counts.max()


@pytest.mark.parametrize("model", ["embedding", "onehot", "tables", "transformer"])
def test_the_hessian_is_that_of_autodiff(topics: Path, model: str) -> None:
    heads = {"heads": 2} if model == "transformer" else {}
    config = options(topics, samples=100, vocabulary=12, model=model, dtype="float64", **heads)
    data = make_data(config)
    problem = of_config(config, {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}, "cpu")
    arrays = landscape.models.initial(config)
    params = {n: torch.from_numpy(arrays[n]) for n in problem.parameters}
    theirs = problem.plain(arrays)
    leaves = [theirs.parameters[n] for n in params]
    loss = theirs.loss(theirs.model(theirs.inputs), theirs.targets)
    slopes = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, leaves, create_graph=True)])
    v = torch.from_numpy(np.random.default_rng(0).standard_normal(len(slopes)))
    product = torch.cat([g.reshape(-1) for g in torch.autograd.grad(slopes @ v, leaves)])
    by_hand = problem.structure(params, 0.0).operator()
    ours = (by_hand or HessianOperator(problem.objective(0.0), params)) @ v[:, None]
    assert torch.allclose(ours[:, 0], product, rtol=1e-9, atol=1e-12)


def test_words_label_the_axes_of_the_file(topics: Path, tmp_path: Path) -> None:
    config = options(topics)
    run = tmp_path / "run.h5"
    landscape.train(config, run, quiet=True)
    words = read_text(config).words
    with h5py.File(run) as file:
        assert [word.decode() for word in file["checkpoints/token"]] == words
        assert [word.decode() for word in file["checkpoints/class"]] == words
        assert file["checkpoints/E"].shape[1:] == (60, 4)
    with xarray.open_dataset(run, group="checkpoints", engine="h5netcdf") as table:
        assert table["E"].sel(token=words[3]).shape[1] == 4


def test_a_resumed_run_is_the_whole_one_and_takes_no_other_text(topics: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    landscape.train(options(topics), whole, quiet=True)
    landscape.train(options(topics, steps=20), parts, quiet=True)
    moved = tmp_path / "moved.txt"
    moved.write_bytes(topics.read_bytes())
    landscape.train(options(moved), parts, resume=True, quiet=True)
    with h5py.File(whole) as one, h5py.File(parts) as other:
        assert np.array_equal(one["checkpoints/E"][-1], other["checkpoints/E"][-1])
    letters = topics.read_text(encoding="utf-8").split()
    moved.write_text(" ".join(reversed(letters)), encoding="utf-8")
    before = parts.read_bytes()
    with pytest.raises(ConfigError, match=re.escape(f"{parts} was started with another text than {moved}")):
        landscape.train(options(moved, steps=60), parts, resume=True, quiet=True)
    assert parts.read_bytes() == before


@pytest.mark.parametrize("words", [{"a": "b", "b": "a"}, {"c": "sea"}], ids=["exchanged", "renamed"])
def test_other_words_of_the_same_numbers_are_another_text(words: dict[str, str], tmp_path: Path) -> None:
    """Words are numbered by how often they come, so that the data alone do not tell such texts apart."""
    text, run = "a b a c a b d a b c " * 60, tmp_path / "run.h5"
    small = {"vocabulary": 4, "samples": 100, "batch_size": 16}
    landscape.train(written(tmp_path, text, **small, steps=10), run, quiet=True)
    other = tmp_path / "other.txt"
    other.write_text(" ".join(words.get(word, word) for word in text.split()), encoding="utf-8")
    before = run.read_bytes()
    with pytest.raises(ConfigError, match=re.escape(f"{run} was started with another text than {other}")):
        landscape.train(options(other, **small, steps=20), run, resume=True, quiet=True)
    assert run.read_bytes() == before


REFUSED = {
    "vocabulary is 60, but .* has 3 different words": (b"one two three two", "lower --vocabulary to 4 or less"),
    "has 0 different words": (b" \n42 ... \n", "name a text of more words"),
    "is not text in UTF-8: byte 3 is 0xe9": ("caf\xe9".encode("latin-1"), "iconv -f LATIN1 -t UTF-8"),
    "is not text in UTF-8: byte 1 is 0x8b": (gzip.compress(b"words"), "gunzip"),
    "is not text in UTF-8: byte 0 is 0xff": ("words".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_text_that_cannot_be_read_is_refused(tmp_path: Path, words: str) -> None:
    content, hint = REFUSED[words]
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises((ConfigError, FileError), match=words) as caught:
        landscape.train(options(tmp_path / "text.txt"), tmp_path / "run.h5", quiet=True)
    assert hint in str(caught.value.hint)
    assert not (tmp_path / "run.h5").exists()


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.txt: No such file") as caught:
        landscape.train(options(tmp_path / "none.txt"), tmp_path / "run.h5", quiet=True)
    assert "--text" in caught.value.hint
    with pytest.raises(FileError, match="Is a directory"):
        read_text(options(tmp_path))


def test_more_samples_than_places_are_refused(topics: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"samples is 1000000, but .* has \d+ places to learn from and \d+ to test"):
        landscape.train(options(topics, samples=1_000_000), tmp_path / "run.h5", quiet=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "text"}, "task text has no text"),
        ({"text": "a.txt"}, "text is a.txt, but task add reads no text"),
        ({"samples": 3}, "samples is 3, but task add reads no text"),
        ({"task": "text", "text": "a", "model": "scalar"}, "words of a text have none"),
        ({"task": "text", "text": "a", "sampler": "zipf"}, "words of a text have their own"),
        ({"task": "text", "text": "a", "start": "folded", "tokens": 2}, "a text has no `op` and `=`"),
    ],
)
def test_options_that_do_not_go_with_a_text_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**options)


def test_words_have_no_geometry_of_numbers(topics: Path, tmp_path: Path) -> None:
    landscape.train(options(topics), tmp_path / "run.h5", quiet=True)
    with pytest.raises(ConfigError, match="the words of a text are no numbers"):
        landscape.geometry(tmp_path / "run.h5", quiet=True)
