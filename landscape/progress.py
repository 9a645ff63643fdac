"""Progress of long work on stderr: a bar in a terminal or notebook, a line every ten seconds elsewhere."""

from __future__ import annotations

import io
import math
import sys
import time
from typing import Any

from tqdm.auto import tqdm

ELSEWHERE = 10.0
"""Seconds between two lines without a terminal."""
_IN_NOTEBOOK = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)


class Bar(tqdm):  # type: ignore[misc]
    """A progress bar of so many units, shown unless `quiet`; without a terminal, lines, of short work none."""

    # Every update may draw, so that no thread has to watch for slow ones.
    monitor_interval = 0

    def __init__(self, total: float | None, unit: str, quiet: bool = False, initial: float = 0, **form: Any) -> None:
        self._is_drawn = _IN_NOTEBOOK or sys.stderr is not None and sys.stderr.isatty()
        self._due, self._has_said = time.monotonic() + ELSEWHERE, False
        super().__init__(total=total, unit=unit, initial=initial, disable=quiet, file=sys.stderr, miniters=1, **form)

    def display(self, *how: Any, **more: Any) -> None:
        """Draw the bar, or print it as a line once one is due."""
        if self._is_drawn:
            super().display(*how, **more)
        elif time.monotonic() >= self._due:
            self._due, self._has_said = time.monotonic() + ELSEWHERE, True
            print(str(self).strip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Show the last state; elsewhere if a line came before."""
        if not self._is_drawn:
            self._due = -math.inf if self._has_said else math.inf
            # tqdm ends the line of a bar, which is none here.
            self.fp = io.StringIO()
        super().close()
