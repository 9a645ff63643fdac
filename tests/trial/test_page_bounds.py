"""What runs that never got there leave known of a ratio of steps."""

from __future__ import annotations

import page_bounds
import pandas as pd
import pytest


@pytest.mark.parametrize(
    ("of", "over", "told"),
    [
        # Seven never by 1,000: the median of the ratios is at least that of the sixth and fifth, 10 and 10.
        ([200.0] * 3 + [None] * 7, [100.0] * 10, "≥ 10 (7 of 10 never by 1,000)"),
        # Of one seed neither came: its ratio may be anything, so that it is the least.
        ([200.0] * 3 + [None] * 7, [100.0] * 9 + [None], "≥ 10 (7 of 10 never by 1,000)"),
        ([200.0] * 4 + [None] * 6, [100.0] * 9 + [None], f"≥ {20**0.5:.3g} (6 of 10 never by 1,000)"),
        ([100.0] * 10, [200.0] * 3 + [None] * 7, "≤ 0.1 (7 of 10 never by 1,000)"),
        # Six ratios are not known.
        ([None] * 10, [100.0] * 4 + [None] * 6, None),
        ([0.0] * 10, [None] * 10, None),
    ],
)
def test_runs_that_never_came_bound_a_ratio(of: list[float], over: list[float], told: str | None) -> None:
    runs = [pd.DataFrame({"grokked": pd.Series(steps, dtype=float), "watched": 1000}) for steps in (of, over)]
    assert page_bounds.bound(*runs, "grokked") == told
