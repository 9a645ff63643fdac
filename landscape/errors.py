"""The errors a user can act on: what was wrong, with the value, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LandscapeError(Exception):
    """A failure that the user can act on. Printed as `error: …` and `hint: …`; exit code 1."""

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
        # Tracebacks show it too.
        self.add_note(f"hint: {hint}")


class ConfigError(LandscapeError):
    """A value that no run can have (exit code 2)."""

    exit_code = 2


class FileError(LandscapeError):
    """A file that is missing, broken, of another kind, or in the way."""


class StepError(FileError):
    """A step that the file does not hold."""


class ArgumentError(LandscapeError, ValueError):
    """An argument of a function that has the wrong kind, shape, name or number."""


class DeviceError(LandscapeError):
    """A device that is not there."""


class DoesNotFitError(LandscapeError):
    """Dense work that would not fit; raised before it starts."""


class NumericsError(LandscapeError):
    """Numbers that cannot be analysed, such as NaN parameters."""


def suggest(word: str, known: Iterable[str]) -> str:
    """One sentence naming the nearest known words, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
