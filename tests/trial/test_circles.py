"""The geometry at the end of training and the film of circles: rows from the raw files, and what the page shows."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path

import circles
import h5py
import numpy as np
import page
import pandas as pd
import pytest
from helpers.made_tables import NETWORK, judge_beyond, write_tables
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES, TINY
from page_geometry import COLUMNS
from runs import finished

from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep
from landscape.measure.geometry import measure_geometry

STUDY = json.loads((STUDIES / "quick/beyond/exploratory/geometry.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_rows_are_those_of_the_raw_files(tmp_path: Path) -> None:
    """By h5py and NumPy alone."""
    run_sweep(
        SweepConfig(**{**STUDY, "train": {**STUDY["train"], **TINY}, "seeds": [200]}), tmp_path, jobs=1,
        overwrite=False, quiet=True,
    )  # fmt: skip
    p = TINY["p"]
    for run in finished("geometry", tmp_path):
        path = measure_geometry(run.planned.path)
        (row,) = circles.last_geometry(run).to_dict("records")
        with h5py.File(path) as file, h5py.File(run.planned.path) as of_run:
            for name in circles.LAST:
                np.testing.assert_equal(row[name], float(file[name][-1]))
            assert row["test_restricted_loss"] == file["restricted_loss"][-1, 1]
            steps, numbers = file["step"][:], file["numbers/number"][:]
            E = of_run["checkpoints/E"][-1, :p]
            used = np.flatnonzero(file["frequency_in_use"][-1] == 1)
            shares = circles.frequencies(run)
            assert sorted(set(shares["frequency"])) == used.tolist()
            assert len(shares) == len(used) * len(steps)
            places = circles.circles(run)
            assert places["step"].max() == steps[-1]
            last = places[places["step"] == steps[-1]]
            np.testing.assert_array_equal(last["number"], numbers)
            np.testing.assert_allclose(last[["x", "y"]], file["plane_position"][-1, 0], atol=1e-5)
        # Numbers by their discrete logarithm for a + b, as they are for a · b; 0 has no logarithm.
        root = next(g for g in range(2, p) if len({pow(g, k, p) for k in range(p)}) == p - 1)
        other = [pow(root, k, p) for k in range(p - 1)] if row["task"] == "add" else range(p)
        rows = E[list(other)] - E[list(other)].mean(0)
        power = (np.abs(np.fft.rfft(rows.astype(float), axis=0)) ** 2).sum(1)[1:]
        if len(rows) % 2 == 0:
            power[-1] /= 2
        assert row["other_order_share"] == pytest.approx(power.max() / power.sum())


def test_the_page_shows_the_end_and_the_film(tmp_path: Path) -> None:
    write_tables(tmp_path / "paper", {}, tokens=4)
    folder = tmp_path / "paper"
    known = {"study": "lags", "case": "base", "seed": 200}
    events = {"frequency": 300.0, "half": 400.0, "circle": 200.0}
    lags = [{**known, "seed": seed, "event": event, "step": at + seed} for seed in range(200, 210) for event, at in
            events.items()]  # fmt: skip
    pd.DataFrame(lags).to_csv(folder / "lags.csv", index=False)
    rows = [
        {**known, "seed": seed, "task": "add", "line_spearman_p": 0.005 * (seed - 199), "scaling_r2_p": 0.5}
        | dict.fromkeys(COLUMNS.values(), 0.125)
        | {"num_frequencies": 4 + seed - 200, "test_restricted_loss": restricted}
        for seed, restricted in ((200, 0.1), (201, math.nan), (202, 0.2))
    ]
    pd.DataFrame(rows).to_csv(folder / "geometry.csv", index=False)
    shares = [
        {**known, "step": step, "frequency": k, "share": k / 100, "chance": 0.05} for k in (3, 7) for step in (0, 9, 90)
    ]
    pd.DataFrame(shares).to_csv(folder / "frequencies.csv", index=False)
    places = [
        {**known, "step": step, "frequency": 7, "share": 0.07, "r2": 0.9, "number": n, "x": n / 4, "y": -n / 4}
        for step in (9, 90)
        for n in range(5)
    ]
    pd.DataFrame(places).to_csv(folder / "circles.csv", index=False)
    runs, curvature, metrics = (pd.read_csv(folder / f"{name}.csv") for name in ("runs", "curvature", "metrics"))
    run = {**known, **NETWORK, "file": "lags/base-s200.h5", "memorised": 20.0, "grokked": math.nan}
    pd.concat([runs, pd.DataFrame([run])]).to_csv(folder / "runs.csv", index=False)
    of_film = {"analysis": "over-training", "step": 9, "block": "E,W", "lowest": -1.0, "highest": 2.0, "kappa_1": 3.0}
    block = {**known, **of_film, "index_level": "bracketed", "index_lower": 3, "index_upper": 9, "file": "x"}
    pd.concat([curvature, pd.DataFrame([block])]).to_csv(folder / "curvature.csv", index=False)
    record = {**known, "step": 25, "train_accuracy": 0.5, "test_accuracy": 0.25}
    pd.concat([metrics, pd.DataFrame([record])]).to_csv(folder / "metrics.csv", index=False)
    judge_beyond(folder)
    html = page.written(tmp_path)[tmp_path / "index.html"]
    films = json.loads(re.findall(r'id="films">(.*?)</script>', html)[0])
    assert list(films) == ["paper", "paper, circles"]
    film = films["paper, circles"]
    assert [(one["step"], list(one["blocks"])) for one in film["steps"]] == [(9, ["E,W"]), (90, [])]
    assert (film["memorised"], film["grokked"], film["run"]) == (20, None, "lags/base-s200.h5")
    assert film["setting"] == "p = 59, 3 tokens, d = 16, h = 64, seed 200"
    assert [curve["share"] for curve in film["frequencies"]["curves"]] == [[0.03] * 3, [0.07] * 3]
    assert film["circles"]["90"]["x"] == [0, 0.25, 0.5, 0.75, 1]
    assert [one["number"] for one in film["numbers"]] == [0, 1, 2, 3, 4]
    assert '<svg id="circle"' in html
    plain = " ".join(unlinked(unescape(html)).split())
    assert "<th>paper, a + b</th></tr>" in plain
    cells = {
        "grokked": "0 of 1", "frequencies in use": "5 [4, 6]", "restricted test loss": "0.15 [0.1, 0.2]",
        "largest |ρ|": "0.125 (2)", "circle R²": "0.125", "scaling index": "(0)",
    }  # fmt: skip
    for name, cell in cells.items():
        assert f'<th scope="row">{name}</th><td>{cell}</td></tr>' in plain
    assert "stands at a limit in 3 of 3 runs" in plain
    assert "Restricted loss is below test loss in 1 of 2 (paper, a + b); where" in plain
