"""How many random cases a test draws: a sample in `make test`, all in `make torture`."""

from __future__ import annotations

import os

import pytest

drawn = pytest.mark.drawn
"""Marks a test of random cases, which `make torture` runs with all of them."""


def draws(sample: int, every: int) -> int:
    """`every` where the environment has TORTURE, else `sample`."""
    return every if "TORTURE" in os.environ else sample
