"""Rows of a parameter as members of a block: "E[0:97]", or "E[operands]" where the problem names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from landscape.errors import ArgumentError, suggest

Shapes = Mapping[str, Sequence[int]]
"""Shape by parameter."""
Groups = Mapping[str, Mapping[str, range]]
"""Named rows by parameter."""

_ROWS = re.compile(r"(?P<parameter>.+)\[(?P<rows>[^\[\]]*)\]")
_MEMBER = re.compile(r"(.+)\[(\d+):(\d+)\]")
_SPAN = re.compile(r"(\d*):(\d*)")


def located(member: str, shapes: Shapes) -> tuple[str, range]:
    """The parameter of a block's member, and its rows. Raises ArgumentError for an unknown one."""
    if member in shapes:
        return member, range(rows_in(shapes[member]))
    match = _MEMBER.fullmatch(member)
    if not match or match[1] not in shapes:
        raise ArgumentError(f"no parameter {member!r}", suggest(member, shapes))
    return match[1], range(int(match[2]), int(match[3]))


def named_rows(word: str, shapes: Shapes, groups: Groups) -> str | None:
    """The member that a word such as "E[operands]" or "E[5:]" stands for; None if it names no parameter's rows.

    Raises ArgumentError for rows that the parameter does not have.
    """
    match = None if word in shapes else _ROWS.fullmatch(word)
    if not match or match["parameter"] not in shapes:
        return None
    parameter, rows = match["parameter"], match["rows"]
    known, length = groups.get(parameter, {}), rows_in(shapes[parameter])
    span = _SPAN.fullmatch(rows)
    if span:
        start, stop = int(span[1] or 0), int(span[2] or length)
    elif rows in known:
        start, stop = known[rows].start, known[rows].stop
    else:
        hint = suggest(word, [f"{parameter}[{name}]" for name in (*known, f"0:{length}")])
        raise ArgumentError(f"{word}: {parameter} has no rows {rows!r}", hint)
    if not 0 <= start < stop <= length:
        raise ArgumentError(
            f"{word} is no range within 0:{length}, the rows of {parameter}",
            f"give the first row and the one after the last: {parameter}[0:{length}]",
        )
    return _member(parameter, range(start, stop), shapes)


def shared(first: Sequence[str], second: Sequence[str], shapes: Shapes) -> str:
    """A parameter, or rows of one, that both blocks hold; empty if there is none."""
    places = [located(member, shapes) for member in second]
    for member in sorted(first):
        parameter, rows = located(member, shapes)
        for other, more in places:
            common = range(max(rows.start, more.start), min(rows.stop, more.stop))
            if parameter == other and common:
                return _member(parameter, common, shapes)
    return ""


def _member(parameter: str, rows: range, shapes: Shapes) -> str:
    return parameter if len(rows) == rows_in(shapes[parameter]) else f"{parameter}[{rows.start}:{rows.stop}]"


def rows_in(shape: Sequence[int]) -> int:
    """Rows of a parameter of this shape; a number is one."""
    return shape[0] if len(shape) else 1
