"""`landscape train`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App, Token

from landscape.cli import tables
from landscape.cli.parser import Printed, flags, plain
from landscape.cli.printing import say
from landscape.config import TrainConfig, load, preset, replace
from landscape.errors import INTERRUPTED, ConfigError, complain, in_file, working_on
from landscape.options import field, flag_of
from landscape.presets import PRESETS
from landscape.text import printable

if TYPE_CHECKING:
    from cyclopts.argument import ArgumentCollection

    from landscape.training.loop import RunSummary

    Preset = str
    Run = TrainConfig
else:
    Preset = Literal[tuple(PRESETS)]
    # fmt: off
    Run = flags(preset("quick"), {
        "Run": ("seed", "device", "dtype"),
        "Data": ("task", "p", "tokens", "text", "vocabulary", "context", "samples", "train_fraction", "test_fraction",
                 "batch_size", "sampler", "skew", "sampler_every"),
        "Model": ("model", "embed_dim", "hidden", "layers", "heads", "norm", "positions", "tied", "activation", "bias",
                  "init_scale_E", "init_scale_W", "start"),
        "Optimiser": ("optimizer", "lr", "lr_E", "lr_ratio", "lr_ratio_every", "momentum", "betas", "warmup",
                      "weight_decay", "weight_decay_V", "penalty", "freeze", "freeze_from"),
        "Kicks": ("kick", "kick_from", "kick_every", "kick_size"),
        "Schedule": ("steps", "stop_test_accuracy", "extra_steps", "checkpoint_every", "checkpoint_log",
                     "checkpoint_at", "metrics_every"),
    })
    # fmt: on

EXAMPLES = (
    "landscape train --out checkpoints/run.h5                  # a small MLP",
    "landscape train --preset transformer --lr-ratio 2 --seeds 4",
)
_SUFFIXES = (".h5", ".hdf5", "")
"""Endings of run files: another would pass for a file of another kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(Printed):
    """What is trained beside one run, and where it goes."""

    preset: Preset = field(
        "quick",
        "Defaults of the options: demo (4 seconds; it groks), quick (seconds; those below), mid (half a minute), paper "
        "(arXiv 2505.15624; a GPU helps); Transformers: transformer (half a minute), nanda (arXiv 2301.05217) and "
        "power (arXiv 2201.02177), for a GPU.",
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
        "RUN-lr_ratio-2-lr-0.01.h5. Takes lr, lr_E, lr_ratio, weight_decay, init_scale_E, init_scale_W; combines "
        "with --seeds.",
    )
    resume: bool = field(
        False,
        "Resume the run file with its own options and those given, such as more --steps; start it if there is none. "
        "The same command resumes without it.",
    )
    overwrite: bool = field(False, "Replace an existing run file.")
    fsync: bool = field(False, "Sync every commit to disk, so that it survives a power failure.")
    quiet: bool = field(False, "No progress bar.")


def train(*, run: Run = Run(), options: TrainOptions = TrainOptions()) -> int:
    """Train a network to grok, with dense checkpoints of all parameters in HDF5."""
    from landscape.training.ensemble import ensemble
    from landscape.training.loop import is_begun, train_ensemble

    if options.out.suffix not in _SUFFIXES:
        raise ConfigError(f"{options.out} would be an HDF5 file", f"name it {options.out.with_suffix('.h5').name}")
    runs = ensemble(plain(run), options.out, options.seeds, options.vary)
    with working_on(options.out):
        resume = options.resume or not options.overwrite and is_begun(runs)
        summaries = train_ensemble(runs, resume, options.overwrite, options.quiet, options.fsync)
    if options.json:
        documents = [dataclasses.asdict(summary) for summary in summaries]
        say(tables.document(documents if options.seeds or options.vary else documents[0]))
    elif options.csv:
        say(tables.rows_csv(list(map(dataclasses.asdict, summaries))))
    else:
        for summary, config in zip(summaries, runs.values(), strict=True):
            say(_summary(summary))
            if options.resume and summary.status == "complete" and summary.steps < config.steps:
                say(
                    f"stopped by --stop-test-accuracy {config.stop_test_accuracy}; --stop-test-accuracy none trains on "
                    f"to step {config.steps}"
                )
    diverged = [summary.divergence for summary in summaries if summary.divergence]
    for error in diverged:
        complain(error)
    if any(summary.status == "interrupted" for summary in summaries):
        print("interrupted: the same command resumes", file=sys.stderr)
        return INTERRUPTED
    return 1 if diverged else 0


def defaults(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give options that were not typed the values of preset and JSON file, or those of the resumed run."""
    from landscape.files.files import as_path

    typed = {
        name: arguments[flag_of(name)].tokens[-1].value if arguments[flag_of(name)].tokens else None
        for name in ("preset", "config", "out", "resume")
    }
    base, out = preset(typed["preset"] or TrainOptions.preset), as_path(typed["out"] or TrainOptions.out)
    if typed["resume"] is not None and out.exists():
        from landscape.files.schema import RECORDED
        from landscape.files.views import open as open_file

        file = open_file(out)
        # The options of a recorded run and of other files are not those of `train`, which refuses them in due course.
        if file.kind == "run" and file.config.get("kind") != RECORDED:
            with in_file(out, "config"):
                base = replace(TrainConfig(), dict(file.config))
    if typed["config"]:
        base = load(Path(typed["config"]), base)
    for f in dataclasses.fields(base):
        argument = arguments[flag_of(f.name)]
        if not argument.tokens:
            argument.append(Token(keyword=argument.name, implicit_value=getattr(base, f.name), source="preset"))


def _summary(summary: RunSummary) -> str:
    return (
        f"{printable(summary.path)}: {summary.status} at step {summary.steps}, {summary.checkpoints} "
        f"checkpoint{'s' * (summary.checkpoints != 1)}\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {reached(summary)}"
    )


def reached(summary: RunSummary) -> str:
    """The steps at which a run memorised and grokked."""
    thresholds = (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    parts = [f"{n} at step {step}" if step is not None else f"{n}: not reached" for n, step in thresholds]
    return "; ".join(parts)
