"""Arguments, printing and exit codes; torch is imported only inside the commands."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import landscape
from landscape import tables
from landscape.commands import Check, Command, Critical, Hessian, Info, Report, Slice, Sweep, Train
from landscape.config import AnalysisConfig, TrainConfig, load, preset, replace
from landscape.errors import ConfigError, LandscapeError

if TYPE_CHECKING:
    from landscape.storage.spectra import SpectrumReader
    from landscape.training.trainer import RunSummary

UNFINISHED, INTERRUPTED = 3, 130


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
            case Sweep():
                return _sweep(args)
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
        | Annotated[Sweep, tyro.conf.subcommand("sweep")]
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
    print(
        f"{summary.path}: {summary.status} at step {summary.steps}, {summary.checkpoints} checkpoints\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {_reached(summary)}"
    )


def _reached(summary: RunSummary) -> str:
    thresholds = (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    return "; ".join(f"{n} at step {step}" if step is not None else f"{n}: not reached" for n, step in thresholds)


def _hessian(args: Hessian) -> int:
    from landscape.pipeline import analyse
    from landscape.storage.files import hessian_file

    result = analyse(args.ckpt, args.analysis, args.out, args.overwrite, args.quiet, args.fsync)
    opinions = []
    if args.verify:
        from landscape.verify import verify

        opinions = verify(args.ckpt, result)
    out = args.out or hessian_file(args.ckpt)
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


def _sweep(args: Sweep) -> int:
    from landscape.plan import load_sweep
    from landscape.sweep import run_sweep

    result = run_sweep(load_sweep(args.config), args.out, args.jobs, args.overwrite, args.quiet)
    if args.json:
        print(json.dumps(tables.jsonable(result.document())))
    else:
        for _, summary in result.runs:
            print(f"{summary.path}: {summary.steps} steps; {_reached(summary)}")
        for path in result.unconverged:
            print(f"{path}: not every eigenvalue converged")
    for failure in result.failures:
        print(f"error: {failure.path}: {failure.error}\nhint: {failure.hint}", file=sys.stderr)
    return 1 if result.failures else UNFINISHED if result.unconverged else 0


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
