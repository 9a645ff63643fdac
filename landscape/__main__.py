"""The way in: quick to import, so that Ctrl-C is quiet from the start."""

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
