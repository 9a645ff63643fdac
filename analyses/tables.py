"""The committed tables of the trial, and how the scripts beside this one write numbers, tables and figures."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from exact import later, median_interval
from matplotlib.figure import Figure

REFERENCE = Path(__file__).parents[1] / "reports/reference"
STUDIES = Path(__file__).parents[1] / "studies"
SIZES = ("quick", "mid", "paper")
"""Smallest first."""
Setting = Mapping[str, object]
"""Columns of a table with the values that choose its rows."""
PLAIN: Setting = {"study": "curvature", "case": "c1"}
"""The ordinary network at equal learning rates."""
COLOURS = {"E,W": "#d55e00", "E[operands],W": "#0173b2", "W,V": "#029e73", "E": "#cc78bc", "W": "#949494"}
"""By block."""
BY_SCALE = {"quick": "#de8f05", "mid": "#0173b2", "paper": "#029e73", "transformer": "#cc78bc"}


def which(table: pd.DataFrame, **known: object) -> pd.DataFrame:
    """The rows with these values. They are compared as text: some columns hold numbers and words."""
    for column, value in known.items():
        table = table[table[column].astype(str) == str(value)]
    return table


@functools.cache
def studies(size: str) -> Mapping[str, Mapping[str, Any]]:
    """The definitions of the article's studies of a size by name; those of the paper's claims have other names."""
    paths = sorted((STUDIES / size / "article").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


class Tables(dict[str, pd.DataFrame]):
    """The tables of a folder by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__({path.stem: self.read(path) for path in folder.glob("*.csv")})

    def read(self, path: Path) -> pd.DataFrame:
        """Of the article's studies with the seeds alone that they name, whatever was made before."""
        table = pd.read_csv(path)
        for name, study in studies(self.folder.name).items() if {"study", "seed"} <= {*table} else ():
            table = table[(table["study"] != name) | table["seed"].isin(study["seeds"])]
        return table

    def __missing__(self, name: str) -> pd.DataFrame:
        sys.exit(f"error: there is no {self.folder / name}.csv\nhint: make studies, then make studies-claims")


@dataclasses.dataclass(frozen=True)
class Scale:
    """The tables of one size, Transformer or text: a folder of CSV files."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @functools.cached_property
    def tables(self) -> Tables:
        return Tables(self.folder)

    def rows(self, table: str, **known: object) -> pd.DataFrame:
        """The rows of a table with these values, by seed; none where there is no such table."""
        if table not in self.tables:
            return pd.DataFrame(columns=[*known])
        return which(self.tables[table], **known).set_index("seed")

    def runs(self, study: object, **known: object) -> pd.DataFrame:
        """The runs of a study with these values, by seed."""
        return self.rows("runs", study=study, **known)

    def pivot(self, value: str, **known: object) -> pd.DataFrame:
        """A column of curvature.csv by seed and block, in these rows."""
        return self.rows("curvature", **known).reset_index().pivot_table(index="seed", columns="block", values=value)


def scales(root: Path, names: Sequence[str] = SIZES, table: str = "runs") -> list[Scale]:
    """Those of these scales that have a table."""
    return [Scale(root / name) for name in names if (root / name / f"{table}.csv").exists()]


def on_plateau(records: pd.DataFrame, times: Mapping[str, object]) -> pd.Series:
    """Whether each step of records lies from `memorised` to `grokked`; NaN: never."""
    return pd.Series((records.index >= times["memorised"]) & ~(records.index > times["grokked"]), records.index)


def prop41_constant(records: pd.DataFrame, times: Mapping[str, object]) -> pd.Series:
    """ln of Proposition 4.1's constant on the plateau: |∇W| / |∇E| over σ_max(E) / σ_max(W).

    Args:
        records: gradient norms and largest singular values by step.
        times: the steps `memorised` and `grokked`; NaN: never.
    """
    constant: pd.Series = (records.grad_norm_W / records.grad_norm_E / (records.sigma_max_E / records.sigma_max_W)).map(
        math.log
    )
    return constant[on_plateau(records, times)]


def prop41_misses(records: pd.DataFrame, times: Mapping[str, object]) -> dict[tuple[str, str], float]:
    """By what factor Proposition 4.1 and its nulls miss |∇W| / |∇E|: medians on the plateau, and before memorising.

    prop41: σ_max(E) / σ_max(W); one: 1; inverse: σ_max(W) / σ_max(E).
    """
    gradients = np.log(records["grad_norm_W"] / records["grad_norm_E"])
    sizes = np.log(records["sigma_max_E"] / records["sigma_max_W"])
    before = (records.index > 0) & (records.index < times["memorised"])
    return {
        (phase, name): float(np.exp((gradients - predicted).abs()[at].median()))
        for phase, at in (("plateau", on_plateau(records, times)), ("before", before))
        for name, predicted in (("prop41", sizes), ("one", 0 * sizes), ("inverse", -sizes))
    }


def number(value: float) -> str:
    """Three digits; ∞ where something never came."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}".replace("-", "−")


def interval(values: Sequence[float] | pd.Series, shown: Callable[[float], float] = float) -> str:
    """The median and its interval; of too few seeds for one, the least, the largest and how many there are.

    Args:
        values: one a seed.
        shown: what becomes of the three numbers, such as exp.
    """
    median, low, high = median_interval(values)
    few = math.isnan(low)
    ends = (min(values), max(values)) if few else (low, high)
    middle, between = number(shown(median)), [number(value) for value in sorted(map(shown, ends))]
    return f"{middle} ({between[0]} to {between[1]}; n = {len(values)})" if few else f"{middle} [{', '.join(between)}]"


def factor(logarithms: Sequence[float] | pd.Series) -> str:
    """The factors with these logarithms; a dash for none."""
    return f"× {interval(logarithms, lambda x: float(np.exp(x)))}" if len(logarithms) else "–"


def count(steps: pd.Series) -> str:
    """How many runs came to an event."""
    return f"{steps.notna().sum()} of {len(steps)}"


def step(steps: pd.Series) -> str:
    """The median step of an event, in which never is latest."""
    middle = steps.fillna(math.inf).median()
    return f"{middle:,.0f}" if math.isfinite(middle) else "never"


def log_ratios(of: pd.Series, over: pd.Series) -> list[float]:
    """ln of the ratio of two steps, for the seeds of both runs."""
    return [later(float(of[seed]), float(over[seed])) for seed in of.index.intersection(over.index)]


def bound(of: pd.DataFrame, over: pd.DataFrame, event: str = "grokked") -> str | None:
    """What an infinite ratio says: runs that never got there bound it by the steps that they were watched.

    Where also the other run of a seed never got there, nothing is known of the ratio, and it counts against the bound.
    None: there is no bound.
    """
    seeds = of.index.intersection(over.index)
    of, over = of.loc[seeds], over.loc[seeds]
    ended = [int(runs[event].isna().sum()) for runs in (of, over)]
    late, early, sign, open_ = (of, over, "≥", -math.inf) if ended[0] > ended[1] else (over, of, "≤", math.inf)
    factors = (_at_least(of, event) / _at_least(over, event))[early[event].notna()]
    x = [math.log(value) if value else -math.inf for value in factors] + [open_] * min(ended)
    median, *_ = median_interval(x)
    # A delay that never began has no bound.
    if math.isinf(median) or factors.isna().any():
        return None
    return f"{sign} {number(math.exp(median))} ({max(ended)} of {len(late)} never by {late['watched'].max():,.0f})"


def _at_least(runs: pd.DataFrame, event: str) -> pd.Series:
    watched = runs["watched"] - (runs["memorised"] if event == "delay" else 0)
    return runs[event].fillna(watched)


def write(content: pd.DataFrame | Figure, name: str, root: Path) -> Path:
    """Write ROOT/tables/NAME.csv or ROOT/figures/NAME.svg; the same numbers make the same bytes."""
    is_table = isinstance(content, pd.DataFrame)
    path = root / (f"tables/{name}.csv" if is_table else f"figures/{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_table:
        content.to_csv(path, index=False)
    else:
        _settle(content)
        with mpl.rc_context({"svg.hashsalt": name}):
            content.savefig(path, bbox_inches="tight", metadata={"Date": None})
    return path


def _settle(figure: Figure) -> None:
    """Lay a figure out, to nine digits: the solver's last bits differ from run to run, and ids in SVG with them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, 9))
        axes.set_in_layout(True)


def look() -> None:
    """The look of all figures."""
    sns.set_theme(context="paper", style="whitegrid", rc={"svg.fonttype": "none", "axes.spines.right": False})
    mpl.rcParams["axes.spines.top"] = False


def root_of(about: str) -> Path:
    """The folder of the tables that the command line names, by default reports/reference."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=REFERENCE, help="folder of the tables")
    folder: Path = parser.parse_args().folder.resolve()
    if not scales(folder):
        sys.exit(f"error: {folder} has no runs.csv in quick, mid or paper\nhint: name a copy of reports/reference")
    return folder


def main(make: Callable[[Path], pd.DataFrame | Figure]) -> None:
    """The command line of a script: `python analyses/table_grid.py [FOLDER]`, by default reports/reference."""
    mpl.use("agg")
    look()
    root = root_of(str(sys.modules["__main__"].__doc__))
    print(write(make(root), Path(sys.argv[0]).stem.partition("_")[2], root))
