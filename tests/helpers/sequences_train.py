"""Sequences of `train`, `--resume` with every change that it allows, and `check --repair`, of runs and ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.sequences import Choose, Command, Kind, register

FIXED = [
    "--p", "5", "--tokens", "2", "--embed-dim", "2", "--hidden", "4", "--batch-size", "8", "--train-fraction", "0.6",
    "--device", "cpu", "--quiet",
]  # fmt: skip
CHANGES: dict[str, tuple[Any, ...]] = {
    "--steps": (0, 1, 3, 10, 12, 17, 24, 30, 36, 41),
    "--checkpoint-every": (0, 1, 2, 5, 10, 100),
    "--checkpoint-log": (0, 1, 4, 8),
    "--metrics-every": (1, 2, 3, 7, 10, 25, 1000),
    "--stop-test-accuracy": (None, None, 0.01, 0.2, 0.3, 1.0),
    "--extra-steps": (0, 1, 6, 20),
}
TOO_SHORT = r"is at step \d+, beyond --steps|leaves the run's steps"


class Runs(Kind):
    """Runs that are begun, resumed under other schedules, extended, repaired and begun anew."""

    suffixes: tuple[str, ...] = ("",)
    ensemble: tuple[str, ...] = ()

    def __init__(self, folder: Path, choose: Choose) -> None:
        super().__init__(folder, choose)
        self.out = folder / "run.h5"
        self.outputs = tuple(self.out.with_name(f"run{suffix}.h5") for suffix in self.suffixes)
        self.fixed = [*FIXED, *self.ensemble, "--optimizer", choose(("adam", "sgd", "adamw"))]
        nuclear = ["--model", "tables", "--penalty", "nuclear"]
        self.fixed += choose(([], ["--no-bias"], ["--model", "onehot"], nuclear, ["--dtype", "float64"], ["--fsync"]))

    def command(self, choose: Choose) -> Command:
        what = choose(("resume",) * 8 + ("overwrite", "repair", "repair", "info"))
        if what in ("repair", "info"):
            path = choose(self.outputs)
            argv = ["check", str(path), "--repair"] if what == "repair" else ["info", str(path)]
            return Command(argv, (0, 3), "does not exist")
        flags = {flag: choose(values) for flag, values in CHANGES.items()}
        at = [s for s in choose(((), (0,), (2, 5), (3, 11, 13), (1, 2, 29))) if s <= flags["--steps"]]
        return self.train(flags, at, what)

    def train(self, flags: dict[str, Any], at: list[int], what: str) -> Command:
        """`train` with these options; what: resume or overwrite."""
        argv = ["train", "--out", str(self.out), *self.fixed, f"--{what}"]
        argv += [str(part) for item in flags.items() for part in item]
        argv += ["--checkpoint-at", *map(str, at)] if at else []
        return Command(argv, (0,), TOO_SHORT, self.outputs if what == "overwrite" else ())

    def settle(self) -> list[Command]:
        flags = {**{flag: values[0] for flag, values in CHANGES.items()}, "--steps": max(CHANGES["--steps"])}
        return [self.train(flags, [], "resume"), *(Command(["check", str(path)]) for path in self.outputs)]


@register
class Run(Runs):
    name, share = "train, one run", 4.0


@register
class Ensemble(Runs):
    name = "train, three runs side by side"
    share = 1.0
    suffixes, ensemble = ("-s0", "-s1", "-s2"), ("--seeds", "3")
