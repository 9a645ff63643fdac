"""Gromov's analytic solution, whose saddle index is known, from its recorded file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.func import functional_call, jacrev

import landscape
from landscape.cli import main as cli

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_its_index_is_zero_and_its_zeros_are_those_of_the_jacobian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It solves the task exactly; the rank of its Hessian is that of the outputs' Jacobian, by SVD."""
    source = (ROOT / "studies/gromov.py").read_text().replace("P, PHASES = 13", "P, PHASES = 5")
    (tmp_path / "gromov.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import gromov

    model = gromov.Quadratic()
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    expected = torch.eye(5, dtype=torch.float64)[pairs.sum(1) % 5]
    torch.testing.assert_close(model(pairs), expected, rtol=0, atol=1e-14)
    parameters = dict(model.named_parameters())
    jacobian = jacrev(lambda own: functional_call(model, own, (pairs,)))({k: v.detach() for k, v in parameters.items()})
    matrix = torch.cat([part.reshape(125, -1) for part in jacobian.values()], dim=1).numpy()
    rank = int(np.linalg.matrix_rank(matrix, tol=1e-7 * np.linalg.norm(matrix, 2)))

    with landscape.Recorder(tmp_path / "run.h5", model) as recorder:
        recorder.checkpoint(0)
    problem = f"{tmp_path / 'gromov.py'}:problem"
    command = ["hessian", str(tmp_path / "run.h5"), "--problem", problem, "--blocks", "inputs,output", "--certify"]
    assert cli.run([*command, "--device", "cpu", "--quiet"]) == 0
    with landscape.open(tmp_path / "run.hessian.h5") as file:
        data = file.datasets["/"].load()
    assert data["inertia"].values.ravel().tolist() == [0, matrix.shape[1] - rank, rank]
    assert data["grad_norm"].item() < 1e-13

    command = [sys.executable, ROOT / "analyses/collect_gromov.py", tmp_path / "run.h5", "--out", tmp_path / "out"]
    subprocess.run(command, check=True)
    (row,) = pd.read_csv(tmp_path / "out" / "others/gromov.csv").to_dict("records")
    expected = {"block": "inputs,output", "level": "certified", "p": 5, "units": 14, "parameters": matrix.shape[1]}
    expected |= {"negative": 0, "zero": matrix.shape[1] - rank, "positive": rank}
    assert {name: row[name] for name in expected} == expected
    assert row["sha256"] == hashlib.sha256((tmp_path / "run.hessian.h5").read_bytes()).hexdigest()
