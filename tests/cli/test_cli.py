"""The command line: every mistake ends in one `error:` and one `hint:` line, an exit code, and no harm."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.commands import Refusal
from helpers.hessians import HessianReader
from helpers.run_files import put

from landscape.cli import main as cli
from landscape.config import PRESETS, TrainConfig, preset, to_json
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP

FLAGS = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "20", "--quiet"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device(assert_refused: Refusal, run_file: Path, tmp_path: Path) -> None:
    """--device cuda is an error where there is none, in both commands."""
    for argv in (["train", "--out", tmp_path / "x.h5"], ["hessian", run_file]):
        assert_refused([*argv, "--device", "cuda"], 1, "no CUDA device is available", "--device cpu or auto")


def put_in_W(run_file: Path, value: float) -> dict[str, np.ndarray]:
    """Write a value into W at step 20, checksum and all; the whole row."""
    with RunReader(run_file) as reader:
        row = reader.table("checkpoints").row(20)
        assert row is not None
    row["W"][3, 1] = value
    put(run_file, 20, W=row["W"])
    return row


@pytest.mark.parametrize("value", [1e30, -3e38])
def test_large_values_are_served(value: float, run_file: Path) -> None:
    """Finite values are no error, though their squares overflow."""
    written = put_in_W(run_file, value)
    with RunReader(run_file) as reader:
        np.testing.assert_array_equal(reader.checkpoint(20)["W"], written["W"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_in_a_checkpoint(value: float, assert_refused: Refusal, run_file: Path) -> None:
    """Non-finite parameters are named with their step, even if their checksum is right."""
    put_in_W(run_file, value)
    argv = ["hessian", run_file, "--steps", "20", "--quiet"]
    assert_refused(argv, 1, "W at step 20 has 1 non-finite values", "lower --lr", (run_file,))


@pytest.mark.slow
def test_hessian_file_of_other_settings(
    assert_refused: Refusal, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Hessian file with other settings stays; --overwrite replaces it; the run itself is never the output."""
    base = ["hessian", str(run_file), "--blocks", "E", "--quiet", "--steps"]
    assert cli.run([*base, "0"]) == 0
    capsys.readouterr()
    path = tmp_path / "run.hessian.h5"
    others = [*base, "60", "--rtol", "1e-3"]
    assert_refused(others, 1, "it was made with rtol by default, not 0.001", "--overwrite", (path, run_file))
    assert cli.run([*others, "--overwrite"]) == 0
    assert HessianReader(path).steps == [60]
    capsys.readouterr()
    assert_refused([*base, "0", "--out", str(run_file)], 1, "is the run file itself", "another --out", (run_file,))


def test_dense_block_that_does_not_fit(
    assert_refused: Refusal, run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a dense block needs and what there is are said before the work."""
    from landscape import devices

    monkeypatch.setattr(devices, "free_memory", lambda device: 10_000)
    argv = ["hessian", run_file, "--blocks", "W", "--method", "dense"]
    assert_refused(
        argv, 1, "block W as a dense matrix (64 parameters) needs 0.3 GB; 0.0 GB are free", "--method lanczos"
    )
    assert not (tmp_path / "run.hessian.h5").exists()


@pytest.mark.slow
def test_blocks_beyond_lapack(
    assert_refused: Refusal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """LAPACK's 32-bit limit is said before the work, however much memory there is."""
    from landscape import devices

    run = tmp_path / "wide.h5"
    sizes = ["--embed-dim", "64", "--hidden", "256", "--tokens", "4", "--p", "13", "--steps", "1"]
    assert cli.run(["train", "--out", str(run), *sizes, "--batch-size", "full", "--quiet"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(devices, "free_memory", lambda device: 10**15)
    argv = ["hessian", run, "--blocks", "W", "--method", "dense"]
    assert_refused(
        argv, 1, "block W has 65,536 parameters; LAPACK's 32-bit indices end at 32,000", "--method lanczos", (run,)
    )


def test_batch_larger_than_the_split_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch is clipped to the training set, and said so."""
    argv = ["train", "--out", str(tmp_path / "r.h5"), *FLAGS, "--batch-size", "999"]
    assert cli.run(argv) == 0
    assert "warning: batch_size 999 exceeds the 20 training pairs; using 20" in capsys.readouterr().err


@pytest.mark.slow
def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one document and nothing else on stdout; NaN becomes null."""
    run = str(tmp_path / "r.h5")
    assert cli.run(["train", "--out", run, *FLAGS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 20
    assert cli.run(["hessian", run, "--steps", "0,20", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["step"] for s in document["steps"]] == [0, 20]
    assert document["steps"][0]["prop41_ratio"] is None
    assert document["blocks"] == ["E", "W", "E,W", "W,V"]


@pytest.mark.slow
def test_table_shows_what_the_file_holds(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has the file's eigenvalues and index; --tables has more, without measuring again."""
    monkeypatch.setenv("COLUMNS", "300")
    argv = ["hessian", str(run_file), "--steps", "60", "--blocks", "E,W", "--certify", "--quiet"]
    assert cli.run(argv) == 0
    row = HessianReader(run_file.with_name("run.hessian.h5")).row(60)
    head, line, empty, *findings = capsys.readouterr().out.splitlines()
    ends = [f"{value:.6g}" for value in row["eigenvalues"][0, :, 0]]
    index, gauge_free = str(row["inertia"][0, 0]), str(row["saddle_index_gauge_free"][0])
    assert line.split()[:6] == ["60", "E,W", *ends, index, "certified"]
    assert any(f"with {index} negative eigenvalues (certified)" in finding for finding in findings)
    assert cli.run([*argv, "--tables"]) == 0
    lowest = row["eigenvalues"][0, 0, 0]
    depths = [f"{lowest / unit:.3g}" for unit in (row["operator_norm"][0], TINY.weight_decay)]
    assert capsys.readouterr().out.splitlines()[1].split()[:10] == [
        "60", "E,W", ends[0], *depths, ends[1], "0", index, gauge_free, "certified"
    ]  # fmt: skip


@pytest.mark.slow
def test_lines_of_the_steps_that_were_asked_for(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file may hold more; many are left to the findings."""
    for steps, count in (("0,60", 4), ("60", 2), ("all", 0)):
        assert cli.run(["hessian", str(run_file), "--steps", steps, "--blocks", "E", "W", "--quiet"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if " certified " in line]
        assert len(lines) == count


@pytest.mark.slow
def test_not_converged_is_exit_code_3(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of products that is too small finishes, marks the values and exits with 3."""
    argv = ["hessian", str(run_file), "--steps", "60", "--blocks", "all", "--method", "lanczos"]
    assert cli.run([*argv, "--max-hvps", "8", "--rtol", "1e-12", "--quiet"]) == 3
    assert "* Numbers with a star have not converged." in capsys.readouterr().out


def test_presets_are_the_papers() -> None:
    """Sizes of quick, mid and paper; flags win over the config file, which wins over the preset."""
    embedding = [name for name in PRESETS if preset(name).model == "embedding"]
    count = {n: sum(p.numel() for p in MLP(preset(n)).parameters()) for n in embedding}
    assert count == {"demo": 3091, "quick": 6891, "mid": 84_859, "paper": 325_089}
    paper = preset("paper")
    assert (paper.p, paper.num_tokens, paper.embed_dim, paper.hidden) == (97, 99, 128, 512)
    assert (paper.train_fraction, paper.test_fraction, paper.optimizer) == (0.3, 0.2, "adam")
    assert (paper.lr, paper.weight_decay, paper.batch_size) == (0.01, 0.001, 512)


def test_flags_over_config_over_preset(tmp_path: Path) -> None:
    """Precedence of the three sources of options, as written into the run file."""
    config = tmp_path / "c.json"
    config.write_text('{"lr": 0.5, "hidden": 8, "seed": 3}')
    run = tmp_path / "r.h5"
    assert cli.run(["train", "--config", str(config), "--out", str(run), *FLAGS, "--seed", "4"]) == 0
    with h5py.File(run) as file:
        stored = json.loads(file.attrs["config"])
    assert (stored["lr"], stored["hidden"], stored["seed"], stored["weight_decay"]) == (0.5, 8, 4, 0.001)
    assert stored["embed_dim"] == 4


def test_config_round_trip() -> None:
    """A config written to JSON is read back the same."""
    config = dataclasses.replace(TINY, checkpoint_at=(3, 5), lr_ratio="prop41", batch_size="full")
    from landscape.config import replace

    assert replace(TrainConfig(), json.loads(to_json(config))) == config


@pytest.mark.slow
def test_derivatives_do_without_sympy(run_file: Path, tmp_path: Path) -> None:
    """torch imports it, a second of each process, for the shape of what a derivative is weighted with."""
    code = (
        "import sys; from pathlib import Path; from landscape.config import HessianConfig; "
        "from landscape.measure.hessian import hessian as analyse; "
        f"analyse(Path({str(run_file)!r}), HessianConfig(steps='0', blocks=('E',), device='cpu'), "
        f"Path({str(tmp_path / 'h.h5')!r}), quiet=True, jobs=0); "
        "assert 'torch' in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
