"""Atomic replacement of result folders: a kill leaves the old or the new folder, with all foreign files."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from landscape.errors import ConfigError, FileError, mend
from landscape.storage.files import make_folder, refuse_existing, sha256
from landscape.storage.writing import sole_writer

RECORD = ".landscape.json"
"""File in each folder that lists the files written there, with their SHA-256."""
_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""


@contextlib.contextmanager
def replaced_folder(out: Path, what: str, overwrite: bool) -> Iterator[Path]:
    """A new folder to write into, which becomes `out` when the block ends without an error.

    what: such as "report", for messages. `overwrite` replaces an earlier folder: files in its record are removed, all
    others stay. Raises ConfigError for an `out` without a record, FileError for one that exists or contains an edited
    file of its record.
    """
    out = out.resolve()
    make_folder(out.parent)
    with sole_writer(out):
        _clean(out)
        recorded = _recorded(out)
        if recorded is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists and is no {what} with a record of its files", "choose another folder")
        if recorded is not None and not overwrite:
            refuse_existing(out, "use --overwrite to replace it, or choose another folder")
        for path, digest in ((out / name, digest) for name, digest in (recorded or {}).items()):
            if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or sha256(path) != digest):
                raise FileError(f"{path} was edited since it was written", "move it away, or choose another folder")
        draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        try:
            draft.mkdir()
            record(draft, [])
            yield draft
            record(draft, [path for path in draft.rglob("*") if path.is_file()])
            if out.exists():
                _keep(out, draft, set(recorded or {}))
                _exchange(draft, out)
            else:
                draft.rename(out)
        except OSError as error:
            raise FileError(f"{out} cannot be written: {error.strerror or error}", mend(error)) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def record(folder: Path, files: list[Path]) -> None:
    """Write the record of our files into a folder."""
    found = {str(path.relative_to(folder)): sha256(path) for path in sorted(files) if path.name != RECORD}
    (folder / RECORD).write_text(json.dumps({"written_by": "landscape", "files": found}, indent=1) + "\n")


def _recorded(folder: Path) -> dict[str, str] | None:
    """The files that the record of a folder names, with their SHA-256; None without a record."""
    try:
        found = json.loads((folder / RECORD).read_text())
        files = found["files"] if found["written_by"] == "landscape" else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return files if isinstance(files, dict) else None


def _keep(old: Path, new: Path, ours: set[str]) -> None:
    """Link foreign files into the new folder, so that they are in whichever folder a kill leaves."""
    for path in sorted(old.rglob("*")):
        name, target = str(path.relative_to(old)), new / path.relative_to(old)
        if name in ours or name == RECORD:
            continue
        if path.is_dir() and not path.is_symlink():
            # A folder of ours stays for what is in it alone.
            if not any(o.startswith(f"{name}/") for o in ours):
                target.mkdir(parents=True, exist_ok=True)
        elif os.path.lexists(target):
            raise FileError(f"{path} is in the way, and no record names it", "move it away, or choose another folder")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target, follow_symlinks=False)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders, atomically if the file system can, else through a third name."""
    with contextlib.suppress(AttributeError):
        swap = ctypes.CDLL(None).renameat2
        if swap(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE) == 0:
            return
    aside = old.with_name(f".{old.name}.{os.getpid()}.old")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _clean(out: Path) -> None:
    """Restore or remove what killed commands left beside a folder. Requires the lock on `out`."""
    ours = re.compile(re.escape(f".{out.name}.") + r"\d+\.(tmp|old)", re.ASCII)
    left = [path for path in out.parent.iterdir() if ours.fullmatch(path.name) and not path.is_symlink()]
    for aside in left:
        if aside.suffix == ".old" and _recorded(aside) is not None and not out.exists():
            aside.rename(out)
    for path in filter(Path.is_dir, left):
        if _recorded(path) is not None:
            shutil.rmtree(path, ignore_errors=True)
        elif not any(path.iterdir()):
            path.rmdir()
