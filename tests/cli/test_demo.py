"""`landscape demo`, of a smaller network."""

from __future__ import annotations

from pathlib import Path

import pytest

from landscape.cli import main as cli
from landscape.presets import PRESETS


@pytest.mark.slow
@pytest.mark.long
def test_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves a run, its geometry and Hessian and a report; again, it finds nothing to train or measure.

    An analysis with settings of one's own is not replaced.
    """
    monkeypatch.setitem(PRESETS, "demo", PRESETS["demo"] | {"p": 7, "embed_dim": 4, "hidden": 8})
    folder = tmp_path / "mine"
    times = []
    for _ in range(2):
        assert cli.run(["demo", str(folder), "--steps", "20", "--checkpoints", "1", "--quiet"]) == 0
        made = {path.name: path for path in folder.iterdir()}
        assert made.keys() == {"demo.h5", "demo.geometry.h5", "demo.hessian.h5", "report"}
        assert (made["report"] / "report.html").stat().st_size > 10_000
        times.append({name: path.stat().st_mtime_ns for name, path in made.items() if path.is_file()})
    assert times[0] == times[1]
    run, hessian = str(folder / "demo.h5"), folder / "demo.hessian.h5"
    assert cli.run(["hessian", run, "--steps", "20", "--blocks", "E", "--k", "3", "--overwrite", "--quiet"]) == 0
    mine = hessian.read_bytes()
    capsys.readouterr()
    assert cli.run(["demo", str(folder), "--steps", "20", "--checkpoints", "1", "--quiet"]) == 1
    assert f"error: {hessian}: it was made with k 3, not" in capsys.readouterr().err
    assert hessian.read_bytes() == mine
