"""Exports, read back by the libraries that they are for: every number is that of the file."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.commands import Refusal
from helpers.hessians import HessianReader
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from landscape import Recorder
from landscape.cli import main as cli
from landscape.errors import ConfigError
from landscape.exports import FORMS, export
from landscape.files.runs import RunReader
from landscape.files.schema import LEVELS
from landscape.files.views import File
from landscape.measure.geometry import geometry as measure_geometry

PAGE = (Path(__file__).parents[2] / "docs/format.md").read_text()


@pytest.fixture(scope="module")
def hessian(tiny_run: Path, tiny_hessian: HessianReader) -> Path:
    return tiny_hessian.path


def assert_eigenvalues(frame: pd.DataFrame, reader: HessianReader) -> None:
    """Each eigenvalue under its labels, and none but these."""
    expected = np.stack([reader.row(step)["eigenvalues"] for step in reader.steps])
    assert len(frame) >= np.isfinite(expected).sum() > 100
    for step, block, end, rank, value in frame[["step", "block", "end", "rank", "eigenvalues"]].itertuples(index=False):
        here = expected[reader.steps.index(step), reader.blocks.index(block), ["lowest", "highest"].index(end), rank]
        assert here == value or math.isnan(here) and math.isnan(value)


def test_csv(tiny_run: Path, hessian: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """pandas reads every digit, counts as integers and levels as words."""
    out = export(hessian, tmp_path / "h", "csv")
    assert_eigenvalues(pd.read_csv(out / "by_step_block_end_rank.csv"), tiny_hessian)
    blocks = pd.read_csv(out / "by_step_block.csv").set_index(["step", "block"])
    row = tiny_hessian.row(60)
    for i, block in enumerate(tiny_hessian.blocks):
        assert blocks["inertia_level"][60, block] == LEVELS[row["inertia_level"][i]]
        assert blocks["inertia_lower"][60, block] == row["inertia_lower"][i]
    assert "\n60,E," in (out / "by_step_block.csv").read_text()
    assert ",0.0," not in (out / "by_step_block_sign.csv").read_text()
    spectra = pd.read_csv(out / "spectrum_by_step_block_row.csv")
    chosen = spectra[(spectra["step"] == 20) & (spectra["block"] == "E,W")]
    assert chosen["eigenvalue"].tolist() == tiny_hessian.spectra(20)["E,W"].tolist()
    metrics = pd.read_csv(export(tiny_run, tmp_path / "r", "csv") / "metrics_by_metric_step.csv")
    with RunReader(tiny_run) as run:
        for name, values in run.metrics().items():
            np.testing.assert_array_equal(metrics[name], values)


def test_the_example_in_r(hessian: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """The example of docs/format.md runs as it stands, and R has the numbers of the file."""
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed")
    (code,) = (code for code in re.findall(r"```r\n(.*?)```", PAGE, re.DOTALL) if "read.csv" in code)
    export(hessian, tmp_path / "tables", "csv")
    command = ["Rscript", "-e", f'{code}cat(sprintf("%.17g", lowest$eigenvalues))']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    joint = tiny_hessian.blocks.index("E,W")
    expected = [tiny_hessian.row(step)["eigenvalues"][joint, 0, 0] for step in tiny_hessian.steps]
    assert [float(number) for number in done.stdout.split()] == pytest.approx(expected, rel=1e-14)


def test_parquet(hessian: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """pyarrow reads the same tables; unknown counts are null."""
    out = export(hessian, tmp_path / "p", "parquet")
    assert_eigenvalues(parquet.read_table(out / "by_step_block_end_rank.parquet").to_pandas(), tiny_hessian)
    previous = parquet.read_table(out / "by_step.parquet")["previous_step"]
    assert str(previous.type) == "int64"
    assert previous.to_pylist() == [None, 0, 20]
    with File(hessian) as file:
        assert {path.stem for path in out.glob("*.parquet")} == file.to_dataframes().keys()


def test_netcdf(tiny_run: Path, hessian: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """The netCDF library reads every group, with names of axes; parameters too."""
    with netCDF4.Dataset(export(hessian, tmp_path / "h", "netcdf") / f"{hessian.stem}.nc") as data:
        assert data["eigenvalues"].dimensions == ("step", "block", "end", "rank")
        np.testing.assert_array_equal(data["eigenvalues"][-1].filled(np.nan), tiny_hessian.row(60)["eigenvalues"])
        assert data["block"][:].tolist() == tiny_hessian.blocks
        assert data["previous_step"][:].mask.tolist() == [True, False, False]
        np.testing.assert_array_equal(data["spectrum/E,W"][1], tiny_hessian.spectra(20)["E,W"])
    with (
        netCDF4.Dataset(export(tiny_run, tmp_path / "r", "netcdf") / f"{tiny_run.stem}.nc") as data,
        RunReader(tiny_run) as run,
    ):
        assert list(data["checkpoints/step"][:]) == run.steps
        np.testing.assert_array_equal(data["checkpoints/E"][-1], run.checkpoint(run.steps[-1])["E"])
        assert data["data/split"].dimensions == ("sample",)


def test_tensorboard(tiny_run: Path, hessian: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """TensorBoard's own reader has each scalar at its step, bit for bit, and no NaN."""

    def curves(path: Path, out: str) -> dict[str, dict[int, float]]:
        events = EventAccumulator(str(export(path, tmp_path / out, "tensorboard")), size_guidance={"tensors": 0})
        events.Reload()
        tags = [tag for tag in events.Tags()["tensors"] if tag != "config/text_summary"]
        assert all(events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars" for tag in tags)
        return {
            tag: {e.step: float(tensor_util.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)} for tag in tags
        }

    scalars, joint = curves(hessian, "h"), tiny_hessian.blocks.index("E,W")
    rows = {step: tiny_hessian.row(step) for step in tiny_hessian.steps}
    assert scalars["eigenvalues/E,W/lowest"] == {s: row["eigenvalues"][joint, 0, 0] for s, row in rows.items()}
    assert scalars["inertia/E,W/negative"] == {s: row["inertia"][joint, 0] for s, row in rows.items()}
    assert scalars["previous_step"] == {20: 0, 60: 20}
    assert not any(math.isnan(value) for curve in scalars.values() for value in curve.values())
    with RunReader(tiny_run) as run:
        metrics = run.metrics()
    losses = dict(zip(metrics["metric_step"], metrics["test_loss"], strict=True))
    assert curves(tiny_run, "r")["test_loss"] == losses


def test_curves_are_by_step(tiny_run: Path, tmp_path: Path) -> None:
    """The number at each place of the group's circle is by place: no scalar, whose places would pass for steps."""
    path = measure_geometry(tiny_run, tmp_path / "g.h5", device="cpu")
    events = EventAccumulator(str(export(path, tmp_path / "out", "tensorboard")), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    assert "distance_r2" in tags
    assert "number" not in tags


@pytest.mark.long
@pytest.mark.parametrize("form", ["netcdf", "tensorboard", "wandb"])
def test_a_full_disk(form: str, hessian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be written whole is an error without a traceback, and no folder, at whatever byte it ends."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    command = [sys.executable, "-m", "landscape", "export", hessian, f"--{form}"]
    subprocess.run([*command, tmp_path / "home" / "whole"], check=True, capture_output=True)
    whole = max(path.stat().st_size for path in (tmp_path / "home" / "whole").rglob("*") if path.is_file())
    for size in (whole // 20, whole // 2, whole - 1):
        done = subprocess.run(
            [*command, tmp_path / "out"],
            capture_output=True,
            text=True,
            # Python would cut its files of bytecode there, too, and read them ever after.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),  # type: ignore[misc]
        )
        assert done.returncode == 1
        assert "cannot be written: File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert not [path for path in tmp_path.iterdir() if path.name != "home"]


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of an offline run: LevelDB's log format behind a header of seven bytes."""
    raw = path.read_bytes()
    assert raw[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(raw):
        if (left := -at % (1 << 15)) and left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        record += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.long
def test_wandb(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that `wandb sync` uploads has every metric at its step, and the config; a second export replaces it."""
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A name outside UTF-8, which only Python's own files may have.
    own = Path(shutil.copy(tiny_run, tmp_path / "\udce9.h5"))
    for file in (own, tiny_run):
        (path,) = export(file, tmp_path / "w", "wandb", overwrite=True).rglob("*.wandb")
    records = [Record.FromString(raw) for raw in wandb_records(path)]
    config = {u.key: json.loads(u.value_json) for r in records for u in (*r.config.update, *r.run.config.update)}
    logged: dict[int, dict[str, Any]] = {
        r.history.step.num: {"/".join(item.nested_key): json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.HasField("history")
    }
    with RunReader(tiny_run) as run:
        metrics = run.metrics()
        assert {name: config[name] for name in run.config} == run.config
    for i, step in enumerate(metrics["metric_step"]):
        for name, values in metrics.items():
            assert name == "metric_step" or math.isnan(values[i]) or logged[step][name] == values[i]


def test_only_exports_are_replaced(tiny_run: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """An export that stands there, a folder of somebody else's, and the folder of the file itself are kept."""
    out = tmp_path / "out"
    assert cli.run(["export", str(tiny_run), "--csv", str(out)]) == 0
    table = out / "metrics_by_metric_step.csv"
    assert_refused(["export", tiny_run, "--csv", out], 1, f"{out} exists", "--overwrite", [table])
    table.write_text("edited")
    argv = ["export", tiny_run, "--csv", out, "--overwrite"]
    assert_refused(argv, 1, f"{table} was edited", "move it away", [table])
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.tex").write_text("x")
    assert_refused(["export", tiny_run, "--netcdf", own, "--overwrite"], 2, "is no export", "", [own / "thesis.tex"])
    assert_refused(["export", tiny_run, "--csv", tiny_run.parent, "--overwrite"], 2, "lies in", "another folder")


def test_what_an_export_needs(tiny_run: Path, tmp_path: Path, assert_refused: Refusal, monkeypatch: Any) -> None:
    """No folder, a missing file, an unknown form, and a missing package, of which nothing else is written first."""
    assert_refused(["export", tiny_run], 2, "nothing to export to", "--csv DIR")
    both = ["export", tiny_run, "--csv", tmp_path / "c", "--netcdf", tmp_path / "x/../c"]
    assert_refused(both, 2, "two exports go to one folder", "a folder of its own")
    assert not (tmp_path / "c").exists()
    assert_refused(["export", tmp_path / "x.h5", "--csv", tmp_path / "c"], 1, "x.h5 does not exist", "")
    with pytest.raises(Exception, match="unknown form 'cvs'"):
        export(tiny_run, tmp_path / "c", "cvs")
    find_spec = importlib.util.find_spec
    missing = ("pyarrow", "tensorboard", "wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    for form, package in {"parquet": "pyarrow", "tensorboard": "tensorboard", "wandb": "wandb"}.items():
        argv = ["export", tiny_run, "--csv", tmp_path / "c", f"--{form}", tmp_path / "d"]
        extra = f"pip install {package}"
        assert_refused(argv, 2, f"{form} needs the package {package}, which is not installed", extra)
    assert not list(tmp_path.iterdir())
    assert list(FORMS) == ["csv", "parquet", "netcdf", "tensorboard", "wandb"]


@pytest.mark.parametrize("form", ["parquet", "tensorboard", "wandb"])
def test_a_folder_that_a_library_cannot_name(form: str, tiny_run: Path, tmp_path: Path) -> None:
    """Names that are no UTF-8, which only Python's own files may have."""
    with pytest.raises(ConfigError, match=f"{form} cannot write to .*, whose name is not UTF-8"):
        export(tiny_run, tmp_path / "\udce9", form)
    assert not list(tmp_path.iterdir())
    assert (export(tiny_run, tmp_path / "\udce9", "csv") / "metrics_by_metric_step.csv").exists()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_without_a_row_has_no_tables(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder is explained; it is replaced as any other export once there are rows."""
    path = tmp_path / "empty.h5"
    model = torch.nn.Linear(2, 2)
    with Recorder(path, model):
        pass
    out = export(path, tmp_path / "out", form)
    assert [file.name for file in out.iterdir()] == [".landscape.json"]
    assert capsys.readouterr().err == f"note: {path} has no measurements yet: {out} holds no table\n"
    with Recorder(path, model, resume=True) as recorder:
        recorder.checkpoint(0)
        recorder.metrics(0, loss=1.0)
    export(path, out, form, overwrite=True)
    assert (out / f"metrics_by_metric_step.{form}").exists()
    assert capsys.readouterr().err == ""
