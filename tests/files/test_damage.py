"""Damage to sound files is named, or harmless, and never a wrong number."""

from __future__ import annotations

import collections
import dataclasses
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import SMALL
from helpers.fuzz_reader import Campaign, Reader
from helpers.hessians import HessianReader, analyse
from helpers.spoiling import commit

import landscape
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.files.inspect import inspect, repair
from landscape.files.runs import RunReader
from landscape.files.writing import sole_writer
from landscape.report.page import write_report
from landscape.training.loop import summarise, train


def spoiled(path: Path, group: str, step: int, name: str) -> None:
    """Change one value of a committed row."""
    with h5py.File(path, "r+") as file:
        (row,) = np.flatnonzero(file[group][()] == step) if "/" in group else [0]
        data = file[f"{group.rpartition('/')[0]}/{name}"]
        data[row] = data[row] + 1


def test_a_checkpoint_that_was_damaged_since_it_was_measured(run: Path) -> None:
    """The next step cannot be tracked from it."""
    config = HessianConfig(blocks=("W",), k=1, steps="0", device="cpu")
    analyse(run, config, run.with_name("out.h5"), quiet=True)
    spoiled(run, "checkpoints/step", 0, "W")
    with pytest.raises(FileError, match="the checkpoint of step 0 fails its checksum"):
        analyse(run, dataclasses.replace(config, steps="20"), run.with_name("out.h5"), quiet=True)


@pytest.mark.slow
def test_damaged_steps_are_skipped_and_named(
    files: dict[str, Path], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` and `all` skip them, a step that was asked for is an error, and a report skips them."""
    spoiled(run, "checkpoints/step", 20, "W")
    spoiled(run, "tokens/step", 40, "count")
    for steps in ("all", "auto"):
        config = HessianConfig(blocks=("W",), k=1, steps=steps, device="cpu")
        assert analyse(run, config, run.with_name(f"{steps}.h5"), quiet=True).steps == [0]
        assert f"warning: {run}: left out, for their checksums fail: checkpoints: step 20; tokens: step 40" in (
            capsys.readouterr().err
        )
    for step, what in ((20, "checkpoint"), (40, "row in tokens")):
        config = HessianConfig(blocks=("W",), k=1, steps=f"0,{step}", device="cpu")
        with pytest.raises(FileError, match=f"the {what} of step {step} fails its checksum"):
            analyse(run, config, run.with_name("asked.h5"), quiet=True)
    assert not run.with_name("asked.h5").exists()
    assert list(landscape.open(run).to_xarray()["step"].values) == [0]
    page = write_report([run], run.with_name("report"), quiet=True).read_text()
    line = f"{run}: left out, for their checksums fail: checkpoints: step 20; tokens: step 40"
    assert f"warning: {line}" in capsys.readouterr().err
    assert line in page
    with pytest.raises(FileError, match="rows fail their checksums: checkpoints: step 20; tokens: step 40"):
        train(SMALL, run, resume=True, quiet=True)
    with RunReader(run) as reader:
        assert reader.checkpoint(0)["E"].shape == (7, 4)


@pytest.mark.slow
def test_a_damaged_row_of_metrics_leaves_rates_unknown(files: dict[str, Path], run: Path) -> None:
    """It is not served, and the row before it does not stand in for it."""
    spoiled(run, "metrics/metric_step", 20, "lr_W")
    with RunReader(run) as reader:
        assert list(reader.metrics()["metric_step"]) == [0, 40]
        assert reader.damage == "metrics: step 20"
        assert [reader.metrics_at(step) is None for step in (0, 20, 40)] == [True, True, False]
    result = analyse(run, HessianConfig(blocks=("W",), k=1, steps="all", device="cpu"), quiet=True)
    assert [bool(np.isnan(result.row(step)["sharpness_gd"])) for step in (0, 20, 40)] == [True, True, False]


@pytest.mark.parametrize(("group", "name"), [("checkpoints", "W"), ("tokens", "count"), ("metrics", "lr_W")])
def test_a_repaired_run_that_lost_rows_is_not_complete(group: str, name: str, run: Path) -> None:
    """It is resumed like any that was interrupted."""
    assert summarise(run).status == "complete"
    row = f"{group}/{'metric_' if group == 'metrics' else ''}step"
    for step in (20, 40):
        spoiled(run, row, step, name)
    assert repair(run) == run.with_name(f"{run.name}.damaged")
    summary = summarise(run)
    assert (summary.status, summary.steps) == ("interrupted", 40)


@pytest.mark.slow
def test_a_damaged_hessian_file_is_named(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused whole, and an analysis does not take it for done."""
    run, path = (Path(shutil.copy(source, tmp_path)) for source in files.values())
    with h5py.File(path, "r+") as file:
        file["spectrum/W"][1] += 1
    config = HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu")
    for use in (lambda: HessianReader(path), lambda: analyse(run, config, quiet=True), lambda: repair(path)):
        with pytest.raises(FileError, match="spectrum fails its checksum"):
            use()
    assert inspect(path).damage == ("spectrum fails its checksum",)
    assert cli.run(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert "measure it again with --overwrite" in said
    assert "--repair" not in said


def test_a_resume_slot_that_no_run_writes_is_refused(run: Path) -> None:
    """Even where its record fits: an order that is none would be an index out of range."""
    with h5py.File(run, "r+") as file:
        for slot in (0, 1):
            row = {name: file["resume"][name][slot] for name in str(file["resume/crc32"].attrs["fields"]).split()}
            commit(file["resume"], "resume_slot", slot, slot, row | {"order": row["order"] + 1})
    with pytest.raises(FileError, match="holds a resume slot that no run writes"):
        train(dataclasses.replace(SMALL, steps=60), run, resume=True, quiet=True)


def test_resume_slots_that_a_live_writer_overwrites(run: Path) -> None:
    """Both may change between the reading of their records and of their bytes; without a writer that is damage."""
    with h5py.File(run, "r+") as file:
        file["resume/crc32"][()] = file["resume/crc32"][()] + 1
    with sole_writer(run):
        assert inspect(run).damage == ()
    assert inspect(run).damage == ("resume: no valid slot, so that the run cannot be resumed",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_truncation(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Cut at 200 places, a file is refused, or what is served is right."""
    whole, path = files[kind].read_bytes(), tmp_path / "cut.h5"
    reader = Reader(files[kind])
    counts: collections.Counter[str] = collections.Counter()
    for i in range(200):
        path.write_bytes(whole[: len(whole) * i // 200])
        counts[reader.verdict(path).partition(":")[0]] += 1
    assert reader.close() < 1 << 27
    assert counts == {"named": 200}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_random_spoils(kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Links, types, shapes, storage, attributes and configs changed at random: refused or served right."""
    campaign = Campaign(files[kind], tmp_path / "victim.h5")
    campaign.run(80, 0)
    assert campaign.reader.close() < 1 << 27
    assert not campaign.bad
    assert campaign.counts["named"] > 40
