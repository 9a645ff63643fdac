"""What permissions keep from a process."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As root, too, permissions count inside the block."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    # Effective, permitted and inheritable in two words each; 0xf are the rights to pass over permissions of files.
    less = (ctypes.c_uint32 * 6)(before[0] & ~0xF, *before[1:])
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
