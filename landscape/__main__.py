"""Entry point with light imports, so that an early Ctrl-C leaves no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `landscape`."""
    try:
        from landscape.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
