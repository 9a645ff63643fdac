"""Shared by the claims' scripts: reading a study's files, findings, and writing them.

A claim is a function that takes the folder of the study's files and returns a Finding; `run` is its command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray
from intervals import Judgement
from numpy.typing import ArrayLike, NDArray

from landscape import open_hessian, open_run
from landscape.config import TrainConfig
from landscape.errors import LandscapeError, complain
from landscape.provenance import provenance
from landscape.report.style import save_figure, style
from landscape.storage.folders import replaced_folder
from landscape.storage.runs import GROKKED, MEMORISED
from landscape.storage.schema import LEVELS
from landscape.sweep.plan import DEFINITION, SweepRun, load_sweep, sweep_runs
from landscape.text import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = ("start", "memorising", "plateau", "grokked")
CERTIFIED = LEVELS.index("certified")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the report's first table. number: the deciding number with its interval, in words."""

    claim: str
    statement: str
    judgement: Judgement
    number: str
    seeds: int


@dataclasses.dataclass(frozen=True)
class Panel:
    """One figure with its data."""

    name: str
    figure: Figure
    data: pd.DataFrame
    caption: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a claim's script. text: paragraphs of Markdown, with all numbers from the data."""

    title: str
    verdicts: list[Verdict]
    panels: list[Panel]
    tables: dict[str, pd.DataFrame]
    text: list[str]
    files: list[Path]
    """The run and Hessian files behind it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: its labels (case, grid values, seed) and its files."""

    planned: SweepRun

    @property
    def labels(self) -> dict[str, Any]:
        return self.planned.labels

    @property
    def name(self) -> str:
        """STUDY/RUN, as its file is called."""
        return f"{self.planned.path.parent.name}/{self.planned.path.stem}"

    @functools.cached_property
    def data(self) -> xarray.Dataset:
        """The run file, lazily: E, W, ... by step, metrics by metric_step, tokens."""
        return open_run(self.planned.path)

    def hessian(self, name: str = "") -> xarray.Dataset:
        """A Hessian file, lazily."""
        return open_hessian(self.planned.hessian[name])

    def first(self, metric: str, threshold: float) -> float:
        """First step at which a metric reached a threshold; NaN if it never did."""
        steps = self.data["metric_step"].values[self.data[metric].values >= threshold]
        return float(steps[0]) if len(steps) else np.nan

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """memorised and grokked (NaN: never), their delay, and the last recorded step."""
        memorised, grokked = self.first("train_accuracy", MEMORISED), self.first("test_accuracy", GROKKED)
        last = float(self.data["metric_step"].values[-1])
        return {"memorised": memorised, "grokked": grokked, "delay": grokked - memorised, "last": last}

    def phases(self, steps: ArrayLike) -> list[str]:
        """The phase of each step: start, memorising, plateau (from the step nearest to `memorised` on), grokked."""
        return phases(steps, self.times["memorised"], self.times["grokked"])


def used_for(data: xarray.Dataset, part: str) -> NDArray[np.bool_]:
    """Which pairs of a run are `train`, `test` or `unused`, by the codes in the file."""
    split = data["split"]
    meanings = dict(zip(split.attrs["flag_meanings"].split(), split.attrs["flag_values"], strict=True))
    found: NDArray[np.bool_] = split.values == meanings[part]
    return found


def phases(steps: ArrayLike, memorised: float, grokked: float) -> list[str]:
    """As `Run.phases`. A phase begins at the step nearest to its event, as checkpoints for analysis are chosen."""
    at = np.asarray(steps, dtype=float)
    # An event that did not occur starts no phase.
    plateau, after = (np.inf if np.isnan(t) else at[np.abs(at - t).argmin()] for t in (memorised, grokked))
    choices = [at == 0, at >= after, at >= plateau]
    return [str(name) for name in np.select(choices, ["start", "grokked", "plateau"], "memorising")]


def study(name: str, out: Path) -> list[Run]:
    """The finished runs of the study in OUT/NAME, which `landscape sweep` made."""
    definition = out / name / DEFINITION
    if not definition.exists():
        raise LandscapeError(f"{definition} is missing: no study {name} in {out}", "make studies")
    runs = [Run(run) for run in sweep_runs(load_sweep(definition), out)]
    # A run still in training would count as censored too early.
    missing = [r.planned.path for r in runs if not r.planned.path.exists() or r.data.attrs["status"] != "complete"]
    if missing:
        raise LandscapeError(
            f"{len(missing)} of {len(runs)} runs of study {name} are missing or unfinished, {missing[0]} the first",
            "make studies",
        )
    return runs


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs without duplicates that differ only in checkpoints and extra steps: studies may share runs."""
    found: dict[TrainConfig, Run] = {}
    for one in runs:
        alike = dataclasses.replace(
            one.planned.config, checkpoint_every=0, checkpoint_log=0, checkpoint_at=(), extra_steps=0
        )
        found.setdefault(alike, one)
    return list(found.values())


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: its labels and times."""
    return pd.DataFrame([{**run.labels, **run.times} for run in runs])


def setting(config: TrainConfig, *varied: str) -> str:
    """The set-up of a study in words, without the varied options."""
    whole = config.batch_size == "full"
    parts = {
        "task": f"task {config.task} mod {config.p}, {config.tokens} tokens",
        "embed_dim": f"d = {config.embed_dim}",
        "hidden": f"h = {config.hidden}",
        "train_fraction": f"{config.train_fraction:.0%} of the pairs trained on",
        "batch_size": "full batches" if whole else f"batches of {config.batch_size}",
        "optimizer": config.optimizer,
        "lr": f"learning rate {config.lr:g}",
        "weight_decay": f"weight decay {config.weight_decay:g}",
        "steps": f"at most {config.steps:,} steps",
    }
    return ", ".join(text for option, text in parts.items() if option not in varied)


# --- output ---------------------------------------------------------------------------------------------------


def rule(doc: str | None) -> str:
    """The rule of the verdicts from a script's docstring, as one paragraph."""
    return " ".join((doc or "").split("\n\n", 1)[-1].split())


def draw_survival(axes: Axes, curve: pd.DataFrame, colour: Any, label: str, line: str = "-") -> None:
    """One Kaplan-Meier curve with its interval; a tick where runs are censored."""
    axes.step(curve["step"], curve["share"], where="post", color=colour, linestyle=line, label=label)
    axes.fill_between(curve["step"], curve["low"], curve["high"], step="post", color=colour, alpha=0.15, linewidth=0)
    ends = curve[curve["censored"] > 0]
    if len(ends):
        axes.plot(ends["step"], ends["share"], "|", color=colour, markersize=9, clip_on=False)


def write(finding: Finding, folder: Path) -> list[Path]:
    """Figures with their CSV, and all tables as CSV and as one HDF5 file with provenance, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for panel in finding.panels:
        with style():
            written += save_figure(panel.figure, panel.data, folder, panel.name)
    origin = {**provenance("cpu"), "files": "\n".join(path.name for path in finding.files)}
    origin = {key: value for key, value in origin.items() if key not in ("hostname", "argv")}
    tree = xarray.DataTree(dataset=xarray.Dataset(attrs=origin))
    for title, table in finding.tables.items():
        path = folder / f"{title}.csv"
        write_csv(table, path)
        written.append(path)
        # Mixed columns, such as batch sizes with `full`, become text in HDF5.
        text = {name: str for name in table if table[name].dtype == object}
        plain = table.reset_index(drop=True).astype(text)
        tree[title] = xarray.DataTree(xarray.Dataset.from_dataframe(plain.rename_axis("row")))
    tree.to_netcdf(folder / "numbers.h5", engine="h5netcdf")
    return [*written, folder / "numbers.h5"]


def run(name: str, claim: Callable[[Path], Finding]) -> None:
    """Command line of one claim: read the studies' files, write figures and numbers to OUT/NAME, print the verdicts."""
    parser = argparse.ArgumentParser(description=sys.modules[claim.__module__].__doc__)
    parser.add_argument("--runs", type=Path, default=Path("checkpoints/studies"), help="folder of the studies' files")
    parser.add_argument("--out", type=Path, default=Path("reports/claims"), help="folder to write to")
    args = parser.parse_args()
    try:
        with style(), replaced_folder(args.out / name, "claim", overwrite=True) as folder:
            finding = claim(args.runs)
            paths = [args.out / name / path.relative_to(folder) for path in write(finding, folder)]
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    for verdict in finding.verdicts:
        print(f"{verdict.claim}: {verdict.judgement}. {verdict.statement}: {verdict.number} ({verdict.seeds} seeds)")
    for path in paths:
        print(path)
