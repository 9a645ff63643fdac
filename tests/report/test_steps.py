"""Every figure over steps has the same axis, and lines where its runs memorised and grokked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray
from helpers.once import made_once
from helpers.recording import small

from landscape.measure.geometry import measure_geometry
from landscape.report.figures import FAMILIES
from landscape.report.figures.axes import EVENTS, EVENTS_OF_RUNS
from landscape.report.figures.several import BANDS
from landscape.report.figures.sources import Drawn, Source, open_sources
from landscape.report.style import palette, style
from landscape.training.recorder import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMORISED, GROKKED = 20, 40
WITHOUT_STEPS = {"spectra", "ratios", "embedding_circles"}
"""Families without a panel over steps."""


@pytest.fixture(scope="module")
def measured(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `tiny_run` with its Hessians and its geometry."""

    def copy(folder: Path) -> None:
        for path in tiny_run.parent.glob("tiny*.h5"):
            shutil.copy(path, folder)
        measure_geometry(folder / "tiny.h5", quiet=True)

    return made_once(tmp_path_factory, copy) / "tiny.h5"


def with_events(
    run: Path, memorised: int | None, grokked: int | None, other: Path | None = None, lr: float = 0.01
) -> Source:
    """The source of a run whose accuracies reach both events at these steps, or of a copy that is another run."""
    if other:
        for path in run.parent.glob(f"{run.stem}.*"):
            shutil.copy(path, other.with_name(path.name.replace(run.stem, other.stem, 1)))
    (source,) = open_sources([other or run])
    metrics: xarray.Dataset = source.metrics.copy(deep=True)
    for part, at in (("train", memorised), ("test", grokked)):
        step = metrics["metric_step"].values
        metrics[f"{part}_accuracy"][:] = 0.5 if at is None else 0.5 + 0.5 * (step >= at)
    source.__dict__["metrics"] = metrics
    if other:
        for attrs in ("run_attrs", "hessian_attrs"):
            source.__dict__[attrs] = getattr(source, attrs) | {"run_id": other.stem, "parent_run_id": other.stem}
        source.__dict__["config"] = source.config | {"lr": lr}
    return source


def over_steps(drawn: Drawn) -> list[Axes]:
    """The panels over steps, of which the upper ones of a column may have no label."""
    return [axis for axis in drawn.figure.axes if axis.axison and axis.get_xlim()[0] == pytest.approx(-0.1)]


def upright(axis: Axes) -> list[tuple[float, str, tuple[float, float], object]]:
    """Step, style, ends and colour of each upright line of a panel."""
    found = []
    for line in axis.lines:
        x, y = line.get_xdata(), line.get_ydata()
        if len(x) == 2 and x[0] == x[1]:
            found.append((float(x[0]), str(line.get_linestyle()), tuple(map(float, y)), line.get_color()))
    return found


def draw(name: str, *sources: Source) -> Drawn:
    with style():
        return FAMILIES[name](sources)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - WITHOUT_STEPS - {"recorded_metrics"}))
def test_of_one_run(name: str, measured: Path) -> None:
    """One axis, on which step 0 is seen, and both lines at the run's own steps, in the colours of the two sets."""
    drawn = draw(name, with_events(measured, MEMORISED, GROKKED))
    panels = over_steps(drawn)
    assert panels
    assert [axis for axis in drawn.figure.axes if axis.get_xlabel() == "step" and axis not in panels] == []
    blue, orange = palette(2)
    for axis in panels:
        assert axis.get_xscale() == "symlog"
        assert upright(axis) == [(MEMORISED, ":", (0, 1), blue), (GROKKED, ":", (0, 1), orange)]
    assert EVENTS in drawn.caption
    never = draw(name, with_events(measured, None, None))
    assert not any(map(upright, over_steps(never)))
    assert EVENTS not in never.caption


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - WITHOUT_STEPS - {"recorded_metrics"}))
def test_of_several_runs(name: str, measured: Path, tmp_path: Path) -> None:
    """Lines at medians, in which never is latest; short ones where another setting has its own."""
    first = [with_events(measured, at, grok, tmp_path / f"at{at}.h5") for at, grok in ((10, 30), (20, 50), (50, None))]
    other = [with_events(measured, 20, None, tmp_path / f"other{i}.h5", lr=0.5) for i in range(2)]
    colour, second = palette(2)
    alone = draw(name, *first)
    for axis in over_steps(alone):
        assert axis.get_xscale() == "symlog"
        assert upright(axis) == [(20, ":", (0, 1), colour), (50, "--", (0, 1), colour)]
    both = draw(name, *first, *other)
    for axis in over_steps(both):
        at = [(step, dashes, hue) for step, dashes, _, hue in upright(axis)]
        assert at == [(20, ":", colour), (50, "--", colour), (20, ":", second)]
        assert max(top for _, _, (_, top), _ in upright(axis)) < 0.2
    for drawn in (alone, both):
        assert over_steps(drawn)
        assert f"{BANDS} {EVENTS_OF_RUNS}" in drawn.caption


def test_runs_whose_accuracies_are_not_known_count_for_no_median(measured: Path, tmp_path: Path) -> None:
    """A Hessian file without its run is no run that never grokked."""
    runs = [with_events(measured, at, GROKKED, tmp_path / f"at{at}.h5") for at in (10, 20)]
    for source in runs[1:]:
        source.__dict__["metrics"] = source.metrics.drop_vars(["train_accuracy", "test_accuracy"])
    drawn = draw("saddle_index", *runs)
    assert [step for step, *_ in upright(over_steps(drawn)[0])] == [10, GROKKED]


def test_recorded_metrics_have_no_events(tmp_path: Path) -> None:
    """Nobody says that a network of another training loop memorises or groks."""
    with Recorder(tmp_path / "run.h5", small(), seed=0) as recorder:
        for step in range(0, 100, 10):
            recorder.metrics(step, train_accuracy=float(step >= 20), margin=float(step))
    drawn = draw("recorded_metrics", *open_sources([tmp_path / "run.h5"]))
    assert [upright(axis) for axis in over_steps(drawn)] == [[], []]
    assert EVENTS_OF_RUNS not in drawn.caption


@pytest.mark.parametrize(
    ("name", "told"),
    [("densities", "one block has no distance"), ("extreme_eigenvalues", "no block has negative curvature")],
)
def test_an_empty_panel_has_no_lines_of_events(name: str, told: str, measured: Path) -> None:
    source = with_events(measured, MEMORISED, GROKKED)
    source.__dict__["measured"] = of = source.measured.sel(block=["E"]).drop_vars("saddle_bound_constants")
    of["eigenvalues"] = abs(of["eigenvalues"])
    of["saddle_bound"][:] = np.nan
    drawn = draw(name, source)
    assert drawn.figure.axes[1].texts[0].get_text() == told
    assert not drawn.figure.axes[1].lines
    assert (EVENTS in drawn.caption) == (name == "extreme_eigenvalues")


def test_captions_say_nothing_of_lines_that_no_setting_has(measured: Path, tmp_path: Path) -> None:
    """Of three runs one memorises, so that the median never does."""
    runs = [with_events(measured, at, None, tmp_path / f"{i}.h5") for i, at in enumerate((10, None, None))]
    drawn = draw("saddle_index", *runs)
    assert not any(map(upright, over_steps(drawn)))
    assert EVENTS_OF_RUNS not in drawn.caption
