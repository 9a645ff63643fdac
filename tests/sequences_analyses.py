"""Random sequences of `hessian`, `critical`, `report` and `sweep`, killed or stopped by Ctrl-C at any instant.

`torture` does it in processes of their own; the tests do the same to `hessian` and `critical` in theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from faults import Tally
from tqdm import tqdm

from landscape.cli import main as cli
from landscape.config import TrainConfig
from landscape.storage import schema_hessian
from landscape.storage.folders import RECORD
from landscape.storage.hessians import HessianReader, HessianWriter
from landscape.training.loop import train

Choose = Callable[[Sequence[Any]], Any]
Told = tuple[str, int, str]
"""File, step and block of something measured; of a step of a search the number of steps so far, and nothing."""
PATIENCE = 180.0
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["landscape.analysis.critical", "landscape.report.page", "landscape.sweep.run"])
EVENTS = ("pwrite", "replace", "rename", "posix_fallocate", "unlink", "link", "mkdir")
TRACKED = ("subspace_overlap", "previous_rank", "previous_overlap", "crossings")
BY_BLOCK = {field.name for field in schema_hessian.ROOT.fields if field.dims[:1] == ("block",)}
BY_PAIR = {field.name for field in schema_hessian.ROOT.fields if field.dims == ("block", "other_block")}
STEPS, BLOCKS = ("0", "4", "8"), ("E", "W", "E,W")
TINY = TrainConfig(
    p=5, tokens=2, embed_dim=2, hidden=4, batch_size=8, train_fraction=0.6, steps=8, checkpoint_every=2,
    metrics_every=4, activation="tanh", weight_decay=0.03, device="cpu",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fault:
    """When a command is stopped and how: at its so manieth change of a file, or after so many seconds of work."""

    kill: bool
    at: int = 0
    after: float | None = None


@dataclasses.dataclass
class Outcome:
    """Exit code (-9: killed), what was printed, and what was acknowledged."""

    code: int
    said: str
    told: list[Told]


class Truth:
    """A run and its undisturbed analyses, made once."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run.h5"
        train(TINY, self.run, quiet=True)
        self.hessian = {k: self._of(hessian(self.run, folder / f"k{k}.h5", STEPS, BLOCKS, k)) for k in ("2", "3")}
        self.critical = self._of(critical(self.run, folder / "c.h5", BLOCKS))

    @staticmethod
    def _of(argv: list[str]) -> dict[tuple[Any, ...], bytes]:
        with _quietly(io.StringIO()):
            assert cli.run(argv) == 0
        return everything(Path(argv[4]))

    @functools.cached_property
    def sweep(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            with _quietly(io.StringIO()):
                assert cli.run(Sweep.command_of(Path(folder))) == 0
            return {p.name: everything(p) for p in Path(folder).rglob("*.hessian*.h5")}


def hessian(run: Path, out: Path, steps: Sequence[str], blocks: Sequence[str], k: str, *more: str) -> list[str]:
    return ["hessian", "--ckpt", str(run), "--out", str(out), "--steps", ",".join(steps), "--k", k, "--device", "cpu",
            "--quiet", *more, "--blocks", *blocks]  # fmt: skip


def critical(run: Path, out: Path, blocks: Sequence[str], *more: str) -> list[str]:
    return ["critical", "--ckpt", str(run), "--out", str(out), "--step", "8", "--k", "2", "--device", "cpu", "--quiet",
            *more, "--blocks", *blocks]  # fmt: skip


def everything(path: Path) -> dict[tuple[Any, ...], bytes]:
    """Every number but wall times, by step, group, dataset and block; two blocks where it is of two."""
    reader, found = HessianReader(path), {}
    for step in reader.steps:
        for group, row in reader.rows(step).items():
            for name, value in row.items():
                array = np.asarray(value)
                if name == "seconds":
                    continue
                if group != "/" or name not in BY_BLOCK:
                    found[step, group, name] = array.tobytes()
                    continue
                for block, part in zip(reader.blocks, array, strict=True):
                    if name not in BY_PAIR:
                        found[step, group, name, block] = part.tobytes()
                        continue
                    for other, number in zip(reader.blocks, part, strict=True):
                        found[step, group, name, block, other] = number.tobytes()
    return found


# --- what is done to a folder ---------------------------------------------------------------------------------


class Hessian:
    """Analyses of one run that grow, in one file."""

    def __init__(self, folder: Path, truth: Truth) -> None:
        self.run, self.out, self.truth = Path(shutil.copy(truth.run, folder / "run.h5")), folder / "h.h5", truth

    def command(self, choose: Choose) -> list[str]:
        steps = [s for s in STEPS if choose((True, False))] or [choose(STEPS)]
        blocks = [b for b in BLOCKS if choose((True, False))] or [choose(BLOCKS)]
        more = choose(((), (), (), ("--overwrite",)))
        return hessian(self.run, self.out, steps, blocks, choose(("2", "2", "2", "3")), *more)

    def judge(self, counts: Tally, argv: list[str], outcome: Outcome, acknowledged: set[Told]) -> None:
        """What was acknowledged is there, and what is there is true; --overwrite may have replaced the file."""
        refused = outcome.code == 1 and "it was made with k" in outcome.said
        if not (refused or outcome.code in (0, 3, 130, -9)) or "Traceback" in outcome.said:
            counts.complain("wrong", f"{argv} ended with {outcome.code}: {outcome.said}")
        if "--overwrite" in argv and (not self.out.exists() or self.k == argv[argv.index("--k") + 1] != self.before):
            acknowledged.clear()
            acknowledged.update(outcome.told)
        self._compare(counts, acknowledged)

    def begin(self) -> None:
        """Note what is there before a command."""
        self.before = self.k

    @property
    def k(self) -> str:
        return str(HessianReader(self.out).config["k"]) if self.out.exists() else ""

    def _compare(self, counts: Tally, acknowledged: set[Told]) -> None:
        if not self.out.exists():
            if acknowledged:
                counts.complain("lost", "the file")
            return
        reader, found = HessianReader(self.out), everything(self.out)
        there = {(self.out.name, step, block) for step in reader.steps for block in reader.measured(step)}
        for gone in acknowledged - there:
            counts.complain("lost", f"{gone}")
        truth = self.truth.hessian[self.k]
        for key, value in found.items():
            # What rows and blocks make together depends on which there are.
            alone = key[1] == "spectrum" or len(key) == 4 and key[2] not in TRACKED
            block = key[2] if key[1] == "spectrum" else key[-1]
            if alone and (self.out.name, key[0], block) in there and truth[key] != value:
                counts.complain("torn", f"{key}")

    def settle(self, counts: Tally, run: Callable[[list[str], Fault | None], Outcome]) -> None:
        k = self.k or "2"
        outcome = run(hessian(self.run, self.out, STEPS, BLOCKS, k), None)
        if outcome.code not in (0, 3):
            counts.complain("wrong", f"{outcome.code}: {outcome.said}")
        elif everything(self.out) != self.truth.hessian[k]:
            counts.complain("wrong", "the end is not that of a fresh analysis")


class Critical:
    """A search that is stopped, resumed, given more products and more blocks."""

    def __init__(self, folder: Path, truth: Truth) -> None:
        self.run, self.out, self.truth = Path(shutil.copy(truth.run, folder / "run.h5")), folder / "c.h5", truth

    def begin(self) -> None:
        pass

    def command(self, choose: Choose) -> list[str]:
        blocks = [b for b in BLOCKS if choose((True, False))] or [choose(BLOCKS)]
        return critical(self.run, self.out, blocks, "--resume", "--search-products", choose(("50", "300", "60000")))

    def judge(self, counts: Tally, argv: list[str], outcome: Outcome, acknowledged: set[Told]) -> None:
        if outcome.code not in (0, 3, 130, -9) or "Traceback" in outcome.said:
            counts.complain("wrong", f"{argv} ended with {outcome.code}: {outcome.said}")
        if not self.out.exists():
            if acknowledged:
                counts.complain("lost", "the file")
            return
        reader = HessianReader(self.out)
        there = {(self.out.name, step, block) for step in reader.steps for block in reader.measured(step)}
        steps = max((number for _, number, block in acknowledged if not block), default=-1)
        if steps > int(reader.search.get("iterations", -1)):
            counts.complain("lost", f"step {steps} of the search")
        for gone in {told for told in acknowledged if told[2]} - there:
            counts.complain("lost", f"{gone}")

    def settle(self, counts: Tally, run: Callable[[list[str], Fault | None], Outcome]) -> None:
        outcome = run(critical(self.run, self.out, BLOCKS, "--resume"), None)
        if outcome.code not in (0, 3):
            counts.complain("wrong", f"{outcome.code}: {outcome.said}")
        elif everything(self.out) != self.truth.critical:
            counts.complain("wrong", "the end is not that of an undisturbed search")


class Report:
    """Reports over each other, in a folder that somebody has put a file into."""

    def __init__(self, folder: Path, truth: Truth) -> None:
        self.run, self.out = Path(shutil.copy(truth.run, folder / "run.h5")), folder / "r"
        self.stands = False

    def begin(self) -> None:
        pass

    def command(self, choose: Choose) -> list[str]:
        return ["report", str(self.run), "--out", str(self.out), "--quiet", "--overwrite"]

    def judge(self, counts: Tally, argv: list[str], outcome: Outcome, acknowledged: set[Told]) -> None:
        if outcome.code not in (0, 130, -9) or "Traceback" in outcome.said:
            counts.complain("wrong", f"{argv} ended with {outcome.code}: {outcome.said}")
        if self.stands and not (self.out / "notes.md").exists():
            counts.complain("lost", "somebody's file")
        if self.stands or self.out.exists():
            recorded = json.loads((self.out / RECORD).read_text())["files"]
            digests = {n: hashlib.sha256((self.out / n).read_bytes()).hexdigest() for n in recorded}
            if digests != recorded or "report.html" not in recorded:
                counts.complain("torn", "the report")
            (self.out / "notes.md").write_text("mine")
            self.stands = True

    def settle(self, counts: Tally, run: Callable[[list[str], Fault | None], Outcome]) -> None:
        self.judge(counts, [], run(self.command(random.choice), None), set())


class Sweep:
    """A sweep with checkpoints and refined points, on two workers."""

    def __init__(self, folder: Path, truth: Truth) -> None:
        self.folder, self.truth = folder, truth

    @staticmethod
    def command_of(folder: Path) -> list[str]:
        names = {"p", "tokens", "embed_dim", "hidden", "batch_size", "train_fraction", "steps", "checkpoint_every",
                 "metrics_every", "activation", "weight_decay", "device"}  # fmt: skip
        common = {"k": 2, "device": "cpu", "objective": "regularised"}
        sweep = {
            "train": {name: getattr(TINY, name) for name in names},
            "seeds": [0, 1],
            "hessian": [
                {"steps": "0,8", "blocks": ["E", "E,W"], **common},
                {"name": "saddle", "refine_from": 8, "blocks": ["E,W"], **common},
            ],
        }
        (folder / "in.json").write_text(json.dumps(sweep))
        return ["sweep", "--config", str(folder / "in.json"), "--out", str(folder), "--jobs", "2", "--quiet"]

    def begin(self) -> None:
        pass

    def command(self, choose: Choose) -> list[str]:
        return self.command_of(self.folder)

    def judge(self, counts: Tally, argv: list[str], outcome: Outcome, acknowledged: set[Told]) -> None:
        if outcome.code not in (0, 3, 130, -9) or "Traceback" in outcome.said:
            counts.complain("wrong", f"{argv} ended with {outcome.code}: {outcome.said}")

    def settle(self, counts: Tally, run: Callable[[list[str], Fault | None], Outcome]) -> None:
        # Workers of a killed sweep end on their own.
        time.sleep(0.5)
        self.judge(counts, [], run(self.command_of(self.folder), None), set())
        if {p.name: everything(p) for p in self.folder.rglob("*.hessian*.h5")} != self.truth.sweep:
            counts.complain("wrong", "the sweep is not the undisturbed one")


# --- how it is stopped ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def acknowledging(tell: Callable[[Told], None]) -> Iterator[None]:
    """Tell of every measured block and every step of a search once the writer's method has returned."""
    append, flush, save = HessianWriter.append, HessianWriter.flush, HessianWriter.save_search

    def measured(self: HessianWriter, step: int, rows: Any) -> None:
        for block, norm in zip(self._made[2].sizes, rows["/"]["operator_norm"], strict=True):
            if not np.isnan(norm):
                tell((self.path.name, step, block))

    def tell_append(self: HessianWriter, step: int, rows: Any) -> None:
        append(self, step, rows)
        measured(self, step, rows)

    def tell_flush(self: HessianWriter) -> None:
        replaced = dict(self._replaced)
        flush(self)
        for step, rows in replaced.items():
            measured(self, step, rows)

    def tell_save(self: HessianWriter, state: Any) -> None:
        save(self, state)
        tell((self.path.name, int(state["iterations"]), ""))

    methods = {"append": tell_append, "flush": tell_flush, "save_search": tell_save}
    try:
        for name, method in methods.items():
            setattr(HessianWriter, name, method)
        yield
    finally:
        HessianWriter.append, HessianWriter.flush, HessianWriter.save_search = append, flush, save  # type: ignore[method-assign]


@contextlib.contextmanager
def stopping(at: int, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` before the so manieth change of a file, or in the midst of it if it is a write."""
    real, count = {name: getattr(os, name) for name in EVENTS}, 0

    def watched(name: str) -> Callable[..., Any]:
        def change(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                if name == "pwrite":
                    real[name](args[0], args[1][: len(args[1]) // 2], args[2])
                stop()
            return real[name](*args, **more)

        return change

    try:
        for name in EVENTS:
            setattr(os, name, watched(name))
        yield
    finally:
        for name in EVENTS:
            setattr(os, name, real[name])


@contextlib.contextmanager
def _quietly(said: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        yield


class Killed(BaseException):
    """Ends a command in this process."""


def here(folder: Path, argv: list[str], fault: Fault | None) -> Outcome:
    """Run a command in this process. What a killed one cleans up is put back: it would not have come to that."""
    told: list[Told] = []
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as spare:
        at_death = Path(spare) / "folder"

        def stop() -> None:
            if fault and not fault.kill:
                raise KeyboardInterrupt
            shutil.copytree(folder, at_death)
            raise Killed

        try:
            with _quietly(said), acknowledging(told.append), stopping(fault.at if fault else 0, stop):
                code = cli.run(argv)
        except Killed:
            code = -9
            shutil.rmtree(folder)
            shutil.copytree(at_death, folder)
    return Outcome(code, said.getvalue(), told)


def apart(folder: Path, argv: list[str], fault: Fault | None) -> Outcome:
    """Run a command in a process of its own, which gets SIGKILL or Ctrl-C."""
    mine, theirs = SERVER.Pipe(duplex=False)
    child = SERVER.Process(target=_child, args=(argv, fault, theirs))
    child.start()
    theirs.close()
    told: list[Told] = []
    said, started = "", time.monotonic()
    pending: float | None = None
    with contextlib.suppress(EOFError):
        while True:
            left = (PATIENCE if pending is None else pending) - (time.monotonic() - started)
            if not mine.poll(max(left, 0)):
                if pending is None or fault is None or child.pid is None:
                    raise TimeoutError(f"{argv} did nothing for {PATIENCE} s")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL if fault.kill else signal.SIGINT)
                pending = None
                continue
            message = mine.recv()
            if message == "started":
                # Not before: a signal at Python's own start tells nothing of the command.
                started, pending = time.monotonic(), fault.after if fault and not fault.at else None
            elif isinstance(message, str):
                said = message
            else:
                told.append(message)
    child.join()
    return Outcome(child.exitcode or 0, said, told)


def _child(argv: list[str], fault: Fault | None, pipe: Connection) -> None:
    # Ctrl-C within the import of a compiled module is an ImportError of its own.
    importlib.import_module("isal.isal_zlib")
    tqdm.set_lock(threading.RLock())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said, code = io.StringIO(), 70

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGKILL if fault and fault.kill else signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt):
        try:
            with _quietly(said), acknowledging(pipe.send), stopping(fault.at if fault else 0, stop):
                pipe.send("started")
                code = cli.run(argv)
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            said.write(traceback.format_exc())
    # Of a command that has ended, Ctrl-C changes nothing.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send(said.getvalue())
    pipe.close()
    sys.exit(code)


def one(
    kind: Any,
    truth: Truth,
    counts: Tally,
    choose: Choose,
    run_in: Callable[[Path, list[str], Fault | None], Outcome],
    faults: Callable[[], Fault | None],
    most: int = 5,
) -> None:
    """One sequence in a folder of its own, and what became of it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        subject, acknowledged = kind(folder, truth), set[Told]()
        for _ in range(choose(range(1, most + 1))):
            argv = subject.command(choose)
            subject.begin()
            outcome = run_in(folder, argv, faults())
            acknowledged |= set(outcome.told)
            counts.tried += 1
            counts.acknowledged += len(outcome.told)
            subject.judge(counts, argv, outcome, acknowledged)
        subject.settle(counts, functools.partial(run_in, folder))
        left = [p.name for p in folder.rglob("*") if p.name.endswith((".lock", ".tmp", ".old"))]
        if left:
            counts.complain("wrong", f"left over: {left}")
    counts.sequences += 1


def torture(count: int, budget: float, seed: int = 0) -> list[Tally]:
    """Run `count` sequences, or as many as `budget` seconds allow, in processes that are killed; a tally by command."""
    rng, deadline = random.Random(seed), time.monotonic() + budget
    kinds = {"hessian": Hessian, "critical": Critical, "report": Report, "sweep": Sweep}
    length = {"hessian": 0.5, "critical": 1.0, "report": 5.0, "sweep": 6.0}
    found = {name: Tally(f"sequences: {name}") for name in kinds}

    with tempfile.TemporaryDirectory() as folder:
        truth = Truth(Path(folder))
        for _ in range(count):
            if time.monotonic() >= deadline:
                break
            (name,) = rng.choices(list(kinds), (10, 8, 1, 1))

            def fault(name: str = name) -> Fault | None:
                if rng.random() < 0.2:
                    return None
                if rng.random() < 0.5 and name != "sweep":
                    return Fault(rng.random() < 0.7, at=round(2 ** rng.uniform(0, 10)))
                return Fault(rng.random() < 0.7, after=rng.uniform(0, length[name]))

            one(kinds[name], truth, found[name], rng.choice, apart, fault)
    return list(found.values())
