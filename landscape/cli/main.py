"""Arguments, printing and exit codes; torch is imported only inside the commands."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import tyro

import landscape
from landscape.cli import tables
from landscape.cli.commands import Check, Command, Critical, Hessian, Info, Report, Slice, Sweep, Train
from landscape.config import AnalysisConfig, TrainConfig, load, preset, replace
from landscape.errors import ConfigError, FileError, NumericsError, as_landscape_error, complain, working_on
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.storage.hessians import SpectrumReader
    from landscape.training.loop import RunSummary

UNFINISHED, INTERRUPTED = 3, 130


def main() -> None:
    """Entry point of `landscape`."""
    _replace_closed_streams()
    # What the encoding lacks is shown as \\u03bb and the like, as on stderr.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
    except BrokenPipeError:
        # Whoever read the progress has gone, and with it the user; what was written can be resumed.
        _discard(sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code: 0, 1 or 2 for errors, 3 not converged, 130 interrupted."""
    try:
        if "--version" in argv:
            _say(f"landscape {landscape.__version__}")
            return 0
        args = _parse(argv)
        match args:
            case None:
                return 0
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
    except Exception as error:
        if known := as_landscape_error(error):
            complain(known)
            return known.exit_code
        raise
    except KeyboardInterrupt as stopped:
        print(
            str(stopped) or "interrupted: the same command resumes (`landscape train` with --resume)", file=sys.stderr
        )
        return INTERRUPTED


def _replace_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams: no file takes their numbers, no print goes elsewhere."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that was closed.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Around prints to stdout. A reader that has gone, such as `head`, wants no more: the rest is dropped."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        error.filename = "standard output"
        raise


def _discard(stream: TextIO) -> None:
    """Send what is left in a stream's buffer, and all that follows, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text: str) -> None:
    with _printing():
        print(text)


def _parse(argv: Sequence[str]) -> Command | None:
    """The command with its options; None if help was asked for and printed. Raises ConfigError for usage errors."""
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
    box = io.StringIO()
    with _printing(), contextlib.redirect_stderr(box):
        try:
            parsed: Command = tyro.cli(
                commands,
                prog="landscape",
                description="Direct Hessian measurements of the loss landscape of networks that grok.",
                args=list(argv),
                config=(tyro.conf.OmitArgPrefixes,),
            )
            return parsed
        except SystemExit as ended:
            if ended.code:
                raise _usage_error(box.getvalue()) from None
    return None


def _usage_error(box: str) -> ConfigError:
    """What tyro says in a box, under a title in parts divided by lines: first what is wrong, then how to mend it."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in box.splitlines()]
    inside = " ".join(row.strip(" │╰╯") for row in rows[1:])
    wrong, *mends = filter(None, map(str.strip, re.split("─+|-{8,}", inside)))
    return ConfigError(wrong, mends[0] if mends else "see landscape --help")


def _base_config(argv: Sequence[str]) -> TrainConfig:
    """The options under the flags: the run that is resumed, else preset and JSON file."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--preset", default="quick")
    early.add_argument("--config", type=Path)
    early.add_argument("--out", type=Path, default=Path("checkpoints/run.h5"))
    early.add_argument("--resume", action="store_true")
    if not argv or argv[0] != "train":
        return preset("quick")
    try:
        known, _ = early.parse_known_args(argv[1:])
    except argparse.ArgumentError:
        # An option without its value, which is refused in due course.
        return preset("quick")
    base = preset(known.preset)
    if known.resume and known.out.exists():
        from landscape.storage.runs import RunReader

        with RunReader(known.out) as reader:
            base = replace(TrainConfig(), reader.config)
    return load(known.config, base) if known.config else base


def _train(args: Train) -> int:
    from landscape.training.ensemble import ensemble
    from landscape.training.loop import train_ensemble

    runs = ensemble(args.run, args.out, args.seeds, args.vary)
    with working_on(args.out):
        summaries = train_ensemble(runs, args.resume, args.overwrite, args.quiet, args.fsync)
    if args.json:
        documents = [dataclasses.asdict(summary) for summary in summaries]
        _say(tables.document(documents if args.seeds or args.vary else documents[0]))
    else:
        for summary in summaries:
            _print_summary(summary)
    diverged = [summary.divergence for summary in summaries if summary.divergence]
    for error in diverged:
        complain(error)
    return INTERRUPTED if any(summary.status == "interrupted" for summary in summaries) else 1 if diverged else 0


def _print_summary(summary: RunSummary) -> None:
    _say(
        f"{printable(summary.path)}: {summary.status} at step {summary.steps}, {summary.checkpoints} checkpoints\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {_reached(summary)}"
    )


def _reached(summary: RunSummary) -> str:
    thresholds = (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    return "; ".join(f"{n} at step {step}" if step is not None else f"{n}: not reached" for n, step in thresholds)


def _hessian(args: Hessian) -> int:
    from landscape.analysis.hessian import analyse
    from landscape.storage.files import hessian_file

    out = args.out or hessian_file(args.ckpt)
    with working_on(out):
        result = analyse(args.ckpt, args.analysis, out, args.overwrite, args.quiet, args.fsync)
    opinions = []
    if args.verify:
        from landscape.analysis.verify import verify

        opinions = verify(args.ckpt, result)
    if args.json:
        _print_json(out, result, verify=[dataclasses.asdict(o) for o in opinions])
    else:
        _say(f"{tables.measurements(result)}\n{tables.verification(opinions)}written: {printable(out)}")
    if not all(o.agrees for o in opinions):
        raise NumericsError("the dense Hessian disagrees", "please report this with the run file")
    return 0 if all(map(result.converged, result.steps)) else UNFINISHED


def _print_json(out: Path, result: SpectrumReader, **more: Any) -> None:
    from landscape.storage.contents import known_attributes

    document = {
        "file": str(out),
        "attributes": known_attributes(result.attrs),
        "blocks": result.blocks,
        "pairs": result.pairs,
        "steps": [{"step": step, **tables.known(result.row(step))} for step in result.steps],
        **more,
    }
    _say(tables.document(document))


def _critical(args: Critical) -> int:
    from landscape.analysis.critical import STATUS, default_output, refine

    out = args.out or default_output(args.ckpt, args.step)
    with working_on(out):
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
        _say(f"{tables.critical_point(status, point)}\n\n{tables.measurements(result)}\nwritten: {printable(out)}")
    return 0 if status == "critical" and all(map(result.converged, result.steps)) else UNFINISHED


def _slice(args: Slice) -> int:
    from landscape.analysis.slices import slice_checkpoint

    analysis = AnalysisConfig(
        objective=args.objective, method=args.method, max_products=args.max_products, device=args.device
    )
    out = args.out or Path("reports") / f"{args.ckpt.stem}-slices-{args.step}"
    with working_on(out):
        drawn, paths = slice_checkpoint(args.ckpt, args.step, args.slice, analysis, out, args.overwrite)
    numbers = [f"{name}: {value}" for name, value in drawn.numbers.items()]
    _say("\n".join(map(printable, [drawn.caption, *numbers, *paths])))
    return 0


def _sweep(args: Sweep) -> int:
    from landscape.sweep.plan import load_sweep
    from landscape.sweep.run import run_sweep

    with working_on(args.out):
        result = run_sweep(load_sweep(args.config), args.out, args.jobs, args.overwrite, args.quiet)
    if args.json:
        _say(tables.document(result.document()))
    else:
        lines = [f"{summary.path}: {summary.steps} steps; {_reached(summary)}" for _, summary in result.runs]
        lines += [f"{path}: not every eigenvalue converged" for path in result.unconverged]
        for line in lines:
            _say(printable(line))
    for failure in result.failures:
        complain(FileError(f"{failure.path}: {failure.error}", failure.hint))
    return 1 if result.failures else UNFINISHED if result.unconverged else 0


def _report(args: Report) -> int:
    from landscape.report.page import write_report

    if not args.files:
        raise ConfigError("no file given", "name run or Hessian files: landscape report RUN.h5 ...")
    out = args.out or Path("reports") / args.files[0].name.removesuffix(".h5").removesuffix(".hessian")
    with working_on(out):
        page = write_report(args.files, out, args.overwrite, args.quiet)
    _say(printable(page))
    return 0


def _info(args: Info) -> int:
    from landscape.storage.inspect import inspect

    state = inspect(args.file)
    if args.config:
        _say(tables.document(state.config, indent=2))
    elif args.json:
        _say(tables.document(dataclasses.asdict(state)))
    else:
        _say(tables.contents(state))
    return 0


def _check(args: Check) -> int:
    from landscape.storage.inspect import inspect, repair

    state = inspect(args.file)
    if args.repair and (state.damage or not state.finished):
        kept = repair(args.file)
        if kept:
            print(f"kept the file as it was: {printable(kept)}", file=sys.stderr)
        state = inspect(args.file)
    if args.json:
        _say(tables.document(dataclasses.asdict(state)))
    else:
        _say(tables.soundness(state))
    return 1 if state.damage else 0 if state.finished else UNFINISHED
