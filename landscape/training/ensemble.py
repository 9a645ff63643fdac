"""The runs of an ensemble, which differ in seeds and settings but not in shapes, and their groups."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from landscape.config import TrainConfig
from landscape.errors import ArgumentError, ConfigError, require_config
from landscape.files.files import as_path, require_name
from landscape.text import counted

VARIABLE = ("lr", "lr_E", "lr_ratio", "weight_decay", "init_scale_E", "init_scale_W")
MOST_MEMBERS = 16
"""Runs of one group; bounds memory, and the runs delayed by a failing member."""
MOST_RUNS = 256
"""Runs of one ensemble, whose files are all open at once."""


def ensemble(
    config: TrainConfig, out: Path | str, seeds: int | None = None, vary: Sequence[str] = ()
) -> dict[Path, TrainConfig]:
    """The runs of every combination of seeds and varied values.

    Args:
        config: options of all runs.
        out: RUN.h5. The run of seed 3 gets RUN-s3.h5, that of lr=0.1 RUN-lr-0.1.h5.
        seeds: number of seeds, counted up from that of `config`; None: one run, in `out` itself.
        vary: entries NAME=VALUE,VALUE,...

    Returns:
        Options by run file.

    Raises:
        ConfigError: for names that cannot vary and invalid values.
    """
    require_config(config, TrainConfig)
    if isinstance(vary, str):
        raise ArgumentError(f"vary is {vary!r}", f"give a list: [{vary!r}]")
    out = as_path(out)
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds is {seeds}", "--seeds takes an integer >= 1")
    count = math.prod(entry.count(",") + 1 for entry in vary) * (seeds or 1)
    if count > MOST_RUNS:
        raise ConfigError(
            f"vary and seeds ask for {counted(count)} runs side by side",
            f"ask for at most {MOST_RUNS}; `landscape sweep` trains more",
        )
    axes = [_values(entry) for entry in vary]
    names = [name for axis in axes for name, _ in axis[:1]]
    if len(set(names)) < len(names):
        raise ConfigError(f"vary names {max(names, key=names.count)} twice", "give all values of a name at once")
    if seeds is not None:
        axes.append([("seed", str(config.seed + i)) for i in range(seeds)])
    runs = {}
    for chosen in itertools.product(*axes):
        suffix = "".join(f"-s{text}" if name == "seed" else f"-{name}-{text}" for name, text in chosen)
        changes: dict[str, Any] = {name: int(text) if name == "seed" else _number(text) for name, text in chosen}
        runs[require_name(out).with_name(out.stem + suffix + out.suffix)] = dataclasses.replace(config, **changes)
    return runs


def side_by_side(runs: Mapping[Path, TrainConfig]) -> list[dict[Path, TrainConfig]]:
    """The runs grouped by what one ensemble can train together."""
    shared = {name: getattr(TrainConfig(), name) for name in ("seed", *VARIABLE)}
    ensembles: dict[TrainConfig, dict[Path, TrainConfig]] = {}
    for path, config in runs.items():
        ensembles.setdefault(dataclasses.replace(config, **shared), {})[path] = config
    return list(ensembles.values())


def balanced(runs: Mapping[Path, TrainConfig], jobs: int) -> list[dict[Path, TrainConfig]]:
    """Groups of runs, each trained as one ensemble, for `jobs` processes; those with the most work first."""
    rounds = max(1, math.ceil(len(runs) / (MOST_MEMBERS * jobs)))
    size = max(1, math.ceil(len(runs) / (rounds * jobs)))
    groups = []
    for alike in map(list, map(dict.items, side_by_side(runs))):
        count = math.ceil(len(alike) / size)
        groups += [dict(alike[i::count]) for i in range(count)]
    return sorted(groups, key=lambda g: -sum(c.steps * c.hidden * c.tokens * c.embed_dim for c in g.values()))


def _values(entry: str) -> list[tuple[str, str]]:
    """(name, value) for each value of NAME=VALUE,VALUE,..."""
    name, _, rest = entry.partition("=")
    values = [text.strip() for text in rest.split(",")]
    if name not in VARIABLE:
        raise ConfigError(
            f"vary {entry!r} varies {name!r}, which one ensemble cannot",
            f"--vary takes NAME=VALUE,VALUE,... of {', '.join(VARIABLE)}; seeds vary with --seeds",
        )
    if "" in values or len({_number(text) for text in values}) < len(values):
        raise ConfigError(f"vary {entry!r} lacks a value or names one twice", f"write it like {name}=1,2,4")
    return [(name, text) for text in values]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
