"""The blocks and pairs of the embedding MLP, and their colours and markers in figures."""

from __future__ import annotations

BLOCKS: dict[str, tuple[str, ...]] = {
    "E": ("E",),
    "W": ("W",),
    "V": ("V",),
    "E,W": ("E", "W"),
    "W,V": ("W", "V"),
    "E,V": ("E", "V"),
    "all": ("E", "W", "b1", "V", "b2"),
}
PAIRS = (("E", "W"), ("W", "V"), ("E", "V"))
DEFAULT_BLOCKS = ("E", "W", "E,W", "W,V", "all")
PARTS: dict[str, tuple[str, ...]] = {"E": ("E",), "W": ("W",), "V": ("V",), "bias": ("b1", "b2")}
"""Parameters on which the mass of eigenvectors is reported."""
CLAIM, CONTROL = "E,W", "W,V"
"""The pair of the claims, and its control: both are products of two factors."""
BALANCED = ("E", "W")
"""The two factors whose learning rates Proposition 4.1 balances."""
RATE_RATIO = "lr_E/lr_W"
"""Label of the option `lr_ratio` in reports."""
LOOKS = {
    "E": (0, "o", 6.0),
    "W": (1, "x", 4.5),
    "V": (4, "P", 3.0),
    "E,W": (3, "s", 3.0),
    "W,V": (2, "^", 3.0),
    "E,V": (5, "v", 3.0),
    "all": (7, "D", 3.0),
    "E[operands]": (8, "d", 3.0),
    "E[operands],W": (9, "D", 3.0),
}
"""Palette colour, marker and marker size by block; the large circle of E leaves a coinciding W visible."""
