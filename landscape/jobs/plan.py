"""The plan of a sweep: its runs, their analyses, and their file names."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import reprlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from landscape.config import AnalysisConfig, HessianConfig, TrainConfig, load, preset, replace
from landscape.errors import ConfigError, FileError, require_config, suggest
from landscape.files.files import as_path, hessian_file
from landscape.options import check
from landscape.text import counted

DEFINITION = "sweep.json"
"""File in a sweep's folder that describes the sweep."""
MOST_RUNS, MOST_ANALYSES = 10_000, 100
"""Limits of one sweep; all files are checked before the first run starts."""
LONGEST_NAME = 200
"""Bytes of a file's name. File systems take 255, and the names of locks, drafts and claims beside it are longer."""


@dataclasses.dataclass(frozen=True)
class SweepAnalysis(HessianConfig):
    """One analysis of all or some runs of a sweep."""

    name: str = ""
    """Part of the file name RUN.hessian-NAME.h5; empty: RUN.hessian.h5."""
    cases: tuple[str, ...] = ()
    """Cases to analyse; empty: all."""
    seeds: tuple[int, ...] = ()
    """Seeds to analyse; empty: all."""
    refine_from: int | None = None
    """Analyse the critical point nearest to this stored step instead of steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refine_from is not None and self.steps != "auto":
            raise ConfigError(f"steps is {self.steps}, refine_from {self.refine_from}", "set only one of them")
        if self.refine_from is not None and self.settle:
            raise ConfigError(f"settle is true, refine_from {self.refine_from}", "set only one of them")

    @property
    def settings(self) -> AnalysisConfig:
        """The options of `landscape hessian`, or of `landscape critical` where a point is refined."""
        kind = HessianConfig if self.refine_from is None else AnalysisConfig
        return kind(**{f.name: getattr(self, f.name) for f in dataclasses.fields(kind)})

    @property
    def named_steps(self) -> list[int]:
        """The steps named in `steps` or `refine_from`."""
        if self.refine_from is not None:
            return [self.refine_from]
        return [] if self.steps in ("auto", "all", "plateau") else [int(step) for step in self.steps.split(",")]


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Many runs, cases x grid x seeds, and their analyses; all values are checked on construction."""

    name: str = "sweep"
    """Name of the folder."""
    preset: str = "quick"
    """Starting point of all options: a name that `landscape.preset` knows."""
    train: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of every run; they override the preset."""
    cases: dict[str, dict[str, Any]] = dataclasses.field(default_factory=lambda: {"base": {}})
    """Options of each case by name."""
    grid: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    """Values of each option; the grid crosses all of them."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of every case and grid point."""
    hessian: tuple[dict[str, Any], ...] = ()
    """Analyses: options of `landscape hessian`, or refine_from; with several, also name, cases and seeds."""

    def __post_init__(self) -> None:
        check(self)
        count = math.prod(map(len, (self.cases, self.seeds, *self.grid.values())))
        if count > MOST_RUNS:
            raise ConfigError(
                f"cases x grid x seeds are {counted(count)} runs", f"a sweep has at most {MOST_RUNS:,}: split it"
            )
        if len(self.hessian) > MOST_ANALYSES:
            raise ConfigError(f"hessian lists {len(self.hessian):,} analyses", f"list at most {MOST_ANALYSES}")
        names = [analysis.name for analysis in self.analyses]
        for name in (self.name, *self.cases, *filter(None, names)):
            if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise ConfigError(
                    f"name {name!r} cannot be part of a file name",
                    "start with a letter or digit, followed by letters, digits, _ and -",
                )
        crossed = {f"grid {field}": values for field, values in self.grid.items()}
        for what, values in {"cases": list(self.cases), "seeds": self.seeds, **crossed}.items():
            if not values or len(set(map(_hashable, values))) < len(values):
                raise ConfigError(
                    f"{what} {reprlib.repr(list(values))}: none, or one named twice", "name each once, and at least one"
                )
        if len(set(names)) < len(names):
            raise ConfigError(f"hessian names {names}: one twice", "give each analysis a name of its own")
        for what, options in {"train": self.train, "grid": self.grid, **self.cases}.items():
            if "seed" in options:
                raise ConfigError(f"{what} sets seed to {options['seed']}", "list all seeds in seeds")
        for case, options in self.cases.items():
            for field in filter(options.__contains__, self.grid):
                raise ConfigError(f"case {case} sets {field}, which grid crosses", "set it in only one of the two")
        for analysis in self.analyses:
            for what, chosen, known in (("case", analysis.cases, self.cases), ("seed", analysis.seeds, self.seeds)):
                absent = set(chosen) - set(known)
                for one in filter(absent.__contains__, chosen):
                    hint = suggest(str(one), map(str, known))
                    raise ConfigError(f"hessian {analysis.name!r} is for {what} {one}, which no run has", hint)
        sweep_runs(self)

    @property
    def analyses(self) -> list[SweepAnalysis]:
        """The entries of `hessian`. Raises ConfigError for invalid values."""
        analyses = []
        for entry in self.hessian:
            try:
                analyses.append(replace(SweepAnalysis(), entry))
            except ConfigError as error:
                raise ConfigError(f"hessian {entry.get('name', '')!r}: {error}", error.hint) from error
        return analyses


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        labels: case, grid values and seed by name.
        path: its run file.
        config: its options.
        hessian: its Hessian files by the name of the analysis.
    """

    labels: dict[str, Any]
    path: Path
    config: TrainConfig
    hessian: dict[str, Path]

    @property
    def files(self) -> list[Path]:
        """The run file and the Hessian files."""
        return [self.path, *self.hessian.values()]


def load_sweep(path: Path | str) -> SweepConfig:
    """The sweep that a JSON file describes.

    Args:
        path: the file.

    Returns:
        The sweep.

    Raises:
        ConfigError: for unknown keys and invalid values.
    """
    return load(as_path(path), SweepConfig(), '{"name": "ratios", "grid": {"lr_ratio": [1, 10]}, "seeds": [0, 1]}')


def defined(folder: Path) -> SweepConfig:
    """The sweep that a folder's own file describes. Raises ConfigError as `load_sweep`, FileError for no regular file.

    A user's own definition may come through a pipe; one that lies in a folder would be waited for for ever.
    """
    path = folder / DEFINITION
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is not a regular file", "move it away")
    return load_sweep(path)


def sweep_folder(config: SweepConfig, out: Path | str) -> Path:
    """The folder of a sweep: OUT/NAME."""
    return as_path(out) / config.name


def sweep_runs(config: SweepConfig, out: Path | str = "checkpoints") -> list[SweepRun]:
    """Every run of a sweep with its files, whether or not they exist.

    Args:
        config: the sweep.
        out: the folder that holds its folder. Files are OUT/NAME/CASE-FIELD=VALUE-sSEED.h5, where characters other than
            letters, digits and _.-~ are written as in a URL.

    Returns:
        The runs, by case, grid point and seed.

    Raises:
        ConfigError: for invalid values, and for names of more than 200 bytes.
    """
    require_config(config, SweepConfig)
    runs, base = [], preset(config.preset)
    chosen = [(a.name, {*(a.cases or config.cases)}, {*(a.seeds or config.seeds)}) for a in config.analyses]
    for case, *values, seed in itertools.product(config.cases, *config.grid.values(), config.seeds):
        point = dict(zip(config.grid, values, strict=True))
        stem = "-".join([case, *(f"{field}={_text(value)}" for field, value in point.items()), f"s{seed}"])
        path = sweep_folder(config, out) / f"{stem}.h5"
        options = {**config.train, **config.cases[case], **point, "seed": seed}
        try:
            train = replace(base, options)
        except ConfigError as error:
            raise ConfigError(f"{stem}: {error}", error.hint) from error
        hessian = {name: hessian_file(path, name) for name, cases, seeds in chosen if case in cases and seed in seeds}
        runs.append(SweepRun({"case": case, **point, "seed": seed}, path, train, hessian))
        for name in (config.name, *(file.name for file in runs[-1].files)):
            if len(name) > LONGEST_NAME:
                raise ConfigError(
                    f"the name {reprlib.repr(name)} has {len(name)} bytes",
                    f"files of a sweep have at most {LONGEST_NAME}: a case with a short name can set long values",
                )
    return runs


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return repr(value) if isinstance(value, dict) else value


def _text(value: Any) -> str:
    """A grid value as part of a file name."""
    if isinstance(value, list | tuple):
        return "+".join(map(_text, value))
    # What separates folders, fields or values is written as in a URL, so that no two values have one name.
    return quote(value, safe="", errors="surrogatepass") if isinstance(value, str) else json.dumps(value)
