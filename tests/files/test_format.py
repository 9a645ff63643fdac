"""docs/fields.md says what the files hold, in the words of the schema."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers.hessians import HessianReader

from landscape.files.schema import VERSION
from landscape.measure.geometry import geometry as measure_geometry

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT: dict[str, Any] = runpy.run_path(str(DOCS / "make_fields.py"))
PAGE = SCRIPT["generate"]((DOCS / "fields.md").read_text())


def lines(title: str) -> list[list[str]]:
    """The cells of the table under a title, without its head; the first one without its backticks."""
    (section,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\S+)` (\|.*)\|$", section, re.MULTILINE)
    return [[name, *(cell.strip() for cell in re.split(r"(?<!\\)\|", rest)[1:])] for name, rest in rows]


def test_every_table_has_its_place() -> None:
    """A page without a place for a table is an error; the page names the current version."""
    page = (DOCS / "fields.md").read_text()
    with pytest.raises(ValueError, match="has places for"):
        SCRIPT["generate"](page.replace("<!-- made: tokens -->", ""))
    assert f"schema version {VERSION}." in (DOCS / "format.md").read_text()


def test_every_attribute_is_explained(tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """The attributes that the page marks for a kind of file are those of such a file."""
    geometry = measure_geometry(tiny_run, tmp_path / "tiny.geometry.h5")
    for column, path in enumerate((tiny_run, tiny_run.with_name("tiny.hessian.h5"), geometry), start=1):
        with h5py.File(path) as file:
            assert {cells[0] for cells in lines("Root attributes") if cells[column] == "✓"} == set(file.attrs)


@pytest.mark.parametrize("group", ["checkpoints", "metrics", "tokens", "moments", "data", "/", "geometry"])
def test_every_dataset_has_its_line(group: str, tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """Axes, type and units are those in the file."""
    path, title = (tiny_run, f"/{group}") if group != "/" else (tiny_run.with_name("tiny.hessian.h5"), "/")
    if group == "geometry":
        path, title, group = measure_geometry(tiny_run, tmp_path / "tiny.geometry.h5"), "/ of a geometry file", "/"
    described = {cells[0]: cells[1:4] for cells in lines(title)}
    with h5py.File(path) as file:
        datasets = {n: d for n, d in file[group].items() if isinstance(d, h5py.Dataset) and not d.is_scale}
        assert set(datasets) - {"crc32"} == set(described)
        for name in described:
            data = datasets[name]
            axes, types, units = described[name]
            assert axes == ", ".join(axis[0].name.split("/")[-1] for axis in data.dims), name
            assert data.dtype.str[1:] in types.split(" or "), name
            assert units == data.attrs["units"], name


def test_every_axis_is_explained() -> None:
    """The axes on the page are those of the schema."""
    used = {axis for table in SCRIPT["tables"]() for axis in (table.row, *(d for f in table.fields for d in f.dims))}
    assert {cells[0] for cells in lines("Axes")} == used - {""}
