"""The colours and markers of a Transformer's blocks in figures."""

from __future__ import annotations

LOOKS = {
    "P": (6, "s", 3.0),
    "Q": (1, "^", 3.0),
    "K": (3, "v", 3.0),
    "O": (5, "<", 3.0),
    "mlp_in": (2, ">", 3.0),
    "mlp_out": (9, "p", 3.0),
    "U": (8, "D", 3.0),
    "E,Q,K": (0, "*", 4.0),
    "Q,K": (3, "s", 3.0),
    "V,O": (4, "h", 3.5),
    "mlp_in,mlp_out": (2, "X", 3.5),
    "E,U": (1, "d", 3.5),
    "E,mlp_in": (9, "8", 3.5),
}
"""Palette colour, marker and marker size by block: one colour each for single blocks, and for pairs."""
