"""Entries by name, each registered where it is written."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import TypeVar

from landscape.errors import ConfigError, suggest

Entry = TypeVar("Entry", covariant=True)


class Registry(Mapping[str, Entry]):
    """All entries of one kind by name, in the order of registration.

    A look-up raises ConfigError for an unknown name, a registration ValueError for a name that is taken.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        self._meanings: dict[str, str] = {}

    def add(self, name: str, entry: Entry, meaning: str | None) -> None:  # type: ignore[misc]
        """Register an entry; meaning: its docstring, whose first line `--help` shows."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        # Python keeps no docstrings with -OO.
        if not meaning and sys.flags.optimize < 2:
            raise ValueError(f"{self.kind} {name!r} lacks a docstring, which --help shows")
        self._entries[name], self._meanings[name] = entry, (meaning or name).splitlines()[0].rstrip(".")

    @property
    def meanings(self) -> str:
        """All names with their meanings, in one line."""
        return "; ".join(f"{name}: {meaning}" for name, meaning in self._meanings.items())

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} {reprlib.repr(name)}", suggest(name, self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
