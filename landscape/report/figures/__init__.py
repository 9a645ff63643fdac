"""The figure families, and the command line of the scripts that draw one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from landscape.errors import LandscapeError, complain
from landscape.report.figures.families import families
from landscape.report.figures.sources import open_sources
from landscape.report.style import collecting_boxes, save_figure, style, tell_of_boxes
from landscape.text import printable

FAMILIES = families()


def main(family: str, claim: str | None) -> None:
    """Draw one family from the files on the command line; print its key numbers and the paths written."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="run files or Hessian files")
    parser.add_argument("--out", type=Path, default=Path("reports/analyses"), help="folder to write to")
    args = parser.parse_args()
    try:
        with style(), collecting_boxes() as boxes:
            drawn = FAMILIES[family](open_sources(args.files))
            paths = save_figure(drawn.figure, drawn.data, args.out, family)
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    tell_of_boxes(boxes)
    for line in (drawn.caption, *(f"{name}: {value}" for name, value in drawn.numbers.items()), *paths):
        print(printable(line))
