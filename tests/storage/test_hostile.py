"""Files from someone else: hostile ones are refused in one line, broken ones never give a wrong number."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import TINY
from helpers.fuzz_reader import MEMORY, Campaign, Reader, judge, seal, serve

import landscape
from landscape.analysis.hessian import analyse
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.report.page import write_report
from landscape.storage.contents import ATTRIBUTES
from landscape.storage.hessians import HessianReader
from landscape.storage.inspect import inspect, repair
from landscape.storage.runs import RunReader
from landscape.storage.table import crc32_of_arrays
from landscape.training.loop import train

OLD = Path(__file__).parents[1] / "data"
SMALL = dataclasses.replace(TINY, steps=40, checkpoint_log=0, metrics_every=20)
Build = Callable[[h5py.File, Path], object]


def commit(group: h5py.Group, row: str, index: int, label: int, values: dict[str, Any]) -> None:
    """Write a row into a file that is open for changes, with a record that fits."""
    crc = zlib.crc32(np.int64(label).tobytes())
    for name in str(group["crc32"].attrs["fields"]).split():
        group[name][index] = values[name]
        crc = zlib.crc32(np.asarray(group[name][index]).tobytes(), crc)
    group[row][index], group["crc32"][index] = label, (1 << 32) + crc


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of three checkpoints and its Hessian file. Read only."""
    run = tmp_path_factory.mktemp("files") / "run.h5"
    train(SMALL, run, quiet=True)
    analyse(run, HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu"), quiet=True)
    return {"run": run, "hessian": run.with_name("run.hessian.h5")}


@pytest.fixture
def run(files: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the run that a test may break."""
    return Path(shutil.copy(files["run"], tmp_path / "run.h5"))


def put(file: h5py.File, name: str, shape: tuple[int, ...] = (), dtype: Any = None, **more: Any) -> h5py.Dataset:
    """Replace a dataset by another, by default of the same shape and type."""
    old = file[name]
    shape, dtype = shape or old.shape, dtype or old.dtype
    del file[name]
    return file.create_dataset(name, shape, dtype, **more)


def link(file: h5py.File, name: str, target: Any) -> None:
    """Replace an object by a link."""
    del file[name]
    file[name] = target


def configure(file: h5py.File, text: str = "", of: str = "config", **changes: Any) -> None:
    """Change the config; the checksum of the attributes fits."""
    file.attrs[of] = text or json.dumps({**json.loads(file.attrs[of]), **changes})
    seal(file)


def virtual(file: h5py.File, folder: Path) -> None:
    old = file["checkpoints/V"]
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(str(folder / "pipe"), "V", old.shape)
    del file["checkpoints/V"]
    file.create_virtual_dataset("checkpoints/V", layout)


def bomb(file: h5py.File, folder: Path) -> None:
    """A chunk of the right size by its declaration, which unpacks to 2 GB."""
    rows = len(file["checkpoints/b1"])
    data = put(file, "checkpoints/b1", chunks=(rows, 8), compression="gzip")
    packer, zeros = zlib.compressobj(1), bytes(1 << 24)
    data.id.write_direct_chunk((0, 0), b"".join(packer.compress(zeros) for _ in range(128)) + packer.flush())


def small_bomb(file: h5py.File, folder: Path) -> None:
    """A chunk that unpacks to a little more than its place."""
    rows = len(file["checkpoints/b1"])
    data = put(file, "checkpoints/b1", chunks=(rows, 8), compression="gzip")
    data.id.write_direct_chunk((0, 0), zlib.compress(bytes(4 * 8 * rows + 1)))


def unknown_filter(file: h5py.File, folder: Path) -> None:
    old = file["checkpoints/W"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(old.shape)
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    del file["checkpoints/W"]
    space, group = h5py.h5s.create_simple(old.shape), file["checkpoints"].id
    h5py.h5d.create(group, b"W", h5py.h5t.IEEE_F32LE, space, plist)


def rewrite(file: h5py.File, index: int, label: int, **changes: Any) -> None:
    """Write a checkpoint, by default like the first, with a record that fits."""
    group = file["checkpoints"]
    values = {name: group[name][0] for name in ("E", "W", "b1", "V", "b2")}
    commit(group, "step", index, label, values | changes)


def fewer_fields(file: h5py.File, folder: Path) -> None:
    """Records that fit, but leave out E: its numbers could be any."""
    file["checkpoints/crc32"].attrs["fields"] = "W b1 V b2"
    for index in range(3):
        rewrite(file, index, index * 20)
    file["checkpoints/E"][...] = 7


def wrong_data(file: h5py.File, folder: Path, name: str, value: int) -> None:
    file["data"][name][np.argmin(file["data/split"])] = value
    file["data"].attrs["crc32"] = crc32_of_arrays({n: file["data"][n][()] for n in ("tokens", "labels", "split")})


def wide(file: h5py.File, folder: Path) -> None:
    """A model too large for the file, by config and shapes alike, of which not a byte is stored."""
    configure(file, hidden=1 << 33)
    rows = 3
    for group in ("checkpoints", "resume", "moments"):
        for name in ("W", "V", "b1", "m_W", "m_V", "m_b1", "v_W", "v_V", "v_b1"):
            if name in file[group]:
                shape = {"W": (1 << 33, 8), "V": (7, 1 << 33), "b1": (1 << 33,)}[name[-2:].lstrip("_")]
                put(file, f"{group}/{name}", (2 if group == "resume" else rows, *shape))


def deep(file: h5py.File, folder: Path) -> None:
    """More rows than the file could hold: nothing stored, all chunked."""
    for name in [*file["metrics"]]:
        put(file, f"metrics/{name}", (1 << 23,), chunks=(1 << 20,), compression="gzip")


def long(file: h5py.File, folder: Path) -> None:
    """More rows than any run has, in a file large enough for them."""
    file["padding"] = np.zeros(2 << 20, "i1")
    for name in [*file["metrics"]]:
        put(file, f"metrics/{name}", ((1 << 20) + 1,), chunks=(1 << 20,), compression="gzip")


def attribute(value: Any, name: str = "config") -> Build:
    return lambda file, folder: file.attrs.__setitem__(name, value)


def typed(dtype: Any) -> Build:
    return lambda file, folder: put(file, "checkpoints/W", dtype=dtype)


CASES: dict[str, tuple[Build, str]] = {
    # Links and storage that lead elsewhere: to a pipe, on which a reader would wait for ever.
    "external link": (
        lambda file, folder: link(file, "checkpoints/E", h5py.ExternalLink(str(folder / "pipe"), "/E")),
        "checkpoints/E is an external link into another file, which is not followed",
    ),
    "external group": (
        lambda file, folder: link(file, "metrics", h5py.ExternalLink(str(folder / "pipe"), "/")),
        "metrics is an external link into another file",
    ),
    "soft link": (
        lambda file, folder: link(file, "checkpoints/W", h5py.SoftLink("/moments/v_W")),
        "checkpoints/W is a soft link",
    ),
    "soft link to itself": (
        lambda file, folder: link(file, "tokens", h5py.SoftLink("/tokens")),
        "tokens is a soft link",
    ),
    "group inside itself": (
        lambda file, folder: link(file, "checkpoints", file["/"]),
        "checkpoints/step is missing",
    ),
    "external storage": (
        lambda file, folder: put(file, "checkpoints/b1", external=[(str(folder / "pipe"), 0, 96)]),
        "checkpoints/b1 has external storage",
    ),
    "virtual dataset": (virtual, "checkpoints/V is a virtual dataset"),
    # Types.
    "object reference": (typed(h5py.ref_dtype), "checkpoints/W has 64-bit reference type, not f4"),
    "region reference": (typed(h5py.regionref_dtype), "checkpoints/W has 96-bit reference type, not f4"),
    "opaque": (typed("V4"), "checkpoints/W has 32-bit opaque type"),
    "compound": (typed("f4,i4"), "checkpoints/W has 64-bit compound type"),
    "enum": (typed(h5py.enum_dtype({"a": 1}, "i4")), "checkpoints/W has 32-bit enum type"),
    "bool": (typed("?"), "checkpoints/W has 8-bit enum type"),
    "sequence": (typed(h5py.vlen_dtype("f4")), "-bit vlen type, not f4"),
    "string": (typed(h5py.string_dtype()), "-bit string type, not f4"),
    "array": (typed("(2,)f4"), "checkpoints/W has 64-bit array type"),
    "complex": (typed("c8"), "checkpoints/W has 64-bit"),
    "half": (typed("f2"), "checkpoints/W has 16-bit float type"),
    "other precision": (typed("f8"), "checkpoints/W has 64-bit float type"),
    "other byte order": (typed(">f4"), "checkpoints/W has 32-bit float type"),
    "other integer": (
        lambda file, folder: put(file, "data/labels", dtype="i8"),
        "data/labels has 64-bit integer type, not i4",
    ),
    # Shapes and sizes.
    "other shape": (
        lambda file, folder: put(file, "checkpoints/b1", (3, 9)),
        "checkpoints/b1 has 9 along hidden, which is 8 long elsewhere in the file",
    ),
    "other rank": (lambda file, folder: put(file, "checkpoints/b1", (3,)), "checkpoints/b1 has shape (3,)"),
    "scalar": (
        lambda file, folder: (file.__delitem__("data/labels"), file.__setitem__("data/labels", np.int32(0))),
        "data/labels has shape ()",
    ),
    "other config": (
        lambda file, folder: configure(file, hidden=9),
        "checkpoints/W has 8 along hidden, not 9, which its config asks for",
    ),
    "rows of different number": (lambda file, folder: put(file, "checkpoints/b2", (4, 7)), "has 4 along step"),
    "nothing stored": (
        lambda file, folder: put(file, "checkpoints/W"),
        "checkpoints/W declares 768 bytes, which the file does not hold",
    ),
    "huge model": (wide, "bytes in a file of"),
    "huge table": (deep, "bytes in a file of"),
    "long table": (long, "metrics has 1,048,577 rows; at most 1,048,576 are read"),
    "gzip bomb": (bomb, "is damaged: a chunk takes"),
    "small gzip bomb": (small_bomb, "a chunk does not unpack to its 96 bytes"),
    # Filters.
    "lzf": (lambda file, folder: put(file, "checkpoints/W", compression="lzf"), "filter 32000 ('lzf')"),
    "fletcher32": (lambda file, folder: put(file, "checkpoints/W", fletcher32=True), "filter 3 ("),
    "scale-offset": (lambda file, folder: put(file, "checkpoints/W", scaleoffset=3), "filter 6 ("),
    "unknown filter": (unknown_filter, "checkpoints/W is packed with filter 32015"),
    # What is missing, or something else.
    "no dataset": (lambda file, folder: file.__delitem__("checkpoints/E"), "checkpoints/E is missing"),
    "no group": (lambda file, folder: file.__delitem__("moments"), "moments is missing"),
    "group for a dataset": (lambda file, folder: link(file, "checkpoints/E", file["data"]), "E is no dataset"),
    "dataset for a group": (lambda file, folder: link(file, "metrics", file["checkpoints/E"]), "metrics is no group"),
    "type for a dataset": (
        lambda file, folder: link(file, "checkpoints/E", np.dtype("f4")),
        "checkpoints/E is no dataset",
    ),
    # Attributes.
    "no config": (lambda file, folder: file.attrs.__delitem__("config"), "the attribute config is missing"),
    "config as a number": (attribute(5), "the attribute config is not one string"),
    "config as a list of strings": (attribute(["{}", "{}"]), "the attribute config is not one string"),
    "config as a reference": (
        lambda file, folder: file.attrs.__setitem__("config", file.ref),
        "the attribute config is not one string",
    ),
    "empty config": (attribute(h5py.Empty(h5py.string_dtype())), "the attribute config is not one string"),
    "config of a megabyte": (attribute("x" * (1 << 20) + "x"), "the attribute config has 1,048,577 letters"),
    "config that is no JSON": (lambda file, folder: configure(file, "{"), "its config cannot be: Expecting property"),
    "config that is a list": (lambda file, folder: configure(file, "[1]"), "its config cannot be: no JSON object"),
    "config without end": (lambda file, folder: configure(file, "[" * 100_000), "its config cannot be: "),
    "unknown key": (
        lambda file, folder: configure(file, colour=1),
        "its config cannot be: unknown config key 'colour'",
    ),
    "wrong type in the config": (lambda file, folder: configure(file, lr="fast"), "its config cannot be: lr cannot be"),
    "endless number": (lambda file, folder: configure(file, hidden=10**400), "its config cannot be: "),
    "endless division": (lambda file, folder: configure(file, task="div", p=10**18 + 9), "its config cannot be: p is"),
    "other seed": (lambda file, folder: configure(file, seed=5), "its seed is 0, but 5 in its config"),
    "seed as a string": (attribute("0", "seed"), "the attribute seed is not one integer"),
    "status": (attribute("done\n\x1b[2J", "status"), "its status is 'done\\n\\x1b[2J', none of running"),
    "changed attribute": (attribute("2001-01-01", "created"), "its attributes fail their checksum"),
    "version of letters": (attribute("one\n", "schema_version"), "its schema version is 'one\\n'"),
    "schema as a number": (attribute(3, "schema"), "the attribute schema is not one string"),
    # Records and what they cover.
    "fields elsewhere": (
        lambda file, folder: file["checkpoints/crc32"].attrs.__setitem__("fields", "../data/tokens"),
        "checkpoints/crc32 covers '../data/tokens', not the datasets of its table",
    ),
    "fewer fields": (fewer_fields, "checkpoints/crc32 covers 'W b1 V b2'"),
    "step twice": (
        lambda file, folder: rewrite(file, 1, 0),
        "a negative or repeated step: step 0, 0, 40",
    ),
    "negative step": (lambda file, folder: rewrite(file, 1, -20), "a negative or repeated step: step -20, 0, 40"),
    "data changed": (
        lambda file, folder: file["data/labels"].__setitem__(0, 6),
        "data fails its checksum",
    ),
    "token beyond the vocabulary": (
        functools.partial(wrong_data, name="tokens", value=1 << 30),
        "data holds tokens, labels or a split that its config does not give",
    ),
    "negative label": (functools.partial(wrong_data, name="labels", value=-1), "data holds tokens, labels or"),
    "smaller training set": (functools.partial(wrong_data, name="split", value=1), "data holds tokens, labels or"),
    "unknown split": (functools.partial(wrong_data, name="split", value=9), "data holds tokens, labels or"),
}


@pytest.fixture(scope="module")
def hostile(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code and output of `landscape hessian` for every hostile file, all in one process of limited memory."""
    folder = tmp_path_factory.mktemp("hostile")
    os.mkfifo(folder / "pipe.h5")
    os.mkfifo(folder / "pipe")
    for name, (build, _) in CASES.items():
        path = Path(shutil.copy(files["run"], folder / f"{name}.h5"))
        with h5py.File(path, "r+") as file:
            build(file, folder)
    code = f"""
import contextlib, io, json, resource, sys
from landscape.cli import main as cli
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
for path in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(["hessian", "--ckpt", path, "--json", "--blocks", "E", "--quiet"])
    print(json.dumps([path, code, out.getvalue(), err.getvalue()]), flush=True)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""
    paths = [str(folder / f"{name}.h5") for name in (*CASES, "pipe")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    *answers, peak = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert peak < 1 << 30
    return {Path(path).stem: (code, out, err) for path, code, out, err in answers}


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused(name: str, hostile: dict[str, tuple[int, str, str]]) -> None:
    """One `error:` and one `hint:` line that name what is wrong, exit code 1, nothing on stdout."""
    code, out, err = hostile[name]
    lines = err.splitlines()
    assert (code, out, len(lines)) == (1, "", 2), err
    assert lines[0].startswith("error: ")
    assert CASES[name][1] in lines[0]
    assert lines[1].startswith("hint: ")


def test_a_pipe_is_no_file(hostile: dict[str, tuple[int, str, str]]) -> None:
    """What would keep a reader waiting is not opened."""
    assert "is a device or a pipe" in hostile["pipe"][2]


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
    with pytest.raises(FileError, match="has E in several groups"):
        landscape.open_run(run)
    with RunReader(run) as reader:
        assert reader.metrics()["E"].shape == (3,)


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


@pytest.mark.parametrize("kind", ["run", "hessian"])
@pytest.mark.parametrize(
    "flags", [["-f", "GZIP=9"], ["-f", "SHUF", "-f", "GZIP=1"], ["-l", "CHUNK=2"], ["-l", "COMPA"]]
)
def test_a_repacked_copy_is_served(kind: str, flags: list[str], files: dict[str, Path], tmp_path: Path) -> None:
    """gzip, shuffle, chunks and compact storage give the same numbers; the copies are made without our code."""
    copy = tmp_path / f"{kind}.h5"
    _repack(files[kind], copy, flags)
    original = serve(files[kind], {})
    assert judge(serve(copy, original), original) == "harmless"
    view = landscape.open_run if kind == "run" else landscape.open_hessian
    assert view(copy).load().identical(view(files[kind]).load())


def test_a_repacked_unfinished_analysis_goes_on(files: dict[str, Path], tmp_path: Path) -> None:
    """The rest is not written over a packed file's bytes."""
    run = Path(shutil.copy(files["run"], tmp_path / "run.h5"))
    out, config = tmp_path / "run.hessian.h5", HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu")
    unfinished = tmp_path / "unfinished.h5"
    shutil.copy(files["hessian"], unfinished)
    with h5py.File(unfinished, "r+") as file:
        file["crc32"][2] = 0
        file.attrs["status"] = "running"
    _repack(unfinished, out, ["-f", "GZIP=9"])
    assert HessianReader(out).steps == [0, 20]
    assert analyse(run, config, quiet=True).steps == [0, 20, 40]
    whole, found = HessianReader(files["hessian"]), HessianReader(out)
    assert found.row(0)["eigenvalues"].tobytes() == whole.row(0)["eigenvalues"].tobytes()
    assert found.row(40)["eigenvalues"].tobytes() == whole.row(40)["eigenvalues"].tobytes()


def _repack(source: Path, copy: Path, flags: list[str]) -> None:
    """As `h5repack`, whose flags these are."""
    layout: dict[str, Any] = {"compression": 9} if "GZIP=9" in flags else {}
    layout |= {"compression": 1, "shuffle": True} if "SHUF" in flags else {}
    with h5py.File(source) as old, h5py.File(copy, "w") as new:
        new.attrs.update(old.attrs)

        def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if isinstance(item, h5py.Group):
                new.create_group(name).attrs.update(item.attrs)
                return
            chunks = tuple(min(n, 2) for n in item.shape) if "CHUNK=2" in flags else bool(layout)
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if "COMPA" in flags and item.nbytes < 60_000:
                plist.set_layout(h5py.h5d.COMPACT)
            more = {"chunks": chunks, **layout} if chunks and item.size else {"dcpl": plist}
            data = new.create_dataset(name, item.shape, item.dtype, **more)
            data[...] = item[...]
            if "fields" in item.attrs:
                data.attrs["fields"] = item.attrs["fields"]

        old.visititems(visit)


def test_a_file_without_the_newer_checksums_opens(files: dict[str, Path], run: Path) -> None:
    """In version 1, `attrs_crc32` and the `crc32` of the data came later than the format; now they are needed."""
    old = Path(shutil.copy(OLD / "run-1.1.h5", run.with_name("old.h5")))
    for path in (run, old):
        with h5py.File(path, "r+") as file:
            del file["data"].attrs["crc32"]
            if path == old:
                del file.attrs["attrs_crc32"]
    original = serve(OLD / "run-1.1.h5", {})
    assert judge(serve(old, original), original) == "harmless"
    with pytest.raises(FileError, match="the attribute crc32 is missing"):
        RunReader(run)


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_every_attribute_is_covered(kind: str, files: dict[str, Path]) -> None:
    """Readers serve all that writers write, and a checksum or a list of values stands over it."""
    with h5py.File(files[kind]) as file:
        assert set(file.attrs) == {*ATTRIBUTES[f"landscape.{kind}"], "status", "attrs_crc32"}


# --- damage: named, or harmless, never a wrong number


def spoiled(path: Path, group: str, step: int, name: str) -> None:
    """Change one value of a committed row."""
    with h5py.File(path, "r+") as file:
        (row,) = np.flatnonzero(file[group][()] == step) if "/" in group else [0]
        data = file[f"{group.rpartition('/')[0]}/{name}"]
        data[row] = data[row] + 1


def test_damaged_steps_are_skipped_and_named(
    files: dict[str, Path], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` and `all` skip them, a step that was asked for is an error, and a report skips them."""
    spoiled(run, "checkpoints/step", 20, "W")
    spoiled(run, "tokens/step", 40, "count")
    for steps in ("all", "auto"):
        config = HessianConfig(blocks=("W",), k=1, steps=steps, device="cpu")
        assert analyse(run, config, run.with_name(f"{steps}.h5"), quiet=True).steps == [0]
        assert f"warning: {run}: left out, for their checksums fail: checkpoints: step 20; tokens: step 40" in (
            capsys.readouterr().err
        )
    for step, what in ((20, "checkpoint"), (40, "row in tokens")):
        config = HessianConfig(blocks=("W",), k=1, steps=f"0,{step}", device="cpu")
        with pytest.raises(FileError, match=f"the {what} of step {step} fails its checksum"):
            analyse(run, config, run.with_name("asked.h5"), quiet=True)
    assert not run.with_name("asked.h5").exists()
    assert list(landscape.open_run(run)["step"].values) == [0]
    page = write_report([run], run.with_name("report"), quiet=True).with_name("report.md").read_text()
    line = f"{run}: left out, for their checksums fail: checkpoints: step 20; tokens: step 40"
    assert f"warning: {line}" in capsys.readouterr().err
    assert line in page
    with pytest.raises(FileError, match="rows fail their checksums: checkpoints: step 20; tokens: step 40"):
        train(SMALL, run, resume=True, quiet=True)
    with RunReader(run) as reader:
        assert reader.checkpoint(0)["E"].shape == (7, 4)


def test_a_damaged_row_of_metrics_leaves_rates_unknown(files: dict[str, Path], run: Path) -> None:
    """It is not served, and the row before it does not stand in for it."""
    spoiled(run, "metrics/metric_step", 20, "lr_W")
    with RunReader(run) as reader:
        assert list(reader.metrics()["metric_step"]) == [0, 40]
        assert reader.damage == "metrics: step 20"
        assert [reader.metrics_at(step) is None for step in (0, 20, 40)] == [True, True, False]
    result = analyse(run, HessianConfig(blocks=("W",), k=1, steps="all", device="cpu"), quiet=True)
    assert [bool(np.isnan(result.row(step)["sharpness_gd"])) for step in (0, 20, 40)] == [True, True, False]


def test_a_row_with_the_label_of_another_is_damage(files: dict[str, Path], tmp_path: Path) -> None:
    """A step whose label became that of a sound one is gone, and the file does not pass for whole."""
    path = Path(shutil.copy(files["hessian"], tmp_path / "a.hessian.h5"))
    steps = HessianReader(path).steps
    with h5py.File(path, "r+") as file:
        file["step"][1] = steps[0]
    reader = HessianReader(path)
    assert (reader.steps, reader.damage) == ([steps[0], *steps[2:]], f"step {steps[0]}")


def test_a_damaged_hessian_file_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    """Its other rows are served; an analysis does not take it for done."""
    run, path = (Path(shutil.copy(source, tmp_path)) for source in files.values())
    whole = HessianReader(files["hessian"])
    for name in ("eigenvalues", "spectrum/W"):
        shutil.copy(files["hessian"], path)
        with h5py.File(path, "r+") as file:
            file[name][1] += 1
        found = HessianReader(path)
        assert (found.steps, found.damage) == ([0, 40], "step 20")
        assert found.row(40)["eigenvalues"].tobytes() == whole.row(40)["eigenvalues"].tobytes()
    config = HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu")
    with pytest.raises(FileError, match="rows fail their checksums: step 20"):
        analyse(run, config, quiet=True)
    assert analyse(run, config, overwrite=True, quiet=True).damage == ""


def test_a_value_without_meaning_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    """A code that stands for nothing is no measurement, even where its record fits."""
    path = Path(shutil.copy(files["hessian"], tmp_path))
    with h5py.File(path, "r+") as file:
        row = {name: file[name][0] for name in str(file["crc32"].attrs["fields"]).split()}
        commit(file, "step", 0, 0, row | {"inertia_level": row["inertia_level"] + 9})
    with pytest.raises(FileError, match="inertia_level with values other than"):
        HessianReader(path)


def test_a_resume_slot_that_no_run_writes_is_refused(run: Path) -> None:
    """Even where its record fits: an order that is none would be an index out of range."""
    with h5py.File(run, "r+") as file:
        for slot in (0, 1):
            row = {name: file["resume"][name][slot] for name in str(file["resume/crc32"].attrs["fields"]).split()}
            commit(file["resume"], "resume_slot", slot, slot, row | {"order": row["order"] + 1})
    with pytest.raises(FileError, match="holds a resume slot that no run writes"):
        train(dataclasses.replace(SMALL, steps=60), run, resume=True, quiet=True)


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_truncation(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Cut at 200 places, a file is refused, or what is served is right."""
    whole, path = files[kind].read_bytes(), tmp_path / "cut.h5"
    reader = Reader(files[kind])
    counts: collections.Counter[str] = collections.Counter()
    for i in range(200):
        path.write_bytes(whole[: len(whole) * i // 200])
        counts[reader.verdict(path).partition(":")[0]] += 1
    assert reader.close() < 1 << 29
    assert counts == {"named": 200}


@pytest.mark.parametrize(("kind", "flips"), [("run", 400), ("hessian", 200)])
def test_flipped_bytes(kind: str, flips: int, files: dict[str, Path], tmp_path: Path) -> None:
    """A changed byte is harmless or named, wherever it is: no wrong number, no other error, no crash, no hang."""
    whole, path = files[kind].read_bytes(), tmp_path / "flipped.h5"
    path.write_bytes(whole)
    reader, rng = Reader(files[kind]), random.Random(0)
    counts: collections.Counter[str] = collections.Counter()
    bad = []
    with path.open("r+b", buffering=0) as file:
        for _ in range(flips):
            at, mask = rng.randrange(len(whole)), rng.randrange(1, 256)
            os.pwrite(file.fileno(), bytes([whole[at] ^ mask]), at)
            verdict = reader.verdict(path)
            os.pwrite(file.fileno(), whole[at : at + 1], at)
            counts[verdict.partition(":")[0]] += 1
            if verdict != "harmless" and not verdict.startswith("named: "):
                bad.append(f"byte {at} ^ {mask}: {verdict}")
    peak = reader.close()
    print(f"{kind}: {flips} flips of {len(whole)} bytes: {dict(counts)}, {len(bad)} bad, peak {peak >> 20} MiB")
    assert not bad
    assert min(counts["harmless"], counts["named"]) > flips // 20
    assert peak < 1 << 29


@pytest.mark.parametrize("place", ["a string that overruns its collection", "a string that claims 2 GB"])
def test_strings_that_lead_the_library_astray(place: str, files: dict[str, Path], tmp_path: Path) -> None:
    """The HDF5 library would walk for ever, or set aside the memory; the bytes are refused before it sees them."""
    raw = bytearray(files["run"].read_bytes())
    if "overruns" in place:
        # A length that is off by 16 makes the library find a string of no length behind it, and again, and again.
        first = raw.index(b"GCOL") + 16
        raw[first + 8 : first + 16] = (1 << 12).to_bytes(8, "little")
    else:
        reference = raw.index(b"created\0") + 8 + 32
        assert int.from_bytes(raw[reference : reference + 4], "little") == len("2026-01-01T00:00:00+00:00")
        raw[reference + 3] = 0x80
    path = tmp_path / "run.h5"
    path.write_bytes(raw)
    with pytest.raises(FileError, match="is damaged: (the strings at byte|a string claims more)"):
        RunReader(path)


def test_storage_shorter_than_the_shape(run: Path) -> None:
    """The HDF5 library would read some selections from elsewhere and others right."""
    with h5py.File(run) as file:
        data = file["metrics/sigma_max_E"].id
        place, size = data.get_offset(), data.get_storage_size()
    raw = run.read_bytes()
    entry = struct.pack("<QQ", place, size)
    assert raw.count(entry) == 1
    run.write_bytes(raw.replace(entry, struct.pack("<QQ", place, 8)))
    with pytest.raises(FileError, match="metrics/sigma_max_E declares 24 bytes, which the file does not hold"):
        RunReader(run)


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_random_spoils(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Links, types, shapes, layouts, attributes, configs and bytes changed at random: refused or served right."""
    campaign = Campaign(files[kind], tmp_path / "victim.h5")
    campaign.run(150, 0)
    assert campaign.reader.close() < 1 << 29
    assert not campaign.bad
    assert campaign.counts["named"] > 75
