"""What the analysed steps know of the peaks of E's and W's top eigenvalues, which C6 is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from page_beside import PLAIN
from page_claims import listed, size
from page_links import Linked
from scale import Setting, chosen

Scales = Sequence[Linked]
"""Those with verdicts, smallest first."""
OPERANDS = "operands"
"""Study of the operands' rows of E where C5 and C6 are read."""


def peaks(scale: Linked, of: Setting = PLAIN) -> pd.DataFrame:
    """By seed, the analysed step after 0 at which λ_max of each block is highest under c = 1."""
    top = chosen(scale.tables["curvature"], **of, analysis="top").reset_index()
    top = top[top["step"] > 0].sort_values("highest")
    return top.groupby(["seed", "block"])["step"].last().unstack("block")


def within_a_step(scales: Scales) -> Markup:
    """In how many seeds the later peak is seen after memorising, but may lie before it, as the step before does."""
    found: dict[str, Markup] = {}
    for one in scales:
        steps = np.unique(chosen(one.tables["curvature"], **PLAIN, analysis="top")["step"])
        later = peaks(one).max(axis=1)
        memorised = one.runs("curvature", case="c1")["memorised"].reindex(later.index)
        before = pd.Series([steps[steps < at].max() for at in later], index=later.index, dtype=float)
        if count := int(((before < memorised) & (memorised < later)).sum()):
            found[one.name] = one.link("seeds", f"{count} of {len(later)}", claim="C6")
    text = Markup("In {} seeds a peak seen after memorising may lie before it, between two analysed steps. ")
    return text.format(listed(found)) if found else Markup("")


def peaks_of_operands(scales: Scales) -> Markup:
    """In how many seeds λ_max of the operands' rows is highest where that of E is, where that was studied."""
    found: dict[str, Markup] = {}
    for one in scales:
        highest = peaks(one, of := {"study": OPERANDS, "case": "c1"})
        if len(highest):
            same = f"{(highest['E'] == highest['E[operands]']).sum()} of {len(highest)}"
            found[one.name] = one.link("curvature", same, **of, analysis="top", block="E[operands]")
    text = Markup(" In runs of their own the operands' rows of E peak at the analysed step of E: {}.")
    return text.format(listed(found)) if found else Markup("")


def first_step(scale: Linked) -> Markup:
    """That λ_max of W is highest at Adam's first step, where it is in every seed; else nothing."""
    highest = peaks(scale)
    if highest.empty or (highest["W"] != 1).any():
        return Markup("")
    of = {**PLAIN, "analysis": "top", "block": "W"}
    first = scale.link("curvature", f"{(highest['W'] == 1).sum()} of {len(highest)}", **of)
    return Markup("W's peak is that of Adam's first step in {} {}.").format(first, size(scale.name))
