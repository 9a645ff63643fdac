"""The runs of a study of the trial, from the folder that `landscape sweep` left."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import xarray
from numpy.typing import NDArray

import landscape

MEMORISED, GROKKED, HALF = ("train_accuracy", 0.99), ("test_accuracy", 0.95), ("test_accuracy", 0.5)
"""Events of a run: a metric, and the accuracy that it reaches."""
Frames = Mapping[str, pd.DataFrame]
"""The tables of a file by name, as of `File.to_dataframes`."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: its file, the options that the study sets, and its analyses by name."""

    path: Path
    case: str
    seed: int
    options: Mapping[str, Any]
    analyses: Mapping[str, Path]

    @property
    def identity(self) -> dict[str, Any]:
        """What names a run in every table: study, case and seed."""
        return {"study": self.path.parent.name, "case": self.case, "seed": self.seed}

    @functools.cached_property
    def file(self) -> landscape.File:
        return landscape.open(self.path)

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The options of the run, as the study sets them: the size of a batch that the data cannot fill stays."""
        return {**self.file.config, **self.options}

    @functools.cached_property
    def metrics(self) -> pd.DataFrame:
        """Losses, accuracies, norms and rates by step."""
        return self.file.to_dataframe().set_index("metric_step").rename_axis("step")

    @functools.cached_property
    def tokens(self) -> xarray.Dataset:
        """Counts and norms by step and token."""
        return self.file.datasets["tokens"]

    def training_tokens(self) -> NDArray[np.int64]:
        """Tokens of the training samples."""
        data = self.file.datasets["data"].load()
        codes = dict(zip(data["split"].attrs["flag_meanings"].split(), data["split"].attrs["flag_values"], strict=True))
        tokens: NDArray[np.int64] = data["tokens"].values[data["split"].values == codes["train"]]
        return tokens

    def first(self, metric: str, threshold: float) -> float:
        """First step at which a metric reached a threshold; NaN if it never did."""
        steps = self.metrics.index[self.metrics[metric] >= threshold]
        return float(steps[0]) if len(steps) else math.nan

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """memorised and grokked, and their delay."""
        memorised, grokked = self.first(*MEMORISED), self.first(*GROKKED)
        return {"memorised": memorised, "grokked": grokked, "delay": grokked - memorised}

    def analysis(self, name: str) -> Frames:
        """The tables of an analysis."""
        with landscape.open(self.analyses[name]) as file:
            return file.to_dataframes()

    def labelled(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table with study, case and seed as its first columns."""
        return pd.DataFrame([self.identity] * len(table)).join(table.reset_index(drop=True))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def studies(folder: Path) -> dict[str, list[Run]]:
    """The runs of each complete study in a folder; a note on standard error names the others.

    A run still in training would count as one that never grokked.
    """
    complete = {}
    for definition in sorted(folder.glob("*/sweep.json")):
        study = json.loads(definition.read_text(encoding="utf-8"))
        runs = list(_runs(definition.parent, study))
        if missing := next(_missing(runs, study), None):
            print(f"note: study {study['name']} is left out: {missing} is missing or unfinished", file=sys.stderr)
        else:
            complete[study["name"]] = runs
    return complete


def _runs(folder: Path, study: Mapping[str, Any]) -> Iterator[Run]:
    """The planned runs of a study, CASE-FIELD=VALUE-sSEED.h5 for cases x grid x seeds."""
    cases, grid, seeds = study.get("cases", {"base": {}}), study.get("grid", {}), study["seeds"]
    for case, *values, seed in itertools.product(cases, *grid.values(), seeds):
        point = dict(zip(grid, values, strict=True))
        stem = "-".join([case, *(f"{field}={_text(value)}" for field, value in point.items()), f"s{seed}"])
        names = [
            one.get("name", "")
            for one in study.get("hessian", ())
            if case in (one.get("cases") or cases) and seed in (one.get("seeds") or seeds)
        ]
        files = {name: folder / f"{stem}.hessian{name and f'-{name}'}.h5" for name in names}
        yield Run(folder / f"{stem}.h5", case, seed, {**study.get("train", {}), **cases[case], **point}, files)


def _text(value: object) -> str:
    return quote(value, safe="") if isinstance(value, str) else json.dumps(value)


def _missing(runs: list[Run], study: Mapping[str, Any]) -> Iterator[Path]:
    """The files that a study lacks. A run that never memorised has no plateau, and no analysis there."""
    on_plateau = {one.get("name", "") for one in study.get("hessian", ()) if one.get("steps") == "plateau"}
    for run in runs:
        if not _is_complete(run.path):
            yield run.path
            continue
        for name, path in run.analyses.items():
            has_none = name in on_plateau and math.isnan(run.times["memorised"])
            if not _is_complete(path) and not (has_none and not path.exists()):
                yield path


def _is_complete(path: Path) -> bool:
    if not path.exists():
        return False
    with landscape.open(path) as file:
        return bool(file.attrs["status"] == "complete")
