"""Memory that this process can still allocate, within the limits of machine, process and control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_KIB = 1024
_V1_UNLIMITED = 1 << 60
"""Control groups of version 1 report a number near 2^63 for no limit."""


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated: the least of available memory, resource limits and control group limits.

    root: the folder that holds `proc` and `sys`.
    """
    return max(0, min([_available(root), *_resource_limits(root), *_group_limits(root)]))


def _available(root: Path) -> int:
    """Free memory, including caches that the kernel can drop."""
    try:
        return _numbers(root / "proc/meminfo")["MemAvailable:"] * _KIB
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _resource_limits(root: Path) -> Iterator[int]:
    """What remains of RLIMIT_AS and RLIMIT_DATA (`ulimit -v`, `ulimit -d`)."""
    try:
        import resource

        used = _numbers(root / "proc/self/status")
    except (ImportError, OSError):
        return
    for limit, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield soft - used[name] * _KIB


def _group_limits(root: Path) -> Iterator[int]:
    """What remains of the memory of this process's control group and its ancestors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for number, controllers, own in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if number == "0":
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _left(root / mount, own, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = "sys/fs/cgroup/memory"
            yield from _left(root / mount, own, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(mount: Path, own: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """What remains in a group and its ancestors, of which a container may see only some."""
    group = Path(own.strip("/"))
    for at in (group, *group.parents):
        folder = mount / at
        try:
            most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            # The kernel drops inactive file pages before it refuses an allocation.
            used -= _numbers(folder / "memory.stat").get(cache, 0)
        except (OSError, ValueError):
            continue
        if most.isdigit() and int(most) < _V1_UNLIMITED:
            yield int(most) - used


def _numbers(path: Path) -> Mapping[str, int]:
    """The first number of each line, by the line's first word."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
