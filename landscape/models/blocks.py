"""Blocks of parameters and pairs of blocks, as users declare them by names and patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from landscape.errors import ArgumentError, suggest
from landscape.models.problem import joint
from landscape.models.rows import Shapes, named_rows, shared

Blocks = Mapping[str, str | Sequence[str]]
Pairs = Sequence[tuple[str, str]]


def declared(blocks: Blocks, pairs: Pairs) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Blocks as lists of patterns by name, and pairs of them. Raises ArgumentError for what is neither."""
    if not isinstance(blocks, Mapping):
        raise ArgumentError(
            f"blocks are {blocks!r}", 'name each: blocks={"embed": ["tok.weight"], "attn": ["*.attn.*"]}'
        )
    found = {}
    for block, patterns in blocks.items():
        words = [patterns] if isinstance(patterns, str) else _listed(patterns)
        if words is None or not all(isinstance(word, str) and word.isprintable() for word in (block, *words)):
            raise ArgumentError(f"block {block!r}: {patterns!r}", "name a block and its patterns by printable strings")
        if not block or {"/", " ", ","} & set(block) or block in (".", ".."):
            raise ArgumentError(f"a block cannot be named {block!r}", "leave out spaces, commas and slashes")
        if block == "all":
            raise ArgumentError("block 'all' is every parameter", "choose another name, or leave it out")
        found[block] = words
    couples = []
    every = _listed(pairs)
    for pair in [pairs] if every is None else every:
        names = _listed(pair)
        if names is None or len(names) != 2 or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"pair {pair!r} is not two blocks", 'name two blocks, such as ("embed", "attn")')
        if (couple := (names[0], names[1])) in couples:
            raise ArgumentError(f"pair {joint(couple)} stands twice", "name each once")
        couples.append(couple)
    return found, couples


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
    found: dict[str, None] = {}
    for pattern in patterns:
        # A name may itself read like a pattern.
        rows = pattern if pattern in shapes else named_rows(pattern, shapes, {})
        matching = [rows] if rows else fnmatch.filter(shapes, pattern)
        if not matching:
            raise ArgumentError(f"block {block!r}: {pattern!r} matches no parameter", suggest(pattern, shapes))
        for name in matching:
            if name not in found and (twice := shared(list(found), [name], shapes)):
                raise ArgumentError(f"block {block!r} holds {twice} twice", "name each row once")
            found[name] = None
    if not found:
        raise ArgumentError(f"block {block!r} names no parameter", "give it at least one name or pattern")
    return tuple(found)


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
