"""JSON files that users write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from landscape.errors import ConfigError, FileError, mend

MOST_BYTES = 1 << 20
"""Largest size of a file."""


def read_object(path: Path, hint: str) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError if it is unreadable, ConfigError with this hint for other content."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES:,} bytes", hint)
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", mend(error)) from error
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
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedError(repr(key))
        found[key] = value
    return found
