"""The tables of the trial against the raw files, read by other code, and their growth from study to study."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import claims
import collect
import h5py
import numpy as np
import pandas as pd
import pytest
import verdicts
from helpers.once import made_once
from helpers.tiny_trial import SEEDS, STUDIES, TINY, make_scale, run, swept
from helpers.trial_by_hand import Files, Tables, every_x, verdict
from tables import Scale

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny_scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs that the primary tests read, in a folder as `landscape sweep` leaves it. Read only."""
    return made_once(tmp_path_factory, make_scale) / "quick"


@pytest.fixture(scope="module")
def collected(tiny_scale: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of these runs. Read only."""
    out = tmp_path_factory.mktemp("reference")
    run(collect.main, tiny_scale, "--out", out)
    return out / "quick"


@pytest.fixture(scope="module")
def numbers(collected: Path) -> dict[str, claims.Numbers]:
    """x of each primary test."""
    return {name: claims.CLAIMS[name].x(Scale(collected)) for name in claims.CLAIMS}


def same(one: claims.Numbers, other: claims.Numbers) -> bool:
    """Whether two have the same x for the same seeds, to 1e-12."""
    values = [np.array([by_seed[seed] for seed in sorted(by_seed)]) for by_seed in (one, other)]
    return one.keys() == other.keys() and np.allclose(*values, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_every_x_is_that_of_the_raw_files(tiny_scale: Path, numbers: dict[str, claims.Numbers]) -> None:
    by_hand = every_x(Files(tiny_scale))
    assert numbers.keys() == by_hand.keys()
    for name, by_seed in numbers.items():
        assert same(by_seed, by_hand[name]), (name, by_seed, by_hand[name])
        # A claim whose numbers were all alike would be tested by chance alone.
        assert any(by_seed.values()), name
    values = [x for by_seed in numbers.values() for x in by_seed.values()]
    assert any(map(math.isinf, values))
    assert sum(map(math.isfinite, values)) > len(values) // 2


@pytest.mark.long
def test_the_tables_hold_all_that_the_verdicts_need(
    numbers: dict[str, claims.Numbers], collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the CSV that the command writes, other code gets the same x and verdicts."""
    copied = Path(shutil.copytree(collected, tmp_path / "quick"))
    monkeypatch.setattr(verdicts, "SEEDS", SEEDS)
    table, _ = verdicts.claims(Scale(copied))
    table = table.set_index("claim")
    by_hand = every_x(Tables(copied))
    assert all(same(numbers[name], by_hand[name]) for name in numbers)
    assert table.index.tolist() == list(numbers)
    for name, (corrected, judgement) in verdict(by_hand).items():
        assert table.loc[name, "verdict"] == judgement
        assert table.loc[name, "holm"] == pytest.approx(corrected)
    # Without a run of a seed there is no verdict.
    runs = pd.read_csv(copied / "runs.csv")
    runs[(runs["study"] != "decay") | (runs["seed"] != 101)].to_csv(copied / "runs.csv", index=False)
    with pytest.raises(SystemExit, match="error: O3 at quick has no number for seed 101"):
        verdicts.claims(Scale(copied))


@pytest.mark.long
def test_tables_grow_study_by_study_and_on_several_machines(
    tiny_scale: Path, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incomplete studies are left out and named; what was there of them stays, and nothing is there twice."""
    parts, lost = tmp_path / "parts/quick", tmp_path / "parts/quick/curvature/c1-s101.hessian-top.h5"
    shutil.copytree(tiny_scale, parts, copy_function=lambda a, b: Path(b).hardlink_to(a))
    lost.unlink()
    note = f"note: study curvature is left out: {lost} is missing, unfinished or another run's"
    run(collect.main, parts, "--out", tmp_path / "out")
    assert note in capsys.readouterr().err.splitlines()
    shutil.copy(lost.with_name("c1-s100.hessian-top.h5"), lost)
    run(collect.main, parts, "--out", tmp_path / "out")
    assert note in capsys.readouterr().err.splitlines()
    tables = tmp_path / "out/quick"
    assert "curvature" not in set(pd.read_csv(tables / "runs.csv")["study"])
    whole = {path.name: path.read_bytes() for path in collected.glob("*.csv")}
    for _ in range(2):
        run(collect.main, tiny_scale, "--out", tmp_path / "out")
        assert {path.name: path.read_bytes() for path in tables.glob("*.csv")} == whole


def test_a_folder_without_a_complete_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no complete study\nhint: make studies"):
        run(collect.main, tmp_path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_claim_is_checked_with_h5py_alone(
    tiny_scale: Path,
    numbers: dict[str, claims.Numbers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The ten lines of docs/trial.md, run as they are but for the seeds."""
    text = (STUDIES.parent / "docs/trial.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "checkpoints/trial").mkdir(parents=True)
    (tmp_path / "checkpoints/trial/quick").symlink_to(tiny_scale)
    monkeypatch.chdir(tmp_path)
    exec(code.replace("range(100, 110)", "range(100, 102)"), {})
    assert capsys.readouterr().out.endswith(f"median {round(float(np.median(list(numbers['C4'].values()))), 3)}\n")


@pytest.mark.parametrize("tokens", [2, 4])
def test_where_the_lowest_eigenvector_lies(tokens: int, tmp_path: Path) -> None:
    """Its shares are those that least squares finds in all d² gauge tangents, and in entries of constant tokens."""
    hessian = {"name": "fork", "steps": "40", "blocks": ["E,W"], "k": 2, "vectors": True, "device": "cpu"}
    # Nothing is said of other blocks, nor of settled points, whose parameters are not those of the checkpoint.
    others = [{**hessian, "name": "other", "blocks": ["W,V"]}, {**hessian, "name": "settled", "settle": True}]
    train = {**TINY, "tokens": tokens, "steps": 40, "checkpoint_every": 40, "embed_dim": 4, "hidden": 8}
    study = {"name": "fork", "preset": "quick", "train": train, "seeds": [100], "hessian": [hessian, *others]}
    folder = swept(study, tmp_path / "quick")
    run(collect.main, tmp_path / "quick", "--out", tmp_path)
    (found,) = pd.read_csv(tmp_path / "quick/lowest.csv").to_dict("records")
    with h5py.File(folder / "base-s100.h5") as file, h5py.File(folder / "base-s100.hessian-fork.h5") as analysis:
        at = file["checkpoints/step"][:].tolist().index(40)
        E, W = (file[f"checkpoints/{name}"][at].astype(float) for name in ("E", "W"))
        vector = analysis["eigenvectors/E,W"][0, 0, 0]
    slots = W.reshape(len(W), tokens, -1)
    units = np.eye(E.shape[1] ** 2).reshape(-1, E.shape[1], E.shape[1])
    tangents = np.stack([np.r_[(-E @ X.T).ravel(), (slots @ X).ravel()] for X in units], axis=1)
    within = tangents @ np.linalg.lstsq(tangents, vector, rcond=None)[0]
    assert found["gauge"] == pytest.approx(within @ within)
    assert 0.01 < found["gauge"] < 1
    # Of (a, op, b, =) the second and the last stand in every sample; their rows of E are the last two.
    of_E, of_W = vector[: E.size].reshape(E.shape), vector[E.size :].reshape(slots.shape)
    constants = (of_E[-2:] ** 2).sum() + (of_W[:, 1::2] ** 2).sum() if tokens == 4 else 0
    assert found["constants"] == pytest.approx(constants)
