"""Blocks of parameters and pairs of blocks: as users name and declare them, and as code handles them."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from landscape.errors import ArgumentError, ConfigError, suggest
from landscape.models.problem import Problem, joint, shapes_of
from landscape.models.rows import Shapes, located, named_rows, rows_in, shared
from landscape.text import first_few

Blocks = Mapping[str, str | Sequence[str]]
Pairs = Sequence[tuple[str, str]]
_SHOWN = 8
"""Names that a hint lists."""


class Block:
    """The entries of whole parameters that a block of the Hessian holds.

    name, members: as users know them; parameters: those concerned, whole, in the block's order; owners, sizes: the
    parameter and the number of entries by member; size: entries of the block; total: entries of the whole parameters;
    positions (size,): where the block's rows lie among the rows of these, None if it holds all of them in this order.
    """

    def __init__(self, name: str, members: Sequence[str], shapes: Shapes) -> None:
        self.name, self.members = name, tuple(members)
        places = [located(member, shapes) for member in members]
        self.owners = [parameter for parameter, _ in places]
        self.parameters = tuple(dict.fromkeys(self.owners))
        size = {name: torch.Size(shapes[name]).numel() for name in self.parameters}
        first, total = {}, 0
        for name in self.parameters:
            first[name], total = total, total + size[name]
        pieces = []
        for name, rows in places:
            width = size[name] // max(rows_in(shapes[name]), 1)
            pieces.append(torch.arange(first[name] + rows.start * width, first[name] + rows.stop * width))
        self.sizes, self.total = [len(piece) for piece in pieces], total
        self.size = sum(self.sizes)
        positions = torch.cat(pieces)
        self.positions = None if torch.equal(positions, torch.arange(total)) else positions

    def of(self, whole: Tensor) -> Tensor:
        """The block's rows of a tensor (row of the whole parameters, ...)."""
        return whole if self.positions is None else whole[self.positions.to(whole.device)]

    def flat(self, named: Mapping[str, Tensor]) -> Tensor:
        """The block's entries of tensors by parameter, (size,)."""
        return self.of(torch.cat([named[name].reshape(-1) for name in self.parameters]))

    def within(self, vectors: Tensor) -> Tensor:
        """Vectors (size, m) among the rows of the whole parameters, zero elsewhere."""
        if self.positions is None:
            return vectors
        return vectors.new_zeros(self.total, vectors.shape[1]).index_copy_(
            0, self.positions.to(vectors.device), vectors
        )


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two blocks whose coupling is measured, and the block that joins them."""

    first: Block
    second: Block
    joint: Block

    @property
    def name(self) -> str:
        """The name of the pair and of its joint block."""
        return self.joint.name

    @property
    def both(self) -> tuple[Block, Block]:
        """The two blocks."""
        return self.first, self.second


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
        sides = [_matching(problem, part, name) for part in parts]
        if common := shared(sides[0], sides[1], shapes) if len(parts) == 2 else "":
            raise ConfigError(
                f"block {name!r}: both sides hold {common}", "join blocks without a common parameter or row"
            )
        for part, its in zip(parts, sides, strict=True):
            members.setdefault(part, its)
        if len(parts) == 2:
            members[name] = (*sides[0], *sides[1])
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
    """One sentence naming the known names that are like `word`, or the first of all, as --blocks takes them."""
    names = list(dict.fromkeys(known))
    return suggest(word.strip("*."), names, f"known: {first_few(names, _SHOWN, ' ')}")


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
    matches = tuple(fnmatch.filter(problem.parameters, pattern))
    if not matches:
        where = "" if pattern == block else f": {pattern!r} is no block or parameter"
        hint = nearest(pattern, [*problem.blocks, *problem.parameters])
        raise ConfigError(f"{problem.name} has no block {block!r}{where}", hint)
    return matches


def declared(blocks: Blocks, pairs: Pairs) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Blocks as lists of patterns by name, and pairs of them. Raises ArgumentError for what is neither."""
    if not isinstance(blocks, Mapping):
        raise ArgumentError(
            f"blocks are {blocks!r}", 'name each: blocks={"embed": ["tok.weight"], "attn": ["*.attn.*"]}'
        )
    patterns_of = {}
    for block, patterns in blocks.items():
        words = [patterns] if isinstance(patterns, str) else _listed(patterns)
        if words is None or not all(isinstance(word, str) and word.isprintable() for word in (block, *words)):
            raise ArgumentError(f"block {block!r}: {patterns!r}", "name a block and its patterns by printable strings")
        if not block or {"/", " ", ","} & set(block) or block in (".", ".."):
            raise ArgumentError(f"a block cannot be named {block!r}", "leave out spaces, commas and slashes")
        if block == "all":
            raise ArgumentError("block 'all' is every parameter", "choose another name, or leave it out")
        patterns_of[block] = words
    couples = []
    every = _listed(pairs)
    for pair in [pairs] if every is None else every:
        names = _listed(pair)
        if names is None or len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"pair {pair!r} is not two blocks", 'name two blocks, such as ("embed", "attn")')
        if (couple := (names[0], names[1])) in couples:
            raise ArgumentError(f"pair {joint(couple)} stands twice", "name each once")
        couples.append(couple)
    return patterns_of, couples


def named_blocks(blocks: Blocks, pairs: Pairs, shapes: Shapes) -> dict[str, tuple[str, ...]]:
    """The members of declared blocks, and of the joint block of each pair. Raises ArgumentError."""
    patterns, couples = declared(blocks, pairs)
    named = {block: resolved(block, words, shapes) for block, words in patterns.items()}
    for block, members in named.items():
        if block in shapes and members != (block,):
            raise ArgumentError(f"block {block!r} has the name of a parameter, and holds others", "rename the block")
    for pair in couples:
        named[joint(pair)] = _both(pair, named, shapes)
    return named


def resolved(block: str, patterns: Iterable[str], shapes: Shapes) -> tuple[str, ...]:
    """The parameters, or rows of one, that a block's patterns match, each once, in the order of the patterns."""
    members: dict[str, None] = {}
    for pattern in patterns:
        # A name may itself read like a pattern.
        rows = pattern if pattern in shapes else named_rows(pattern, shapes, {})
        matching = [rows] if rows else fnmatch.filter(shapes, pattern)
        if not matching:
            raise ArgumentError(f"block {block!r}: {pattern!r} matches no parameter", suggest(pattern, shapes))
        for name in matching:
            if name not in members and (twice := shared(list(members), [name], shapes)):
                raise ArgumentError(f"block {block!r} holds {twice} twice", "name each row once")
            members[name] = None
    if not members:
        raise ArgumentError(f"block {block!r} names no parameter", "give it at least one name or pattern")
    return tuple(members)


def _listed(values: Any) -> list[Any] | None:
    """A sequence or other ordered iterable as a list; None for what has no order or is a string."""
    ordered = isinstance(values, Iterable) and not isinstance(values, str | bytes | set | frozenset | Mapping)
    return list(values) if ordered else None


def _both(pair: tuple[str, str], blocks: Mapping[str, tuple[str, ...]], shapes: Shapes) -> tuple[str, ...]:
    for block in pair:
        if block not in blocks:
            hint = suggest(block, blocks) if blocks else "declare the blocks of a pair: blocks={...}"
            raise ArgumentError(f"pair {joint(pair)}: no block {block!r}", hint)
    first, second = (blocks[block] for block in pair)
    if common := shared(first, second, shapes):
        raise ArgumentError(f"pair {joint(pair)}: both blocks hold {common}", "pair blocks without a common one")
    return (*first, *second)
