"""What the trial's page shows of the embedding's geometry at the end of training, and the circles of its film."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from landscape.report.film import known
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_claims import number
from page_figures import film
from page_links import Linked, setup
from page_tasks import TASKS
from scale import which

from landscape.measure.embeddings import EXPONENTS
from landscape.report.style import palette, shades

COLUMNS = {
    "frequencies in use": "num_frequencies",
    "largest share of a frequency": "top_frequency_share",
    "the same in the other order": "other_order_share",
    "circle R²": "top_circle_r2",
    "share of the first component": "top_component_share",
    "participation ratio": "participation_ratio",
    "distance R² of a circle": "distance_r2_circular",
    "distance R² of a line": "distance_r2_linear",
    "distance R² of both": "distance_r2",
    "largest |ρ|": "line_spearman",
    "scaling index": "scaling_index",
    "PLS Q²": "pls_q2",
    "test loss": "test_loss",
    "restricted test loss": "test_restricted_loss",
    "excluded test loss": "test_excluded_loss",
}
"""Column of geometry.csv by what heads it on the page."""
INDEX = "scaling_index"
LIMITS = (float(EXPONENTS[0]), float(EXPONENTS[-1]))
"""Between which the scaling index was searched."""
LEVEL = 0.01


def last_geometry(scales: Sequence[Linked]) -> dict[str, Any] | None:
    """Medians with ranges over seeds by scale and task; how many scaling indices are at a limit. None of no runs."""
    studied = [one for one in scales if "geometry" in one.tables]
    if not studied:
        return None
    tasks = [(words, (one, known, rows)) for one in studied for words, known, rows in by_task(one)]
    settings = {words: quantities(*of) for words, of in tasks}
    at_limits = pd.concat([one.tables["geometry"] for one in studied])[INDEX].isin(LIMITS)
    first = studied[-1].tables["geometry"].iloc[0]
    return {
        "settings": list(settings),
        "rows": {name: [cells[name] for cells in settings.values()] for name in ("grokked", *COLUMNS)},
        "lower": {words: count for words, of in tasks if (count := lower(*of))},
        "limits": studied[-1].link("geometry", f"{at_limits.sum()} of {len(at_limits)}", study=first["study"]),
    }


def by_task(scale: Linked) -> Iterator[tuple[str, Mapping[str, str], pd.DataFrame]]:
    """Each task of a scale in words, the values that name it, and its rows of geometry.csv."""
    for (study, task), rows in scale.tables["geometry"].groupby(["study", "task"], sort=False):
        yield f"{scale.name}, {TASKS[task]}", {"study": study, "task": task}, rows


def quantities(scale: Linked, known: Mapping[str, str], rows: pd.DataFrame) -> Mapping[str, Markup]:
    """The quantities of a task by name."""
    grokked = which(scale.tables["runs"], **known)["grokked"]
    texts = {"grokked": f"{grokked.notna().sum()} of {len(grokked)}"}
    texts |= {name: cell(rows, column) for name, column in COLUMNS.items()}
    return {name: scale.link("geometry", text, **known) for name, text in texts.items()}


def lower(scale: Linked, known: Mapping[str, str], rows: pd.DataFrame) -> Markup | None:
    """In how many runs of a task restricted loss is below test loss; None where it was not measured."""
    of = rows.dropna(subset="test_restricted_loss")
    below = of["test_restricted_loss"] < of["test_loss"]
    return scale.link("geometry", f"{below.sum()} of {len(below)}", **known) if len(of) else None


def cell(rows: pd.DataFrame, column: str) -> str:
    """The median with the least and the largest; in how many runs it beats 99 % of chance, of what has a null.

    Of the scaling index that alone: it is the exponent of the best fit, which has the null.
    """
    values = rows[column]
    if values.isna().all():
        return "–"
    if column == INDEX:
        return f"({int((rows['scaling_r2_p'] <= LEVEL).sum())})"
    middle, low, high = (number(float(value)) for value in (values.median(), values.min(), values.max()))
    text = middle if low == high else f"{middle} [{low}, {high}]"
    return f"{text} ({int((rows[p] <= LEVEL).sum())})" if (p := f"{column}_p") in rows else text


def film_of_circles(scale: Linked) -> dict[str, Any] | None:
    """What film.js shows of the run whose circles are known; None where there is none.

    Its blocks were analysed at some of these steps alone.
    """
    if "circles" not in scale.tables:
        return None
    places, shares = scale.tables["circles"], scale.tables["frequencies"]
    of_run = {name: places[name].iloc[0] for name in ("study", "case", "seed")}
    (run,) = which(scale.tables["runs"], **of_run).to_dict("records")
    analysed = film(
        which(scale.tables["curvature"], **of_run),
        which(scale.tables["metrics"], **of_run),
        f"{scale.name}/curvature.csv",
    )
    blocks = {one["step"]: one["blocks"] for one in analysed["steps"]}
    found = {str(step): circle(rows) for step, rows in places.groupby("step") if rows["frequency"].iloc[0] > 0}
    steps = sorted({*blocks, *map(int, found)})
    curves = dict(iter(shares.groupby("frequency")))
    last = places[places["step"] == places["step"].max()]["number"]
    return {
        **analysed,
        "steps": [{"step": step, "blocks": blocks.get(step, {})} for step in steps],
        "frequencies": {
            **{name: next(iter(curves.values()))[name].tolist() for name in ("step", "chance")},
            "curves": [
                {"frequency": int(k), "colour": to_hex(tint), "share": rows["share"].tolist()}
                for (k, rows), tint in zip(curves.items(), palette(len(curves)), strict=True)
            ],
        },
        "circles": found,
        "numbers": [{"number": n, "colour": to_hex(tint)} for n, tint in zip(last, shades(len(last)), strict=True)],
        **{event: known(run[event]) for event in ("memorised", "grokked")},
        "run": run["file"],
        "setting": setup(pd.DataFrame([run])),
    }


def circle(rows: pd.DataFrame) -> dict[str, Any]:
    """The numbers in the plane of one step's largest frequency."""
    first = rows.iloc[0]
    places = {axis: rows[axis].tolist() for axis in ("x", "y")}
    return {"frequency": int(first["frequency"]), "share": float(first["share"]), "r2": float(first["r2"]), **places}
