"""The command line: every mistake ends in one `error:` and one `hint:` line, an exit code, and no harm."""

from __future__ import annotations

import contextlib
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

import landscape
from landscape.cli import main as cli
from landscape.config import PRESETS, TrainConfig, preset, to_json
from landscape.files import schema
from landscape.files.disk import Disk, TableWriter
from landscape.files.files import open_file
from landscape.files.hessians import HessianReader
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP

NUCLEAR = ["--model", "tables", "--penalty", "nuclear"]
FLAGS = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "20", "--quiet"]


def test_missing_file(assert_refused: Refusal, run_file: Path) -> None:
    """A missing file is named, and so are its neighbours."""
    missing = run_file.with_name("other.h5")
    assert_refused(["hessian", "--ckpt", missing], 1, f"{missing} does not exist", "here are: run.h5")


def test_not_hdf5(assert_refused: Refusal, tmp_path: Path) -> None:
    """A text file is not read."""
    path = tmp_path / "notes.h5"
    path.write_text("hello")
    assert_refused(["hessian", "--ckpt", path], 1, "is not an HDF5 file", "name a file that", (path,))
    assert_refused(["report", path, "--out", tmp_path / "r"], 1, "is not an HDF5 file", "name a file that", (path,))


def test_truncated(assert_refused: Refusal, run_file: Path) -> None:
    """A file cut short is called truncated, within its texts or elsewhere."""
    whole = run_file.read_bytes()
    for kept in (len(whole) - 4000, whole.rindex(b"GCOL") + 100, whole.rindex(b"GCOL")):
        run_file.write_bytes(whole[:kept])
        assert_refused(["hessian", "--ckpt", run_file], 1, "is truncated", "again from its source", (run_file,))


@pytest.mark.parametrize(
    ("name", "value", "error", "hint"),
    [
        ("schema", "other.thing", "of schema 'other.thing', not a run file", "landscape train"),
        (
            "schema_version",
            "9.0",
            f"has schema version 9.0; this landscape reads {schema.VERSION}",
            "the version of landscape that wrote it",
        ),
    ],
)
def test_other_schemas(assert_refused: Refusal, run_file: Path, name: str, value: str, error: str, hint: str) -> None:
    """Another schema and a newer version are refused."""
    with h5py.File(run_file, "r+") as file:
        file.attrs[name] = value
    assert_refused(["hessian", "--ckpt", run_file], 1, error, hint, (run_file,))


def test_hdf5_of_another_program(assert_refused: Refusal, tmp_path: Path) -> None:
    """HDF5 without our schema is not guessed at."""
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    assert_refused(["hessian", "--ckpt", path], 1, "an HDF5 file of another program", "landscape train", (path,))
    assert_refused(
        ["report", path, "--out", tmp_path / "r"], 1, "is no file of landscape", "run files or Hessian", (path,)
    )


def test_hessian_file_where_a_run_is_wanted(
    assert_refused: Refusal, tiny_run: Path, tiny_hessian: HessianReader
) -> None:
    """A Hessian file is told apart from a run."""
    path = tiny_run.with_name("tiny.hessian.h5")
    assert_refused(
        ["hessian", "--ckpt", path], 1, "is a Hessian file, not a run file", "name the run it was made from", (path,)
    )


def test_step_not_stored(assert_refused: Refusal, run_file: Path) -> None:
    """The nearest stored steps are named."""
    assert_refused(["hessian", "--ckpt", run_file, "--steps", "55"], 1, "holds no step 55", "56, 60", (run_file,))
    assert_refused(["hessian", "--ckpt", run_file, "--steps", "x"], 2, "steps 'x' is no list of steps", "0,100,2000")


def test_unknown_block(assert_refused: Refusal, run_file: Path) -> None:
    """An unknown block gets the nearest known ones."""
    assert_refused(
        ["hessian", "--ckpt", run_file, "--blocks", "E,w"], 2, "the embedding model has no block 'E,w'", "E,W"
    )


@pytest.mark.parametrize(
    ("flags", "error", "hint"),
    [
        (["--task", "div", "--p", "15"], "p is 15, not a prime", "the nearest prime is 13"),
        (["--p", "1"], "p is 1; arithmetic mod p needs p >= 2", "59 or 97"),
        (["--train-fraction", "1.5"], "train_fraction is 1.5", "a fraction between 0 and 1"),
        (["--train-fraction", "0"], "train_fraction is 0.0", "a fraction between 0 and 1"),
        (["--test-fraction", "-0.1"], "test_fraction is -0.1", "a fraction between 0 and 1"),
        (["--test-fraction", "0.9"], "train_fraction 0.4 + test_fraction 0.9 exceeds 1", "lower one"),
        (["--lr", "-1"], "lr is -1.0", "--lr takes a number >= 0"),
        (["--lr", "nan"], "lr is nan", "--lr takes a number >= 0"),
        (["--batch-size", "0"], "batch_size is 0", "an integer >= 1, or full"),
        (["--lr-ratio", "0"], "lr_ratio is 0.0", "prop41 or curvature"),
        (["--checkpoint-at", "9999"], "checkpoint_at [9999] leaves the run's steps", "raise --steps"),
        (["--model", "onehot", "--lr-ratio", "prop41"], "model onehot has no E", "--model embedding"),
        (["--freeze", "W", "--lr-ratio", "prop41"], "but W is frozen", "--freeze none"),
        (["--model", "tables", "--freeze", "E"], "model tables has no E", "leave out --freeze, --lr-ratio"),
        (["--model", "tables", "--lr-ratio", "10"], "lr_ratio is 10.0, but model tables has no E", "--lr-ratio"),
        (["--model", "tables", "--lr-ratio", "prop41"], "model tables has no E", "leave out --freeze, --lr-ratio"),
        (["--model", "tables", "--sampler", "frequency_aware"], "model tables has no E", "lr-ratio and --sampler"),
        (["--penalty", "nuclear"], "penalty nuclear acts on tables, but the model is embedding", "--model tables"),
        (["--model", "onehot", "--penalty", "nuclear"], "but the model is onehot", "--penalty l2"),
        (["--model", "transformer", "--penalty", "nuclear"], "but the model is transformer", "--model tables"),
        ([*NUCLEAR, "--freeze", "W"], "penalty nuclear moves the tables W, but W is frozen", "--freeze none"),
        (["--preset", "quikc"], "unknown preset 'quikc'", "did you mean quick?"),
    ],
)
def test_values_no_run_can_have(
    assert_refused: Refusal, tmp_path: Path, flags: list[str], error: str, hint: str
) -> None:
    """Bad values end before anything is written, with exit code 2."""
    assert_refused(["train", "--out", tmp_path / "run.h5", *flags], 2, error, hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device(assert_refused: Refusal, run_file: Path, tmp_path: Path) -> None:
    """--device cuda is an error where there is none, in both commands."""
    for argv in (["train", "--out", tmp_path / "x.h5"], ["hessian", "--ckpt", run_file]):
        assert_refused([*argv, "--device", "cuda"], 1, "no CUDA device is available", "--device cpu or auto")


def put_in_W(run_file: Path, value: float) -> dict[str, np.ndarray]:
    """Write a value into W at step 20, checksum and all; the whole row."""
    with Disk(run_file) as disk, contextlib.closing(open_file(run_file, schema.RUN)) as file:
        table = file.tables["checkpoints"]
        values = table.row(20)
        assert values is not None
        values["W"][3, 1] = value
        TableWriter(table, disk).write(table.rows[20], 20, values)
    return values


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
    argv = ["hessian", "--ckpt", run_file, "--steps", "20", "--quiet"]
    assert_refused(argv, 1, "W at step 20 has 1 non-finite values", "lower --lr", (run_file,))


def test_run_file_that_exists(assert_refused: Refusal, run_file: Path) -> None:
    """A run is never overwritten unasked."""
    assert_refused(["train", "--out", run_file], 1, f"{run_file} exists", "--resume", (run_file,))


@pytest.mark.slow
def test_hessian_file_of_other_settings(
    assert_refused: Refusal, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Hessian file with other settings stays; --overwrite replaces it; the run itself is never the output."""
    base = ["hessian", "--ckpt", str(run_file), "--blocks", "E", "--quiet", "--steps"]
    assert cli.run([*base, "0"]) == 0
    capsys.readouterr()
    path = tmp_path / "run.hessian.h5"
    others = [*base, "60", "--rtol", "1e-3"]
    assert_refused(others, 1, "it was made with rtol 1e-06, not 0.001", "--overwrite", (path, run_file))
    assert cli.run([*others, "--overwrite"]) == 0
    assert HessianReader(path).steps == [60]
    capsys.readouterr()
    assert_refused([*base, "0", "--out", str(run_file)], 1, "is the run file itself", "another --out", (run_file,))


def test_report_folder_that_exists(assert_refused: Refusal, run_file: Path, tmp_path: Path) -> None:
    """A folder that is no report is never replaced, a report only with --overwrite."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    argv = ["report", run_file, "--quiet", "--out", folder]
    assert_refused(
        [*argv, "--overwrite"], 2, "exists and is no report with a record", "another folder", (folder / "thesis.tex",)
    )


def test_folder_that_cannot_be_written(assert_refused: Refusal, run_file: Path) -> None:
    """A folder that cannot be made is an error before training."""
    inside = run_file / "sub" / "x.h5"
    assert_refused(["train", "--out", inside], 1, f"cannot write in {inside.parent}", "another place", (run_file,))
    assert_refused(["hessian", "--ckpt", run_file, "--out", inside], 1, "cannot write in", "another place", (run_file,))


def test_dense_block_that_does_not_fit(
    assert_refused: Refusal, run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a dense block needs and what there is are said before the work."""
    from landscape import devices

    monkeypatch.setattr(devices, "free_memory", lambda device: 10_000)
    argv = ["hessian", "--ckpt", run_file, "--blocks", "W", "--method", "dense"]
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
    argv = ["hessian", "--ckpt", run, "--blocks", "W", "--method", "dense"]
    assert_refused(
        argv, 1, "block W has 65,536 parameters; LAPACK's 32-bit indices end at 32,000", "--method lanczos", (run,)
    )


def test_resume_refuses_another_config(assert_refused: Refusal, run_file: Path) -> None:
    """A resumed run keeps what decides its numbers."""
    argv = ["train", "--out", run_file, "--resume", "--lr", "0.02"]
    assert_refused(argv, 2, "lr is 0.02, but the run was started with 0.01", "--resume can change only", (run_file,))


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
    assert cli.run(["hessian", "--ckpt", run, "--steps", "0,20", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["step"] for s in document["steps"]] == [0, 20]
    assert document["steps"][0]["prop41_ratio"] is None
    assert document["blocks"] == ["E", "W", "E,W", "W,V", "all"]


@pytest.mark.slow
def test_table_shows_what_the_file_holds(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal table prints the file's eigenvalues and indices, and a bracket where only that is known."""
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.run(["hessian", "--ckpt", str(run_file), "--steps", "60", "--blocks", "E,W", "--quiet"]) == 0
    row = HessianReader(run_file.with_name("run.hessian.h5")).row(60)
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[:8] == [
        "60",
        "E,W",
        f"{row['eigenvalues'][0, 0, 0]:.6g}",
        f"{row['eigenvalues'][0, 1, 0]:.6g}",
        "0",
        str(row["inertia"][0, 0]),
        str(row["saddle_index_gauge_free"][0]),
        "certified",
    ]


@pytest.mark.slow
def test_not_converged_is_exit_code_3(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of products that is too small finishes, marks the values and exits with 3."""
    argv = ["hessian", "--ckpt", str(run_file), "--steps", "60", "--blocks", "all", "--method", "lanczos"]
    assert cli.run([*argv, "--max-hvps", "8", "--rtol", "1e-12", "--quiet"]) == 3
    assert "* not every eigenvalue converged" in capsys.readouterr().out


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
def test_help_is_light() -> None:
    """--help and --version import nothing that takes long: a second is too much for them."""
    heavy = ("torch", "scipy", "matplotlib", "xarray", "pandas")
    for flags, words in (
        (["train", "--help"], ("--lr-ratio", "--checkpoint-every", "--sampler", "--resume")),
        (["--version"], (f"landscape {landscape.__version__}\n",)),
    ):
        code = f"import sys\nfrom landscape.cli import main\nassert main.run({flags}) == 0\n"
        code += f"assert not {set(heavy)} & set(sys.modules)"
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert all(word in shown.stdout for word in words)


@pytest.mark.slow
def test_derivatives_do_without_sympy(run_file: Path, tmp_path: Path) -> None:
    """torch imports it, a second of each process, for the shape of what a derivative is weighted with."""
    code = (
        "import sys; from pathlib import Path; from landscape.config import HessianConfig; "
        "from landscape.measure.hessian import analyse; "
        f"analyse(Path({str(run_file)!r}), HessianConfig(steps='0', blocks=('E',), device='cpu'), "
        f"Path({str(tmp_path / 'h.h5')!r}), quiet=True, jobs=0); "
        "assert 'torch' in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_usage_errors_exit_2() -> None:
    """An unknown flag is a usage error."""
    result = subprocess.run([sys.executable, "-m", "landscape", "train", "--hiden", "3"], capture_output=True)
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr
