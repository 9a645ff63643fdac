"""Cases of parametrized tests that `make test-fast` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*case: Any) -> Any:
    """A case that is marked slow."""
    return pytest.param(*case, marks=pytest.mark.slow)


def seeds(few: int, many: int) -> list[Any]:
    """So many seeds, of which the first few are not slow."""
    return [*range(few), *map(slow, range(few, many))]
