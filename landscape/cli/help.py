"""`landscape --help` and `landscape COMMAND --help`, from the declarations of the commands."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from landscape.cli.declared import Command, Option, declared

_WIDEST = 80
_LEFT = 24
"""Columns of names; the text of a longer one starts on the next line."""
_EXAMPLES = (
    "landscape demo                                # all of it, in about a minute",
    "landscape train --out checkpoints/run.h5      # train a network to grok",
    "landscape hessian checkpoints/run.h5          # block spectra along its path",
)


def overview(commands: Mapping[str, type[Command]]) -> str:
    """The help of the whole program."""
    rows = [_row(name, _summary(kind), left=14) for name, kind in commands.items()]
    return "\n".join(
        [
            "usage: landscape COMMAND [options]",
            "",
            "Measure the Hessian and loss landscape of networks that grok.",
            "",
            *_examples(_EXAMPLES),
            "",
            "commands:",
            *rows,
            "",
            "landscape COMMAND --help explains a command; --version prints the version.",
        ]
    )


def page(name: str, kind: type[Command], base: Any = None) -> str:
    """The help of a command. base: a command with the defaults that are shown."""
    options = {option.name: option for option in declared(kind, base)}
    lines = [f"usage: {usage(name, kind)}", "", *_wrapped(" ".join((kind.__doc__ or "").split())), ""]
    lines += _examples(kind.examples)
    for heading, names in kind.groups.items():
        lines += ["", f"{heading}:", *(_row(written(options[n]), _text(options[n])) for n in names)]
    return "\n".join(lines)


def usage(name: str, kind: type[Command]) -> str:
    """A command with what has to be given."""
    return " ".join(filter(None, ["landscape", name, *map(_asked, declared(kind)), "[options]"]))


def _summary(kind: type[Any]) -> str:
    """The first sentence of a command's docstring."""
    return (kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _examples(lines: tuple[str, ...]) -> list[str]:
    return ["examples:", *(f"  {line}" for line in lines)]


def _asked(option: Option) -> str:
    """An option in the usage: a file, or what has to be given; empty for others."""
    if option.is_required:
        return written(option)
    return f"[{written(option)}]" if option.is_positional else ""


def written(option: Option) -> str:
    """An option with what it takes, as it is typed."""
    if option.is_positional:
        return option.metavar
    if option.is_switch:
        return option.flag if option.default is not True else option.flag.replace("--", "--no-", 1)
    return f"{option.flag} {option.metavar}"


def _text(option: Option) -> str:
    """What an option does, and its default where that says something."""
    if option.is_switch:
        return option.help if option.default is not True else f"Turn off the {option.help[0].lower()}{option.help[1:]}"
    if option.is_required:
        return option.help if option.is_positional else f"{option.help} (required)"
    shown = option.default
    if isinstance(shown, tuple):
        shown = " ".join(map(str, shown))
    if shown in (None, ""):
        return option.help
    return f"{option.help} (default: {shown if isinstance(shown, str | Path) else format(shown, '.10g')})"


def _row(name: str, text: str, left: int = _LEFT) -> str:
    """A name and its text beside it, or below it where the name is long."""
    lines = _wrapped(text, left)
    if len(name) + 4 <= left:
        return "\n".join([f"  {name:{left - 2}}{lines[0].strip()}", *lines[1:]])
    return "\n".join([f"  {name}", *lines])


def _wrapped(text: str, indent: int = 0) -> list[str]:
    """Lines that fit the terminal, of no more columns than are easily read."""
    width = max(2 * _LEFT, min(_WIDEST, shutil.get_terminal_size().columns))
    room = " " * indent
    return textwrap.wrap(
        text,
        width,
        initial_indent=room,
        subsequent_indent=room,
        break_long_words=False,
        break_on_hyphens=False,
    )
