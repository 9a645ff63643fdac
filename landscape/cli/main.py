"""Command line: arguments, errors and exit codes. Only the commands import torch."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

import landscape
from landscape.cli import (
    compare,
    critical,
    demo,
    export,
    geometry,
    hessian,
    imports,
    inspect,
    report,
    settle,
    slice,
    sweep,
)
from landscape.cli import train as training
from landscape.cli.parser import explained, require_paths, shown
from landscape.cli.printing import discard, results_only, say
from landscape.errors import INTERRUPTED, ConfigError, as_landscape_error, complain
from landscape.ranks import launched


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell to complete in.")], /) -> int:
    """Print a script that completes commands and options in a shell."""
    say(app().generate_completion(shell=shell))
    return 0


COMMANDS: dict[str, tuple[Callable[..., int], tuple[str, ...]]] = {
    "demo": (demo.demo, demo.EXAMPLES),
    "train": (training.train, training.EXAMPLES),
    "import": (imports.import_, imports.EXAMPLES),
    "hessian": (hessian.hessian, hessian.EXAMPLES),
    "critical": (critical.critical, critical.EXAMPLES),
    "settle": (settle.settle, settle.EXAMPLES),
    "slice": (slice.slice, slice.EXAMPLES),
    "geometry": (geometry.geometry, geometry.EXAMPLES),
    "sweep": (sweep.sweep, sweep.EXAMPLES),
    "report": (report.report, report.EXAMPLES),
    "compare": (compare.compare, compare.EXAMPLES),
    "export": (export.export, export.EXAMPLES),
    "info": (inspect.info, inspect.INFO_EXAMPLES),
    "check": (inspect.check, inspect.CHECK_EXAMPLES),
    "completion": (
        completion,
        (
            "landscape completion bash   # for ~/.bashrc",
            "landscape completion zsh    # for _landscape in a folder of $fpath",
        ),
    ),
}
RESTARTED = {"import", "slice", "geometry", "report"}
"""Commands that start again after an interruption; the others resume."""
_EXAMPLES = (
    "landscape demo                                # all of it, in about a minute",
    "landscape train --out checkpoints/run.h5      # train a network to grok",
    "landscape hessian checkpoints/run.h5          # block spectra along its path",
)


def app() -> App:
    """The parser of all commands."""
    parser = App(
        "landscape",
        help=landscape.__doc__,
        help_format="plaintext",
        help_epilogue=_epilogue(_EXAMPLES),
        version=f"landscape {landscape.__version__}",
    )
    flag = Parameter(
        negative="",
        consume_multiple=True,
        allow_repeating=True,
        name_transform=lambda name: name.replace("_", "-"),
        show_default=shown,
    )
    for place, (name, (command, examples)) in enumerate(COMMANDS.items()):
        layers = (require_paths, training.defaults) if name == "train" else (require_paths,)
        parser.command(
            command,
            name=name,
            sort_key=place,
            help_epilogue=_epilogue(examples),
            config=layers,
            default_parameter=flag,
        )
    return parser


def _epilogue(examples: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"  {line}" for line in examples)])


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
    try:
        sys.stderr.flush()
    except OSError:
        # What nobody can read; Python would end with a code of its own.
        discard(sys.stderr)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code: 0, 1 or 2 for errors, 3 not converged, 130 interrupted."""
    launch = launched()
    try:
        try:
            command, bound, _ = app().parse_args(argv, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise explained(error) from None
        if command.__module__.startswith("cyclopts"):
            # --help or --version
            from rich.console import Console

            console = bound.arguments["console"] = Console(width=min(80, shutil.get_terminal_size().columns))
            with console.capture() as text:
                command(*bound.args, **bound.kwargs)
            say(text.get().rstrip())
            return 0
        if launch and command is not hessian.hessian:
            raise ConfigError(
                f"landscape {argv[0]} is for one process; {launch.size} were started", "start it without torchrun"
            )
        with results_only():
            code: int = command(*bound.args, **bound.kwargs)
            return code
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if known := as_landscape_error(error):
            if launch is None or launch.rank == 0:
                complain(known)
            return known.exit_code
        if not _is_interruption(error):
            raise
        again = "starts again" if argv and argv[0] in RESTARTED else "resumes"
        print(f"interrupted: the same command {again}", file=sys.stderr)
        return INTERRUPTED


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C raised an error, perhaps in place of its own: one that comes inside HDF5 leaves it as h5py's."""
    return isinstance(error, KeyboardInterrupt) or (error is not None and _is_interruption(error.__context__))


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
