"""Analyses of a sweep by a problem of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.hessians import HessianReader

from landscape.cli import main as cli

TRAIN = {
    "p": 5,
    "tokens": 2,
    "embed_dim": 3,
    "hidden": 4,
    "activation": "tanh",
    "batch_size": 10,
    "train_fraction": 0.6,
    "steps": 10,
    "stop_test_accuracy": None,
    "checkpoint_every": 10,
    "device": "cpu",
}
MINE = f"""
import dataclasses
from landscape import ModuleProblem, TrainConfig
from landscape.models import of_config
from landscape.models.tasks import make_data


def problem():
    config = TrainConfig(**{TRAIN!r})
    known = of_config(config, dataclasses.asdict(make_data(config)), "cpu")
    return ModuleProblem(known.model, known.tokens, known.labels, blocks={{"table": ["E"]}})
"""


def sweep(hessian: list[dict[str, object]]) -> None:
    Path("sweep.json").write_text(json.dumps({"name": "own", "train": TRAIN, "hessian": hessian}))


def test_a_sweep_analyses_by_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same network as the user's module has the same eigenvalues; a second call finds all done."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    sweep(
        [
            {"name": "own", "problem": "mine.py:problem", "steps": "10", "blocks": ["table", "W", "table,V"]},
            {"steps": "10", "blocks": ["E", "W", "E,V"]},
        ]
    )
    for _ in range(2):
        assert cli.run(["sweep", "--config", "sweep.json", "--out", ".", "--jobs", "1", "--quiet"]) == 0
    own, known = (HessianReader(f"own/base-s0.hessian{name}.h5") for name in ("-own", ""))
    assert own.attrs["problem"] == "mine.py:problem"
    assert own.pairs == ["table,V"]
    np.testing.assert_allclose(own.row(10)["eigenvalues"], known.row(10)["eigenvalues"], atol=1e-9)
    np.testing.assert_array_equal(own.row(10)["inertia"], known.row(10)["inertia"])
    capsys.readouterr()
    Path("mine.py").write_text(MINE + "# changed\n")
    assert cli.run(["sweep", "--config", "sweep.json", "--out", ".", "--jobs", "1", "--quiet"]) == 1
    assert "it was made with --problem mine.py:problem (source" in capsys.readouterr().err


def test_a_problem_that_ends_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that calls sys.exit fails its analysis, with its line, not the worker and not the runs."""
    monkeypatch.chdir(tmp_path)
    ends = "def loss(outputs, targets):\n    raise SystemExit(0)\n\n\ndef problem():"
    text = MINE.replace("def problem():", ends).replace("known.labels, ", "known.labels, loss, ")
    Path("mine.py").write_text(text)
    sweep([{"problem": "mine.py:problem", "steps": "10", "blocks": ["table"]}])
    assert cli.run(["sweep", "--config", "sweep.json", "--out", ".", "--jobs", "1", "--quiet"]) == 1
    line = 1 + text.splitlines().index("    raise SystemExit(0)")
    said = capsys.readouterr().err
    assert f"your own code ends the program at mine.py, line {line}" in said
    assert "exit code" not in said
    assert Path("own/base-s0.h5").exists()


def test_a_problem_that_does_not_fit_stops_a_sweep_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run is trained for an analysis that cannot be."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE.replace("'hidden': 4", "'hidden': 6"))
    sweep([{"problem": "mine.py:problem"}])
    assert cli.run(["sweep", "--config", "sweep.json", "--out", ".", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "parameter 'W' has shape (4, 6) in own/base-s0.h5; in the module it is (6, 6)" in said
    assert not Path("own/base-s0.h5").exists()
