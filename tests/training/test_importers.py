"""`landscape import` keeps every bit of checkpoints that other programs wrote, and runs nothing of theirs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoints import a_state, same
from helpers.recording import small
from helpers.refusals import refused
from safetensors.torch import save_file, save_model
from torch import nn

from landscape.cli import main as cli
from landscape.files.runs import RunReader
from landscape.training.importers import import_checkpoints


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["safetensors", "pt", "pth"])
def test_round_trip(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """What torch and safetensors saved is read back bit for bit, sorted by step; small floats say where they went."""
    truth = {step: a_state(step, dtype) for step in (9, 10, 200)}
    for step, state in truth.items():
        save = save_file if kind == "safetensors" else torch.save
        save(state, tmp_path / f"net2-step{step}.{kind}")
    out = tmp_path / "run.h5"
    imported = import_checkpoints([tmp_path], out, quiet=True)
    assert imported.steps == (9, 10, 200)
    assert any("is stored in float32" in note for note in imported.notes) == (dtype in (torch.bfloat16, torch.float16))
    same(out, truth)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict"])
def test_states_inside_of_others(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trainer's own file: what is skipped is said in one line each, and so is where the state was."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for step in (1, 2):
        # As in torch's tutorial, the file holds the loss, too: a tensor, but not a parameter.
        inside = {"loss": torch.ones(()), key: model.state_dict(), "optimizer": {"lr": 1.0}, "epoch": 3}
        torch.save(inside, tmp_path / f"at{step}.pt")
    torch.save({}, tmp_path / "final.pt")
    assert cli.run(["import", str(tmp_path), "--out", str(tmp_path / "run.h5"), "--quiet"]) == 0
    said = capsys.readouterr()
    assert "2 checkpoints, steps 1 to 2, 15 parameters in 4 tensors" in said.out
    assert cli.run(["import", str(tmp_path / "at2.pt"), "--out", str(tmp_path / "one.h5"), "--quiet"]) == 0
    assert "one.h5: a checkpoint at step 2, 15 parameters in 4 tensors" in capsys.readouterr().out
    for line in (
        f"the state is under '{key}'",
        "skipped 'optimizer': no tensor",
        "skipped 'loss': no tensor",
        f"skipped {tmp_path / 'final.pt'}: no step in its name",
    ):
        assert said.err.count(line) == 1, said.err
    same(tmp_path / "run.h5", {step: model.state_dict() for step in (1, 2)})


def test_links_to_contents_named_by_hashes(tmp_path: Path) -> None:
    """The step is in a link's name, as Hugging Face, DVC and git-annex make them; also where two steps are equal."""
    objects, folder = tmp_path / "objects", tmp_path / "snapshot"
    objects.mkdir()
    folder.mkdir()
    truth = {100: a_state(1), 200: a_state(2), 300: a_state(1)}
    for step, name in ((100, "ab12cd07fe"), (200, "9e4f31aa5b"), (300, "ab12cd07fe")):
        torch.save(truth[step], objects / name)
        (folder / f"model-step{step}.pt").symlink_to(objects / name)
    (folder / "latest.pt").symlink_to(objects / "ab12cd07fe")
    assert import_checkpoints([folder], tmp_path / "run.h5", quiet=True).steps == (100, 200, 300)
    same(tmp_path / "run.h5", truth)


def test_folders_of_hugging_face(tmp_path: Path) -> None:
    """One file or several with an index; optimizer and random states beside them are not opened."""
    truth = {step: a_state(step) for step in (5, 10)}
    for step, state in truth.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "optimizer.pt").write_text("not even a torch file")
        if step == 5:
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
            continue
        names = list(state)
        shards = {"model-00001-of-00002.safetensors": names[:1], "model-00002-of-00002.safetensors": names[1:]}
        for shard, held in shards.items():
            save_file({name: state[name] for name in held}, folder / shard)
        weights = {name: shard for shard, held in shards.items() for name in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    for number, sources in enumerate(([tmp_path], [tmp_path / "checkpoint-*"], sorted(tmp_path.glob("checkpoint-*")))):
        import_checkpoints(sources, tmp_path / f"run{number}.h5", quiet=True)
        same(tmp_path / f"run{number}.h5", truth)


def test_what_a_folder_holds_besides_is_said(tmp_path: Path) -> None:
    """One line for each folder or pattern: the files of other kinds."""
    folder = tmp_path / "states"
    folder.mkdir()
    torch.save(a_state(1), folder / "a1.pt")
    for name in ("b2.onnx", "c3.bin", "d.txt", "e.txt"):
        (folder / name).write_text("x")
    for number, source in enumerate((folder, folder / "*")):
        imported = import_checkpoints([source], tmp_path / f"run{number}.h5", quiet=True)
        assert imported.notes == (f"skipped in {source}: b2.onnx, c3.bin, d.txt and 1 more",)


def test_older_folders_of_hugging_face(tmp_path: Path) -> None:
    """pytorch_model.bin, whole and in shards, with the weights alone read; safetensors beside it are preferred."""
    truth = {step: a_state(step) for step in (5, 10, 15)}
    for step, state in truth.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if step == 10:
            names = list(state)
            shards = {"pytorch_model-00001-of-00002.bin": names[:1], "pytorch_model-00002-of-00002.bin": names[1:]}
            for shard, held in shards.items():
                torch.save({name: state[name] for name in held}, folder / shard)
            weights = {name: shard for shard, held in shards.items() for name in held}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weights}))
        else:
            torch.save(state if step == 5 else {"a": torch.ones(1)}, folder / "pytorch_model.bin")
        if step == 15:
            save_file(state, folder / "model.safetensors")
    import_checkpoints([tmp_path], tmp_path / "run.h5", quiet=True)
    same(tmp_path / "run.h5", truth)
    (tmp_path / "checkpoint-10/pytorch_model-00002-of-00002.bin").unlink()
    refused(
        lambda: import_checkpoints([tmp_path], tmp_path / "other.h5", quiet=True),
        r"pytorch_model.bin.index.json is no index of shards: pytorch_model-00002-of-00002.bin is missing",
        "copy it again",
    )


def test_tied_weights_once(tmp_path: Path) -> None:
    """By equal storage in torch files, by their metadata in safetensors; equal numbers alone prove nothing."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model[2].weight = nn.Parameter(model[0].weight.detach().clone())
    torch.save(model.state_dict(), tmp_path / "a1.pt")
    save_model(model, str(tmp_path / "b1.safetensors"))
    for name in ("a1.pt", "b1.safetensors"):
        out = tmp_path / f"{name}.h5"
        import_checkpoints([tmp_path / name], out, quiet=True)
        same(out, {1: {n: model[0].weight.detach() for n in ("0.weight", "2.weight")}})
        with RunReader(out) as reader:
            assert reader.config["aliases"] == {"1.weight": "0.weight"}


def test_sparse_tensors_are_named(tmp_path: Path) -> None:
    """They have no memory to compare, and no place in a run file."""
    torch.save({"a": torch.eye(3).to_sparse(), "b": torch.ones(2)}, tmp_path / "s1.pt")
    refused(
        lambda: import_checkpoints([tmp_path / "s1.pt"], tmp_path / "run.h5", quiet=True), "a is sparse_coo", "dense"
    )
    assert {p.name for p in tmp_path.iterdir()} == {"s1.pt"}


def test_steps_by_a_pattern(tmp_path: Path) -> None:
    """The first group of the pattern; names that it does not match are left out; skipped tensors are named."""
    for step in (1, 2):
        torch.save(a_state(step), tmp_path / f"it{step}-loss0.5.pt")
    torch.save(a_state(3), tmp_path / "best-loss0.4.pt")
    imported = import_checkpoints([tmp_path], tmp_path / "run.h5", r"it(\d+)", skip=["*.bias"], quiet=True)
    assert imported.steps == (1, 2)
    assert any("best-loss0.4.pt: no step" in note for note in imported.notes)
    assert "skipped '0.bias': as --skip says" in imported.notes
    same(tmp_path / "run.h5", {s: {n: t for n, t in a_state(s).items() if "bias" not in n} for s in (1, 2)})


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_no_code_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pickle that would run code is refused, whatever else it holds, and a whole module, too."""
    mark = tmp_path / "mark"
    torch.save({**a_state(1), "bomb": Bomb(mark)}, tmp_path / "a1.pt")
    torch.save(small(), tmp_path / "b1.pt")
    for name, what in (("a1.pt", "posix.mkdir"), ("b1.pt", "torch.nn.modules.container.Sequential")):
        assert cli.run(["import", str(tmp_path / name), "--out", str(tmp_path / "run.h5")]) == 1
        said = capsys.readouterr().err
        assert f"would run code when it is read ({what})" in said
        assert "hint: save the state alone: torch.save(model.state_dict()" in said
    assert not mark.exists()
    # It is one: read without care it would have made its mark.
    torch.load(tmp_path / "a1.pt", weights_only=False)
    assert mark.exists()
    assert not (tmp_path / "run.h5").exists()


def broken(folder: Path) -> dict[str, tuple[list[str], int, str, str]]:
    """Arguments of imports that fail, with exit code, words and hint."""
    torch.save(a_state(1), folder / "a1.pt")
    torch.save(a_state(2), folder / "other2.pt")
    save_file(a_state(1), folder / "c1.safetensors")
    whole = (folder / "c1.safetensors").read_bytes()
    (folder / "cut1.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "empty1.pt").write_bytes(b"")
    (folder / "empty1.safetensors").write_bytes(b"")
    torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(folder / "jit1.pt")
    torch.save({"model": {"state_dict": a_state(1)}}, folder / "deep1.pt")
    torch.save(torch.ones(2), folder / "tensor1.pt")
    torch.save({"a": torch.ones(2, device="meta"), "b": torch.ones(2, device="meta")}, folder / "meta1.pt")
    torch.save({"": torch.ones(2)}, folder / "nameless1.pt")
    torch.save({"..": torch.ones(2)}, folder / "dots1.pt")
    torch.save({"a": torch.ones((1,) * 33)}, folder / "axes1.pt")
    (folder / "noise1.pt").write_bytes(b"\x80\x02noise")
    (folder / "cut1.pt").write_bytes((folder / "a1.pt").read_bytes()[:-200])
    (folder / "text1.txt").write_text("x")
    torch.save({"epoch": 3}, folder / "epoch1.pt")
    torch.save({3: torch.ones(2)}, folder / "number1.pt")
    torch.save({"a/b": torch.ones(2)}, folder / "slash1.pt")
    torch.save({"n": torch.arange(2)}, folder / "ints1.pt")
    torch.save({n: t[:1] for n, t in a_state(3).items()}, folder / "thin3.pt")
    (folder / "empty").mkdir()
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1/model.safetensors.index.json").write_text('{"weight_map": {"a": "../c1.safetensors"}}')
    notes = folder / "notes.h5"
    notes.write_text("mine")
    names = {
        "missing": (["none*"], 1, "does not exist", "a glob must match"),
        "empty": (["empty"], 1, "empty is a folder without checkpoints", ".safetensors, .pt, .pth"),
        "text": (["text1.txt"], 1, "text1.txt is a file of an unknown kind", ".safetensors"),
        "cut": (["cut1.safetensors"], 1, "is damaged or no safetensors file", "copy it again"),
        "noise": (["noise1.pt"], 1, "is damaged or no torch file", "copy it again"),
        "cut torch": (["cut1.pt"], 1, "is damaged or no torch file", "copy it again"),
        "nothing": (["empty1.pt"], 1, "is damaged or no torch file: EOFError", "copy it again"),
        "nothing safe": (["empty1.safetensors"], 1, "is damaged or no safetensors file", "copy it again"),
        "program": (["jit1.pt"], 1, "jit1.pt is a TorchScript program, which is not run", "save the state alone"),
        "deep": (["deep1.pt"], 1, "holds no state dict", "save one directly"),
        "tensor": (["tensor1.pt"], 1, "holds no state dict", "save one directly"),
        "meta": (["meta1.pt"], 1, "a is meta, of type float32", "only dense"),
        "no name": (["nameless1.pt"], 1, "'' cannot be the name of a parameter", "printable characters"),
        "two dots": (["dots1.pt"], 1, "'..' cannot be the name of a parameter", "rename it"),
        "axes": (["axes1.pt"], 2, "a has 33 axes; at most 31 are stored", "fewer axes"),
        "no state": (["epoch1.pt"], 1, "holds no state dict", "'model', 'state_dict', 'model_state_dict'"),
        "number": (["number1.pt"], 1, "a parameter has the name 3, not a string", "state dict"),
        "slash": (["slash1.pt"], 1, "'a/b' cannot be the name of a parameter", "slashes"),
        "integers": (["ints1.pt"], 1, "holds no parameters", "model's state"),
        "twice": (["a1.pt", "c1.safetensors"], 1, "are both of step 1", "--step-pattern"),
        "shapes": (["a1.pt", "thin3.pt"], 1, r"thin3.pt differs from .*a1.pt: 0.weight is f4 \[1, 2\]", "by itself"),
        "no step": (["a1.pt", "--step-pattern", "x(1)"], 1, "no name has a step, such as a1.pt", "--step-pattern"),
        "no group": (["a1.pt", "--step-pattern", "1"], 2, "'1' has no group", "brackets"),
        "regex": (["a1.pt", "--step-pattern", "("], 2, "is no regular expression", "such as"),
        "letters": (["a1.pt", "--step-pattern", "(a)"], 2, "the step of .* would be 'a'", "match digits"),
        "index": (["checkpoint-1"], 1, "is no index of shards: a shard lies elsewhere", "copy it again"),
    }
    there = {name: ([str(folder / args[0]), *args[1:]], *rest) for name, (args, *rest) in names.items()}
    for name in ("twice", "shapes"):
        there[name] = ([str(folder / file) for file in names[name][0]], *names[name][1:])
    there["taken"] = ([str(folder / "a1.pt"), "--out", str(notes)], 1, "notes.h5 exists", "--overwrite")
    there["foreign"] = (
        [str(folder / "a1.pt"), "--out", str(notes), "--overwrite"],
        1,
        "is not a run file",
        "remove it",
    )
    return there  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one error and one hint, and leaves nothing behind."""
    for name, (argv, code, words, hint) in broken(tmp_path).items():
        out = [] if "--out" in argv else ["--out", str(tmp_path / "run.h5")]
        assert cli.run(["import", *argv, *out, "--quiet"]) == code, name
        said = capsys.readouterr().err
        assert re.search(f"error: .*{words}.*\nhint: .*{re.escape(hint)}", said), (name, said)
    assert not list(tmp_path.glob("run.h5*")) + list(tmp_path.glob(".*"))
    assert (tmp_path / "notes.h5").read_text() == "mine"


def test_commands_read_what_was_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`info` and `check` know it, JSON says what was done, numbers that are not finite are stored and named."""
    state = a_state(1)
    state["0.bias"][1] = float("inf")
    torch.save(state, tmp_path / "a1.pt")
    argv = ["import", str(tmp_path / "a1.pt"), "--out", str(tmp_path / "run.h5"), "--quiet", "--json"]
    assert cli.run(argv) == 0
    assert json.loads(capsys.readouterr().out)["num_parameters"] == 17
    assert cli.run(["check", str(tmp_path / "run.h5")]) == 0
    assert cli.run(["info", str(tmp_path / "run.h5")]) == 0
    said = capsys.readouterr().out
    assert "whole and complete" in said
    assert "finite parameters: 0.bias at step 1 has 1 non-finite values" in said
