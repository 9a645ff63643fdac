"""`landscape import` never guesses a step, and takes no harm from what others have made."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import a_state
from helpers.recording import states

from landscape.cli import main as cli

NAMES: dict[str, tuple[list[str], list[int]]] = {
    "one number": (["at1.pt", "at20.pt"], [1, 20]),
    "lightning": (["epoch=1-step=100.ckpt", "epoch=2-step=200-v1.ckpt"], [100, 200]),
    "named": (["net2-step9.pt", "v3_iter_10.pt", "Global_Step=11-loss0.5.pt"], [9, 10, 11]),
}
DOUBTS = {
    "a loss": ["epoch=1-val_loss=0.32.pt", "epoch=2-val_loss=0.31.pt"],
    "a version": ["m-v1.2-00100.pt", "m-v1.2-00200.pt"],
    "thousands": ["model-1k.pt", "model-10k.pt"],
    "two in one name": ["net2-17.pt"],
    "a decimal": ["model-0.5.pt"],
}


def saved(folder: Path, names: list[str]) -> list[str]:
    for name in names:
        torch.save({"state_dict": a_state(1), "global_step": 7}, folder / name)
    return ["import", str(folder), "--out", str(folder / "run.h5"), "--quiet"]


@pytest.mark.parametrize(("names", "steps"), NAMES.values(), ids=NAMES.keys())
def test_steps_in_names(names: list[str], steps: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of names and steps comes first; Lightning's own files are read."""
    assert cli.run(saved(tmp_path, names)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.rpartition(" -> step ")[2]) for line in lines[:-1]] == steps
    assert {line.partition(" -> ")[0] for line in lines[:-1]} == {n for n in names if re.search(r"\d", n)}
    assert sorted(states(tmp_path / "run.h5")) == steps


@pytest.mark.parametrize("names", DOUBTS.values(), ids=DOUBTS.keys())
def test_doubts(names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused before anything is written."""
    assert cli.run(saved(tmp_path, names)) == 1
    said = capsys.readouterr().err
    assert "error: which number is the step of " in said
    assert "hint: say so by a pattern" in said
    assert not (tmp_path / "run.h5").exists()


def test_the_table_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It leaves stdout to the document."""
    assert cli.run([*saved(tmp_path, ["at1.pt"]), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["steps"] == [1]
    assert "at1.pt -> step 1" in said.err


def packed(path: Path) -> None:
    """A torch file whose records unpack to a hundred times its size."""
    torch.save({"a": torch.zeros(3_000_000)}, path.with_suffix(".whole"))
    with (
        zipfile.ZipFile(path.with_suffix(".whole")) as whole,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for record in whole.infolist():
            small.writestr(record.filename, whole.read(record))


def nested(depth: int) -> str:
    return '{"weight_map": ' + "[" * depth + "]" * depth + "}"


def shards(path: Path, text: str) -> None:
    path.mkdir()
    (path / "model.safetensors.index.json").write_text(text)


HOSTILE: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a pipe": ("p1.pt", os.mkfifo, "p1.pt is a device or a pipe"),
    "a pipe of safetensors": ("p1.safetensors", os.mkfifo, "p1.safetensors is a device or a pipe"),
    "an endless device": ("z1.pt", lambda path: path.symlink_to("/dev/zero"), "z1.pt is a device or a pipe"),
    "a link to nowhere": ("n1.pt", lambda path: path.symlink_to("nowhere"), "n1.pt"),
    "a packed zip": ("b1.pt", packed, "declares 12,0.* bytes in a file of"),
    "strides of 0": ("e1.pt", lambda path: torch.save({"a": torch.ones(1).expand(1 << 40)}, path), "far more than it"),
    "nested tensors": (
        "t1.pt",
        lambda path: torch.save({"a": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, path),
        "a nested tensor|would run code",
    ),
    "a deep index": ("checkpoint-1", lambda path: shards(path, nested(100_000)), "is no index of shards"),
    "a cut pickle": ("c1.pt", lambda path: path.write_bytes(b"\x80\x02}q\x00(X\x01\x00\x00\x00aK"), "no torch file"),
    "an empty stack": ("c1.pt", lambda path: path.write_bytes(b"\x80\x02."), "no torch file"),
    "a wrong memo": ("c1.pt", lambda path: path.write_bytes(b"\x80\x02h\x07."), "no torch file"),
    "a deep pickle": ("c1.pt", lambda path: path.write_bytes(b"\x80\x02" + b"]" * 90_000 + b"a" * 89_999 + b"."), "c1"),
    "a zip of nothing": ("c1.pt", lambda path: zipfile.ZipFile(path, "w").close(), "no torch file"),
    "a cut zip": ("c1.ckpt", lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)), "no torch file"),
}


@pytest.mark.parametrize(("name", "make", "words"), HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_hostile_files(
    name: str, make: Callable[[Path], Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One error and one hint, at once, and nothing is left behind."""
    make(tmp_path / name)
    assert cli.run(["import", str(tmp_path / name), "--out", str(tmp_path / "run.h5"), "--quiet"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["error", "hint"], said
    assert re.search(words, said[0]), said
    assert not list(tmp_path.glob("*run.h5*"))


def test_tensors_of_nothing(tmp_path: Path) -> None:
    """They have a shape."""
    torch.save({"a": torch.ones(0, 3), "b": torch.ones(2), "n": torch.zeros(0, dtype=torch.int64)}, tmp_path / "a1.pt")
    assert cli.run(["import", str(tmp_path / "a1.pt"), "--out", str(tmp_path / "run.h5"), "--quiet"]) == 0
    stored = states(tmp_path / "run.h5")[1]
    assert {name: array.shape for name, array in stored.items()} == {"a": (0, 3), "b": (2,), "n": (0,)}
    assert cli.run(["check", str(tmp_path / "run.h5")]) == 0
