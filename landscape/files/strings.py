"""Check the strings of an HDF5 file in its raw bytes, before the HDF5 library reads them.

The library trusts a file's string collections: a malformed one can make it loop forever, or allocate whatever length a
reference claims. It checks everything else itself.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from landscape.errors import FileError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
COPY_AGAIN = "get it again from its source"
BLOCK = 4 << 20
"""Bytes read at a time."""
ITEMS = 1 << 20
"""Largest number of strings in a file."""
_COLLECTION = b"GCOL\x01"
# An attribute of one text, from its type on: variable-length string (8 bytes) of 8-bit integers (12), one value, and a
# reference to the letters, which begins with their number. Bits that the library ignores may be anything.
_BYTE_TYPE = b"\x01\0\0\0\0\0\x08\0"
_TYPE = re.compile(rb"[\x19\x29\x39\x49\x59][\x01\x11\x21\x31].{6}[\x10\x20\x30\x40\x50]...", re.DOTALL)
_SPACE = re.compile(rb"\x01\0.{6}(.{4})|\x02\0..(.{4})", re.DOTALL)
_LONGEST = 64


def check_strings(path: Path) -> None:
    """Raise FileError for a file that is not HDF5, or whose strings overlap or claim more bytes than the file has."""
    with path.open("rb") as stream:
        file = stream.fileno()
        size = os.fstat(file).st_size
        head = stream.read(16)
        # The code below reads lengths and addresses of 8 bytes; both generations of the header state theirs.
        widths = head[13:15] if head[8:9] in (b"\0", b"\1") else head[9:11]
        if not head.startswith(SIGNATURE) or widths != b"\x08\x08":
            raise FileError(f"{path} is not an HDF5 file", "name a file that `landscape` wrote")
        items = 0
        for start, block in _blocks(file, size):
            for at in _find(_COLLECTION, block):
                items += _walk(path, file, start + at, size, ITEMS - items)
            for at in _find(_BYTE_TYPE, block):
                if _TYPE.fullmatch(block, at - 12, at) and any(n > size for n in _claims(block, at + 8)):
                    raise FileError(f"{path} is damaged: a string claims more bytes than the file has", COPY_AGAIN)


def _blocks(file: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The file in blocks with their offsets, overlapping by the longest pattern."""
    for start in range(0, size, BLOCK):
        yield start, os.pread(file, BLOCK + _LONGEST, start)


def _find(what: bytes, block: bytes) -> list[int]:
    """Offsets of a pattern, found by its byte that is rarest in numbers: bytes.find is slow on unwritten rows."""
    data, rare = np.frombuffer(block, np.uint8), what.index(max(what))
    found = np.flatnonzero(data[rare : max(0, len(data) - len(what) + rare + 1)] == what[rare])
    for i, byte in enumerate(what):
        found = found[data[found + i] == byte]
    return [int(at) for at in found]


def _claims(block: bytes, at: int) -> Iterator[int]:
    """Lengths claimed by a reference that may follow the type ending here, with and without padding."""
    for found in (_SPACE.match(block, at), _SPACE.match(block, at + 4)):
        if found:
            yield int.from_bytes(found[1] or found[2], "little")


def _walk(path: Path, file: int, at: int, size: int, most: int) -> int:
    """Number of strings in the collection at a byte; raises FileError unless they fill it one after another."""
    place, end, items = at + 16, at + _length(file, at + 8), 0
    if end > size:
        raise FileError(f"{path} is truncated or damaged: the strings at byte {at} go beyond its end", COPY_AGAIN)
    while place + 16 <= end and items < most:
        length = _length(file, place + 8)
        if os.pread(file, 2, place) == b"\0\0":
            # Free space must fill the rest of the collection.
            place = end if length == end - place else size + 1
        else:
            place, items = place + 16 + (length + 7) // 8 * 8, items + 1
    if not at + 16 <= place <= end or items == most:
        raise FileError(f"{path} is damaged: the strings at byte {at} overrun each other", COPY_AGAIN)
    return items


def _length(file: int, at: int) -> int:
    raw = os.pread(file, 8, at)
    return int(struct.unpack("<Q", raw)[0]) if len(raw) == 8 else 1 << 63
