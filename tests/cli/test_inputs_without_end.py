"""Pipes, devices and files of any size in the place of a config, a sweep, a text or a problem are refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.commands import SMALL, Refusal
from helpers.recording import small

from landscape.training.recorder import Recorder

OPTIONS = {
    "config": ["train", "--config", "{}", "--out", "x.h5"],
    "sweep": ["sweep", "{}", "--out", "x"],
    "text": ["train", "--task", "text", "--text", "{}", *SMALL, "--out", "x.h5"],
    "problem": ["hessian", "run.h5", "--problem", "{}:problem"],
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["pipe", "device", "file"])
def test_they_are_refused(
    option: str, kind: str, tmp_path: Path, assert_refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe has no writer here, /dev/zero no end, and the file is 1 TB of zeros that take no room on the disk."""
    monkeypatch.chdir(tmp_path)
    with Recorder("run.h5", small()) as recorder:
        recorder.checkpoint(0)
    path = Path("/dev/zero") if kind == "device" else tmp_path / "input.py"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    argv = [word.format(path) for word in OPTIONS[option]]
    error = "has more than " if kind == "file" else "is a pipe"
    assert_refused(argv, 2 if kind == "file" else 1, f"{path} {error}", "")
    assert {each.name for each in tmp_path.iterdir()} <= {"run.h5", "input.py"}


def test_a_text_of_one_word(tmp_path: Path, assert_refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be learned, and no file is left."""
    monkeypatch.chdir(tmp_path)
    text = Path("t.txt")
    options = ["--task", "text", "--text", text, *SMALL, "--vocabulary", 2, "--samples", 100, "--out", "x.h5"]
    text.write_text("word " * 1000)
    assert_refused(["train", *options], 2, "t.txt has 1 different words", "name a text of more words")
    assert list(tmp_path.iterdir()) == [tmp_path / "t.txt"]
