"""Files that take long to make and that all processes of a session read."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, which the first of pytest-xdist's processes to ask for it makes for all."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / f"{make.__module__}.{make.__name__}"
    done = base / f"{folder.name}.done"
    with open(base / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            # Left by a process in which `make` failed.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
