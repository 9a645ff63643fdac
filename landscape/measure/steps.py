"""Which stored steps are analysed."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

from landscape.errors import NumericsError, StepError, warn
from landscape.files.runs import GROK, MEMORISE, MEMORISED, RunReader


def choose_steps(reader: RunReader, wanted: str, count: int = 12) -> list[int]:
    """Stored steps to analyse.

    auto: at most `count`: the steps where train hits 99 % and test 95 %, step 0, the last, and log-spaced ones.
    plateau: the one nearest to the geometric mean of these two events, the last step in the place of the second where
    that never came. Raises StepError for a step that is not stored, or without the first event.
    """
    stored = reader.steps
    if wanted == "all":
        return stored
    if wanted not in ("auto", "plateau"):
        chosen = sorted({int(s) for s in wanted.split(",")})
        for step in chosen:
            with contextlib.suppress(NumericsError):
                reader.checkpoint(step)
            reader.require_beside(step)
        return chosen
    if not stored:
        raise StepError(f"{reader.path} holds no checkpoint", "train it first, or resume it with --resume")
    events = [reader.first_step(*event) for event in (MEMORISE, GROK)]
    if wanted == "plateau":
        memorised, grokked = events
        if not memorised:
            further = "" if reader.is_recorded else "train it further with --resume, or "
            raise StepError(
                f"{reader.path} never reached {MEMORISED:.0%} on its training set and has no plateau",
                f"{further}name --steps",
            )
        return [_nearest(stored, math.sqrt(memorised * max(memorised, grokked or stored[-1])))]
    reached = [_nearest(stored, event) for event in events if event is not None]
    # Far apart first, so that a small count still spans the run.
    spread = (_nearest(stored, x) for x in _bisected(max(stored[min(1, len(stored) - 1)], 1), max(stored[-1], 1)))
    chosen_steps: set[int] = set()
    for step in itertools.chain(reached or stored[-1:], stored[:1], spread):
        if len(chosen_steps) == min(count, len(stored)):
            break
        chosen_steps.add(step)
    return sorted(chosen_steps)


def finite_steps(reader: RunReader, steps: list[int]) -> list[int]:
    """The steps whose parameters are finite; names the others on stderr. Raises NumericsError if none is left."""
    finite, errors = [], []
    for step in steps:
        try:
            reader.checkpoint(step)
            finite.append(step)
        except NumericsError as error:
            errors.append(error)
    if errors and not finite:
        raise errors[0]
    for left_out in errors:
        warn(f"{left_out}: left out")
    return finite


def warn_of_damage(reader: RunReader) -> None:
    """Warn about missing data in a run file."""
    if reader.damage:
        warn(f"{reader.path}: left out, for their checksums fail: {reader.damage}")


def _nearest(stored: list[int], target: float) -> int:
    return min(stored, key=lambda s: abs(s - target))


def _bisected(first: int, last: int) -> Iterator[float]:
    """Log-spaced points from first to last: the ends, the middle, the quarters, the eighths, ..."""
    yield from (last, first)
    for level in range(1, 12):
        for i in range(1, 2**level, 2):
            yield first * (last / first) ** (i / 2**level)
