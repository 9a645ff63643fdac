"""Tables of a scale as collect.py and primary.py write them, with numbers that are made up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import beyond
import pandas as pd
import primary
from page_claims import BEYOND
from scale import FILM, Scale

SEEDS = range(100, 110)
WIDTHS = {"d64": ("embed_dim", 64, 0.5), "h256": ("hidden", 256, 4.0), "p97": ("p", 97, 1.5)}
"""What a case of `sizes` changes, its value, and how much deeper E,W is."""
NETWORK = {"task": "add", "p": 59, "tokens": 3, "embed_dim": 16, "hidden": 64}
"""Columns of runs.csv that captions name."""
FREE = {"d64": 10, "h256": 2, "p97": 19}
"""Of an index of 20, how much a case of `gauge` has off the gauge; with `four`, 15."""
DEPTHS = {"E,W": -0.016, "E[operands],W": -0.0025, "W,V": -0.01, "E": 0.0, "W": 0.0}
"""λ_min on the plateau of seed 100; each further seed is 1 % deeper."""

DENSITY = {"width": 0.1, "density": 4.0, "standard_error": 1.0}
"""That of E,W at a step of the film, at any eigenvalue."""


def made(x: float) -> dict[int, float]:
    """x of each seed: this and a little more."""
    return {seed: x * (1 + (seed - SEEDS[0]) / 100) for seed in SEEDS}


def write_tables(folder: Path, x: Mapping[str, float], tokens: int) -> None:
    """The tables of a scale in which each claim has about this x, the same for every seed, or 0."""
    numbers = {name: made(x.get(name, 0.0)) for name in primary.TESTS}
    each = [{"claim": name, "seed": seed, "x": value} for name, by in numbers.items() for seed, value in by.items()]
    tables = {
        "verdicts": primary.judge(numbers, primary.TESTS),
        "seeds": pd.DataFrame(each),
        "tokens": pd.DataFrame({"token": [0]}),
    }
    sizes = [(study, case) for study in ("sizes", "gauge") for case in WIDTHS] if tokens == 2 else []
    points = [("points", case) for case in ("gelu", "relu")] if tokens == 2 else []
    cases = [
        *sizes,
        *points,
        *[("spikes", "float32"), ("spikes", "float64"), ("tasks", "c1"), ("tasks", "c10"), ("pace", "c4")],
        ("curvature", "c1"),
        ("arms", "base"),
        ("tables", "l2"),
        ("tables", "nuclear"),
        ("constants", "four"),
        ("constants", "two"),
        ("constants", "folded"),
        *[("tables", case) for case in ("d16", "d8", "frozen")],
    ]
    tables["runs"] = pd.DataFrame([_run(study, case, seed, tokens) for study, case in cases for seed in SEEDS])
    tables["runs"].loc[len(tables["runs"])] = _run(FILM, "base", SEEDS[0], tokens) | {"p": 59 if tokens == 2 else 97}
    four = ("curvature", "c1") if tokens == 4 else ("constants", "four")
    known = (20, 15) if tokens == 2 else ()
    rows = [_rows(*four, seed, "plateau", 400, DEPTHS, *known) for seed in SEEDS]
    if tokens == 2:
        rows += [_rows("curvature", "c1", seed, "plateau", 400, {"E,W": -0.012, "W,V": -0.01}, 12) for seed in SEEDS]
        for case, (_, _, deeper) in WIDTHS.items():
            own = {**DEPTHS, "E,W": DEPTHS["E,W"] * deeper}
            rows += [_rows("sizes", case, seed, "plateau", 400, own) for seed in SEEDS]
            rows += [_rows("gauge", case, seed, "plateau", 400, {"E,W": -1.0}, 20, FREE[case]) for seed in SEEDS]
        ends = {"gelu": "critical", "relu": "unfinished"}
        searches = [
            {"study": "points", "case": case, "seed": seed, "analysis": "end"} for case in ends for seed in SEEDS
        ]
        last = {"activation": lambda at: at["case"], "status": lambda at: at["case"].map(ends), "grad_norm": 1e-11}
        tables["points"] = pd.DataFrame(searches).assign(**last)
        rows += [
            _rows("points", case, seed, "end", 4000, {"E,W": -0.1, "W,V": -0.1}, 1) for case in ends for seed in SEEDS
        ]
    if tokens == 4:
        seeds = SEEDS[:5]
        rows += [_rows("arms", "base", seed, "plateau", 400, {"E,W": -0.02, "W,V": -0.01}) for seed in seeds]
        rows += [_rows("arms", "l2", seed, "plateau-tables", 400, {"W": 1e-29, "W,V": -0.01}, 0) for seed in seeds]
        wide = [
            {"study": "arms", "case": "base", "seed": s, "step": at}
            | {"effective_rank": s - at / 10, "nuclear_norm": 4 * s + at}
            for s in seeds
            for at in (100, 200)
        ]
        tables["ranks"] = pd.DataFrame(wide)
    # Over training, as multiples of those on the plateau.
    for step, times in {0: 0.1, 10: 2.0, 1000: 1.0}.items():
        pairs = {block: times * value for block, value in DEPTHS.items() if value}
        rows += [_rows(FILM, "base", SEEDS[0], "film", step, pairs)]
    of_step = {"study": FILM, "seed": SEEDS[0], "step": 10, "block": "E,W"}
    tables["densities"] = pd.DataFrame([{**of_step, **DENSITY, "eigenvalue": x} for x in (-0.1, 0.0, 0.1)])
    tables["curvature"] = pd.DataFrame(sum(rows, []))
    recorded = [{"step": 25 * i, "train_accuracy": min(1, i / 8), "test_accuracy": i / 40} for i in range(41)]
    of_film = [{"study": FILM, "seed": SEEDS[0], **row} for row in recorded]
    tables["metrics"] = pd.DataFrame([{"study": "curvature", "seed": SEEDS[0], **row} for row in recorded] + of_film)
    folder.mkdir()
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)


def judge_beyond(folder: Path) -> None:
    """The verdicts of claims that several scales have, from the other tables in a folder."""
    found = beyond.families(Scale(folder))
    assert found is not None
    for name, table in zip(("beyond", "beyond-seeds"), found, strict=True):
        table.to_csv(folder / f"{name}.csv", index=False)


def _run(study: str, case: str, seed: int, tokens: int) -> dict[str, object]:
    known = {"study": study, "case": case, "seed": seed, "file": f"{study}/{case}-s{seed}.h5", "sha256": "0" * 64}
    setting = {
        "task": "div" if study == "tasks" else "add",
        "spikes": float(case == "float32" and seed < 107),
        "activation": case if study == "points" else "relu",
        "sampler": "random",
        "batch_size": 512,
        "weight_decay": 0.001,
    }
    tokens = 2 if study == "curvature" and tokens == 2 else 4
    size = {"p": 59, "tokens": tokens, "embed_dim": 16, "hidden": 64, "prop41_constant": seed / 100}
    if case in WIDTHS:
        size[WIDTHS[case][0]] = WIDTHS[case][1]
        size["prop41_constant"] = seed / (200 if case == "p97" else 100)
    never = case in ("l2", "frozen") or (case == "d8" and seed > 102)
    grokked = None if never else (900 + seed) / (2 if case in ("c10", "c4", "folded") else 1)
    return {
        **known,
        **setting,
        **size,
        "memorised": 200,
        "grokked": grokked,
        "delay": None if grokked is None else grokked - 200,
        "watched": 6000,
        "effective_rank": seed / 10,
        "nuclear_norm": 4.0 * seed,
    }


def _rows(
    study: str,
    case: str,
    seed: int,
    analysis: str,
    step: int,
    lowest: Mapping[str, float],
    sure: int | None = None,
    free: int = 0,
) -> list[dict[str, object]]:
    deeper = 1 + (seed - SEEDS[0]) / 100
    known = {"study": study, "case": case, "task": "add", "seed": seed, "analysis": analysis, "step": step}
    level = "bracketed" if sure is None else "certified"
    off = {"index_gauge_free": None if sure is None else free}
    ends = (3, 9) if sure is None else (sure, sure)
    index = {**off, "index_level": level, "index": sure, "index_lower": ends[0], "index_upper": ends[1]}
    return [
        {
            **known,
            "block": block,
            "file": f"{study}/{case}-s{seed}.hessian.h5",
            "lowest": value * deeper,
            "highest": 0.3,
            **index,
            "kappa_1": 2.5,
        }
        | {"saddle_bound_constants": 0.016 * deeper * 1.001}
        for block, value in lowest.items()
    ]


def assert_told(html: str, report: str, tests: Collection[str], judgement: str) -> None:
    """The page and report.md say of each of these claims what its verdict, the same for all, makes of it."""
    for name in tests:
        claim = BEYOND[name]
        sentence = {"supported": claim.holds, "not supported": claim.opposite}.get(judgement, claim.question)
        assert sentence in html
        assert sentence in report
    assert html.count(f'<span class="badge {judgement.replace(" ", "-")}">{judgement}</span>') == len(tests)
