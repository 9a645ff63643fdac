"""Files of other tools, made from a run, Hessian or geometry file."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from landscape.errors import ConfigError, lookup, note
from landscape.files.files import as_path, resolved
from landscape.files.folders import replaced_folder
from landscape.files.schema import STEP
from landscape.files.views import File
from landscape.text import printable, write_csv


def export(path: Path | str, out: Path | str, form: str, overwrite: bool = False) -> Path:
    """Write a run, Hessian or geometry file in the form of another tool.

    Args:
        path: the file.
        out: the folder to write.
        form: "csv" or "parquet": a file for each table of `to_dataframes`; "netcdf": one file with all groups,
            including parameters and eigenvectors; "tensorboard" or "wandb": a scalar for each quantity and its labels,
            such as inertia/E,W/negative, by step.
        overwrite: replace an earlier export; files added to its folder stay.

    Returns:
        The folder.

    Raises:
        ConfigError: for an unknown form, and for one whose package is not installed.
        FileError: for an existing `out`, and for files that are missing or broken.
    """
    out, write = as_path(out), lookup(FORMS, "form", form)
    require(form)
    if form in _PACKAGES and (name := str(resolved(out))) != name.encode(errors="replace").decode():
        raise ConfigError(f"{form} cannot write to {out}, whose name is not UTF-8", "choose another folder")
    with File(path) as file:
        if resolved(out) in file.path.resolve().parents:
            raise ConfigError(f"{file.path} lies in {out}, which the export replaces", "choose another folder")
        with replaced_folder(out, "export", overwrite) as draft:
            write(file, draft)
            is_empty = all(path.name.startswith(".") for path in draft.iterdir())
    if is_empty:
        note(f"{file.path} has no measurements yet: {out} holds no table")
    return out


def require(form: str) -> None:
    """Raise ConfigError if a form needs a package that is not installed."""
    if (package := _PACKAGES.get(form)) and importlib.util.find_spec(package) is None:
        raise ConfigError(f"{form} needs the package {package}, which is not installed", f"pip install {package}")


def _csv(file: File, folder: Path) -> None:
    for name, table in file.to_dataframes().items():
        write_csv(table, folder / f"{name}.csv")


def _parquet(file: File, folder: Path) -> None:
    for name, table in file.to_dataframes().items():
        table.to_parquet(folder / f"{name}.parquet", engine="pyarrow", index=False)


def _netcdf(file: File, folder: Path) -> None:
    out = folder / f"{file.path.stem}.nc"
    groups = {group: file.to_xarray(group) for group in file.groups if group != "resume"}
    _require_room(folder, sum(data.nbytes + _HEADER * len(data.variables) for data in groups.values()))
    for group, data in groups.items():
        data.to_netcdf(out, mode="a" if out.exists() else "w", group=group, engine="h5netcdf")


def _tensorboard(file: File, folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with _failing_threads(), SummaryWriter(str(folder)) as writer:
        writer.add_text("config", f"```json\n{json.dumps(file.config, indent=2)}\n```")
        for step, scalars in _scalars(file):
            for tag, value in scalars.items():
                writer.add_scalar(tag, value, step, new_style=True, double_precision=True)


def _wandb(file: File, folder: Path) -> None:
    import wandb

    settings = wandb.Settings(mode="offline", console="off", silent=True, disable_git=True, x_disable_stats=True)
    rows = list(_scalars(file))
    _require_room(folder, 4 * len(json.dumps(rows)))
    with wandb.init(
        project="landscape", name=printable(file.path.stem), dir=folder, config=file.config, settings=settings
    ) as run:
        for step, scalars in rows:
            run.log(scalars, step=step)
    # Links to the newest run and empty folders, which nobody would know for ours when the export is replaced.
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _require_room(folder: Path, size: int) -> None:
    """Raise OSError where so many bytes do not fit, for libraries that lose data without a word there, or crash."""
    with tempfile.TemporaryFile(dir=folder) as space:
        os.posix_fallocate(space.fileno(), 0, size + (1 << 20))


@contextlib.contextmanager
def _failing_threads() -> Iterator[None]:
    """Raise here what fails in the threads that are started in the block, instead of printing it."""
    failures: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, failures.append
    try:
        yield
    finally:
        threading.excepthook = before
        if failures and failures[0].exc_value:
            raise failures[0].exc_value


FORMS: dict[str, Callable[[File, Path], None]] = {
    "csv": _csv,
    "parquet": _parquet,
    "netcdf": _netcdf,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
_PACKAGES = {"parquet": "pyarrow", "tensorboard": "tensorboard", "wandb": "wandb"}
"""What a form needs beyond the dependencies of the package; the extra has the name of the form."""
_HEADER = 4096
"""More bytes than the name, axes and attributes of a dataset take in a NetCDF file."""


_CURVES = {"block", "pair", "end", "rank", "sign", "width"}
"""Labels of what is watched as curves, of ranks the first alone: the other tables have more than a person looks at."""
_BESIDE = ("_error", "_distance", "_probability", "_crc32", "residual_norm", "converged")
"""How the names of what says how good a number is end."""


def _scalars(file: File) -> Iterator[tuple[int, dict[str, float]]]:
    """The numbers of each step, ascending, by quantity and labels, such as eigenvalues/E,W/lowest.

    All others are in the forms of tables.
    """
    by_step: dict[int, dict[str, float]] = {}
    for table in file.to_dataframes().values():
        row, *labels = table.attrs["axes"]
        if not row.endswith(STEP) or not _CURVES.issuperset(labels):
            continue
        if "rank" in labels:
            table = table[table["rank"] == 0]
            labels.remove("rank")
        for name in table[[c for c in table if c not in (row, "rank", *labels)]].select_dtypes("number"):
            if not name.endswith(_BESIDE):
                for step, *where, value in table[[row, *labels, name]].dropna().itertuples(index=False):
                    by_step.setdefault(int(step), {})["/".join(map(str, [name, *where]))] = float(value)
    yield from sorted(by_step.items())
