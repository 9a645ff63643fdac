"""Cases of parametrized tests that `make test-fast` or `make test` leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow(*case: Any) -> Any:
    """A case that is marked slow."""
    return pytest.param(*case, marks=pytest.mark.slow)


def cases(of: Iterable[Any], long: Collection[Any]) -> list[Any]:
    """Cases, of which some are marked long."""
    unlike = [(case if isinstance(case, tuple) else (case,), case in long) for case in of]
    return [pytest.param(*case, marks=[pytest.mark.long] * is_long) for case, is_long in unlike]


def seeds(few: int, many: int) -> list[Any]:
    """So many seeds, of which the first few are not slow."""
    return [*range(few), *map(slow, range(few, many))]
