"""The measurements of a file as tables for people who work with data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import xarray

if TYPE_CHECKING:
    import pandas as pd

ARRAYS = ("checkpoints", "buffers", "moments", "resume", "data", "eigenvectors")
"""Groups of parameters and data, which are no measurements."""
_OWN_AXIS = "param_row_"
"""An axis with this and a block's name is that block's alone."""


def tables(groups: Iterable[tuple[str, xarray.Dataset]]) -> dict[str, pd.DataFrame]:
    """The measurements in groups of a file as tidy tables by name; see `File.to_dataframes`."""
    frames = {}
    for group, data in groups:
        data = _stacked(data)
        if group in ("critical_point", "settled"):
            # Their arrays are parameters.
            data = data[[name for name, values in data.items() if values.ndim == 1]]
        for axes in dict.fromkeys(values.dims for values in data.values()):
            part = data[[name for name, values in data.items() if values.dims == axes]].map(_words)
            name = "_".join(["" if group == "/" else group, "by", *map(str, axes)]).lstrip("_")
            counts = {name: "Int64" for name, values in part.items() if _is_masked_count(values)}
            frame = part.to_dataframe(dim_order=list(axes)).astype(counts).reset_index()
            quantities = [str(name) for name in part.data_vars]
            frames[name] = frame[frame[quantities].notna().any(axis=1)].reset_index(drop=True)
            frames[name].attrs["axes"] = list(axes)
    return frames


def beside(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """A table with one that has one more axis, of numbers: in a column for each that has any, the largest first."""
    *shared, last = other.attrs["axes"]
    wide = other.pivot(index=shared, columns=last)
    wide = wide.loc[:, wide.notna().any()].sort_index(axis=1, level=last, ascending=False, sort_remaining=False)
    wide.columns = [f"{name}_{label:.0e}" for name, label in wide.columns]
    joined = table.merge(wide.reset_index(), on=shared, how="left")
    joined.attrs = table.attrs
    return joined


def _stacked(data: xarray.Dataset) -> xarray.Dataset:
    """The same with arrays by block that each have an axis of their own, such as spectra, as one by block and row."""
    own = {str(name): values for name, values in data.items() if values.dims[1:] == (f"{_OWN_AXIS}{name}",)}
    if not own:
        return data
    rows = [values.rename({values.dims[1]: "row"}).expand_dims(block=[name], axis=1) for name, values in own.items()]
    stacked = xarray.concat(rows, "block", join="outer").rename("eigenvalue")
    return data.drop_dims([values.dims[1] for values in own.values()]).merge(stacked)


def _is_masked_count(values: xarray.DataArray) -> bool:
    """Whether these are integers in the file, which are floating-point numbers here since some are unknown."""
    return values.dtype.kind == "f" and np.dtype(values.encoding.get("dtype", float)).kind == "i"


def _words(values: xarray.DataArray) -> xarray.DataArray:
    """The meanings of codes; other values unchanged."""
    if "flag_values" not in values.attrs:
        return values
    codes, meanings = np.atleast_1d(values.attrs["flag_values"]), str(values.attrs["flag_meanings"]).split()
    words = dict(zip(codes.tolist(), meanings, strict=True))
    return values.copy(data=np.vectorize(words.__getitem__, otypes=[object])(values.values))
