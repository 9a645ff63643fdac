"""The tables of one scale of the trial, which collect.py wrote."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Setting = Mapping[str, str]
"""Columns of runs.csv and the values that name a setting."""
FILM = "film"
"""Study of the run whose blocks are followed over training."""
ARMS = "arms"
"""Study of the arms of `tables`: their ranks over steps and their blocks on the plateau."""
POINTS = ("points", "points-tanh")
"""Studies of searches for critical points; the second has more seeds of one activation."""


def which(table: pd.DataFrame, **known: object) -> pd.DataFrame:
    """The rows with these values. They are compared as text: some columns hold numbers and words."""
    for column, value in known.items():
        table = table[table[column].astype(str) == str(value)]
    return table


def chosen(table: pd.DataFrame, **known: object) -> pd.DataFrame:
    """The rows with these values, by seed."""
    return which(table, **known).set_index("seed")


@dataclasses.dataclass(frozen=True)
class Scale:
    """The tables of a scale, by name."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @functools.cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {path.stem: pd.read_csv(path) for path in self.folder.glob("*.csv")}

    def rows(self, table: str, **known: object) -> pd.DataFrame:
        """The rows of a table with these values, by seed."""
        return chosen(self.tables[table], **known)

    def runs(self, study: str, **known: object) -> pd.DataFrame:
        """The runs of a study with these values, by seed."""
        return self.rows("runs", study=study, **known)


def prop41_constant(records: pd.DataFrame, times: Mapping[str, Any]) -> pd.Series:
    """ln of Proposition 4.1's constant on the plateau: |∇W| / |∇E| over σ_max(E) / σ_max(W).

    records: gradient norms and largest singular values by step. times: memorised and grokked (NaN: never).
    """
    found: pd.Series = np.log(records.grad_norm_W / records.grad_norm_E / (records.sigma_max_E / records.sigma_max_W))
    return found[(records.index >= times["memorised"]) & ~(records.index > times["grokked"])]
