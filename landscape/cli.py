"""Arguments, printing and exit codes; torch is imported only inside the commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import landscape
from landscape import tables
from landscape.config import HessianConfig, TrainConfig, load, preset, replace
from landscape.errors import ConfigError, LandscapeError

NOT_CONVERGED, INTERRUPTED = 3, 130


@dataclasses.dataclass(frozen=True)
class Train:
    """A grokking run; dense checkpoints of E, W and all other parameters in HDF5."""

    run: TrainConfig
    preset: Literal["quick", "mid", "paper"] = "quick"
    """Starting point of all options: quick (seconds), mid (half a minute), paper (arXiv 2505.15624; a GPU helps)."""
    config: Path | None = None
    """JSON file of options, applied over the preset; flags win over both."""
    out: Path = Path("checkpoints/run.h5")
    """Run file to write."""
    resume: bool = False
    """Go on where the run file stops (start it if there is none)."""
    overwrite: bool = False
    """Replace an existing run file."""
    json: bool = False
    """Print the summary as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Hessian:
    """Block spectra, saddle indices and coupling ratios of a run's checkpoints."""

    analysis: HessianConfig
    ckpt: Path
    """Run file to analyse."""
    out: Path | None = None
    """Hessian file to write; None: RUN.hessian.h5 beside the run."""
    overwrite: bool = False
    """Replace a Hessian file of another run or other settings (one that matches is gone on with)."""
    verify: bool = False
    """Compare with PyHessian's top eigenvalue and with a dense Hessian where it fits."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures and a page from run files and Hessian files."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Run files, Hessian files or both; RUN.hessian.h5 beside a run is found by itself."""
    out: Path | None = None
    """Folder to write; None: reports/NAME of the first file."""
    overwrite: bool = False
    """Replace an existing report."""
    quiet: bool = False
    """No progress bar."""


def main() -> None:
    """Entry point of `landscape`."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout, such as `head`, has gone: nothing is left to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code: 0, 1 or 2 for errors, 3 not converged, 130 interrupted."""
    if "--version" in argv:
        print(f"landscape {landscape.__version__}")
        return 0
    try:
        args = _parse(argv)
        match args:
            case Train():
                return _train(args)
            case Hessian():
                return _hessian(args)
            case _:
                return _report(args)
    except LandscapeError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED


def _parse(argv: Sequence[str]) -> Train | Hessian | Report:
    base = _base_config(argv)
    commands: Any = (
        Annotated[Train, tyro.conf.subcommand("train", default=Train(base))]
        | Annotated[Hessian, tyro.conf.subcommand("hessian")]
        | Annotated[Report, tyro.conf.subcommand("report")]
    )
    parsed: Train | Hessian | Report = tyro.cli(
        commands,
        prog="landscape",
        description="Direct Hessian measurements of the loss landscape of networks that grok.",
        args=list(argv),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return parsed


def _base_config(argv: Sequence[str]) -> TrainConfig:
    """The options under the flags: the run that is resumed, else preset and JSON file."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", default="quick")
    early.add_argument("--config", type=Path)
    early.add_argument("--out", type=Path, default=Path("checkpoints/run.h5"))
    early.add_argument("--resume", action="store_true")
    if not argv or argv[0] != "train":
        return preset("quick")
    known, _ = early.parse_known_args(argv[1:])
    base = preset(known.preset)
    if known.resume and known.out.exists():
        from landscape.storage.runs import RunReader

        with RunReader(known.out) as reader:
            base = replace(TrainConfig(), reader.config)
    return load(known.config, base) if known.config else base


def _train(args: Train) -> int:
    from landscape.training.trainer import train

    summary = train(args.run, args.out, args.resume, args.overwrite, args.quiet)
    if args.json:
        print(json.dumps(tables.jsonable(dataclasses.asdict(summary))))
    else:
        reached = [
            f"{name} at step {step}" if step is not None else f"{name}: not reached"
            for name, step in (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
        ]
        print(
            f"{summary.path}: {summary.status} at step {summary.steps}, {summary.checkpoints} checkpoints\n"
            f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {'; '.join(reached)}"
        )
    return INTERRUPTED if summary.status == "interrupted" else 0


def _hessian(args: Hessian) -> int:
    from landscape.pipeline import analyse, default_output

    result = analyse(args.ckpt, args.analysis, args.out, args.overwrite, args.quiet)
    opinions = []
    if args.verify:
        from landscape.verify import verify

        opinions = verify(args.ckpt, result)
    if args.json:
        document = {
            "file": str(args.out or default_output(args.ckpt)),
            "attributes": result.attrs,
            "blocks": result.blocks,
            "pairs": result.pairs,
            "steps": [{"step": step, **result.row(step)} for step in result.steps],
            "verify": [dataclasses.asdict(o) for o in opinions],
        }
        print(json.dumps(tables.jsonable(document)))
    else:
        print(tables.measurements(result))
        print(tables.verification(opinions), end="")
        print(f"written: {args.out or default_output(args.ckpt)}")
    if not all(o.agrees for o in opinions):
        print("error: the dense Hessian disagrees\nhint: please report this with the run file", file=sys.stderr)
        return 1
    return 0 if all(map(result.converged, result.steps)) else NOT_CONVERGED


def _report(args: Report) -> int:
    from landscape.report import write_report

    if not args.files:
        raise ConfigError("no file given", "name run or Hessian files: landscape report RUN.h5 ...")
    out = args.out or Path("reports") / args.files[0].name.removesuffix(".h5").removesuffix(".hessian")
    print(write_report(args.files, out, args.overwrite, args.quiet))
    return 0
