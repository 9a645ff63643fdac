"""Print results to stdout, also after its reader has gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

_results: list[TextIO] = []


@contextlib.contextmanager
def results_only() -> Iterator[None]:
    """Context in which only `say` prints to stdout; what other code prints, such as a user's model, goes to stderr."""
    _results.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def say(text: str) -> None:
    """Print to stdout; output is dropped once the reader, such as `head`, has gone."""
    stdout = _results[-1] if _results else sys.stdout
    try:
        print(text, file=stdout)
        stdout.flush()
    except BrokenPipeError:
        discard(stdout)
    except OSError as error:
        discard(stdout)
        error.filename = "standard output"
        raise


def discard(stream: TextIO) -> None:
    """Redirect a stream, with the rest of its buffer, to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
