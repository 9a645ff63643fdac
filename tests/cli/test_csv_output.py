"""`--csv` prints one table, which the standard library reads, and nothing else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.hessians import HessianReader

import landscape
from landscape.cli import main as cli

Rows = list[dict[str, str]]
TINY = ["--p", "7", "--embed-dim", "4", "--hidden", "4", "--steps", "4", "--device", "cpu", "--quiet"]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Rows]:
    """The table that a command prints."""

    def run(*argv: object) -> Rows:
        assert cli.run([*map(str, argv), "--csv"]) == 0
        return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    return run


def test_a_row_a_step_and_block(printed: Callable[..., Rows], run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "h.h5"
    options = ("--steps", "0", "--blocks", "W", "E,W", "--device", "cpu", "--out", out, "--quiet")
    rows = printed("hessian", run_file, *options)
    reader = HessianReader(out)
    assert [(row["step"], row["block"]) for row in rows] == [("0", block) for block in reader.blocks]
    assert [float(row["grad_norm"]) for row in rows] == reader.row(0)["grad_norm"].tolist()


def test_a_row_a_step_of_the_geometry(printed: Callable[..., Rows], run_file: Path) -> None:
    rows = printed("geometry", run_file, "--device", "cpu", "--quiet")
    with landscape.open(run_file.with_name("run.geometry.h5")) as file:
        data = file.to_xarray()
        assert [int(row["step"]) for row in rows] == data["step"].values.tolist()
        assert [float(row["pls_q2"]) for row in rows] == data["pls_q2"].values.tolist()


def test_a_row_a_run(printed: Callable[..., Rows], tmp_path: Path) -> None:
    """Of training, a sweep, its status and a comparison alike."""
    rows = printed("train", *TINY, "--out", tmp_path / "r.h5", "--seeds", 2)
    assert [(row["path"], row["status"], row["grok_step"]) for row in rows] == [
        (str(tmp_path / f"r-s{seed}.h5"), "complete", "") for seed in (0, 1)
    ]
    assert all(float(row["seconds"]) > 0 for row in rows)
    again = printed("train", *TINY, "--out", tmp_path / "r.h5", "--seeds", 2)
    assert again == [row | {"seconds": ""} for row in rows]
    compared = printed("compare", tmp_path / "r-s0.h5", tmp_path / "r-s1.h5")
    assert [(row["run"], row["seed"]) for row in compared] == [(f"r-s{s} (seed {s})", str(s)) for s in (0, 1)]
    assert all(cell not in ("-", "'-") for row in compared for cell in row.values())
    assert {row["95 % of test at step"] for row in compared} == {"never"}
    train = {"p": 7, "embed_dim": 4, "hidden": 4, "steps": 4, "device": "cpu"}
    (tmp_path / "s.json").write_text(json.dumps({"name": "s", "train": train, "grid": {"lr": [0.1, 0.2]}}))
    sweep = ("sweep", tmp_path / "s.json", "--out", tmp_path / "out")
    assert [(row["lr"], row["steps"]) for row in printed(*sweep, "--executor", "debug", "--quiet")] == [
        ("0.1", "4"),
        ("0.2", "4"),
    ]
    assert {row["state"] for row in printed(*sweep, "--status")} == {"done"}


def test_a_pair_that_was_not_measured_is_not_told_of(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["hessian", str(run_file), "--steps", "0", "--device", "cpu", "--quiet", "--tables", "--out"]
    for blocks, is_told in ((["E", "W"], False), (["E", "W", "E,W"], True)):
        assert cli.run([*argv, str(tmp_path / f"{is_told}.h5"), "--blocks", *blocks]) == 0
        assert ("are those of E,W" in capsys.readouterr().out) == is_told
