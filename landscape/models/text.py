"""A text: its words as tokens, and places in it as samples, a context and the word that follows."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from landscape.choices.samplers import SAMPLERS, Samples
from landscape.config import TrainConfig
from landscape.errors import ConfigError, FileError
from landscape.files.files import as_path
from landscape.json_files import read_file

MOST_BYTES = 1 << 27
"""Largest size of a text."""
UNKNOWN = "<unknown>"
"""The last word of every vocabulary, which stands for all that are not in it."""
STRETCHES = 100
"""Equal parts of a text, of which each is learned from or tested on."""
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


@dataclasses.dataclass(frozen=True)
class Text:
    """words: the vocabulary, the most frequent word first and UNKNOWN last; tokens (place): the text in it."""

    words: list[str]
    tokens: NDArray[np.int32]


def read_text(config: TrainConfig) -> Text:
    """The text of a run. Raises FileError for one that cannot be read, ConfigError for one of too few words."""
    path = as_path(config.text)
    try:
        state = path.stat()
        return _read(path.absolute(), config.vocabulary, (state.st_size, state.st_mtime_ns))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}", "name a text file in UTF-8 with --text") from error


@functools.lru_cache(maxsize=4)
def _read(path: Path, vocabulary: int, state: tuple[int, int]) -> Text:
    """The text of a file, which is read again once its size or time is another."""
    content = read_file(path, MOST_BYTES, "name a shorter text, such as the first part of this one")
    try:
        letters = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "LATIN1"
        raise FileError(
            f"{path} is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}",
            f"unpack or convert it first, such as with gunzip or iconv -f {encoding} -t UTF-8",
        ) from error
    # Accents that stand for themselves, as macOS writes them, are no letters and would end words.
    occurrences = _WORD.findall(unicodedata.normalize("NFC", letters.lower()))
    counts = Counter(occurrences)
    if len(counts) < max(2, vocabulary - 1):
        raise ConfigError(
            f"vocabulary is {vocabulary}, but {path} has {len(counts)} different words",
            f"lower --vocabulary to {len(counts) + 1} or less" if len(counts) > 1 else "name a text of more words",
        )
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 1]
    tokens = {word: token for token, word in enumerate(words)}
    return Text([*words, UNKNOWN], np.array([tokens.get(word, vocabulary - 1) for word in occurrences], np.int32))


def choose_places(config: TrainConfig) -> tuple[NDArray[np.int32], NDArray[np.int32], tuple[int, int, int]]:
    """Tokens (sample, slot) and labels (sample) of places of a text, and how many train, test and are unused.

    They come in this order. The text is cut into STRETCHES, of which the
    seed draws those for testing; a place lies within one, so that no word is learned from and tested on. Raises
    ConfigError for more samples than the text has places.
    """
    text, rng = read_text(config), np.random.default_rng([config.seed, 0])
    asked = round(config.train_fraction * config.samples)
    test = config.samples - asked if config.test_fraction is None else round(config.test_fraction * config.samples)
    # Both halves of an odd number may be rounded up.
    train = min(asked, config.samples - test)
    unused = config.samples - train - test
    first = np.arange(max(0, len(text.tokens) - config.context))
    stretch = first * STRETCHES // len(text.tokens)
    is_within = stretch == (first + config.context) * STRETCHES // len(text.tokens)
    tested = rng.permutation(STRETCHES)[: max(1, round(STRETCHES * test / config.samples))]
    is_tested = np.isin(stretch, tested)
    to_learn, to_test = first[is_within & ~is_tested], first[is_within & is_tested]
    if len(to_learn) < train + unused or len(to_test) < test:
        raise ConfigError(
            f"samples is {config.samples}, but {config.text} has {len(to_learn)} places to learn from and "
            f"{len(to_test)} to test on",
            "lower --samples, or name a longer --text",
        )
    places = rng.permutation(to_test)[:test]
    operands = np.stack([text.tokens[to_learn + k] for k in range(config.context)], axis=1).astype(np.int64)
    samples = Samples(operands, config.classes, config.skew, is_text=True)
    chosen = SAMPLERS[config.sampler].choose(samples, train, rng)
    rest = rng.permutation(np.setdiff1d(np.arange(len(to_learn)), chosen))[:unused]
    places = np.concatenate([to_learn[chosen], places, to_learn[rest]])
    window = places[:, None] + np.arange(config.context + 1)
    tokens = text.tokens[window]
    if (tokens[:, :-1] == tokens[0, :-1]).all():
        context = " ".join(text.words[token] for token in tokens[0, :-1])
        raise ConfigError(
            f"every sample of {config.text} has the context {context!r}, from which there is nothing to learn",
            "name a --text of more words, or raise --vocabulary or --samples",
        )
    return tokens[:, :-1], tokens[:, -1], (train, test, unused)
