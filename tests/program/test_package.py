"""The package as others get it: installed, from any folder, with types."""

from __future__ import annotations

import ast
import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import TINY
from helpers.commands import SMALL
from helpers.hessians import refine

import landscape
from landscape.config import AnalysisConfig, SliceConfig
from landscape.measure.slices import slice as slice_checkpoint

ROOT = Path(__file__).parents[2]
OURS = [path for path in (ROOT / "landscape").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which somebody cloned the repository, under its own name."""
    clone = tmp_path_factory.mktemp("parent") / "landscape"
    shutil.copytree(ROOT / "landscape", clone / "landscape", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, clone)
    return clone.parent


def build(parent: Path, kind: str) -> zipfile.ZipFile:
    """What pip asks setuptools for, `wheel` or `editable`; made once."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    out = parent / kind
    if not out.exists():
        out.mkdir()
        subprocess.run([sys.executable, "-c", code, out], cwd=parent / "landscape", check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_paths_may_be_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of the package that takes a path."""
    monkeypatch.chdir(tmp_path)
    config, analysis = (
        dataclasses.replace(TINY, steps=4),
        landscape.HessianConfig(blocks=("E",), steps="0", device="cpu"),
    )
    assert landscape.train(config, "a.h5", quiet=True).steps == 4
    assert [s.path for s in landscape.train_ensemble(landscape.ensemble(config, "b.h5", seeds=2), quiet=True)] == [
        "b-s0.h5",
        "b-s1.h5",
    ]
    assert landscape.train_ensemble({"c.h5": config}, quiet=True)[0].path == "c.h5"
    assert landscape.hessian("a.h5", analysis, quiet=True).steps == [0]
    assert landscape.hessian("a.h5", analysis, "d.h5", quiet=True).steps == [0]
    assert landscape.open("d.h5").steps == [0]
    assert landscape.open("a.h5").steps[-1] == 4
    assert "E" in landscape.open("a.h5").to_xarray()
    assert "trace" in landscape.open("d.h5").to_xarray()
    assert landscape.write_report(["a.h5"], "report", quiet=True) == Path("report/report.html")
    Path("sweep.json").write_text('{"name": "s", "train": {"steps": 1}}')
    sweep = landscape.load_sweep("sweep.json")
    assert [run.path for run in landscape.sweep_runs(sweep, "out")] == [Path("out/s/base-s0.h5")]
    with pytest.raises(landscape.LandscapeError, match="jobs is -1"):
        landscape.sweep(sweep, "out", jobs=-1)
    refine("a.h5", 4, AnalysisConfig(device="cpu", blocks=("W",)), "e.h5", max_products=1, quiet=True)
    few = SliceConfig(block="E", points=5, plane_points=3)
    assert slice_checkpoint("a.h5", 4, few, AnalysisConfig(device="cpu")).plane.shape == (3, 3)


@pytest.mark.parametrize("folder", [".", "landscape", "landscape/landscape/report/templates"])
def test_an_editable_install_is_found_from_any_folder(folder: str, parent: Path) -> None:
    """Beside the clone too, whose folder has the name of the package."""
    site = parent / "site"
    if not site.exists():
        with build(parent, "editable") as wheel:
            wheel.extractall(site)
    code = f"import site; site.addsitedir({str(site)!r}); import landscape; print(landscape.preset('quick').p)"
    process = subprocess.run([sys.executable, "-S", "-c", code], cwd=parent / folder, env=BARE, capture_output=True)
    assert process.stdout == b"59\n", process.stderr


def test_a_wheel_has_all_that_is_needed(parent: Path) -> None:
    """Every module, the templates and the mark that the package has types."""
    with build(parent, "wheel") as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("landscape/")}
    assert packed == {str(path.relative_to(ROOT)) for path in OURS}
    assert "landscape/py.typed" in packed


@pytest.fixture(scope="module")
def source(parent: Path) -> tarfile.TarFile:
    """The archive of the sources, as pip gets it."""
    out = parent / "sdist"
    out.mkdir()
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, out], cwd=parent / "landscape", check=True, capture_output=True)
    (archive,) = out.iterdir()
    return tarfile.open(archive)


def test_a_source_archive_has_all_that_is_needed(source: tarfile.TarFile) -> None:
    name = f"landscape_hessian-{landscape.__version__}"
    packed = {path.partition("/")[2] for path in source.getnames() if path.startswith(f"{name}/landscape/")}
    ours = {str(path.relative_to(ROOT)) for path in OURS}
    assert ours <= packed
    assert {f"{name}/{path}" for path in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff")} <= set(
        source.getnames()
    )


@pytest.mark.long
def test_a_wheel_works_in_an_empty_environment(parent: Path, tmp_path: Path) -> None:
    """Installed by pip under a name of its own, with an empty HOME, from another folder; only dependencies are ours."""
    environment = tmp_path / "venv"
    venv.create(environment)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    with build(parent, "wheel") as wheel:
        pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, wheel.filename], check=True)
    home = tmp_path / "home"
    home.mkdir()
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(home)}

    def run(*command: str) -> str:
        path, *rest = command
        argv = [environment / "bin" / path, *rest]
        done = subprocess.run(argv, cwd=home, env=bare, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import landscape, importlib.metadata as m; print(landscape.__file__, m.version('landscape-hessian'))"
    path, version = run("python", "-c", where).split()
    assert Path(path).is_relative_to(environment)
    assert version == landscape.__version__
    run("landscape", "train", "--out", "mine/run.h5", *SMALL)
    run("landscape", "hessian", "mine/run.h5", "--blocks", "W", "--k", "1", "--probes", "2", "--quiet")
    run("landscape", "report", "mine/run.h5", "--out", "mine/report", "--quiet")
    assert {path.name for path in (home / "mine").iterdir()} == {"run.h5", "run.hessian.h5", "report"}
    assert (home / "mine/report/report.html").stat().st_size > 10_000
    run("landscape", "demo", "--steps", "20", "--checkpoints", "1", "--quiet")
    assert (home / "landscape-demo/report/report.html").stat().st_size > 10_000
    assert sorted(path.name for path in home.iterdir() if path.name[0] != ".") == ["landscape-demo", "mine"]


def test_a_citation_has_what_its_format_needs() -> None:
    """CITATION.cff 1.2.0: the required keys; the version is that of the file that is cited."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]


def test_type_checkers_see_what_is_exported() -> None:
    """What is imported for them is what is looked up on first use."""
    tree = ast.parse((ROOT / "landscape/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    typed = {a.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert typed == landscape._HOMES


SNIPPET = """
from typing import assert_type

import xarray
from matplotlib.axes import Axes
from torch import Tensor

import landscape
from landscape import EigenResult, Inertia, MatrixOperator, TrainConfig, eigsh, train


def use(H: Tensor) -> None:
    assert_type(landscape.preset("quick"), TrainConfig)
    assert_type(train(TrainConfig(), "x.h5").steps, int)
    assert_type(landscape.hessian("x.h5", landscape.HessianConfig()), landscape.File)
    assert_type(landscape.open("x.h5").to_xarray(), xarray.Dataset)
    assert_type(landscape.open("x.h5").metrics, xarray.Dataset)
    assert_type(eigsh(MatrixOperator(H), 3), EigenResult)
    assert_type(eigsh(MatrixOperator(H), 3).plot(), Axes)
    assert_type(landscape.saddle_index(MatrixOperator(H)), Inertia)
    landscape.trian  # type: ignore[attr-defined]
    TrainConfig(p="59")  # type: ignore[arg-type]
"""


@pytest.mark.long
def test_types_reach_other_people_s_code(tmp_path: Path) -> None:
    """mypy --strict sees real types, and mistakes, in a file outside the repository; it has what lint has cached."""
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    process = subprocess.run([sys.executable, "-m", "mypy", path], cwd=ROOT, env=BARE, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
