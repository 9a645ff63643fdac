"""Command line: arguments, errors and exit codes. Only the commands import torch."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

import landscape
from landscape.cli.critical import Critical
from landscape.cli.files import Check, Info
from landscape.cli.hessian import Hessian
from landscape.cli.imports import Import
from landscape.cli.printing import discard, printing, results_only, say
from landscape.cli.report import Report
from landscape.cli.slices import Slice
from landscape.cli.sweep import Sweep
from landscape.cli.train import Train
from landscape.config import HessianConfig, TrainConfig, load, preset, replace
from landscape.errors import INTERRUPTED, ConfigError, as_landscape_error, complain, in_file
from landscape.former import former_names

_FORMER = {
    f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-")
    for kind in (HessianConfig, Critical, Slice)
    for old, new in former_names(kind).items()
}
Command = Train | Import | Hessian | Critical | Slice | Sweep | Report | Info | Check


def main() -> None:
    """Entry point of `landscape`."""
    _replace_closed_streams()
    # Characters outside the encoding are escaped, as on stderr.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
        _keep_stdout(sys.stdout)
    try:
        code = run(sys.argv[1:])
    except BrokenPipeError:
        # The reader of the progress has gone; the files can be resumed.
        discard(sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code: 0, 1 or 2 for errors, 3 not converged, 130 interrupted."""
    try:
        if "--version" in argv:
            say(f"landscape {landscape.__version__}")
            return 0
        args = _parse(argv)
        with results_only():
            return args.execute() if args else 0
    except (Exception, SystemExit) as error:
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
    """Open /dev/null in place of closed standard streams, so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The new file gets the lowest free number, that of the closed stream.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _keep_stdout(stdout: io.TextIOWrapper) -> None:
    """Give sys.stdout a descriptor of its own: what libraries and child processes write to number 1 goes to stderr."""
    own = os.dup(stdout.fileno())
    sys.stdout = open(own, "w", encoding=stdout.encoding, errors=stdout.errors)  # noqa: SIM115
    os.dup2(2, stdout.fileno())


def _parse(argv: Sequence[str]) -> Command | None:
    """The command with its options; None after `--help`. Raises ConfigError for usage errors."""
    base = _base_config(argv)
    commands: Any = (
        Annotated[Train, tyro.conf.subcommand("train", default=Train(base))]
        | Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Hessian, tyro.conf.subcommand("hessian")]
        | Annotated[Critical, tyro.conf.subcommand("critical")]
        | Annotated[Slice, tyro.conf.subcommand("slice")]
        | Annotated[Sweep, tyro.conf.subcommand("sweep")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Check, tyro.conf.subcommand("check")]
    )
    box = io.StringIO()
    with printing(), contextlib.redirect_stderr(box):
        try:
            parsed: Command = tyro.cli(
                commands,
                prog="landscape",
                description="Measure the Hessian and loss landscape of networks that grok.",
                args=[_present(argument) for argument in argv],
                config=(tyro.conf.OmitArgPrefixes,),
            )
            return parsed
        except SystemExit as ended:
            if ended.code:
                raise _usage_error(box.getvalue()) from None
    return None


def _present(argument: str) -> str:
    """An argument with the present name of its option."""
    option, equals, value = argument.partition("=")
    return _FORMER.get(option.replace("_", "-"), option) + equals + value


def _usage_error(box: str) -> ConfigError:
    """The error and its hint from tyro's boxed message: parts divided by lines, first the error, then the hint."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in box.splitlines()]
    inside = " ".join(row.strip(" │╰╯") for row in rows[1:])
    wrong, *mends = filter(None, map(str.strip, re.split("─+|-{8,}", inside)))
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '--(.*)'\. Expected one of \((.*)\)\.?", wrong):
        value, option, known = found.groups()
        return ConfigError(f"unknown {option} {value!r}", f"choose one of {known.replace(chr(39), '')}")
    return ConfigError(wrong, mends[0] if mends else "see landscape --help")


def _base_config(argv: Sequence[str]) -> TrainConfig:
    """The options that flags override: those of the resumed run, else of preset and JSON file."""
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
        # An option without its value; the full parser refuses it.
        return preset("quick")
    base = preset(known.preset)
    if known.resume and known.out.exists():
        from landscape.storage.runs import RunReader

        with RunReader(known.out) as reader:
            # Of another's run, which is refused in due course, the options are not known.
            if not reader.is_recorded:
                with in_file(known.out, "config"):
                    base = replace(TrainConfig(), reader.config)
    return load(known.config, base) if known.config else base
