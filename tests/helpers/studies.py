"""The studies of the claims with all their cases, of networks that train in no time and mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from landscape.analysis.critical import refine
from landscape.analysis.hessian import analyse
from landscape.config import HessianConfig
from landscape.sweep.plan import DEFINITION, SweepConfig, SweepRun, load_sweep, sweep_runs
from landscape.training.ensemble import side_by_side
from landscape.training.loop import train_ensemble

STUDIES = Path(__file__).parents[2] / "studies"
SMALL = {
    "p": 7,
    "tokens": 2,
    "embed_dim": 4,
    "hidden": 8,
    "train_fraction": 0.6,
    "device": "cpu",
    "lr": 0.1,
    "steps": 20,
    "extra_steps": 0,
    "metrics_every": 5,
}
SEEDS = [0, 1]
NAMED = {
    "sampler": ["uniform", "random", "skewed", "zipf"],
    "batch_size": [32, 128, 512, "full"],
    "lr_ratio": [1.0, 10.0],
}
"""Grid values that scripts name; of other grids the two ends."""
PRODUCTS = 300
"""Of a search for a critical point, which these end before they find one."""


def shortened(study: dict[str, Any]) -> dict[str, Any]:
    """A study with small networks, two seeds and a few points of its grid."""
    grid = study.get("grid", {})
    few = {name: NAMED.get(name, [values[0], values[-1]]) for name, values in grid.items()}
    moved = _moved(study)
    options = {"batch_size": 16, **study["train"], **SMALL, "checkpoint_every": 0, "checkpoint_log": 2}
    options["checkpoint_at"] = list(moved.values())
    # An eighth of the preset's width.
    cases = {
        case: {name: value // 8 if name == "hidden" else value for name, value in own.items()}
        for case, own in study.get("cases", {"base": {}}).items()
    }
    return {
        **study,
        "train": {name: value for name, value in options.items() if name not in grid},
        "cases": cases,
        "grid": few,
        "seeds": SEEDS,
        "hessian": [_quick(analysis, moved) for analysis in study.get("hessian", ())],
    }


def _named(analysis: dict[str, Any]) -> list[int]:
    """The steps that an analysis names."""
    steps = str(analysis.get("steps", analysis.get("refine_from", "")))
    return [int(step) for step in steps.split(",") if step]


def _moved(study: dict[str, Any]) -> dict[int, int]:
    """For each step that an analysis names one of the short run, in the same order."""
    named = sorted({step for analysis in study.get("hessian", ()) for step in _named(analysis)})
    return {step: SMALL["steps"] * i // max(len(named) - 1, 1) for i, step in enumerate(named)}


def _quick(analysis: dict[str, Any], moved: dict[int, int]) -> dict[str, Any]:
    """Few steps, and one seed of cases that stand beside others."""
    both = "seeds" not in analysis and analysis.get("num_steps", 30) > 20
    steps = [moved[step] for step in _named(analysis)]
    if "refine_from" in analysis:
        quick = {"refine_from": steps[0]}
    elif steps:
        quick = {"steps": ",".join(map(str, steps))}
    else:
        quick = {"num_steps": 4 if both else 2}
    return {**analysis, **quick, "seeds": SEEDS if both else SEEDS[:1], "device": "cpu"}


def make_studies(folder: Path) -> None:
    """What `landscape sweep` makes of all shortened studies, without the start of its workers."""
    planned: list[tuple[SweepConfig, SweepRun]] = []
    for path in sorted(STUDIES.glob("*.json")):
        definition = folder / path.stem / DEFINITION
        definition.parent.mkdir()
        definition.write_text(json.dumps(shortened(json.loads(path.read_text()))))
        sweep = load_sweep(definition)
        planned += [(sweep, run) for run in sweep_runs(sweep, folder)]
    for group in side_by_side({run.path: run.config for _, run in planned}):
        train_ensemble(group, quiet=True)
    for sweep, run in planned:
        analyses = {analysis.name: analysis for analysis in sweep.analyses}
        for name, path in run.hessian.items():
            start, settings = analyses[name].refine_from, analyses[name].settings
            if isinstance(settings, HessianConfig):
                analyse(run.path, settings, out=path, quiet=True)
            elif start is not None:
                refine(run.path, start, settings, out=path, max_products=PRODUCTS, quiet=True)
