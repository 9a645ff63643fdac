"""Results as terminal tables and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.text import csv_text, first_few, printable

if TYPE_CHECKING:
    from landscape.files.inspect import FileState
    from landscape.files.views import File
    from landscape.jobs.slurm import Submission
    from landscape.jobs.status import SweepStatus
    from landscape.measure.verify import Verification

_FEW = 20
"""Datasets of a table that are listed by name, and lines of a summary's table."""
_MAIN = ("step", "block", "lambda_min", "lambda_max", "saddle index", "level", "|grad|")
"""Columns of a summary's table."""
_SALVAGE = "all other rows are served; `--repair` leaves the damaged ones out and keeps the original"


def measurements(file: File) -> str:
    """The table by step and block, the table by step, and notes."""
    from landscape.measure.tables import by_block, by_step, filled, notes

    shown = align(filled(by_block(file)), keys=2), align(filled(by_step(file)))
    return "\n\n".join([*shown, "\n".join(notes(file))])


def summary(file: File, steps: Collection[int]) -> str:
    """A line for each block at each of some steps, unless these are many, and the findings in sentences."""
    from landscape.measure.tables import by_block, unconverged
    from landscape.report.findings import findings
    from landscape.report.sources import open_sources

    table = by_block(file)
    columns = [table[0].index(title) for title in _MAIN if title in table[0]]
    lines = [[line[i] for i in columns] for line in table if line[0] in {"step", *map(str, steps)}]
    parts = [align(lines, keys=2)] if 1 < len(lines) <= _FEW + 1 else []
    sentences = findings(open_sources([file.path], []))
    if any(unconverged(file).values()):
        sentences.append("Numbers with a star have not converged.")
    return "\n\n".join([*parts, listed(sentences)])


def listed(sentences: Sequence[str]) -> str:
    """Sentences as items of a list that fit the terminal."""
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(f"* {sentence}", width, subsequent_indent="  ", break_on_hyphens=False) for sentence in sentences
    )


def critical_point(status: str, point: dict[str, Any]) -> str:
    """How the search for a critical point ended."""
    verdict = {
        "critical": "critical point: an index here is the index of a saddle",
        "gradient-flat": "gradient-flat, not critical: the gradient lies where the Hessian has no curvature",
        "at-infinity": "at infinity, not critical: the gradient vanishes, Newton steps do not shrink, as on exp(-x)",
        "unfinished": "not critical: the search stalled or used up --search-hvps; --resume continues with more",
    }[status]
    return (
        f"{verdict}\n|grad| {point['start_grad_norm']:.3e} -> {point['grad_norm']:.3e}, objective "
        f"{point['start_loss']:.6g} -> {point['loss']:.6g}, distance {point['distance']:.4g}, remaining "
        f"{point.get('remaining', math.nan):.1e}, flatness {point['flatness']:.1e}, {point['num_products']} products"
    )


def settled(status: str, point: dict[str, Any]) -> str:
    """How a descent ended."""
    left = point["grad_norm"] / (point["start_grad_norm"] or math.nan)
    ends = {
        "unfinished": "; more --descent-steps continue the descent",
        "stalled": "; the rate has shrunk to a millionth, as at a kink of ReLU, where more steps lead no further",
    }
    more = ends.get(status, "")
    return f"{status}: |grad| is {left:.2g} of what it was after {point['num_steps']} steps{more}"


def descents(file: File) -> str:
    """How far each checkpoint of a file settled, a line a step."""
    from landscape.measure.settle import ENDS
    from landscape.measure.tables import rows

    titles = [
        "step",
        "status",
        "steps",
        "rate",
        "|grad|",
        "loss",
        "test_accuracy",
        "moved/|theta|",
        "|dL/db1|/lambda",
        "sigma_max(G)-lambda",
    ]

    def change(row: Mapping[str, Any], name: str, form: str) -> str:
        return "-" if math.isnan(row[name]) else f"{row[f'start_{name}']:{form}} -> {row[name]:{form}}"

    lines = [
        [
            str(step),
            ENDS[int(row["status"])],
            str(row["num_steps"]),
            f"{row['rate']:.2g}",
            change(row, "grad_norm", ".2e"),
            change(row, "loss", ".4g"),
            change(row, "test_accuracy", ".3f"),
            f"{row['relative_distance']:.2g}",
            change(row, "bias_gradient", ".3g"),
            change(row, "saddle_excess", ".2e"),
        ]
        for step, row in rows(file, "settled").items()
    ]
    return align([titles, *lines])


def verification(opinions: Sequence[Verification]) -> str:
    """The table of `--verify`; empty without one."""
    if not opinions:
        return ""
    lines = [["step", "block", "landscape", "PyHessian", "dense: max difference / |H|"]]
    for o in opinions:
        dense = "does not fit" if o.dense_difference is None else f"{o.dense_difference:.1e}"
        lines.append(
            [str(o.step), o.block, f"{o.largest:.8g}", "-" if math.isnan(o.pyhessian) else f"{o.pyhessian:.8g}", dense]
        )
    return f"\neigenvalue of largest magnitude, and all reported ones against a dense Hessian\n{align(lines)}\n"


def sweep_status(status: SweepStatus) -> str:
    """How many files are in each state, and each that runs, waits in a queue or failed, with its reason and log."""
    states = ("done", "running", "failed", "waiting")
    lines = [["", *states], *([kind, *(f"{n[s]:,}" for s in states)] for kind, n in status.counts.items())]
    notices = []
    for file in status.files:
        if file.state == "done" or not (file.where or file.reason):
            continue
        details = "; ".join(filter(None, (file.reason, file.hint, file.where, file.log and f"log: {file.log}")))
        notices.append(printable(f"{file.state}: {file.path}: {details}"))
    return "\n".join([align(lines), *notices])


def submissions(submitted: Sequence[Submission], as_json: bool) -> str:
    """What was submitted to Slurm."""
    if as_json:
        return document(list(map(dataclasses.asdict, submitted)))
    if not submitted:
        return "nothing to submit: everything is done or in Slurm's queue"
    return "\n".join(
        f"submitted: Slurm array {one.array}, jobs: {len(one.files):,}, files: {sum(map(len, one.files.values())):,}"
        for one in submitted
    )


def contents(state: FileState) -> str:
    """Contents of a file, missing datasets, and how to resume it."""
    a, steps = state.attributes, state.steps
    unknown = {"seed"} if state.is_recorded and a["seed"] is None else set()
    span = f"{len(steps)} ({steps[0]} to {steps[-1]})" if steps else "none"
    lines = [
        [state.path, f"{state.kind}, {state.bytes / 1e6:.2f} MB, {a['schema']} {a['schema_version']}"],
        ["status", f"{state.status}, being written by {state.writer}" if state.writer else _left_as(state)],
        ["made by", f"landscape {a['landscape_version']}, commit {a['git_commit'][:12]}, torch {a['torch_version']}"],
        ["on", f"{a['hostname']}, {a['device']}, {a['created']}"],
        ["steps", span],
        *(
            [t.group, f"{len(t.committed)} row{'s' * (len(t.committed) != 1)} of {first_few(t.datasets, _FEW)}"]
            for t in state.tables
            if t.datasets
        ),
        *(["lacks", note.removeprefix("no ")] for note in state.notes),
        ["config", " ".join(f"{k}={v}" for k, v in state.config.items() if k not in unknown)],
    ]
    # Commands that can be copied stay on one line.
    commands: list[list[str]] = []
    if state.status == "diverged":
        lines.append(["ended", "its loss or parameters were no longer finite; a lower --lr may help, with --overwrite"])
    elif state.is_recorded:
        commands.append(["analyse", f"landscape hessian {shlex.quote(state.path)} --problem mine.py:problem"])
        commands.append(["extend", f"landscape.Recorder({state.path!r}, model, resume=True) in your training loop"])
    elif state.kind == "run file":
        again = f"landscape train --out {shlex.quote(state.path)} --resume"
        if state.status != "complete":
            commands.append(["resume", again])
        elif steps[-1] < state.config["steps"]:
            commands.append(["extend", f"{again} --stop-test-accuracy none"])
        else:
            commands.append(["extend", f"{again} --steps N"])
    elif state.status != "complete":
        again = _command(state)
        commands.append(["resume", f"the same `landscape {again}` command resumes it"])
    width = max(len(line[0]) for line in (*lines[1:], *commands))
    (head, *facts), last = ([list(map(printable, line)) for line in some] for some in (lines, commands))
    wrapped = [[name, _wrapped(text, width + 4)] for name, text in facts]
    return "\n".join([": ".join(head), *(f"  {name:{width}}  {text}" for name, text in (*wrapped, *last))])


def _command(state: FileState) -> str:
    """The command that makes an analysis."""
    groups = {table.group for table in state.tables}
    if "critical_point" in groups:
        return "critical"
    is_of_point = "settled" in groups and "steps" not in state.config
    return "settle" if is_of_point else state.kind.split()[0].lower()


def _wrapped(text: str, indent: int) -> str:
    """Text in lines that fit the terminal beside a column of names."""
    room = max(shutil.get_terminal_size().columns - indent, _FEW)
    return f"\n{' ' * indent}".join(textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False))


def _left_as(state: FileState) -> str:
    """The status of a file that no process writes, which a killed one could not change."""
    return state.status + (", though no process is writing it" if state.status == "running" else "")


def soundness(state: FileState) -> str:
    """The state of every table, and a verdict."""
    from landscape.files.hdf5 import REMEASURE

    lines = [["table", "room", "committed", "damaged"]]
    lines += [[t.group, str(t.room), str(len(t.committed)), str(len(t.damaged))] for t in state.tables]
    if state.damage:
        verdict = "\n".join(f"damaged: {printable(text)}" for text in state.damage)
        verdict += "\n" + (_SALVAGE if state.kind == "run file" else REMEASURE)
    elif state.finished:
        verdict = f"whole and {state.status}"
    elif state.writer:
        verdict = f"whole so far, being written by {printable(state.writer)}"
    else:
        verdict = f"whole but {_left_as(state)}: every committed row is good. --repair trims it; it can be resumed"
    return f"{align(lines)}\n{printable(state.path)}: {verdict}"


def align(lines: Sequence[Sequence[str]], keys: int = 1) -> str:
    """A table. Columns that the terminal has no room for follow below, beside the first `keys` again."""
    columns = [list(map(printable, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    room = shutil.get_terminal_size().columns
    parts = [padded[:keys]]
    for column in padded[keys:]:
        if len(parts[-1]) > keys and sum(len(c[0]) + 2 for c in (*parts[-1], column)) - 2 > room:
            parts.append(padded[:keys])
        parts[-1].append(column)
    return "\n\n".join("\n".join("  ".join(row) for row in zip(*part, strict=True)) for part in parts)


def known(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the Hessian file with None for unknown counts."""
    import numpy as np

    from landscape.files import schema
    from landscape.measure.fields import ROOT

    marked = {f.name for f in ROOT.fields if f.attrs == schema.MARKED}
    return {name: np.where(x == schema.UNKNOWN, None, x) if name in marked else x for name, x in row.items()}


def hessian_document(file: File, **more: Any) -> str:
    """The contents of a Hessian file as one JSON document."""
    from landscape.measure.tables import rows

    return document(
        {
            "file": str(file.path),
            "attributes": file.attrs,
            "blocks": file.blocks,
            "pairs": file.pairs,
            "steps": [{"step": step, **known(row)} for step, row in rows(file).items()],
            **more,
        }
    )


def geometry_document(path: Path) -> str:
    """The contents of a geometry file as one JSON document."""
    from landscape.files.views import open as open_file

    with open_file(path) as file:
        data, numbers = file.datasets["/"].load(), file.datasets["numbers"]["number"].values
        steps = [
            {"step": step, **{name: x.sel(step=step).values for name, x in data.items()}}
            for step in data["step"].values
        ]
        return document({"file": path, "attributes": file.attrs, "numbers": numbers, "steps": steps})


def file_csv(path: Path) -> str:
    """The measurements of a file that belong to a step, or to a step and a block, as CSV."""
    from landscape.files.views import open as open_file

    return csv_text(open_file(path).to_dataframe()).rstrip("\n")


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV."""
    import pandas as pd

    return csv_text(pd.DataFrame(rows, dtype=object)).rstrip("\n")


def document(x: Any, indent: int | None = None) -> str:
    """One JSON document; NaN and infinities as null."""
    return json.dumps(jsonable(x), indent=indent, allow_nan=False)


def jsonable(x: Any) -> Any:
    """NumPy values and paths as JSON; NaN as null."""
    if isinstance(x, dict):
        return {k: jsonable(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [jsonable(v) for v in x]
    if hasattr(x, "tolist"):
        return jsonable(x.tolist())
    if isinstance(x, float) and not math.isfinite(x):
        return None
    if isinstance(x, Path):
        return str(x)
    return x
