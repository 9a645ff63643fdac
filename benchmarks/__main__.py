"""Measure what is not yet measured with this code on this machine, and write docs/performance.md."""

from __future__ import annotations

import argparse
import sys

from benchmarks import page
from benchmarks.harness import measure


def main() -> int:
    """`make bench`, and with --full `make bench-full`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the slow parts too: hours")
    parser.add_argument("--again", action="store_true", help="also what was measured with this code on this machine")
    args = parser.parse_args()
    for name, script in page.SCRIPTS.items():
        measure(name, script.parts(), args.full, args.again)
    page.write(page.DOCS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
