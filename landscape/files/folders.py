"""Replacement of result folders: a kill leaves the old or the new one, with all foreign files.

Between two renames the old one has a hidden name beside its place; the next command on the folder puts it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from landscape.errors import ConfigError, FileError, mend
from landscape.files.files import make_folder, refuse_existing, resolved, sha256
from landscape.files.writing import abandoned, draft_of, sole_writer

RECORD = ".landscape.json"
"""File in each folder that lists the files written there, with their SHA-256."""


@contextlib.contextmanager
def replaced_folder(out: Path, what: str, overwrite: bool) -> Iterator[Path]:
    """A new folder to write into, which becomes `out` when the block ends without an error.

    what: such as "report", for messages. `overwrite` replaces an earlier folder: files in its record are removed, all
    others stay. Raises ConfigError for an `out` without a record, and for the working folder and those above it;
    FileError for one that exists or contains an edited file of its record.
    """
    out = resolved(out)
    if _is_around_here(out):
        raise ConfigError(
            f"{out} is the folder that you are in, or above it, and would be replaced by a new one",
            f"name one in it, such as {out / what}",
        )
    make_folder(out.parent)
    with sole_writer(out):
        _clean(out)
        _require_replaceable(out, what, overwrite)
        draft = _new_draft(out)
        try:
            record(draft, [])
            yield draft
            record(draft, [path for path in draft.rglob("*") if path.is_file()])
            # Again, as somebody may have edited the earlier files while the new ones were made.
            ours = _require_replaceable(out, what, overwrite)
            if is_replaced := out.exists():
                _keep(out, draft, ours)
                shutil.copymode(out, draft)
                _exchange(draft, out)
            else:
                draft.rename(out)
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError):
                raise FileError(f"{out} cannot be written: {error.strerror or error}", mend(error)) from error
            raise
        if is_replaced:
            _remove_replaced(draft, out, ours)


def record(folder: Path, files: list[Path]) -> None:
    """Write the record of our files into a folder."""
    checksums = {str(path.relative_to(folder)): sha256(path) for path in sorted(files) if path.name != RECORD}
    (folder / RECORD).write_text(json.dumps({"written_by": "landscape", "files": checksums}, indent=1) + "\n")


def _is_around_here(folder: Path) -> bool:
    """Whether a folder is the working folder, or above it; replaced, it would leave shells in a folder that is gone."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        # Someone has removed it.
        return False
    return folder in (here, *here.parents)


def _recorded(folder: Path) -> dict[str, str] | None:
    """The files that the record of a folder names, with their SHA-256; None without a record."""
    path = folder / RECORD
    # A pipe or a device would be read for ever.
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        files = content["files"] if content["written_by"] == "landscape" else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return files if isinstance(files, dict) else None


def _require_replaceable(out: Path, what: str, overwrite: bool) -> dict[str, str]:
    """The files of ours in `out`, with their SHA-256. Raises LandscapeError for one that must stay as it is."""
    ours = _recorded(out)
    if ours is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists and is no {what} with a record of its files", "choose another folder")
        return {}
    if not overwrite:
        refuse_existing(out, "use --overwrite to replace it, or choose another folder")
    # Beside it one may be allowed to write, but who protects a folder wants it as it is.
    make_folder(out)
    _require_unedited(out, ours)
    return ours


def _require_unedited(folder: Path, ours: dict[str, str]) -> None:
    for path, digest in ((folder / name, digest) for name, digest in ours.items()):
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or sha256(path) != digest):
            raise FileError(f"{path} was edited since it was written", "move it away, or choose another folder")


def _new_draft(out: Path) -> Path:
    draft = draft_of(out)
    try:
        draft.mkdir()
    except OSError as error:
        raise FileError(f"{draft} cannot be made: {error.strerror}", mend(error)) from error
    return draft


def _keep(old: Path, new: Path, ours: Collection[str]) -> None:
    """Link foreign files into the new folder, so that they are in whichever folder a kill leaves."""
    for path in sorted(old.rglob("*")):
        name, target = str(path.relative_to(old)), new / path.relative_to(old)
        if name in ours or name == RECORD:
            continue
        if path.is_dir() and not path.is_symlink():
            _require_listed(path)
            # A folder of ours stays for what is in it alone.
            if not any(o.startswith(f"{name}/") for o in ours):
                target.mkdir(parents=True, exist_ok=True)
        elif not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target, follow_symlinks=False)
        elif not os.path.samestat(path.lstat(), target.lstat()):
            raise FileError(f"{path} is in the way, and no record names it", "move it away, or choose another folder")


def _require_listed(folder: Path) -> None:
    """Raise FileError for a folder that `rglob` passes over without a word."""
    try:
        os.listdir(folder)
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {error.strerror}", mend(error)) from error


def _remove_replaced(old: Path, new: Path, ours: dict[str, str]) -> None:
    """Remove the folder that `new` took the place of. Raises FileError if it has to stay.

    What somebody added until then is kept in the new one, which cannot take what somebody edited.
    """
    try:
        _require_unedited(old, ours)
        _keep(old, new, ours)
    except (FileError, OSError) as error:
        # Without a record, nothing here takes the folder for its own.
        (old / RECORD).unlink(missing_ok=True)
        raise FileError(
            f"{new} was replaced, and what was there is now in {old}, as it changed at that moment: {error}",
            "take from it what is yours, and remove it",
        ) from error
    shutil.rmtree(old, ignore_errors=True)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders, the old one through a third name."""
    aside = draft_of(old).with_suffix(".old")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _clean(out: Path) -> None:
    """Restore or remove what killed commands left beside a folder. Requires the lock on `out`."""
    left = list(abandoned(out))
    for aside in left:
        if aside.suffix == ".old" and _recorded(aside) is not None and not out.exists():
            aside.rename(out)
    for path in filter(Path.is_dir, left):
        if _recorded(path) is not None:
            shutil.rmtree(path, ignore_errors=True)
        elif not any(path.iterdir()):
            path.rmdir()
