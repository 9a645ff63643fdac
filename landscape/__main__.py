"""Entry point with light imports, so that an early Ctrl-C leaves no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `landscape`."""
    try:
        import signal

        # Nothing is begun yet, and Ctrl-C inside a library's C code makes its import fail with another error.
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from landscape.cli.main import main as run

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
