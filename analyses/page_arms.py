"""What the trial's page says of the experiment that takes the coupling out, arm by arm, and of the constant tokens."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
from exact import later, median_interval, share_interval
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_beside import PLAIN, Link, Setting, ratio
from page_claims import number
from page_figures import shares
from scale import chosen

from landscape.report.style import shades

OTHERS = ("#d55e00", "#949494", "#0173b2", "#cc78bc", "#029e73")


def four_tokens(runs: pd.DataFrame) -> Setting:
    """The setting of the runs with four tokens to which those without `op` and `=` are compared."""
    four = (chosen(runs, **PLAIN)["tokens"] == 4).all()
    return PLAIN if four else {"study": "constants", "case": "four"}


def arms(runs: pd.DataFrame) -> dict[str, Setting]:
    """The arms of the experiment in words, those of d by d."""
    cases = sorted(
        (case for case in runs.loc[runs["study"] == "tables", "case"].unique() if re.fullmatch(r"d\d+", case)),
        key=lambda case: int(case[1:]),
    )
    tables = {
        "b: tables, L2": "l2",
        "c: tables, nuclear norm": "nuclear",
        **{f"d: E and W, d = {case[1:]}": case for case in cases},
    }
    last = {"f: E frozen once memorised": "frozen", "g: balanced start": "balanced"}
    every = {
        "a: E and W, L2": four_tokens(runs),
        **{words: {"study": "tables", "case": case} for words, case in tables.items()},
        "e: op and = removed": {"study": "constants", "case": "two"},
        **{words: {"study": "tables", "case": case} for words, case in last.items()},
    }
    return {words: known for words, known in every.items() if len(chosen(runs, **known))}


def arm(runs: pd.DataFrame, known: Setting, link: Link) -> dict[str, Markup]:
    """How many runs of an arm grokked, of what share of all such runs that tells, and medians."""
    rows = chosen(runs, **known)
    there = int(rows["grokked"].notna().sum())
    low, high = share_interval(there, len(rows))
    found = {
        "grokked": f"{there} of {len(rows)}",
        "share": f"{low:.0%} to {high:.0%}",
        "step": step(rows["grokked"]),
        "delay": step(rows["delay"]),
        "rank": number(float(rows["effective_rank"].median())),
        "nuclear": number(float(rows["nuclear_norm"].median())),
    }
    return {name: link("runs", text, **known) for name, text in found.items()}


def step(steps: pd.Series) -> str:
    """The median of steps, in which never is latest."""
    found = steps.fillna(math.inf).median()
    return f"{found:,.0f}" if math.isfinite(found) else "∞"


def experiment(runs: pd.DataFrame, scale: str, link: Link) -> dict[str, Any]:
    """Every arm with its numbers, those that the text names, and who grokked when, in two figures."""
    every = arms(runs)
    rows = {words: arm(runs, known, link) for words, known in every.items()}
    by_d = [words for words in every if words.startswith("d:")]
    rest = [words for words in every if words not in by_d]
    figures = []
    for names, colours in ((by_d, map(to_hex, shades(len(by_d)))), (rest, OTHERS)):
        cases = {words: (chosen(runs, **every[words]), hue) for words, hue in zip(names, colours, strict=False)}
        if cases:
            told = "; ".join(f"{words}: {rows[words]['grokked'].striptags()}" for words in cases)
            figures.append(shares(cases, f"Share of runs that have grokked at {scale}. {told}"))
    ends = {"least": by_d[0], "most": by_d[-1]} if by_d else {}
    named = {name: {"d": words.rpartition(" ")[2], **rows[words]} for name, words in ends.items()}
    return {"rows": rows, "named": {words[0]: row for words, row in rows.items() if words not in by_d} | named} | {
        "figures": figures
    }


def constant_tokens(runs: pd.DataFrame, link: Link) -> dict[str, Any]:
    """What becomes of memorising, of the delay and of grokking without `op` and `=`, and with them in the bias.

    Ratios over paired seeds; `sooner` says of the folded ones what their interval of the step of grokking says.
    """
    four = chosen(runs, **four_tokens(runs))
    found: dict[str, Any] = {}
    for label, case in (("removed", "two"), ("folded", "folded")):
        known = {"study": "constants", "case": case}
        if len(rows := chosen(runs, **known)):
            texts = {name: ratio(rows[name], four[name]) for name in ("memorised", "delay", "grokked")}
            found[label] = {name: link("runs", text, **known) for name, text in texts.items()}
            seeds = rows.index.intersection(four.index)
            x = [later(float(rows["grokked"][seed]), float(four["grokked"][seed])) for seed in seeds]
            _, low, high = median_interval(x)
            found[label]["sooner"] = "sooner" if high < 0 else "later" if low > 0 else "neither sooner nor later"
    return found
