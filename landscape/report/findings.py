"""What was found, in sentences with their numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from landscape.files.runs import GROKKED, MEMORISED
from landscape.models.embedding_mlp.blocks import CLAIM, CONTROL
from landscape.report.figures.numbers import (
    STABLE,
    STABLE_FOR,
    BlockNumbers,
    Numbers,
    PairNumbers,
    asked_of_rates,
    digits,
    median_step,
    numbers,
    place,
    spread,
    step_text,
)
from landscape.report.figures.settings import by_setting, settings, spread_over
from landscape.report.figures.sources import Source


def findings(sources: Sequence[Source]) -> list[str]:
    """What was recorded and measured, a sentence a kind; what was not is not mentioned.

    Several runs of one setting have medians with the smallest and the largest value; settings are told of apart. Points
    refined from checkpoints are told of after these, with their depths alone.
    """
    found = {source.label: numbers(source) for source in sources}
    groups = settings(sources)
    is_ours = not any(source.is_recorded for source in sources)
    kinds: list[Callable[[Sequence[Numbers], Sequence[Numbers]], str]] = [
        _recorded,
        functools.partial(_depths, is_ours=is_ours),
        functools.partial(_couplings, is_ours=is_ours),
        _block,
        _balance,
        _sharpness,
    ]
    told = [_grokking([source for source in sources if not source.is_recorded], found)]
    for tell in kinds:
        text = by_setting(groups, lambda group, tell=tell: tell(*_apart(group, found)))  # type: ignore[misc]
        # A name of a setting stays as it is.
        told.append(f"{text[:1].upper()}{text[1:]}" if len(groups) == 1 else text)
    told += [_other_data(source) for source in sources]
    said = [f"{text.rstrip('.')}." for text in told if text]
    return said or ["Nothing is recorded but checkpoints: `landscape hessian` measures the curvature there."]


def _apart(group: Sequence[Source], found: Mapping[str, Numbers]) -> tuple[list[Numbers], list[Numbers]]:
    """The numbers of runs, and those of points refined from their checkpoints."""
    runs, refined = ([found[s.label] for s in group if s.is_refined == is_refined] for is_refined in (False, True))
    return runs, refined


def _other_data(source: Source) -> str:
    """How far the measured loss is from the one that the user's run recorded, where they differ."""
    if "recorded_loss" not in source.measured:
        return ""
    loss, recorded = (source.measured[name].values for name in ("train_loss", "recorded_loss"))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(loss - recorded) / np.abs(recorded)
    if not np.nanmax(share, initial=0) > _ALIKE:
        return ""
    at = int(np.nanargmax(share))
    return (
        f"The loss of the measured data is not the training loss that {source.label} recorded: {loss[at]:.4g} against "
        f"{recorded[at]:.4g} at step {int(source.measured['step'][at]):,}, a difference of {100 * share[at]:.2g} %"
    )


def _grokking(sources: Sequence[Source], found: Mapping[str, Numbers]) -> str:
    """When runs of `landscape train` memorised and grokked, and which lack rows of metrics."""
    told = {source.label: found[source.label] for source in sources}
    known = {label: one for label, one in told.items() if one.last_step is not None or one.diverged is not None}
    if not known:
        return ""
    said = _one_grokking(*known.popitem()) if len(known) == 1 else _several_grokking(sources, known)
    if with_gaps := [source for source in sources if source.gaps]:
        said += f". {with_gaps[0].label} has {with_gaps[0].gaps}"
        said += f", and so have {len(with_gaps) - 1:,} more" * (len(with_gaps) > 1)
    return said


def _one_grokking(label: str, one: Numbers) -> str:
    train, test = _LIMITS
    first = f"{label} memorised at step {step_text(one.memorised)} ({train})"
    if one.memorised is None:
        first = f"{label} did not memorise"
    ended = ""
    if one.diverged is not None:
        ended = f"diverged at step {one.diverged:,}, where its loss or a parameter is not finite"
    if one.grokked is not None:
        later = f", {one.grokked - one.memorised:,} steps later" if one.memorised is not None else ""
        then = f"; it {ended}" * bool(ended)
        return f"{first} and grokked at step {step_text(one.grokked)} ({test}){later}{then}"
    if ended:
        return f"{first} and {ended}"
    return f"{first} and did not grok by step {one.last_step:,}: its test accuracy is {one.test_accuracy:.3g}"


def _several_grokking(sources: Sequence[Source], known: Mapping[str, Numbers]) -> str:
    groups = settings([source for source in sources if source.label in known])
    runs, is_one = list(known.values()), len(groups) == 1
    parts = []
    for name, verb in (("memorised", "memorised"), ("grokked", "grokked")):
        steps = [getattr(one, name) for one in runs]
        parts.append(f"{sum(step is not None for step in steps)} {verb}{_median(steps) * is_one}")
    said = f"Of {len(runs)} runs {' and '.join(parts)} ({_LIMITS[0]} and {_LIMITS[1]}; never counts as latest)"
    if diverged := [one.diverged for one in runs if one.diverged is not None]:
        said += f"; {len(diverged)} diverged, at step {spread_over(sources)(diverged, ',.0f')}"
    if not is_one:
        medians = by_setting(groups, lambda group: step_text(median_step([known[s.label].grokked for s in group])))
        said += f"; median step of grokking: {medians}"
    return said


def _recorded(runs: Sequence[Numbers], refined: Sequence[Numbers]) -> str:
    """The last accuracies and losses that another training loop recorded."""
    by_step: dict[str, list[str]] = {}
    names = dict.fromkeys(name for one in runs for name in one.recorded)
    for name in [*names][:_METRICS]:
        steps, values = zip(*(one.recorded[name] for one in runs if name in one.recorded), strict=True)
        by_step.setdefault(spread(steps, ",.0f"), []).append(f"{name} {spread(values)}")
    told = [f"{', '.join(values)} at step {step}" for step, values in by_step.items()]
    return f"last recorded: {'; '.join(told)}" if told else ""


def _block(runs: Sequence[Numbers], refined: Sequence[Numbers]) -> str:
    """Extreme eigenvalues, saddle index and trace of the largest block."""
    shown = [one for one in runs if one.block] or [one for one in refined if one.block]
    told = []
    for name in dict.fromkeys(one.block.block for one in shown if one.block):
        blocks = [(one.first_block, one.block) for one in shown if one.block and one.block.block == name]
        first, ones = ([block for block in at if block] for at in zip(*blocks, strict=True))
        said = f"block {name} has {_ends(ones)}"
        if first:
            said += f"; at step {spread([one.step for one in first], ',.0f')} it had {_ends(first)}"
        told.append(said)
    return f"{place(shown)}, {'; '.join(told)}" if told else ""


def _ends(ones: Sequence[BlockNumbers]) -> str:
    """Extreme eigenvalues, saddle index and trace of a block."""
    said = []
    for name, sign in (("highest", "max"), ("lowest", "min")):
        least = ("at least " if sign == "max" else "at most ") * any(one.are_bounds for one in ones)
        said.append(f"λ_{sign} {least}{spread([getattr(one, name) for one in ones])}")
    if known := [one for one in ones if math.isfinite(one.lower)]:
        said.append(f"saddle index {_count(known)} {_sure(known)}")
    if known := [one for one in ones if math.isfinite(one.trace)]:
        error = f" ± {digits(known[0].trace_error, '.2g')}" * (len(known) == 1 and known[0].trace_error > 0)
        said.append(f"trace {spread([one.trace for one in known])}{error}")
    return f"{', '.join(said[:-1])} and {said[-1]}"


def _median(steps: Sequence[int | None]) -> str:
    """The median of steps, if it is one."""
    middle = median_step(steps)
    return f", at step {step_text(middle)} in the median" if math.isfinite(middle) else ""


def _depths(runs: Sequence[Numbers], refined: Sequence[Numbers], is_ours: bool = True) -> str:
    told = []
    for found in (runs, refined):
        analysed = [one for one in found if one.step is not None]
        if pairs := _pairs(analysed):
            # Of several analyses, some may lack a pair.
            some = {pair: f" in {len(ones)} of them" * (len(ones) < len(analysed)) for pair, ones in pairs.items()}
            of_pairs = [f"{_named(pair, pairs, is_ours)}{some[pair]} {_depth(ones)}" for pair, ones in pairs.items()]
            told.append(f"{place(analysed)}, {', and '.join(of_pairs)}")
    return "; ".join(told)


def _depth(ones: Sequence[PairNumbers]) -> str:
    """How deep a pair is curved down, in how many directions, and how surely."""
    count, sure = _count(ones), _sure(ones)
    if not any(one.depth for one in ones):
        found = " that was found" * any(one.is_depth_bound for one in ones)
        return f"has no negative curvature{found}, index {count} {sure}"
    at_least = "at least " * any(one.is_depth_bound for one in ones)
    directions = f"{count} direction{'s' * (count != '1')}"
    return f"is curved down {at_least}to {spread([-one.depth for one in ones])} in {directions} {sure}"


def _count(ones: Sequence[PairNumbers | BlockNumbers]) -> str:
    """Saddle indices."""
    lower, upper = (spread([getattr(one, end) for one in ones], ",.0f") for end in ("lower", "upper"))
    return lower if lower == upper else f"between {lower} and {upper}"


def _sure(ones: Sequence[PairNumbers | BlockNumbers]) -> str:
    """How saddle indices are known."""
    levels = " or ".join(dict.fromkeys(one.level for one in ones))
    return f"({levels}, τ {'at most ' * (len(ones) > 1)}{digits(max(one.tolerance for one in ones), '.2g')})"


def _couplings(runs: Sequence[Numbers], refined: Sequence[Numbers], is_ours: bool = True) -> str:
    known = {
        pair: ratios
        for pair, ones in _pairs(_shown(runs, refined)).items()
        if (ratios := [one for one in ones if np.isfinite(one.kappa)])
    }
    if not known:
        return ""
    told = []
    for pair, ones in known.items():
        at_least = "at least " * any(one.is_kappa_bound for one in ones)
        counts = [one.above for one in ones if np.isfinite(one.above)]
        certified = f" (certified in {len(counts)} of {len(ones)})" * (len(counts) < len(ones))
        count = f"{spread(counts, ',.0f')} above 1{certified}" if counts else "an uncertified number above 1"
        name = _named(pair, known, is_ours)
        told.append(f"{at_least}{spread([one.kappa for one in ones])} for {name}, with {count}")
    return (
        f"the largest coupling ratio there is {', and '.join(told)}: each above 1 is a direction of negative curvature "
        "that neither block has alone"
    )


def _balance(runs: Sequence[Numbers], refined: Sequence[Numbers]) -> str:
    """What Proposition 4.1 asks for, beside what was in use."""
    known = [(one.prop41, one.prop41_steps, one.rates[1]) for one in (*runs, *refined) if one.prop41_steps]
    if not known:
        return ""
    ratios, steps, used = zip(*known, strict=True)
    return asked_of_rates(ratios, steps, used)


def _sharpness(runs: Sequence[Numbers], refined: Sequence[Numbers]) -> str:
    """The sharpness of the optimiser in use in units of its stable limit."""
    for name, limit in STABLE.items():
        if known := [one.sharpness[name] / limit for one in _shown(runs, refined) if name in one.sharpness]:
            kind = "Adam's preconditioned sharpness" if name == "sharpness_adam" else "the sharpness λ_max·lr"
            return f"{kind} is {spread(known)} times {limit:.0f}, the stable limit of {STABLE_FOR[name]}"
    return ""


def _shown(runs: Sequence[Numbers], refined: Sequence[Numbers]) -> Sequence[Numbers]:
    """Those of runs, if any was analysed."""
    return runs if any(one.step is not None for one in runs) else refined or runs


def _named(pair: str, pairs: Mapping[str, list[PairNumbers]], is_ours: bool) -> str:
    return f"its control {pair}" if is_ours and pair == CONTROL and CLAIM in pairs else pair


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


_LIMITS = f"{100 * MEMORISED:.0f} % of the training set", f"{100 * GROKKED:.0f} % of the test set"
_METRICS = 6
"""Recorded metrics that are told of."""
_ALIKE = 0.01
"""Relative difference up to which the measured loss is the recorded one."""
