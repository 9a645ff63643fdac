"""Blocks by the names that a user gives: of blocks, parameters, their rows, patterns, and two of them joined."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Sequence

from landscape.errors import ArgumentError, ConfigError, suggest
from landscape.models.blocks import Block, Pair
from landscape.models.problem import Problem, joint, shapes_of
from landscape.models.rows import named_rows, shared
from landscape.text import first_few

_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The blocks that are measured, and every pair of the problem or among them."""

    blocks: tuple[Block, ...]
    pairs: tuple[Pair, ...]


def choose(problem: Problem, wanted: Sequence[str]) -> Chosen:
    """The blocks of these names; "a,b" joins two blocks, which are then a pair.

    Raises ConfigError for what names no parameter, and for pairs that overlap.
    """
    members, pairs, shapes = dict(problem.blocks), list(problem.pairs), shapes_of(problem.parameters)
    for name in wanted:
        if name in members:
            continue
        parts = name.split(",")
        if len(parts) > 2:
            raise ConfigError(f"block {name!r} joins {len(parts)} blocks", "join two, as in a,b")
        held = [_matching(problem, part, name) for part in parts]
        if common := shared(held[0], held[1], shapes) if len(parts) == 2 else "":
            raise ConfigError(
                f"block {name!r}: both sides hold {common}", "join blocks without a common parameter or row"
            )
        for part, its in zip(parts, held, strict=True):
            members.setdefault(part, its)
        if len(parts) == 2:
            members[name] = (*held[0], *held[1])
            pairs.append((parts[0], parts[1]))
    blocks = {name: Block(name, members[name], shapes) for name in members}
    return Chosen(
        tuple(blocks[name] for name in wanted),
        tuple(Pair(blocks[first], blocks[second], blocks[joint((first, second))]) for first, second in pairs),
    )


def in_order(wanted: Iterable[str], known: Collection[str]) -> list[str]:
    """Names of blocks, each once: "b,a" is "a,b" where that is known."""
    chosen: dict[str, None] = {}
    for name in wanted:
        other = ",".join(reversed(name.split(",")))
        chosen[other if name not in known and (other in known or other in chosen) else name] = None
    return list(chosen)


def nearest(word: str, known: Iterable[str]) -> str:
    """One sentence naming the known names that are like `word`, or the first of all."""
    names = list(dict.fromkeys(known))
    return suggest(word.strip("*."), names, f"known: {first_few(names, _SHOWN)}")


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
