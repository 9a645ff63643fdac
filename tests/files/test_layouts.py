"""Layouts that lie, and what a layout may add: datasets are taken by name, and refused where they do not fit."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import SMALL
from helpers.fuzz_reader import judge, seal, serve
from helpers.hessians import analyse
from helpers.spoiling import commit, configure, link, put

import landscape
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.files.hessians import HessianReader
from landscape.files.inspect import inspect, repair
from landscape.files.runs import RunReader
from landscape.report.page import write_report
from landscape.training.loop import train

HESSIAN: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "external link": (
        lambda file: link(file, "eigenvalues", h5py.ExternalLink("pipe", "/E")),
        "eigenvalues is an external link into another file",
    ),
    "soft link": (lambda file: link(file, "spectrum", h5py.SoftLink("/density")), "spectrum is a soft link"),
    "no group": (lambda file: file.__delitem__("density"), "density is missing"),
    "no dataset": (lambda file: file.__delitem__("spectrum/E,W"), "spectrum/E,W is missing"),
    "other type": (lambda file: put(file, "inertia", dtype="i4"), "inertia has 32-bit integer type, not i8"),
    "other shape": (lambda file: put(file, "inertia", (3, 3, 4)), "inertia has 4 along sign"),
    "other objective": (lambda file: configure(file, objective="regularised"), "its objective is 'data', but"),
    "no parent": (lambda file: file.attrs.__delitem__("parent_config"), "the attribute parent_config is missing"),
    "changed parent": (lambda file: file.attrs.__setitem__("parent_sha256", "0" * 64), "its attributes fail"),
}


@pytest.mark.parametrize("name", HESSIAN)
def test_hostile_hessian_files_are_refused(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Their shapes follow from their layout, and the rest from what every file has."""
    path = Path(shutil.copy(files["hessian"], tmp_path))
    with h5py.File(path, "r+") as file:
        HESSIAN[name][0](file)
    with pytest.raises(FileError, match=re.escape(HESSIAN[name][1])):
        HessianReader(path)


def field(layout: dict[str, Any], group: str, name: str) -> Any:
    """The entry of a dataset."""
    (table,) = (table for table in layout["tables"] if table["group"] == group)
    return next(entry for entry in table["fields"] if entry["name"] == name)


def endless(layout: dict[str, Any], file: h5py.File) -> None:
    """An axis whose labels would fill any memory, of a table that takes no byte for it has no row."""
    more = {"group": "more", "row": "step", "newest": "", "fields": [{"name": "x", "dims": ["endless"], "dtype": "f8"}]}
    more["fields"][0]["long_name"] = "nothing"
    layout["tables"].append(more)
    for name, shape, dtype in (("step", (0,), "i8"), ("crc32", (0,), "u8"), ("x", (0, 1 << 50), "f8")):
        file.create_dataset(f"more/{name}", shape, dtype)
    file["more/crc32"].attrs["fields"] = "x"


Forge = Callable[[Any, h5py.File], object]
LAYOUTS: dict[str, tuple[Forge, str]] = {
    **{
        f"name {name[:20]!r}": (lambda x, file, name=name: field(x, "checkpoints", "E").update(name=name), words)
        for name, words in {
            "../data/tokens": "'../data/tokens' is no name",
            "/E": "'/E' is no name",
            ".": "'.' is no name",
            "..": "'..' is no name",
            "": "'' is no name",
            "E W": "'E W' is no name",
            "E\n": "'E\\n' is not printable",
            "\0": "'\\x00' is not printable",
            "\ud800": "'\\ud800' is not printable",
            "x" * 300: "is no name",
            "W": "'W' stands twice",
            "step": "'step' stands twice",
            "crc32": "'crc32' stands twice",
            "hidden": "'hidden' stands twice",
        }.items()
    },
    "name that is a number": (lambda x, file: field(x, "checkpoints", "E").update(name=5), "'5' is no str"),
    "group with a slash": (lambda x, file: x["tables"][0].update(group="a/b"), "'a/b' is no name"),
    "group twice": (lambda x, file: x["tables"].append(x["tables"][0]), "'checkpoints' stands twice"),
    "unknown group": (
        lambda x, file: x["tables"].append({**x["tables"][1], "group": "elsewhere"}),
        "elsewhere is missing",
    ),
    "unknown group in another file": (
        lambda x, file: (
            x["tables"].append({**x["tables"][1], "group": "elsewhere"}),
            file.__setitem__("elsewhere", h5py.ExternalLink("pipe", "/metrics")),
        ),
        "elsewhere is an external link into another file",
    ),
    "no checkpoints": (lambda x, file: x["tables"].pop(0), "it has no table checkpoints of rows by step"),
    "checkpoints by another axis": (
        lambda x, file: (x["tables"][0].update(row="time"), file.move("checkpoints/step", "checkpoints/time")),
        "it has no table checkpoints of rows by step",
    ),
    "axis twice": (
        lambda x, file: field(x, "checkpoints", "V").update(dims=["hidden", "hidden"]),
        "'hidden' stands twice",
    ),
    "axes as one word": (lambda x, file: field(x, "checkpoints", "b1").update(dims="hidden"), "'hidden' is no list"),
    "axis of rows": (
        lambda x, file: field(x, "checkpoints", "b1").update(dims=["metric_step"]),
        "an axis of rows is also another axis",
    ),
    "axes that disagree": (
        lambda x, file: field(x, "checkpoints", "b2").update(dims=["hidden"]),
        "checkpoints/b2 has 7 along hidden, which is 8 long elsewhere",
    ),
    "labels of another number": (lambda x, file: x["labels"].update(token=["a"]), "has 7 along token, which is 1 long"),
    "label twice": (lambda x, file: x["labels"].update(token=["a"] * 7), "'a' stands twice"),
    "endless axis": (endless, "more/x declares 9,007,199,254,740,992 bytes in a file of"),
    "type that no file has": (
        lambda x, file: field(x, "checkpoints", "E").update(dtype="O"),
        "E is of type 'O', none of f4 f8 i1 i4 i8 u8",
    ),
    "another type": (
        lambda x, file: field(x, "tokens", "count").update(dtype="u8"),
        "tokens/count has 64-bit integer type, not u8",
    ),
    "unknown key": (lambda x, file: field(x, "checkpoints", "E").update(shape=[1 << 60]), "its layout cannot be: "),
    "missing key": (lambda x, file: field(x, "checkpoints", "E").pop("dims"), "its layout cannot be: "),
    "unit with an escape": (
        lambda x, file: field(x, "checkpoints", "E").update(units="\x1b[2J"),
        "'\\x1b[2J' is not printable",
    ),
    "codes without meanings": (
        lambda x, file: field(x, "tokens", "count").update(attrs={"flag_values": [0, 1], "flag_meanings": "zero"}),
        "count has codes without a meaning",
    ),
    "very many codes": (
        lambda x, file: field(x, "tokens", "count").update(
            attrs={"flag_values": [*range(9999)], "flag_meanings": "a " * 9999}
        ),
        "count has codes without a meaning",
    ),
    "another mark": (
        lambda x, file: field(x, "tokens", "count").update(attrs={"_FillValue": 40}),
        "its layout cannot be: 'flag_values'",
    ),
    "mark of a float": (
        lambda x, file: field(x, "tokens", "grad_norm").update(attrs={"_FillValue": -1}),
        "its layout cannot be: 'flag_values'",
    ),
    "slots without an order": (
        lambda x, file: x["tables"][-2].update(newest="order"),
        "resume has no number 'order' by which the newer slot is known",
    ),
    "arrays without axes": (
        lambda x, file: field(x, "data", "split").update(dims=[]),
        "data has neither rows nor whole arrays",
    ),
    "very many datasets": (
        lambda x, file: x["tables"][1]["fields"].extend(
            {"name": f"f{i}", "dims": [], "dtype": "f8", "long_name": ""} for i in range(1 << 13)
        ),
        "more than 8,192 datasets",
    ),
    "tables that are none": (lambda x, file: x.update(tables={"checkpoints": []}), "is no list"),
    "labels that are none": (lambda x, file: x.update(labels=[]), "its layout cannot be: "),
    "fewer datasets": (lambda x, file: x["tables"][0]["fields"].pop(0), "checkpoints/crc32 covers 'E W b1 V b2'"),
}
TEXTS = {
    "[" * 100_000: "its layout cannot be: ",
    '{"tables": ': "its layout cannot be: Expecting value",
    "[1]": "its layout cannot be: ",
    "null": "its layout cannot be: ",
    '{"tables": [], "labels": {}}': "it has no table checkpoints",
    " " * ((1 << 20) + 1): "the attribute layout has 1,048,577 letters",
    f'{{"tables": {"9" * 10_000}, "labels": {{}}}}': "its layout cannot be: ",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_forged_layouts_are_refused(name: str, run: Path) -> None:
    """However right their checksum: a layout names datasets of this file, whose axes agree, and nothing else."""
    os.mkfifo(run.with_name("pipe"))
    with h5py.File(run, "r+") as file:
        layout = json.loads(file.attrs["layout"])
        LAYOUTS[name][0](layout, file)
        file.attrs["layout"] = json.dumps(layout)
        seal(file)
    with pytest.raises(FileError, match=re.escape(LAYOUTS[name][1])):
        RunReader(run)


def test_a_layout_of_other_quantities_is_not_drawn(files: dict[str, Path], run: Path, tmp_path: Path) -> None:
    """A sound file whose eigenvalues have other axes is refused before a figure is made, or a row added."""
    path = Path(shutil.copy(files["hessian"], run.with_name("run.hessian.h5")))
    with h5py.File(path, "r+") as file:
        file.attrs["layout"] = file.attrs["layout"].replace('"end"', '"side"')
        seal(file)
    config = HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu")
    for work in (lambda: write_report([path], tmp_path / "r"), lambda: analyse(run, config, quiet=True)):
        with pytest.raises(FileError, match="eigenvalues is block side rank f8, not block end rank f8"):
            work()


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_texts_that_are_no_layout(text: str, run: Path) -> None:
    """No JSON, too much of it, or JSON of something else."""
    with h5py.File(run, "r+") as file:
        file.attrs["layout"] = text
        seal(file)
    with pytest.raises(FileError, match=re.escape(TEXTS[text])):
        RunReader(run)


def test_a_changed_layout_is_noticed(run: Path) -> None:
    """It is covered by the checksum of the attributes, and needed."""
    with h5py.File(run, "r+") as file:
        file.attrs["layout"] = file.attrs["layout"].replace("slot_embed", "slot_embad")
    with pytest.raises(FileError, match="its attributes fail their checksum"):
        RunReader(run)
    with h5py.File(run, "r+") as file:
        del file.attrs["layout"]
    with pytest.raises(FileError, match="the attribute layout is missing"):
        RunReader(run)


def test_what_no_reader_knows_is_served_by_name(run: Path) -> None:
    """Datasets and tables beyond those of today: `open_run` and `info` show them, and a trimmed file keeps them."""
    with h5py.File(run, "r+") as file:
        layout = json.loads(file.attrs["layout"])
        file["checkpoints/layers.0.weight"] = np.arange(6.0).reshape(3, 2)
        entry = {"name": "layers.0.weight", "dims": ["out"], "dtype": "f8", "long_name": "a foreign weight"}
        layout["tables"][0]["fields"].append(entry)
        file["checkpoints/crc32"].attrs["fields"] += " layers.0.weight"
        for index, step in enumerate(file["checkpoints/step"][()]):
            names = str(file["checkpoints/crc32"].attrs["fields"]).split()
            commit(file["checkpoints"], "step", index, step, {n: file["checkpoints"][n][index] for n in names})
        table = {"group": "norms", "row": "norm_step", "newest": "", "fields": [{**entry, "name": "L2", "dims": []}]}
        layout["tables"].append(table)
        file["norms/norm_step"], file["norms/L2"] = np.array([-1, -1]), np.zeros(2)
        file["norms/crc32"] = np.zeros(2, "u8")
        file["norms/crc32"].attrs["fields"] = "L2"
        for index in range(2):
            commit(file["norms"], "norm_step", index, 7 * index, {"L2": index + 0.5})
        file.attrs["layout"], file.attrs["status"] = json.dumps(layout), "interrupted"
        seal(file)
    repair(run)
    with landscape.open_run(run) as data:
        assert data["layers.0.weight"].dims == ("step", "out")
        assert data["layers.0.weight"].values.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert data["layers.0.weight"].attrs["long_name"] == "a foreign weight"
        assert data["L2"].sel(norm_step=7) == 1.5
    assert "norms" in [table.group for table in inspect(run).tables]
    with h5py.File(run) as file:
        assert file["norms/L2"].dims[0][0].name == "/norms/norm_step"


def test_a_file_that_is_not_what_its_config_says(files: dict[str, Path], run: Path, tmp_path: Path) -> None:
    """A layout may be in order and yet not that of the model: whoever needs the model says so."""
    with h5py.File(run, "r+") as file:
        layout = json.loads(file.attrs["layout"])
        layout["tables"][0]["fields"][0]["name"] = "F"
        file.move("checkpoints/E", "checkpoints/F")
        file["checkpoints/crc32"].attrs["fields"] = "F W b1 V b2"
        file.attrs["layout"] = json.dumps(layout)
        seal(file)
    with RunReader(run) as reader:
        assert [*reader.checkpoint(0)] == ["F", "W", "b1", "V", "b2"]
    for work in (
        lambda: analyse(run, HessianConfig(blocks=("W",), device="cpu"), tmp_path / "h.h5", quiet=True),
        lambda: train(dataclasses.replace(SMALL, steps=60), run, resume=True, quiet=True),
    ):
        with pytest.raises(FileError, match="checkpoints/E is missing, which its config asks for"):
            work()
    path = Path(shutil.copy(files["hessian"], tmp_path / "g.h5"))
    with h5py.File(path, "r+") as file:
        layout = json.loads(file.attrs["layout"])
        field(layout, "/", "coupling_index")["dims"] = ["triple"]
        file.attrs["layout"], file.attrs["status"] = json.dumps(layout), "running"
        seal(file)
    config = HessianConfig(blocks=("E", "W", "E,W"), k=3, steps="0,20,40", device="cpu")
    with pytest.raises(FileError, match="coupling_index is triple i8, not pair i8"):
        analyse(files["run"], config, path, quiet=True)


def test_groups_that_cannot_stand_side_by_side(run: Path) -> None:
    """Two datasets of one name are read group by group, and not as one dataset of xarray."""
    with h5py.File(run, "r+") as file:
        layout = json.loads(file.attrs["layout"])
        field(layout, "metrics", "f_E")["name"] = "E"
        file.move("metrics/f_E", "metrics/E")
        names = str(file["metrics/crc32"].attrs["fields"]).split()
        file["metrics/crc32"].attrs["fields"] = " ".join(["E" if name == "f_E" else name for name in names])
        file.attrs["layout"] = json.dumps(layout)
        seal(file)
    with pytest.raises(FileError, match="has E in several groups") as refused:
        landscape.open_run(run)
    assert "to_xarray('metrics')" in refused.value.hint
    with RunReader(run) as reader:
        assert reader.metrics()["E"].shape == (3,)


@pytest.mark.slow
def test_what_the_layout_does_not_name_is_ignored(files: dict[str, Path], run: Path) -> None:
    """Foreign objects and attributes, however hostile, change nothing of what is served."""
    os.mkfifo(run.with_name("pipe"))
    with h5py.File(run, "r+") as file:
        for name in ("", "checkpoints/", "data/"):
            file[f"{name}loop"] = file["/"]
            file[f"{name}soft"] = h5py.SoftLink("/soft")
            file[f"{name}elsewhere"] = h5py.ExternalLink(str(run.with_name("pipe")), "/")
            file.create_dataset(f"{name}opaque", (2,), "V9")
            file.create_dataset(f"{name}raw", (9,), "f4", external=[(str(run.with_name("pipe")), 0, 99)])
            file.create_dataset(f"{name}packed", (9,), "f4", compression="lzf")
            file.create_dataset(f"{name}unstored", (1 << 50,), "f4", chunks=(1 << 20,))
        file.attrs["note"] = "mine"
        file.attrs["pointer"] = file.ref
    original = serve(files["run"], {})
    assert judge(serve(run, original), original) == "harmless"
    assert landscape.open_run(run).load().identical(landscape.open_run(files["run"]).load())
    # The next rewrite leaves them behind.
    train(dataclasses.replace(SMALL, steps=60), run, resume=True, quiet=True)
    with h5py.File(run) as file:
        assert set(file) == {"checkpoints", "metrics", "tokens", "moments", "resume", "data"}
