"""Progress of long work on stderr: a bar that moves every second in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from typing import Any

from tqdm.auto import tqdm

TERMINAL, ELSEWHERE = 1.0, 10.0
"""Seconds between two signs of life."""
_IN_NOTEBOOK = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)


class Bar(tqdm):  # type: ignore[misc]
    """A progress bar of so many units, shown unless `quiet`; a thread shows it during a long unit, too."""

    monitor_interval = 0

    def __init__(self, total: float, unit: str, quiet: bool = False, initial: float = 0, **form: Any) -> None:
        self._is_drawn = _IN_NOTEBOOK or sys.stderr is not None and sys.stderr.isatty()
        self._ended = threading.Event()
        self._told: float | None = None
        super().__init__(total=total, unit=unit, initial=initial, disable=quiet, file=sys.stderr, **form)
        self._thread = threading.Thread(target=self._live, daemon=True)
        if not (self.disable or _IN_NOTEBOOK):
            self._thread.start()

    def display(self, *how: Any, **more: Any) -> None:
        """Draw the bar; without a terminal or notebook the thread prints it."""
        if self._is_drawn:
            super().display(*how, **more)

    def close(self) -> None:
        """Show the last state. Without a terminal only if an earlier one was."""
        self._ended.set()
        if self._thread.is_alive():
            # A process that is forked after this finds no other thread.
            self._thread.join()
        if not self.disable and not self._is_drawn:
            if self._told not in (None, self.n):
                self._tell()
            # The end of the line of a bar.
            self.fp = io.StringIO()
        super().close()

    def _live(self) -> None:
        while not self._ended.wait(TERMINAL if self._is_drawn else ELSEWHERE):
            # A reader that has gone stops the work at its next unit, or is not missed.
            with contextlib.suppress(OSError, ValueError):
                self.refresh() if self._is_drawn else self._tell()

    def _tell(self) -> None:
        self._told = self.n
        print(str(self).strip(), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 90:
        return f"{max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
