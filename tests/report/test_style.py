"""Blocks of one model look different from each other in every figure."""

from __future__ import annotations

import itertools

import pytest

from landscape.models.embedding_mlp import blocks as mlp
from landscape.models.transformer.blocks import DEFAULT_BLOCKS
from landscape.report.style import colour, marker


@pytest.mark.parametrize("blocks", [tuple(mlp.BLOCKS), DEFAULT_BLOCKS], ids=["embedding", "transformer"])
def test_blocks_differ_in_colour_and_marker(blocks: tuple[str, ...]) -> None:
    """No two have the same colour and marker, no two pairs the same colour, and no two single blocks either."""
    looks = [(colour(block), marker(block)["marker"]) for block in blocks]
    assert len(set(looks)) == len(blocks)
    pairs = [block for block in blocks if "," in block]
    for group in (pairs, [block for block in blocks if block not in (*pairs, "all")]):
        assert all(colour(a) != colour(b) for a, b in itertools.combinations(group, 2))
