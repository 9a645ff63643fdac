"""Print results to stdout, also after its reader has gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Context for printing to stdout: output is dropped once the reader, such as `head`, has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        error.filename = "standard output"
        raise


def discard(stream: TextIO) -> None:
    """Redirect a stream, with the rest of its buffer, to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    with printing():
        print(text)
