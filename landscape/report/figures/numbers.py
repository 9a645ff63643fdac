"""The key numbers of a run: when it memorised and grokked, and its curvature at one analysed step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from landscape.files.runs import GROK, MEMORISE
from landscape.files.schema import LEVELS
from landscape.models.embedding_mlp.blocks import BALANCED, CLAIM, CONTROL, RATE_RATIO
from landscape.report.figures.sources import Source

STABLE = {"sharpness_adam": 38.0, "sharpness_gd": 2.0}
"""Largest stable value of each sharpness (arXiv 2207.14484, 2103.00065)."""
STABLE_FOR = {
    "sharpness_adam": "full-batch Adam with β₁ = 0.9",
    "sharpness_gd": "full-batch gradient descent without momentum",
}
"""What these limits hold for: other β₁ and momenta have others."""

REFINED = "at the point refined"
"""How the place of a point begins that was refined from a checkpoint."""


@dataclasses.dataclass(frozen=True)
class PairNumbers:
    """A pair of blocks at one step. NaN: not measured."""

    depth: float
    """−λ_min of the joint block; 0 where it has no negative curvature."""
    is_depth_bound: bool
    """Whether the search did not converge, so that the depth is at least this."""
    lower: float
    upper: float
    """Bounds of the saddle index."""
    level: str
    tolerance: float
    kappa: float
    """The largest coupling ratio."""
    is_kappa_bound: bool
    """Whether nothing bounds its error, so that it is at least this."""
    above: float
    """Number of coupling ratios above 1."""


@dataclasses.dataclass(frozen=True)
class BlockNumbers:
    """The block of all parameters at one step, else that of the largest eigenvalue. NaN: not measured."""

    block: str
    step: int
    highest: float
    lowest: float
    are_bounds: bool
    """Whether one of both did not converge, so that there may be eigenvalues further out."""
    lower: float
    upper: float
    """Bounds of the saddle index."""
    level: str
    tolerance: float
    trace: float
    trace_error: float


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The key numbers of a source. None and NaN: not known."""

    last_step: int | None
    """The last step with recorded accuracies."""
    memorised: int | None
    grokked: int | None
    is_memorised_bound: bool
    is_grokked_bound: bool
    """Whether rows of metrics before it are missing, so that the event may be earlier, or have come after all."""
    test_accuracy: float
    recorded: dict[str, tuple[int, float]]
    """Accuracies and losses that another training loop recorded: the last step and value of each."""
    diverged: int | None
    """The first record whose loss or parameters are not finite."""
    step: int | None
    """The analysed step of the numbers below."""
    where: str
    """Where this step lies: on the plateau, at the end or at a refined point."""
    block: BlockNumbers | None
    first_block: BlockNumbers | None
    """The same block at the first analysed step, if that is an earlier one."""
    pairs: dict[str, PairNumbers]
    """Pairs whose joint block was analysed: the claim's first, then its control, else in the order of the file."""
    prop41: tuple[float, float]
    """Proposition 4.1's ratio of learning rates at the first and the last row that knows it."""
    prop41_steps: tuple[int, int] | None
    """The steps of these rows."""
    rates: tuple[float, float]
    """The ratio of learning rates in use at these rows."""
    sharpness: dict[str, float]
    """Sharpness by kind, where it is known."""


def numbers(source: Source) -> Numbers:
    """The key numbers of one source."""
    memorised, grokked = source.event(*MEMORISE), source.event(*GROK)
    is_trained = not source.is_recorded and "test_accuracy" in source.metrics
    last, accuracy = source.last(["test_accuracy"] * is_trained).get("test_accuracy", (None, math.nan))
    losses = [str(name) for name in source.metrics.data_vars if "loss" in str(name).lower()]
    step, where = chosen_step(source, memorised, grokked, last)
    block = _block(source, step) if step is not None else None
    first = int(source.measured["step"][0]) if block else 0
    sharpness = {name: _at(source, name, step) for name in STABLE}
    prop41, asked_at, rates = _balance(source)
    return Numbers(
        last_step=last,
        memorised=memorised,
        grokked=grokked,
        is_memorised_bound=source.may_be_earlier(memorised),
        is_grokked_bound=source.may_be_earlier(grokked),
        test_accuracy=accuracy,
        recorded=source.last([*source.accuracies, *losses]) if source.is_recorded else {},
        diverged=source.diverged,
        step=step,
        where=where,
        block=block,
        first_block=_block(source, first, block.block) if block and first < block.step else None,
        pairs=_pairs(source, step) if step is not None else {},
        prop41=prop41,
        prop41_steps=asked_at,
        rates=rates,
        sharpness={name: value for name, value in sharpness.items() if math.isfinite(value)},
    )


def chosen_step(source: Source, memorised: int | None, grokked: int | None, last: int | None) -> tuple[int | None, str]:
    """The analysed step nearest to the middle of the plateau, on a log scale, or the last one; and where it lies."""
    steps = source.measured["step"].values.astype(int).tolist() if "step" in source.measured else []
    if not steps:
        return None, ""
    if source.is_refined:
        return steps[-1], f"{REFINED} from step {steps[-1]:,}"
    if not memorised:
        return steps[-1], f"at the last analysed step, {steps[-1]:,}"
    end = max(memorised, grokked or last or steps[-1])
    step = min(steps, key=lambda found: abs(found - math.sqrt(memorised * end)))
    if memorised <= step <= end:
        return step, f"on the plateau, at step {step:,}"
    return step, f"at step {step:,}, of those analysed the nearest to the plateau"


def place(found: Sequence[Numbers]) -> str:
    """Where these numbers were measured."""
    if len(found) == 1:
        return found[0].where
    if all(one.where.startswith(REFINED) for one in found):
        return f"at {len(found)} points refined from checkpoints"
    end = "plateau or last step" if any(one.memorised for one in found) else "last step"
    return f"in {len(found)} analyses, each at its {end}"


def claimed(pairs: Iterable[str]) -> list[str]:
    """These pairs, the one of the claims and its control first."""
    return sorted(pairs, key=lambda pair: {CLAIM: 0, CONTROL: 1}.get(pair, 2))


def _pairs(source: Source, step: int) -> dict[str, PairNumbers]:
    at = source.measured.sel(step=step)
    blocks = source.blocks()
    found = {}
    for pair in claimed(str(p) for p in at["pair"].values) if "pair" in at else ():
        if pair not in blocks:
            continue
        block, coupling = at.sel(block=pair), at.sel(pair=pair)
        lowest = float(block["eigenvalues"].sel(end="lowest", rank=0))
        is_curved_down = bool(is_negative(lowest, float(block["operator_norm"])))
        kappa, error = (float(coupling[name][0]) for name in ("coupling_ratios", "coupling_ratio_error"))
        level = float(block["inertia_level"])
        found[pair] = PairNumbers(
            depth=-lowest if is_curved_down or math.isnan(lowest) else 0.0,
            is_depth_bound=not bool(block["converged"].sel(end="lowest", rank=0)),
            lower=float(block["inertia_lower"]),
            upper=float(block["inertia_upper"]),
            level=LEVELS[int(level)] if math.isfinite(level) else LEVELS[0],
            tolerance=float(block["inertia_tolerance"]),
            kappa=kappa,
            is_kappa_bound=math.isfinite(kappa) and math.isnan(error),
            above=float(coupling["coupling_index"]),
        )
    return {pair: one for pair, one in found.items() if math.isfinite(one.depth)}


def _block(source: Source, step: int, name: str = "") -> BlockNumbers | None:
    at = source.measured.sel(step=step)
    ends = at["eigenvalues"].sel(rank=0)
    known = {str(name): float(x) for name, x in zip(at["block"].values, ends.sel(end="highest").values, strict=True)}
    known = {name: x for name, x in known.items() if math.isfinite(x)}
    name = name or ("all" if "all" in known else max(known, key=known.__getitem__, default=""))
    if name not in known:
        return None
    block = at.sel(block=name)
    level = float(block["inertia_level"])
    return BlockNumbers(
        block=name,
        step=step,
        highest=known[name],
        lowest=float(ends.sel(block=name, end="lowest")),
        are_bounds=not bool(block["converged"].sel(rank=0).all()),
        lower=float(block["inertia_lower"]),
        upper=float(block["inertia_upper"]),
        level=LEVELS[int(level)] if math.isfinite(level) else LEVELS[0],
        tolerance=float(block["inertia_tolerance"]),
        trace=float(block["trace"]) if "trace" in block else math.nan,
        trace_error=float(block["trace_error"]) if "trace_error" in block else math.nan,
    )


def is_negative(lowest: Any, norm: Any) -> Any:
    """Where an eigenvalue is negative curvature, not the rounding noise of a semidefinite block of this norm."""
    return lowest < -1e-12 * norm


def _balance(source: Source) -> tuple[tuple[float, float], tuple[int, int] | None, tuple[float, float]]:
    """Proposition 4.1's ratio, the steps and the ratio in use at the first and the last row that knows the former."""
    data, rates = source.metrics, [f"lr_{name}" for name in BALANCED]
    is_there = {"prop41_ratio", *rates} <= set(data.variables)
    known = data.isel(metric_step=np.isfinite(data["prop41_ratio"].values)) if is_there else data
    if not (is_there and known["metric_step"].size):
        return (math.nan,) * 2, None, (math.nan,) * 2
    ratio, first, second = (known[name].values[[0, -1]].astype(float) for name in ("prop41_ratio", *rates))
    steps = known["metric_step"].values
    used = first / np.where(second == 0, np.nan, second)
    return (ratio[0], ratio[1]), (int(steps[0]), int(steps[-1])), (used[0], used[1])


def _at(source: Source, name: str, step: int | None) -> float:
    if step is None or name not in source.measured:
        return math.nan
    return float(source.measured[name].sel(step=step))


def median_step(steps: Sequence[int | None]) -> float:
    """The median of steps, in which never is latest; infinite where that is never."""
    found = sorted(math.inf if step is None else float(step) for step in steps)
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    return high if math.isinf(high) else (low + high) / 2


def step_text(step: float | None) -> str:
    """A step, or never."""
    return "never" if step is None or math.isinf(step) else f"{step:,.0f}"


def asked_of_rates(
    ratios: Sequence[tuple[float, float]],
    steps: Sequence[tuple[int, int]],
    used: Sequence[float],
    told: Callable[..., str] | None = None,
) -> str:
    """What Proposition 4.1 asks for at the first and last step of each run that knows it, beside what was in use."""
    ends = zip(zip(*ratios, strict=True), zip(*steps, strict=True), strict=True)
    told = told or spread
    # Once where every run knows it at one step alone.
    asked = " and ".join(dict.fromkeys(f"{told(values)} at step {told(at, ',.0f')}" for values, at in ends))
    # Where both rates are 0, they have no ratio.
    known = f"{told(used)} was in use" if np.isfinite(used).any() else "the ratio in use is not known"
    return f"Proposition 4.1 asks for {RATE_RATIO} = {asked}; {known}"


def spread(values: Sequence[float], form: str = ".3g") -> str:
    """A number, or the median of several with the smallest and the largest; NaN is left out."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "not measured"
    middle, low, high = (digits(value, form) for value in (float(np.median(known)), min(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"


def span(values: Sequence[float], form: str = ".3g") -> str:
    """A number, or the smallest and the largest of several, which have no median where they are of several settings."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "not measured"
    low, high = (digits(value, form) for value in (min(known), max(known)))
    return low if low == high else f"{low} to {high}"


def bracket(lower: float, upper: float) -> str:
    """A count, or its bounds."""
    if math.isnan(lower):
        return "not measured"
    return digits(lower, ".0f") if lower == upper else f"{digits(lower, '.0f')} to {digits(upper, '.0f')}"


def digits(value: float, form: str = ".3g") -> str:
    """A number with a true minus sign."""
    return f"{value:{form}}".replace("-", "−")


def percent(share: float) -> str:
    """A share in per cent; a rounded one is never 0 % or 100 %."""
    rounded = f"{100 * share:.0f} %"
    if rounded == "0 %" and share > 0:
        return "< 1 %"
    return "> 99 %" if rounded == "100 %" and share < 1 else rounded
