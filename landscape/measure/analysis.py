"""An analysis file: whether it may be continued, and how it is held in memory and written whole."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import xarray

from landscape.config import AnalysisConfig, replace, to_json
from landscape.errors import ConfigError, FileError, in_file
from landscape.files import schema
from landscape.files.datasets import read_datasets, write_datasets
from landscape.files.files import REPLACE, refuse_foreign, sha256
from landscape.files.runs import GROK, MEMORISE, RunReader
from landscape.files.schema import STEP, Scales, Table
from landscape.measure import datasets
from landscape.measure.datasets import Datasets
from landscape.models.blocks import in_order
from landscape.models.factory import SEED, Source, unlike_problem, unlike_source
from landscape.models.problem import Problem
from landscape.provenance import provenance

Config = TypeVar("Config", bound=AnalysisConfig)
GROWING = {"steps", "num_steps", "blocks", "device", "problem"}
"""Settings that may change when a file is extended: blocks to some of its own; the source of a problem may not."""
RESUME = "resume"
"""Group of the state of a search for the point of an analysis."""
POINTS = {"critical_point": "a critical point", "settled": "a settled point"}
"""What such a point is, by the group that has it."""


@dataclasses.dataclass
class Analysis:
    """A Hessian file in memory; its caller holds the lock of the path."""

    path: Path
    attrs: dict[str, Any]
    groups: Datasets

    @classmethod
    def read(cls, path: Path) -> Self:
        """What a file holds. Raises FileError for one that is damaged or of another kind."""
        return cls(path, *read_datasets(path, schema.HESSIAN))

    @classmethod
    def begun(
        cls, path: Path, attrs: Mapping[str, Any], layout: tuple[Sequence[Table], Scales], stored: Self | None
    ) -> Self:
        """A new analysis, or a stored one. Raises ConfigError for a block with the name of another dataset."""
        require_distinct(path, layout[0])
        return cls(path, dict(attrs), stored.groups if stored else datasets.blank(*layout))

    @property
    def root(self) -> xarray.Dataset:
        """What belongs to steps, blocks and pairs."""
        return self.groups["/"]

    @property
    def steps(self) -> list[int]:
        """The analysed steps, ascending."""
        return [int(step) for step in self.root[STEP].values]

    @property
    def blocks(self) -> list[str]:
        """The blocks that are measured."""
        return [str(block) for block in self.root["block"].values]

    @property
    def point(self) -> str:
        """The group of the point that a search ended at; empty for an analysis of checkpoints."""
        return next((group for group in POINTS if group in self.groups and RESUME in self.groups), "")

    def at(self, step: int) -> Datasets:
        """The rows of one step."""
        return datasets.at(self.groups, step)

    def numbers(self, name: str) -> dict[int, int]:
        """An integer of each step."""
        return dict(zip(self.steps, map(int, self.root[name].values), strict=True))

    def put(self, step: int, rows: Datasets) -> None:
        """Take the rows of a step, in the place of earlier ones."""
        self.groups = datasets.put(self.groups, step, rows)

    def write(self, status: str) -> None:
        """Write the file, or replace it, at once."""
        self.attrs["status"] = status
        write_datasets(self.path, schema.HESSIAN, self.attrs, self.groups)


def require_distinct(path: Path, tables: Iterable[Table]) -> None:
    """Raise ConfigError where a dataset has the name of another one or of an axis of its group."""
    for table in tables:
        axes = {*([STEP] if table.row else []), *(dim for field in table.fields for dim in field.dims)}
        for name, count in Counter([*axes, *(field.name for field in table.fields)]).items():
            if count > 1:
                raise ConfigError(
                    f"{path}: {name!r} has another meaning in {table.group}, and can name no block or parameter there",
                    "rename it",
                )


def require_other(out: Path, run: Path) -> None:
    """Raise FileError where an output is the run file."""
    if out.resolve() == run.resolve():
        raise FileError(f"{out} is the run file itself", "choose another --out")


def existing(
    out: Path,
    reader: RunReader,
    config: AnalysisConfig,
    overwrite: bool = False,
    source: Source | None = None,
    point: str = "",
) -> Analysis | None:
    """The analysis in `out`, if it is of this run and these settings; None if a new one is to be started.

    point: the group of the point that a search ended at, where it has to be the analysis of one.
    Raises FileError for damaged rows and for any other file, except a Hessian file with `overwrite`.
    """
    if not out.exists():
        return None
    refuse_foreign(out, schema.HESSIAN)
    try:
        stored = Analysis.read(out)
    except FileError:
        if overwrite:
            return None
        raise
    if wrong := _difference(stored, reader, config, source, point):
        if overwrite:
            return None
        raise FileError(f"{out}: {wrong}", REPLACE)
    was = str(stored.attrs.get("problem_checksum", ""))
    if source and (differs := unlike_problem(was, source.checksum)):
        if overwrite:
            return None
        raise FileError(
            f"{out}: it was measured on another problem: the {differs} of --problem {source.name} is not the same",
            f"{SEED}; then --overwrite measures all steps anew",
        )
    return stored


def joined(config: Config, problem: Problem, stored: Analysis | None) -> Config:
    """The settings of a stored analysis once it is extended, or of a new one."""
    blocks = stored.blocks if stored else in_order(config.blocks or problem.default_blocks, problem.blocks)
    config = dataclasses.replace(config, blocks=tuple(blocks))
    if stored and config.spectra == "auto":
        config = dataclasses.replace(config, spectra=json.loads(stored.attrs["config"])["spectra"])
    return config


def is_whole(stored: Analysis, attrs: Mapping[str, object]) -> bool:
    """Whether a stored analysis is complete and says the same of the run."""
    same = all(stored.attrs.get(name) == value for name, value in attrs.items() if name != "config")
    return same and stored.attrs["status"] == "complete"


def attributes(
    reader: RunReader, config: AnalysisConfig, device: str, source: Source | None, stored: Analysis | None
) -> dict[str, Any]:
    """The attributes of an analysis of a run; an extended one keeps its provenance."""
    events = (reader.first_step(*event) for event in (MEMORISE, GROK))
    memorised, grokked = (schema.UNKNOWN if step is None else step for step in events)
    return {
        **(stored.attrs if stored else provenance(device)),
        **(source.attrs if source else {}),
        "parent_run_id": reader.attrs["run_id"],
        "parent_sha256": sha256(reader.path),
        "parent_config": reader.attrs["config"],
        "config": to_json(config),
        "objective": config.objective,
        "dtype": config.dtype,
        "method": config.method,
        "memorise_step": memorised,
        "grok_step": grokked,
    }


def _difference(stored: Analysis, reader: RunReader, config: AnalysisConfig, source: Source | None, point: str) -> str:
    """Why an analysis cannot be continued with these settings; empty if it can."""
    if wrong := reader.disowns(stored.attrs, stored.numbers("checkpoint_crc32")):
        return wrong
    if wrong := unlike_source(stored.attrs, source):
        return wrong
    if stored.point != point:
        return (
            f"it is the analysis of {POINTS[stored.point]}" if stored.point else f"it is no analysis of {POINTS[point]}"
        )
    if further := [block for block in in_order(config.blocks, stored.blocks) if block not in stored.blocks]:
        return f"it was made without block {further[0]}"
    with in_file(stored.path, "config"):
        settings = replace(type(config)(), json.loads(stored.attrs["config"]))
    was, now = (json.loads(to_json(c)) for c in (settings, config))
    if config.spectra == "auto":
        # It follows the file.
        now["spectra"] = was["spectra"]
    for name in was.keys() - GROWING:
        if was[name] != now[name]:
            before, asked = ("by default" if value is None else value for value in (was[name], now[name]))
            return f"it was made with {name} {before}, not {asked}"
    return ""
