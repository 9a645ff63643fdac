"""The provenance of a file as a flat dict of attributes."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import landscape
from landscape.text import printable


def provenance(device: str) -> dict[str, str | int]:
    """Code, versions, machine and command of this process; values are strings or integers."""
    import h5py

    commit, dirty = _git()
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "landscape_version": landscape.__version__,
        "git_commit": commit,
        "git_dirty": dirty,
        "python_version": platform.python_version(),
        "torch_version": metadata.version("torch"),
        "numpy_version": metadata.version("numpy"),
        "h5py_version": h5py.version.version,
        "hdf5_version": h5py.version.hdf5_version,
        "device": device,
        "hostname": printable(platform.node()),
        "argv": printable(" ".join(sys.argv)),
    }


@functools.cache
def _git() -> tuple[str, int]:
    """Commit of the source tree at the first call and whether it had changes; ("unknown", 0) outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return "unknown", 0

    def run(*args: str) -> str:
        command = ["git", "-C", str(root), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return run("rev-parse", "HEAD"), int(bool(run("status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", 0
