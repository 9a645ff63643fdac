"""What was measured, in sentences with their numbers: templates/findings.j2."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import jinja2
import numpy as np

from landscape.files.runs import GROKKED, MEMORISED
from landscape.models.embedding_mlp.blocks import CONTROL, RATE_RATIO
from landscape.report import words
from landscape.report.numbers import STABLE, BlockNumbers, CurveNumbers, Numbers, numbers
from landscape.report.sources import Source

_OfBlock = TypeVar("_OfBlock", BlockNumbers, CurveNumbers)
_METRICS = 6
"""Recorded metrics that are named."""
_NOTHING = "Nothing is recorded but checkpoints: `landscape hessian` measures the curvature there."


def findings(sources: Sequence[Source]) -> list[str]:
    """What was recorded and measured, a finding a line.

    Runs that differ in their seed alone have medians with the smallest and the largest value; settings, and points
    refined from checkpoints, are described one by one.
    """
    known = [(source, numbers(source)) for source in sources]
    labels = dict.fromkeys(source.setting for source in sources)
    groups = [_Group(label, [pair for pair in known if pair[0].setting == label]) for label in labels]
    shows_control = not any(source.is_recorded for source in sources)
    text = (
        templates()
        .get_template("findings.j2")
        .render(
            groups=groups,
            stable=STABLE,
            memorised=f"{MEMORISED:.0%}".replace("%", " %"),
            grokked=f"{GROKKED:.0%}".replace("%", " %"),
            rate_ratio=RATE_RATIO,
            is_control=lambda name: shows_control and name == CONTROL,
            count=lambda blocks: words.count([one.lower for one in blocks], [one.upper for one in blocks]),
            quoted=_quoted,
            spread=lambda values, form=".3g": words.spread(list(values), form),
            digits=words.digits,
            step=words.step_text,
            median_step=lambda steps: words.median_step_text(list(steps)),
        )
    )
    sentences = [" ".join(line.split()) for line in re.split(r"^\* ", text, flags=re.MULTILINE)[1:]]
    return sentences or [_NOTHING]


def templates(**options: object) -> jinja2.Environment:
    """The templates of this room."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("landscape.report"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        **options,  # type: ignore[arg-type]
    )


def _quoted(curves: Sequence[CurveNumbers]) -> str:
    """The index curve of a block in words, after its saddle index where that is known."""
    taus = sorted(curves[0].counts, reverse=True)
    counts = {words.tolerance(tau): _counted([curve.counts[tau] for curve in curves]) for tau in taus}
    start = f"the saddle index of {curves[0].block} is"
    if len({*counts.values()}) == 1:
        first, *_, last = counts
        return f"{start} {counts[first]} at every τ from {first} to {last} ‖H‖"
    parts = []
    for text, group in itertools.groupby(counts, key=counts.__getitem__):
        first, *others = group
        parts.append((text, f"{first} to {others[-1]}" if others else first))
    quoted = [f"{text} at {place}" for text, place in parts]
    bounds = [curve.index for curve in curves]
    if any(low != high for low, high in bounds):
        (text, place), *_ = parts
        return f"{start} {', '.join([f'{text} at τ = {place}', *quoted[1:]])} ‖H‖"
    own = words.tolerance(float(np.median([curve.tolerance for curve in curves])))
    return f"{start} {words.spread([low for low, _ in bounds], ',.0f')} at τ = {own} ‖H‖, and {', '.join(quoted)}"


def _counted(counts: Sequence[tuple[float, float, float]]) -> str:
    """A count of one run or of several; "about" where it is an estimate or the middle of its bounds."""
    lower, upper, best = zip(*counts, strict=True)
    return f"{'' if lower == upper else 'about '}{words.spread(best, ',.0f')}"


@dataclasses.dataclass
class _Group:
    """The runs of a setting."""

    label: str
    known: list[tuple[Source, Numbers]]

    def __post_init__(self) -> None:
        runs = [one for source, one in self.known if not source.is_refined]
        self.refined = [one for source, one in self.known if source.is_refined]
        self.trained = [
            one
            for source, one in self.known
            if not source.is_recorded
            and not source.is_refined
            and (one.last_step is not None or one.memorised is not None)
        ]
        self.recorded = [one for one in runs if one.recorded]
        self.analysed = [one for one in runs if one.step is not None]
        self.balanced = [one for one in runs if one.prop41_steps]
        ends = (
            f"{words.spread([one.prop41[end] for one in self.balanced])} at step "
            + words.spread([one.prop41_steps[end] for one in self.balanced if one.prop41_steps], ",.0f")
            for end in (0, -1)
        )
        # Once where every run knows it at one step alone.
        self.asked = list(dict.fromkeys(ends))
        self.used = words.spread([one.rates[1] for one in self.balanced])
        self.pairs = self._of(pair for one in self.analysed for pair in one.pairs.values())
        self.coupled = {
            name: known
            for name, ones in self.pairs.items()
            if (known := [one for one in ones if one.kappa == one.kappa])
        }
        self.blocks = self._of(one.block for one in self.analysed if one.block)
        self.curves: dict[str, list[CurveNumbers]] = self._of(curve for one in self.analysed for curve in one.curves)

    @property
    def where(self) -> str:
        if len(self.analysed) == 1:
            return self.analysed[0].where
        end = (
            "On the plateau or at the last step" if any(one.memorised for one in self.analysed) else "At the last step"
        )
        return f"{end} of {len(self.analysed)} analyses"

    def some(self, blocks: Sequence[BlockNumbers]) -> str:
        """Of several analyses, how many have this block; empty where all have."""
        return f" (in {len(blocks)} of {len(self.analysed)})" * (len(blocks) < len(self.analysed))

    def first(self, block: str) -> list[BlockNumbers]:
        """A block at the first analysed step of each run."""
        return [one.first_block for one in self.analysed if one.first_block and one.first_block.block == block]

    @property
    def last(self) -> list[tuple[str, list[int], list[float]]]:
        """The last steps and values of recorded metrics, by name."""
        names = dict.fromkeys(name for one in self.recorded for name in one.recorded)
        known = {name: [one.recorded[name] for one in self.recorded if name in one.recorded] for name in names}
        return [(name, [step for step, _ in ends], [value for _, value in ends]) for name, ends in known.items()][
            :_METRICS
        ]

    def sharp(self, kind: str) -> list[float]:
        """A sharpness in units of its stable limit."""
        return [one.sharpness[kind] / STABLE[kind] for one in self.analysed if kind in one.sharpness]

    @staticmethod
    def _of(blocks: Iterable[_OfBlock]) -> dict[str, list[_OfBlock]]:
        by_name: dict[str, list[_OfBlock]] = {}
        for block in blocks:
            by_name.setdefault(block.block, []).append(block)
        return by_name
