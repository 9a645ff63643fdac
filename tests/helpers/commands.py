"""Commands that must be refused, and commands in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from helpers.apart import SERVER

SMALL = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "2", "--quiet"]
"""The options of a run that is trained in no time."""
HUGE = "1" + "0" * 400
"""More digits than any number of a config may have."""


class Refusal(Protocol):
    """The fixture `assert_refused`."""

    def __call__(
        self, argv: Sequence[object], code: int, error: str, hint: str, unharmed: Sequence[Path] = ()
    ) -> None: ...


def landscape(*argv: str | bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`landscape` in a process of its own."""
    return subprocess.run([sys.executable, "-m", "landscape", *argv], **{"capture_output": True, **options})


def forked(
    *argv: str | bytes, env: Mapping[str, str] | None = None, copy: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The same in a fork of a process that has imported what takes seconds, with streams of its own.

    env: added to the environment; copy: a folder with another copy of the package, in which the command runs.
    """
    with tempfile.TemporaryDirectory() as streams:
        child = SERVER.Process(target=_enter, args=(list(map(os.fsdecode, argv)), dict(env or {}), copy, streams))
        child.start()
        child.join()
        out, err = ((Path(streams) / str(number)).read_bytes() for number in (1, 2))
    return subprocess.CompletedProcess(argv, child.exitcode or 0, out, err)


def _enter(argv: list[str], env: dict[str, str], copy: Path | None, streams: str) -> None:
    """In the child: the entry point, as a new interpreter would call it."""
    os.environ.update(env)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    for number, errors in ((1, "strict"), (2, "backslashreplace")):
        os.dup2(os.open(Path(streams) / str(number), os.O_CREAT | os.O_WRONLY), number)
        stream = open(number, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, "stdout" if number == 1 else "stderr", stream)
    sys.argv = ["landscape", *argv]
    if copy:
        for name in [name for name in sys.modules if name.partition(".")[0] == "landscape"]:
            del sys.modules[name]
        sys.path.insert(0, str(copy))
        os.chdir(copy)
    import_module("landscape.__main__").main()
