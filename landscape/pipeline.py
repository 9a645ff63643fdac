"""Checkpoints -> curvature -> file: what `landscape hessian` runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from landscape.config import AnalysisConfig, HessianConfig, TrainConfig, replace, to_json
from landscape.errors import FileError, NumericsError, StepError, warn
from landscape.measure import Measurement
from landscape.point import Training
from landscape.provenance import provenance
from landscape.storage.files import hessian_file, make_folder, sha256
from landscape.storage.runs import GROKKED, MEMORISED, RunReader
from landscape.storage.spectra import SpectrumReader, SpectrumWriter
from landscape.storage.writing import sole_writer


def analyse(
    run: Path | str,
    config: HessianConfig,
    out: Path | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    fsync: bool = False,
) -> SpectrumReader:
    """Measure the Hessian of a run's checkpoints; returns the finished file.

    A file that belongs to this run and config is gone on with, or returned if complete; any other file in the way is
    an error unless `overwrite`. fsync: sync every step to the disk. Raises LandscapeError kinds for all that a user
    can mend.
    """
    run = Path(run)
    out = Path(out) if out else hessian_file(run)
    with RunReader(run) as reader:
        if out.resolve() == run.resolve():
            raise FileError(f"{out} is the run file itself", "choose another --out")
        train_config = replace(TrainConfig(), reader.config)
        steps = finite_steps(reader, choose_steps(reader, config.steps, config.num_steps))
        warn_of_damage(reader)
        measurement = Measurement(train_config, config, reader.data())
        attrs = file_attrs(run, reader, config)
        make_folder(out.parent)
        with sole_writer(out):
            found = existing(out, attrs, overwrite)
            if found and found.attrs["status"] == "complete":
                return found
            writer = (
                SpectrumWriter.extend(out, len(steps), fsync)
                if found
                else SpectrumWriter.create(
                    out,
                    {**attrs, "status": "running", **provenance(str(measurement.problem.device))},
                    len(steps),
                    config.k,
                    measurement.layout(),
                    fsync,
                )
            )
            with writer, tqdm(unit="checkpoint", total=len(steps), disable=quiet, file=sys.stderr) as bar:
                done = writer.steps
                for step in steps:
                    bar.set_postfix(step=step)
                    # The last row done is measured again: its eigenvectors are what the next one is tracked from.
                    if step not in done[:-1]:
                        rows = measurement.run(reader.checkpoint(step), training_at(reader, step))
                        if step not in done:
                            writer.append(step, rows)
                    bar.update()
                writer.finish()
    return SpectrumReader(out)


def existing(out: Path, attrs: Mapping[str, Any], overwrite: bool = False) -> SpectrumReader | None:
    """What `out` holds of the analysis with these `file_attrs`; None where it is to be started.

    Raises FileError for damaged rows, and for a file of another run or config, unless `overwrite`.
    """
    if not out.exists():
        return None
    if _belongs(out, attrs):
        found = SpectrumReader(out)
        if not found.damage:
            return found
        if not overwrite:
            raise FileError(
                f"{out}: rows fail their checksums: {found.damage}", "use --overwrite to measure them again"
            )
    elif not overwrite:
        raise FileError(
            f"{out} exists, of another run or with other settings",
            "use --overwrite to replace it, or another --out",
        )
    return None


def warn_of_damage(reader: RunReader) -> None:
    """Name on stderr what a run file cannot give."""
    if reader.damage:
        warn(f"{reader.path}: left out, for their checksums fail: {reader.damage}")


def file_attrs(run: Path, reader: RunReader, config: AnalysisConfig) -> dict[str, Any]:
    """What a Hessian file says about its run and its settings."""
    return {
        "parent_run_id": reader.attrs["run_id"],
        "parent_sha256": sha256(run),
        "parent_config": reader.attrs["config"],
        "config": to_json(config),
        "objective": config.objective,
        "dtype": "float64",
        "method": config.method,
        "memorise_step": -1 if (s := reader.first_step("train_accuracy", MEMORISED)) is None else s,
        "grok_step": -1 if (s := reader.first_step("test_accuracy", GROKKED)) is None else s,
    }


def choose_steps(reader: RunReader, wanted: str, count: int = 12) -> list[int]:
    """Stored steps to analyse.

    auto: at most `count`: step 0, the steps where train hits 99 % and test 95 %, the last, and log-spaced ones.
    Raises StepError for a step that is not stored.
    """
    stored = reader.steps
    if wanted == "all":
        return stored
    if wanted != "auto":
        chosen = sorted({int(s) for s in wanted.split(",")})
        for step in chosen:
            with contextlib.suppress(NumericsError):
                reader.checkpoint(step)
            training_at(reader, step)
        return chosen
    if not stored:
        raise StepError(f"{reader.path} holds no checkpoint", "train it first, or go on with --resume")
    events = [
        reader.first_step(metric, threshold)
        for metric, threshold in (("train_accuracy", MEMORISED), ("test_accuracy", GROKKED))
    ]
    chosen_steps = {stored[0]} | {_nearest(stored, e) for e in events if e is not None}
    # Far apart first, so that a small count still spans the run.
    for target in _bisected(max(stored[min(1, len(stored) - 1)], 1), max(stored[-1], 1)):
        if len(chosen_steps) >= min(count, len(stored)):
            break
        chosen_steps.add(_nearest(stored, target))
    return sorted(chosen_steps)


def finite_steps(reader: RunReader, steps: list[int]) -> list[int]:
    """The steps whose parameters are finite; names the others on stderr. Raises NumericsError if none is left."""
    finite, errors = [], []
    for step in steps:
        try:
            reader.checkpoint(step)
            finite.append(step)
        except NumericsError as error:
            errors.append(error)
    if errors and not finite:
        raise errors[0]
    for left_out in errors:
        warn(f"{left_out}: left out")
    return finite


def _nearest(stored: list[int], target: float) -> int:
    return min(stored, key=lambda s: abs(s - target))


def _bisected(first: int, last: int) -> Iterator[float]:
    """Log-spaced points from first to last: the ends, the middle, the quarters, the eighths, ..."""
    yield from (last, first)
    for level in range(1, 12):
        for i in range(1, 2**level, 2):
            yield first * (last / first) ** (i / 2**level)


def training_at(reader: RunReader, step: int) -> Training:
    """What the trainer knew at a stored step; the learning rates are those of the last row of metrics by then."""
    count = reader.tokens_at(step)["count"][: reader.config["p"]]
    metrics = reader.metrics_at(step) or {}
    return Training(
        step=step,
        f_E=float(count.mean() / step) if step else float("nan"),
        lr_E=float(metrics.get("lr_E", np.nan)),
        lr_W=float(metrics.get("lr_W", np.nan)),
        second_moments=reader.second_moments(step),
    )


def _belongs(path: Path, attrs: Mapping[str, Any]) -> bool:
    """Whether a Hessian file was made from the same run file with the same settings."""
    try:
        found = SpectrumReader(path).attrs
    except FileError:
        return False
    ignored = {"device"}
    same = [{k: v for k, v in json.loads(a["config"]).items() if k not in ignored} for a in (found, attrs)]
    return same[0] == same[1] and found["parent_sha256"] == attrs["parent_sha256"]
