"""What results look like in a notebook: each form has the numbers of the fields."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TINY
from helpers.hessians import HessianReader
from matplotlib import pyplot

import landscape
from landscape import HessianOperator, MatrixOperator, Objective
from landscape.config import AnalysisConfig, SliceConfig
from landscape.jobs.plan import SweepRun
from landscape.jobs.run import Failure, SweepResult
from landscape.measure.slices import slice as slice_checkpoint
from landscape.results import Curve, Interval, Result, Surface, curves
from landscape.training.loop import summarise

mpl.use("Agg")


@pytest.fixture(scope="module")
def results(tiny_run: Path) -> dict[str, Result]:
    """One of each kind, of a small network and of a matrix."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    x, y = torch.randn(9, 3), torch.arange(9) % 2
    objective, params = Objective(model, x, y, weight_decay=0.1), dict(model.named_parameters())
    hessian = HessianOperator(objective, params)
    one, other = (hessian.block([name]) for name in ("0.weight", "2.weight"))
    parts = (one, hessian.block(["0.weight"], ["2.weight"]), other)
    matrix = MatrixOperator(torch.diag(torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)))
    large = torch.randn(60, 60, dtype=torch.float64)
    spectrum = landscape.eigsh(one, k=3)
    objects = [
        spectrum,
        landscape.eigsh(one, k=2, which="lowest"),
        landscape.saddle_index(matrix),
        landscape.saddle_index(MatrixOperator(large + large.T), method="lanczos"),
        landscape.coupling(*parts, abs_tau=1.0),
        landscape.excess_index(*parts),
        landscape.spectral_density(one),
        landscape.trace(hessian, probes=6),
        landscape.track(spectrum.vectors, spectrum.vectors),
        landscape.slice_lines(objective, params, ["0.weight"], spectrum.vectors[0, :, :2], np.linspace(-1, 1, 5)),
        landscape.find_critical_point(objective, params, max_hvps=50),
        landscape.descend(objective, params, max_steps=2),
        slice_checkpoint(tiny_run, 60, SliceConfig(block="E", points=5, plane_points=3), AnalysisConfig(device="cpu")),
        landscape.index_curve(MatrixOperator(large + large.T), method="lanczos"),
        landscape.pca_plane([{"w": torch.randn(2, 3)} for _ in range(4)]),
        slice_checkpoint(tiny_run, 60, SliceConfig(plane="pca", plane_points=3), AnalysisConfig(device="cpu")),
        landscape.frobenius_norm(hessian),
        landscape.diagonal(hessian),
        landscape.block_densities(hessian),
        landscape.kfac_distance(hessian),
        landscape.solve(hessian.shift(10.0), torch.ones(hessian.shape[0], 2).double()),
        landscape.influence(hessian, params, damping=10.0),
    ]
    return {f"{i} {type(result).__name__}": result for i, result in enumerate(objects)}


def test_every_kind_of_result_is_here(results: dict[str, Result]) -> None:
    public = {value for name in landscape.__all__ if isinstance(value := getattr(landscape, name), type)}
    assert {kind for kind in public if issubclass(kind, Result)} <= set(map(type, results.values()))
    assert [kind for kind in public if kind.__repr__ is object.__repr__] == []
    assert {kind.__name__ for kind in public if dataclasses.is_dataclass(kind) and not issubclass(kind, Result)} == {
        "HessianConfig", "SweepConfig", "TrainConfig",
    }  # fmt: skip


def test_short_forms(results: dict[str, Result]) -> None:
    """A line for each field; the HTML is well formed and says the same, whatever the text in it."""
    for result in results.values():
        title, *lines = repr(result).splitlines()
        assert title == type(result).__name__
        assert len(lines) <= 20
        assert max(map(len, lines)) <= 160
        shown = [" ".join(line.split()) for line in lines]
        table = ET.fromstring(result._repr_html_())
        assert [" ".join(" ".join(row.itertext()).split()) for row in table.findall("tr")] == [
            " ".join(line.split(maxsplit=1)) for line in shown
        ]
    renamed = dataclasses.replace(results["6 SpectralDensity"], width="<script>&\x1b")
    assert "".join(ET.fromstring(renamed._repr_html_()).itertext()).count("<script>&\\x1b") == 1


def test_datasets_have_every_number(results: dict[str, Result]) -> None:
    """Each array has names of axes; numbers and words are there too."""
    for name, result in results.items():
        data = result.to_xarray()
        for field in dataclasses.fields(result):
            value = getattr(result, field.name)
            if value is None or isinstance(value, Mapping) or dataclasses.is_dataclass(value):
                continue
            array = data[field.name]
            assert not any(str(dim).startswith("dim_") for dim in array.dims), (name, field.name)
            expected = value.detach().numpy() if isinstance(value, torch.Tensor) else value
            np.testing.assert_array_equal(array.values, expected)
    both, lowest = (results[name].to_xarray() for name in ("0 EigenResult", "1 EigenResult"))
    assert both["values"].sel(end="highest", rank=0) == results["0 EigenResult"].values[1, 0]  # type: ignore[attr-defined]
    assert list(lowest["end"].values) == ["lowest"]
    assert set(results["1 EigenResult"].to_dataframe()["end"]) == {"lowest"}
    estimated: Any = results["3 Inertia"]
    assert estimated.to_xarray()["estimate_value"] == estimated.estimate.value


def test_data_frames(results: dict[str, Result]) -> None:
    """A row for each entry of the main array, with the others beside it; a row of numbers without an array."""
    eigen: Any = results["0 EigenResult"]
    frame = eigen.to_dataframe().set_index(["end", "rank"])
    assert len(frame) == eigen.values.size
    for end, name in enumerate(("lowest", "highest")):
        assert frame["values"][name].tolist() == eigen.values[end].tolist()
        assert set(frame["hidden"][name]) == {eigen.hidden[end]}
    slices: Any = results["9 Slice"]
    frame = slices.to_dataframe().set_index(["direction", "point"])
    assert frame["loss"][1, 3] == slices.loss[1, 3]
    assert frame["t"][1, 3] == slices.t[3]
    assert frame["slope"][1, 3] == slices.slope[1]
    (row,) = results["2 Inertia"].to_dataframe().to_dict("records")
    assert (row["negative"], row["zero"], row["positive"], row["level"]) == (1, 0, 2, "certified")


def test_plots(results: dict[str, Result]) -> None:
    """The curves have the numbers of the result; axes that are given are drawn on, and returned."""
    for name, result in results.items():
        assert isinstance(result, Curve | Interval | Surface | landscape.BlockDensities)
        ax = result.plot()
        assert ax.get_ylabel(), name
        assert ax.lines or ax.collections
        assert result.plot(ax) is ax
        pyplot.close(ax.figure)
    density: Any = results["6 SpectralDensity"]
    (line,) = density.plot(pyplot.figure().add_subplot()).lines
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([density.grid, density.density]))
    assert (line.axes.get_xlabel(), line.axes.get_ylabel()) == ("eigenvalue", "spectral density")
    spectrum: Any = results["0 EigenResult"]
    lowest, highest = spectrum.plot(pyplot.figure().add_subplot()).lines
    assert lowest.get_label() == "lowest"
    np.testing.assert_array_equal(highest.get_ydata(), spectrum.values[1])
    search: Any = results["10 CriticalPoint"]
    ax = search.plot()
    assert ax.get_yscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), search.hvps)
    assert (search.gradient_norms[-1], search.hvps[-1]) == (search.grad_norm, search.num_products)
    assert len(search.hvps) == search.iterations + 1
    ax = results["2 Inertia"].plot(pyplot.figure().add_subplot())
    assert ax.lines[0].get_ydata().tolist() == [1]
    pyplot.close("all")


def test_short_forms_of_what_results_are_made_from(tmp_path: Path) -> None:
    """Operators and problems name their shapes and parameters, of many the first and their number."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(6))).double()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.arange(5) % 2
    objective, params = Objective(model, x, y), dict(model.named_parameters())
    examples = {
        "rows 0.weight": HessianOperator(objective, params).block(["0.weight"]),
        "5.weight, 5.bias": HessianOperator(objective, params).block(["5.weight", "5.bias"]),
        "3.weight, 3.bias and 4 more": HessianOperator(objective, params),
        "error 0.5": MatrixOperator(torch.eye(3), 0.5),
        "count 5": objective,
        "0.weight (2, 2), 0.bias (2,)": landscape.ModuleProblem(model, x, y),
        "dimension 6": landscape.SoftmaxShift({"V": torch.zeros(3, 6)}, ["V"]),
        f"path {tmp_path / 'r.h5'}": landscape.Recorder(tmp_path / "r.h5", model),
    }
    for words, shown in examples.items():
        text = repr(shown)
        assert text.startswith(f"{type(shown).__name__}\n")
        assert words in " ".join(text.split())
        ET.fromstring(shown._repr_html_())


def test_a_sweep_is_a_table(tiny_run: Path) -> None:
    """How many runs grokked, what failed, and a row a run."""
    run = SweepRun({"case": "base", "seed": 3}, tiny_run, TINY, {})
    sweep = SweepResult([(run, summarise(tiny_run))], [], [Failure(Path("x.h5"), "it broke", "mend it")])
    assert "reached by 0 of 1" in repr(sweep)
    assert "x.h5: it broke" in repr(sweep)
    (row,) = sweep.to_dataframe().to_dict("records")
    assert (row["seed"], row["path"], row["grok_step"], row["steps"]) == (3, str(tiny_run), None, 60)


def test_a_sweep_is_drawn_by_setting(tiny_run: Path) -> None:
    """A dot a run that grokked; one that did not has a mark of its own at its last step."""
    summary = dataclasses.replace(summarise(tiny_run), steps=60)
    steps = {("base", 1.0, 0): 20, ("base", 1.0, 1): 40, ("base", 9.0, 0): None}
    runs = [
        (
            SweepRun(dict(zip(("case", "lr_ratio", "seed"), labels, strict=True)), tiny_run, TINY, {}),
            dataclasses.replace(summary, grok_step=step),
        )
        for labels, step in steps.items()
    ]
    sweep = SweepResult(runs, [], [])
    axes = sweep.plot()
    dots, never = (line.get_xydata() for line in axes.lines)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["base, 1.0", "base, 9.0"]
    np.testing.assert_array_equal(dots, [[0, 20], [0, 40], [1, np.nan]])
    np.testing.assert_array_equal(never, [[0, np.nan], [0, np.nan], [1, 60]])
    assert sweep.plot(axes) is axes
    assert sweep.to_xarray()["lr_ratio"].dims == ("run",)
    assert sweep.to_xarray()["lr_ratio"].values.tolist() == [1.0, 1.0, 9.0]


def test_files_are_tables_and_plots(tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """Accuracies over steps, or all metrics of a run without them; the index of every block."""
    with landscape.open(tiny_run) as run, landscape.open(tiny_hessian.path) as hessian:
        assert run.to_dataframe().equals(run.to_dataframes()["metrics_by_metric_step"])
        table = hessian.to_dataframes()["by_step_block"]
        assert hessian.to_dataframe()[list(table)].equals(table)
        train, test = run.plot().lines
        np.testing.assert_array_equal(test.get_ydata(), run.metrics["test_accuracy"])
        assert train.get_label() == "train_accuracy"
        axes = hessian.plot()
        at = hessian.blocks.index("E,W")
        drawn = next(line for line in axes.lines if line.get_label() == "E,W")
        counts = [tiny_hessian.row(step)["inertia_lower"][at] for step in tiny_hessian.steps]
        np.testing.assert_array_equal(drawn.get_xydata(), np.column_stack([tiny_hessian.steps, counts]))
        assert hessian.plot(axes) is axes
        assert hessian.to_xarray().identical(landscape.open(tiny_hessian.path).to_xarray())
        with pickle.loads(pickle.dumps(hessian)) as again:
            assert (type(again), again.to_dataframe().equals(hessian.to_dataframe())) == (type(hessian), True)
    model = torch.nn.Linear(1, 1)
    for name, metrics in (("a", {"loss": 2.0}), ("b", {})):
        with landscape.Recorder(tmp_path / f"{name}.h5", model) as recorder:
            recorder.checkpoint(0)
            if metrics:
                recorder.metrics(0, **metrics)
    with landscape.open(tmp_path / "a.h5") as run:
        assert [line.get_label() for line in run.plot().lines] == ["loss"]
    refusal = pytest.raises(landscape.LandscapeError, match="b.h5 holds no metrics")
    with landscape.open(tmp_path / "b.h5") as run, refusal:
        run.plot()
    pyplot.close("all")


@pytest.mark.parametrize("name", ["$x$", "$x_{$", "_x"])
def test_names_are_drawn_as_they_are(name: str, tiny_run: Path) -> None:
    """Matplotlib would take dollars for mathematics, or fail on them, and leave an underscore's out of the legend."""
    axes = curves(pd.DataFrame({"step": [0, 1], "y": [2, 3], "block": name}), None, "step", "y", "block")
    (label,) = axes.get_legend().get_texts()
    summary = dataclasses.replace(summarise(tiny_run), grok_step=20)
    swept = SweepResult([(SweepRun({"case": name}, tiny_run, TINY, {}), summary)], [], []).plot()
    swept.figure.canvas.draw()
    axes.figure.canvas.draw()
    for text in (label.get_text(), *(tick.get_text() for tick in swept.get_xticklabels())):
        assert text.replace(r"\$", "$").strip() == name
        assert not text.replace(r"\$", "").count("$")
    pyplot.close("all")


def test_the_reference_shows_what_functions_return() -> None:
    """Every class of the package that a public function's signature returns."""
    page = (Path(__file__).parents[2] / "docs/api.rst").read_text()
    shown = set(re.findall(r"^\.\. auto\w+:: landscape\.(?:[\w.]+\.)?(\w+)$", page, re.MULTILINE))
    functions = [
        value
        for name in landscape.__all__
        if callable(value := getattr(landscape, name)) and not isinstance(value, type)
    ]
    returned: set[str] = set()
    for function in map(inspect.unwrap, functions):
        for word in re.findall(r"\w+", inspect.signature(function).return_annotation):
            kind = function.__globals__.get(word)
            if isinstance(kind, type) and kind.__module__.startswith("landscape."):
                returned.add(word)
    assert {"RunSummary", "SweepRun", "Slice"} <= returned <= shown
