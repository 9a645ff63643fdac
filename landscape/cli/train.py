"""`landscape train`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from landscape.cli import tables
from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.config import TrainConfig, load, preset, replace
from landscape.errors import INTERRUPTED, ConfigError, complain, in_file, working_on
from landscape.options import field
from landscape.presets import PRESETS
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.training.loop import RunSummary

    Preset = str
else:
    Preset = Literal[tuple(PRESETS)]


@dataclasses.dataclass(frozen=True)
class Train(Command):
    """Train a network to grok, with dense checkpoints of all parameters in HDF5."""

    examples = (
        "landscape train --out checkpoints/run.h5                  # a small MLP",
        "landscape train --preset transformer --lr-ratio 2 --seeds 4",
    )
    # fmt: off
    groups = {
        "run": ("preset", "config", "seed", "seeds", "vary", "device", "dtype"),
        "data": ("task", "p", "tokens", "text", "vocabulary", "context", "samples", "train_fraction", "test_fraction",
                 "batch_size", "sampler", "skew", "sampler_every"),
        "model": ("model", "embed_dim", "hidden", "layers", "heads", "norm", "positions", "tied", "activation", "bias",
                  "init_scale_E", "init_scale_W", "start"),
        "optimiser": ("optimizer", "lr", "lr_ratio", "lr_ratio_every", "momentum", "betas", "warmup", "weight_decay",
                      "penalty", "freeze", "freeze_from"),
        "schedule": ("steps", "stop_test_accuracy", "extra_steps", "checkpoint_every", "checkpoint_log",
                     "checkpoint_at", "metrics_every"),
        "output": ("out", "resume", "overwrite", "fsync", "json", "csv", "quiet"),
    }
    # fmt: on

    run: TrainConfig
    preset: Preset = field(
        "quick",
        "Defaults of all options: demo (4 seconds; it groks), quick (seconds), mid (half a minute), paper (arXiv "
        "2505.15624; a GPU helps); Transformers: transformer (half a minute), nanda (arXiv 2301.05217) and power "
        "(arXiv 2201.02177), for a GPU.",
    )
    config: Path | None = field(None, "JSON file of options; overrides the preset, and flags override both.")
    out: Path = field(Path("checkpoints/run.h5"), "Run file to write.")
    seeds: int | None = field(
        None,
        "Train this many seeds side by side, counted from --seed: RUN-s0.h5, RUN-s1.h5 and so on. At most 256 "
        "runs, those of --vary included.",
    )
    vary: tuple[str, ...] = field(
        (),
        "Train several values side by side, such as lr_ratio=1,2,4 lr=0.01,0.02; one of the files is "
        "RUN-lr_ratio-2-lr-0.01.h5. Takes lr, lr_ratio, weight_decay, init_scale_E, init_scale_W; combines "
        "with --seeds.",
    )
    resume: bool = field(
        False,
        "Resume the run file with its own options and those given, such as more --steps; start it if there is none. "
        "The same command resumes without it.",
    )
    overwrite: bool = field(False, "Replace an existing run file.")
    fsync: bool = field(False, "Sync every commit to disk, so that it survives a power failure.")
    json: bool = field(False, "Print the summary as one JSON document.")
    csv: bool = field(False, "Print a row a run as CSV.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.training.ensemble import ensemble
        from landscape.training.loop import is_begun, train_ensemble

        runs = ensemble(self.run, self.out, self.seeds, self.vary)
        with working_on(self.out):
            resume = self.resume or not self.overwrite and is_begun(runs)
            summaries = train_ensemble(runs, resume, self.overwrite, self.quiet, self.fsync)
        if self.json:
            documents = [dataclasses.asdict(summary) for summary in summaries]
            say(tables.document(documents if self.seeds or self.vary else documents[0]))
        elif self.csv:
            say(tables.rows_csv(list(map(dataclasses.asdict, summaries))))
        else:
            for summary in summaries:
                _print_summary(summary)
        diverged = [summary.divergence for summary in summaries if summary.divergence]
        for error in diverged:
            complain(error)
        if any(summary.status == "interrupted" for summary in summaries):
            print(f"interrupted: {self.interrupted}", file=sys.stderr)
            return INTERRUPTED
        return 1 if diverged else 0


def _print_summary(summary: RunSummary) -> None:
    say(
        f"{printable(summary.path)}: {summary.status} at step {summary.steps}, {summary.checkpoints} "
        f"checkpoint{'s' * (summary.checkpoints != 1)}\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {reached(summary)}"
    )


def reached(summary: RunSummary) -> str:
    thresholds = (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    told = [f"{n} at step {step}" if step is not None else f"{n}: not reached" for n, step in thresholds]
    return "; ".join([*told, *filter(None, [summary.gaps])])


def base_config(argv: Sequence[str]) -> TrainConfig:
    """The options that flags override: those of the resumed run, else of preset and JSON file."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--preset", default="quick")
    early.add_argument("--config", type=_path)
    early.add_argument("--out", type=_path, default=Path("checkpoints/run.h5"))
    early.add_argument("--resume", action="store_true")
    try:
        known, _ = early.parse_known_args(argv)
    except (argparse.ArgumentError, ConfigError):
        # An option without a value, or with one that is no path; the full parser refuses it.
        return preset("quick")
    base = preset(known.preset)
    if known.resume and known.out.exists():
        from landscape.files.runs import RunReader

        with RunReader(known.out) as reader:
            # Of another's run, which is refused in due course, the options are not known.
            if not reader.is_recorded:
                with in_file(known.out, "config"):
                    base = replace(TrainConfig(), reader.config)
    return load(known.config, base) if known.config else base


def _path(text: str) -> Path:
    # Only here, as --help need not wait for the modules of files.
    from landscape.files.files import as_path

    return as_path(text)
