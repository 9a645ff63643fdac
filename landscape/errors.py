"""Errors that a user can act on: the wrong value, and a hint how to correct it."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from landscape.text import printable

Value = TypeVar("Value")
UNFINISHED, INTERRUPTED = 3, 130
"""Exit codes of commands that did not converge or were interrupted; 1 and 2 are errors."""


class LandscapeError(Exception):
    """A failure that the user can act on, printed as `error: ...` and `hint: ...`; exit code 1.

    Args:
        message: what was wrong, with the value.
        hint: how to mend it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
        # Tracebacks show the hint too; who sees one calls functions.
        self.add_note(f"hint: {_as_arguments(hint)}")


class ConfigError(LandscapeError):
    """An invalid option (exit code 2)."""

    exit_code = 2


class FileError(LandscapeError):
    """A file that is missing, broken, of the wrong kind, or in the way."""


class StepError(FileError):
    """A step that is not stored."""


class ArgumentError(LandscapeError, ValueError):
    """A function argument of the wrong type, shape, name or value."""


class DeviceError(LandscapeError):
    """A device that is not available."""


class DoesNotFitError(LandscapeError):
    """Work that does not fit in memory."""


class NumericsError(LandscapeError):
    """Numbers that cannot be analysed, such as NaN parameters."""


def lookup(registry: Mapping[str, Value], kind: str, name: str) -> Value:
    """The entry of a registry. Raises ConfigError for an unknown name."""
    if name not in registry:
        raise ConfigError(f"unknown {kind} {name!r}", suggest(name, registry))
    return registry[name]


def kind_of(value: object) -> str:
    """The type of a value, after its article: an int, a tuple."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def require_config(config: object, kind: type) -> None:
    """Raise ArgumentError unless the config that a function is given is one of this kind."""
    if not isinstance(config, kind):
        name = kind.__name__
        raise ArgumentError(f"the config is {kind_of(config)}, not a {name}", f"give landscape.{name}(...)")


def require_jobs(jobs: object) -> None:
    """Raise ConfigError unless this is a number of processes, or None for the number of cores."""
    if jobs is not None and (not isinstance(jobs, int) or jobs < 0):
        raise ConfigError(f"jobs is {jobs!r}", "--jobs takes an integer >= 1")


def _as_arguments(hint: str) -> str:
    """A hint with options by their names in Python, unless it gives a whole command."""
    return hint if _COMMAND.search(hint) else _FLAG.sub(lambda flag: flag[1].replace("-", "_"), hint)


_COMMAND, _FLAG = re.compile(r"\b(landscape|torchrun) "), re.compile(r"--([a-z][\w-]*)")
_LIBRARIES = [Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))]
_MENDS = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of this path is a file, not a folder: check it",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "move it away, or choose another place",
    errno.ENOTEMPTY: "empty it, or choose another place",
    errno.ELOOP: "its symbolic links lead in a circle: choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EACCES: "ask its owner, change its permissions, or choose another place",
    errno.EPERM: "ask its owner, change its permissions, or choose another place",
    errno.EROFS: "this file system cannot be written to: choose another place",
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or write elsewhere",
    errno.EIO: "check the disk, or choose another one",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or work on fewer files at once",
    errno.ENFILE: "close other programs: the machine has too many files open",
    errno.ENXIO: "name a regular file",
    errno.ENODEV: "name a regular file",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or close other programs",
    errno.ENOMEM: "close other programs, or ask for less",
}


def as_landscape_error(error: BaseException) -> LandscapeError | None:
    """The error as a LandscapeError, if the user can act on it; None for possible bugs."""
    if isinstance(error, LandscapeError):
        return error
    if isinstance(error, SystemExit):
        where = place(traceback.extract_tb(error.__traceback__))
        return LandscapeError(f"your own code ends the program{where}", "let it raise an exception, not call sys.exit")
    if isinstance(error, OSError) and error.errno in _MENDS:
        return FileError(f"{_named(error)}: {os.strerror(error.errno)}", _MENDS[error.errno])
    # torch raises a plain RuntimeError when CPU memory runs out.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or isinstance(error, RuntimeError)
        and "can't allocate memory" in str(error)
    ):
        return DoesNotFitError(f"memory ran out: {error}".rstrip(": "), "close other programs, or ask for less at once")
    return None


def place(frames: Sequence[traceback.FrameSummary]) -> str:
    """The words " at FILE, line N" of the innermost frame of the user's own code, or of any."""
    own = [f for f in frames if not any(folder in Path(f.filename).parents for folder in _LIBRARIES)] or frames
    return f" at {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def mend(error: OSError) -> str:
    """The hint for a file or folder that could not be read or written."""
    return _MENDS.get(error.errno or 0, "choose another place")


@contextlib.contextmanager
def working_on(path: object) -> Iterator[None]:
    """Name this file in system errors that name none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def in_file(path: object, what: str) -> Iterator[None]:
    """Turn errors caused by invalid content of a file into a FileError that names it."""
    try:
        yield
    except (ConfigError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        hint = "get it again from its source"
        if isinstance(error, ConfigError):
            # Another version of the package, or one with entries of the user's own, may know the option or name.
            hint += ", or use the landscape that wrote it"
        raise FileError(f"{path}: its {what} cannot be: {str(error)[:200]}", hint) from error


def complain(error: LandscapeError) -> None:
    """Print an error and its hint on stderr, each on one line."""
    _tell(f"error: {printable(error)}\nhint: {printable(error.hint)}")


def warn(message: str) -> None:
    """Print a warning on stderr, on one line."""
    _tell(f"warning: {printable(message)}")


def note(message: str) -> None:
    """Print what a user may not expect on stderr, on one line."""
    _tell(f"note: {printable(message)}")


def _tell(text: str) -> None:
    # A closed stderr must not change the exit code.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence with the nearest known words; where none is near, another one, by default with all of them."""
    known = list(known)
    # The dashes of flags make no two of them alike.
    bare = {name.lstrip("-"): name for name in known}
    near = [bare[name] for name in difflib.get_close_matches(str(word).lstrip("-"), bare, n=2)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise or f"known: {', '.join(known)}"


def _named(error: OSError) -> str:
    names = [error.filename, error.filename2]
    return " -> ".join(os.fsdecode(name) for name in names if isinstance(name, str | bytes)) or "the system"
