"""How this process was started: alone, or as one of several ranks by torchrun."""

from __future__ import annotations

import dataclasses
import os

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 45.0
"""Seconds without progress after which a rank counts as hanging, unless a command is told otherwise."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One of `size` processes; local: its number on this machine. attempt: how often all were started again."""

    rank: int
    size: int
    local: int
    attempt: str


def launched() -> Launch | None:
    """What torchrun says of this process in its environment; None where it is the only one."""
    if not all(os.environ.get(name) for name in _NEEDED) or os.environ["WORLD_SIZE"] == "1":
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    return Launch(rank, size, local, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
