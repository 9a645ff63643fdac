"""What the trial's page says of networks without an embedding beside C1: one-hot input, and numbers as scalars."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from page_arms import step
from page_beside import ratio, spread
from page_claims import size
from page_links import Linked

NEVER_GROKKED = ("paper",)
"""Scales at which no pilot with one-hot input grokked, as studies/PROTOCOL.md says."""
LEAST_DECAY = 0.0002
"""Of the grid from which the one-hot networks' was chosen."""


def waits_until_half(scale: Linked) -> list[float]:
    """By seed, from memorising to 50 % test accuracy: the wait with an embedding over that with one-hot input."""
    of, over = (scale.runs("delay", case=case) for case in ("embedding", "onehot"))
    if of.empty:
        return []
    return ((of["half"] - of["memorised"]) / (over["half"] - over["memorised"])).dropna().tolist()


def to_half(scale: Linked) -> Markup | None:
    """The median of these, with its interval."""
    found = waits_until_half(scale)
    return scale.link("runs", spread(found), study="delay", case="embedding") if found else None


def other_start(scale: Linked) -> Markup:
    """C1 against the tables of D2, where they are one-hot networks with the same weight decay; else nothing."""
    l2, over = scale.runs("tables", case="l2"), scale.runs("delay", case="onehot")
    settings = ["hidden", "weight_decay"]
    if l2.empty or (l2[settings].iloc[0] != over[settings].iloc[0]).any():
        return Markup("")
    known = {"study": "tables", "case": "l2"}
    words = (
        " The tables of D2 under L2 are the same network under the same weight decay, started from E W_kᵀ and at a "
        "learning rate of {} instead of {}: {} grok, {} steps after memorising, and over them an embedding's delay is "
        "{}."
    )
    return Markup(words).format(
        f"{l2['lr'].iloc[0]:g}",
        f"{over['lr'].iloc[0]:g}",
        scale.link("runs", f"{l2['grokked'].notna().sum()} of {len(l2)}", **known),
        scale.link("runs", step(l2["delay"]), **known),
        scale.link("runs", ratio(scale.runs("delay", case="embedding"), l2, "delay"), **known),
    )


def chosen_by_pilots(scales: Sequence[Linked]) -> Markup:
    """That weight decays of one-hot networks are the least of their grid, and which arms are wider than their scale."""
    text = Markup("")
    if all((one.runs("delay", case="onehot")["weight_decay"] == LEAST_DECAY).all() for one in scales):
        text += Markup(" The weight decay of one-hot input, {}, is the least of its grid at every size.").format(
            f"{LEAST_DECAY:g}"
        )
    for one in scales:
        wide = one.runs("delay", case="embedding")["hidden"]
        if len(wide) and (wide != one.runs("curvature", case="c1")["hidden"].iloc[0]).any():
            text += Markup(" Both networks have h = {} {}.").format(wide.iloc[0], size(one.name))
    return text


def scalars(scales: Sequence[Linked]) -> Markup:
    """How many networks memorised that read the numbers themselves, the paper's without an embedding; else nothing."""
    runs = [one.runs("delay", case="scalar")["memorised"] for one in scales]
    if any(memorised.empty for memorised in runs):
        return Markup("")
    there, every = sum(memorised.notna().sum() for memorised in runs), sum(map(len, runs))
    found = scales[-1].link("runs", f"{there} of {every}", study="delay", case="scalar")
    return Markup(
        " Of the paper's networks without an embedding, which read the numbers as scalars, {} memorise in the steps "
        "watched, all sizes together."
    ).format(found)


def beside(scales: Sequence[Linked]) -> Markup:
    """All of it, of sizes from the smallest, but the wait to 50 %."""
    return other_start(scales[-1]) + chosen_by_pilots(scales) + scalars(scales)
