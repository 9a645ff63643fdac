"""Run files from someone else: hostile ones are refused in one line."""

from __future__ import annotations

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

from landscape.files.rows import arrays_crc32

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
    file["data"].attrs["crc32"] = arrays_crc32({n: file["data"][n][()] for n in ("tokens", "labels", "split")})


def huge(file: h5py.File, folder: Path) -> None:
    """More numbers than the file could hold: nothing stored, all chunked."""
    put(file, "checkpoints/W", (3, 1 << 18, 1 << 18), chunks=(1, 1 << 11, 1 << 13), compression="gzip")


def many(file: h5py.File, folder: Path) -> None:
    for i in range(1 << 14):
        file.create_group(f"group {i}")


def attribute(value: Any, name: str = "config") -> Build:
    return lambda file, folder: file.attrs.__setitem__(name, value)


def typed(dtype: Any) -> Build:
    return lambda file, folder: put(file, "checkpoints/W", dtype=dtype)


LINK = "is a link to another place, which is not followed"
CASES: dict[str, tuple[Build, str]] = {
    # Links and storage that lead elsewhere: to a pipe, on which a reader would wait for ever.
    "external link": (
        lambda file, folder: link(file, "checkpoints/E", h5py.ExternalLink(str(folder / "pipe"), "/E")),
        f"/checkpoints/E {LINK}",
    ),
    "external group": (
        lambda file, folder: link(file, "metrics", h5py.ExternalLink(str(folder / "pipe"), "/")),
        f"/metrics {LINK}",
    ),
    "soft link": (
        lambda file, folder: link(file, "checkpoints/W", h5py.SoftLink("/moments/v_W")),
        f"/checkpoints/W {LINK}",
    ),
    "soft link to itself": (lambda file, folder: link(file, "tokens", h5py.SoftLink("/tokens")), f"/tokens {LINK}"),
    "group inside itself": (lambda file, folder: link(file, "checkpoints", file["/"]), "or too deep groups"),
    "external storage": (
        lambda file, folder: put(file, "checkpoints/b1", external=[(str(folder / "pipe"), 0, 96)]),
        "/checkpoints/b1 reads other files",
    ),
    "virtual dataset": (virtual, "/checkpoints/V reads other files"),
    # Types.
    "object reference": (typed(h5py.ref_dtype), "neither numbers nor text"),
    "region reference": (typed(h5py.regionref_dtype), "neither numbers nor text"),
    "opaque": (typed("V4"), "/checkpoints/W is of type |V4, neither numbers nor text"),
    "compound": (typed("f4,i4"), "neither numbers nor text"),
    "sequence": (typed(h5py.vlen_dtype("f4")), "neither numbers nor text"),
    "array": (typed("(2,)f4"), "neither numbers nor text"),
    "complex": (typed("c8"), "neither numbers nor text"),
    # Sizes.
    "nothing stored": (lambda file, folder: put(file, "checkpoints/W"), "holds no checkpoint"),
    "huge": (huge, "bytes in a file of"),
    "many objects": (many, "more than 16,384 objects"),
    "gzip bomb": (bomb, "too large or too many"),
    # Filters.
    "lzf": (lambda file, folder: put(file, "checkpoints/W", compression="lzf"), "filter 32000 ('lzf')"),
    "scale-offset": (lambda file, folder: put(file, "checkpoints/W", scaleoffset=3), "filter 6 ("),
    "unknown filter": (unknown_filter, "/checkpoints/W is packed with filter 32015"),
    # What is missing, or something else.
    "no dataset": (lambda file, folder: file.__delitem__("checkpoints/E"), "is damaged"),
    "no main table": (lambda file, folder: file.__delitem__("checkpoints"), "has no table of checkpoints"),
    "group for a dataset": (lambda file, folder: link(file, "checkpoints/E", file["data"]), "is damaged"),
    "dataset for a group": (lambda file, folder: link(file, "metrics", file["checkpoints/E"]), "has no metrics"),
    "rows of different number": (lambda file, folder: put(file, "checkpoints/b2", (4, 7)), "b2 has not 3 rows"),
    "other config": (
        lambda file, folder: configure(file, hidden=9),
        "checkpoints/W has 8 along hidden, not 9, which its config asks for",
    ),
    # Attributes.
    "no config": (lambda file, folder: file.attrs.__delitem__("config"), "its attributes fail their checksum"),
    "config as a list of strings": (attribute(["{}", "{}"]), "the attribute config is not one string"),
    "config as a reference": (
        lambda file, folder: file.attrs.__setitem__("config", file.ref),
        "the attribute config is not one integer",
    ),
    "empty config": (attribute(h5py.Empty(h5py.string_dtype())), "the attribute config is not one string"),
    "config of a megabyte": (attribute("x" * (1 << 20) + "x"), "the attribute config has 1,048,577 letters"),
    "config that is not JSON": (lambda file, folder: configure(file, "{"), "its config cannot be read: Expecting"),
    "config that is a list": (lambda file, folder: configure(file, "[1]"), "its config is no JSON object"),
    "config without end": (lambda file, folder: configure(file, "[" * 100_000), "its config cannot be read: "),
    "unknown key": (lambda file, folder: configure(file, colour=1), "its config cannot be: unknown config key"),
    "endless number": (lambda file, folder: configure(file, hidden=10**400), "its config cannot be"),
    "status": (attribute("done\n\x1b[2J", "status"), "its status is 'done\\n\\x1b[2J', none of running"),
    "changed attribute": (attribute("2001-01-01", "created"), "its attributes fail their checksum"),
    "older version": (attribute("2.0", "schema_version"), "has schema version 2.0; this landscape reads 3.0"),
    "newer version": (attribute("9.1", "schema_version"), "has schema version 9.1; this landscape reads 3.0"),
    "another program's": (lambda file, folder: file.attrs.__delitem__("schema"), "an HDF5 file of another program"),
    "schema as a number": (attribute(3, "schema"), "the attribute schema is not one string"),
    # Records and what they cover.
    "fields elsewhere": (
        lambda file, folder: file["checkpoints/crc32"].attrs.__setitem__("fields", "../data/tokens"),
        "is damaged",
    ),
    "fewer fields": (fewer_fields, "checkpoints/E is missing"),
    "step twice": (lambda file, folder: rewrite(file, 1, 0), "negative or repeated step 0, 0, 40"),
    "negative step": (lambda file, folder: rewrite(file, 1, -20), "negative or repeated step -20, 0, 40"),
    "data changed": (lambda file, folder: file["data/labels"].__setitem__(0, 6), "data fails its checksum"),
    "negative label": (lambda file, folder: wrong_data(file, folder, "labels", -1), "data holds tokens, labels or"),
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
        code = cli.run(["hessian", path, "--json", "--blocks", "E", "--quiet"])
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
