"""Names of before are still accepted: keywords of functions and configs, flags, JSON keys and files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from helpers.fuzz_reader import seal

from landscape import HessianConfig, MatrixOperator, coupling, eigsh, find_critical_point, open_hessian, saddle_index
from landscape.cli import main as cli
from landscape.config import AnalysisConfig, SliceConfig, replace, to_json
from landscape.errors import ConfigError
from landscape.jobs.plan import SweepAnalysis
from landscape.measure.hessian import analyse

FORMER = {"tol": "rtol", "tau": "rel_tau", "max_products": "max_hvps"}
KNOWN: dict[str, Any] = {"tol": 1e-3, "tau": 1e-4, "max_products": 77}


def matrix(n: int, m: int | None = None) -> MatrixOperator:
    torch.manual_seed(n)
    A = torch.randn(n, m or n, dtype=torch.float64)
    return MatrixOperator(A if m else A @ A.T + torch.eye(n, dtype=torch.float64))


@pytest.mark.parametrize("kind", [AnalysisConfig, HessianConfig, SweepAnalysis])
def test_configs(kind: type[AnalysisConfig]) -> None:
    """By keyword, by replacement and from JSON; only the present names are written."""
    present = kind(**{FORMER[name]: value for name, value in KNOWN.items()})
    assert kind(**KNOWN) == dataclasses.replace(kind(), **KNOWN) == replace(kind(), KNOWN) == present
    assert FORMER.keys().isdisjoint(json.loads(to_json(kind(**KNOWN))))
    with pytest.raises(ConfigError, match="tol is the former name of rtol, which is set too"):
        replace(kind(), {"rtol": 1e-3, "tol": 1e-4})
    with pytest.raises(ConfigError, match="unknown config key 'tol'"):
        replace(SliceConfig(), {"tol": 1e-3})


@pytest.mark.parametrize(
    ("call", "former", "present"),
    [
        (lambda **o: eigsh(matrix(80), 2, method="lanczos", **o).num_products, {"tol": 1e-2, "max_products": 9}, None),
        (lambda **o: saddle_index(matrix(9), **o).tolerance, {"tau": 0.25, "max_products": 9}, None),
        (
            lambda **o: coupling(matrix(4), matrix(4, 5), matrix(5), **o).tolerance,
            {"tolerance": 0.25, "tol": 1e-2, "max_products": 9},
            {"abs_tau": 0.25, "rtol": 1e-2, "max_hvps": 9},
        ),
    ],
    ids=["eigsh", "saddle_index", "coupling"],
)
def test_functions(call: Callable[..., Any], former: dict[str, Any], present: dict[str, Any] | None) -> None:
    """The same numbers by either name, which are not those of the defaults."""
    present = present or {FORMER[name]: value for name, value in former.items()}
    np.testing.assert_array_equal(call(**former), call(**present))
    assert not np.array_equal(call(**former), call())
    with pytest.raises(TypeError, match="unexpected keyword argument 'tolerances'"):
        call(tolerances=1)
    assert find_critical_point.__doc__
    assert find_critical_point.__doc__.startswith("Minimise")


@pytest.mark.slow
def test_flags_and_files(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose config has the former names is grown by either flag, and has the present ones then."""
    out = tmp_path / "h.h5"
    argv = ["hessian", "--ckpt", str(tiny_run), "--out", str(out), "--quiet", "--blocks", "E", "--steps"]
    former = ["--tol", "1e-3", "--tau=1e-4", "--max_products", "77"]
    assert cli.run([*argv, "0", *former]) == 0
    with h5py.File(out, "r+") as file:
        config = json.loads(file.attrs["config"])
        assert [config[name] for name in FORMER.values()] == [1e-3, 1e-4, 77]
        older = {next((old for old, new in FORMER.items() if new == name), name): v for name, v in config.items()}
        assert KNOWN.items() <= older.items()
        file.attrs["config"] = json.dumps(older)
        seal(file)
    assert cli.run([*argv, "20", "--rtol", "1e-3", "--rel-tau", "1e-4", "--max-hvps", "77"]) == 0
    analyse(tiny_run, HessianConfig(blocks=("E",), steps="40", **KNOWN), out, quiet=True)
    with open_hessian(out) as data:
        assert data["step"].values.tolist() == [0, 20, 40]
        assert json.loads(data.attrs["config"])["rtol"] == 1e-3
    assert cli.run([*argv, "60", *former, "--tol", "1e-2"]) == 1
    assert "it was made with rtol 0.001, not 0.01" in capsys.readouterr().err
