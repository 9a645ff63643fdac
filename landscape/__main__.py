"""Entry point with light imports, so that an early Ctrl-C leaves no traceback."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of `landscape`."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        from landscape.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end at once inside an import, where a library's C code aborts or fails otherwise."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
