"""What results have in common: a short text and HTML form, data frames, datasets and a plot, made from their fields."""

from __future__ import annotations

import abc
import dataclasses
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from landscape.text import first_few, literal, printable

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes

_FEW = 8
"""Entries of an array or a list that are shown one by one."""


class Described(abc.ABC):
    """An object that shows itself as a short list of facts."""

    @abc.abstractmethod
    def facts(self) -> Iterable[tuple[str, object]]:
        """What there is to say, by name."""

    def __repr__(self) -> str:
        shown = [(name, printable(_short(value))) for name, value in self.facts()]
        width = max((len(name) for name, _ in shown), default=0)
        return "\n".join([type(self).__name__, *(f"  {name:{width}}  {value}" for name, value in shown)])

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='text-align:left'>{html.escape(printable(name))}</th>"
            f"<td style='text-align:left'>{html.escape(printable(_short(value)))}</td></tr>"
            for name, value in self.facts()
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


class Shown(Described):
    """An object that shows some of its attributes: the names of these."""

    shown: ClassVar[tuple[str, ...]]

    def facts(self) -> Iterator[tuple[str, object]]:
        """These attributes."""
        yield from ((name, getattr(self, name)) for name in self.shown)


class Result(Described):
    """A dataclass of numbers, some of them arrays with named axes.

    axes: those of each array field, the main one first; a field of the same length as an axis may label it.
    """

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def facts(self) -> Iterator[tuple[str, object]]:
        """The fields."""
        yield from _fields(self)

    def to_xarray(self) -> xarray.Dataset:
        """All fields but parameters and vectors of None, with named axes."""
        import xarray

        variables: dict[str, Any] = {}
        for name, value in _fields(self):
            if value is not None and not isinstance(value, Mapping):
                variables[name] = (self.axes.get(name, ()), _array(value))
        data = xarray.Dataset(variables)
        labels = {axis: names for axis, names in self._labels().items() if data.sizes.get(axis) == len(names)}
        return data.assign_coords(labels)

    def _labels(self) -> Mapping[str, Sequence[str]]:
        """Names along axes, for those that are as long."""
        return {"end": ["lowest", "highest"]}

    def to_dataframe(self) -> pd.DataFrame:
        """A row for each entry of the main array, with the others along its axes; one row where there is no array."""
        import pandas as pd

        data, main = self.to_xarray(), next(iter(self.axes.values()), ())
        if not main:
            return pd.DataFrame([{name: values.item() for name, values in data.items()}])
        along = [name for name, values in data.items() if values.dims and set(values.dims) <= set(main)]
        return data[along].to_dataframe(dim_order=list(main)).reset_index()


class Curve(Result):
    """A result that is drawn as y over x, one curve for each value of `by`, with a band.

    spread: half the width of the band, or its lower and upper ends.
    """

    x: ClassVar[str]
    y: ClassVar[str]
    by: ClassVar[str] = ""
    spread: ClassVar[str | tuple[str, str]] = ""
    level: ClassVar[float | None] = None
    """A horizontal line that the values are compared with."""
    words: ClassVar[Mapping[str, str]] = {}
    """What the axes of a plot are called, where their fields have short names."""

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the result on matplotlib axes, by default new ones, in a style of `Axes.plot`; returns the axes."""
        ax = curves(self.to_dataframe(), ax, self.x, self.y, self.by, self.spread, **style)
        ax.set(xlabel=self.words.get(self.x, ax.get_xlabel()), ylabel=self.words.get(self.y, ax.get_ylabel()))
        if self.level is not None:
            ax.axhline(self.level, color="0.7", linewidth=0.8, zorder=0)
        return ax


class Interval(Result):
    """A result that is drawn as one number between two bounds: the names of these three fields."""

    interval: ClassVar[tuple[str, str, str]]

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the result on matplotlib axes, by default new ones, in a style of `Axes.plot`; returns the axes."""
        ax, (name, *_) = _on(ax), self.interval
        value, low, high = (float(getattr(self, name)) for name in self.interval)
        ax.vlines(0, low, high, linewidth=3, alpha=0.4)
        # A number outside of its bounds is not known.
        if low <= value <= high:
            ax.plot(0, value, **{"marker": "o", **style})
        ax.set(xticks=[], ylabel=name.replace("_", " "))
        return ax


class Surface(Result):
    """A result that is drawn as contours of z over x and y, an array (y, x), with a line at a level."""

    x: ClassVar[str]
    y: ClassVar[str]
    z: ClassVar[str]
    level: ClassVar[str]

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the result on matplotlib axes, by default new ones, in a style of `Axes.contourf`; returns the axes."""
        ax = _on(ax)
        drawn = contours(ax, *(getattr(self, name) for name in (self.x, self.y, self.z, self.level)), **style)
        ax.figure.colorbar(drawn, ax=ax, label=self.z.replace("_", " "))
        ax.set(xlabel=self.x.replace("_", " "), ylabel=self.y.replace("_", " "))
        return ax


@dataclasses.dataclass(frozen=True, repr=False)
class Estimate(Interval):
    """A number with its standard error and a 95 % confidence interval.

    Attributes:
        value: the number.
        standard_error: of the value; 0 where nothing random was used.
        low, high: ends of the interval.
        num_products: Hessian-vector products.
    """

    interval = ("value", "low", "high")

    value: float
    standard_error: float
    low: float
    high: float
    num_products: int


def best_known(data: pd.DataFrame, prefix: str = "") -> pd.DataFrame:
    """A table with the columns `index`, `low` and `high` beside those of an index with these prefixes.

    They are the estimate with its interval, and the middle of the bounds between these where there is none.
    """
    lower, upper = (data[f"{prefix}{end}"].astype(float) for end in ("lower", "upper"))
    estimate, low, high = (data[f"{prefix}estimate{end}"] for end in ("", "_low", "_high"))
    return data.assign(index=estimate.fillna((lower + upper) / 2), low=low.fillna(lower), high=high.fillna(upper))


def curves(
    data: pd.DataFrame,
    ax: Axes | None,
    x: str,
    y: str,
    by: str = "",
    spread: str | tuple[str, str] = "",
    **style: Any,
) -> Axes:
    """Draw the columns y over x, one curve for each value of `by`; returns the axes.

    spread: a column with half the width of a band, or two with its ends; of a single place the band is a bar. style:
    of `Axes.plot`.
    """
    ax = _on(ax)
    for label, part in data.groupby(by, sort=False) if by else [(None, data)]:
        at, values = part[x].to_numpy(), part[y].to_numpy(float)
        usual = {"marker": "o" if len(at) <= 50 else "", "label": literal(str(label)) if by else None}
        (line,) = ax.plot(at, values, **(usual | style))
        if spread:
            if isinstance(spread, str):
                low, high = values - part[spread].to_numpy(float), values + part[spread].to_numpy(float)
            else:
                low, high = (part[end].to_numpy(float) for end in spread)
            if len(at) > 1:
                ax.fill_between(at, low, high, alpha=0.25, color=line.get_color())
            else:
                ax.vlines(at, low, high, alpha=0.4, linewidth=3, color=line.get_color())
    ax.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
    if by and len(data):
        ax.legend(title=by.replace("_", " "))
    return ax


def contours(ax: Axes, x: Any, y: Any, z: Any, level: float, **style: Any) -> Any:
    """Draw the array z (y, x) as contours, white at one level; returns what a colour bar takes.

    The levels are logarithmic where z spans decades.
    """
    from matplotlib.colors import LogNorm

    low, high, count = float(z.min()), float(z.max()), 20
    usual: dict[str, Any] = {"cmap": "viridis", "levels": count}
    if low > 0 and high > 30 * low:
        usual |= {"levels": np.geomspace(low, high, count), "norm": LogNorm(low, high)}
    drawn = ax.contourf(x, y, z, **(usual | style))
    ax.contour(x, y, z, levels=drawn.levels, colors="black", linewidths=0.3, alpha=0.5)
    if low < level < high:
        ax.contour(x, y, z, levels=[level], colors="white", linewidths=1)
    return drawn


def heat_map(square: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw distances from 0 to 1 between the rows and columns of a square table; returns the axes."""
    import seaborn as sns

    square = square.rename(index=_letters, columns=_letters)
    ax, is_small, longest = _on(ax), len(square) <= 8, max(map(len, square.index))
    sns.heatmap(
        square,
        vmin=0,
        vmax=1,
        cmap="rocket_r",
        annot=is_small,
        fmt=".2f",
        square=True,
        xticklabels=True,
        yticklabels=True,
        ax=ax,
        cbar_kws={"label": "Jensen–Shannon distance"},
    )
    ax.set(xlabel="", ylabel="block")
    ax.tick_params(labelsize="medium" if is_small else "x-small")
    ax.tick_params(axis="x", labelrotation=0 if longest < 4 else 90)
    ax.tick_params(axis="y", labelrotation=0)
    return ax


def events(data: pd.DataFrame, ax: Axes | None, x: str, y: str, last: str, **style: Any) -> Axes:
    """Draw the step y by category x, a dot a row, and a hollow triangle at step `last` without y; returns the axes."""
    ax = _on(ax)
    known, places = data[y].notna(), data[x].map(literal)
    usual: dict[str, Any] = {"marker": "o", "linestyle": "", "alpha": 0.7, "label": "reached"}
    ax.plot(places, data[y].where(known), **(usual | style))
    if not known.all():
        ax.plot(places, data[last].where(~known), "^", fillstyle="none", label="not reached by the last step")
        ax.legend()
    ax.set(xlabel=x, ylabel=y.replace("_", " "))
    return ax


def _letters(name: object) -> str:
    return literal(printable(name))


def _on(ax: Axes | None) -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1] if ax is None else ax


def _fields(result: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass, those of dataclasses inside it under both names."""
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{field.name}_")
        else:
            yield f"{prefix}{field.name}", value


def _array(value: Any) -> Any:
    """An array of numbers or words; of a torch tensor, too, on any device."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _short(value: Any) -> str:
    """One line about a value: numbers to six digits, long arrays by their shape and range."""
    if isinstance(value, Mapping):
        shapes = {name: f" {tuple(part.shape)}" if hasattr(part, "shape") else "" for name, part in value.items()}
        return first_few([f"{name}{shape}" for name, shape in shapes.items()], _FEW)
    if isinstance(value, list):
        return first_few(list(map(str, value)), _FEW)
    if isinstance(value, float):
        return f"{value:.6g}"
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return str(value)
    array = _array(value)
    if array.size <= _FEW:
        return np.array2string(array, precision=5, separator=", ", max_line_width=10**6).replace("\n", "")
    known = array[np.isfinite(array)]
    ends = f", {known.min():.5g} to {known.max():.5g}" if known.size else ""
    return f"{array.dtype} {' x '.join(map(str, array.shape))}{ends}"
