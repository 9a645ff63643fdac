"""What was found, in four sentences with their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from landscape.problems.embedding_mlp.blocks import CLAIM, CONTROL
from landscape.report.figures.numbers import (
    STABLE,
    STABLE_FOR,
    Numbers,
    PairNumbers,
    asked_of_rates,
    digits,
    median_step,
    numbers,
    spread,
    step_text,
)
from landscape.report.figures.settings import settings
from landscape.report.figures.sources import Source
from landscape.storage.runs import GROKKED, MEMORISED


def findings(sources: Sequence[Source]) -> list[str]:
    """Four sentences: grokking, depth and index of pairs of blocks, coupling ratios, learning rates.

    Each says what was not measured, too. Of several runs they give medians with the smallest and the largest value.
    Points refined from checkpoints are told of after these, with their depths alone.
    """
    found = {source.label: numbers(source) for source in sources}
    refined = [found[source.label] for source in sources if source.is_refined]
    runs = [found[source.label] for source in sources if not source.is_refined]
    is_on_path = any(one.step is not None for one in runs)
    shown = runs if is_on_path else refined or runs
    depths = [_depths(shown, _ON_PATH if is_on_path else _REFINED)]
    if is_on_path and any(one.step is not None for one in refined):
        depths.append(_depths(refined, _REFINED))
    balance = _balance(list(found.values()))
    grokking = _grokking(sources, found)
    if with_gaps := [source for source in sources if source.gaps]:
        grokking += f" {with_gaps[0].label} has {with_gaps[0].gaps}"
        grokking += f", and so have {len(with_gaps) - 1:,} more." if len(with_gaps) > 1 else "."
    return [grokking, " ".join(depths), _couplings(shown), f"{balance}; {_sharpness(shown)}."]


def _grokking(sources: Sequence[Source], found: dict[str, Numbers]) -> str:
    told = {source.label: found[source.label] for source in sources}
    known = {label: one for label, one in told.items() if one.last_step is not None or one.diverged is not None}
    if not known:
        why = "no accuracies are recorded" if any(source.run for source in sources) else "the run file is not here"
        return f"Whether the network memorised and grokked is not known: {why}."
    runs = list(known.values())
    memorised, grokked = ([getattr(one, name) for one in runs] for name in ("memorised", "grokked"))
    limits = f"{100 * MEMORISED:.0f} % of the training set", f"{100 * GROKKED:.0f} % of the test set"
    if len(runs) == 1:
        (label, one), (train, test) = *known.items(), limits
        first = f"{label} memorised at step {step_text(one.memorised)} ({train})"
        if one.memorised is None:
            first = f"{label} did not memorise"
        ended = ""
        if one.diverged is not None:
            ended = f"diverged at step {one.diverged:,}, where its loss or a parameter is not finite"
        if one.grokked is not None:
            later = f", {one.grokked - one.memorised:,} steps later" if one.memorised is not None else ""
            then = f"; it {ended}" * bool(ended)
            return f"{first} and grokked at step {step_text(one.grokked)} ({test}){later}{then}."
        if ended:
            return f"{first} and {ended}."
        return f"{first} and did not grok by step {one.last_step:,}: its test accuracy is {one.test_accuracy:.3g}."
    parts = [
        f"{sum(step is not None for step in steps)} {verb}{_median(steps)}"
        for steps, verb in ((memorised, "memorised"), (grokked, "grokked"))
    ]
    said = f"Of {len(runs)} runs {' and '.join(parts)} ({limits[0]} and {limits[1]}; never counts as latest)"
    if diverged := [one.diverged for one in runs if one.diverged is not None]:
        said += f"; {len(diverged)} diverged, at step {spread(diverged, ',.0f')}"
    groups = settings([source for source in sources if source.label in known])
    if len(groups) > 1:
        each = [(group.label, [known[source.label].grokked for source in group.sources]) for group in groups[:_MOST]]
        said += "; median step of grokking: " + ", ".join(
            f"{step_text(median_step(steps))} with {name}" for name, steps in each
        )
        said += f", and so on in {len(groups)} settings" * (len(groups) > _MOST)
    return f"{said}."


def _median(steps: Sequence[int | None]) -> str:
    """The median of steps, if it is one."""
    middle = median_step(steps)
    return f", at step {step_text(middle)} in the median" if math.isfinite(middle) else ""


def _depths(found: Sequence[Numbers], several: str) -> str:
    analysed = [one for one in found if one.step is not None]
    if not analysed:
        return "No curvature was measured: `landscape hessian` measures depths and saddle indices."
    pairs = _pairs(analysed)
    if not pairs:
        return "No pair of blocks was measured, so nothing is known of the curvature that coupling adds."
    where = analysed[0].where if len(analysed) == 1 else several.format(len(analysed))
    # Of several analyses, some may lack a pair.
    of_them = {pair: f" in {len(ones)} of them" * (len(ones) < len(analysed)) for pair, ones in pairs.items()}
    told = [f"{_named(pair, pairs)}{of_them[pair]} {_depth(ones)}" for pair, ones in pairs.items()]
    return f"{where[0].upper()}{where[1:]}, {', and '.join(told)}."


def _depth(ones: Sequence[PairNumbers]) -> str:
    """How deep a pair is curved down, in how many directions, and how surely."""
    levels = " or ".join(dict.fromkeys(one.level for one in ones))
    sure = f"({levels}, τ {'at most ' * (len(ones) > 1)}{digits(max(one.tolerance for one in ones), '.2g')})"
    ends = [spread([getattr(one, end) for one in ones], ",.0f") for end in ("lower", "upper")]
    count = ends[0] if ends[0] == ends[1] else f"between {ends[0]} and {ends[1]}"
    if not any(one.depth for one in ones):
        found = " that was found" * any(one.is_depth_bound for one in ones)
        return f"has no negative curvature{found}, index {count} {sure}"
    at_least = "at least " * any(one.is_depth_bound for one in ones)
    directions = f"{count} direction{'s' * (count != '1')}"
    return f"is curved down {at_least}to {spread([-one.depth for one in ones])} in {directions} {sure}"


def _couplings(found: Sequence[Numbers]) -> str:
    known = {
        pair: ratios
        for pair, ones in _pairs(found).items()
        if (ratios := [one for one in ones if np.isfinite(one.kappa)])
    }
    if not known:
        return "No coupling ratio was measured: the joint block of a pair is needed, and no negative one in it."
    told = []
    for pair, ones in known.items():
        at_least = "at least " * any(one.is_kappa_bound for one in ones)
        counts = [one.above for one in ones if np.isfinite(one.above)]
        certified = f" (certified in {len(counts)} of {len(ones)})" * (len(counts) < len(ones))
        count = f"{spread(counts, ',.0f')} above 1{certified}" if counts else "an uncertified number above 1"
        told.append(f"{at_least}{spread([one.kappa for one in ones])} for {_named(pair, known)}, with {count}")
    return (
        f"The largest coupling ratio there is {', and '.join(told)}: each above 1 is a direction of negative curvature "
        "that neither block has alone."
    )


def _balance(found: Sequence[Numbers]) -> str:
    """What Proposition 4.1 asks for, beside what was in use."""
    known = [(one.prop41, one.prop41_steps, one.rates[1]) for one in found if one.prop41_steps]
    if not known:
        return "Proposition 4.1's ratio was not measured"
    ratios, steps, used = zip(*known, strict=True)
    return asked_of_rates(ratios, steps, used)


def _sharpness(found: Sequence[Numbers]) -> str:
    """The sharpness of the optimiser in use in units of its stable limit."""
    for name, limit in STABLE.items():
        if known := [one.sharpness[name] / limit for one in found if name in one.sharpness]:
            kind = "Adam's preconditioned sharpness" if name == "sharpness_adam" else "the sharpness λ_max·lr"
            return f"{kind} is {spread(known)} times {limit:.0f}, the stable limit of {STABLE_FOR[name]}"
    return "the sharpness was not measured"


def _named(pair: str, pairs: dict[str, list[PairNumbers]]) -> str:
    return f"its control {pair}" if pair == CONTROL and CLAIM in pairs else pair


def _pairs(found: Sequence[Numbers]) -> dict[str, list[PairNumbers]]:
    """The pair of the claims and its control; of a model without them, the two deepest pairs."""
    by_pair: dict[str, list[PairNumbers]] = {}
    for one in found:
        for pair, measured in one.pairs.items():
            by_pair.setdefault(pair, []).append(measured)
    if CLAIM in by_pair:
        return {pair: by_pair[pair] for pair in (CLAIM, CONTROL) if pair in by_pair}
    deepest = sorted(by_pair, key=lambda pair: -float(np.median([one.depth for one in by_pair[pair]])))
    return {pair: by_pair[pair] for pair in deepest[:2]}


_MOST = 6
"""Settings whose steps of grokking are said."""
_ON_PATH, _REFINED = "In {} analyses, each at its plateau or last step", "At {} points refined from checkpoints"
"""Where several analyses lie."""
