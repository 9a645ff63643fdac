"""Faults done to real runs and analyses, and what they cost: the tables that the tests and `make torture` print."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from helpers.apart import PATIENCE, Kill, Outcome, run_apart
from helpers.hessians import HessianReader, analyse
from tqdm import tqdm

from landscape.config import HessianConfig, TrainConfig
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.measure.analysis import Analysis
from landscape.training.loop import train

PAGE = 4096
RUN = TrainConfig(
    p=7, tokens=2, embed_dim=4, hidden=24, batch_size=16, train_fraction=0.6, steps=40, checkpoint_every=4,
    checkpoint_log=0, metrics_every=5, device="cpu",
)  # fmt: skip
RUN_FLAGS = [
    "--p", "7", "--tokens", "2", "--embed-dim", "4", "--hidden", "24", "--batch-size", "16", "--train-fraction",
    "0.6", "--steps", "40", "--checkpoint-every", "4", "--checkpoint-log", "0", "--metrics-every", "5",
    "--device", "cpu", "--lr", str(RUN.lr), "--weight-decay", str(RUN.weight_decay),
]  # fmt: skip
ANALYSIS = HessianConfig(steps="all", blocks=("E", "E,W"), k=3, device="cpu")


@dataclasses.dataclass
class Tally:
    """Of one kind of fault: how often it was tried, on how many rows that had been acknowledged, and what it cost.

    lost: acknowledged rows that were not served afterwards; torn: rows served that differ from the undisturbed file;
    wrong: finished files that differ from it after resuming, or that did not open.
    """

    fault: str
    tried: int = 0
    acknowledged: int = 0
    lost: int = 0
    torn: int = 0
    wrong: int = 0
    sequences: int = 0

    @property
    def harm(self) -> tuple[int, int, int]:
        return self.lost, self.torn, self.wrong


def undisturbed(folder: Path) -> None:
    """A run and its analysis without any fault."""
    train(RUN, folder / "whole.h5", quiet=True)
    analyse(folder / "whole.h5", ANALYSIS, quiet=True)


class Undisturbed:
    """What `undisturbed` has made in a folder."""

    def __init__(self, folder: Path) -> None:
        self.run, self.hessian = folder / "whole.h5", folder / "whole.hessian.h5"
        self.checkpoints, self.rows = served_run(self.run), served_hessian(self.hessian)


def served_run(path: Path) -> dict[int, bytes]:
    """The bytes of every checkpoint that our reader serves, by step."""
    with RunReader(path) as reader:
        return {s: b"".join(a.tobytes() for a in reader.checkpoint(s).values()) for s in reader.steps}


def served_hessian(path: Path) -> dict[int, bytes]:
    """The bytes of every analysed step that our reader serves; wall times are left out."""
    reader = HessianReader(path)

    def pack(step: int) -> bytes:
        parts = [reader.row(step), reader.spectra(step), reader.densities(step)]
        return b"".join(np.asarray(v).tobytes() for part in parts for n, v in sorted(part.items()) if n != "seconds")

    return {step: pack(step) for step in reader.steps}


def everything(path: Path) -> dict[str, bytes]:
    """All committed rows of all tables as an outsider reads them, but for wall times and the slots' order."""
    contents: dict[str, bytes] = {}
    with h5py.File(path, "r") as file:
        for group in ("checkpoints", "metrics", "tokens", "moments"):
            if group in file:
                row = "metric_step" if group == "metrics" else "step"
                rows = np.flatnonzero(file[group]["crc32"][()] >> 32 == 1)
                for name, data in file[group].items():
                    if row in data.dims[0][0].name if data.ndim and not data.is_scale else name == row:
                        contents[f"{group}/{name}"] = data[()][rows].tobytes()
        for name, data in file["data"].items():
            contents[f"data/{name}"] = data[()].tobytes()
    with RunReader(path) as reader:
        contents |= {f"resume/{n}": np.asarray(v).tobytes() for n, v in reader.resume_state().items()}
        contents["status"] = str(reader.attrs["status"]).encode()
    return contents


def judge(tally: Tally, served: dict[int, bytes], acknowledged: set[int], truth: dict[int, bytes]) -> None:
    """Count what the fault did to the rows."""
    tally.acknowledged += len(acknowledged)
    tally.lost += len(acknowledged - served.keys())
    tally.torn += sum(served[step] != truth.get(step) for step in served)


# --- kills ----------------------------------------------------------------------------------------------------


def kill_training(folder: Path, truth: Undisturbed, kills: int, seed: int = 0, fsync: bool = False) -> Tally:
    """SIGKILL `landscape train` at random instants, open, compare, resume (killed again now and then), compare."""
    path = folder / "killed.h5"
    argv = ["train", "--out", str(path), *RUN_FLAGS, "--quiet", "--resume", *(["--fsync"] if fsync else [])]
    tally = Tally("SIGKILL of `landscape train`" + (" --fsync" if fsync else ""))
    whole = everything(truth.run)
    return _kill(tally, path, argv, kills, seed, lambda: served_run(path), truth.checkpoints,
                 lambda: everything(path) == whole)  # fmt: skip


def kill_analysis(folder: Path, truth: Undisturbed, kills: int, seed: int = 0) -> Tally:
    """The same with `landscape hessian`."""
    run, path = folder / "analysed.h5", folder / "killed.hessian.h5"
    shutil.copy(truth.run, run)
    argv = ["hessian", str(run), "--out", str(path), "--quiet", "--steps", "all", "--k", "3",
            "--device", "cpu", "--blocks", "E", "E,W"]  # fmt: skip
    return _kill(Tally("SIGKILL of `landscape hessian`"), path, argv, kills, seed, lambda: served_hessian(path),
                 truth.rows, lambda: served_hessian(path) == truth.rows)  # fmt: skip


def _kill(
    tally: Tally,
    path: Path,
    argv: list[str],
    kills: int,
    seed: int,
    served: Callable[[], dict[int, bytes]],
    truth: dict[int, bytes],
    is_whole: Callable[[], bool],
) -> Tally:
    rng = random.Random(seed)
    length = PATIENCE
    for _ in range(3):
        outcome = run_apart(path.parent, argv)
        assert outcome.code == 0, outcome.said
        path.unlink()
        length = min(length, outcome.seconds)
    bar = tqdm(total=kills, desc=tally.fault, disable=not sys.stderr.isatty(), file=sys.stderr)
    acknowledged: set[int] = set()
    # On a busy machine all of few kills may come before the first row.
    while tally.tried < kills or (not tally.acknowledged and tally.tried < 20 * kills):
        outcome = run_apart(path.parent, argv, Kill(after=rng.uniform(0, 1.1 * length)))
        acknowledged |= steps_of(outcome)
        if outcome.code < 0:
            tally.tried += 1
            bar.update()
            if path.exists():
                judge(tally, served(), acknowledged, truth)
            else:
                tally.lost += len(acknowledged)
            # Now and then another kill follows before the file is finished.
            if rng.random() < 0.3 and tally.tried < kills:
                continue
            outcome = run_apart(path.parent, argv)
        leftovers = [p for p in path.parent.iterdir() if path.name in p.name and p != path]
        tally.wrong += outcome.code != 0 or not is_whole() or bool(leftovers)
        path.unlink()
        acknowledged = set()
    return tally


def steps_of(outcome: Outcome) -> set[int]:
    """The steps that a command acknowledged, of an analysis with any block: its row has all of them."""
    return {label if isinstance(label, int) else label[0] for _, label, _ in outcome.acknowledged}


# --- crashes at every write -----------------------------------------------------------------------------------


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[Any, ...]]]:
    """Every write, sync and renaming that landscape's writers do inside the block, in order.

    What has become of a new file by the time it is renamed into place is one event: until then it has no name.
    """
    log: list[tuple[Any, ...]] = []
    real_write, real_replace, real_sync = os.pwrite, os.replace, os.fdatasync

    def write(handle: int, data: Any, at: int) -> int:
        log.append(("write", Path(os.readlink(f"/proc/self/fd/{handle}")).name, at, bytes(data)))
        return real_write(handle, data, at)

    def replace(source: Path, target: Path) -> None:
        log.append(("rename", target.name, source.read_bytes()))
        real_replace(source, target)

    def sync(handle: int) -> None:
        log.append(("sync",))
        real_sync(handle)

    os.pwrite, os.replace, os.fdatasync = write, replace, sync  # type: ignore[assignment]
    try:
        yield log
    finally:
        os.pwrite, os.replace, os.fdatasync = real_write, real_replace, real_sync


Files = dict[str, bytearray]


def apply(files: Files, event: tuple[Any, ...], cut: int | None = None) -> None:
    """What an event does to the files; of a write, its first `cut` bytes alone."""
    match event:
        case ("write", name, at, data):
            if name in files:
                part = data[:cut]
                files[name][at : at + len(part)] = part
        case ("rename", name, content):
            files[name] = bytearray(content)


def cuts(event: tuple[Any, ...], rng: random.Random) -> list[int]:
    """Where a write can tear: nowhere, at a page of the file, in its middle."""
    if event[0] == "rename":
        return [0]
    _, _, at, data = event
    pages = [p - at for p in range((at // PAGE + 1) * PAGE, at + len(data), PAGE)]
    return sorted({len(data), len(data) // 2, *([rng.choice(pages)] if pages else [])})


def crash_training(folder: Path, truth: Undisturbed, stride: int, resume_every: int, seed: int = 0) -> Tally:
    """A crash at every `stride`-th write of `landscape train`, whole, page-torn and half-torn; some are resumed."""
    path, whole = folder / "crashed.h5", everything(truth.run)

    def is_whole() -> bool:
        train(RUN, path, resume=True, quiet=True)
        return everything(path) == whole

    log = _log(lambda: train(RUN, path, quiet=True), Writer, "append", lambda _, step, *__: [step])
    return _crash(Tally("crash at a write of `landscape train`"), path, log, lambda: served_run(path),
                  truth.checkpoints, is_whole, stride, resume_every, seed)  # fmt: skip


def crash_analysis(folder: Path, truth: Undisturbed, stride: int, resume_every: int, seed: int = 0) -> Tally:
    """The same with `landscape hessian`, whose file is replaced whole: a crash leaves half of the next beside it."""
    path = folder / "crashed.hessian.h5"
    draft = path.with_name(f".{path.name}.1.landscape.tmp")

    def is_whole() -> bool:
        draft.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        analyse(truth.run, ANALYSIS, path, quiet=True)
        return served_hessian(path) == truth.rows and not draft.exists()

    log = _log(
        lambda: analyse(truth.run, ANALYSIS, path, quiet=True), Analysis, "write", lambda analysis, _: analysis.steps
    )
    return _crash(Tally("crash at a write of `landscape hessian`"), path, log, lambda: served_hessian(path),
                  truth.rows, is_whole, stride, resume_every, seed)  # fmt: skip


def lose_power(folder: Path, truth: Undisturbed, tries: int, seed: int = 0) -> Tally:
    """With --fsync: of the writes since the last sync any subset has reached the disk, each whole or torn."""
    path, rng = folder / "unplugged.h5", random.Random(seed)
    log = _log(lambda: train(RUN, path, quiet=True, fsync=True), Writer, "append", lambda _, step, *__: [step])
    tally = Tally("power lost during `landscape train --fsync`")
    first = next(i for i, event in enumerate(log) if event[0] == "rename")
    instants = sorted(rng.choices(range(first + 1, len(log)), k=tries))
    files: Files = {}
    acknowledged: set[int] = set()
    pending: list[tuple[Any, ...]] = []
    for i, event in enumerate(log):
        if event[0] in ("sync", "rename"):
            for earlier in pending:
                apply(files, earlier)
            pending = []
            apply(files, event)
        elif event[0] == "ack":
            acknowledged.add(event[1])
        else:
            pending.append(event)
        for _ in range(instants.count(i)):
            disk = {name: bytearray(content) for name, content in files.items()}
            for written in pending:
                if rng.random() < 0.5:
                    apply(disk, written, rng.choice(cuts(written, rng)))
            path.write_bytes(disk[path.name])
            tally.tried += 1
            judge(tally, served_run(path), acknowledged, truth.checkpoints)
    return tally


def _log(
    work: Callable[[], Any], writer: type, method: str, steps: Callable[..., Sequence[int]]
) -> list[tuple[Any, ...]]:
    """The events of some work, with ("ack", step) where a method of a writer has committed these steps."""
    original = getattr(writer, method)
    with recorded() as log:

        def acknowledging(*args: Any, **more: Any) -> None:
            original(*args, **more)
            log.extend(("ack", step) for step in steps(*args))

        setattr(writer, method, acknowledging)
        try:
            work()
        finally:
            setattr(writer, method, original)
    return log


def _crash(
    tally: Tally,
    path: Path,
    log: list[tuple[Any, ...]],
    served: Callable[[], dict[int, bytes]],
    truth: dict[int, bytes],
    is_whole: Callable[[], bool],
    stride: int,
    resume_every: int,
    seed: int,
) -> Tally:
    rng, files = random.Random(seed), Files()
    acknowledged: set[int] = set()
    writes = [i for i, event in enumerate(log) if event[0] != "ack" and event[-1] and event[1] == path.name]
    chosen = set(writes[::stride])
    for i, event in enumerate(tqdm(log, desc=tally.fault, disable=not sys.stderr.isatty(), file=sys.stderr)):
        if i in chosen:
            for cut in cuts(event, rng):
                disk: Files = {path.name: bytearray(files.get(path.name, b""))}
                apply(disk, event, cut)
                path.write_bytes(disk[path.name])
                tally.tried += 1
                judge(tally, served(), acknowledged, truth)
                if tally.tried % resume_every == 0:
                    tally.wrong += not is_whole()
        apply(files, event)
        if event[0] == "ack":
            acknowledged.add(event[1])
    # The replay of everything is the file itself: nothing was written past the record.
    path.write_bytes(files[path.name])
    tally.wrong += served() != truth
    return tally
