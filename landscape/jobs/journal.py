"""What the processes of a sweep note about its files: a journal each, which only that process writes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from landscape.errors import FileError, mend
from landscape.workers import Reason

JOBS = ".jobs"
LEASES = "leases"
"""Folder in a sweep's folder: journals, leases, and what was submitted to Slurm with its logs; folder in it."""
State = Literal["done", "failed", "waiting"]
_SUFFIX = ".jsonl"
_HEADER = {"attempt": int, "where": str, "log": str}
_ENTRY = {"file": str, "state": str, "reason": str, "hint": str}


@dataclasses.dataclass(frozen=True)
class Note:
    """What a process noted last about a file. attempt: the number of the submission or run of the sweep."""

    file: str
    state: State
    reason: str
    hint: str
    attempt: int
    where: str
    log: str


class Journal:
    """The journal of this process."""

    def __init__(self, folder: Path, name: str, attempt: int, where: str, log: str = "") -> None:
        self.path = folder / (name + _SUFFIX)
        folder.mkdir(parents=True, exist_ok=True)
        self._append({"attempt": attempt, "where": where, "log": log})

    def note(self, file: str, state: State, reason: Reason | None = None) -> None:
        """Note how the work on a file ended."""
        said, hint = reason or ("", "")
        self._append({"file": file, "state": state, "reason": said, "hint": hint})

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {error.strerror}", mend(error)) from error


def notes(folder: Path) -> dict[str, Note]:
    """The last note about each file in the latest attempt, in which what is done stays done."""
    found: dict[str, Note] = {}
    for header, entries in _read(folder):
        for entry in entries:
            note = Note(**entry, **header)
            before = found.get(note.file)
            if before is None or _rank(note) >= _rank(before):
                found[note.file] = note
    return found


def _rank(note: Note) -> tuple[int, bool]:
    return note.attempt, note.state == "done"


def last_attempt(folder: Path) -> int:
    """The number of the latest attempt; 0 if there was none."""
    return max((header["attempt"] for header, _ in _read(folder)), default=0)


def journals(folder: Path) -> list[Path]:
    """The journals of all attempts."""
    with contextlib.suppress(FileNotFoundError):
        there = [entry for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX)]
        return sorted(Path(entry.path) for entry in there if entry.is_file())
    return []


def forget(folder: Path) -> None:
    """Remove the journals of a sweep that begins anew, or has ended."""
    for path in journals(folder):
        path.unlink(missing_ok=True)


def _read(folder: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The header of each journal, and its entries; a kill may have cut the last one, and other programs may write."""
    for path in journals(folder):
        lines = []
        with contextlib.suppress(ValueError, RecursionError), path.open("rb") as file:
            for line in file:
                lines.append(json.loads(line))
        if lines and _fits(lines[0], _HEADER):
            yield lines[0], [entry for entry in lines[1:] if _fits(entry, _ENTRY) and entry["state"] in get_args(State)]


def _fits(entry: Any, types: Mapping[str, type]) -> bool:
    return isinstance(entry, dict) and {key: type(value) for key, value in entry.items()} == types
