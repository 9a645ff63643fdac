"""Opening and naming files of either kind."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import h5py

from landscape.errors import FileError
from landscape.storage import schema

_KIND = {schema.RUN: "a run file", schema.HESSIAN: "a Hessian file"}


def open_file(path: Path, wanted: str) -> h5py.File:
    """Open a file of the schema `wanted` for reading, beside a live writer too; refuse everything else."""
    file = _open_hdf5(path)
    found = file.attrs.get("schema")
    if found != wanted:
        file.close()
        what = _KIND.get(str(found), f"of schema {found!r}" if found else "an HDF5 file of another program")
        hint = (
            "name the run it was made from"
            if found == schema.HESSIAN
            else f"name a file that `landscape {'train' if wanted == schema.RUN else 'hessian'}` wrote"
        )
        raise FileError(f"{path} is {what}, not {_KIND[wanted]}", hint)
    version = str(file.attrs.get("schema_version"))
    if _release(version) > _release(schema.VERSION):
        file.close()
        raise FileError(
            f"{path} has schema version {version}; this landscape reads up to {schema.VERSION}",
            "upgrade landscape",
        )
    return file


def file_schema(path: Path) -> str | None:
    """The schema that a file names, None if it names none. Raises FileError if it is no HDF5 file."""
    with _open_hdf5(path) as file:
        found = file.attrs.get("schema")
        return None if found is None else str(found)


def _open_hdf5(path: Path) -> h5py.File:
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*.h5")) if path.parent.is_dir() else []
        raise FileError(f"{path} does not exist", f"here are: {', '.join(near)}" if near else "check the path")
    if path.is_dir():
        raise FileError(f"{path} is a folder", "name the .h5 file in it")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if not os.access(path, os.R_OK):
            raise FileError(f"{path} cannot be read: permission denied", "ask its owner") from error
        if "truncated" in str(error):
            raise FileError(f"{path} is truncated: {error}", "copy it again from its source") from error
        raise FileError(f"{path} is not an HDF5 file", "name a file that `landscape` wrote") from error


def refuse_existing(path: Path, hint: str) -> None:
    """Raise if an output is in the way, or if its folder cannot be written."""
    if path.exists():
        raise FileError(f"{path} exists", hint)
    make_folder(path.parent)


def make_folder(folder: Path) -> None:
    """The folder of an output, made if missing; an error where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"cannot write in {folder}: {error.strerror}", "choose another place with --out") from error


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else (1 << 30,)
