"""HDF5 files: opened after checks, because they may be damaged or hostile, and made so that nobody sees half of one.

All checks go through h5py's own interface. Links, virtual datasets and external storage are refused, as they read other
files; so are types and filters that no file of ours has, and sizes far beyond what the file holds.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError, as_landscape_error
from landscape.files import schema

ROOM, RATIO = 64 << 20, 100
"""A file may declare ROOM + RATIO times its size in bytes: gzip compresses unwritten rows well, weights hardly."""
OBJECTS, DEPTH, CHUNKS, TEXT = 1 << 14, 3, 1 << 17, 1 << 20
"""Most objects of a file, groups within groups, chunks of a dataset, and letters of an attribute."""
STATUS = ("running", "complete", "interrupted", "diverged")
COPY_AGAIN = "get it again from its source"
REMEASURE = "measure it again with --overwrite, or get it again from its source"
KINDS = {schema.RUN: "run file", schema.HESSIAN: "Hessian file", schema.GEOMETRY: "geometry file"}
_MAKER = {schema.RUN: "train", schema.HESSIAN: "hessian", schema.GEOMETRY: "geometry"}
_UNCOVERED = ("attrs_crc32", "crc32", "status", "history", "NCO")
"""Root attributes that theirs leaves out: checksums, what a file changes, and what other tools add to a copy."""


class complaints:  # noqa: N801
    """Turn errors of the HDF5 library into a FileError; a class, because a generator would slow every read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, LookupError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)):
            raise FileError(f"{self.path} is damaged: {' '.join(str(error).split())[:200]}", COPY_AGAIN) from error


def open_hdf5(path: Path, kind: str = "") -> h5py.File:
    """Open a file of the schema `kind`, by default of any of ours, for reading, also while it is written.

    Raises FileError for everything else.
    """
    file = _open(path)
    try:
        _require_ours(path, file, kind)
        _check(path, file)
    except BaseException:
        file.close()
        raise
    return file


def file_schema(path: Path) -> str | None:
    """The schema that a file declares, or None. Raises FileError if it is not an HDF5 file."""
    with _open(path) as file:
        return None if (declared := attribute(path, file, "schema", str)) is None else str(declared)


def attribute(path: Path, owner: Any, name: str, kind: type) -> Any:
    """A text or integer attribute of an object; None where there is none. Raises FileError for another type."""
    with complaints(path):
        if name not in owner.attrs:
            return None
        stored = owner.attrs.get_id(name)
        is_text = h5py.check_string_dtype(stored.dtype) is not None
        if (
            stored.shape is None
            or math.prod(stored.shape) != 1
            or not (is_text if kind is str else stored.dtype.kind in "iu")
        ):
            raise FileError(
                f"{path}: the attribute {name} is not one {'string' if kind is str else 'integer'}", COPY_AGAIN
            )
        value = np.ravel(owner.attrs[name])[0]
        text = value.decode() if isinstance(value, bytes) else value
        if kind is str and len(text) > TEXT:
            raise FileError(f"{path}: the attribute {name} has {len(text):,} letters; at most {TEXT:,}", COPY_AGAIN)
        return kind(text)


def root_attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    """The texts and integers of the root but their checksum, which they must match."""
    attrs: dict[str, Any] = {}
    for name in sorted(file.attrs):
        if not name.startswith("_"):
            is_text = h5py.check_string_dtype(file.attrs.get_id(name).dtype) is not None
            attrs[name] = attribute(path, file, name, str if is_text else int)
    attrs.pop("crc32", None)
    if attrs.pop("attrs_crc32", None) != attributes_crc32(attrs):
        raise FileError(f"{path}: its attributes fail their checksum", COPY_AGAIN)
    if attrs.get("status") not in STATUS:
        raise FileError(f"{path}: its status is {attrs.get('status')!r}, none of {', '.join(STATUS)}", COPY_AGAIN)
    return attrs


def attributes_crc32(attrs: Mapping[str, Any]) -> int:
    """CRC-32 of the lines `name=value` of root attributes in alphabetical order, but for those that may change."""
    lines = "".join(f"{name}={attrs[name]}\n" for name in sorted(attrs) if name not in _UNCOVERED)
    return zlib.crc32(lines.encode("utf-8", "surrogateescape"))


def config_of(path: Path, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the JSON of the attribute `config`. Raises FileError where there are none."""
    try:
        config = json.loads(attrs["config"])
    except (ValueError, LookupError, RecursionError) as error:
        raise FileError(f"{path}: its config cannot be read: {error!s:.200}", COPY_AGAIN) from error
    if not isinstance(config, dict):
        raise FileError(f"{path}: its config is no JSON object", COPY_AGAIN)
    return config


@contextlib.contextmanager
def new_hdf5(path: Path, kind: str, attrs: Mapping[str, Any]) -> Iterator[h5py.File]:
    """Fill an empty file with HDF5 that any HDF5 of the last fifteen years reads.

    Its bytes are written by Python, which reports every failure of a disk.
    """
    attrs = {**attrs, "schema": kind, "schema_version": schema.VERSION}
    for name, value in attrs.items():
        if isinstance(value, str) and len(value) > TEXT:
            raise FileError(
                f"the attribute {name} would have {len(value):,} letters; at most {TEXT:,} are read",
                "choose other options, or shorter ones",
            )
    with path.open("w+b", buffering=0) as raw, h5py.File(raw, "w", libver=("earliest", "v108")) as file:
        file.attrs.update({**attrs, "attrs_crc32": attributes_crc32(attrs)})
        yield file


class _Bytes(io.FileIO):
    """A file that is closed with the last HDF5 object that reads it."""

    def __del__(self) -> None:
        self.close()


def _open(path: Path) -> h5py.File:
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.h5")) if path.parent.is_dir() else []
        raise FileError(f"{path} does not exist", f"here are: {', '.join(near)}" if near else "check the path")
    if path.is_dir():
        raise FileError(f"{path} is a folder", "name the .h5 file in it")
    if not path.is_file():
        raise FileError(f"{path} is a device or a pipe", "name an .h5 file")
    try:
        # Through a file object HDF5 neither locks the file nor minds who else has it open.
        return h5py.File(_Bytes(path), "r")
    except OSError as error:
        text = " ".join(str(error).split())
        error.filename = str(path)
        if error.errno and (known := as_landscape_error(error)):
            raise known from error
        if "signature not found" in text:
            raise FileError(f"{path} is not an HDF5 file", "name a file that `landscape` wrote") from error
        what = "truncated" if "truncated" in text else "damaged"
        raise FileError(f"{path} is {what}: {text}", COPY_AGAIN) from error


def _require_ours(path: Path, file: h5py.File, kind: str) -> None:
    """Raise FileError unless a file has this schema, in the version that is read."""
    declared = attribute(path, file, "schema", str)
    wanted = kind or declared
    if declared not in KINDS or declared != wanted:
        if declared in KINDS:
            what = f"a {KINDS[declared]}"
        else:
            what = f"of schema {declared!r:.60}" if declared else "an HDF5 file of another program"
        if not kind:
            raise FileError(f"{path} is {what}", "name run files or Hessian files that `landscape` wrote")
        hint = f"name a file that `landscape {_MAKER[wanted]}` wrote"
        if wanted == schema.RUN:
            hint += "; of your own training, `landscape import` or landscape.Recorder make one"
            if declared in (schema.HESSIAN, schema.GEOMETRY):
                hint = "name the run it was made from"
        raise FileError(f"{path} is {what}, not a {KINDS[wanted]}", hint)
    version = attribute(path, file, "schema_version", str)
    if version != schema.VERSION:
        raise FileError(
            f"{path} has schema version {version!s:.20}; this landscape reads {schema.VERSION}",
            "read it with the version of landscape that wrote it, or make it anew",
        )


def _check(path: Path, file: h5py.File) -> None:
    """Raise FileError for links, types, filters and sizes that no file of ours has; no data are read."""
    size = path.stat().st_size
    declared, count = 0, 0
    pending: list[tuple[h5py.Group, int]] = [(file, 0)]
    with complaints(path):
        while pending:
            group, depth = pending.pop()
            for name in group:
                count += 1
                where = f"{group.name.rstrip('/')}/{name}"
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise FileError(f"{path}: {where} is a link to another place, which is not followed", COPY_AGAIN)
                if count > OBJECTS or depth > DEPTH:
                    raise FileError(f"{path} has more than {OBJECTS:,} objects, or too deep groups", COPY_AGAIN)
                item = group[name]
                if isinstance(item, h5py.Group):
                    pending.append((item, depth + 1))
                elif isinstance(item, h5py.Dataset):
                    declared += _declared(path, item, size)
                    if declared > ROOM + RATIO * size:
                        raise FileError(
                            f"{path}: {where} and others declare {declared:,} bytes in a file of {size:,}", COPY_AGAIN
                        )


def _declared(path: Path, data: h5py.Dataset, size: int) -> int:
    """The bytes of memory that a dataset may take. Raises FileError for one that no file of ours has."""
    how = data.id.get_create_plist()
    layout, where = how.get_layout(), data.name
    # First, because asking a virtual dataset for its shape opens other files.
    if layout == h5py.h5d.VIRTUAL or how.get_external_count():
        raise FileError(f"{path}: {where} reads other files", COPY_AGAIN)
    for code, *_, label in (how.get_filter(i) for i in range(how.get_nfilters())):
        if code not in (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE):
            raise FileError(
                f"{path}: {where} is packed with filter {code} ({label.decode(errors='replace')!r}), not gzip",
                "repack it with `h5repack -f GZIP=4 OLD NEW` where that filter is available",
            )
    text = h5py.check_string_dtype(data.dtype)
    if data.dtype.kind not in "iuf" and text is None:
        raise FileError(f"{path}: {where} is of type {data.dtype}, neither numbers nor text", COPY_AGAIN)
    # A dataset of words holds only their places.
    itemsize = 16 if text and text.length is None else data.dtype.itemsize
    length: int = math.prod(data.shape) * itemsize
    at, stored = data.id.get_offset(), data.id.get_storage_size()
    if layout == h5py.h5d.CONTIGUOUS and at is not None and not stored == length <= size - at:
        raise FileError(f"{path}: {where} declares {length:,} bytes, which the file does not hold", COPY_AGAIN)
    if data.chunks:
        each = math.prod(data.chunks) * itemsize
        count = math.prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
        # What a chunk unpacks to is bounded by what it takes.
        if count > CHUNKS or each > ROOM + RATIO * size or stored > count * (2 * each + 1024):
            raise FileError(f"{path}: {where} comes in chunks of {data.chunks}, too large or too many", COPY_AGAIN)
    return length
