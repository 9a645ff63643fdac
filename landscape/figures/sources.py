"""Files as figures see them: xarray datasets, a run and its Hessian file side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.errors import FileError, LandscapeError
from landscape.storage import schema
from landscape.storage.files import file_schema, hessian_file, open_file, run_file, sha256
from landscape.storage.runs import RunReader
from landscape.storage.spectra import SpectrumReader
from landscape.storage.views import load_group

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.figure import Figure


class NotDrawnError(LandscapeError):
    """The files lack what a figure shows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "name files that hold it; `landscape hessian` measures the curvature")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure with the data it shows, a caption and the numbers it stands for."""

    title: str
    figure: Figure
    data: pd.DataFrame
    caption: str
    numbers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Source:
    """A run file, its Hessian file, or both; committed rows only."""

    run: Path | None
    hessian: Path | None

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The run's config."""
        attrs = self.run_attrs
        return dict(json.loads(attrs["config"] if attrs else self.hessian_attrs["parent_config"]))

    @property
    def label(self) -> str:
        """What tells this run from others: its name and seed."""
        path = self.run or self.hessian
        assert path is not None
        return f"{path.name.removesuffix('.h5').removesuffix('.hessian')} (seed {self.config['seed']})"

    @functools.cached_property
    def run_attrs(self) -> dict[str, Any]:
        """Root attributes of the run file; empty without one."""
        return _attrs(self.run, schema.RUN) if self.run else {}

    @functools.cached_property
    def hessian_attrs(self) -> dict[str, Any]:
        """Root attributes of the Hessian file; empty without one."""
        return _attrs(self.hessian, schema.HESSIAN) if self.hessian else {}

    @functools.cached_property
    def metrics(self) -> xarray.Dataset | None:
        """Losses, accuracies and norms by metric_step."""
        return load_group(self.run, schema.RUN, "metrics") if self.run else None

    @functools.cached_property
    def tokens(self) -> xarray.Dataset | None:
        """Counts and norms by step and token."""
        return load_group(self.run, schema.RUN, "tokens") if self.run else None

    @functools.cached_property
    def measured(self) -> xarray.Dataset | None:
        """The Hessian file by step."""
        return load_group(self.hessian, schema.HESSIAN, "/") if self.hessian else None

    @functools.cached_property
    def spectra(self) -> xarray.Dataset | None:
        """Full spectra of the dense blocks by step."""
        return load_group(self.hessian, schema.HESSIAN, "spectrum") if self.hessian else None

    @functools.cached_property
    def densities(self) -> xarray.Dataset | None:
        """Smoothed spectral densities of all blocks by step."""
        return load_group(self.hessian, schema.HESSIAN, "density") if self.hessian else None

    @functools.cached_property
    def pairs_of_token(self) -> NDArray[np.int64]:
        """Number of training pairs that hold each token."""
        assert self.run is not None
        with RunReader(self.run) as reader:
            data = reader.data()
        tokens = data["tokens"][data["split"] == 0]
        holds = [np.unique(row) for row in tokens]
        return np.bincount(np.concatenate(holds), minlength=int(tokens.max()) + 1)

    def event(self, metric: str, threshold: float) -> int | None:
        """First step with a row of metrics at which a metric reaches a threshold."""
        if self.metrics is None:
            return None
        steps = self.metrics["metric_step"].values[self.metrics[metric].values >= threshold]
        return int(steps[0]) if len(steps) else None

    @functools.cached_property
    def damage(self) -> list[str]:
        """The rows that fail their checksums and are left out, a line for each file."""
        found = {}
        if self.run:
            with RunReader(self.run) as reader:
                found[self.run] = reader.damage
        if self.hessian:
            found[self.hessian] = SpectrumReader(self.hessian).damage
        return [f"{path}: left out, for their checksums fail: {rows}" for path, rows in found.items() if rows]

    @property
    def mismatch(self) -> str | None:
        """What is wrong if the Hessian file was made from other bytes than the run file holds."""
        if self.run and self.hessian and sha256(self.run) != self.hessian_attrs["parent_sha256"]:
            return f"{self.hessian.name} was made from another version of {self.run.name}: its SHA-256 differs"
        return None


def open_sources(files: Sequence[Path]) -> list[Source]:
    """Pair run files and Hessian files, in the order given; the missing half is looked for beside each.

    Raises FileError for what is missing, broken or of another schema.
    """
    found: dict[str, Source] = {}
    for path in files:
        kind = file_schema(path)
        if kind == schema.RUN:
            key = _attrs(path, kind)["run_id"]
            beside = hessian_file(path)
            hessian = beside if beside.exists() and _attrs(beside, schema.HESSIAN)["parent_run_id"] == key else None
            known = found.get(key)
            found[key] = Source(path, known.hessian if known and known.hessian else hessian)
        elif kind == schema.HESSIAN:
            key = _attrs(path, kind)["parent_run_id"]
            # A refined point lies on no path of training.
            beside = path if ".critical-" in path.name else run_file(path)
            is_run = beside != path and beside.exists() and _attrs(beside, schema.RUN)["run_id"] == key
            known = found.get(key)
            found[key] = Source(known.run if known and known.run else (beside if is_run else None), path)
        else:
            raise FileError(f"{path} is no file of landscape", "name run files or Hessian files")
    return list(found.values())


def having(sources: Sequence[Source], part: str, *names: str) -> list[Source]:
    """The sources whose `part` exists and holds all variables. Raises NotDrawnError if there is none."""
    kept = [
        s
        for s in sources
        if (data := getattr(s, part)) is not None and set(names) <= set(data.variables) and all(data.sizes.values())
    ]
    if not kept:
        place = "run" if part in ("metrics", "tokens") else "Hessian"
        raise NotDrawnError(f"no {place} file given holds {', '.join(names) or part}")
    return kept


def what_was_run(sources: Sequence[Source]) -> str:
    """One sentence for captions: the set-up and the seeds."""
    c = sources[0].config
    seeds = sorted({s.config["seed"] for s in sources})
    size = f", d = {c['embed_dim']}" if c["model"] == "embedding" else f", {c['model']} input"
    plural = "s" if len(seeds) > 1 else ""
    return (
        f"Task {c['task']} mod {c['p']}, {c['tokens']} tokens{size}, h = {c['hidden']}, {c['activation']}; "
        f"{c['optimizer']}, lr {c['lr']:g}, lr_E/lr_W {c['lr_ratio']}, weight decay {c['weight_decay']:g}, "
        f"batch {c['batch_size']}; seed{plural} {', '.join(map(str, seeds))}."
    )


def _attrs(path: Path, kind: str) -> dict[str, Any]:
    with contextlib.closing(open_file(path, kind)) as file:
        return file.attrs
