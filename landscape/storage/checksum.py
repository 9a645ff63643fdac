"""CRC-32 as in zlib, from ISA-L where available, which is ten times as fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32", "crc32_of_arrays", "crc32_of_attributes"]


def crc32_of_attributes(attrs: Mapping[str, Any]) -> int:
    """CRC-32 of the lines `name=value` of attributes in alphabetical order."""
    lines = "".join(f"{name}={attrs[name]}\n" for name in sorted(attrs))
    return crc32(lines.encode("utf-8", "surrogateescape"))


def crc32_of_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """CRC-32 of the bytes of arrays one after another, in alphabetical order of their names."""
    crc = 0
    for name in sorted(arrays):
        crc = crc32(np.ascontiguousarray(arrays[name]).data, crc)
    return crc
