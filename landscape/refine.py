"""From a checkpoint to the nearest critical point, and what is measured there: `landscape critical`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from landscape.config import AnalysisConfig, TrainConfig, replace
from landscape.curvature.critical import find_critical_point
from landscape.errors import ConfigError, FileError
from landscape.measure import Measurement
from landscape.pipeline import file_attrs, training_at, warn_of_damage
from landscape.point import Problem
from landscape.provenance import provenance
from landscape.signals import stop_signals
from landscape.storage import schema
from landscape.storage.files import make_folder, refuse_existing
from landscape.storage.runs import RunReader
from landscape.storage.spectra import SpectrumReader, SpectrumWriter
from landscape.storage.writing import sole_writer

STATUS = str(schema.STATUS["flag_meanings"]).split()


def default_output(run: Path, step: int) -> Path:
    """RUN.h5 -> RUN.critical-STEP.h5, beside it."""
    return run.with_name(f"{run.stem}.critical-{step}.h5")


def refine(
    run: Path | str,
    step: int,
    config: AnalysisConfig,
    out: Path | str | None = None,
    tol: float = 1e-10,
    max_products: int = 60_000,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> SpectrumReader:
    """Search the critical point of the objective nearest to a checkpoint, and measure the Hessian there.

    The file (default RUN.critical-STEP.h5) is a Hessian file of one step, with the refined parameters, their
    gradient norm and the status in the group `critical_point`. Ctrl-C ends the search where it is, and that is
    measured and stored as "unfinished", in a file still "running"; `resume` goes on from there. Raises
    LandscapeError kinds for all that a user can mend.
    """
    run = Path(run)
    out = Path(out) if out else default_output(run, step)
    if not 0 < tol < 1:
        raise ConfigError(f"tol is {tol}", "--grad-tol takes a number between 0 and 1")
    before = SpectrumReader(out) if resume and out.exists() else None
    make_folder(out.parent)
    if before is None and (not overwrite or out.resolve() == run.resolve()):
        refuse_existing(out, "use --resume to go on, --overwrite to replace it, or another --out")
    with RunReader(run) as reader, sole_writer(out):
        train = replace(TrainConfig(), reader.config)
        start = reader.checkpoint(step)
        warn_of_damage(reader)
        measurement = Measurement(train, config, reader.data())
        problem = measurement.problem
        params = problem.parameters(start)
        objective = problem.objective(params, problem.decay)
        origin, spent = params, 0
        if before is not None:
            origin, spent = _go_on(out, before, problem, reader, step)
        bar = tqdm(unit="product", total=max_products, disable=quiet, file=sys.stderr)
        with bar, stop_signals() as stop:

            def progress(grad_norm: float, products: int) -> bool:
                bar.set_postfix(grad_norm=f"{grad_norm:.2e}")
                bar.update(products - bar.n)
                return stop.is_set()

            found = find_critical_point(objective, origin, tol, max_products, progress, problem.hessian)
        refined = {n: p.cpu().numpy() for n, p in found.params.items()}
        rows = measurement.run(refined, training_at(reader, step))
        rows["critical_point"] = {
            **refined,
            "status": STATUS.index(found.status),
            "grad_norm": found.grad_norm,
            "start_grad_norm": _norm(objective.gradient(params)),
            "loss": objective.value(found.params),
            "start_loss": objective.value(params),
            "flatness": found.flatness,
            "distance": _norm({n: p - params[n] for n, p in found.params.items()}),
            "num_products": spent + found.num_products,
        }
        fields = {f.name: f for f in schema.PARAMETERS}
        axes = {axis: n for name, a in start.items() for axis, n in zip(fields[name].dims, np.shape(a), strict=True)}
        layout = dataclasses.replace(measurement.layout(), axes=axes, parameters=tuple(start))
        attrs = {**file_attrs(run, reader, config), "status": "running", **provenance(str(problem.device))}
        with SpectrumWriter.create(out, attrs, 1, config.k, layout) as writer:
            writer.append(step, rows)
            if not stop.is_set():
                writer.finish()
    return SpectrumReader(out)


def _go_on(
    out: Path, before: SpectrumReader, problem: Problem, reader: RunReader, step: int
) -> tuple[dict[str, Tensor], int]:
    """Where an earlier search ended, and the products that it took."""
    point = before.critical_point(step) if step in before.steps else {}
    same = before.attrs["parent_run_id"] == reader.attrs["run_id"] and (
        before.attrs["objective"] == problem.config.objective
    )
    if not point or not same:
        raise FileError(
            f"{out} holds no search from step {step} of this run and objective",
            "use --overwrite to replace it, or another --out",
        )
    return problem.parameters({n: point[n] for n in problem.sizes}), int(point["num_products"])


def _norm(pieces: Mapping[str, Tensor]) -> float:
    return float(torch.stack([p.square().sum() for p in pieces.values()]).sum().sqrt())
