"""Command line: arguments, errors and exit codes. Only the commands import torch."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from collections.abc import Sequence
from typing import Literal

import tyro

import landscape
from landscape.cli.compare import Compare
from landscape.cli.completion import script
from landscape.cli.critical import Critical
from landscape.cli.declared import Command
from landscape.cli.demo import Demo
from landscape.cli.export import Export
from landscape.cli.files import Check, Info
from landscape.cli.geometry import Geometry
from landscape.cli.grammar import parse
from landscape.cli.help import overview, page
from landscape.cli.hessian import Hessian
from landscape.cli.imports import Import
from landscape.cli.printing import discard, results_only, say
from landscape.cli.report import Report
from landscape.cli.slices import Slice
from landscape.cli.sweep import Sweep
from landscape.cli.train import Train, base_config
from landscape.errors import INTERRUPTED, ConfigError, as_landscape_error, complain, lookup
from landscape.options import required
from landscape.ranks import launched


@dataclasses.dataclass(frozen=True)
class Completion(Command):
    """A script that completes commands and options in a shell, to be read when it starts."""

    examples = (
        "landscape completion bash >> ~/.bashrc   # or zsh >> ~/.zshrc",
        "landscape completion fish > ~/.config/fish/completions/landscape.fish",
    )
    groups = {"shell": ("shell",)}

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]] = required("Shell to complete in.")

    def execute(self) -> int:
        say(script(self.shell, COMMANDS))
        return 0


COMMANDS: dict[str, type[Command]] = {
    "demo": Demo,
    "train": Train,
    "import": Import,
    "hessian": Hessian,
    "critical": Critical,
    "slice": Slice,
    "geometry": Geometry,
    "sweep": Sweep,
    "report": Report,
    "compare": Compare,
    "export": Export,
    "info": Info,
    "check": Check,
    "completion": Completion,
}
HELP = {"-h", "--help"}


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
        if "--version" in argv:
            say(f"landscape {landscape.__version__}")
            return 0
        args = _parse(argv)
        if launch and args and not isinstance(args, Hessian):
            name = type(args).__name__.lower()
            raise ConfigError(
                f"landscape {name} is for one process; {launch.size} were started", "start it without torchrun"
            )
        with results_only():
            return args.execute() if args else 0
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if known := as_landscape_error(error):
            if launch is None or launch.rank == 0:
                complain(known)
            return known.exit_code
        if not _is_interruption(error):
            raise
        kind = COMMANDS.get(argv[0]) if argv else None
        print(f"interrupted: {(kind or Command).interrupted}", file=sys.stderr)
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


def _parse(argv: Sequence[str]) -> Command | None:
    """The command with its options; None after `--help`. Raises ConfigError for usage errors."""
    name, *arguments = argv or [""]
    for word in argv:
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise ConfigError(
                f"{word!r} is no name that the system knows", "write it without half characters"
            ) from None
    if name in HELP:
        say(overview(COMMANDS))
        return None
    if not name:
        raise ConfigError("no command is given", f"name one: {', '.join(COMMANDS)}; see landscape --help")
    kind = lookup(COMMANDS, "command", name)
    base = Train(base_config(arguments)) if kind is Train else None
    if HELP & set(arguments):
        say(page(name, kind, base))
        return None
    return parse(name, kind, arguments, base)
