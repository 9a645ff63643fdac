"""The arms of the experiment that takes the coupling of E and W out."""

from __future__ import annotations

from claims import four_tokens
from tables import PLAIN, Scale, Setting, which


def arms(scale: Scale) -> dict[str, Setting]:
    """The arms in words, with the rows of runs.csv that they are; those of d by d."""
    runs = scale.tables["runs"]
    by_d = runs[runs["study"].isin(["tables", "narrow"]) & runs["case"].str.fullmatch(r"d\d+")]
    widths = sorted(by_d.groupby(["study", "case"]).groups, key=lambda of: int(of[1][1:]))
    two = four_tokens(scale) != PLAIN
    every: dict[str, Setting] = {
        "E and W, L2": PLAIN,
        "tables, L2": {"study": "tables", "case": "l2"},
        "tables, nuclear norm": {"study": "tables", "case": "nuclear"},
        **{f"E and W, d = {case[1:]}": {"study": study, "case": case} for study, case in widths},
        f"op and = {'added' if two else 'removed'}": {"study": "constants", "case": "four" if two else "two"},
        "E frozen after memorising": {"study": "tables", "case": "frozen"},
        "balanced start": {"study": "tables", "case": "balanced"},
    }
    return {words: known for words, known in every.items() if len(scale.runs(**known))}


def stopped(scale: Scale, known: Setting) -> Setting:
    """Runs of an arm that stop at grokking: the ordinary ones go on, those of the study `arms` stop."""
    other: Setting = {"study": "arms", "case": case_of(known)}
    return other if known == PLAIN and len(which(scale.tables["runs"], **other)) else known


def case_of(known: Setting) -> object:
    """The case of the study `arms` with the settings of an arm."""
    return "base" if known == PLAIN else known["case"]
