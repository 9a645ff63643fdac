"""Measure the geometry of a run's embedding at every stored checkpoint: `landscape geometry`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from scipy.special import logsumexp

from landscape import models
from landscape.choices.tasks import TASKS, is_prime
from landscape.errors import ConfigError, DoesNotFitError, FileError
from landscape.files import schema
from landscape.files.datasets import read_datasets, write_datasets
from landscape.files.files import (
    REPLACE,
    as_path,
    geometry_file,
    make_folder,
    output,
    refuse_foreign,
    require_writable,
    sha256,
)
from landscape.files.rows import listed
from landscape.files.runs import RunReader
from landscape.files.schema import STEP
from landscape.files.views import open as open_file
from landscape.files.writing import sole_writer
from landscape.measure import embeddings
from landscape.measure.analysis import require_other
from landscape.measure.datasets import dataset
from landscape.measure.embeddings import FEWEST, Floats, Ints, appears, cyclic_order
from landscape.measure.fields import GEOMETRY, NUMBERS
from landscape.measure.steps import finite_steps, warn_of_damage
from landscape.measure.tables import Table
from landscape.memory import free_bytes
from landscape.models.problem import Arrays
from landscape.models.tasks import TEST, TRAIN, operands
from landscape.models.trained import TrainedProblem
from landscape.progress import Bar
from landscape.provenance import provenance
from landscape.text import first_few

SPLITS = {"train": TRAIN, "test": TEST}
_SHOWN = 3
"""Statistics that a sentence names."""


def geometry(
    run: Path | str, out: Path | str | None = None, overwrite: bool = False, quiet: bool = True, device: str = "auto"
) -> Path:
    """Measure the geometry of the embedding at all stored steps of a run of `landscape train`.

    An earlier file of this run is kept if it has these steps and settings, and is made again if it lacks any.

    Args:
        run: the run file.
        out: by default RUN.geometry.h5 beside the run.
        overwrite: measure again, and replace a file of another run or with checkpoints that the run has lost.
        quiet: show no progress bar.
        device: of the logits: "auto", "cpu" or "cuda".

    Returns:
        The path of the geometry file.

    Raises:
        LandscapeError: for what cannot be measured or written.
    """
    run = as_path(run)
    out = output(out or geometry_file(run))
    with RunReader(run) as reader:
        require_other(out, run)
        reader.require_trained("geometry is that of the numbers that `landscape train` embeds")
        problem = models.of_run(reader, device)
        assert isinstance(problem, TrainedProblem)
        measured = _Run(problem, reader.data())
        steps = finite_steps(reader, reader.steps)
        warn_of_damage(reader)
        config = json.dumps(
            {"permutations": embeddings.PERMUTATIONS, "seed": embeddings.SEED, "level": embeddings.LEVEL}
        )
        make_folder(out.parent)
        with sole_writer(out):
            refuse_foreign(out, schema.GEOMETRY)
            records = {step: reader.record(step) for step in steps}
            if not overwrite and _is_there(out, reader.attrs["run_id"], config, records):
                return out
            attrs = {
                **provenance(str(measured.problem.device)),
                "parent_run_id": reader.attrs["run_id"],
                "parent_sha256": sha256(run),
                "parent_config": reader.attrs["config"],
                "config": config,
                "status": "complete",
            }
            require_writable(out)
            keys, scales = measured.frequencies_in_use(reader.checkpoint(steps[-1])), measured.scales()
            rows = []
            with Bar(len(steps), "checkpoint", quiet) as bar:
                for step in steps:
                    row = measured.row(reader.checkpoint(step), keys) | {"checkpoint_crc32": records[step]}
                    rows.append(dataset(GEOMETRY, scales, row))
                    bar.update()
            root = xarray.concat(rows, STEP).assign_coords({STEP: np.array(steps, np.int64)})
            numbers = dataset(NUMBERS, scales, {"number": measured.order})
            # An earlier file stays until the new one is whole.
            write_datasets(out, schema.GEOMETRY, attrs, {"/": root, NUMBERS.group: numbers})
    return out


def _is_there(out: Path, run_id: str, config: str, records: dict[int, int]) -> bool:
    """Whether a file holds these checkpoints whole.

    Raises FileError for one that is not of this run, or that has more of its checkpoints.
    """
    if not out.exists():
        return False
    attrs, groups = read_datasets(out, schema.GEOMETRY)
    if (theirs := attrs["parent_run_id"]) != run_id:
        raise FileError(f"{out} is of run {theirs}", REPLACE)
    root = groups["/"]
    stored = dict(zip(root[STEP].values.tolist(), root["checkpoint_crc32"].values.tolist(), strict=True))
    # Nothing would measure them again.
    if lost := sorted(stored.keys() - records.keys()):
        raise FileError(f"{out} has measured checkpoints that the run has lost: {listed(lost)}", REPLACE)
    return attrs["status"] == "complete" and attrs["config"] == config and stored == records


class _Run:
    """The numbers of a run, in the order of their group's circle, and the pairs of them."""

    def __init__(self, problem: TrainedProblem, data: Arrays) -> None:
        """Raises ConfigError for a run whose numbers have no geometry."""
        self.problem, self.tokens = problem, data["tokens"]
        self.parameter, self.rows = problem.numbers
        config, task = problem.train, TASKS[problem.train.task]
        self.sign = task.sign
        if task.multiplies and not is_prime(config.p):
            raise ConfigError(
                f"{config.task} mod {config.p} has no discrete logarithm: {config.p} is not a prime",
                "name a run with a prime --p",
            )
        self.order: Ints = cyclic_order(config.p, task.multiplies)
        n = len(self.order)
        if n < FEWEST:
            raise ConfigError(f"{n} numbers have no geometry; it takes {FEWEST}", "name a run with a larger --p")
        # The logits of all pairs, their sorted form, two parts of them, and what the losses take.
        needed, free = 6 * 8 * n * n * config.p, free_bytes()
        if needed > free:
            raise DoesNotFitError(
                f"the logits of all pairs mod {config.p} need {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
                "use a machine with more memory",
            )
        place = np.full(config.p, -1)
        place[self.order] = np.arange(n)
        places = place[operands(self.tokens)]
        self._has_place = (places >= 0).all(1)
        self._at = tuple(places[self._has_place].T)
        self.labels, self.split = (self._by_place(data[name]) for name in ("labels", "split"))

    def scales(self) -> dict[str, range | list[str]]:
        """The axes of the file."""
        n = len(self.order)
        return {
            "component": range(min(n, self.problem.parameters[self.parameter].shape[1])),
            "frequency": range(n // 2 + 1),
            "plane": range(embeddings.number_of_planes(n)),
            "place": range(n),
            "side": range(2),
            "coordinate": range(embeddings.COORDINATES),
            "split": list(SPLITS),
        }

    def embedding(self, checkpoint: Arrays) -> Floats:
        """The rows of the numbers, in their order."""
        return np.asarray(checkpoint[self.parameter][self.rows.start : self.rows.stop][self.order], float)

    def frequencies_in_use(self, checkpoint: Arrays) -> Ints:
        """The frequencies in use at a checkpoint."""
        return np.flatnonzero(embeddings.geometry(self.embedding(checkpoint), self.order)["frequency_in_use"])

    def row(self, checkpoint: Arrays, keys: Ints) -> dict[str, Any]:
        """Every quantity at a checkpoint; keys: the frequencies of restricted and excluded loss."""
        logits = self._by_place(self.problem.logits(checkpoint, self.tokens))
        row = embeddings.geometry(self.embedding(checkpoint), self.order) | {"loss": self._losses(logits)}
        for name, part in (("restricted_loss", embeddings.restricted), ("excluded_loss", embeddings.excluded)):
            row[name] = self._losses(part(logits, self.sign, keys)) if self.sign else np.full(len(SPLITS), np.nan)
        return row

    def _by_place(self, values: NDArray[Any]) -> NDArray[Any]:
        """What belongs to samples, by the places of their operands, (a, b, ...)."""
        n = len(self.order)
        by_place = np.zeros((n, n, *values.shape[1:]), values.dtype)
        by_place[self._at] = values[self._has_place]
        return by_place

    def _losses(self, logits: Floats) -> Floats:
        """Mean cross-entropy of logits (a, b, class) on each split; NaN for one whose pairs have no place."""
        right = np.take_along_axis(logits, self.labels[..., None].astype(np.int64), 2)[..., 0]
        losses = logsumexp(logits, axis=2) - right
        parts = [losses[self.split == part] for part in SPLITS.values()]
        return np.array([part.mean() if part.size else np.nan for part in parts])


def sentences(path: Path) -> list[str]:
    """What of the geometry beats chance and since when, and what the frequencies in use do for the test loss."""
    with open_file(path) as file:
        data = file.datasets["/"].load()
    steps = data["step"].values
    first = {
        statistic.name: appears(steps, data[statistic.name].values, data[f"{statistic.name}_p"].values, statistic.falls)
        for statistic in embeddings.STATISTICS
    }
    seen = sorted((step, name) for name, step in first.items() if step is not None)
    never = [name for name, step in first.items() if step is None]
    shown = first_few([f"{step} ({name})" for step, name in seen], _SHOWN)
    beats = f"beats chance from step {shown}" if seen else ""
    rest = first_few(never, _SHOWN)
    misses = "" if not never else f"never in {rest}" if seen else f"beats chance in none of {rest}"
    whole, alone, without = (
        float(data[name].sel(split="test").values[-1]) for name in ("loss", "restricted_loss", "excluded_loss")
    )
    return [
        f"The embedding {'; '.join(filter(None, (beats, misses))) or 'was not compared with chance'}.",
        f"Test loss at step {steps[-1]}: {whole:.3g}; of the frequencies in use alone {alone:.3g}, without them "
        f"{without:.3g}.",
    ]


def summary(path: Path) -> Table:
    """A line a quantity of a geometry file: first and last value, its null, and the step at which it appears."""
    with open_file(path) as file:
        data = file.datasets["/"].load()
    steps = data["step"].values
    lines = [["quantity", "first", "last", "1 % of null", "p", "appears at"]]
    for statistic in embeddings.STATISTICS:
        values, p = data[statistic.name].values, data[f"{statistic.name}_p"].values
        at = appears(steps, values, p, statistic.falls)
        ends = (f"{x:.4g}" for x in (values[0], values[-1], data[f"{statistic.name}_null"].values[-1], p[-1]))
        lines.append([statistic.name, *ends, "never" if at is None else str(at)])
    for name in ("loss", "restricted_loss", "excluded_loss"):
        for split in SPLITS:
            values = data[name].sel(split=split).values
            lines.append([f"{split} {name}", f"{values[0]:.4g}", f"{values[-1]:.4g}", "-", "-", "-"])
    return lines
