"""Ctrl-C, SIGTERM and SIGHUP at places of our choice, so that work stops between two steps with everything stored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that each of these signals sets. Outside the main thread, which alone gets signals, it is never set."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    with _handling(lambda *_: event.set()):
        yield event


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Deliver these signals when the block has ended, in the main thread, which alone gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that raises, as that of Ctrl-C, leaves the others to be delivered.
    with ExitStack() as came, _handling(lambda number, _: came.callback(signal.raise_signal, number)):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle the signals by `handler`, but for one that C code handles: that could not be restored."""
    before = {s: current for s in (signal.SIGINT, signal.SIGTERM) if (current := signal.getsignal(s)) is not None}
    # That of a closed terminal; under nohup it stays ignored.
    if (current := signal.getsignal(signal.SIGHUP)) not in (None, signal.SIG_IGN):
        before[signal.SIGHUP] = current
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
