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
    """A progress bar of so many units, shown unless `quiet`; a thread shows it during a long unit, too.

    seconds: what all units will take, where that is known; is_late: shown from the first tick of the thread on.
    """

    monitor_interval = 0

    def __init__(
        self,
        total: float | None,
        unit: str,
        quiet: bool = False,
        initial: float = 0,
        seconds: float | None = None,
        is_late: bool = False,
        **form: Any,
    ) -> None:
        self._seconds, self._moved, self._waits = seconds, 0.0, is_late
        self._is_drawn = _IN_NOTEBOOK or sys.stderr is not None and sys.stderr.isatty()
        self._ended = threading.Event()
        self._told: float | None = None
        super().__init__(total=total, unit=unit, initial=initial, disable=quiet, file=sys.stderr, **form)
        self._thread = threading.Thread(target=self._live, daemon=True)
        if not (self.disable or _IN_NOTEBOOK):
            self._thread.start()

    def display(self, *how: Any, **more: Any) -> None:
        """Draw the bar; without a terminal or notebook the thread prints it."""
        if self._is_drawn and not self._waits:
            super().display(*how, **more)

    def update(self, n: float = 1) -> bool | None:
        """Count units, and remember when."""
        if not self.disable:
            self._moved = super().format_dict["elapsed"]
        shown: bool | None = super().update(n)
        return shown

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar shows; where the time is estimated, the rest runs down within a unit, and overdue it is unknown.

        The rate is that of the units done, or the estimated one before the first.
        """
        found: dict[str, Any] = super().format_dict
        if self._seconds and not self.disable and self.n < self.total:
            done, left = self.n - self.initial, self.total - self.n
            rate = done / self._moved if done and self._moved else (self.total - self.initial) / self._seconds
            seconds = left / rate - (found["elapsed"] - self._moved)
            # A rate of 0 is shown as an unknown rest.
            found["rate"] = left / seconds if seconds > 0 else 0.0
        return found

    def close(self) -> None:
        """Show the last state. Without a terminal only if an earlier one was."""
        if "_thread" not in vars(self):
            # Ctrl-C came while the bar was made, and tqdm closes what is left of it.
            return
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
            self._waits = False
            with contextlib.suppress(OSError, ValueError):
                self.refresh() if self._is_drawn else self._tell()

    def _tell(self) -> None:
        self._told = self.n
        print(str(self).strip(), file=sys.stderr, flush=True)


def clock(what: str, quiet: bool = False) -> Bar:
    """The seconds that work of an unknown length has taken, on a line that vanishes; short work shows nothing."""
    is_quiet = quiet or _IN_NOTEBOOK
    return Bar(None, "", is_quiet, is_late=True, desc=what, bar_format="{desc}: {elapsed}", leave=False)


def duration(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 90:
        return f"{max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
