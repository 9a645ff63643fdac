"""Files of every released schema version open for ever; tests/data/ holds some of each, made by the commands of then.

The numbers below were printed by h5dump, not by this package.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.commands import Refusal

import landscape
from landscape.cli import main as cli
from landscape.cli.files import Info
from landscape.cli.tables import measurements
from landscape.errors import FileError
from landscape.files import schema
from landscape.files.files import open_file
from landscape.files.hessians import HessianReader
from landscape.files.inspect import repair
from landscape.files.runs import RunReader
from landscape.measure import fields

DATA = Path(__file__).parents[1] / "data"
RUN, HESSIAN = DATA / "run-1.0.h5", DATA / "run-1.0.hessian.h5"
ENTRY = [-1.0621131658554077, 1.2981716394424438, -1.2653588056564331]
"""/checkpoints/E[2, 4]: step 20, token 4."""
LOWEST = [-0.071778698227063661, -0.065129382424759366, -0.058836798165887688, -0.047265403376968183]
HIGHEST = [1.3174997878111769, 0.34043613855767013, 0.2962482406622346, 0.21487483943382082]
"""/eigenvalues[1, 2]: step 20, block E,W."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The run alone, where it may be written beside."""
    return Path(shutil.copy(RUN, tmp_path / "old.h5"))


def test_a_run_of_1_0() -> None:
    """Parameters, moments, metrics, tokens, data and the resume slot."""
    with RunReader(RUN) as reader:
        assert (reader.attrs["schema_version"], reader.attrs["status"]) == ("1.0", "complete")
        assert reader.config["embed_dim"] == 3
        assert reader.steps == [0, 10, 20]
        last = reader.checkpoint(20)
        assert list(last) == ["E", "W", "b1", "V", "b2"]
        assert last["E"][4].tolist() == ENTRY
        assert last["b2"].tolist()[:2] == [0.018841393291950226, -0.53953403234481812]
        assert float(reader.checkpoint(0)["V"][0, 0]) == 0.03822501003742218
        moments = reader.second_moments(20)
        assert moments is not None
        assert moments["W"][0, :2].tolist() == [4.0788449950923678e-07, 1.5141677067731507e-06]
        metrics, tokens, data = reader.metrics(), reader.tokens(), reader.data()
        assert metrics["metric_step"].tolist() == [0, 10, 20]
        assert metrics["test_loss"].tolist() == [1.7134723663330078, 1.8234742879867554, 2.0226955413818359]
        assert metrics["sigma_max_E"].tolist() == [3.2381606101989746, 3.195345401763916, 3.1964414119720459]
        assert tokens["count"][2].tolist() == [20] * 5
        assert tokens["grad_norm"][2, :2].tolist() == [0.30774289835244417, 0.21743760397657752]
        assert data["labels"][:6].tolist() == [0, 1, 2, 3, 4, 1]
        assert data["split"][:6].tolist() == [1, 0, 0, 1, 0, 1]
        state = reader.resume_state()
        assert (state["step"], state["rng"][0]) == (20, 2430809085585311188)


def test_a_hessian_file_of_1_0() -> None:
    """Eigenvalues, indices, coupling ratios, spectra and densities."""
    reader = HessianReader(HESSIAN)
    assert (reader.attrs["schema_version"], reader.attrs["status"]) == ("1.0", "complete")
    assert (reader.steps, reader.blocks, reader.pairs) == ([0, 20], ["E", "W", "E,W"], ["E,W", "W,V", "E,V"])
    row = reader.row(20)
    assert row["eigenvalues"][2].tolist() == [LOWEST, HIGHEST]
    assert row["inertia"].tolist() == [[0, 3, 12], [0, 8, 16], [12, 6, 21]]
    assert row["inertia_level"].tolist() == [3, 3, 3]
    assert row["saddle_index_gauge_free"].tolist() == [-1, -1, 10]
    assert row["coupling_ratios"][0, :2].tolist() == [2071430.5203714934, 95497.11819510255]
    assert (row["saddle_bound"], row["saddle_rank_bound"]) == (0.077606737621127894, 15)
    assert reader.spectra(20)["E"][-2:].tolist() == [0.039905285496821027, 0.077621879160720872]
    assert reader.densities(20)["E,W"][255:257].tolist() == [10.31724114779677, 10.182954459707279]


def test_views_of_1_0() -> None:
    """`open_run` and `open_hessian` select by label."""
    run, hessian = landscape.open_run(RUN), landscape.open_hessian(HESSIAN)
    assert run["E"].sel(step=20, token=4).values.tolist() == ENTRY
    assert run["test_accuracy"].sizes == {"metric_step": 3}
    assert hessian["eigenvalues"].sel(step=20, block="E,W", end="lowest").values.tolist() == LOWEST


@pytest.mark.slow
def test_a_run_of_1_0_is_analysed(copy: Path) -> None:
    """`landscape hessian` finds the stored eigenvalues again, relative to the norm of the block."""
    argv = ["hessian", "--ckpt", str(copy), "--steps", "0,20", "--blocks", "E", "W", "E,W", "--k", "4", "--quiet"]
    assert cli.run([*argv, "--device", "cpu"]) == 0
    old, new = HessianReader(HESSIAN), HessianReader(copy.with_name("old.hessian.h5"))
    assert new.attrs["parent_sha256"] == old.attrs["parent_sha256"]
    assert new.steps == old.steps
    for step in old.steps:
        then, now = old.row(step), new.row(step)
        error = np.abs(now["eigenvalues"] - then["eigenvalues"]).max(axis=(1, 2))
        assert (error <= 1e-9 * then["operator_norm"]).all()
        assert now["inertia"].tolist() == then["inertia"].tolist()


@pytest.mark.slow
def test_a_run_of_1_0_goes_on(copy: Path) -> None:
    """`landscape train --resume` adds steps to it; what it held stays bit for bit."""
    argv = ["train", "--resume", "--out", str(copy), "--steps", "30", "--device", "cpu", "--quiet"]
    assert cli.run(argv) == 0
    with RunReader(RUN) as old, RunReader(copy) as new:
        assert new.steps == [0, 10, 20, 30]
        for step in old.steps:
            for name, array in old.checkpoint(step).items():
                assert new.checkpoint(step)[name].tobytes() == array.tobytes()


# --- 1.1: every command opens its files, finished, killed and interrupted ones

FILES = sorted(DATA.glob("*.h5"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copies of all old files, which may be written to."""
    for path in FILES:
        shutil.copy(path, tmp_path)
    return tmp_path


def rows(path: Path) -> dict[tuple[str, int], dict[str, bytes]]:
    """Every committed row by group and label, as an outsider finds it."""
    found: dict[tuple[str, int], dict[str, bytes]] = {}
    with h5py.File(path) as file:
        for group in (file, *(item for item in file.values() if isinstance(item, h5py.Group))):
            if "crc32" not in group:
                continue
            names = str(group["crc32"].attrs["fields"]).split()
            label = group["crc32"].dims[0][0][()]
            for i in np.flatnonzero(group["crc32"][()] >= 1 << 32):
                found[str(group.name), int(label[i])] = {name: group[name][i].tobytes() for name in names}
    return found


def test_runs_of_1_1() -> None:
    """Embeddings with Adam; one-hot tokens with SGD in double precision; a killed one and an interrupted one."""
    with RunReader(DATA / "run-1.1.h5") as reader:
        assert reader.checkpoint(20)["E"][4].tolist() == ENTRY
        assert reader.metrics()["test_loss"].tolist() == [1.7134723663330078, 1.8234740495681763, 2.0226955413818359]
    with RunReader(DATA / "run-1.1-sgd.h5") as reader:
        found = reader.checkpoint(20)
        assert [*found] == ["W", "V"]
        assert found["W"].dtype == np.float64
        assert found["W"][3, :2].tolist() == [0.19376761087201191, 0.083397824109205224]
        assert (reader.second_moments(20), reader.resume_state()["step"]) == (None, 20)
        assert reader.resume_state()["m_V"][0].tolist()[:2] == [0.22089894103758714, 0.14552148830746447]
    with RunReader(DATA / "run-1.1-member.h5") as reader:
        assert (reader.attrs["status"], reader.steps) == ("running", [0, 10])
        assert reader.checkpoint(10)["b2"].tolist()[:2] == [-0.096544839441776276, -0.083312556147575378]
        assert reader.metrics()["metric_step"].tolist() == [0, 10, 20]
        assert reader.resume_state()["step"] == 10
    with RunReader(DATA / "run-1.1-stopped.h5") as reader:
        assert (reader.attrs["status"], reader.steps) == ("interrupted", [0, 10, 20])
        assert reader.resume_state()["step"] == 21
        assert reader.checkpoint(20)["V"][0, :2].tolist() == [-0.28449165821075439, -0.40554019808769226]


def test_hessian_files_of_1_1() -> None:
    """All blocks with eigenvectors; those of a model without E; one that was killed."""
    reader = HessianReader(DATA / "run-1.1.hessian.h5")
    assert reader.blocks == ["E", "W", "V", "E,W", "W,V", "E,V", "all"]
    lowest = [-0.071778696863188399, -0.065129381857479615, -0.058836799842551316]
    assert reader.row(20)["eigenvalues"][3, 0].tolist() == lowest
    assert reader.row(20)["checkpoint_crc32"] == 6910822970
    assert reader.row(20)["inertia"][3].tolist() == [12, 6, 21]
    assert reader.rows(20)["eigenvectors"]["E"][1, 0, :2].tolist() == [-0.11882538505728175, 0.39459281951726433]
    reader = HessianReader(DATA / "run-1.1-sgd.hessian.h5")
    assert reader.row(20)["eigenvalues"][0, 1].tolist() == [0.15149160209456772, 0.10002609640341129]
    assert reader.spectra(20)["V"][-2:].tolist() == [0.068192456671119492, 0.10615012589396139]
    reader = HessianReader(DATA / "run-1.1.hessian-killed.h5")
    assert (reader.attrs["status"], reader.steps) == ("running", [0])
    assert reader.row(0)["eigenvalues"][1, 0, 0] == -0.089037760673540342


def test_searches_of_1_1() -> None:
    """A finished one with its point, and a killed one of which only the state stands."""
    reader = HessianReader(DATA / "run-1.1-stopped.critical-20.h5")
    point = reader.critical_point(20)
    assert (point["status"], point["grad_norm"]) == (2, 6.9575202357188599e-11)
    assert point["W"][0, :2].tolist() == [-0.003392813315041124, 0.0045060865725748151]
    assert reader.search["iterations"] == 30
    reader = HessianReader(DATA / "run-1.1-stopped.critical-20-killed.h5")
    assert (reader.steps, reader.search["iterations"], reader.search["radius"]) == ([], 8, 2.7642115631713038)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_old_files_in_every_reader(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`info` and `check` describe each; `open_run` and `open_hessian` show each of its datasets; --repair keeps it."""
    copy = folder / path.name
    with h5py.File(path) as file:
        kind, status = str(file.attrs["schema"]), str(file.attrs["status"])
        groups = [file] if kind == schema.HESSIAN else [g for n, g in file.items() if n not in ("resume", "data")]
        shown = {name for group in groups for name in str(group["crc32"].attrs["fields"]).split()}
    view = landscape.open_run if kind == schema.RUN else landscape.open_hessian
    with view(path) as data:
        assert shown <= set(data.load().variables)
    before = rows(copy)
    assert cli.run(["info", str(copy)]) == 0
    assert f"{kind} {path.name.split('-')[1][:3]}" in capsys.readouterr().out
    assert cli.run(["check", str(copy)]) == (0 if status == "complete" else 3)
    assert cli.run(["check", str(copy), "--repair"]) == (0 if status == "complete" else 3)
    assert rows(copy) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run-1.1", "run-1.1-sgd", "run-1.1-member", "run-1.1-stopped", "run-1.0"])
def test_old_runs_are_resumed(name: str, folder: Path) -> None:
    """What they hold stays bit for bit in a file of this version, which is resumed and analysed as any other.

    Rows of metrics lack the columns that are younger.
    """
    path = folder / f"{name}.h5"
    before = rows(path)
    argv = ["train", "--resume", "--out", str(path), "--steps", "70", "--device", "cpu", "--quiet"]
    assert cli.run(argv) == 0
    after = rows(path)
    assert all(row.items() <= after[key].items() for key, row in before.items() if key[0] != "/resume")
    with h5py.File(path) as file, RunReader(path) as reader:
        assert file.attrs["schema_version"] == schema.VERSION
        assert reader.steps[-1] == 70
        metrics = reader.metrics()
        held = np.isin(metrics["metric_step"], [step for group, step in before if group == "/metrics"])
        for column in ("effective_rank", "nuclear_norm"):
            np.testing.assert_array_equal(np.isnan(metrics[column]), held)
    assert cli.run([*argv[:4], "--steps", "80", "--device", "cpu", "--quiet"]) == 0
    argv = [
        "hessian",
        "--ckpt",
        str(path),
        "--out",
        str(folder / "h.h5"),
        "--steps",
        "0,80",
        "--blocks",
        "W",
        "--quiet",
    ]
    assert cli.run([*argv, "--k", "2", "--device", "cpu"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run-1.0.hessian", "run-1.1.hessian", "run-1.1.hessian-killed"])
def test_old_hessian_files_grow(name: str, folder: Path) -> None:
    """Steps and blocks are added; what they hold of each block stays bit for bit."""
    path = folder / f"{name}.h5"
    old = HessianReader(path)
    blocks, more = old.blocks, [] if "W,V" in old.blocks else ["W,V"]
    k, vectors = str(old.config["k"]), ["--eigenvectors"] if old.config["eigenvectors"] else []
    argv = ["hessian", "--ckpt", str(path).replace(f".hessian{name.rpartition('hessian')[2]}", ""), "--out", str(path)]
    argv += ["--k", k, "--dense-limit", str(old.config["dense_limit"]), *vectors, "--device", "cpu", "--quiet"]
    assert cli.run([*argv, "--steps", "0,10,20", "--blocks", *blocks, *more]) == 0
    new = HessianReader(path)
    assert (new.steps, new.blocks) == ([0, 10, 20], [*blocks, *more])
    tracked = ("subspace_overlap", "previous_rank", "previous_overlap", "crossings")
    for step in old.steps:
        for field in (f for f in fields.ROOT.fields if f.dims[:1] == ("block",) and "other_block" not in f.dims):
            if field.name in old.row(step) and field.name not in tracked:
                kept = new.row(step)[field.name][: len(blocks)]
                assert kept.tobytes() == old.row(step)[field.name].tobytes(), field.name
    assert [new.previous(step) for step in new.steps] == [-1, 0, 10]
    assert "nan" not in measurements(new)


@pytest.mark.long
def test_what_old_rows_lack_hides_nothing_of_new_ones(folder: Path) -> None:
    """A matrix-free file of 1.0 grows; terminal and report give the probability of the block that has one."""
    run, path = folder / "run-1.0.h5", folder / "run-1.0.hessian.h5"
    with h5py.File(path, "r+") as file:
        file.attrs["config"] = file.attrs["config"].replace('"auto"', '"lanczos"')
        file.attrs["method"] = "lanczos"
    argv = ["hessian", "--ckpt", str(run), "--out", str(path), "--steps", "0,20", "--method", "lanczos", "--k", "4"]
    assert cli.run([*argv, "--blocks", "E", "W", "E,W", "W,V", "--device", "cpu", "--quiet"]) == 0
    with h5py.File(path, "r+") as file:
        file["hidden_failure_probability"][1, 3] = 1e-6
        row = [file[name][1].tobytes() for name in str(file["crc32"].attrs["fields"]).split()]
        file["crc32"][1] = (1 << 32) + zlib.crc32(b"".join([np.int64(20).tobytes(), *row]))
    result = HessianReader(path)
    assert np.isnan(result.row(20)["hidden_failure_probability"]).tolist() == [True, True, True, False]
    text = measurements(result)
    assert "nan" not in text
    assert "except with probability 1e-06 per end" in text
    assert cli.run(["report", str(run), "--out", str(folder / "report"), "--quiet"]) == 0
    assert "(failure probability 1e-06 per end)" in (folder / "report/report.md").read_text()


@pytest.mark.slow
def test_an_old_row_keeps_what_it_was_tracked_from(folder: Path) -> None:
    """Files of 1.0 do not say it, for it is the row before: a file that grows behind it says so."""
    run, path = folder / "run-1.0.h5", folder / "run-1.0.hessian.h5"
    with h5py.File(path, "r+") as file:
        for group in (file, file["spectrum"], file["density"]):
            group["step"][1] = 10
            row = [group[name][1].tobytes() for name in str(group["crc32"].attrs["fields"]).split()]
            group["crc32"][1] = (1 << 32) + zlib.crc32(b"".join([np.int64(10).tobytes(), *row]))
    before = HessianReader(path).row(10)
    argv = ["hessian", "--ckpt", str(run), "--out", str(path), "--steps", "0,10,20", "--blocks", "E", "W", "E,W"]
    assert cli.run([*argv, "--k", "4", "--device", "cpu", "--quiet"]) == 0
    found = HessianReader(path)
    assert [found.row(step)["previous_step"] for step in found.steps] == [-1, 0, 10]
    assert all(found.row(10)[name].tobytes() == value.tobytes() for name, value in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["-killed", ""])
def test_old_searches_are_resumed(name: str, folder: Path) -> None:
    """The killed one comes to the point of the other one; that one goes on to rounding, and gets another block."""
    run, path = folder / "run-1.1-stopped.h5", folder / f"run-1.1-stopped.critical-20{name}.h5"
    argv = ["critical", "--ckpt", str(run), "--step", "20", "--out", str(path), "--resume", "--k", "3", "--quiet"]
    assert cli.run([*argv, "--device", "cpu", "--blocks", "E", "E,W", "all", *([] if name else ["W"])]) == 0
    found, whole = HessianReader(path), HessianReader(DATA / "run-1.1-stopped.critical-20.h5")
    point, known = found.critical_point(20), whole.critical_point(20)
    assert found.attrs["status"] == "complete"
    assert point["status"] == 2
    assert point["distance"] == pytest.approx(known["distance"], rel=1e-3)
    assert point["loss"] == pytest.approx(known["loss"], rel=1e-9)
    if not name:
        # That one ended at |grad| <= 1e-10; it goes on to where its Newton steps predict the point.
        assert point["grad_norm"] < known["grad_norm"]
        assert all(np.allclose(point[n], known[n], atol=1e-3) for n in ("E", "W", "b1", "V", "b2"))
        np.testing.assert_allclose(found.row(20)["eigenvalues"][:3], whole.row(20)["eigenvalues"], atol=1e-5)


@pytest.fixture
def younger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that files have only from now on."""
    field = schema.Field("younger", ("block",), "f8", "a later quantity", since=schema.VERSION)
    monkeypatch.setattr(fields, "ROOT", dataclasses.replace(fields.ROOT, fields=(*fields.ROOT.fields, field)))


@pytest.mark.slow
@pytest.mark.usefixtures("younger")
def test_a_file_without_a_younger_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is read as before, `info` names what it lacks, and so it does once the file was rewritten."""
    copy = Path(shutil.copy(HESSIAN, tmp_path / "old.hessian.h5"))
    before = rows(copy)
    for version, words in (("1.0", "younger than schema 1.0"), (schema.VERSION, "younger than the rest of the file")):
        reader = HessianReader(copy)
        assert reader.attrs["schema_version"] == version
        assert reader.row(20)["eigenvalues"][2].tolist() == [LOWEST, HIGHEST]
        assert Info(copy).execute() == 0
        said = " ".join(capsys.readouterr().out.split())
        (missing,) = re.findall(rf"lacks ((?:\S+, )*\S+): {re.escape(words)}", said)
        assert {"hidden", "younger"} <= set(missing.split(", "))
        with pytest.raises(FileError, match=f"{copy} holds no younger"):
            reader.row(20)["younger"]
        with h5py.File(copy, "r+") as file:
            file.attrs["status"] = "interrupted"
        repair(copy)
        assert rows(copy) == before


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A file of 2.1 may mean what this version cannot know."""
    copy = Path(shutil.copy(RUN, tmp_path / "new.h5"))
    with h5py.File(copy, "r+") as file:
        file.attrs["schema_version"] = "2.1"
    with pytest.raises(FileError, match=r"has schema version 2\.1; this landscape reads up to 2\.0") as error:
        open_file(copy, schema.RUN)
    assert error.value.hint == "upgrade landscape"


@pytest.mark.parametrize("name", ["task", "sampler", "optimizer", "activation", "model"])
def test_a_name_that_is_known_elsewhere(name: str, copy: Path, assert_refused: Refusal) -> None:
    """Another copy of the package may register more: the error names it, the hint says what reads it; `info` does."""
    with h5py.File(copy, "r+") as file:
        file.attrs["config"] = json.dumps(json.loads(file.attrs["config"]) | {name: "mine"})
    assert cli.run(["info", str(copy)]) == 0
    error = f"{copy}: its config cannot be: unknown {name} 'mine'"
    for argv in (["hessian", "--ckpt", str(copy)], ["train", "--out", str(copy), "--resume"]):
        assert_refused(argv, 1, error, "get it again from its source, or use the landscape that wrote it", [copy])


@pytest.mark.long
def test_old_files_are_reported(tmp_path: Path) -> None:
    """`landscape report` makes its page of them, where they lie."""
    assert cli.run(["report", *map(str, FILES), "--out", str(tmp_path / "report"), "--quiet"]) == 0
    text = (tmp_path / "report/report.md").read_text()
    assert all(name in text for name in ("run-1.0", "run-1.1-member", "run-1.1-sgd", "run-1.1-stopped"))
    assert len(list((tmp_path / "report").rglob("*.png"))) >= 8
    assert [path.name for path in DATA.iterdir() if path.suffix != ".h5"] == []
