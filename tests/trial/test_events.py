"""When the geometry of an embedding appears, and the other events of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import collect_geometry as geometry
import h5py
import numpy as np
import pandas as pd
import pytest
from collect_tokens import range_of, rests
from helpers.tiny_trial import STUDIES, shortened, swept
from lags_of import Lag, around
from runs import studies

from landscape.cli import main as cli


@pytest.mark.long
def test_events_are_those_of_the_raw_files(tmp_path: Path) -> None:
    """By h5py alone."""
    study = shortened(json.loads((STUDIES / "quick/beyond/lags.json").read_text()), {"base"})
    # A second analysis, at steps of its own.
    (first,) = study["hessian"]
    more = {**{name: value for name, value in first.items() if name != "num_steps"}, "name": "more", "steps": "2,5"}
    folder = swept({**study, "hessian": [first, more], "seeds": [200]}, tmp_path / "quick")
    path = folder / "base-s200.h5"
    assert cli.run(["geometry", str(path), "--quiet"]) == 0
    ((run,),) = studies(tmp_path / "quick").values()
    events = geometry.lags(run).set_index("event")["step"].to_dict()
    with h5py.File(path) as file:
        steps, loss, accuracy = (file[f"metrics/{name}"][:] for name in ("metric_step", "test_loss", "test_accuracy"))
        E = file["checkpoints/E"][-1].astype(float)
    assert events["loss_peak"] == steps[loss.argmax()]
    np.testing.assert_equal(events["half"], min(steps[accuracy >= 0.5], default=np.nan))
    after = steps[(steps > events["loss_peak"]) & (loss <= loss.max() / 2)]
    np.testing.assert_equal(events["loss_half"], after[0] if len(after) else np.nan)
    kappa, index = {}, {}
    for analysis in ("over-training", "more"):
        with h5py.File(folder / f"base-s200.hessian-{analysis}.h5") as file:
            pair = [name.decode() for name in file["pair"]].index("E,W")
            kappa |= dict(zip(file["step"][:].tolist(), file["coupling_ratios"][:, pair, 0], strict=True))
            index |= dict(zip(file["step"][:].tolist(), file["inertia"][:, 0, 0], strict=True))
    assert {2, 5} <= set(kappa)
    known = {at: value for at, value in sorted(kappa.items()) if not np.isnan(value)}
    assert events["kappa_peak"] == max(known, key=lambda at: known[at])
    assert events["index_peak"] == max(sorted(index), key=lambda at: index[at])
    with h5py.File(path.with_suffix(".geometry.h5")) as file:
        at, share, p = (file[name][:] for name in ("step", "top_frequency_share", "top_frequency_share_p"))
        r2, chance, r2_p = (file[f"top_circle_r2{end}"][:] for end in ("", "_null", "_p"))
        train, test = (file["split"][:].tolist().index(name) for name in (b"train", b"test"))
        restricted, excluded = file["restricted_loss"][:, test], file["excluded_loss"][:, train]
    np.testing.assert_equal(events["frequency"], min(at[(p <= 0.01) & (share >= share[-1] / 2)], default=np.nan))
    half = (r2_p <= 0.01) & (r2 - chance >= (r2[-1] - chance[-1]) / 2)
    np.testing.assert_equal(events["circle"], min(at[half], default=np.nan))
    after = at[(at > at[restricted.argmax()]) & (restricted <= restricted.max() / 2)]
    np.testing.assert_equal(events["restricted"], min(after, default=np.nan))
    least = excluded.argmin()
    after = at[least + 1 :][excluded[least + 1 :] >= (excluded[least] + excluded[-1]) / 2]
    np.testing.assert_equal(events["excluded"], min(after, default=np.nan))
    # The largest share of a frequency is that of the geometry file, where the order is the same.
    assert geometry.largest_share(E[:23]) == pytest.approx(share[-1])
    with h5py.File(path.with_suffix(".geometry.h5"), "r+") as file:
        file.attrs["status"] = "running"
    ((run,),) = studies(tmp_path / "quick").values()
    with pytest.raises(SystemExit, match=r"geometry.h5 is running\nhint: landscape geometry"):
        geometry.lags(run)


def test_a_peak_and_its_fall() -> None:
    values = pd.Series({0: 1.0, 10: 4.0, 20: 3.0, 30: 2.0, 40: 1.0})
    assert (geometry.highest(values), geometry.fall(values)) == (10, 30)
    assert np.isnan(geometry.fall(values[:3]))
    assert np.isnan(geometry.highest(values[:0]))


def test_a_rise_is_from_the_least_to_the_last() -> None:
    values = pd.Series({0: 4.0, 10: 1.0, 20: 1.9, 30: 2.0, 40: 5.0, 50: 3.0})
    assert geometry.rise(values) == 30
    for falling in (values[:2], values[:0]):
        assert np.isnan(geometry.rise(falling))


def test_what_appears_beats_its_null_and_has_half_of_its_last_value() -> None:
    steps, values = np.array([0, 10, 20, 30]), np.array([0.9, 0.4, 0.6, 1.0])
    p = np.array([0.5, 0.005, 0.005, 0.005])
    assert geometry.appears(steps, values, p, falls=False) == 20
    assert geometry.appears(steps, np.array([9.0, 5.0, 1.5, 1.0]), p, falls=True) == 20
    assert np.isnan(geometry.appears(steps, values, np.ones(4), falls=False))


def test_multiplication_has_the_order_of_discrete_logarithms() -> None:
    assert geometry.cyclic_order(7, multiplies=True).tolist() == [1, 3, 2, 6, 4, 5]
    assert geometry.cyclic_order(7, multiplies=False).tolist() == list(range(7))


@pytest.mark.parametrize("n", [8, 9])
def test_a_circle_and_a_smaller_one_have_shares_of_their_squares(n: int) -> None:
    angle = 2 * np.pi * np.arange(n) / n
    E = np.stack([3 * np.cos(angle), 3 * np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)], axis=1) + 5
    assert geometry.largest_share(E) == pytest.approx(0.9)


def test_an_event_lies_between_the_analysed_steps() -> None:
    """A peak between its neighbours, beyond the last step where it is the last; a fall after the step before."""
    steps = [0, 10, 20, 40]
    assert around("kappa_peak", 20, steps) == (10, 40)
    assert around("kappa_peak", 40, steps) == (20, math.inf)
    assert around("index_peak", 0, steps) == (0, 10)
    assert around("index_half", 20, steps) == (10, 20)
    np.testing.assert_equal(around("index_half", math.nan, steps), (math.nan, math.nan))
    seen = np.log([2.0] * 10)
    lag = Lag(seen, np.r_[seen[:9], -1.0], np.full(10, np.inf))
    assert (lag.shown, lag.later) == ("× 2 [2, ∞]", "9 of 10")


def test_an_embedding_rests_when_its_norm_no_longer_changes() -> None:
    steps = np.array([0, 10, 20, 30])
    # Near from the start; near, away, and near again; near at the last alone.
    norms = np.array([[1.0, 1.0, 5.0], [1.05, 3.0, 4.0], [0.95, 1.0, 3.0], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(rests(steps, norms), [0, 20, 30])


def test_ranges_are_equal_in_the_logarithm_of_the_rank() -> None:
    at = range_of(499)
    assert (at[0], at[-1]) == (0, 9)
    first = np.array([np.flatnonzero(at == i)[0] + 1 for i in range(10)])
    assert first.tolist() == [1, 2, 4, 7, 13, 23, 42, 78, 145, 269]
