"""Runs with their analyses as tidy data frames."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import landscape
from landscape.choices.optimizers import coupled_decay
from landscape.errors import FileError, LandscapeError, in_file, note, warn
from landscape.files import schema
from landscape.files.files import as_path, geometry_file, hessian_file, run_file
from landscape.text import printable

UNKNOWN_SEED = "seed not known"
"""The seed of a run that was recorded without one."""
_WITHOUT_EFFECT = {"device", "checkpoint_every", "checkpoint_log", "checkpoint_at", "metrics_every"}
"""Options that change no number of a run."""
Frames = Mapping[str, pd.DataFrame]
"""Tables by name, with columns `run`, `setting` and `seed`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A run, one analysis of it, and its geometry; at least one of the first two.

    files and attrs: paths and root attributes by kind ("run", "hessian", "geometry"); config: the options of the
    training, or what is known of a recorded run; tables: those of `File.to_dataframes`, with `metrics` and `tokens` of
    the run and those of the geometry as `geometry_...`; setting: the options in which it differs from other sources.
    """

    files: Mapping[str, Path]
    attrs: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    damage: tuple[str, ...]
    memorised: int | None
    grokked: int | None
    is_refined: bool
    is_settled: bool
    label: str = ""
    setting: str = ""

    @property
    def is_recorded(self) -> bool:
        """Whether the checkpoints did not come from `landscape train`."""
        return self.config.get("kind") == schema.RECORDED

    @property
    def path(self) -> Path:
        """The run file, or the Hessian file where there is no run file."""
        return self.files.get("run") or self.files["hessian"]

    @property
    def run_id(self) -> str:
        """What tells its run from all others."""
        return _run_id(self.attrs)

    @property
    def seed(self) -> str:
        """The seed of the training, or that it is not known."""
        seed = self.config.get("seed", schema.UNKNOWN)
        return UNKNOWN_SEED if seed in (schema.UNKNOWN, None) else f"seed {seed}"

    def table(self, name: str, *columns: str) -> pd.DataFrame:
        """A table; empty where it, or one of the columns, is missing."""
        table = self.tables.get(name, pd.DataFrame())
        return table if set(columns) <= set(table) else pd.DataFrame(columns=list(columns))

    @property
    def diverged(self) -> int | None:
        """The step at which training ended because a loss or a parameter was not finite."""
        metrics = self.table("metrics", "step", "train_loss")
        if self.attrs.get("run", {}).get("status") != "diverged" or metrics.empty:
            return None
        is_bad = ~np.isfinite(metrics["train_loss"].to_numpy(float))
        return int(metrics["step"].iloc[is_bad.argmax() if is_bad.any() else -1])


def open_sources(files: Sequence[Path | str], broken: list[LandscapeError] | None = None) -> list[Source]:
    """Read files, and those of the same runs beside them.

    Args:
        files: run, Hessian and geometry files. Further Hessian files of a run are sources of their own, and so are
            points refined from its checkpoints.
        broken: takes the errors of files that cannot be read, which are then left out.

    Returns:
        The sources, in the order of the files.

    Raises:
        FileError: for files that are missing, broken or of another kind; not with `broken`.
    """
    parts: dict[Path, _Part] = {}
    for path in _distinct(files):
        with leaving_out(broken):
            parts[path.resolve()] = _read(path)
    named = list(parts.values())
    for part in named:
        has_hessian = any(other.kind == "hessian" and other.run_id == part.run_id for other in named)
        for path in _beside(part, has_hessian):
            if path.exists() and path.resolve() not in parts:
                with leaving_out(broken):
                    other = _read(path)
                    if other.run_id == part.run_id:
                        parts[path.resolve()] = other
                    elif path == hessian_file(run_file(part.path)):
                        warn(f"{path} is left out: it was not made from {part.path}")
    sources = []
    for run_id in dict.fromkeys(part.run_id for part in parts.values()):
        with leaving_out(broken):
            sources += _paired([part for part in parts.values() if part.run_id == run_id])
    return _labelled(sources)


def frames(sources: Sequence[Source]) -> dict[str, pd.DataFrame]:
    """All tables of the sources by name, and `runs` with a row for each, with columns `run`, `setting` and `seed`."""
    by_name: dict[str, list[pd.DataFrame]] = {}
    for source in sources:
        facts = {
            "memorised": source.memorised,
            "grokked": source.grokked,
            "is_recorded": source.is_recorded,
            "weight_decay": coupled_decay(source.config),
        }
        by_name.setdefault("runs", []).append(
            pd.DataFrame({**facts, "run": source.label, "setting": source.setting, "seed": source.seed}, index=[0])
        )
        for name, table in source.tables.items():
            labels = {"run": source.label, "setting": source.setting, "seed": source.seed}
            by_name.setdefault(name, []).append(table.assign(**labels))
    return {name: pd.concat(tables, ignore_index=True) for name, tables in by_name.items()}


def varied(sources: Sequence[Source]) -> list[str]:
    """The options of `landscape train` that differ between the runs, the seed among them."""
    configs = [source.config for source in sources if not source.is_recorded]
    names = dict.fromkeys(name for config in configs for name in config)
    texts = {name: {json.dumps(config.get(name)) for config in configs} for name in names}
    return [name for name, values in texts.items() if len(values) > 1 and name not in _WITHOUT_EFFECT]


def option(source: Source, name: str) -> str:
    """The value of an option in a run; empty where it has none."""
    value = source.config.get(name, "")
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


@contextlib.contextmanager
def leaving_out(broken: list[LandscapeError] | None) -> Iterator[None]:
    """Context whose error is put into `broken`; without that list it is raised."""
    try:
        yield
    except LandscapeError as error:
        if broken is None:
            raise
        broken.append(error)


@dataclasses.dataclass(frozen=True)
class _Part:
    """One file."""

    path: Path
    kind: str
    attrs: Mapping[str, Any]
    config: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    damage: str
    events: Mapping[str, int | None]
    is_refined: bool
    is_settled: bool

    @property
    def run_id(self) -> str:
        return _run_id({self.kind: self.attrs})


def _run_id(attrs: Mapping[str, Mapping[str, Any]]) -> str:
    return str(next(of["run_id" if kind == "run" else "parent_run_id"] for kind, of in attrs.items()))


def _read(path: Path) -> _Part:
    with landscape.open(path) as file:
        tables = file.to_dataframes()
        config = file.config
        if file.kind == "run":
            tables = {name.partition("_by_")[0]: table for name, table in tables.items()}
            if "metrics" in tables:
                tables["metrics"] = tables["metrics"].rename(columns={"metric_step": "step"})
            if "tokens" in tables and "data" in file.groups:
                tables["tokens"]["samples"] = tables["tokens"]["token"].map(_samples(file)).fillna(0).astype(int)
        else:
            with in_file(path, "parent_config"):
                config = json.loads(file.attrs["parent_config"])
        if file.kind == "geometry":
            tables = {f"geometry_{name}": table for name, table in tables.items()}
        elif "by_step" in tables:
            # A row of the root is written last: rows of other groups without one are not committed.
            steps = tables["by_step"]["step"]
            tables = {name: table[table["step"].isin(steps)] for name, table in tables.items() if "step" in table}
        is_refined = file.kind == "hessian" and "resume" in file.groups
        is_settled = "settled" in file.groups
        return _Part(path, file.kind, file.attrs, config, tables, file.damage, file.events, is_refined, is_settled)


def _samples(file: landscape.File) -> pd.Series:
    """Number of training samples that hold each token, by token."""
    data = file.to_xarray("data")
    tokens = pd.DataFrame(data["tokens"].values[data["split"].values == 0]).melt(ignore_index=False)
    return tokens.reset_index().drop_duplicates(["index", "value"])["value"].value_counts()


def _distinct(files: Sequence[Path | str]) -> list[Path]:
    """The files, each once; says which were named again."""
    named: dict[Path, Path] = {}
    for path in map(as_path, files):
        first = named.setdefault(path.resolve(), path)
        if first is not path:
            note(f"{path} is named twice" if path == first else f"{path} is {first}, and counts once")
    return list(named.values())


def _beside(part: _Part, has_hessian: bool) -> list[Path]:
    """Where the other files of a run are looked for: its analyses only if none of them was named."""
    run = run_file(part.path)
    paths = [run, geometry_file(run)]
    if not has_hessian:
        names = sorted(path for path in run.parent.iterdir() if path.name.startswith(f"{run.stem}."))
        paths += [hessian_file(run)]
        paths += [path for path in names if ".hessian-" in path.name and path.suffix == ".h5"]
        paths += [path for path in names if ".critical-" in path.name and path.suffix == ".h5"]
        paths += [path for path in names if re.search(r"\.settled(-\d+)?\.h5$", path.name)]
    return paths


def _paired(parts: Sequence[_Part]) -> list[Source]:
    """The sources of one run."""
    by_kind = {kind: [part for part in parts if part.kind == kind] for kind in ("run", "hessian", "geometry")}
    # A search that has not measured its end yet has nothing to show.
    points = [part for part in by_kind["hessian"] if _is_off_path(part) and "by_step" in part.tables]
    measured = [part for part in by_kind["hessian"] if not _is_off_path(part)]
    if by_kind["run"] and not measured:
        # Where each step was settled, that is the analysis of the run.
        measured = [part for part in points if not part.is_refined][:1]
        points = [part for part in points if part not in measured]
    if not (by_kind["run"] or measured or points):
        raise FileError(f"{parts[0].path}: its run file is not beside it", "name the run file, too")
    first = [*by_kind["run"][:1], *measured[:1], *by_kind["geometry"][:1]]
    groups = [[part] for part in (*by_kind["run"][1:], *measured[1:], *points)]
    if by_kind["run"] or measured:
        groups = [first, *groups]
    return [_source(group) for group in groups]


def _is_off_path(part: _Part) -> bool:
    """Whether its points are no checkpoints of the run."""
    return part.is_refined or part.is_settled


def _source(parts: Sequence[_Part]) -> Source:
    by_kind = {part.kind: part for part in parts}
    config = parts[0].config
    tables = {name: table for part in parts for name, table in part.tables.items()}
    events = {} if config.get("kind") == schema.RECORDED else parts[0].events
    return Source(
        {kind: part.path for kind, part in by_kind.items()},
        {kind: part.attrs for kind, part in by_kind.items()},
        config,
        tables,
        tuple(f"{part.path}: left out, for their checksums fail: {part.damage}" for part in parts if part.damage),
        events.get("memorise_step"),
        events.get("grok_step"),
        is_refined=any(part.is_refined for part in parts),
        is_settled=any(part.is_settled for part in parts),
    )


def _labelled(sources: Sequence[Source]) -> list[Source]:
    """The sources with labels that tell them apart, and the setting of each."""
    names = [f"{one.path.name.removesuffix('.h5').removesuffix('.hessian')} ({one.seed})" for one in sources]
    count = Counter(names)
    names = [
        f"{str(one.path).removesuffix('.h5')} ({one.seed})" if count[name] > 1 else name
        for one, name in zip(sources, names, strict=True)
    ]
    options = [name for name in varied(sources) if name != "seed"]
    # Recorded runs are repetitions of each other only if all that is known to differ is the seed.
    models = Counter((_model(one), one.seed) for one in sources if one.is_recorded and not one.is_refined)
    apart = {model for (model, seed), runs in models.items() if runs > 1 or (seed == UNKNOWN_SEED and len(models) > 1)}
    labelled = []
    for one, name in zip(sources, names, strict=True):
        setting = ", ".join(f"{option_name.replace('_', ' ')} {option(one, option_name)}" for option_name in options)
        if one.is_recorded:
            setting = name if _model(one) in apart else _model(one)
        if one.is_settled and not one.is_refined:
            setting = ", ".join(filter(None, (setting, "settled")))
        labelled.append(
            dataclasses.replace(one, label=printable(name), setting=printable(setting or "the same options"))
        )
    return labelled


def _model(source: Source) -> str:
    return f"{source.config['model']} with {source.config['num_parameters']:,} parameters"
