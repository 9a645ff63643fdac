"""`landscape hessian --curve`: the index curves of a file hold the dense counts, in every form that shows them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import TINY
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from numpy.typing import NDArray

import landscape
from landscape.choices.optimizers import coupled_decay
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.curvature.curve import TAUS
from landscape.measure.tables import by_block

BLOCKS = ("E", "E,W", "W,V")


def dense_counts(certified: HessianReader, step: int, block: str, norm: float) -> NDArray[np.int64]:
    """Eigenvalues below -tau norm of a block all of whose eigenvalues are stored."""
    values = certified.spectra(step)[block]
    return (values[:, None] < -np.array(TAUS) * norm).sum(0)


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "dense", "spectra": "ends"}, {"method": "lanczos"}, {"method": "lanczos", "certify": True}],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_curves_hold_the_dense_counts(
    options: dict[str, object], tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path
) -> None:
    """From all eigenvalues, by factorisations, by products; the curve agrees with the index, whatever its tau."""
    config = HessianConfig(steps="0,60", blocks=BLOCKS, curve=True, device="cpu", **options)  # type: ignore[arg-type]
    file = analyse(tiny_run, config, tmp_path / "h.h5", quiet=True)
    assert "index_curve_lower" not in analyse(
        tiny_run, HessianConfig(steps="0", blocks=BLOCKS[:1], device="cpu"), tmp_path / "without.h5", quiet=True
    ).row(0)
    covered: list[bool] = []
    for step in (0, 60):
        row = file.row(step)
        for i, block in enumerate(BLOCKS):
            lower, upper = row["index_curve_lower"][i], row["index_curve_upper"][i]
            norm = row["operator_norm"][i]
            true = dense_counts(tiny_hessian, step, block, norm)
            assert (lower <= true).all()
            assert (true <= upper).all()
            beyond = np.array(TAUS) * norm
            assert (lower[beyond <= row["inertia_tolerance"][i]] >= row["inertia_lower"][i]).all()
            if options.get("method") == "lanczos":
                is_open = lower < upper
                low, high = (row[f"index_curve_estimate{end}"][i] for end in ("_low", "_high"))
                covered.extend(((low <= true) & (true <= high))[is_open])
                if is_open.any():
                    assert row["num_products"][i] > 8 * min(80, len(tiny_hessian.spectra(step)[block]))
            else:
                np.testing.assert_array_equal(lower, upper)
                assert row["index_curve_failure_probability"][i] == 0
    # Each interval holds at 95 %, and these are a few draws.
    assert np.mean(covered or [True]) > 0.8


def test_every_form_shows_the_curve(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The axis has the tolerances; frames, CSV, JSON, tables and sentences have the counts of the file."""
    out = tmp_path / "h.h5"
    command = ["hessian", tiny_run, "--steps", "0,60", "--blocks", "E,W", "W,V", "--curve", "--out", out, "--quiet"]
    assert cli.run([*map(str, command)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    with landscape.open(out) as file:
        data = file.to_xarray()
        assert data["tau"].values.tolist() == list(TAUS)
        counts = data["index_curve_lower"].sel(step=60)
        long, wide = file.to_dataframes()["by_step_block_tau"], file.to_dataframe()
        lines = by_block(file)
    pair = counts.sel(block="E,W").values.astype(int)
    np.testing.assert_array_equal(
        long[(long["step"] == 60) & (long["block"] == "E,W")].sort_values("tau")["index_curve_lower"], pair[::-1]
    )
    (row,) = wide[(wide["step"] == 60) & (wide["block"] == "E,W")].to_dict("records")
    assert [row[f"index_curve_lower_{tau:.0e}"] for tau in TAUS] == list(pair)
    assert "index_curve_estimate_1e-10" not in wide
    assert f"the saddle index of E,W is {pair[8]} at τ = 1e-8 ‖H‖, and {pair[2]} at 1e-2" in printed
    assert f"{pair[10]} at" in printed
    titles, *cells = lines
    assert [
        line[titles.index("n- at 1e-2, 1e-4, 1e-6, 1e-8, 1e-10")] for line in cells if line[:2] == ["60", "E,W"]
    ] == [", ".join(map(str, pair[2::2]))]
    assert cli.run([*map(str, command), "--csv"]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_array_equal(table["index_curve_upper_1e-10"], wide["index_curve_upper_1e-10"])
    assert cli.run([*map(str, command), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"][1]["index_curve_lower"][0] == list(pair)
    assert cli.run(["export", str(out), "--csv", str(tmp_path / "csv")]) == 0
    exported = pd.read_csv(tmp_path / "csv" / "by_step_block_tau.csv")
    np.testing.assert_array_equal(exported["index_curve_lower"], long["index_curve_lower"])


def test_depths_have_units(tiny_run: Path, tiny_hessian: HessianReader) -> None:
    """λ_min in units of |H|, and of the weight decay where that is part of the loss."""
    with landscape.open(tiny_hessian.path) as file:
        titles, *lines = by_block(file)
    row = tiny_hessian.row(60)
    at = tiny_hessian.blocks.index("E,W")
    (cells,) = (dict(zip(titles, line, strict=True)) for line in lines if line[:2] == ["60", "E,W"])
    lowest = row["eigenvalues"][at, 0, 0]
    assert float(cells["lmin/|H|"]) == pytest.approx(lowest / row["operator_norm"][at], rel=1e-2)
    assert float(cells["lmin/wd"]) == pytest.approx(lowest / TINY.weight_decay, rel=1e-2)
    decays = {"optimizer": "adam", "penalty": "l2", "weight_decay": 0.1}
    assert coupled_decay(decays) == 0.1
    for without in (
        decays | {"optimizer": "adamw"},
        decays | {"penalty": "nuclear"},
        decays | {"weight_decay": 0.0},
        {"kind": "recorded"},
    ):
        assert np.isnan(coupled_decay(without))


def test_the_sharpness_alone_has_no_curve(assert_refused: Refusal, tiny_run: Path) -> None:
    assert_refused(
        ["hessian", tiny_run, "--only", "sharpness", "--curve"],
        2,
        "only is sharpness, but curve asks for more",
        "leave out --only or --curve",
        [tiny_run],
    )


def test_a_critical_point_has_a_curve(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`landscape critical --curve` quotes it, at the objective that it refines."""
    out = tmp_path / "c.h5"
    command = f"critical {tiny_run} --step 60 --search-hvps 30 --blocks E,W --curve --out {out} --quiet"
    assert cli.run(command.split()) == 3
    row = HessianReader(out).row(60)
    text = " ".join(capsys.readouterr().out.split())
    assert f"the saddle index of E,W is {row['inertia_lower'][0]} at" in text
    assert row["index_curve_lower"].shape == (1, 11)
