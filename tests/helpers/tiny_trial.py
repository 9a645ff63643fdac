"""The studies of the trial that its primary tests read, of networks that memorise and grok in no time."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from helpers.hessians import analyse, refine

from landscape.config import HessianConfig
from landscape.jobs.plan import DEFINITION, SweepConfig, SweepRun, load_sweep, sweep_runs
from landscape.training.ensemble import side_by_side
from landscape.training.loop import train_ensemble

STUDIES = Path(__file__).parents[2] / "studies"
PRODUCTS = 300
"""Of a search for a critical point, which these end before it finds one."""
TINY: dict[str, Any] = {
    "p": 23,
    "embed_dim": 8,
    "hidden": 32,
    "lr": 0.1,
    "train_fraction": 0.7,
    "test_fraction": 0.2,
    "steps": 160,
    "extra_steps": 10,
    "metrics_every": 10,
    "device": "cpu",
}
SEEDS = [100, 101]
READ = {
    "constants": {"four"},
    "curvature": {"c1", "c10"},
    "decay": {"base"},
    "delay": {"embedding", "onehot"},
    "film": {"base"},
    "pace": {"curvature"},
    "points": {"quadratic"},
    "rare": {"full"},
    "sampling": {"base"},
    "tables": {"l2", "nuclear"},
}
"""Cases that tests read, by study; of a grid only these values."""
OWN = {
    "constants": {"embed_dim": 4, "hidden": 32, "steps": 200},
    "curvature": {"init_scale_E": 2.0, "steps": 200},
    "film": {"embed_dim": 4, "hidden": 16, "steps": 20},
    "tables": {"steps": 340},
}
"""Narrow, since the blocks of four tokens would take most of the time; long enough for a nuclear norm to grok."""
GRIDS = {"sampling": {"sampler": ["uniform", "skewed"], "batch_size": [64, 512]}}


def shortened(study: dict[str, Any], cases: Collection[str]) -> dict[str, Any]:
    """A study of tiny networks, with some of its cases."""
    grid = GRIDS.get(study["name"], study.get("grid", {}))
    own = {
        case: {option: value for option, value in options.items() if option not in ("hidden", "embed_dim")}
        for case, options in study.get("cases", {"base": {}}).items()
        if case in cases
    }
    hessian = [
        {**analysis, "cases": [case for case in analysis.get("cases", own) if case in own], "device": "cpu"}
        | ({"seeds": SEEDS} if "seeds" in analysis else {})
        | {"probes": 2, "probe_steps": 5}
        | ({"num_steps": 5, "cases": list(own)[:1]} if "num_steps" in analysis else {})
        | ({"refine_from": 0} if "refine_from" in analysis else {})
        for analysis in study.get("hessian", ())
    ]
    train = {**study["train"], **TINY, "checkpoint_at": [], **OWN.get(study["name"], {})}
    return {**study, "train": train, "cases": own, "grid": grid, "seeds": SEEDS, "hessian": hessian}


def make_scale(folder: Path) -> None:
    """The tiny runs and analyses of `quick` in a folder of that name."""
    out = folder / "quick"
    planned: list[tuple[SweepConfig, SweepRun]] = []
    for study, cases in READ.items():
        (path,) = (STUDIES / "quick").rglob(f"{study}.json")
        whole = json.loads(path.read_text())
        planned += _planned(shortened(whole, cases), out)
    for group in side_by_side({run.path: run.config for _, run in planned}):
        train_ensemble(group, quiet=True)
    for sweep, run in planned:
        for analysis in sweep.analyses:
            start, settings, path = analysis.refine_from, analysis.settings, run.hessian.get(analysis.name)
            if path is None:
                continue
            if start is not None:
                refine(run.path, start, settings, out=path, max_products=PRODUCTS, quiet=True)
            elif isinstance(settings, HessianConfig):
                analyse(run.path, settings, out=path, quiet=True)


def linked_scale(scale: Path, out: Path) -> Path:
    """A scale of four tokens, whose study `curvature` has the runs of case `four` of another scale's `constants`."""
    constants = json.loads((scale / "constants" / DEFINITION).read_text())
    analyses = [{**analysis, "cases": ["c1"]} for analysis in constants["hessian"]]
    linked = {**constants, "name": "curvature", "cases": {"c1": {"tokens": 4}}, "hessian": analyses}
    for _, run in _planned(linked, out):
        for path in run.files:
            path.hardlink_to(scale / "constants" / path.name.replace("c1", "four"))
    return out


def _planned(definition: dict[str, Any], out: Path) -> list[tuple[SweepConfig, SweepRun]]:
    """The runs of a study, whose definition is written where `landscape sweep` writes it."""
    path = out / definition["name"] / DEFINITION
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(definition))
    sweep = load_sweep(path)
    return [(sweep, run) for run in sweep_runs(sweep, out)]
