"""Saddle indices and curves of the MLP's pairs where they are no matrices: those that the dense blocks have."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY

from landscape import HessianConfig, hessian, train
from landscape.errors import DoesNotFitError

BLOCKS = ("E,W", "E[operands],W", "W,V")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tokens and rows of E that are independent."""
    path = tmp_path_factory.mktemp("wide") / "run.h5"
    train(dataclasses.replace(TINY, tokens=4, embed_dim=9, hidden=10, steps=40), path, quiet=True)
    return path


def measured(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    """The datasets of an analysis at one step, by name."""
    asked: dict[str, Any] = {"steps": "40", "blocks": BLOCKS, "certify": True, "curve": True, "rel_tau": 1e-4}
    file = hessian(run, HessianConfig(**{**asked, "device": "cpu", **options}), out, quiet=True)
    return {name: array.values[0] for name, array in file.to_xarray().items() if array.dims[0] == "step"}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["data", "regularised"])
def test_counts_are_those_of_the_dense_blocks(objective: str, run: Path, tmp_path: Path) -> None:
    """At the tolerance, without the gauge directions and along the curve; weight decay moves the tolerance."""
    dense = measured(run, tmp_path / "dense.h5", objective=objective)
    beyond = measured(run, tmp_path / "beyond.h5", objective=objective, method="lanczos")
    assert (beyond["inertia_level"] == dense["inertia_level"]).all()
    assert (beyond["inertia"][:, 0] == dense["inertia"][:, 0]).all()
    np.testing.assert_array_equal(beyond["saddle_index_gauge_free"], dense["saddle_index_gauge_free"])
    assert beyond["saddle_index_gauge_free"][0] >= 0
    curves = [(each["index_curve_lower"], each["index_curve_upper"]) for each in (dense, beyond)]
    assert (curves[0][0] <= curves[1][1]).all()
    assert (curves[1][0] <= curves[0][1]).all()
    # Down to 1e-8 nothing is open.
    assert (curves[1][0] == curves[1][1])[:, :9].all()


def test_f18_and_f14_narrow_the_bracket_by_default(run: Path, tmp_path: Path) -> None:
    """F14 and F18, without a factor."""
    options: dict[str, Any] = {"certify": False, "curve": False}
    dense = measured(run, tmp_path / "dense.h5", **options)
    beyond = measured(run, tmp_path / "beyond.h5", method="lanczos", **options)
    index = dense["inertia"][:, 0]
    assert (beyond["inertia_lower"] <= index).all()
    assert (index <= beyond["inertia_upper"]).all()
    assert beyond["inertia_failure_probability"].max() == 0


def test_a_factor_that_does_not_fit_is_refused_before_any_work(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its size; the hint leads to a bracket."""
    monkeypatch.setattr("landscape.devices.free_memory", lambda device: 1000)
    with pytest.raises(DoesNotFitError, match=r"takes a factor of order \d+ and .* GB") as error:
        measured(run, tmp_path / "out.h5", method="lanczos", blocks=BLOCKS[:1])
    assert not (tmp_path / "out.h5").exists()
    (limit,) = re.findall(r"factor.limit (\d+)", str(error.value.hint))
    rows = measured(run, tmp_path / "out.h5", method="lanczos", factor_limit=int(limit), blocks=BLOCKS[:1])
    monkeypatch.undo()
    dense = measured(run, tmp_path / "dense.h5", blocks=BLOCKS[:1])
    assert rows["inertia_lower"] <= dense["inertia"][:, 0] <= rows["inertia_upper"]


def test_a_search_narrows_what_theory_leaves_open(run: Path, tmp_path: Path) -> None:
    """Without a factor `--certify` searches, too: its bracket is no wider than the default's, and holds."""
    options: dict[str, Any] = {"method": "lanczos", "factor_limit": 0, "curve": False, "rel_tau": 1e-3}
    dense = measured(run, tmp_path / "dense.h5", **{**options, "method": "auto"})
    free, searched = (measured(run, tmp_path / f"{on}.h5", **options, certify=on) for on in (False, True))
    index = dense["inertia"][:, 0]
    assert (free["inertia_lower"] <= searched["inertia_lower"]).all()
    assert (searched["inertia_lower"] <= index).all()
    assert (index <= searched["inertia_upper"]).all()
    assert searched["inertia_lower"][2] > free["inertia_lower"][2]
