"""Checks before anything is read, because files may be broken or hostile.

Only objects in the layout are opened, through hard links, after checks of their type, shape and storage. Other objects
are neither followed nor opened. Nothing is executed or unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError
from landscape.files.strings import COPY_AGAIN

Array = np.ndarray[Any, Any]
ROOM, RATIO = 64 << 20, 100
"""A file may declare ROOM + RATIO times its size in bytes: gzip compresses unwritten rows well, weights hardly."""
ROW_BYTES, CHUNKS, TEXT = 1 << 30, 1 << 17, 1 << 20
"""Largest row of a dataset, most chunks of a file, longest text."""
_TEXTS = [h5py.h5t.py_create(h5py.string_dtype(encoding), logical=True) for encoding in ("utf-8", "ascii")]
_CLASSES = ("INTEGER", "FLOAT", "STRING", "BITFIELD", "OPAQUE", "COMPOUND", "REFERENCE", "ENUM", "VLEN", "ARRAY")
_CLASS = {getattr(h5py.h5t, name): name.lower() for name in _CLASSES}
_LINK = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link into another file"}


class complaints:  # noqa: N801
    """Turn errors of the HDF5 library into a FileError; a class, because a generator would slow every read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, KeyError, RuntimeError, ValueError, TypeError, zlib.error)):
            raise FileError(f"{self.path} is damaged: {' '.join(str(error).split())}", COPY_AGAIN) from error


@dataclasses.dataclass(frozen=True)
class Stored:
    """A dataset that passed its checks.

    offset: where its bytes begin in the file of `descriptor`; None for a copy that another tool packed in chunks.
    """

    path: Path
    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    descriptor: int
    offset: int | None = None
    chunk: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows start to stop; by default all. Raises FileError after the file was closed."""
        if not self.id.valid:
            raise FileError(
                f"{self.path} was closed by close() or at the end of `with`",
                "open it again, with open_run, open_hessian, RunFile, HessianFile or RunReader, and read it first",
            )
        with complaints(self.path):
            if self.offset is None:
                rows: Array = self._rows[start:stop]
                return rows
            # Bypasses the library, which is slower and may cache old bytes while a writer adds rows.
            stop = self.shape[0] if stop is None else stop
            values = np.empty((stop - start, *self.shape[1:]), self.dtype)
            room: Any
            room, at = values.reshape(-1).view(np.uint8), self.offset + start * self.row_bytes
            while room.size:
                # The kernel gives at most 2 GiB at a time.
                count = os.preadv(self.descriptor, [room], at)
                if not count:
                    raise ValueError("it ends before the bytes that it declares")
                room, at = room[count:], at + count
            return values

    @functools.cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @functools.cached_property
    def _rows(self) -> Any:
        return self._unpacked() if self.chunk else h5py.Dataset(self.id)

    def _unpacked(self) -> Array:
        """All of a packed dataset.

        The library unpacks a chunk to any size; here it may fill its place and no more.
        """
        values = np.zeros(self.shape, self.dtype)
        length = math.prod(self.chunk) * self.dtype.itemsize
        for origin in itertools.product(*(range(0, n, c) for n, c in zip(self.shape, self.chunk, strict=True))):
            size = self.id.get_chunk_info_by_coord(origin).size
            if size > 2 * length + 1024:
                raise ValueError(f"a chunk takes {size} bytes for {length}")
            if size:
                mask, raw = self.id.read_direct_chunk(origin)
                for i, code in reversed(list(enumerate(self.filters))):
                    if not mask >> i & 1:
                        raw = _inflate(raw, length) if code == h5py.h5z.FILTER_DEFLATE else self._unshuffle(raw)
                target = values[tuple(slice(o, o + c) for o, c in zip(origin, self.chunk, strict=True))]
                found = np.frombuffer(raw, self.dtype).reshape(self.chunk)
                target[...] = found[tuple(slice(n) for n in target.shape)]
        return values

    def _unshuffle(self, raw: bytes) -> bytes:
        return np.frombuffer(raw, np.uint8).reshape(self.dtype.itemsize, -1).T.tobytes()


@functools.cache
def _type(dtype: np.dtype[Any]) -> Any:
    """The type of HDF5; made for every dataset anew, it would take a tenth of the time to open a file."""
    return h5py.h5t.py_create(dtype)


def _inflate(raw: bytes, length: int) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(raw, length)
    # A valid stream ends here, with its checksum verified; a decompression bomb does not.
    if len(data) != length or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
        raise ValueError(f"a chunk does not unpack to its {length} bytes")
    return data


class Guard:
    """Opens the objects of one file after their checks."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, h5py.File(path, "r")
        self._descriptor = self._file.id.get_vfd_handle()
        self._size = os.fstat(self._descriptor).st_size
        self._allowed, self._declared, self._chunks = ROOM + RATIO * self._size, 0, 0

    @functools.cached_property
    def root(self) -> Any:
        """The root group."""
        with complaints(self.path):
            return h5py.h5g.open(self._file.id, b"/")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def refuse(self, what: str, hint: str = COPY_AGAIN) -> FileError:
        """The error that names this file and what is wrong with it."""
        return FileError(f"{self.path}: {what}", hint)

    def has(self, name: str) -> bool:
        """Whether the root holds a link of this name."""
        with complaints(self.path):
            return bool(self.root.links.exists(name.encode()))

    def group(self, name: str) -> Any:
        """A group of the root, or the root itself. Raises FileError if it is missing or none."""
        found = self.root if name == "/" else self.open(self.root, name, name)
        if not isinstance(found, h5py.h5g.GroupID):
            raise self.refuse(f"{name} is no group")
        return found

    def dataset(self, group: Any, where: str, dims: tuple[str, ...], dtype: str, axes: dict[str, int]) -> Stored:
        """A dataset with checked type, axes and storage; none of it is read.

        where: its path, of which the last part is looked up in `group`. axes: length by name; the length of an axis
        that is not yet in there is taken from the dataset and added.
        """
        found = self.open(group, where.rpartition("/")[2], where)
        if not isinstance(found, h5py.h5d.DatasetID):
            raise self.refuse(f"{where} is no dataset")
        with complaints(self.path):
            # First, because asking a virtual dataset for its shape opens other files.
            plist = found.get_create_plist()
            layout = plist.get_layout()
            if layout == h5py.h5d.VIRTUAL:
                raise self.refuse(f"{where} is a virtual dataset, which reads other files")
            if plist.get_external_count():
                raise self.refuse(f"{where} has external storage, which reads other files")
            wanted, kind = np.dtype(f"<{dtype}"), found.get_type()
            if not kind.equal(_type(wanted)):
                name = _CLASS.get(kind.get_class(), "unknown")
                raise self.refuse(f"{where} has {8 * kind.get_size()}-bit {name} type, not {dtype}")
            shape = found.get_space().get_simple_extent_dims()
            if shape is None or len(shape) != len(dims):
                raise self.refuse(f"{where} has shape {shape}, but axes {', '.join(dims)}")
            for dim, n in zip(dims, shape, strict=True):
                if dim not in axes:
                    # The labels of an axis take memory even where its datasets are empty.
                    self._charge(where, 8 * n)
                if axes.setdefault(dim, n) != n:
                    raise self.refuse(f"{where} has {n} along {dim}, which is {axes[dim]} long elsewhere in the file")
            offset: int | None = None
            chunk: tuple[int, ...] = ()
            filters: tuple[int, ...] = ()
            if layout == h5py.h5d.CHUNKED:
                chunk, filters = plist.get_chunk(), self._filters(where, plist, wanted.itemsize)
            elif layout == h5py.h5d.CONTIGUOUS:
                offset = found.get_offset()
            stored = Stored(self.path, found, shape, wanted, self._descriptor, offset, chunk, filters)
            self._afford(where, stored, layout)
        return stored

    def require(self, name: str, kind: type[str] | type[int], owner: Any = None) -> str | int:
        """An attribute that must be there."""
        found = self.attribute(name, kind, owner)
        if found is None:
            raise self.refuse(f"the attribute {name} is missing")
        return found

    def attribute(self, name: str, kind: type[str] | type[int], owner: Any = None) -> str | int | None:
        """An attribute of the root, or of `owner`; None where there is none. Raises FileError for another type."""
        owner = self.root if owner is None else owner
        with complaints(self.path):
            if not h5py.h5a.exists(owner, name.encode()):
                return None
            found = h5py.h5a.open(owner, name.encode())
            stored = found.get_type()
            fits = any(map(stored.equal, _TEXTS)) if kind is str else stored.get_class() == h5py.h5t.INTEGER
            if not fits or found.get_space().get_simple_extent_type() != h5py.h5s.SCALAR:
                raise self.refuse(f"the attribute {name} is not one {'string' if kind is str else 'integer'}")
            value = np.empty((), found.dtype)
            found.read(value)
            if kind is int:
                return int(value)
            text = bytes(value.item()).decode("utf-8", "surrogateescape")
            if len(text) > TEXT:
                raise self.refuse(f"the attribute {name} has {len(text):,} letters; at most {TEXT:,} are read")
            self._charge(f"the attribute {name}", len(text))
            return text

    def require_described(
        self, group: Any, where: str, data: Any, axes: tuple[str, ...], said: Mapping[str, Any]
    ) -> None:
        """Raise FileError where an attribute of a dataset, or the scale of an axis, is another one."""
        for name, value in said.items():
            found = self.attribute(name, str, data) if isinstance(value, str) else self._integers(name, data)
            if found not in (None, value if isinstance(value, str) else np.ravel(value).tolist()):
                raise self.refuse(f"the attribute {name} of {where} is not what its layout says")
        with complaints(self.path):
            for i, axis in enumerate(axes):
                count = h5py.h5ds.get_num_scales(data, i)
                if count > 1 or count and not h5py.h5ds.is_attached(data, self.open(group, axis, axis), i):
                    raise self.refuse(f"axis {i} of {where} has other labels than {axis}, as its layout says")

    def _integers(self, name: str, owner: Any) -> list[int] | None:
        """The numbers of an attribute; None without one, and none for anything else."""
        with complaints(self.path):
            if not h5py.h5a.exists(owner, name.encode()):
                return None
            found = h5py.h5a.open(owner, name.encode())
            if found.get_type().get_class() != h5py.h5t.INTEGER or np.prod(found.shape, dtype=int) > 256:
                return []
            values = np.empty(found.shape, found.dtype)
            found.read(values)
            return [int(value) for value in values.ravel()]

    def require_labels(self, group: Any, where: str, wanted: Sequence[str]) -> None:
        """Raise FileError where the labels of an axis are others than these words; there may be none."""
        if not group.links.exists(where.rpartition("/")[2].encode()):
            return
        scale = self.open(group, where.rpartition("/")[2], where)
        with complaints(self.path):
            kind, shape = scale.get_type(), scale.get_space().get_simple_extent_dims()
            held = np.empty(shape, scale.dtype)
            if not any(map(kind.equal, _TEXTS)) or shape != (len(wanted),):
                raise self.refuse(f"{where} holds no {len(wanted)} words")
            scale.read(h5py.h5s.ALL, h5py.h5s.ALL, held)
            if [bytes(word).decode("utf-8", "replace") for word in held] != [*wanted]:
                raise self.refuse(f"the labels of {where} are not what its layout says")

    def open(self, group: Any, name: str, where: str) -> Any:
        """An object of a group, by a hard link alone; nothing of it is read. Raises FileError if there is none."""
        with complaints(self.path):
            if "/" in name:
                raise self.refuse(f"{where} is a path, not a name")
            if not group.links.exists(name.encode()):
                raise self.refuse(f"{where} is missing")
            link = group.links.get_info(name.encode()).type
            if link != h5py.h5l.TYPE_HARD:
                raise self.refuse(f"{where} is {_LINK.get(link, 'a link of an unknown kind')}, which is not followed")
            return h5py.h5o.open(group, name.encode())

    def _filters(self, where: str, plist: Any, itemsize: int) -> tuple[int, ...]:
        """The filters that a dataset was packed with. Raises FileError for any but gzip and shuffle."""
        filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
        for code, _, values, name in filters:
            if code not in (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE):
                raise self.refuse(
                    f"{where} is packed with filter {code} ({name.decode(errors='replace')!r}), not gzip or shuffle",
                    "repack it with `h5repack -f GZIP=4 OLD NEW` where that filter is available",
                )
            if code == h5py.h5z.FILTER_SHUFFLE and values[:1] != (itemsize,):
                raise self.refuse(f"{where} is shuffled by {values} bytes, not {itemsize}")
        return tuple(code for code, *_ in filters)

    def _charge(self, where: str, size: int) -> None:
        """Count bytes that reading will take. Raises FileError for more than a file of this size can mean."""
        self._declared += size
        if self._declared > self._allowed:
            raise self.refuse(f"{where} declares {size:,} bytes in a file of {self._size:,}, which is too many")

    def _afford(self, where: str, stored: Stored, layout: int) -> None:
        """Refuse what would take more memory than a file of this size can mean."""
        size = math.prod(stored.shape) * stored.dtype.itemsize
        if stored.row_bytes > ROW_BYTES:
            raise self.refuse(f"{where} declares {stored.row_bytes:,} bytes a row; at most {ROW_BYTES:,} are read")
        self._charge(where, size)
        if layout == h5py.h5d.CONTIGUOUS and size:
            at = stored.offset
            if at is None or at + size > self._size or stored.id.get_storage_size() != size:
                raise self.refuse(f"{where} declares {size:,} bytes, which the file does not hold")
        if stored.chunk:
            self._chunks += math.prod(-(-n // c) for n, c in zip(stored.shape, stored.chunk, strict=True))
            if math.prod(stored.chunk) * stored.dtype.itemsize > self._allowed or self._chunks > CHUNKS:
                raise self.refuse(f"{where} comes in chunks of {stored.chunk}, too large or too many to read")
