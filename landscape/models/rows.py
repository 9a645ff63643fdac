"""Rows of a parameter as members of a block: "E[0:97]", or "E[operands]" where the problem names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.errors import ArgumentError, suggest

Shapes = Mapping[str, Sequence[int]]
"""Shape by parameter."""
Groups = Mapping[str, Mapping[str, range]]
"""Named rows by parameter."""

_ROWS = re.compile(r"(?P<parameter>.+)\[(?P<rows>[^\[\]]*)\]")
_MEMBER = re.compile(r"(.+)\[(\d+):(\d+)\]")
_SPAN = re.compile(r"(\d*):(\d*)")


class Selection:
    """The entries of whole parameters that a block holds.

    parameters: those concerned, whole, in the block's order; positions (row of the block): where the block's rows lie
    among the rows of these, None if it holds all of them in this order; sizes: entries by member; owners: the
    parameter by member; total: entries of the whole parameters.
    """

    def __init__(self, members: Sequence[str], shapes: Shapes) -> None:
        found = [located(member, shapes) for member in members]
        self.parameters = tuple(dict.fromkeys(parameter for parameter, _ in found))
        size = {name: torch.Size(shapes[name]).numel() for name in self.parameters}
        first, total = {}, 0
        for name in self.parameters:
            first[name], total = total, total + size[name]
        pieces = []
        for name, rows in found:
            width = size[name] // max(_length(shapes[name]), 1)
            pieces.append(torch.arange(first[name] + rows.start * width, first[name] + rows.stop * width))
        self.sizes, self.total = [len(piece) for piece in pieces], total
        self.owners = [parameter for parameter, _ in found]
        positions = torch.cat(pieces)
        self.positions = None if torch.equal(positions, torch.arange(total)) else positions

    def of(self, whole: Tensor) -> Tensor:
        """The block's rows of a tensor (row of the whole parameters, ...)."""
        return whole if self.positions is None else whole[self.positions.to(whole.device)]

    def flat(self, named: Mapping[str, Tensor]) -> Tensor:
        """The block's entries of tensors by parameter, (row of the block,)."""
        return self.of(torch.cat([named[name].reshape(-1) for name in self.parameters]))

    def within(self, vectors: Tensor) -> Tensor:
        """Vectors (row of the block, m) among the rows of the whole parameters, zero elsewhere."""
        if self.positions is None:
            return vectors
        return vectors.new_zeros(self.total, vectors.shape[1]).index_copy_(
            0, self.positions.to(vectors.device), vectors
        )


def located(member: str, shapes: Shapes) -> tuple[str, range]:
    """The parameter of a block's member, and its rows. Raises ArgumentError for an unknown one."""
    if member in shapes:
        return member, range(_length(shapes[member]))
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
    known, length = groups.get(parameter, {}), _length(shapes[parameter])
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
    held = [located(member, shapes) for member in second]
    for member in sorted(first):
        parameter, rows = located(member, shapes)
        for other, more in held:
            common = range(max(rows.start, more.start), min(rows.stop, more.stop))
            if parameter == other and common:
                return _member(parameter, common, shapes)
    return ""


def _member(parameter: str, rows: range, shapes: Shapes) -> str:
    return parameter if len(rows) == _length(shapes[parameter]) else f"{parameter}[{rows.start}:{rows.stop}]"


def _length(shape: Sequence[int]) -> int:
    """Rows of a parameter; a number is one."""
    return shape[0] if len(shape) else 1
