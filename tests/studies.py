"""The studies of the claims with all their cases, of networks that train in no time and mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from landscape.pipeline import analyse
from landscape.plan import DEFINITION, SweepConfig, SweepRun, load_sweep, sweep_runs
from landscape.training.ensemble import side_by_side
from landscape.training.trainer import train_ensemble

STUDIES = Path(__file__).parent.parent / "studies"
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


def shortened(study: dict[str, Any]) -> dict[str, Any]:
    """A study with small networks, two seeds and a few points of its grid."""
    grid = study.get("grid", {})
    few = {name: NAMED.get(name, [values[0], values[-1]]) for name, values in grid.items()}
    options = {"batch_size": 16, **study["train"], **SMALL, "checkpoint_every": 0, "checkpoint_log": 2}
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
        "hessian": [_quick(analysis) for analysis in study.get("hessian", ())],
    }


def _quick(analysis: dict[str, Any]) -> dict[str, Any]:
    """Few steps, and one seed of cases that stand beside others."""
    both = analysis["name"] == "blocks" or analysis["num_steps"] > 20
    return {**analysis, "seeds": SEEDS if both else SEEDS[:1], "num_steps": 4 if both else 2, "device": "cpu"}


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
        settings = {analysis.name: analysis.settings for analysis in sweep.analyses}
        for name, path in run.hessian.items():
            analyse(run.path, settings[name], out=path, quiet=True)
