"""Opening and naming files of either kind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import reprlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from landscape.errors import ConfigError, FileError, as_landscape_error
from landscape.files import schema
from landscape.files.contents import Contents
from landscape.files.guard import Guard
from landscape.files.strings import COPY_AGAIN, check_strings

REPLACE = "use --overwrite to replace it, or another --out"
"""The hint for a file that is in the way."""
KINDS = {schema.RUN: "run file", schema.HESSIAN: "Hessian file", schema.GEOMETRY: "geometry file"}
_KIND = {kind: f"a {name}" for kind, name in KINDS.items()}
_MAKER = {schema.RUN: "train", schema.HESSIAN: "hessian", schema.GEOMETRY: "geometry"}


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


def open_file(path: Path, wanted: str = "") -> Contents:
    """Open a file of the schema `wanted`, by default of any, for reading, beside a live writer too.

    Raises FileError for everything else.
    """
    guard = _open_hdf5(path)
    try:
        found = guard.attribute("schema", str)
        wanted = wanted or (str(found) if found in _KIND else schema.RUN)
        if found != wanted:
            what = _KIND.get(str(found), f"of schema {found!r}" if found else "an HDF5 file of another program")
            hint = (
                "name the run it was made from"
                if found in (schema.HESSIAN, schema.GEOMETRY) and wanted == schema.RUN
                else f"name a file that `landscape {_MAKER[wanted]}` wrote"
                + "; of your own training, `landscape import` or landscape.Recorder make one" * (wanted == schema.RUN)
            )
            raise FileError(f"{path} is {what}, not {_KIND[wanted]}", hint)
        version = str(guard.require("schema_version", str))
        if version != schema.VERSION:
            raise FileError(
                f"{path} has schema version {version}; this landscape reads {schema.VERSION}",
                "read it with the version of landscape that wrote it, or make it anew",
            )
        return Contents(guard, wanted)
    except BaseException:
        guard.close()
        raise


def file_schema(path: Path) -> str | None:
    """The schema that a file declares, or None. Raises FileError if it is not an HDF5 file."""
    with contextlib.closing(_open_hdf5(path)) as guard:
        found = guard.attribute("schema", str)
        return None if found is None else str(found)


def _open_hdf5(path: Path) -> Guard:
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.h5")) if path.parent.is_dir() else []
        raise FileError(f"{path} does not exist", f"here are: {', '.join(near)}" if near else "check the path")
    if path.is_dir():
        raise FileError(f"{path} is a folder", "name the .h5 file in it")
    if not path.is_file():
        raise FileError(f"{path} is a device or a pipe", "name an .h5 file")
    try:
        check_strings(path)
        return Guard(path)
    except OSError as error:
        if "unable to lock file" in str(error):
            raise _locked(path, error) from error
        if known := as_landscape_error(error):
            raise known from error
        if "truncated" in str(error):
            raise FileError(f"{path} is truncated: {error}", "copy it again from its source") from error
        raise FileError(f"{path} is damaged: {' '.join(str(error).split())}", COPY_AGAIN) from error


def _locked(path: Path, error: OSError) -> FileError:
    """The error of a file that the HDF5 library cannot lock, which says nothing of the file itself."""
    if error.errno in (errno.EAGAIN, errno.EACCES):
        return FileError(
            f"{path} is locked: another program, such as a notebook, has it open for writing",
            "close it there; HDF5_USE_FILE_LOCKING=FALSE in the environment reads it, perhaps half-written",
        )
    return FileError(
        f"{path} cannot be locked: its file system has no locks ({os.strerror(error.errno or errno.ENOLCK)})",
        "set HDF5_USE_FILE_LOCKING=FALSE in the environment, or copy the file to a local disk",
    )


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
        f"{path} is not {_KIND[kind]}, and nothing else is overwritten", "remove it yourself, or choose another --out"
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


def geometry_file(run: Path) -> Path:
    """RUN.h5 -> RUN.geometry.h5 beside it."""
    return require_name(run).with_name(f"{run.stem}.geometry.h5")


def run_file(made: Path) -> Path:
    """RUN.hessian.h5, RUN.hessian-NAME.h5, RUN.critical-STEP.h5, RUN.geometry.h5 -> RUN.h5; other names unchanged."""
    return made.with_name(re.sub(r"\.(hessian|critical|geometry)(-[^.]*)?\.h5$", ".h5", made.name))


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
