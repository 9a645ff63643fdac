"""Sequences of `hessian`, `critical`, `report` and `sweep` that end like undisturbed ones, whatever stopped them."""

from __future__ import annotations

import abc
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from helpers.apart import run_apart
from helpers.hessians import HessianReader
from helpers.sequences import Choose, Command, Kind, Ledger, register, served

from landscape.config import TrainConfig
from landscape.files.folders import RECORD
from landscape.measure.fields import ROOT
from landscape.training.loop import train

TRACKED = ("subspace_overlap", "previous_rank", "previous_overlap", "crossings")
BY_BLOCK = {field.name for field in ROOT.fields if field.dims[:1] == ("block",)}
BY_PAIR = {field.name for field in ROOT.fields if field.dims == ("block", "other_block")}
STEPS, BLOCKS = ("0", "4", "8"), ("E", "W", "E,W")
TINY = TrainConfig(
    p=5, tokens=2, embed_dim=2, hidden=4, batch_size=8, train_fraction=0.6, steps=8, checkpoint_every=2,
    metrics_every=4, activation="tanh", weight_decay=0.2, seed=2, device="cpu",
)  # fmt: skip
"""Whose search for a critical point takes a thousand products; those of other seeds take many times as many."""
Numbers = dict[tuple[Any, ...], bytes]


def everything(path: Path) -> Numbers:
    """Every number but wall times, by step, group, dataset and block; two blocks where it is of two."""
    reader, numbers = HessianReader(path), Numbers()
    for step in reader.steps:
        for group, row in reader.rows(step).items():
            for name, value in row.items():
                array = np.asarray(value)
                if name == "seconds":
                    continue
                if group != "/" or name not in BY_BLOCK:
                    numbers[step, group, name] = array.tobytes()
                    continue
                for block, part in zip(reader.blocks, array, strict=True):
                    if name not in BY_PAIR:
                        numbers[step, group, name, block] = part.tobytes()
                        continue
                    for other, number in zip(reader.blocks, part, strict=True):
                        numbers[step, group, name, block, other] = number.tobytes()
    return numbers


# --- the commands, and what nothing has disturbed; made once ---------------------------------------------------


def hessian(folder: Path, steps: Sequence[str] = STEPS, k: str = "2") -> list[str]:
    return ["hessian", f"{folder}/run.h5", "--out", f"{folder}/run.hessian.h5", "--steps", ",".join(steps),
            "--k", k, "--device", "cpu", "--quiet", "--blocks", *BLOCKS]  # fmt: skip


def critical(folder: Path, products: str = "60000") -> list[str]:
    return ["critical", f"{folder}/run.h5", "--out", f"{folder}/run.hessian.h5", "--step", "8", "--k", "2",
            "--device", "cpu", "--quiet", "--resume", "--search-hvps", products, "--blocks", *BLOCKS]  # fmt: skip


def sweep(folder: Path) -> list[str]:
    return ["sweep", "--config", f"{folder}/in.json", "--out", str(folder), "--jobs", "2", "--quiet"]


COMMON = {"k": 2, "device": "cpu", "objective": "regularised"}
SWEEP = {
    "train": {
        name: getattr(TINY, name)
        for name in (
            "p", "tokens", "embed_dim", "hidden", "batch_size", "train_fraction", "steps", "checkpoint_every",
            "metrics_every", "activation", "weight_decay", "device",
        )
    },
    "seeds": [1, 2],
    "hessian": [
        {"steps": "0,8", "blocks": ["E", "E,W"], **COMMON},
        {"name": "saddle", "refine_from": 8, "blocks": ["E,W"], **COMMON},
    ],
}  # fmt: skip


@functools.cache
def inputs() -> dict[str, bytes]:
    """The files that the commands read, by name."""
    with tempfile.TemporaryDirectory() as folder:
        train(TINY, Path(folder) / "run.h5", quiet=True)
        return {"run.h5": (Path(folder) / "run.h5").read_bytes(), "in.json": json.dumps(SWEEP).encode()}


@functools.cache
def undisturbed(command: Callable[..., list[str]], *options: Any) -> dict[str, Numbers]:
    """What all Hessian files hold, by name, after a command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in inputs().items():
            (folder / file).write_bytes(content)
        outcome = run_apart(folder, command(folder, *options))
        assert outcome.code in (0, 3), outcome.said
        return analysed(folder)


def analysed(folder: Path) -> dict[str, Numbers]:
    return {path.name: everything(path) for path in folder.rglob("[!.]*.hessian*.h5")}


# --- what is done to a folder ---------------------------------------------------------------------------------


class Reading(Kind):
    """Commands that leave what they read as it is."""

    def strangers(self) -> dict[Path, bytes]:
        return super().strangers() | {self.folder / name: content for name, content in inputs().items()}


class Measuring(Reading):
    """Commands that end with the file of one whole command; whole: that command, and the options of its function."""

    def __init__(self, folder: Path, choose: Choose) -> None:
        super().__init__(folder, choose)
        self.outputs = (folder / "run.hessian.h5",)

    @abc.abstractmethod
    def whole(self) -> tuple[Any, ...]: ...

    def settle(self) -> list[Command]:
        command, *options = self.whole()
        return [Command(command(self.folder, *options), (0, 3))]

    def judge_end(self, ledger: Ledger) -> None:
        super().judge_end(ledger)
        if analysed(self.folder) != undisturbed(*self.whole()):
            ledger.wrong.append("the end is not the undisturbed one")


@register
class Hessian(Measuring):
    """Analyses of one run that grow, in one file."""

    name, share, seconds = "hessian", 1.5, 0.5

    @property
    def k(self) -> str:
        return str(HessianReader(self.outputs[0]).config["k"]) if self.outputs[0].exists() else ""

    def command(self, choose: Choose) -> Command:
        argv = hessian(self.folder, some(STEPS, choose), choose(("2", "2", "2", "3")))
        if choose((False, False, False, True)):
            return Command([*argv, "--overwrite"], (0, 3), replaces=self.outputs)
        return Command(argv, (0, 3), "it was made with k")

    def whole(self) -> tuple[Any, ...]:
        return hessian, STEPS, self.k or "2"

    def judge(self, ledger: Ledger) -> None:
        super().judge(ledger)
        if not self.outputs[0].exists():
            return
        reader, (truth,) = HessianReader(self.outputs[0]), undisturbed(hessian, STEPS, self.k).values()
        there = {(step, block) for step in reader.steps for block in reader.measured(step)}
        for key, value in everything(self.outputs[0]).items():
            # What rows and blocks make together depends on which there are.
            alone = key[1] == "spectrum" or len(key) == 4 and key[2] not in TRACKED
            block = key[2] if key[1] == "spectrum" else key[-1]
            if alone and (key[0], block) in there and truth[key] != value:
                ledger.torn.append(f"{key} is not the undisturbed value")


@register
class Critical(Measuring):
    """A search that is stopped, resumed and given more products."""

    name, share, seconds = "critical", 0.8, 1.0

    def command(self, choose: Choose) -> Command:
        return Command(critical(self.folder, choose(("50", "300", "60000"))), (0, 3))

    def whole(self) -> tuple[Any, ...]:
        return (critical,)


@register
class Report(Reading):
    """Reports over each other, in a folder that somebody has put files into."""

    name, share, seconds = "report", 0.1, 5.0

    def __init__(self, folder: Path, choose: Choose) -> None:
        super().__init__(folder, choose)
        self.outputs = (folder / "r",)
        self.stands = False

    def strangers(self) -> dict[Path, bytes]:
        # A folder that ends like those of killed commands, and files where these have folders.
        drafts = [f".r.{number}.landscape.{kind}" for number in (77, 78) for kind in ("tmp", "old")]
        names = (f"{drafts[0]}/notes.md", f"{drafts[1]}/notes.md", *drafts[2:], "r.old/notes.md")
        # Copies of a report, with its record.
        record = b'{"written_by": "landscape", "files": {}}'
        copies = [{f"{copy}/{RECORD}": record, f"{copy}/notes.md": b"mine"} for copy in (".r.before.old", ".r.79.old")]
        files = dict.fromkeys(names, b"mine") | copies[0] | copies[1]
        return super().strangers() | {self.folder / name: content for name, content in files.items()}

    def command(self, choose: Choose) -> Command:
        return Command(["report", f"{self.folder}/run.h5", "--out", str(self.outputs[0]), "--quiet", "--overwrite"])

    def settle(self) -> list[Command]:
        return [self.command(lambda of: of[0])]

    def judge(self, ledger: Ledger) -> None:
        super().judge(ledger)
        (out,) = self.outputs
        if not (self.stands or out.exists()):
            return
        recorded = json.loads((out / RECORD).read_text())["files"]
        digests = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in recorded}
        if digests != recorded or "report.html" not in recorded:
            ledger.torn.append("the report is not what its record says")
        if not self.stands:
            for name in ("notes.md", "report.html.bak", "figures/mine.txt"):
                ledger.keep(out / name, b"mine")
            self.stands = True


@register
class Sweep(Reading):
    """A sweep with checkpoints and refined points, on two workers; what can be read once must stay."""

    name, share, seconds = "sweep", 0.1, 6.0

    def __init__(self, folder: Path, choose: Choose) -> None:
        super().__init__(folder, choose)
        self.made = folder / "sweep"
        self.outputs = (self.made, self.made / "sweep.json", self.made / "base-s1.h5", self.made / "base-s2.hessian.h5")

    def strangers(self) -> dict[Path, bytes]:
        return super().strangers() | {self.made / ".sweep.json.tmp": b"mine"}

    def command(self, choose: Choose) -> Command:
        return Command(sweep(self.folder), (0, 3))

    def settle(self) -> list[Command]:
        return [self.command(lambda of: of[0])]

    def judge(self, ledger: Ledger) -> None:
        super().judge(ledger)
        for path in self.made.glob("[!.]*.h5"):
            if path.exists():
                for label, row in served(path).items():
                    ledger.rows.setdefault(path, {}).setdefault(label, row)

    def judge_end(self, ledger: Ledger) -> None:
        super().judge_end(ledger)
        if analysed(self.folder) != undisturbed(sweep):
            ledger.wrong.append("the sweep is not the undisturbed one")


def some(of: Sequence[str], choose: Choose) -> list[str]:
    """One or more of these."""
    return [one for one in of if choose((True, False))] or [choose(of)]
