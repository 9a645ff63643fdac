"""Entries by name, each registered where it is written."""

from __future__ import annotations

import reprlib
from typing import NoReturn, TypeVar

from landscape.errors import ConfigError, suggest

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """All entries of one kind by name, in the order of registration; an unknown name is a ConfigError."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self._meanings: dict[str, str] = {}

    def add(self, name: str, entry: Entry, meaning: str | None) -> None:
        """Register an entry; meaning: its docstring, whose first line `--help` shows."""
        if name in self:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self[name] = entry
        # Python keeps no docstrings with -OO.
        self._meanings[name] = (meaning or name).splitlines()[0].rstrip(".")

    @property
    def meanings(self) -> str:
        """All names with their meanings, in one line."""
        return "; ".join(f"{name}: {self._meanings[name]}" for name in self)

    def __missing__(self, name: str) -> NoReturn:
        raise ConfigError(f"unknown {self.kind} {reprlib.repr(name)}", suggest(name, self))
