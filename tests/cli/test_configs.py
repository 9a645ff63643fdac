"""Config files that no run or sweep can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import HUGE, Refusal


@pytest.mark.parametrize(
    ("command", "text", "key"),
    [
        ("train", '{"p": 7, "lr": 0.1, "p": 11}', "p"),
        ("train", '{"p": 7, "p": 7}', "p"),
        ("sweep", '{"name": "a", "name": "b"}', "name"),
        ("sweep", '{"cases": {"a": {}, "b": {}, "a": {"p": 7}}}', "a"),
        ("sweep", '{"hessian": [{"k": 1, "rtol": 0.1, "k": 2}]}', "k"),
    ],
)
def test_a_key_that_is_set_twice(command: str, text: str, key: str, tmp_path: Path, assert_refused: Refusal) -> None:
    """JSON would take the last value; here, however deep it stands, neither is taken."""
    path = tmp_path / "c.json"
    path.write_text(text)
    argv = [command, "--config", path, "--out", tmp_path / "x.h5"]
    assert_refused(argv, 2, f"{path} sets {key!r} twice", "keep one of the two")
    assert list(tmp_path.iterdir()) == [path]


HOSTILE = {
    "a typo": ('{"hiden": 3}', "unknown config key 'hiden'", "did you mean hidden?"),
    "an unknown letter": ('{"\\ud800": 1}', r"unknown config key '\ud800'", "known: task, "),
    "an escape": ('{"\\u001b[31m": 1}', r"unknown config key '\x1b[31m'", "known: task, "),
    "another type": ('{"lr": "fast"}', "lr cannot be 'fast'", "it takes float"),
    "a truth value": ('{"batch_size": true}', "batch_size cannot be True", "it takes int | Literal['full']"),
    "a huge integer": (f'{{"hidden": {HUGE}}}', "hidden cannot be 1000", "numbers below 2^64"),
    "a huge float": (f'{{"lr": {HUGE}}}', "lr cannot be 1000", "numbers below 2^64"),
    "a huge step": (f'{{"checkpoint_at": [1, {HUGE}]}}', "checkpoint_at cannot be (1, 1000", "numbers below 2^64"),
    "NaN": ('{"lr": NaN}', "lr is nan", "--lr takes a number >= 0"),
    "infinity": ('{"lr": 1e999}', "lr is inf", "--lr takes a number >= 0"),
    "too many digits": (f'{{"seed": {"9" * 5000}}}', "is not JSON", 'write {"'),
    "a nested list": ("[" * 100_000 + "]" * 100_000, "is nested too deeply", 'write {"'),
    "a nested value": ('{"lr": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested too deeply", 'write {"'),
    "nothing": ("", "is not JSON", 'write {"'),
    "half an object": ("{", "is not JSON", 'write {"'),
    "null": ("null", "holds no JSON object", 'write {"'),
    "a list": ("[1]", "holds no JSON object", 'write {"'),
    "two megabytes": ('"' + "x" * (1 << 21) + '"', "more than 1,048,576 bytes", 'write {"'),
}
"""What Python's JSON reads, or nearly reads, and no run can have."""


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_hostile_config_files(command: str, name: str, tmp_path: Path, assert_refused: Refusal) -> None:
    """As the config of a run and as a case of a sweep."""
    text, error, hint = HOSTILE[name]
    path = tmp_path / "c.json"
    is_case = command == "sweep" and text[:1] == "{" and text[-1:] == "}"
    path.write_text(f'{{"cases": {{"base": {text}}}}}' if is_case else text)
    assert_refused([command, "--config", path, "--out", tmp_path / "x.h5"], 2, error, hint, [path])
    assert list(tmp_path.iterdir()) == [path]
