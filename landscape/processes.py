"""What the kernel tells of processes (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def machine() -> str:
    """What numbers of processes belong to: this start of this machine, and this container on it; empty if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def stat(process: Path) -> list[str]:
    """The fields of a process or thread from its state on, Z or X if it has ended (proc_pid_stat(5)); empty if gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
