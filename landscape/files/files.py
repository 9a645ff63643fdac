"""Opening and naming files of either kind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import reprlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from landscape.errors import ConfigError, FileError, as_landscape_error
from landscape.files.hdf5 import KINDS, file_schema

REPLACE = "use --overwrite to replace it, or another --out"
"""The hint for a file that is in the way."""


def as_path(path: Path | str) -> Path:
    """A path from a string or path, with the home folder for a ~ that no shell has seen, as in a config or a notebook.

    Raises ConfigError for anything else, and for paths that no file can have.
    """
    if path == "":
        raise ConfigError("the path of a file is empty", "name a file or folder")
    if "\0" in str(path):
        raise ConfigError(f"the path {str(path)!r} holds a zero byte", "name a file or folder without it")
    try:
        return Path(os.path.expanduser(path))
    except TypeError as error:
        raise ConfigError(
            f"the path of a file cannot be {reprlib.repr(path)}", "give a string or a pathlib.Path"
        ) from error


def output(path: Path | str) -> Path:
    """The path of an output with symbolic links resolved, so that the links stay links.

    Its lock and temporary files are beside it. Raises FileError for circular links and for a folder.
    """
    path = as_path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder", "name the .h5 file in it")
    return resolved(path) if path.is_symlink() else path


def resolved(path: Path) -> Path:
    """An absolute path without symbolic links. Raises FileError for circular ones."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise FileError(f"{path}: its symbolic links lead in a circle", "choose another path")
    return target


def refuse_existing(path: Path, hint: str) -> None:
    """Raise FileError if an output exists, or if its folder is not writable."""
    if path.exists():
        raise FileError(f"{path} exists", hint)
    make_folder(path.parent)


def refuse_foreign(path: Path, kind: str) -> None:
    """Raise FileError for an existing file that is not of the schema `kind`, or not readable: none is overwritten."""
    if not path.exists():
        return
    try:
        if file_schema(path) == kind:
            return
    except FileError as error:
        # Of a file that the system does not let us read nobody knows what it is.
        if error.__cause__ and as_landscape_error(error.__cause__):
            raise
    raise FileError(
        f"{path} is not a {KINDS[kind]}, and nothing else is overwritten", "remove it yourself, or choose another --out"
    )


def require_writable(path: Path) -> None:
    """Raise FileError for a file that its permissions protect, though that of its folder would let it be replaced."""
    if path.exists() and not os.access(path, os.W_OK, effective_ids=True):
        raise FileError(
            f"{path} is protected from being written", "make it writable, as its owner can, or choose another place"
        )


def require_name(path: Path) -> Path:
    """The path of a file. Raises FileError for a folder or an empty path."""
    if not path.name:
        raise FileError(f"{path} is a folder", "name the .h5 file in it")
    return path


def make_folder(folder: Path) -> None:
    """Make the folder of an output if missing. Raises FileError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A file without a name leaves nothing behind.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"cannot write in {folder}: {error.strerror}", "choose another place") from error


def remove_if_empty(folder: Path) -> None:
    """Remove a folder without entries; others stay."""
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def unmade(folder: Path) -> Iterator[None]:
    """Remove this folder and its parents, as far as they are new and empty, if what is done in them fails."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        for one in new:
            remove_if_empty(one)
        raise


def hessian_file(run: Path, name: str = "") -> Path:
    """RUN.h5 -> RUN.hessian.h5 beside it; RUN.hessian-NAME.h5 for an analysis with a name."""
    return require_name(run).with_name(f"{run.stem}.hessian{'-' if name else ''}{name}.h5")


def critical_file(run: Path, step: int) -> Path:
    """RUN.h5 -> RUN.critical-STEP.h5 beside it."""
    return require_name(run).with_name(f"{run.stem}.critical-{step}.h5")


def settled_file(run: Path, step: int | None = None) -> Path:
    """RUN.h5 -> RUN.settled-STEP.h5 beside it, or RUN.settled.h5 for many steps."""
    return require_name(run).with_name(f"{run.stem}.settled{'' if step is None else f'-{step}'}.h5")


def geometry_file(run: Path) -> Path:
    """RUN.h5 -> RUN.geometry.h5 beside it."""
    return require_name(run).with_name(f"{run.stem}.geometry.h5")


def run_file(path: Path) -> Path:
    """RUN.hessian.h5, RUN.critical-STEP.h5 and all other names of an analysis -> RUN.h5; other names unchanged."""
    return path.with_name(re.sub(r"\.(hessian|critical|settled|geometry)(-[^.]*)?\.h5$", ".h5", path.name))


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
