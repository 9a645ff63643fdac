"""What the trial's page says of the experiment that takes the coupling out, arm by arm, and of the constant tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from exact import median_interval, share_interval
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_beside import PLAIN, differences, ratio
from page_claims import number
from page_figures import curves, shares
from page_links import Link, Linked, setup
from scale import ARMS, Setting, chosen, which

from landscape.report.style import shades

TABLES, NARROW = "tables", "narrow"
"""The study of the experiment, and that of its least d at the larger scales."""
MOST_APART = 2
"""Times the lower bound of an index: with an upper bound beyond, the page calls it not determined."""
FOLLOWED = {"effective_rank": "Effective rank", "nuclear_norm": "Nuclear norm"}
"""Columns of ranks.csv that have a figure."""
STUDIES = Path(__file__).parents[1] / "studies"
OTHERS = ("#d55e00", "#949494", "#0173b2", "#cc78bc", "#029e73", "#ca9161")


def four_tokens(runs: pd.DataFrame) -> Setting:
    """The setting of the runs with four tokens to which those without `op` and `=` are compared."""
    four = (chosen(runs, **PLAIN)["tokens"] == 4).all()
    return PLAIN if four else {"study": "constants", "case": "four"}


def arms(runs: pd.DataFrame) -> dict[str, Setting]:
    """The arms of the experiment in words, those of d by d."""
    by_d = runs[runs["study"].isin([TABLES, NARROW]) & runs["case"].str.fullmatch(r"d\d+")]
    found = by_d[["study", "case"]].drop_duplicates().to_dict("records")
    tables = {"b: tables, L2": "l2", "c: tables, nuclear norm": "nuclear"}
    last = {"f: E frozen after memorising": "frozen", "g: balanced start": "balanced"}
    two = four_tokens(runs) != PLAIN
    every = {
        "a: E and W, L2": PLAIN,
        **{words: {"study": TABLES, "case": case} for words, case in tables.items()},
        **{f"d: E and W, d = {of['case'][1:]}": of for of in sorted(found, key=lambda of: int(of["case"][1:]))},
        f"e: op and = {'added' if two else 'removed'}": {"study": "constants", "case": "four" if two else "two"},
        **{words: {"study": TABLES, "case": case} for words, case in last.items()},
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
        "memorised": f"{rows['memorised'].notna().sum()} of {len(rows)}",
        "at": step(rows["memorised"]),
        "step": step(rows["grokked"]),
        "delay": step(rows["delay"]),
    }
    # The ordinary runs go on after grokking; those of `arms` with the same settings stop there, as all others do.
    stopped = {"study": ARMS, "case": case_of(known)} if known == PLAIN else known
    stopped = known if which(runs, **stopped).empty else stopped
    ends = chosen(runs, **stopped)[["effective_rank", "nuclear_norm"]].median()
    last = {"rank": number(float(ends["effective_rank"])), "nuclear": f"{ends['nuclear_norm']:,.0f}"}
    return {
        **{name: link("runs", text, **known) for name, text in found.items()},
        **{name: link("runs", text, **stopped) for name, text in last.items()},
    }


def case_of(known: Setting) -> str:
    """The case of the study `arms` with the settings of an arm."""
    return "base" if known == PLAIN else known["case"]


def inside(curvature: pd.DataFrame, known: Setting, link: Link) -> dict[str, Markup]:
    """The depth and the index of an arm's first block on the plateau, E,W or the tables alone, and the depth of W,V."""
    blocks = curvature[curvature["block"].isin(["E,W", "W", "W,V"])]
    where = {"study": ARMS, "case": case_of(known)}
    if which(blocks, **where).empty:
        where = {**known, "analysis": "plateau"}
    rows = which(blocks, **where)
    if rows.empty:
        return dict.fromkeys(("depth", "index", "control"), Markup("–"))
    control = rows[rows["block"] == "W,V"]
    # Where both others were analysed, E,W is the arm's.
    rows = rows[rows["block"] == min(rows["block"])]
    low, high = (float(rows[f"index_{end}"].median()) for end in ("lower", "upper"))
    count = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    told = {
        "depth": depth(rows),
        "index": count if high <= MOST_APART * low else "not determined",
    }
    of = {**where, "block": rows["block"].iloc[0]}
    found = {name: link("curvature", text, **of) for name, text in told.items()}
    found["control"] = link("curvature", depth(control), **{**where, "block": "W,V"}) if len(control) else Markup("–")
    return found


def depth(rows: pd.DataFrame) -> str:
    """The median of −λ_min over rows, 0 within rounding."""
    found = -float(rows["lowest"].median())
    return number(found) if found > 1e-12 else "0"


def below_the_grid(scale: Linked) -> list[dict[str, Markup | str]]:
    """What became of tables with L2 at each λ below the grid that D2's was chosen from, on the pilots' seeds."""
    study = f"l2-{scale.name}"
    found: list[dict[str, Markup | str]] = []
    for decay, rows in which(scale.tables["runs"], study=study).groupby("weight_decay"):
        grokked = rows["grokked"].dropna()
        cells = {
            "grokked": f"{len(grokked)} of {len(rows)}",
            "first": f"{grokked.min():,.0f}" if len(grokked) else "∞",
            "watched": f"{rows['watched'].max():,}",
            "best": f"{rows['best'].median():.0%}",
        }
        linked = {name: scale.link("runs", text, study=study, weight_decay=decay) for name, text in cells.items()}
        found.append({"scale": scale.name, "decay": f"{decay:f}".rstrip("0"), **linked})
    return found


def frozen_from(scale: str) -> int:
    """The step from which E is frozen in the arm of that name."""
    study = json.loads((STUDIES / scale / "tables.json").read_text(encoding="utf-8"))
    return int(study["cases"]["frozen"]["freeze_from"])


def step(steps: pd.Series) -> str:
    """The median of steps, in which never is latest."""
    found = steps.fillna(math.inf).median()
    return f"{found:,.0f}" if math.isfinite(found) else "∞"


def experiment(tables: Mapping[str, pd.DataFrame], scale: str, link: Link) -> dict[str, Any]:
    """Every arm with its numbers, those that the text names, and figures by words: who grokked when, ranks, norms."""
    runs, curvature = tables["runs"], tables["curvature"]
    every = arms(runs)
    rows = {words: arm(runs, known, link) | inside(curvature, known, link) for words, known in every.items()}
    by_d = [words for words in every if words.startswith("d:")]
    rest = [words for words in every if words not in by_d]
    figures = []
    for names, colours in ((by_d, [*map(to_hex, shades(len(by_d) + 2)[1:-1])]), (rest, OTHERS)):
        hues = dict(zip(names, colours, strict=False))
        if cases := {words: (chosen(runs, **every[words]), hue) for words, hue in hues.items()}:
            told = "; ".join(f"{words}: {rows[words]['grokked'].striptags()}" for words in cases)
            shown = "Share of runs that have grokked"
            drawn = setup(pd.concat([which(runs, **every[words]) for words in cases]))
            of = Markup("{}; {}.").format(drawn, link("runs", "runs.csv", **every[next(iter(cases))]))
            figures.append((f"{shown} (Kaplan–Meier)", shares(cases, f"{shown} at {scale}. {told}"), of))
        for quantity, title in FOLLOWED.items():
            each = {words: (followed(tables, every[words], quantity), hues[words]) for words in hues}
            if lines := {words: (found, hue) for words, (found, hue) in each.items() if found.size}:
                told = "; ".join(f"{words}: {found.iloc[-1]:.3g}" for words, (found, _) in lines.items())
                shown = f"{title} over steps, median of the seeds still in training"
                settings = {words: {"study": ARMS, "case": case_of(every[words])} for words in lines}
                of_arm = {words: which(runs, **known) for words, known in settings.items()}
                drawn = setup(pd.concat(of_arm.values()))
                of = Markup("{}; {}.").format(drawn, link("ranks", "ranks.csv", **next(iter(settings.values()))))
                shapes = {words: (found, of_arm[words], hue) for words, (found, hue) in lines.items()}
                figures.append((shown, curves(shapes, f"{shown}, at {scale}. Last: {told}"), of))
    groks = [words for words in by_d if chosen(runs, **every[words])["grokked"].notna().mean() > 1 / 2]
    ends = {"least": by_d[0], "low": groks[0], "most": by_d[-1]} if groks else {}
    named = {name: {"d": words.rpartition(" ")[2], **rows[words]} for name, words in ends.items()}
    for name, words in ends.items():
        of = chosen(runs, **every[words])
        waits = ratio(of, chosen(runs, **PLAIN), "delay")
        named[name] |= {
            "watched": link("runs", f"{of['watched'].max():,.0f}", **every[words]),
            "over": link("runs", waits, **every[words]) if waits else "–",
        }
    named |= {words[0]: row for words, row in rows.items() if words not in by_d}
    seen = analysed(curvature)
    l2_groks = bool(chosen(runs, study=TABLES, case="l2")["grokked"].notna().any())
    decays = {
        words: link("runs", f"{of['weight_decay'].iloc[0]:g}", **known)
        for words, known in {
            "under the nuclear norm": every.get("c: tables, nuclear norm"),
            "under L2": every.get("b: tables, L2"),
            "of E and W": every.get("a: E and W, L2"),
        }.items()
        if known and len(of := chosen(runs, **known))
    }
    found = {"rows": rows, "named": named, "figures": figures, "seen": seen, "l2_groks": l2_groks}
    return found | {"decays": decays}


def analysed(curvature: pd.DataFrame) -> str:
    """On how many seeds the blocks of the arms were analysed, of those that were; empty where none was."""
    counts = curvature[curvature["study"] == ARMS].groupby("case")["seed"].nunique()
    if counts.empty:
        return ""
    least, most = counts.min(), counts.max()
    return f"{least}{f' to {most}' if most > least else ''} seed{'s' if most > 1 else ''}"


def followed(tables: Mapping[str, pd.DataFrame], known: Setting, quantity: str) -> pd.Series:
    """The median of a column of ranks.csv of an arm by step; empty where it was not followed."""
    if "ranks" not in tables:
        return pd.Series(dtype=float)
    rows = tables["ranks"][tables["ranks"]["case"] == case_of(known)]
    return rows.groupby("step")[quantity].median()


def constant_tokens(runs: pd.DataFrame, link: Link) -> dict[str, Any]:
    """What becomes of memorising, of the delay and of grokking without `op` and `=`, and with them in the bias.

    Ratios over paired seeds; `sooner` says of the folded ones what their interval of the step of grokking says.
    """
    four = chosen(runs, **four_tokens(runs))
    found: dict[str, Any] = {}
    for label, case in (("removed", "two"), ("folded", "folded")):
        known = {"study": "constants", "case": case}
        if len(rows := chosen(runs, **known)):
            texts = {name: ratio(rows, four, name) for name in ("memorised", "delay", "grokked")}
            found[label] = {name: link("runs", text, **known) for name, text in texts.items()}
            _, low, high = median_interval(differences(rows, four))
            open_ = "neither clearly sooner nor later"
            found[label]["sooner"] = "sooner" if high < 0 else "later" if low > 0 else open_
    return found
