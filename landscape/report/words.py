"""Numbers as text for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd


def digits(value: float, form: str = ".3g") -> str:
    """A number with a true minus sign, and without a power of ten up to a million; a share where the form is "%"."""
    if form == "%":
        return percent(value)
    text = f"{value:{form}}"
    if "e+" in text and abs(value) < 1e6:
        text = f"{float(text):,.0f}"
    return text.replace("-", "−")


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """A number, or the median of several with the smallest and the largest; NaN is left out."""
    known = [float(value) for value in values if not pd.isna(value)]
    if not known:
        return "not measured"
    middle, low, high = (digits(value, form) for value in (float(np.median(known)), min(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"


def count(lower: Sequence[float], upper: Sequence[float]) -> str:
    """A count, or the bounds of one, of one run or of several."""
    low, high = (spread(values, ",.0f") for values in (lower, upper))
    return low if low == high else f"between {low} and {high}"


def tolerance(tau: float) -> str:
    """A relative tolerance to one digit, as 1e-8."""
    mantissa, _, power = f"{tau:.0e}".partition("e")
    return f"{mantissa}e{int(power)}"


def percent(share: float) -> str:
    """A share in per cent; a rounded one is never 0 % or 100 %."""
    rounded = f"{100 * share:.0f} %"
    if rounded == "0 %" and share > 0:
        return "< 1 %"
    return "> 99 %" if rounded == "100 %" and share < 1 else rounded


def median_step(steps: Sequence[int | None]) -> float:
    """The median of steps, in which never is latest; infinite where that is never."""
    known = sorted(math.inf if step is None else float(step) for step in steps)
    low, high = known[(len(known) - 1) // 2], known[len(known) // 2]
    return high if math.isinf(high) else (low + high) / 2


def median_step_text(steps: Sequence[int | None]) -> str:
    """The median of steps, with the first and the last one."""
    known = sorted(math.inf if step is None else step for step in steps)
    middle, first, last = (step_text(step) for step in (median_step(steps), known[0], known[-1]))
    return middle if first == last else f"{middle} ({first} to {last})"


def step_text(step: float | None) -> str:
    """A step, or never."""
    return "never" if step is None or math.isinf(step) else f"{step:,.0f}"
