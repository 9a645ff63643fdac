"""Small sweeps: their definitions, their command lines and what they leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from landscape.workers import Workers, _attempt

SIZES = {"p": 7, "tokens": 2, "embed_dim": 4, "hidden": 8, "batch_size": 16, "train_fraction": 0.6, "device": "cpu"}
SHORT = {**SIZES, "steps": 20, "stop_test_accuracy": None, "metrics_every": 10, "checkpoint_every": 10}
LONG: dict[str, Any] = {
    "name": "long",
    "train": {**SHORT, "steps": 1500, "checkpoint_every": 20, "dtype": "float64"},
    "cases": {"base": {}, "wide": {"hidden": 12}},
    "grid": {"lr_ratio": [1, 0.5], "bias": [True]},
    "seeds": [0, 3],
    "hessian": [
        {"steps": "0,20,1500", "blocks": ["E", "E,W"], "device": "cpu"},
        {"name": "end", "steps": "1500", "blocks": ["all"], "device": "cpu", "cases": ["wide"], "seeds": [3]},
    ],
}


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    """A sweep's JSON file."""
    path = folder / "sweep.json"
    path.write_text(json.dumps(sweep))
    return path


def arguments(folder: Path, sweep: dict[str, Any], *more: str) -> list[str]:
    return ["sweep", "--config", str(written(folder, sweep)), "--out", str(folder), "--quiet", "--jobs", "2", *more]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Here(Workers):
    """Calls in this process: two workers take longer to start than all else that a small sweep does."""

    def _answers(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for i, call in enumerate(calls):
            yield *_attempt(function, call), i, call


def wait_for(condition: Callable[[], bool]) -> None:
    """A test that waits in vain ends by pytest's own limit, with a traceback."""
    while not condition():
        time.sleep(0.01)
