"""Checkpoints of anybody's network, recorded into a run file from any training loop."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import re
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from landscape.curvature.modules import first_names, plain_names
from landscape.errors import ArgumentError, FileError
from landscape.files import schema
from landscape.files.files import as_path, make_folder, output, refuse_existing, refuse_foreign
from landscape.files.rows import ROWS
from landscape.files.runs import RunReader
from landscape.files.schema import BUFFERS, OPTIMIZER, PARAMETER, Scales, Table
from landscape.files.writer import Writer, require_room
from landscape.files.writing import sole_writer
from landscape.models.blocks import Blocks, Pairs
from landscape.models.state import buffers, every_name
from landscape.provenance import provenance
from landscape.results import Shown
from landscape.signals import delayed_signals
from landscape.training.optimizer_state import OptimizerState, tables_of
from landscape.training.recorded import (
    Form,
    array,
    buffer_forms,
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
    """Records parameters, buffers and metrics of a model into a run file; a stored row survives the process.

    The recorder only reads the model: it changes no gradient, mode or random number. The file is open to readers
    meanwhile. Use it in a `with` statement, or call `close`. Threads may share it; a child made by fork cannot. Names
    lack the `module.` of DistributedDataParallel and the `_orig_mod.` of torch.compile.

    Once the file is open, nothing here stops the training. What cannot be stored, as on a full disk, is a warning, once
    for each kind; everything else is stored.

    Args:
        path: the run file.
        model: the module; its parameters and the buffers of its state dict are recorded.
        metrics: names that come first in the file; others may follow at any step.
        blocks: parameters or patterns such as "*.attn.*" by block, kept in the file for analyses.
        pairs: blocks whose coupling is worth measuring, kept in the file, too.
        seed: of the training, so that reports tell repetitions apart.
        optimizer: its learning rates and the second moments of Adam, AdamW and RMSprop are stored with each checkpoint.
            Analyses compute the sharpness of a step from them.
        expected: number of checkpoints to make room for at once, which saves copies as the file grows.
        resume: append to an existing file, or start one.
        overwrite: replace an existing file.
        fsync: sync each row to disk, so that it survives a power failure.

    Raises:
        FileError: for a file that exists, that another process writes, or that cannot be written.
        ArgumentError: for a model, names or blocks that cannot be recorded, or that differ from a resumed file.
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
        self._warned: set[str] = set()
        self._expected = _whole(expected, "number of checkpoints")
        if self._expected > ROWS:
            raise ArgumentError(
                f"expected is {expected:,} checkpoints; a file holds at most {ROWS:,}", "record fewer of the steps"
            )
        parameters, buffer_tensors = self._parameters(), self._buffers()
        self._forms, self._buffer_forms = _forms(parameters), buffer_forms(buffer_tensors)
        if not self._forms:
            raise ArgumentError(f"{type(model).__name__} has no parameters", "give the module that is trained")
        self._state = None if optimizer is None else OptimizerState(optimizer, parameters)
        metrics = [field.name for field in tables(self._forms, metrics, self._buffer_forms)[-1].fields]
        make_folder(self.path.parent)
        with contextlib.ExitStack() as opened:
            opened.enter_context(sole_writer(self.path))
            if not (resume or overwrite):
                refuse_existing(self.path, "resume=True resumes it, overwrite=True replaces it")
            elif overwrite:
                refuse_foreign(self.path, schema.RUN)
            if resume and self.path.exists():
                writer = self._extended(metrics, blocks, pairs, seed, fsync)
            else:
                writer = self._created(metrics, blocks, pairs, seed, fsync)
            self._writer = opened.enter_context(writer)
            self._resources = opened.pop_all()

    @delayed_signals()
    def checkpoint(self, step: int) -> bool:
        """Store parameters and buffers.

        Args:
            step: optimiser steps done.

        Returns:
            Whether they were stored: False if the file has this step, and, with a warning, if the disk fails, a later
            step was stored, or the model has other tensors than at first.
        """
        with self._never_raising(f"checkpoint {step!s:.20}"), self._turn() as writer:
            step = _whole(step)
            if not self._is_next(writer, "checkpoints", step):
                return False
            parameters, buffer_tensors = self._parameters(), self._buffers()
            forms = _forms(parameters)
            if wrong := difference(forms | buffer_forms(buffer_tensors), self._forms | self._buffer_forms):
                raise ArgumentError(f"the model has changed: {wrong}", "record another model into a file of its own")
            writer = self._with_room(writer, "checkpoints")
            rows = {"checkpoints": {name: array(p, forms[name]) for name, p in parameters.items()}}
            rows[BUFFERS] = {name: array(b, self._buffer_forms[name]) for name, b in buffer_tensors.items()}
            rows |= self._state.rows(parameters, self._forms) if self._state else {}
            writer.append(step, rows)
            return True
        return False

    @delayed_signals()
    def metrics(self, step: int, values: Mapping[str, Any] | None = None, /, **more: Any) -> bool:
        """Store a row of metrics.

        Args:
            step: optimiser steps done.
            values, more: numbers, tensors or arrays of one number by name, or dicts of these, whose names are joined.
                In the file "_" replaces "/" and spaces. What is no number is left out with a warning, and missing
                metrics are NaN.

        Returns:
            Whether the row was stored: False if the file has this step, and, with a warning, if the disk fails or a
            later step was stored.
        """
        with self._never_raising(f"metrics {step!s:.20}"), self._turn() as writer:
            step = _whole(step)
            row = self._numbers({**({} if values is None else values), **more})
            if new := [name for name in row if name not in self._names]:
                with self._never_raising(f"metric {', '.join(new)}"):
                    self._writer = writer = writer.grow({}, self._tables([*self._names, *new]), self._scales())
                    self._names += new
                row = {name: row[name] for name in row if name in self._names}
            if not row or not self._is_next(writer, "metrics", step):
                return False
            writer = self._with_room(writer, "metrics")
            writer.append_to("metrics", step, dict.fromkeys(self._names, float("nan")) | row)
            return True
        return False

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints stored so far. Raises ArgumentError once the recorder is closed."""
        with self._turn() as writer:
            return list(writer.steps)

    @delayed_signals()
    def close(self, status: str = "complete") -> None:
        """Trim the file to its rows and set its status; a second call, or one in a child process, does nothing.

        Args:
            status: "complete" or "interrupted".
        """
        if self._owner != os.getpid():
            return
        with self._never_raising("the end of the recording"), self._lock:
            self._require_idle()
            if self._writer is not None:
                writer, self._writer = self._writer, None
                with self._resources:
                    writer.finish(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close("complete" if kind is None else "interrupted")

    @contextlib.contextmanager
    def _never_raising(self, what: str) -> Iterator[None]:
        """Turn any error into a warning: none of ours stops a training."""
        try:
            yield
        except Exception as error:
            self._warn(what, f"{error}", getattr(error, "hint", ""))

    def _warn(self, what: str, why: str, hint: str = "") -> None:
        """Warn of what the file lacks, once for each reason, whatever its numbers."""
        if (kind := re.sub(r"\d[\d.,]*", "", why)) not in self._warned:
            self._warned.add(kind)
            hint = f" ({hint})" if hint else ""
            warnings.warn(f"{self.path} lacks {what}: {why}{hint}; said once, and the training goes on", stacklevel=2)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Writer]:
        """The open file, for one call at a time; other threads wait.

        Raises ArgumentError once it is closed, in a child process, and in a signal handler that interrupts a call.
        """
        # First, as a child may be forked while another thread has the lock.
        if self._owner != os.getpid():
            raise ArgumentError(
                f"the recorder is that of process {self._owner}, not of its child {os.getpid()}",
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
                "the recorder was called while it records, by a signal handler or the model",
                "let the handler set a flag, and record between two steps of the training",
            )

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Metrics by the names that they have in the file; others are left out with a warning."""
        row = {}
        # All of them first: a dict may hold itself.
        for name, value in [*_flat(values)]:
            with self._never_raising(f"metric {name!s:.60}"):
                if name not in self._names:
                    tables(self._forms, [name], self._buffer_forms)
                row[name] = _number(value)
        return row

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters; tied ones once, under their first name."""
        plain = plain_names(every_name(self._model))
        return {plain[name]: parameter for name, parameter in self._model.named_parameters()}

    def _buffers(self) -> dict[str, Tensor]:
        """The buffers of the model's state."""
        plain = plain_names(every_name(self._model))
        return {plain[name]: buffer for name, buffer in buffers(self._model).items()}

    def _created(
        self, metrics: list[str], blocks: Blocks | None, pairs: Pairs | None, seed: int | None, fsync: bool
    ) -> Writer:
        cls, plain = type(self._model), plain_names(every_name(self._model))
        aliases = {plain[name]: plain[first] for name, first in first_names(self._model).items()}
        name, seed = f"{cls.__module__}.{cls.__qualname__}", None if seed is None else _whole(seed, "seed")
        described = config(self._forms, name, blocks, pairs, aliases, seed)
        attrs = {"run_id": uuid.uuid4().hex, "config": json.dumps(described), "seed": described["seed"]}
        rooms = [(table, self._first_room()[table.group]) for table in self._tables(metrics)]
        require_room(self.path, rooms, self._scales())
        self._names = metrics
        return Writer.create(self.path, {**attrs, **self._attrs()}, rooms, self._scales(), fsync=fsync)

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
            ours, theirs = self._forms | self._buffer_forms, forms_of(reader) | forms_of(reader, BUFFERS)
            if wrong := difference(ours, theirs):
                raise ArgumentError(
                    f"{self.path} holds another model: {wrong}", "record another model into a file of its own"
                )
            lacking = {OPTIMIZER, "moments"} & reader.tables.keys() - {table.group for table in self._tables(())}
            if lacking:
                what = "an optimiser's state" if OPTIMIZER in lacking else "the second moments of Adam"
                raise ArgumentError(f"{self.path} holds {what}", "resume it with the same kind: optimizer=...")
            self._names = list(dict.fromkeys([*(f.name for f in reader.layout["metrics"].fields), *metrics]))
            before = reader.config
            blocks = before.get("blocks", {}) if blocks is None else blocks
            pairs = before.get("pairs", []) if pairs is None else pairs
            described = before | declarations(self._forms, blocks, pairs)
            described |= {} if seed is None else {"seed": _whole(seed, "seed")}
        attrs = {"config": json.dumps(described), "seed": described["seed"], **self._attrs()}
        layout = self._tables(self._names)
        return Writer.extend(self.path, attrs, self._first_room(), layout, self._scales(), fsync=fsync)

    def _first_room(self) -> dict[str, int]:
        """Rows of each table that a file just opened can take; where checkpoints are large, few."""
        copies = 2 if self._state and self._state.has_moments else 1
        forms = (*copies * [*self._forms.values()], *self._buffer_forms.values())
        size = sum(torch.Size(f.shape).numel() * int(f.dtype[1]) for f in forms)
        usual = min(max(_LEAST, _BYTES // max(1, size)), _MOST)
        rows = self._expected or usual
        return {**dict.fromkeys(("checkpoints", *_BESIDE), rows), "metrics": _METRICS}

    def _tables(self, metrics: Iterable[str]) -> tuple[Table, ...]:
        """The tables of the file, those of the optimiser's state among them."""
        *state, metric_table = tables(self._forms, metrics, self._buffer_forms)
        return (*state, *(tables_of(state[0], self._state.has_moments) if self._state else ()), metric_table)

    def _scales(self) -> Scales:
        """The axes of the file."""
        own = scales(self._forms | self._buffer_forms)
        return {**own, **({PARAMETER: list(self._forms)} if self._state else {})}

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

    def _with_room(self, writer: Writer, group: str) -> Writer:
        """Double a table that is full, so that a row is copied about once however many there are."""
        if not writer.room(group):
            rows = len(writer.labels(group))
            if rows == ROWS:
                raise FileError(f"{group} holds {ROWS:,} rows, the most of a file", "record fewer steps")
            more = min(rows, ROWS - rows)
            groups = (group, *_BESIDE) if group == "checkpoints" else (group,)
            self._writer = writer = writer.grow(dict.fromkeys(groups, more))
        return writer


_BESIDE = (BUFFERS, OPTIMIZER, "moments")
"""Tables with a row a checkpoint, where a file has them."""


def _forms(parameters: Mapping[str, Tensor]) -> dict[str, Form]:
    return {name: form(name, parameter) for name, parameter in parameters.items()}


def _whole(number: Any, what: str = "step") -> int:
    try:
        integer = operator.index(number)
    except TypeError:
        integer = -1
    if not 0 <= integer < 1 << 53:
        raise ArgumentError(f"a {what} cannot be {number!r}", "give a whole number from 0 to 2^53")
    return integer


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers by name, those of dicts inside under both names."""
    for key, value in values.items():
        name = before + re.sub(r"[/\s]", "_", str(key))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}_")
        else:
            yield name, value


def _number(value: Any) -> float:
    # Tensors and arrays of any library have it; those of one number return that.
    item = getattr(value, "item", None)
    try:
        number = item() if callable(item) else value
        if isinstance(number, str | bytes):
            raise TypeError
        return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(f"it is {str(value)[:60]!r}, not a number", "give one number for each name") from error
