"""What `landscape hessian` measures by default, what its options add, and what it says of time and memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hessians import HessianReader, analyse

import landscape
from benchmarks.monitor import GPT, loss_of, text
from landscape import models
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.files.runs import RunReader
from landscape.measure.forecast import Blocks
from landscape.measure.measurement import Measurement
from landscape.models.module import ModuleProblem

CERTIFIED = {"excess_index_lower", "gauss_newton_ratios", "coupling_strength"}


def names(path: Path) -> set[str]:
    """All datasets of a file."""
    with landscape.open(path) as file:
        return {f"{group}/{name}".lstrip("/") for group, data in file.datasets.items() for name in data}


def test_it_agrees_with_what_is_certified(tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """Blocks with a closed form have the same index, ratios and ends, and the file nothing that was not asked for."""
    out = tmp_path / "h.h5"
    quick = analyse(tiny_run, HessianConfig(steps="60", device="cpu"), out, quiet=True)
    assert quick.blocks == ["E", "W", "E,W", "W,V"]
    row, certified = quick.row(60), tiny_hessian.row(60)
    at = [tiny_hessian.blocks.index(block) for block in quick.blocks]
    assert (row["inertia_level"] == certified["inertia_level"][at]).all()
    np.testing.assert_array_equal(row["inertia_lower"], certified["inertia_lower"][at])
    np.testing.assert_allclose(row["eigenvalues"], certified["eigenvalues"][at][:, :, :4], rtol=0, atol=1e-10)
    np.testing.assert_allclose(row["coupling_ratios"][0], certified["coupling_ratios"][0, :4], rtol=1e-8)
    np.testing.assert_array_equal(row["coupling_index"][:2], certified["coupling_index"][:2])
    assert not names(out) & {*CERTIFIED, "jensen_shannon", "density/E"}
    assert {*CERTIFIED, "jensen_shannon", "density/E"} <= names(tiny_hessian.path)


@pytest.mark.parametrize("dense", ["--method dense --spectra ends", "--method lanczos"])
def test_larger_blocks_agree_too(dense: str, tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """Neither factorised for all eigenvalues nor searched for more than the ends."""
    out = tmp_path / "h.h5"
    command = f"hessian {tiny_run} --steps 60 {dense} --blocks E,W W,V --out {out} --quiet"
    assert cli.run(command.split()) == 0
    row, certified = HessianReader(out).row(60), tiny_hessian.row(60)
    at = [tiny_hessian.blocks.index(block) for block in ("E,W", "W,V")]
    outermost = row["eigenvalues"][:, :, 0] - certified["eigenvalues"][at][:, :, 0]
    assert (np.abs(outermost) <= row["hidden"] + 1e-9).all()
    assert (np.abs(outermost) <= 1e-3 * row["operator_norm"][:, None]).all()
    if "dense" in dense:
        np.testing.assert_array_equal(row["inertia_lower"], certified["inertia_lower"][at])
        ratios, errors = row["coupling_ratios"][0], row["coupling_ratio_error"][0]
        true = certified["coupling_ratios"][0, :4]
        assert (np.abs(ratios - true) <= errors + 1e-9 * true).all()
        # F0: as many ratios above 1 as the joint block has negative eigenvalues.
        assert row["coupling_index"][0] == row["inertia_lower"][0]


def test_the_sharpness_alone(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One eigenvalue of each block, no index, and no dash for what was not asked for."""
    out = tmp_path / "h.h5"
    assert cli.run(f"hessian {tiny_run} --steps 60 --only sharpness --blocks all E --out {out} --quiet".split()) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["step", "block", "lambda_min", "lambda_max", "|grad|"]
    assert [line.split()[2] for line in table[1:3]] == ["-", "-"]
    assert not {"inertia", "coupling_ratios", "bottom_mass", "subspace_overlap"} & names(out)
    assert {"sharpness_gd", "sharpness_adam", "train_loss"} <= names(out)
    for tables in ("--tables", "--csv", "--json"):
        assert (
            cli.run(f"hessian {tiny_run} --steps 60 --only sharpness --blocks all E --out {out} {tables}".split()) == 0
        )
    assert cli.run(["report", str(out), "--out", str(tmp_path / "r"), "--quiet"]) == 0
    capsys.readouterr()
    assert cli.run(f"hessian {tiny_run} --only sharpness --certify --out {tmp_path / 'x.h5'}".split()) == 2
    assert "certify asks for more" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_language_model_takes_few_products(tmp_path: Path) -> None:
    """Of 7,984 parameters: both ends and an index for at most 150, the sharpness for at most 45, trained or not."""
    data = text()
    torch.manual_seed(0)
    model = GPT(int(data.max()) + 1).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    with landscape.Recorder(tmp_path / "gpt.h5", model) as recorder:
        for step in range(61):
            if step in (0, 60):
                recorder.checkpoint(step)
            optimiser.zero_grad()
            loss_of(model, data).backward()
            optimiser.step()
    (tmp_path / "own.py").write_text(
        "import torch, landscape\nfrom benchmarks.monitor import GPT, loss_of, text\n"
        "def problem():\n    data = text()\n"
        "    return landscape.ModuleProblem(GPT(int(data.max()) + 1).double(), [data], loss=loss_of)\n"
    )
    own = f"{tmp_path / 'own.py'}:problem"
    for only, most in ((None, 150), ("sharpness", 45)):
        config = HessianConfig(problem=own, steps="0,60", only=only)
        with landscape.hessian(tmp_path / "gpt.h5", config, tmp_path / f"{only}.h5", quiet=True) as file:
            data_ = file.to_xarray()
            assert file.blocks == ["all"]
            assert (data_["num_products"] <= most).all()
            assert (data_["converged"].isel(rank=0, end=slice(-1 if only else 0, None)) == 1).all()


def test_blocks_that_a_problem_declares() -> None:
    """Those alone, or the whole model where there are none."""
    model, data = torch.nn.Linear(3, 2), (torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    loss = torch.nn.functional.cross_entropy
    assert ModuleProblem(model, *data, loss).default_blocks == ("all",)
    assert ModuleProblem(model, *data, loss, blocks={"w": "weight"}).default_blocks == ("w",)


def test_time_and_memory_are_said_before(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one line, and not where nothing is left to do."""
    command = f"hessian {tiny_run} --steps 0,20 --out {tmp_path / 'h.h5'}".split()
    assert cli.run(command) == 0
    said = r"^note: about \d+ s and at most \d\.\d GB for 2 steps of E, W, E,W, W,V$"
    assert re.search(said, capsys.readouterr().err, re.MULTILINE)
    assert cli.run(command) == 0
    assert "about" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.long
def test_the_memory_is_kept_to(tmp_path: Path) -> None:
    """Of a block whose vectors take more than all else, and not by saying far too much."""
    (tmp_path / "own.py").write_text(
        "import torch, landscape\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(500, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 500))\n"
        "inputs, targets = torch.randn(50, 500), torch.arange(50)\n"
        "def problem():\n"
        "    return landscape.ModuleProblem(model, inputs, targets, torch.nn.functional.cross_entropy)\n"
        "if __name__ == '__main__':\n"
        "    with landscape.Recorder('run.h5', model) as recorder:\n"
        "        recorder.checkpoint(0)\n"
    )
    subprocess.run([sys.executable, "own.py"], cwd=tmp_path, check=True)
    command = "hessian run.h5 --problem own.py:problem --blocks all --k 1 --only sharpness --dtype float32"
    with subprocess.Popen(
        [sys.executable, "-m", "landscape", *command.split()], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        errors = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    assert status == 0, errors
    said = re.search(r"at most ([\d.]+) GB", errors)
    assert said, errors
    assert float(said[1]) / 3 < used.ru_maxrss / 1e6 < float(said[1]) + 0.05


def test_the_bar_moves_within_a_block(tiny_run: Path) -> None:
    """With the clock, but not to the end of what is not done; then to the end."""
    with RunReader(tiny_run) as reader:
        what = Measurement.of(models.opened(reader, HessianConfig())[0], HessianConfig(blocks=("E", "W")))
    with Blocks(what, 1, seconds={"E": 10.0, "W": 30.0}) as bar:
        assert bar.n == 0
        bar.show("E", False)
        while not bar.n:
            time.sleep(0.05)
        assert 0 < bar.n <= 9
        bar.show("E", True)
        assert bar.n == 10
        bar.show("W", False)
        bar.show("W", True)
        assert bar.n == bar.total == 40
