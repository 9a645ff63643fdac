"""The file formats as data: datasets and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

Scales = Mapping[str, "range | list[str] | list[float]"]
"""The labels of axes by name: ranges from 0, words, or numbers."""
VERSION = "3.0"
RUN = "landscape.run"
HESSIAN = "landscape.hessian"
GEOMETRY = "landscape.geometry"
MAIN = "checkpoints"
"""The main table of a run file; its row, committed last, completes a step."""
OPTIMIZER, PARAMETER = "optimizer", "parameter"
"""Table and axis of what a recorded run's optimiser knew of each parameter."""
NUMBERS = ("optimizer_lr", "optimizer_beta_2", "optimizer_epsilon", "optimizer_updates")
"""Datasets of that table."""
BUFFERS = "buffers"
"""Table of the buffers of a recorded run's module, which belong to its checkpoints."""
RECORDED = "recorded"
"""`kind` in the config of a run file whose checkpoints came from a training loop or files of somebody else."""
STEP = "step"
"""Row axis of all tables with a row per stored or analysed step."""
PARAM = "param"
"""The run's precision, f4 or f8, in declarations; files name the type."""
NAME = 255
"""Longest name of a dataset."""

LEVEL: dict[str, object] = {
    "flag_values": [0, 1, 2, 3, 4],
    "flag_meanings": "none estimated bracketed certified vanished",
}
LEVELS = str(LEVEL["flag_meanings"]).split()
UNKNOWN = -1
"""An unknown count or step."""
MARKED: dict[str, object] = {"_FillValue": UNKNOWN}
"""Attributes of datasets that may contain UNKNOWN, which xarray and netCDF then mask."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One dataset: `dims` beyond the row axis of its table, storage type and description."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    long_name: str
    units: str = "1"
    formula: str = ""
    attrs: dict[str, object] = dataclasses.field(default_factory=dict)
    needs: str = ""
    """Parameter without which the dataset is left out."""

    @property
    def description(self) -> dict[str, object]:
        """The attributes of the dataset."""
        formula = {"formula": self.formula} if self.formula else {}
        return {"units": self.units, "long_name": self.long_name, **self.attrs, **formula}


def counted(name: str, dims: tuple[str, ...], long_name: str, formula: str = "") -> Field:
    """A dataset of counts or steps that may be UNKNOWN."""
    return Field(name, dims, "i8", long_name, formula=formula, attrs=MARKED)


@dataclasses.dataclass(frozen=True)
class Table:
    """A group of datasets that share a first axis, `row`, and are committed row by row.

    row: empty for a group of arrays that are written once. newest: in a table of two slots, the dataset that is larger
    in the newer slot; empty where rows are appended.
    """

    group: str
    row: str
    fields: tuple[Field, ...]
    newest: str = ""

    def axes(self, field: Field) -> tuple[str, ...]:
        """All axes of a dataset."""
        return (self.row, *field.dims) if self.row else field.dims

    def present(self, parameters: Collection[str], dtype: str) -> Table:
        """The table of a model that has only these parameters, in this precision."""
        kept = (f for f in self.fields if not f.needs or f.needs in parameters)
        fields = (dataclasses.replace(f, dtype=dtype) if f.dtype == PARAM else f for f in kept)
        return dataclasses.replace(self, fields=tuple(fields))


COMMIT = Field(
    "crc32",
    (),
    "u8",
    "commit record",
    formula="2^32 + CRC-32 of the row's bytes, row label first and then the datasets in the order of the "
    "attribute `fields`; anything below 2^32: not written",
)


def misfit(
    declared: Mapping[str, Table],
    scales: Scales,
    wanted: Iterable[Table],
    lengths: Mapping[str, int],
) -> str:
    """How a file differs from `wanted` tables with axes of these lengths; empty if it does not.

    declared and scales: the tables and axes of the file.
    """
    for table in wanted:
        fields = {field.name: field for field in declared[table.group].fields} if table.group in declared else {}
        for field in table.fields:
            where, other = f"{table.group}/{field.name}".removeprefix("//"), fields.get(field.name)
            if other is None:
                return f"{where} is missing"
            if (other.dims, other.dtype) != (field.dims, field.dtype):
                form = " ".join([*other.dims, other.dtype])
                return f"{where} is {form}, not {' '.join([*field.dims, field.dtype])}"
            for dim in field.dims:
                if lengths.get(dim, len(scales[dim])) != len(scales[dim]):
                    return f"{where} has {len(scales[dim])} along {dim}, not {lengths[dim]}"
    return ""
