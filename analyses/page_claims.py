"""What the trial's page says of each claim: a sentence for each outcome, and the effect in units that people read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from exact import MOST_SEEDS
from markupsafe import Markup

Row = Mapping[str, Any]
"""A row of verdicts.csv."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """Sentences for a claim that holds, for one whose opposite holds, and the question while it is open."""

    holds: str
    opposite: str
    question: str
    measure: str
    """What the shown number is."""
    effect: Callable[[float], float] = math.exp
    """From x to the shown number, monotone."""
    form: str = "× {}"


CLAIMS = {
    "C1": Claim(
        "An embedding lengthens the wait between memorising and grokking.",
        "An embedding shortens the wait between memorising and grokking.",
        "Does an embedding lengthen the wait between memorising and grokking?",
        "delay with an embedding over delay with one-hot input, each at its chosen rate",
    ),
    "C2": Claim(
        "Rare tokens stay behind in small batches, which leave them out while they decay.",
        "At the compared step full batches leave rare tokens behind more than small ones.",
        "Do small batches leave rare tokens behind?",
        "rank correlation of a token's frequency and norm, batches of 64 minus full batches",
        lambda x: x,
        "{}",
    ),
    "C3": Claim(
        "Training pairs with uniform tokens grok before skewed ones.",
        "Training pairs with skewed tokens grok before uniform ones.",
        "Do uniform tokens grok before skewed ones?",
        "step of grokking, skewed over uniform",
    ),
    "C4": Claim(
        "On the plateau the coupling of E and W has deeper negative curvature than that of W and V.",
        "On the plateau the coupling of W and V has deeper negative curvature than that of E and W.",
        "Is the coupling of E and W the deepest on the plateau?",
        "λ_min(E,W) over λ_min(W,V)",
    ),
    "C5": Claim(
        "Adam-LR (c = 10) narrows the gap between the curvatures of W and E.",
        "Adam-LR (c = 10) widens the gap between the curvatures of W and E.",
        "Does Adam-LR (c = 10) narrow the gap between the curvatures of W and E?",
        "gap of the curvatures, c = 1 over c = 10",
    ),
    "C6": Claim(
        "Memorising goes with the fall of W's top eigenvalue, grokking with that of E's.",
        "Memorising goes with the fall of E's top eigenvalue, grokking with that of W's.",
        "Does memorising go with the fall of W's top eigenvalue, and grokking with that of E's?",
        "distance of the events from the falls, the other order over the claimed one",
    ),
    "C7": Claim(
        "On the plateau gradients follow Proposition 4.1 to a factor of two.",
        "On the plateau gradients miss Proposition 4.1 by more than a factor of two.",
        "Do gradients follow Proposition 4.1 to a factor of two on the plateau?",
        "factor by which the ratio of gradient norms misses the predicted one",
        lambda x: 2 * math.exp(-x),
    ),
    "C8": Claim(
        "Adam-LR (c = 10) groks sooner than equal rates.",
        "Adam-LR (c = 10) groks later than equal rates.",
        "Does Adam-LR (c = 10) grok sooner than equal rates?",
        "step of grokking, c = 1 over c = 10",
    ),
    "C9": Claim(
        "The frequency of tokens changes c by more than 5 % at the paper's batch size.",
        "The frequency of tokens changes c by less than 5 % at the paper's batch size.",
        "Does the frequency of tokens change c at the paper's batch size?",
        "f_W over f_E in the batches drawn",
        lambda x: 1.05 * math.exp(x),
    ),
    "O2": Claim(
        "A rate ratio from measured curvature groks sooner than c = 10.",
        "A rate ratio from measured curvature groks later than c = 10.",
        "Does a rate ratio from measured curvature grok sooner than c = 10?",
        "step of grokking, c = 10 over measured curvature",
    ),
    "O3": Claim(
        "Skewed tokens cost more time under more weight decay.",
        "Skewed tokens cost less time under more weight decay.",
        "Do skewed tokens cost more time under more weight decay?",
        "cost of skew at weight decay 0.002 over that at 0.0005",
    ),
    "D1": Claim(
        "The depth of E,W lies on the constant tokens op and =.",
        "Most of the depth of E,W is there without the constant tokens op and =.",
        "Does the depth of E,W lie on the constant tokens op and =?",
        "λ_min(E,W) over λ_min(E[operands],W)",
        lambda x: 2 * math.exp(x),
    ),
    "D2": Claim(
        "Tables without the coupling grok sooner with the embedding's regulariser than with L2.",
        "Tables without the coupling grok sooner with L2 than with the embedding's regulariser.",
        "Without the coupling, do tables grok sooner with the embedding's regulariser than with L2?",
        "step of grokking, tables with L2 over tables with a nuclear norm",
    ),
}
BEYOND = {
    "G1": Claim(
        "The main frequency of the embedding appears before 50 % test accuracy.",
        "The main frequency of the embedding appears after 50 % test accuracy.",
        "Does the main frequency of the embedding appear before 50 % test accuracy?",
        "step of 50 % test accuracy over that at which the main frequency appears",
    ),
    "T1": Claim(
        "In a Transformer without LayerNorm the coupling of E and the MLP is deeper than that within the MLP.",
        "In a Transformer without LayerNorm the coupling within the MLP is deeper than that of E and the MLP.",
        "In a Transformer without LayerNorm, is the coupling of E and the MLP deeper than that within the MLP?",
        "λ_min(E,mlp_in) over λ_min(mlp_in,mlp_out) at the plateau checkpoint",
    ),
    "G2": Claim(
        "In batches of 32, too, skewed tokens cost more time under more weight decay.",
        "In batches of 32 skewed tokens cost less time under more weight decay.",
        "In batches of 32, do skewed tokens cost more time under more weight decay?",
        CLAIMS["O3"].measure,
    ),
    "A1": Claim(
        "An embedding whose learning rate follows its edge of stability groks sooner than at equal rates.",
        "An embedding whose learning rate follows its edge of stability groks later than at equal rates.",
        "Does an embedding whose learning rate follows its edge of stability grok sooner than at equal rates?",
        "step of grokking, c = 1 over auto",
    ),
    "A2": Claim(
        "It takes at most 10 % longer than at the best c of a sweep.",
        "It takes more than 10 % longer than at the best c of a sweep.",
        "Does it take at most 10 % longer than at the best c of a sweep?",
        "step of grokking, auto over the best c",
        lambda x: 1.1 * math.exp(-x),
    ),
    "A3": Claim(
        "With other tasks, starts and weight decays, too, it groks sooner than at equal rates.",
        "With other tasks, starts and weight decays it groks later than at equal rates.",
        "With other tasks, starts and weight decays, does it grok sooner than at equal rates?",
        "step of grokking, c = 1 over auto, in the median of six settings",
    ),
    "A4": Claim(
        "There it takes at most 10 % longer than at the best c of a sweep.",
        "There it takes more than 10 % longer than at the best c of a sweep.",
        "Does it take at most 10 % longer there than at the best c of a sweep?",
        "step of grokking, auto over the best c, in the median of six settings",
        lambda x: 1.1 * math.exp(-x),
    ),
    "R1": Claim(
        "In trained MLPs weight decay, not rarity alone, leaves rare tokens with short embeddings.",
        "In trained MLPs norms follow frequency less with weight decay than without.",
        "In trained MLPs, does weight decay leave rare tokens with shorter embeddings than others?",
        "rank correlation of a token's frequency and norm at the last step, with weight decay minus without",
        lambda x: x,
        "{}",
    ),
    "R2": Claim(
        "In trained MLPs small batches leave rare tokens behind more than full ones.",
        "In trained MLPs small batches leave rare tokens behind less than full ones.",
        "In trained MLPs, do small batches leave rare tokens behind more than full ones?",
        "rank correlation of a token's frequency and norm at the last step, batches of 64 minus full batches",
        lambda x: x,
        "{}",
    ),
    "S1": Claim(
        "In batches of 64 frequency-aware sampling groks before random sampling.",
        "In batches of 64 random sampling groks before frequency-aware sampling.",
        "In batches of 64, does frequency-aware sampling grok before random sampling?",
        "step of grokking, random over frequency-aware",
    ),
    "S2": Claim(
        "At the learning rate 0.001 training pairs with uniform tokens grok before skewed ones.",
        "At the learning rate 0.001 training pairs with skewed tokens grok before uniform ones.",
        "At the learning rate 0.001, do uniform tokens grok before skewed ones?",
        CLAIMS["C3"].measure,
    ),
    **{
        name: Claim(
            f"Twice the initial scale of {part} makes a network grok later than half of it.",
            f"Twice the initial scale of {part} makes a network grok sooner than half of it.",
            f"Does twice the initial scale of {part} make a network grok later than half of it?",
            "step of grokking, twice over half",
        )
        for name, part in (("I1", "E"), ("I2", "W"))
    },
    "T2": CLAIMS["C8"],
    "T3": CLAIMS["C3"],
    "N1": Claim(
        "In natural text weight decay, not rarity alone, leaves rare words with short embeddings.",
        "In natural text weight decay makes the embeddings of rare words longer than those of frequent ones.",
        "In natural text, does weight decay leave rare words with short embeddings?",
        "rank correlation of a word's frequency and norm, with weight decay minus without",
        lambda x: x,
        "{}",
    ),
    "N2": Claim(
        "In natural text small batches, which leave rare words out, leave them behind.",
        "In natural text small batches leave rare words behind less than large ones.",
        "In natural text, do small batches leave rare words behind?",
        "rank correlation of a word's frequency and norm, batches of 64 minus batches of 512",
        lambda x: x,
        "{}",
    ),
    "N3": Claim(
        "In natural text c by Proposition 4.1 reaches a lower test loss within 800 steps than equal rates.",
        "In natural text equal rates reach a lower test loss within 800 steps than c by Proposition 4.1.",
        "In natural text, does c by Proposition 4.1 reach a lower test loss within 800 steps than equal rates?",
        "lowest test loss within 800 steps, c = 1 minus c by Proposition 4.1",
        lambda x: x,
        "{}",
    ),
    "N4": Claim(
        "In natural text, without constant tokens, the coupling of E and W is deeper than that of W and V.",
        "In natural text, without constant tokens, the coupling of W and V is deeper than that of E and W.",
        "In natural text, is the coupling of E and W deeper than that of W and V?",
        "λ_min(E,W) over λ_min(W,V) at step 100",
    ),
    "N5": Claim(
        "In a Transformer on natural text the coupling of E and the MLP is deeper than that within the MLP.",
        "In a Transformer on natural text the coupling within the MLP is deeper than that of E and the MLP.",
        "In a Transformer on natural text, is the coupling of E and the MLP deeper than that within the MLP?",
        "λ_min(E,mlp_in) over λ_min(mlp_in,mlp_out) at step 100",
    ),
    "N6": Claim(
        "In a Transformer on natural text Adam-LR (c = 10) reaches a lower test loss within 800 steps than equal "
        "rates.",
        "In a Transformer on natural text equal rates reach a lower test loss within 800 steps than Adam-LR (c = 10).",
        "In a Transformer on natural text, does Adam-LR (c = 10) reach a lower test loss within 800 steps than equal "
        "rates?",
        "lowest test loss within 800 steps, c = 1 minus c = 10",
        lambda x: x,
        "{}",
    ),
}
"""Those beyond the paper."""


def number(value: float) -> str:
    """A number of three digits; ∞ where something never came."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}".replace("-", "−")


def effect(name: str, row: Row) -> str:
    """The median effect with its interval, as read from a row."""
    claim = (CLAIMS | BEYOND)[name]
    middle, *ends = (claim.effect(float(row[column])) for column in ("median", "low", "high"))
    shown = claim.form.format(number(middle))
    if any(map(math.isnan, ends)):
        return shown
    return f"{shown} [{', '.join(number(end) for end in sorted(ends))}]"


def finding(name: str, row: Row) -> str:
    """The sentence that a verdict allows."""
    claim = (CLAIMS | BEYOND)[name]
    sentences = {"supported": claim.holds, "not supported": claim.opposite}
    return sentences.get(row["verdict"], f"Undecided: {claim.question}")


def said(name: str, row: Row, linked: Callable[[str], str]) -> Markup:
    """That sentence and, of an open question, how many seeds would decide.

    linked: what leads their number to the row behind it.
    """
    sentence = finding(name, row)
    if row["verdict"] != "undecided":
        return Markup(sentence)
    needed = row["seeds_to_decide"]
    more = f"{linked(str(MOST_SEEDS))} seeds like these would not decide."
    if not math.isnan(needed):
        more = f"About {linked(f'{needed:.0f}')} seeds like these would decide."
    return Markup(f"{sentence} {more}")


def headline(name: str, rows: Mapping[str, Row]) -> Markup:
    """The sentence of the largest scale that has a verdict; it names the scale unless all scales agree.

    rows: of verdicts.csv by scale, smallest first.
    """
    if not rows:
        return Markup(f"Pending: {CLAIMS[name].question}")
    scale, last = list(rows.items())[-1]
    agree = len({row["verdict"] for row in rows.values()}) == 1
    return Markup(finding(name, last) if agree else f"{capital(size(scale))}: {finding(name, last)}")


def size(scale: str) -> str:
    """Where a scale is named in a sentence: the preset `paper` is not the paper."""
    return "at the paper's size" if scale == "paper" else f"at {scale}"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def listed(parts: dict[str, Markup]) -> Markup:
    """Numbers by scale: `quick 1, mid 2, paper 3`."""
    return Markup(", ").join(Markup("{} {}").format(scale, text) for scale, text in parts.items())
