"""Blocks by the names that a user gives: of blocks, parameters, their rows, patterns, and two of them joined."""

from __future__ import annotations

import copy
import difflib
import fnmatch
from collections.abc import Collection, Iterable, Sequence

from landscape.errors import ArgumentError, ConfigError
from landscape.models.problem import Problem, shapes_of
from landscape.models.rows import named_rows, shared
from landscape.text import first_few

_SHOWN = 8


def choose(problem: Problem, wanted: Sequence[str]) -> Problem:
    """The problem with all of `wanted` among its blocks; "a,b" joins two blocks, which are then a pair.

    Raises ConfigError for what names no parameter, and for pairs that overlap.
    """
    blocks, pairs, shapes = dict(problem.blocks), list(problem.pairs), shapes_of(problem.parameters)
    for name in wanted:
        if name in blocks:
            continue
        parts = name.split(",")
        if len(parts) > 2:
            raise ConfigError(f"block {name!r} joins {len(parts)} blocks", "join two, as in a,b")
        members = [_matching(problem, part, name) for part in parts]
        if common := shared(members[0], members[1], shapes) if len(parts) == 2 else "":
            raise ConfigError(
                f"block {name!r}: both sides hold {common}", "join blocks without a common parameter or row"
            )
        for part, found in zip(parts, members, strict=True):
            blocks.setdefault(part, found)
        if len(parts) == 2:
            blocks[name] = (*members[0], *members[1])
            pairs.append((parts[0], parts[1]))
    chosen = copy.copy(problem)
    chosen.blocks, chosen.pairs = blocks, tuple(pairs)
    return chosen


def in_order(wanted: Iterable[str], known: Collection[str]) -> list[str]:
    """Names of blocks, each once: "b,a" is "a,b" where that is known."""
    chosen: dict[str, None] = {}
    for name in wanted:
        other = ",".join(reversed(name.split(",")))
        chosen[other if name not in known and (other in known or other in chosen) else name] = None
    return list(chosen)


def nearest(word: str, known: Iterable[str]) -> str:
    """One sentence naming the known names that have something like `word` in them, or the first of all."""
    known = list(dict.fromkeys(known))
    plain = word.strip("*").strip(".")

    def likeness(name: str) -> float:
        return max(difflib.SequenceMatcher(None, plain, part).ratio() for part in (name, *name.split(".")))

    near = sorted((n for n in known if likeness(n) >= 0.6), key=likeness, reverse=True)[:3]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {first_few(known, _SHOWN)}"


def _matching(problem: Problem, pattern: str, block: str) -> tuple[str, ...]:
    """Members of a block: of that name, a parameter, rows of one, or a pattern such as "*.attn.*" in their order."""
    if pattern in problem.blocks:
        return problem.blocks[pattern]
    if pattern in problem.parameters:
        return (pattern,)
    try:
        rows = named_rows(pattern, shapes_of(problem.parameters), problem.rows)
    except ArgumentError as error:
        raise ConfigError(str(error), error.hint) from error
    if rows:
        return (rows,)
    found = tuple(fnmatch.filter(problem.parameters, pattern))
    if not found:
        where = "" if pattern == block else f": {pattern!r} is no block or parameter"
        hint = nearest(pattern, [*problem.blocks, *problem.parameters])
        raise ConfigError(f"{problem.name} has no block {block!r}{where}", hint)
    return found
