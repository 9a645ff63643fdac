"""Random sequences of commands and kills: what each kind does to its folder, and what must hold after every command.

A kind is a class with `@register`, in a module that torture.py names. It draws commands; here they are run, killed,
and judged: every acknowledged row of every file is read back bit for bit, with our reader and with plain h5py, no
stranger's file is changed, and nothing is left over once the last command has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from apart import Kill, Outcome, Row, run_apart
from faults import Tally

from landscape.errors import LandscapeError
from landscape.storage.files import file_schema, open_file
from landscape.storage.runs import RunReader
from landscape.storage.table import WRITTEN

Choose = Callable[[Sequence[Any]], Any]
"""Takes one of some values: `random.Random.choice`, or a draw of Hypothesis."""
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


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


class Kind:
    """What may be done to the files of one folder, in any order. A subclass draws its commands from its own state."""

    name: ClassVar[str]
    share: ClassVar[float] = 1.0
    """How many of all sequences are of this kind, relative to the others."""

    def __init__(self, folder: Path, choose: Choose) -> None:
        self.folder = folder

    def command(self, choose: Choose) -> Command:
        """The next command, which may be killed."""
        raise NotImplementedError

    def settle(self) -> list[Command]:
        """Commands that end the sequence, not killed; afterwards no lock and no temporary file is left."""
        raise NotImplementedError

    def wrongs(self, outcome: Outcome) -> list[str]:
        """What is wrong after a command, beyond what holds for every kind."""
        return []


KINDS: list[type[Kind]] = []


def register(kind: type[Kind]) -> type[Kind]:
    """Make a kind known to the torture run."""
    KINDS.append(kind)
    return kind


class Ledger:
    """What was acknowledged, by file and label, and files of strangers; `lost`, `torn` and `wrong` say what became."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[Path, dict[int, Row]] = {}
        self.lost: list[str] = []
        self.torn: list[str] = []
        self.wrong: list[str] = []
        # Names that a careless pattern, a lock or a temporary file could hit.
        self.strangers = {folder / name: name.encode() for name in STRANGERS}
        for path, content in self.strangers.items():
            path.write_bytes(content)

    @property
    def harm(self) -> list[str]:
        return [*self.lost, *self.torn, *self.wrong]

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.rows.values()))

    def update(self, command: Command, outcome: Outcome, identities: dict[Path, str]) -> None:
        """Take in what a command acknowledged and how it ended; `identities` are those of the files before it."""
        for path in command.replaces:
            if identity(path) != identities.get(path):
                self.rows.pop(path, None)
        for path, label, row in outcome.acknowledged:
            self.rows.setdefault(path, {}).setdefault(label, row)
        fits = outcome.killed or outcome.code in command.codes or re.search(command.refusals, outcome.said)
        if not fits or "Traceback" in outcome.said or "Warning" in outcome.said:
            self.wrong.append(f"{command.argv} ended with {outcome.code}: {outcome.said}")

    def judge(self) -> None:
        """Read every acknowledged row again, twice."""
        for path, rows in self.rows.items():
            for read in (served, stored):
                try:
                    found = read(path, rows)
                except (LandscapeError, OSError, KeyError) as error:
                    self.lost.append(f"{path.name}: {len(rows)} rows, {read.__name__}: {error}")
                    continue
                for label, row in rows.items():
                    if label not in found:
                        self.lost.append(f"{path.name}: row {label} is not {read.__name__}")
                    elif any(found[label].get(name) != content for name, content in row.items()):
                        self.torn.append(f"{path.name}: row {label} is {read.__name__} with other bytes")
        for path, content in self.strangers.items():
            if not path.exists() or path.read_bytes() != content:
                self.wrong.append(f"{path.name}, a stranger's file, was changed or removed")

    def leftovers(self) -> None:
        """Name the locks and temporary files that nobody holds any more."""
        for path in self.folder.rglob("*"):
            if path.name.endswith((".lock", ".tmp")) and path not in self.strangers:
                self.wrong.append(f"{path.name} was left over")


STRANGERS = (".run.h5.1.tmp.h5", ".run.h5.notes.tmp", "run.h5.lock.txt", ".run-s0.h5.x.h5.77.tmp", "run.h5.damaged.txt")


def identity(path: Path) -> str:
    """What tells a file from one that replaced it: run_id, or parent and time of making."""
    if not path.exists():
        return ""
    with h5py.File(path, "r", locking=False) as file:
        return "".join(str(file.attrs.get(name)) for name in ("run_id", "parent_sha256", "created"))


def served(path: Path, labels: Iterable[int]) -> dict[int, Row]:
    """Rows as our readers serve them; of a run file those of its `steps`."""
    kind = str(file_schema(path))
    with contextlib.closing(open_file(path, kind)) as file, contextlib.ExitStack() as stack:
        known = set(labels)
        if kind == "landscape.run":
            known &= set(stack.enter_context(RunReader(path)).steps)
        tables = {group: table for group, table in file.tables.items() if table.table.row == "step"}
        rows = {n: {g: table.row(n) for g, table in tables.items()} for n in known}
    return {
        n: {
            f"{g}/{name}": np.asarray(value).tobytes()
            for g, row in found.items()
            for name, value in (row or {}).items()
        }
        for n, found in rows.items()
        if all(found.values())
    }


def stored(path: Path, labels: Iterable[int]) -> dict[int, Row]:
    """Rows as an outsider finds them with plain h5py, by label and commit record."""
    found: dict[int, Row] = {n: {} for n in labels}
    with h5py.File(path, "r") as file:
        groups = [g for g in (file, *file.values()) if isinstance(g, h5py.Group) and "crc32" in g and "step" in g]
        for group in groups:
            if "resume_slot" in group:
                continue
            label, record = group["step"][()], group["crc32"][()]
            for n in list(found):
                at = np.flatnonzero((label == n) & (record >= WRITTEN))
                if len(at) != 1:
                    found.pop(n)
                    continue
                for name in str(group["crc32"].attrs["fields"]).split():
                    found[n][f"{group.name.removeprefix('/') or '/'}/{name}"] = group[name][at[0]].tobytes()
    return found


def torture(kinds: Sequence[type[Kind]], count: int, budget: float, seed: int = 0, jobs: int = 2) -> list[Tally]:
    """Run `count` sequences, or as many as `budget` seconds allow, `jobs` at a time; a tally of each kind."""
    tallies = {kind: Tally(f"sequences: {kind.name}") for kind in kinds}
    rng, deadline = random.Random(seed), time.monotonic() + budget
    plan = [(kind, rng.getrandbits(64)) for kind in rng.choices(kinds, [k.share for k in kinds], k=count)]

    def one(kind: type[Kind], number: int) -> None:
        if time.monotonic() < deadline:
            commands, ledger = run_sequence(kind, random.Random(number))
            tally = tallies[kind]
            tally.tried, tally.acknowledged = tally.tried + commands, tally.acknowledged + ledger.acknowledged
            tally.sequences += 1
            tally.lost, tally.torn = tally.lost + len(ledger.lost), tally.torn + len(ledger.torn)
            tally.wrong += len(ledger.wrong)
            for harm in ledger.harm:
                print(f"{kind.name}, sequence {number}: {harm}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda task: one(*task), plan))
    return list(tallies.values())


def run_sequence(kind: type[Kind], rng: random.Random, most: int = 7) -> tuple[int, Ledger]:
    """Commands of one kind in a new folder, most of them killed; how many there were, and what became of the files."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        subject, ledger, count = kind(folder, rng.choice), Ledger(folder), 0
        length = 0.3
        for _ in range(rng.randint(2, most)):
            kill = None
            if rng.random() < 0.4:
                kill = Kill(after=rng.uniform(0, 1.1 * length))
            elif rng.random() < 0.7:
                kill = Kill(at=round(2 ** rng.uniform(0, 9)), share=rng.choice((0.0, 0.5, 1.0)))
            outcome = step(ledger, subject, subject.command(rng.choice), kill)
            if not outcome.killed:
                length = outcome.seconds
            count += 1
        for command in subject.settle():
            step(ledger, subject, command, None)
            count += 1
        ledger.leftovers()
        return count, ledger
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def step(
    ledger: Ledger,
    subject: Kind,
    command: Command,
    kill: Kill | None,
    run: Callable[[list[str], Kill | None], Outcome] = run_apart,
) -> Outcome:
    """One command and what must hold after it."""
    before = {path: identity(path) for path in command.replaces}
    outcome = run(command.argv, kill)
    ledger.update(command, outcome, before)
    ledger.judge()
    ledger.wrong += subject.wrongs(outcome)
    return outcome


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
