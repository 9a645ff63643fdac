"""Commands that must be refused, and commands in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

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
