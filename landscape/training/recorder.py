"""Checkpoints of anybody's network, recorded into a run file from any training loop."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from landscape.curvature.modules import first_names
from landscape.errors import ArgumentError, FileError
from landscape.problems.blocks import Blocks, Pairs
from landscape.provenance import provenance
from landscape.results import Shown
from landscape.signals import delayed_signals
from landscape.storage import schema
from landscape.storage.contents import ROWS
from landscape.storage.files import as_path, make_folder, output, refuse_existing, refuse_foreign
from landscape.storage.making import require_room
from landscape.storage.runs import RunReader
from landscape.storage.schema import OPTIMIZER, PARAMETER, Scales, Table
from landscape.storage.writer import Writer
from landscape.storage.writing import sole_writer
from landscape.training.optimizer_state import OptimizerState, tables_of
from landscape.training.recorded import (
    Form,
    array,
    config,
    declarations,
    difference,
    form,
    forms_of,
    scales,
    tables,
)

_METRICS, _BYTES, _LEAST, _MOST = 1024, 64 << 20, 4, 256
"""Room of a new file: rows of metrics; bytes of checkpoints, which are at least and at most so many."""


class Recorder(Shown):
    """Records parameters and metrics of a model into a run file; a call has returned once its row survives the process.

    The model is only read: no gradient, mode or random number of the training changes. The file is that of `landscape
    train`, and is open to readers meanwhile. Use it in a `with` statement, or call `close`. Threads may share it; a
    child made by fork cannot.

    metrics: their names, by default those of the first call of `metrics`. blocks: by name, parameters or patterns such
    as "*.attn.*"; pairs: blocks whose couplings are worth measuring; both are kept in the file for its analyses. seed:
    of the training, so that reports tell repetitions apart. optimizer: its learning rates, and the second moments of
    Adam and AdamW, are stored with each checkpoint, from which analyses get the sharpness of its step. expected:
    checkpoints to come; room for them is made at once, which spares the copies that a file makes when it grows.
    resume: append to an existing file, or start one; overwrite: replace an existing one. fsync: sync each row to the
    disk, so that it survives a loss of power too.

    Raises FileError for a file that exists, is written by another process or cannot be written, ArgumentError for a
    model, names or blocks that cannot be recorded, or differ from what a resumed file holds.
    """

    shown = ("path",)

    def __init__(
        self,
        path: Path | str,
        model: nn.Module,
        *,
        metrics: Iterable[str] = (),
        blocks: Blocks | None = None,
        pairs: Pairs | None = None,
        seed: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        expected: int = 0,
        resume: bool = False,
        overwrite: bool = False,
        fsync: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"the model is {type(model).__name__}, not a torch module", "give the nn.Module itself")
        if resume and overwrite:
            raise ArgumentError("resume and overwrite exclude each other", "choose one of them")
        # Absolute, as the training may change the working folder, where another file has the same name.
        self.path, self._model = output(as_path(path)).absolute(), model
        self._writer: Writer | None = None
        self._owner, self._lock, self._is_busy = os.getpid(), threading.RLock(), False
        self._names: list[str] = []
        self._expected = _whole(expected, "number of checkpoints")
        if self._expected > ROWS:
            raise ArgumentError(
                f"expected is {expected:,} checkpoints; a file holds at most {ROWS:,}", "record fewer of the steps"
            )
        self._forms = self._found()
        if not self._forms:
            raise ArgumentError(f"{type(model).__name__} has no parameters", "give the module that is trained")
        self._state = None if optimizer is None else OptimizerState(optimizer, model)
        metrics = [field.name for field in tables(self._forms, metrics)[1].fields]
        make_folder(self.path.parent)
        with contextlib.ExitStack() as held:
            held.enter_context(sole_writer(self.path))
            if not (resume or overwrite):
                refuse_existing(self.path, "resume=True resumes it, overwrite=True replaces it")
            elif overwrite:
                refuse_foreign(self.path, schema.RUN)
            if resume and self.path.exists():
                writer = self._extended(metrics, blocks, pairs, seed, fsync)
            else:
                writer = self._created(metrics, blocks, pairs, seed, fsync)
            self._writer = held.enter_context(writer)
            self._held = held.pop_all()

    @delayed_signals()
    def checkpoint(self, step: int) -> bool:
        """Store all parameters as those after `step` optimiser steps; False if the file holds this step already.

        Raises ArgumentError for a step before the last stored one, and for a model of other parameters than at first,
        FileError where the disk fails or is full.
        """
        step = _whole(step)
        with self._turn() as writer:
            if not self._is_next(writer, "checkpoints", step):
                return False
            found = self._found()
            if wrong := difference(found, self._forms):
                raise ArgumentError(f"the model has changed: {wrong}", "record another model into a file of its own")
            self._make_room(writer, "checkpoints")
            arrays = {name: array(p, found[name]) for name, p in self._model.named_parameters()}
            writer.append(step, {"checkpoints": arrays, **(self._state.rows(self._forms) if self._state else {})})
        return True

    @delayed_signals()
    def metrics(self, step: int, /, **values: float) -> bool:
        """Store a row of metrics, NaN for those that are not given; False if the file holds this step already.

        Raises ArgumentError for names that were not there at first, FileError where the disk fails or is full.
        """
        step = _whole(step)
        row = {name: _number(name, value) for name, value in values.items()}
        with self._turn() as writer:
            if not self._names:
                if not row:
                    raise ArgumentError(
                        f"no metric is given at step {step}", "name at least one: metrics(step, train_loss=...)"
                    )
                writer.grow({}, self._tables(row), self._scales())
                self._names = list(row)
            if unknown := [name for name in row if name not in self._names]:
                raise ArgumentError(
                    f"no metric {unknown[0]!r} was declared; there are {', '.join(self._names)}",
                    "declare them all: Recorder(..., metrics=[...]), or give them all in the first call",
                )
            if not self._is_next(writer, "metrics", step):
                return False
            self._make_room(writer, "metrics")
            writer.append_to("metrics", step, dict.fromkeys(self._names, float("nan")) | row)
        return True

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints stored so far."""
        with self._turn() as writer:
            return list(writer.steps)

    @delayed_signals()
    def close(self, status: str = "complete") -> None:
        """Trim the file to its rows and give it its status, "complete" or "interrupted"; a second call does nothing.

        Nor does a call in a child process, where `with` may end as well.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            self._require_idle()
            if self._writer is not None:
                writer, self._writer = self._writer, None
                with self._held:
                    writer.finish(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # What went wrong first is what matters.
        with contextlib.nullcontext() if kind is None else contextlib.suppress(FileError):
            self.close("complete" if kind is None else "interrupted")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Writer]:
        """The open file, for one call at a time; other threads wait.

        Raises ArgumentError once it is closed, in a child process, and in a signal handler that interrupts a call.
        """
        # First, as a child may have been made while another thread held the lock.
        if self._owner != os.getpid():
            raise ArgumentError(
                f"the recorder of {self.path} is that of process {self._owner}, not of its child {os.getpid()}",
                "record in the process that opened it, or open a file of its own in the child",
            )
        with self._lock:
            if self._writer is None:
                raise ArgumentError(f"the recorder of {self.path} is closed", "open it again with resume=True")
            self._require_idle()
            self._is_busy = True
            try:
                yield self._writer
            finally:
                self._is_busy = False

    def _require_idle(self) -> None:
        """Raise ArgumentError within a call of this thread, which holds the lock."""
        if self._is_busy:
            raise ArgumentError(
                f"the recorder of {self.path} was called while it records, by a signal handler or the model",
                "let the handler set a flag, and record between two steps of the training",
            )

    def _found(self) -> dict[str, Form]:
        """The forms of the model's parameters; tied ones once, under their first name."""
        return {name: form(name, parameter) for name, parameter in self._model.named_parameters()}

    def _created(
        self, metrics: list[str], blocks: Blocks | None, pairs: Pairs | None, seed: int | None, fsync: bool
    ) -> Writer:
        cls, aliases = type(self._model), first_names(self._model)
        name, seed = f"{cls.__module__}.{cls.__qualname__}", None if seed is None else _whole(seed, "seed")
        described = config(self._forms, name, blocks, pairs, aliases, seed)
        attrs = {"run_id": uuid.uuid4().hex, "config": json.dumps(described), "seed": described["seed"]}
        rooms = [(table, self._first_room()[table.group]) for table in self._tables(metrics)]
        require_room(self.path, rooms, self._scales())
        self._names = metrics
        return Writer.create(self.path, schema.RUN, {**attrs, **self._attrs()}, rooms, self._scales(), fsync=fsync)

    def _extended(
        self, metrics: list[str], blocks: Blocks | None, pairs: Pairs | None, seed: int | None, fsync: bool
    ) -> Writer:
        """Open an existing file, with the same tables; what is declared anew takes the place of what it declares."""
        with RunReader(self.path) as reader:
            if not reader.is_recorded:
                raise FileError(
                    f"{self.path} was not written by a Recorder", "`landscape train --resume` resumes runs of its own"
                )
            reader.require_whole()
            if wrong := difference(self._forms, forms_of(reader)):
                raise ArgumentError(
                    f"{self.path} holds another model: {wrong}", "record another model into a file of its own"
                )
            lacking = {OPTIMIZER, "moments"} & reader.tables.keys() - {table.group for table in self._tables(())}
            if lacking:
                what = "an optimiser's state" if OPTIMIZER in lacking else "the second moments of Adam"
                raise ArgumentError(f"{self.path} holds {what}", "resume it with the same kind: optimizer=...")
            self._names = [f.name for f in reader.layout["metrics"].fields]
            if metrics and self._names and metrics != self._names:
                raise ArgumentError(
                    f"{self.path} has the metrics {', '.join(self._names)}, not {', '.join(metrics)}",
                    "declare the same, or none",
                )
            before = reader.config
            blocks = before.get("blocks", {}) if blocks is None else blocks
            pairs = before.get("pairs", []) if pairs is None else pairs
            described = before | declarations(self._forms, blocks, pairs)
            described |= {} if seed is None else {"seed": _whole(seed, "seed")}
        attrs = {"config": json.dumps(described), "seed": described["seed"], **self._attrs()}
        self._names = self._names or metrics
        made = self._tables(self._names)
        return Writer.extend(self.path, attrs, self._first_room(), made, self._scales(), fsync=fsync)

    def _first_room(self) -> dict[str, int]:
        """Rows of each table that a file just opened can take; where checkpoints are large, few."""
        copies = 2 if self._state and self._state.has_moments else 1
        size = copies * sum(torch.Size(f.shape).numel() * int(f.dtype[1]) for f in self._forms.values())
        usual = min(max(_LEAST, _BYTES // max(1, size)), _MOST)
        rows = self._expected or usual
        return {"checkpoints": rows, OPTIMIZER: rows, "moments": rows, "metrics": _METRICS}

    def _tables(self, metrics: Iterable[str]) -> tuple[Table, ...]:
        """The tables of the file, those of the optimiser's state among them."""
        parameters, found = tables(self._forms, metrics)
        return (parameters, *(tables_of(parameters, self._state.has_moments) if self._state else ()), found)

    def _scales(self) -> Scales:
        """The axes of the file."""
        return {**scales(self._forms), **({PARAMETER: list(self._forms)} if self._state else {})}

    def _attrs(self) -> dict[str, Any]:
        """Attributes of this process."""
        return {"status": "running", **provenance(str(next(self._model.parameters()).device))}

    def _is_next(self, writer: Writer, group: str, step: int) -> bool:
        """Whether a step comes after those of a table; False if it is one of them. Raises ArgumentError else."""
        labels = writer.labels(group)
        if not labels or step > labels[-1]:
            return True
        if step not in labels:
            raise ArgumentError(
                f"step {step} comes after step {labels[-1]} was stored in {group}",
                "record steps in ascending order; other steps belong into a file of their own",
            )
        return False

    def _make_room(self, writer: Writer, group: str) -> None:
        """Double a table that is full, so that a row is copied about once however many there are."""
        if not writer.room(group):
            held = len(writer.labels(group))
            if held == ROWS:
                raise FileError(f"{self.path}: {group} holds {ROWS:,} rows, the most of a file", "record fewer steps")
            more = min(held, ROWS - held)
            beside = (OPTIMIZER, "moments") if group == "checkpoints" else ()
            writer.grow(dict.fromkeys((group, *beside), more))


def _whole(number: Any, what: str = "step") -> int:
    try:
        found = operator.index(number)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 53:
        raise ArgumentError(f"a {what} cannot be {number!r}", "give a whole number from 0 to 2^53")
    return found


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(f"metric {name} is {str(value)[:60]!r}, not a number", "give one float for each") from error
