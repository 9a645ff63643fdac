"""Outputs that are symbolic links: the file that they lead to is made, locked and replaced; they stay what they are."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from helpers.hessians import analyse, refine

import landscape
from landscape.config import AnalysisConfig, HessianConfig, SliceConfig
from landscape.errors import ConfigError, FileError
from landscape.files.inspect import inspect, repair
from landscape.files.runs import RunReader
from landscape.files.writing import sole_writer
from landscape.jobs.plan import DEFINITION, SweepConfig, sweep_runs
from landscape.measure.slices import slice as slice_checkpoint
from landscape.report.page import write_report
from landscape.training.loop import train, train_ensemble

SHORT = dataclasses.replace(TINY, steps=10)
E_ALONE = HessianConfig(steps="0", blocks=("E",), device="cpu")


def link(path: Path, target: str) -> tuple[Path, Path]:
    """A link, relative to its folder, and the path that it leads to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path, path.parent / target


@pytest.mark.slow
def test_a_run_is_written_where_its_link_leads(tmp_path: Path) -> None:
    """A dangling link at first, by way of another; then a run that is resumed, replaced and repaired through it."""
    middle, real = link(tmp_path / "middle.h5", "elsewhere/real.h5")
    out, _ = link(tmp_path / "out.h5", "middle.h5")
    train(SHORT, out, quiet=True)
    with RunReader(real) as reader:
        first = reader.attrs["run_id"]
    train(TINY, out, resume=True, quiet=True)
    with RunReader(real) as reader:
        assert (reader.attrs["run_id"], reader.steps[-1]) == (first, TINY.steps)
    train(SHORT, out, overwrite=True, quiet=True)
    with RunReader(real) as reader:
        assert reader.attrs["run_id"] != first
    with real.open("r+b") as file:
        at = real.read_bytes().index(b"complete")
        file.seek(at)
        file.write(b"running\0")
    assert not inspect(out).finished
    repair(out)
    assert inspect(real).status == "interrupted"
    assert out.is_symlink()
    assert middle.is_symlink()
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["real.h5"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "middle.h5", "out.h5"]


def test_a_damaged_file_is_kept_beside_the_target(tiny_run: Path, tmp_path: Path) -> None:
    """The repaired file is the target, as it was it stands beside it."""
    out, real = link(tmp_path / "out.h5", "elsewhere/real.h5")
    real.parent.mkdir()
    shutil.copy(tiny_run, real)
    with RunReader(real) as reader:
        offset = reader.tables["checkpoints"].data["W"].id.get_offset()
    assert offset is not None
    with real.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 8)
    damaged = real.read_bytes()
    assert repair(out) == (kept := real.with_name("real.h5.damaged")).resolve()
    assert kept.read_bytes() == damaged
    assert not inspect(real).damage
    assert out.is_symlink()


@pytest.mark.slow
def test_analyses_are_written_where_their_links_lead(tiny_run: Path, tmp_path: Path) -> None:
    """Hessian files and refined points, at the default place and at a given one."""
    run = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    beside, real = link(tmp_path / "run.hessian.h5", "elsewhere/h.h5")
    for steps in ("0", "0,60"):
        analyse(run, dataclasses.replace(E_ALONE, steps=steps), quiet=True)
    assert inspect(real).steps == (0, 60)
    analysis, point = link(tmp_path / "c.h5", "elsewhere/c.h5")
    config = AnalysisConfig(blocks=("E",), device="cpu")
    refine(run, 60, config, analysis, max_products=20, quiet=True)
    refine(run, 60, config, analysis, max_products=30, resume=True, quiet=True)
    assert inspect(point).finished
    assert beside.is_symlink()
    assert analysis.is_symlink()
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["c.h5", "h.h5"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_a_sweep_writes_where_links_lead(tmp_path: Path) -> None:
    """Runs, analyses and the sweep itself; --overwrite replaces the targets."""
    config = SweepConfig(
        train={name: value for name, value in dataclasses.asdict(SHORT).items() if name != "seed"},
        hessian=({"steps": "0", "blocks": ["E"], "device": "cpu"},),
    )
    (run,) = sweep_runs(config, tmp_path)
    names = [run.path.name, run.hessian[""].name, DEFINITION]
    for name in names:
        link(run.path.with_name(name), f"elsewhere/{name}")
    (run.path.parent / "elsewhere").mkdir()
    ids = set()
    for overwrite in (False, False, True):
        result = landscape.sweep(config, tmp_path, jobs=1, overwrite=overwrite, quiet=True)
        assert not result.failures
        with RunReader(run.path) as reader:
            ids.add(reader.attrs["run_id"])
    assert len(ids) == 2
    assert sorted(p.name for p in (run.path.parent / "elsewhere").iterdir()) == sorted(names)
    assert all(run.path.with_name(name).is_symlink() for name in names)


@pytest.mark.slow
def test_an_ensemble_needs_a_file_for_each_run(tmp_path: Path) -> None:
    """Two links to one file are refused before anything is made; two files are written where they are."""
    one, real = link(tmp_path / "a.h5", "elsewhere/a.h5")
    other, _ = link(tmp_path / "b.h5", "elsewhere/a.h5")
    with pytest.raises(ConfigError, match="a.h5, .*b.h5 two are links to one file"):
        train_ensemble({one: SHORT, other: dataclasses.replace(SHORT, seed=1)}, quiet=True)
    assert not real.parent.exists()
    train_ensemble({one: SHORT, real.with_name("b.h5"): dataclasses.replace(SHORT, seed=1)}, quiet=True)
    assert one.is_symlink()
    assert inspect(real).finished


def test_the_target_is_what_is_locked(tmp_path: Path) -> None:
    """Whoever writes a file by its own name keeps out those who come by a link, and the other way round."""
    out, real = link(tmp_path / "out.h5", "real.h5")
    with sole_writer(real.resolve()), pytest.raises(FileError, match="real.h5 is being written by another process"):
        train(SHORT, out, quiet=True)
    train(SHORT, out, quiet=True)
    with sole_writer(real):
        assert inspect(out).writer


@pytest.mark.parametrize("write", [lambda out: train(SHORT, out, quiet=True), repair], ids=["train", "repair"])
def test_links_in_a_circle(write: Callable[[Path], Any], tmp_path: Path) -> None:
    """They lead nowhere, and stay."""
    link(tmp_path / "a.h5", "b.h5")
    link(tmp_path / "b.h5", "a.h5")
    with pytest.raises(FileError):
        write(tmp_path / "a.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "b.h5"]


@pytest.mark.parametrize(
    "call",
    [
        landscape.open,
        landscape.load_sweep,
        lambda path: landscape.train(SHORT, path),
        lambda path: landscape.train_ensemble({path: SHORT}),
        lambda path: landscape.ensemble(SHORT, path),
        lambda path: landscape.hessian(path, E_ALONE),
        lambda path: landscape.sweep_runs(SweepConfig(), path),
        lambda path: landscape.sweep(SweepConfig(), path),
        lambda path: write_report([path], "out"),
        lambda path: write_report([], path),
        lambda path: refine(path, 0, AnalysisConfig()),
        lambda path: slice_checkpoint(path, 0, SliceConfig(), AnalysisConfig()),
    ],
)
def test_what_is_no_path(call: Callable[[Any], Any]) -> None:
    """A number is no file, whatever opens it."""
    with pytest.raises(ConfigError, match=re.escape("the path of a file cannot be 3")) as caught:
        call(3)
    assert caught.value.hint == "give a string or a pathlib.Path"
