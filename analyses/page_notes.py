"""What the verdicts of the trial's page do and do not show: a sentence a claim, from the rows behind it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from exact import ALPHA
from markupsafe import Markup
from page_again import AGAIN, again
from page_arms import step
from page_beside import PLAIN, middle, ratio, spread, times
from page_claims import listed, number, size
from page_links import Linked
from page_one_hot import NEVER_GROKKED, beside, to_half
from page_peaks import OPERANDS, Scales, first_step, peaks, peaks_of_operands, within_a_step
from page_sizes import DEPTHS, ratios
from page_tasks import left_open_by
from scale import ARMS, Setting, chosen, which

TOP = {**PLAIN, "analysis": "top-plateau", "block": "E"}
"""The rows with λ_max(W)/λ_max(E) on the plateau."""


@dataclasses.dataclass(frozen=True)
class Note:
    """A sentence on a claim, and at which scales its runs cannot test it."""

    text: Markup
    weak: tuple[str, ...] = ()
    more: Markup = Markup("")
    """What is folded below it."""


NOTES: dict[str, Callable[[Scales], Note | None]] = {}
"""By claim; None where the rows are missing or there is nothing to say."""


def note(claim: str) -> Callable[[Callable[[Scales], Note | None]], Callable[[Scales], Note | None]]:
    """Register what is said of a claim. Registration raises ValueError for a claim that has its note."""

    def register(of: Callable[[Scales], Note | None]) -> Callable[[Scales], Note | None]:
        if claim in NOTES:
            raise ValueError(f"the note on {claim!r} is registered twice")
        NOTES[claim] = of
        return of

    return register


def notes(scales: Scales) -> dict[str, Note]:
    """The notes on all claims that have one."""
    return {claim: found for claim, of in NOTES.items() if (found := of(scales))}


def untested(told: Mapping[str, Note], scales: Scales) -> dict[str, str]:
    """Where the runs behind a claim do not test it, in words, of the claims of which a note says so."""
    every = tuple(one.name for one in scales)
    return {
        claim: "at any size" if one.weak == every and len(every) > 1 else " and ".join(map(size, one.weak))
        for claim, one in told.items()
        if one.weak
    }


def shared(parts: dict[str, Markup]) -> Markup:
    """The same, once where all are equal."""
    texts = {text.striptags() for text in parts.values()}
    return next(iter(parts.values())) if len(texts) == 1 else listed(parts)


@note("C1")
def one_hot(scales: Scales) -> Note | None:
    last = scales[-1]
    of, over = (last.runs("delay", case=case) for case in ("embedding", "onehot"))
    if of.empty:
        return None
    known = {"study": "delay", "case": "onehot"}
    text = Markup("With one-hot input {} grok {}.{} To 50 % test accuracy an embedding's wait is {}.").format(
        last.link("runs", f"{over['grokked'].notna().sum()} of {len(over)}", **known),
        size(last.name),
        Markup(" No pilot did: its rate may not be its best.") if last.name in NEVER_GROKKED else "",
        to_half(last),
    )
    more = Markup("From the start it takes {} steps to 50 %, one-hot input {}.").format(
        last.link("runs", step(of["half"]), study="delay", case="embedding"),
        last.link("runs", step(over["half"]), **known),
    )
    return Note(left_open_by(scales, "C1") + text, more=more + beside(scales))


@note("C2")
def rare_tokens(scales: Scales) -> Note | None:
    """By the step at which norms are compared, how many runs have memorised, in batches of 64 and in full ones."""
    known = {"study": "sampling", "sampler": "skewed", "batch_size": "64"}
    every: dict[str, Setting] = {"small": known, "full": {"study": "rare", "case": "full"}}
    cells: dict[str, dict[str, Markup]] = {name: {} for name in ("step", *every)}
    weak = []
    for one in scales:
        of = {name: chosen(one.tables["runs"], **setting)["memorised"] for name, setting in every.items()}
        if any(memorised.empty for memorised in of.values()):
            continue
        at = one.rows("tokens", study="rare").groupby(level="seed")["step"].first()
        cells["step"][one.name] = one.link("tokens", step(at), study="rare")
        trained = {name: int((memorised <= at).sum()) for name, memorised in of.items()}
        for name, count in trained.items():
            cells[name][one.name] = one.link("runs", f"{count} of {len(of[name])}", **every[name])
        if 2 * trained["small"] <= len(at):
            weak.append(one.name)
    if not weak:
        return None
    words = (
        "By the compared step (medians {}) batches of 64 have memorised in {} seeds at each size, full batches in {}: "
        "untrained networks do not test the claim."
    )
    text = Markup(words).format(listed(cells["step"]), shared(cells["small"]), shared(cells["full"]))
    return Note(text + in_trained_ones(scales), tuple(weak))


def in_trained_ones(scales: Scales) -> Markup:
    """At which sizes R2, which asks C2 of trained networks, finds what the paper says; empty where it was not asked."""
    rows = {one.name: judged_beyond(one, "R2") for one in scales}
    if all(row is None for row in rows.values()):
        return Markup("")
    there = [one for one in scales if (row := rows[one.name]) is not None and row["verdict"] == "supported"]
    if not there:
        return Markup(" In trained ones R2 does not find it either.")
    texts = {one.name: one.link("beyond", number(rows[one.name]["median"]), claim="R2") for one in there}
    return Markup(" In trained ones small batches do leave them behind: {} (R2).").format(listed(texts))


def judged_beyond(scale: Linked, claim: str) -> pd.Series | None:
    """The row of a claim on fresh seeds; None where a scale does not have it."""
    table = scale.tables.get("beyond", pd.DataFrame(columns=["claim"]))
    rows = table[table["claim"] == claim]
    return rows.iloc[0] if len(rows) else None


@note("C3")
def batches(scales: Scales) -> Note | None:
    last = scales[-1]
    by_size = {
        batch: [last.runs("sampling", sampler=how, batch_size=batch) for how in ("skewed", "uniform")]
        for batch in ("64", "512")
    }
    small, large = by_size.values()
    if small[0].empty or any(runs["grokked"].notna().any() for runs in small):
        return None
    text = Markup("{} batches of 64 learn nothing, which halves x: in batches of 512 the effect is {}.").format(
        size(last.name).capitalize(),
        last.link("runs", ratio(*large), study="sampling", sampler="skewed", batch_size="512"),
    )
    if (row := judged_beyond(last, "S2")) is not None:
        effect = last.link("beyond", f"× {number(math.exp(row['median']))}", claim="S2")
        text += Markup(" At 0.001, the rate of the paper's sampling figure, it is {} ({}, S2).").format(
            effect, row["verdict"]
        )
    return Note(text, more=Markup("All others at a learning rate of {}.").format(f"{small[0]['lr'].iloc[0]:g}"))


@note("C4")
def couplings(scales: Scales) -> Note | None:
    whole, operands = DEPTHS
    found = {one.name: chosen(ratios(one.tables["runs"], one.tables["curvature"]), **PLAIN) for one in scales}
    last = scales[-1]
    rows = found[last.name]
    if rows.empty:
        return None
    # Of two tokens all rows are operands.
    blocks = {whole: "E,W", operands: "E[operands],W" if (rows["tokens"] > 2).all() else "E,W"}
    texts = [
        last.link("curvature", spread(rows[name].tolist()), **PLAIN, analysis="plateau", block=block)
        for name, block in blocks.items()
    ]
    end = "."
    if all((of[operands] < 1).all() for of in found.values()):
        end = Markup(": without the constant tokens it is the shallower one at every size, in every seed{}.").format(
            unless_wide(scales)
        )
    text = Markup("E,W over W,V: {}; with the operands' rows of E alone {}{}").format(*texts, end)
    return Note(left_open_by(scales, "C4") + text)


def unless_wide(scales: Scales) -> Markup:
    """Where a wider E alone makes E,W the deeper one without constant tokens: of the arms by d of two tokens."""
    found = Markup("")
    for one in scales:
        rows = ratios(one.tables["runs"], one.tables["curvature"])
        rows = rows[(rows["study"] == ARMS) & (rows["tokens"] == 2) & rows["case"].str.fullmatch(r"d\d+")]
        whole = rows.groupby("embed_dim")["E,W over W,V"]
        wide = [d for d, median in whole.median().items() if median > 1]
        if wide:
            known = {"study": ARMS, "case": f"d{wide[0]}", "block": "E,W"}
            texts = [f"{(whole.get_group(d) > 1).sum()} of {len(whole.get_group(d))} at d = {d}" for d in wide]
            found += Markup("; but at {} with a wider E the deeper one in {}").format(
                one.name, one.link("curvature", ", ".join(texts), **known)
            )
    return found


@note("C5")
def gap(scales: Scales) -> Note | None:
    by_scale = {one.name: chosen(one.tables["curvature"], **TOP) for one in scales}
    if any(rows.empty for rows in by_scale.values()):
        return None
    words = "The gap is |ln(λ_max(W)/λ_max(E))|, whichever is larger: W's is, under c = 1, {}."
    more = of_operands(scales) + gap_to_operands(scales)
    if all((rows["curvature_ratio"] > 1).all() for rows in by_scale.values()):
        return Note(Markup(words).format("in every seed at every size"), more=more)
    counts = {
        one.name: one.link("curvature", f"{(rows['curvature_ratio'] > 1).sum()} of {len(rows)}", **TOP)
        for one, rows in zip(scales, by_scale.values(), strict=True)
    }
    return Note(Markup(words).format(Markup("in these of the seeds: {}").format(listed(counts))), more=more)


def of_operands(scales: Scales) -> Markup:
    """λ_max of the operands' rows of E over that of E on the plateau, where both were analysed."""
    found: dict[str, Markup] = {}
    for one in scales:
        rows = chosen(one.tables["curvature"], **PLAIN, analysis="plateau")
        highest = rows.set_index("block", append=True)["highest"].unstack()
        if {"E", "E[operands]"} <= set(highest):
            share = (highest["E[operands]"] / highest["E"]).tolist()
            found[one.name] = one.link("curvature", spread(share), **PLAIN, analysis="plateau", block="E[operands]")
    text = Markup("λ_max of the operands' rows of E alone, over that of E, on the plateau: {}.")
    return text.format(listed(found)) if found else Markup("")


def gap_to_operands(scales: Scales) -> Markup:
    """C5 with the operands' rows in the place of E, where that was studied."""
    found: dict[str, Markup] = {}
    for one in scales:
        rows = which(one.tables["curvature"], study=OPERANDS, analysis="top-plateau")
        highest = rows.set_index(["case", "seed", "block"])["highest"].unstack()
        if len(rows):
            gap = np.log(highest["W"] / highest["E[operands]"]).abs()
            x = (gap["c1"] - gap["c10"]).dropna().tolist()
            found[one.name] = one.link("curvature", times(x), study=OPERANDS, analysis="top-plateau")
    text = Markup(
        " With these rows in the place of E, in runs of their own, the gap under c = 1 over that under c = 10: {}."
    )
    return text.format(listed(found)) if found else Markup("")


@note("C6")
def falls(scales: Scales) -> Note | None:
    """In how many seeds x is 0 by construction, and where the others could not have decided, whatever they were."""
    counts: dict[str, Markup] = {}
    least: dict[str, Markup] = {}
    for one in scales:
        highest = peaks(one)
        if highest.empty:
            continue
        blind = int((highest.max(axis=1) <= one.runs("curvature", case="c1")["memorised"]).sum())
        if not blind:
            continue
        counts[one.name] = one.link("runs", f"{blind} of {len(highest)}", **PLAIN)
        if (p := least_p(one, "C6")) >= ALPHA:
            least[one.name] = one.link("seeds", number(p), claim="C6")
    if not counts:
        return None
    text = Markup("Where both blocks peak before memorising, x is 0 whatever follows: in {} seeds.").format(
        listed(counts)
    )
    if least:
        text += Markup(" The others allow no p below {}.").format(listed(least))
    return Note(text, tuple(least), within_a_step(scales) + first_step(scales[-1]) + peaks_of_operands(scales))


def least_p(scale: Linked, claim: str) -> float:
    """The least p that a two-sided test over all signs can have with the x of a claim that are not 0."""
    moved = int((scale.rows("seeds", claim=claim)["x"] != 0).sum())
    return float(min(1.0, 2.0 ** (1 - moved)))


def curvature_off(scale: Linked) -> list[float]:
    """By seed, by which factor λ_max(W)/λ_max(E) on the plateau misses (σ_max(E)/σ_max(W))² at the nearest record."""
    found = []
    for seed, row in chosen(scale.tables["curvature"], **TOP).iterrows():
        records = scale.rows("metrics", **PLAIN).loc[[seed]]
        near = records.iloc[(records["step"] - row["step"]).abs().argmin()]
        found.append(math.exp(abs(math.log(row["curvature_ratio"] * (near.sigma_max_W / near.sigma_max_E) ** 2))))
    return found


def slopes(scale: Linked) -> list[float]:
    """By seed, of ln(|∇W|/|∇E|) over ln(σ_max(E)/σ_max(W)) on the plateau under c = 1; 1: proportional."""
    found = []
    for seed, run in scale.runs("curvature", case="c1").iterrows():
        records = scale.rows("metrics", **PLAIN).loc[[seed]]
        records = records[(records["step"] >= run["memorised"]) & ~(records["step"] > run["grokked"])]
        x = np.log(records["sigma_max_E"] / records["sigma_max_W"])
        y = np.log(records["grad_norm_W"] / records["grad_norm_E"])
        found.append(float(np.polyfit(x, y, 1)[0]))
    return found


def proportional(scales: Scales) -> dict[str, dict[str, Markup]]:
    """Both by scale, medians with intervals; empty without the curvatures."""
    found = {}
    for one in scales:
        if off := curvature_off(one):
            cells = {
                "slope": one.link("metrics", middle(slopes(one)), **PLAIN),
                "off": one.link("curvature", spread(off), **TOP),
            }
            found[one.name] = cells
    return found


@note("C7")
def balance(scales: Scales) -> Note | None:
    found = proportional(scales)
    if not found:
        return None
    last = scales[-1].name
    words = "In size, not in change: {}, the slope of one logarithm over the other is {}, 1 if proportional."
    off = listed({name: cells["off"] for name, cells in found.items()})
    more = Markup("The ratio of curvatures misses what it should be by {}.").format(off)
    return Note(Markup(words).format(size(last), found[last]["slope"]), more=more)


@note("C8")
def same_product(scales: Scales) -> Note | None:
    of: dict[str, str] = {"study": "pace", "case": "equal-c10"}
    found = {one.name: (one, chosen(one.tables["runs"], **of)) for one in scales}
    texts = {
        name: one.link("runs", ratio(rows, one.runs("curvature", case="c1")), **of)
        for name, (one, rows) in found.items()
        if len(rows)
    }
    if not texts:
        return None
    words = Markup("At the same product of both rates c = 10 takes, over c = 1: {}.")
    return Note(words.format(listed(texts)) + _turned(scales, "C8"))


@note("C9")
def of_the_batch(scales: Scales) -> Note | None:
    """That x is the same in every seed, to a thousandth, so that p says nothing, where it is at every size."""
    last = scales[-1]
    every = [one.rows("seeds", claim="C9")["x"] for one in scales]
    if any(x.max() - x.min() > 1e-3 for x in every):
        return None
    x = last.link("seeds", "the same in every seed", claim="C9")
    more = Markup("")
    known = {"study": "sampling", "sampler": "random", "batch_size": "64"}
    if len(small := last.runs(**known)):
        told = last.link("runs", spread((1 / small["f_E"]).tolist()), **known)
        more = Markup("In the smallest batches, in which tokens are absent, f_W/f_E is {} {}.").format(
            told, size(last.name)
        )
    return Note(Markup("Of the batch alone, {}.").format(x), more=more)


@note("O2")
def fragile(scales: Scales) -> Note | None:
    last, text = scales[-1], Markup("")
    table = last.tables["verdicts"]
    row = table[table["claim"] == "O2"].iloc[0]
    if row["verdict"] != "undecided" and row["low"] <= 0 <= row["high"]:
        p = last.link("verdicts", number(row["holm"]), claim="O2")
        text = Markup("Fragile: Holm's p is {}, and the interval includes 1.").format(p)
    text += _turned(scales, "O2")
    return Note(text) if text else None


def _turned(scales: Scales, claim: str) -> Markup:
    """What became of a verdict that another training of the same seeds turned; empty where none did."""
    text = Markup("")
    for one in scales:
        table = one.tables["verdicts"]
        first = table[table["claim"] == claim]["verdict"].iloc[0]
        if (second := again(one, claim)) and second["verdict"].striptags() != first:
            row = dict(one.tables[AGAIN].set_index("claim").loc[claim])
            open_ = second["verdict"].striptags() != "undecided" and row["low"] <= 0 <= row["high"]
            ends = ", though the interval includes 1" if open_ else ""
            text += Markup(" Trained again, {}: {}{}.").format(one.name, second["verdict"], ends)
    return text
