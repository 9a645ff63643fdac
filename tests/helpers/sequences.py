"""Random sequences of commands and kills: what each kind does to its folder, and what must hold after every command.

A kind is a class with `@register`, in a module that torture.py names. It draws commands; here they are run, stopped by
SIGKILL or Ctrl-C, and judged: every acknowledged row is read back with our reader and with plain h5py, of runs bit for
bit, no stranger's file is changed, and nothing is left over once the last command has ended.
"""

from __future__ import annotations

import abc
import dataclasses
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from helpers.apart import MEMORY, SERVER, Kill, Label, Outcome, Row, Runner, run_apart
from helpers.faults import Tally
from helpers.hessians import HessianReader

from landscape.errors import LandscapeError
from landscape.files import schema
from landscape.files.hdf5 import file_schema
from landscape.files.rows import WRITTEN
from landscape.files.runs import RunReader

Choose = Callable[[Sequence[Any]], Any]
"""Takes one of some values: `random.Random.choice`, or a draw of Hypothesis."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line, and how it may end.

    codes: its exit codes; refusals: a pattern of the errors that are allowed too; replaces: files whose rows it is
    asked to replace.
    """

    argv: list[str]
    codes: tuple[int, ...] = (0,)
    refusals: str = "(?!)"
    replaces: tuple[Path, ...] = ()


class Kind(abc.ABC):
    """What may be done to the files of one folder, in any order. A subclass draws its commands from its own state."""

    name: ClassVar[str]
    share: ClassVar[float] = 1.0
    """How many of all sequences are of this kind, relative to the others."""
    seconds: ClassVar[float] = 0.3
    """What a command takes at least; kills fall within the longest so far."""
    outputs: tuple[Path, ...]
    """What the commands write, beside which strangers have their files."""

    def __init__(self, folder: Path, choose: Choose) -> None:
        self.folder = folder

    @abc.abstractmethod
    def command(self, choose: Choose) -> Command:
        """The next command, which may be stopped."""

    @abc.abstractmethod
    def settle(self) -> list[Command]:
        """Commands that end the sequence, not stopped."""

    def strangers(self) -> dict[Path, bytes]:
        """Files that no command may change."""
        return {path: path.name.encode() for out in self.outputs for path in beside(out)}

    def judge(self, ledger: Ledger) -> None:
        """Note what is wrong after a command."""
        ledger.judge()

    def judge_end(self, ledger: Ledger) -> None:
        """Note what is wrong after the last command."""
        ledger.judge_leftovers()


KINDS: list[type[Kind]] = []


def register(kind: type[Kind]) -> type[Kind]:
    """Make a kind known to the torture run."""
    KINDS.append(kind)
    return kind


def beside(out: Path) -> list[Path]:
    """Names that a careless pattern, a lock or a temporary file of an output could hit."""
    n = out.name
    drafts = f".{n}.1.landscape.tmp.h5", f".{n}.x.77.landscape.tmp", f".{n}.77.tmp", f".{n}.77.old"
    names = *drafts, f".{n}.notes.tmp", f".{n}.bak.old", f"{n}.lock.txt", f"{n}.damaged.txt"
    return [out.with_name(name) for name in names]


SWALLOWED = re.compile(r"Exception ignored in: [^\n]*\nTraceback.*?\nKeyboardInterrupt: ?\n", re.DOTALL)
"""What Python prints where Ctrl-C falls into a callback of its own, such as that of a weak reference: it is lost."""


class Ledger:
    """What was acknowledged, by file and label, and files of strangers; `lost`, `torn` and `wrong` say what became."""

    def __init__(self, folder: Path, strangers: Mapping[Path, bytes]) -> None:
        self.folder = folder
        self.rows: dict[Path, dict[Label, Row]] = {}
        self.lost: list[str] = []
        self.torn: list[str] = []
        self.wrong: list[str] = []
        self.strangers: dict[Path, bytes] = {}
        for path, content in strangers.items():
            self.keep(path, content)

    @property
    def harm(self) -> list[str]:
        return [*self.lost, *self.torn, *self.wrong]

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.rows.values()))

    def keep(self, path: Path, content: bytes) -> None:
        """Write a stranger's file, which no command may change."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.strangers[path] = content

    def update(self, command: Command, kill: Kill | None, outcome: Outcome, identities: dict[Path, str]) -> None:
        """Take in what a command acknowledged and how it ended; `identities` are those of the files before it."""
        for path in command.replaces:
            if identity(path) != identities.get(path):
                self.rows.pop(path, None)
        for path, label, row in outcome.acknowledged:
            self.rows.setdefault(path, {}).setdefault(label, row)
        codes = command.codes if kill is None else (*command.codes, kill.code)
        said = SWALLOWED.sub("", outcome.said) if kill and kill.number == signal.SIGINT else outcome.said
        fits = outcome.code in codes or re.search(command.refusals, said)
        if not fits or "Traceback" in said or "Warning" in said:
            self.wrong.append(f"{command.argv} ended with {outcome.code}: {outcome.said}")

    def judge(self) -> None:
        """Read every acknowledged row again, twice, and all files of strangers."""
        for path, rows in self.rows.items():
            for read in (served, stored):
                try:
                    present = read(path, rows)
                except (LandscapeError, OSError, KeyError) as error:
                    self.lost.append(f"{path.name}: {len(rows)} rows, {read.__name__}: {error}")
                    continue
                for label, row in rows.items():
                    if label not in present:
                        self.lost.append(f"{path.name}: row {label} is not {read.__name__}")
                    elif any(present[label].get(name) != content for name, content in row.items()):
                        self.torn.append(f"{path.name}: row {label} is {read.__name__} with other bytes")
        for path, content in self.strangers.items():
            if not path.exists() or path.read_bytes() != content:
                self.wrong.append(f"{path.name}, a stranger's file, was changed or removed")

    def judge_leftovers(self) -> None:
        """Name the locks and temporary files that nobody holds any more."""
        theirs = {owned for path in self.strangers for owned in (path, *path.parents)}
        for path in self.folder.rglob("*"):
            if path.name.endswith((".lock", ".tmp", ".old")) and path not in theirs:
                self.wrong.append(f"{path.name} was left over")


def identity(path: Path) -> str:
    """What tells a file from one that replaced it: its run, and of a Hessian file k, without which none is replaced."""
    if not path.exists():
        return ""
    if file_schema(path) == schema.HESSIAN:
        reader = HessianReader(path)
        return f"{reader.attrs['parent_run_id']} {reader.config['k']}"
    with h5py.File(path) as file:
        return str(file.attrs["run_id"])


def served(path: Path, labels: Iterable[Label] | None = None) -> dict[Label, Row]:
    """Rows as our readers serve them; of a run file those of its `steps`, or of these."""
    if file_schema(path) == schema.HESSIAN:
        reader = HessianReader(path)
        blocks: dict[Label, Row] = {(step, block): {} for step in reader.steps for block in reader.measured(step)}
        return {**blocks, **_searched(reader.iterations)}
    with RunReader(path) as run:
        steps = set(run.steps if labels is None else labels)
        tables = {group: table for group, table in run.tables.items() if table.label == "step"}
        rows = {n: {g: table.row(n) for g, table in tables.items()} for n in run.steps if n in steps}
    return {
        n: {
            f"{g}/{name}": np.asarray(value).tobytes()
            for g, row in groups.items()
            for name, value in (row or {}).items()
        }
        for n, groups in rows.items()
        if all(groups.values())
    }


def stored(path: Path, labels: Iterable[Label]) -> dict[Label, Row]:
    """Rows as an outsider finds them with plain h5py, by label and commit record."""
    with h5py.File(path, "r") as file:
        if "operator_norm" in file:
            return _blocks_stored(file)
        rows: dict[Label, Row] = {n: {} for n in labels}
        groups = [g for g in file.values() if isinstance(g, h5py.Group) and "crc32" in g and "step" in g]
        for group in groups:
            if "resume_slot" in group:
                continue
            label, record = group["step"][()], group["crc32"][()]
            names = str(group["crc32"].attrs["fields"]).split()
            columns = {f"{group.name.removeprefix('/')}/{name}": group[name][()] for name in names}
            for n in list(rows):
                at = np.flatnonzero((label == n) & (record >= WRITTEN))
                if len(at) != 1:
                    rows.pop(n)
                    continue
                rows[n] |= {name: values[at[0]].tobytes() for name, values in columns.items()}
    return rows


def _blocks_stored(file: h5py.File) -> dict[Label, Row]:
    blocks, norms = file["block"].asstr()[()], file["operator_norm"][()]
    steps = dict(zip(map(int, file["step"][()]), norms, strict=True))
    rows: dict[Label, Row] = {(s, b): {} for s, row in steps.items() for b in blocks[~np.isnan(row)]}
    if "resume" not in file:
        return rows
    return {**rows, **_searched(int(file["resume/iterations"][()]))}


def _searched(steps: int) -> dict[Label, Row]:
    """All steps of a search up to the last."""
    return {(step, ""): {} for step in range(steps + 1)}


def torture(kinds: Sequence[type[Kind]], count: int, budget: float, seed: int = 0, jobs: int = 2) -> list[Tally]:
    """Run `count` sequences, or as many as `budget` seconds allow, in `jobs` processes; a tally of each kind."""
    tallies = {kind: Tally(f"sequences: {kind.name}") for kind in kinds}
    rng, deadline = random.Random(seed), time.monotonic() + budget
    drawn = rng.choices(kinds, [kind.share for kind in kinds], k=count)
    numbers = [rng.getrandbits(64) for _ in drawn]
    with ProcessPoolExecutor(jobs, SERVER) as pool:
        for kind, number, ledger, commands in pool.map(_one, drawn, numbers, [deadline] * count):
            tally = tallies[kind]
            tally.tried, tally.sequences = tally.tried + commands, tally.sequences + (commands > 0)
            tally.acknowledged += ledger.acknowledged
            tally.lost, tally.torn = tally.lost + len(ledger.lost), tally.torn + len(ledger.torn)
            tally.wrong += len(ledger.wrong)
            for harm in ledger.harm:
                print(f"{kind.name}, sequence {number}: {harm}", flush=True)
    return list(tallies.values())


def _one(kind: type[Kind], number: int, deadline: float) -> tuple[type[Kind], int, Ledger, int]:
    """One sequence, told by its number, unless it is too late."""
    ledger, commands = Ledger(Path(), {}), 0
    if time.monotonic() < deadline:
        try:
            commands, ledger = run_sequence(kind, random.Random(number))
        except Exception:
            ledger.wrong.append(traceback.format_exc())
    return kind, number, ledger, commands


def run_sequence(
    kind: type[Kind], rng: random.Random, kills: Iterable[Kill | None] | None = None, most: int = 6
) -> tuple[int, Ledger]:
    """Commands of one kind in a new folder, most of them stopped; how many there were, and what became of the files."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        subject = kind(folder, rng.choice)
        ledger = Ledger(folder, subject.strangers())
        count, length = 0, kind.seconds
        for kill in kills or (draw_kill(length, rng) for _ in range(rng.randint(1, most))):
            outcome = step(ledger, subject, subject.command(rng.choice), kill)
            count, length = count + 1, max(length, outcome.seconds)
        return count + settle(ledger, subject), ledger
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def draw_kill(length: float, rng: random.Random) -> Kill | None:
    """None for one command in four; else at an instant of a command of this many seconds, or at a change of a file."""
    number = signal.SIGKILL if rng.random() < 0.7 else signal.SIGINT
    match rng.choice(("", "after", "at", "at")):
        case "after":
            return Kill(after=rng.uniform(0, 1.1 * length), number=number)
        case "at":
            return Kill(at=round(2 ** rng.uniform(0, 10)), share=rng.choice((0.0, 0.5, 1.0)), number=number)
    return None


def step(ledger: Ledger, subject: Kind, command: Command, kill: Kill | None, run: Runner = run_apart) -> Outcome:
    """One command and what must hold after it."""
    before = {path: identity(path) for path in command.replaces}
    outcome = run(ledger.folder, command.argv, kill)
    ledger.update(command, kill, outcome, before)
    subject.judge(ledger)
    return outcome


def settle(ledger: Ledger, subject: Kind, run: Runner = run_apart) -> int:
    """The commands that end a sequence, and what must hold after them; how many there were."""
    commands = subject.settle()
    for command in commands:
        step(ledger, subject, command, None, run)
    subject.judge_end(ledger)
    return len(commands)
