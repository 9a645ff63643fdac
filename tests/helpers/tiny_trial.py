"""Studies of the trial, of networks that memorise and grok in no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from landscape.cli import main as cli

STUDIES = Path(__file__).parents[2] / "studies"
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
    "pace": {"curvature"},
    "rare": {"full"},
    "sampling": {"base"},
    "tables": {"l2", "nuclear"},
}
"""Cases that the primary tests read, by study; of a grid only these values."""
OWN = {
    "constants": {"embed_dim": 4, "hidden": 32, "steps": 200},
    "curvature": {"init_scale_E": 2.0, "steps": 200},
    "tables": {"steps": 340},
}
"""Narrow, since the blocks of four tokens would take most of the time; long enough for a nuclear norm to grok."""
GRIDS = {"sampling": {"sampler": ["uniform", "skewed"], "batch_size": [64, 512]}}


def shortened(study: Mapping[str, Any], cases: Collection[str]) -> dict[str, Any]:
    """A study of tiny networks, with some of its cases."""
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
        for analysis in study.get("hessian", ())
    ]
    grid = GRIDS.get(study["name"], study.get("grid", {}))
    train = {**study["train"], **TINY, "checkpoint_at": [], **OWN.get(study["name"], {})}
    return {**study, "train": train, "cases": own, "grid": grid, "seeds": SEEDS, "hessian": hessian}


def swept(definition: Mapping[str, Any], out: Path) -> Path:
    """The folder of a sweep with this definition below `out`; a search may not converge."""
    path = out.with_name(f"{out.name}-{definition['name']}.json")
    path.write_text(json.dumps(definition))
    assert cli.run(["sweep", str(path), "--out", str(out), "--quiet"]) in (0, 3)
    return out / str(definition["name"])


def make_scale(folder: Path) -> None:
    """The tiny runs and analyses of `quick` in a folder of that name."""
    for study, cases in READ.items():
        (path,) = (STUDIES / "quick").rglob(f"{study}.json")
        swept(shortened(json.loads(path.read_text()), cases), folder / "quick")


def run(main: Callable[[], object], *arguments: object) -> None:
    """The command line of a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["script", *map(str, arguments)])
        main()
