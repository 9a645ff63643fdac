"""Files that users write: read only where they are files, and no longer than they may be."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from landscape.errors import ConfigError, FileError, mend

MOST_BYTES = 1 << 20
"""Largest size of a JSON file."""


def read_file(path: Path, most: int, hint: str) -> bytes:
    """The content of a regular file.

    Raises FileError for one that cannot be read and for pipes and devices, which may have no end or wait for ever, and
    ConfigError with this hint for more than `most` bytes.
    """
    try:
        # A pipe would wait for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(f"{path} is a pipe or a device, not a file", "write its content into a file first")
            content = file.read(most + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", mend(error)) from error
    if len(content) > most:
        raise ConfigError(f"{path} has more than {most:,} bytes", hint)
    return content


def read_object(path: Path, hint: str) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError if it is unreadable, ConfigError with this hint for other content."""
    try:
        # Some editors begin a file with a byte order mark.
        data = json.loads(read_file(path, MOST_BYTES, hint).decode("utf-8-sig"), object_pairs_hook=_unique)
    except _RepeatedError as error:
        raise ConfigError(f"{path} sets {error} twice", "keep one of the two, for JSON would take the last") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply", hint) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no JSON object", hint)
    return data


class _RepeatedError(ValueError):
    """A key that occurs twice in one object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise _RepeatedError(repr(key))
        members[key] = value
    return members
