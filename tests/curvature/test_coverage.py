"""The 95 % intervals of all estimators hold the truth as often as they say, on 300 random matrices."""

from __future__ import annotations

import pytest

from benchmarks.coverage import FAMILIES, MATRICES, measured


@pytest.mark.long
@pytest.mark.slow
def test_intervals_cover_in_every_family() -> None:
    """60 matrices of each of five families: at least 93 % in each, less two standard errors of 60 trials."""
    shares = measured(MATRICES)
    assert list(shares) == [*FAMILIES]
    noise = 2 * (0.93 * 0.07 / MATRICES) ** 0.5
    assert not (shares < 0.93 - noise).to_numpy().any(), shares
    assert (shares.mean(axis=1) >= 0.94).all(), shares
