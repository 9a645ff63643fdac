"""What the film of each scale shows, by hand from the committed tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

REFERENCE = Path(__file__).parents[2] / "reports/reference"
SCALES = ("quick", "mid", "paper")


def rows(scale: str, name: str) -> list[dict[str, str]]:
    """Those of the film in a table."""
    with (REFERENCE / scale / f"{name}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["study"] == "film"]


def test_where_the_film_determines_no_index() -> None:
    for scale in ("mid", "paper"):
        pairs = [row for row in rows(scale, "curvature") if "," in row["block"]]
        assert len(pairs) >= 24
        assert all(float(row["index_upper"]) > 2 * float(row["index_lower"]) for row in pairs)


@pytest.mark.parametrize("scale", SCALES)
def test_the_film_shows_a_spectrum_at_every_step(scale: str) -> None:
    """Of each block, of mass 1 between its own ends; exact where its every eigenvalue is known, else with an error."""
    ends = {(row["step"], row["block"]): row for row in rows(scale, "curvature")}
    found = rows(scale, "densities")
    whole = {(row["step"], row["block"]) for row in rows(scale, "spectra")} if scale != "paper" else set()
    densities: dict[tuple[str, str], list[dict[str, str]]] = {of: [] for of in ends}
    for row in found:
        densities[row["step"], row["block"]].append(row)
    for of, of_block in densities.items():
        names = ("eigenvalue", "density", "standard_error", "width")
        x, y, error, width = (np.array([float(row[name]) for row in of_block]) for name in names)
        assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-4), of
        assert float(ends[of]["lowest"]) - 7 * width[0] < x[0]
        assert x[-1] < float(ends[of]["highest"]) + 7 * width[0]
        assert (error.max() == 0) == (of in whole), of
