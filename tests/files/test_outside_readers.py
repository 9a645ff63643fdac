"""Readers that know nothing of this package: each sees the names, axes and numbers that ours serve.

A reader that is not installed is skipped; CI installs them all.
"""

from __future__ import annotations

import functools
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray
from helpers.hessians import HessianReader

from landscape.files import schema
from landscape.files.runs import RunReader
from landscape.measure.fields import ROOT
from landscape.training.tables import TABLES

Array = np.ndarray[Any, Any]
PAGE = (Path(__file__).parents[2] / "docs/format.md").read_text()
NUMBER = r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan)"
CASES = [("run", "checkpoints/E"), ("run", "metrics/test_loss"), ("hessian", "eigenvalues")]


@functools.cache
def missing(program: str) -> str:
    """Why a program cannot be used here; empty if it can."""
    if shutil.which(program) is None:
        return f"{program} is not installed"
    if program == "Rscript" and subprocess.run([program, "-e", "library(rhdf5)"], capture_output=True).returncode:
        return "R's package rhdf5 is not installed"
    return ""


def printed(program: str, *arguments: str | Path, cwd: Path | None = None) -> str:
    if reason := missing(program):
        pytest.skip(reason)
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(NUMBER, text, re.IGNORECASE)]


def shaped(shape: str, values: str) -> Array:
    return np.array(numbers(values)).reshape([int(n) for n in re.findall(r"\d+", shape)])


def reversed_axes(text: str) -> Array:
    """The array that a column-major program printed, its shape in the first line."""
    shape, values = text.split("\n", 1)
    return shaped(" ".join(reversed(shape.split())), values)


def h5dump_names(path: Path) -> set[str]:
    return set(re.findall(r"dataset +/(\S+)", printed("h5dump", "-n", path)))


def h5dump_values(path: Path, name: str) -> Array:
    text = printed("h5dump", "-y", "-m", "%.17g", "-d", f"/{name}", path)
    match = re.search(r"SIMPLE { \((.*?)\).*?DATA {(.*?)}", text, re.DOTALL)
    assert match
    return shaped(*match.groups())


def h5ls_names(path: Path) -> set[str]:
    return set(re.findall(r"^/(\S+) +Dataset", printed("h5ls", "-r", path), re.MULTILINE))


def h5ls_values(path: Path, name: str) -> Array:
    match = re.search(r"Dataset {(.*?)}\s+Data:(.*)", printed("h5ls", "-d", f"{path}/{name}"), re.DOTALL)
    assert match
    return shaped(*match.groups())


def ncdump_names(path: Path) -> set[str]:
    names, group = set(), ""
    for line in printed("ncdump", "-h", path).splitlines():
        if match := re.fullmatch(r"group: (\S+) {", line):
            group = f"{match[1]}/"
        elif match := re.fullmatch(r"\s+\w+ (\S+)\(.*\) ;", line):
            names.add(group + match[1].replace("\\", ""))
    return names


def ncdump_values(path: Path, name: str) -> Array:
    text, leaf = printed("ncdump", "-p", "9,17", "-v", name, path), name.split("/")[-1]
    axes, values = (re.search(rf"\s{leaf}{what} ;", text, re.DOTALL) for what in (r"\(([^)]*)\)", r" =([^;]*)"))
    assert axes
    assert values
    sizes = dict(re.findall(r"(\w+) = (\d+) ;", text))
    return shaped(" ".join(sizes[axis] for axis in axes[1].split(", ")), values[1])


def netcdf4_names(path: Path) -> set[str]:
    with netCDF4.Dataset(path) as file:
        return {*file.variables, *(f"{g}/{name}" for g, group in file.groups.items() for name in group.variables)}


def netcdf4_values(path: Path, name: str) -> Array:
    with netCDF4.Dataset(path) as file:
        return np.asarray(file[name][:])


def xarray_names(engine: str, path: Path) -> set[str]:
    groups = xarray.open_groups(path, engine=engine)
    return {f"{group}/{name}".strip("/") for group, data in groups.items() for name in data.variables}


def xarray_values(engine: Any, path: Path, name: str) -> Array:
    group, _, leaf = name.rpartition("/")
    with xarray.open_dataset(path, group=group or None, engine=engine) as data:
        return data[leaf].values


def octave_names(path: Path) -> set[str]:
    code = 'for [data, group] = load("{}") for [_, name] = data printf("%s/%s\\n", group, name) end end'
    return set(printed("octave-cli", "--quiet", "--eval", code.format(path)).split())


def octave_values(path: Path, name: str) -> Array:
    code = 'x = load("{}", "{}").{}; printf("%d ", size(x)); printf("\\n"); printf("%.17g\\n", x)'
    code = code.format(path, name.split("/")[0], name.replace("/", "."))
    values = reversed_axes(printed("octave-cli", "--quiet", "--eval", code))
    # Octave has no array of one axis: a list is a row.
    return values[:, 0] if values.ndim == 2 else values


def r_names(path: Path) -> set[str]:
    text = printed("Rscript", "-e", f'x <- rhdf5::h5ls("{path}"); cat(paste(x$group, x$name, sep = "/"), sep = "\n")')
    return {line.strip("/") for line in text.splitlines()}


def r_values(path: Path, name: str) -> Array:
    code = f'x <- rhdf5::h5read("{path}", "{name}"); cat(dim(x), "\n"); cat(sprintf("%.17g", x))'
    return reversed_axes(printed("Rscript", "-e", code))


READERS: dict[str, tuple[Callable[[Path], set[str]], Callable[[Path, str], Array]]] = {
    "h5dump": (h5dump_names, h5dump_values),
    "h5ls": (h5ls_names, h5ls_values),
    "ncdump": (ncdump_names, ncdump_values),
    "netCDF4": (netcdf4_names, netcdf4_values),
    "xarray, h5netcdf": (functools.partial(xarray_names, "h5netcdf"), functools.partial(xarray_values, "h5netcdf")),
    "xarray, netCDF4": (functools.partial(xarray_names, "netcdf4"), functools.partial(xarray_values, "netcdf4")),
    "Octave": (octave_names, octave_values),
    "R": (r_names, r_values),
}


@pytest.fixture
def files(tiny_run: Path, tiny_hessian: HessianReader) -> dict[str, Path]:
    return {"run": tiny_run, "hessian": tiny_run.with_name("tiny.hessian.h5")}


@pytest.fixture(scope="module")
def served(tiny_run: Path, tiny_hessian: HessianReader) -> dict[str, dict[str, Array]]:
    """What our readers serve of either file, by path in the file."""
    with RunReader(tiny_run) as run:
        groups = {"metrics": run.metrics(), "tokens": run.tokens(), "data": run.data()}
        rows = [run.checkpoint(step) for step in run.steps]
        groups["checkpoints"] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    reader, steps = tiny_hessian, tiny_hessian.steps
    kinds = {"": reader.row, "spectrum/": reader.spectra, "density/": reader.densities}
    return {
        "run": {f"{group}/{name}": array for group, data in groups.items() for name, array in data.items()},
        "hessian": {
            f"{group}{name}": np.stack([row(step)[name] for step in steps])
            for group, row in kinds.items()
            for name in row(steps[0])
        },
    }


# Octave's load reads datasets of a file with strings, such as a Hessian file, by their names only.
@pytest.mark.parametrize(
    ("reader", "kind"), [(r, k) for r in READERS for k in ("run", "hessian") if (r, k) != ("Octave", "hessian")]
)
def test_names(reader: str, kind: str, files: dict[str, Path], served: dict[str, dict[str, Array]]) -> None:
    """Every reader lists every dataset that ours serve."""
    assert set(served[kind]) <= READERS[reader][0](files[kind])


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("reader", READERS)
def test_values(reader: str, kind: str, name: str, files: dict[str, Path], served: dict[str, dict[str, Array]]) -> None:
    """Every reader gives the shape and each number of a float32 matrix, of a list and of an array of four axes."""
    ours = served[kind][name]
    theirs = READERS[reader][1](files[kind], name).astype(ours.dtype)
    assert theirs.shape == ours.shape
    # h5ls has no option for the digits that it prints: 6 of a float32 and 15 of a float64.
    np.testing.assert_allclose(theirs, ours, rtol=1e-5 if reader == "h5ls" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("table", [*(table for table in TABLES if table.row), ROOT], ids=lambda table: table.group)
def test_axes_have_their_names(table: schema.Table, files: dict[str, Path]) -> None:
    """Both engines of xarray and the netCDF library see each axis under the name that the schema gives it."""
    path = files["hessian" if table.group == "/" else "run"]
    dims = {field.name: (table.row, *field.dims) for field in table.fields}
    for engine in ("h5netcdf", "netcdf4"):
        with xarray.open_dataset(path, group=table.group, engine=engine) as data:
            assert {name: data[name].dims for name in dims} == dims
    with netCDF4.Dataset(path) as file:
        group = file if table.group == "/" else file[table.group]
        assert {name: group[name].dimensions for name in dims} == dims


EXAMPLES = {
    title: (language, code)
    for title, language, code in re.findall(r"^### ([^\n]+)\n[^#]*?```(\w+)\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
}
COMMANDS = {
    "python": (sys.executable, "-W", "error", "-c"),
    "octave": ("octave-cli", "--quiet", "--eval"),
    "r": ("Rscript", "-e"),
    "sh": ("sh", "-ec"),
}


@pytest.fixture
def folder(files: dict[str, Path], tmp_path: Path) -> Path:
    """A folder in which the examples find their files."""
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(files["run"], tmp_path / "checkpoints/first.h5")
    shutil.copy(files["hessian"], tmp_path / "checkpoints/first.hessian.h5")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title, (language, _) in EXAMPLES.items() if language in COMMANDS])
def test_examples(title: str, folder: Path, served: dict[str, dict[str, Array]], tiny_hessian: HessianReader) -> None:
    """The examples of docs/format.md run as they stand, but for the step, and print what our readers serve."""
    language, code = EXAMPLES[title]
    if language == "sh" and (reason := missing(code.split()[0])):
        pytest.skip(reason)
    entry = served["run"]["checkpoints/E"]
    values = served["hessian"]["eigenvalues"]
    assert tiny_hessian.steps[-1] == 60
    joint = tiny_hessian.blocks.index("E,W")
    expected = {
        "h5dump": (entry[0, 0, 0], values[1, 2, 0, 0]),
        "h5ls": (served["run"]["metrics/test_accuracy"][-1], values[-1, joint, 0, 0]),
        "ncdump": (served["run"]["metrics/test_accuracy"][-1], values[-1, joint, 0, 0]),
        "GNU Octave": (entry[-1, 0, 0], values[-1, 2, 0, 0]),
    }.get(title, (entry[-1, 0, 0], values[-1, joint, 0, 0]))
    printed_numbers = numbers(printed(*COMMANDS[language], code.replace("500", "60"), cwd=folder))
    for value in expected:
        assert any(math.isclose(value, number, rel_tol=1e-7) for number in printed_numbers), (value, printed_numbers)


def test_every_reader_has_an_example() -> None:
    """Those that can run here are run above; MATLAB and Julia are the two others."""
    assert [title for title, (language, _) in EXAMPLES.items() if language not in COMMANDS] == ["MATLAB", "Julia"]
    assert len(EXAMPLES) == 9


@pytest.mark.slow
def test_the_example_of_the_commit_record(folder: Path, served: dict[str, dict[str, Array]]) -> None:
    """An outsider's checksums agree with every record, and disagree once a bit is flipped."""
    (code,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "zlib" in text)
    command = [*COMMANDS["python"], code]
    assert int(printed(*command, cwd=folder)) == len(served["run"]["checkpoints/E"])
    E = served["run"]["checkpoints/E"][-1].tobytes()
    path = folder / "checkpoints/first.h5"
    raw = path.read_bytes()
    assert raw.count(E) >= 1
    path.write_bytes(raw.replace(E, bytes([E[0] ^ 1]) + E[1:]))
    with pytest.raises(subprocess.CalledProcessError):
        printed(*command, cwd=folder)
