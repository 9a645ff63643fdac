"""The runs of a study of the trial, from the folder that `landscape sweep` left."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    """One run of a study: its file, its case and the options that the study sets, and its analyses by name."""

    path: Path
    options: Mapping[str, Any]
    analyses: Mapping[str, Path]

    @property
    def identity(self) -> dict[str, Any]:
        """What names a run in every table: study, case and seed."""
        return {"study": self.path.parent.name, "case": self.options["case"], "seed": self.options["seed"]}

    @functools.cached_property
    def file(self) -> landscape.File:
        return landscape.open(self.path)

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The options of the run, as the study sets them: the size of a batch that the data cannot fill stays."""
        return {**self.file.config, **self.options}

    @property
    def is_as_planned(self) -> bool:
        """Whether the file has the options that the study sets, but for the size of a batch."""
        planned = {name: value for name, value in self.options.items() if name != "batch_size"}
        return all(self.file.config[name] == planned[name] for name in planned.keys() & self.file.config.keys())

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
        study = landscape.load_sweep(definition)
        runs = [
            Run(run.path, {**study.train, **study.cases[run.labels["case"]], **run.labels}, run.hessian)
            for run in landscape.sweep_runs(study, folder)
        ]
        if missing := next(_missing(runs, study), None):
            print(
                f"note: study {study.name} is left out: {missing} is missing, unfinished or another run's",
                file=sys.stderr,
            )
        else:
            complete[study.name] = runs
    return complete


def _missing(runs: list[Run], study: landscape.SweepConfig) -> Iterator[Path]:
    """The files that a study lacks. A run that never memorised has no plateau, and no analysis there."""
    on_plateau = {analysis.name for analysis in study.analyses if analysis.steps == "plateau"}
    for run in runs:
        if not run.path.exists() or not _is_complete(run.file) or not run.is_as_planned:
            yield run.path
            continue
        for name, path in run.analyses.items():
            if path.exists():
                with landscape.open(path) as file:
                    is_its_own = file.attrs.get("parent_run_id") == run.file.attrs["run_id"]
                    is_missing = not _is_complete(file) or not is_its_own
            else:
                is_missing = name not in on_plateau or not math.isnan(run.times["memorised"])
            if is_missing:
                yield path


def _is_complete(file: landscape.File) -> bool:
    return bool(file.attrs["status"] == "complete")
