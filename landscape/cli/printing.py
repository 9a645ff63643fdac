"""Results to stdout, and nothing lost or odd where its reader has gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Around prints to stdout. A reader that has gone, such as `head`, wants no more: the rest is dropped."""
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
    """Send what is left in a stream's buffer, and all that follows, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    with printing():
        print(text)
