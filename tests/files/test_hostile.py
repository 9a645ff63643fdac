"""Run files from someone else: hostile ones are refused in one line."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.fuzz_reader import MEMORY
from helpers.spoiling import commit, configure, link, put

from landscape.files.table import crc32_of_arrays

Build = Callable[[h5py.File, Path], object]


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
    packer, size = zlib.compressobj(1, wbits=-15), 1 << 31
    # Blocks after a full flush stand alone: 16 MB of zeros, 128 times, between head, end and checksum of zeros.
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = b"\x03\x00" + (size % 65521 << 16 | 1).to_bytes(4, "big")
    data.id.write_direct_chunk((0, 0), b"\x78\x01" + block * (size >> 24) + end)


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
    "version of letters": (attribute("one\n", "schema_version"), "has schema version one"),
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
# Not ru_maxrss, which a process inherits from the one that started it.
print(json.dumps(1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])))
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
