"""Arguments, printing and exit codes; torch is imported only inside the commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import landscape
from landscape import tables
from landscape.config import AnalysisConfig, HessianConfig, SliceConfig, TrainConfig, load, preset, replace
from landscape.errors import ConfigError, LandscapeError

if TYPE_CHECKING:
    from landscape.storage.spectra import SpectrumReader
    from landscape.training.trainer import RunSummary

UNFINISHED, INTERRUPTED = 3, 130


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
    seeds: int | None = None
    """Train this many seeds, counted up from --seed, side by side: RUN-s0.h5, RUN-s1.h5 and so on for RUN.h5."""
    vary: tuple[str, ...] = ()
    """Train several values side by side, such as lr_ratio=1,2,4 lr=0.01,0.02, with RUN-lr_ratio-2-lr-0.01.h5 among the
    files; of lr, lr_ratio, weight_decay, init_scale_E and init_scale_W, with --seeds every seed of each."""
    resume: bool = False
    """Go on where the run file stops (start it if there is none)."""
    overwrite: bool = False
    """Replace an existing run file."""
    fsync: bool = False
    """Sync every commit to the disk, so that it survives a loss of power too."""
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
    fsync: bool = False
    """Sync every step to the disk, so that it survives a loss of power too."""
    verify: bool = False
    """Compare with PyHessian's top eigenvalue and with a dense Hessian where it fits."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Critical:
    """The critical point of the objective nearest to a checkpoint, and the Hessian there."""

    ckpt: Path
    """Run file to start from."""
    step: int
    """Stored step to start from."""
    # A saddle index belongs to a critical point of what was minimised.
    analysis: AnalysisConfig = AnalysisConfig(objective="regularised")
    out: Path | None = None
    """Hessian file to write, with the refined parameters; None: RUN.critical-STEP.h5 beside the run."""
    grad_tol: float = 1e-10
    """Gradient norm at which a point counts as critical."""
    search_products: int = 60_000
    """Hessian-vector products of the search at most."""
    resume: bool = False
    """Go on where an earlier search ended."""
    overwrite: bool = False
    """Replace an existing file."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """The loss along unit eigenvectors of a checkpoint, and on the plane of the lowest and the highest."""

    slice: SliceConfig
    ckpt: Path
    """Run file to slice."""
    step: int
    """Stored step to slice at."""
    out: Path | None = None
    """Folder to write; None: reports/RUN-slices-STEP."""
    objective: Literal["data", "regularised"] = "data"
    """The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."""
    method: Literal["auto", "dense", "lanczos"] = "auto"
    """How the eigenvectors are found."""
    max_products: int = 3000
    """Hessian-vector products at most."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the products run."""
    overwrite: bool = False
    """Replace existing figures."""


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


@dataclasses.dataclass(frozen=True)
class Info:
    """What a run file or Hessian file holds, what it lacks, and how to go on with it."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    config: bool = False
    """Print the configuration as JSON, ready for --config, and nothing else."""
    json: bool = False
    """Print everything as one JSON document."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Whether every committed row of a file is whole. Exit code 0: complete; 1: damaged; 3: whole but unfinished."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    repair: bool = False
    """Trim an interrupted file to its committed rows; of a damaged one the original is kept beside it."""
    json: bool = False
    """Print everything as one JSON document."""


Command = Train | Hessian | Critical | Slice | Report | Info | Check


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
            case Critical():
                return _critical(args)
            case Slice():
                return _slice(args)
            case Report():
                return _report(args)
            case Info():
                return _info(args)
            case Check():
                return _check(args)
    except LandscapeError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED


def _parse(argv: Sequence[str]) -> Command:
    base = _base_config(argv)
    commands: Any = (
        Annotated[Train, tyro.conf.subcommand("train", default=Train(base))]
        | Annotated[Hessian, tyro.conf.subcommand("hessian")]
        | Annotated[Critical, tyro.conf.subcommand("critical")]
        | Annotated[Slice, tyro.conf.subcommand("slice")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Check, tyro.conf.subcommand("check")]
    )
    parsed: Command = tyro.cli(
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
    from landscape.training.ensemble import ensemble
    from landscape.training.trainer import train_ensemble

    runs = ensemble(args.run, args.out, args.seeds, args.vary)
    summaries = train_ensemble(runs, args.resume, args.overwrite, args.quiet, args.fsync)
    if args.json:
        documents = [tables.jsonable(dataclasses.asdict(summary)) for summary in summaries]
        print(json.dumps(documents if args.seeds or args.vary else documents[0]))
    else:
        for summary in summaries:
            _print_summary(summary)
    return INTERRUPTED if any(summary.status == "interrupted" for summary in summaries) else 0


def _print_summary(summary: RunSummary) -> None:
    reached = [
        f"{name} at step {step}" if step is not None else f"{name}: not reached"
        for name, step in (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    ]
    print(
        f"{summary.path}: {summary.status} at step {summary.steps}, {summary.checkpoints} checkpoints\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {'; '.join(reached)}"
    )


def _hessian(args: Hessian) -> int:
    from landscape.pipeline import analyse, default_output

    result = analyse(args.ckpt, args.analysis, args.out, args.overwrite, args.quiet, args.fsync)
    opinions = []
    if args.verify:
        from landscape.verify import verify

        opinions = verify(args.ckpt, result)
    out = args.out or default_output(args.ckpt)
    if args.json:
        _print_json(out, result, verify=[dataclasses.asdict(o) for o in opinions])
    else:
        print(tables.measurements(result))
        print(tables.verification(opinions), end="")
        print(f"written: {out}")
    if not all(o.agrees for o in opinions):
        print("error: the dense Hessian disagrees\nhint: please report this with the run file", file=sys.stderr)
        return 1
    return 0 if all(map(result.converged, result.steps)) else UNFINISHED


def _print_json(out: Path, result: SpectrumReader, **more: Any) -> None:
    document = {
        "file": str(out),
        "attributes": result.attrs,
        "blocks": result.blocks,
        "pairs": result.pairs,
        "steps": [{"step": step, **result.row(step)} for step in result.steps],
        **more,
    }
    print(json.dumps(tables.jsonable(document)))


def _critical(args: Critical) -> int:
    from landscape.refine import STATUS, default_output, refine

    out = args.out or default_output(args.ckpt, args.step)
    result = refine(
        args.ckpt,
        args.step,
        args.analysis,
        out,
        args.grad_tol,
        args.search_products,
        args.resume,
        args.overwrite,
        args.quiet,
    )
    point = result.critical_point(args.step)
    status = STATUS[point["status"]]
    if args.json:
        _print_json(out, result, critical_point={"status": status, **{n: v for n, v in point.items() if n != "status"}})
    else:
        print(tables.critical_point(status, point))
        print(f"\n{tables.measurements(result)}\nwritten: {out}")
    return 0 if status == "critical" and all(map(result.converged, result.steps)) else UNFINISHED


def _slice(args: Slice) -> int:
    from landscape.sections import slice_checkpoint

    analysis = AnalysisConfig(
        objective=args.objective, method=args.method, max_products=args.max_products, device=args.device
    )
    out = args.out or Path("reports") / f"{args.ckpt.stem}-slices-{args.step}"
    drawn, paths = slice_checkpoint(args.ckpt, args.step, args.slice, analysis, out, args.overwrite)
    print(drawn.caption)
    for name, value in drawn.numbers.items():
        print(f"{name}: {value}")
    for path in paths:
        print(path)
    return 0


def _report(args: Report) -> int:
    from landscape.report import write_report

    if not args.files:
        raise ConfigError("no file given", "name run or Hessian files: landscape report RUN.h5 ...")
    out = args.out or Path("reports") / args.files[0].name.removesuffix(".h5").removesuffix(".hessian")
    print(write_report(args.files, out, args.overwrite, args.quiet))
    return 0


def _info(args: Info) -> int:
    from landscape.storage.inspect import inspect

    state = inspect(args.file)
    if args.config:
        print(json.dumps(state.config, indent=2))
    elif args.json:
        print(json.dumps(tables.jsonable(dataclasses.asdict(state))))
    else:
        print(tables.contents(state))
    return 0


def _check(args: Check) -> int:
    from landscape.storage.inspect import inspect, repair

    state = inspect(args.file)
    if args.repair and (state.damage or not state.finished):
        kept = repair(args.file)
        if kept:
            print(f"kept the file as it was: {kept}", file=sys.stderr)
        state = inspect(args.file)
    if args.json:
        print(json.dumps(tables.jsonable(dataclasses.asdict(state))))
    else:
        print(tables.soundness(state))
    return 1 if state.damage else 0 if state.finished else UNFINISHED
