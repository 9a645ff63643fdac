"""What may be typed for a command, brought into the form of its parser."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any

import tyro

from landscape.cli.declared import Command, declared, flag_of
from landscape.errors import ConfigError


def parse(name: str, kind: type[Command], argv: Sequence[str], base: Any = None) -> Command:
    """The command that the arguments ask for. base: a command with its defaults. Raises ConfigError."""
    arguments = plain(kind, argv)
    box = io.StringIO()
    defaults = {} if base is None else {"default": base}
    with contextlib.redirect_stderr(box):
        try:
            parsed: Command = tyro.cli(
                kind, prog=f"landscape {name}", args=arguments, config=(tyro.conf.OmitArgPrefixes,), **defaults
            )
        except SystemExit:
            raise _usage_error(name, box.getvalue()) from None
    return parsed


def plain(kind: type[Command], argv: Sequence[str]) -> list[str]:
    """Arguments with the present names of options, and first the file that is named with a flag, such as `--ckpt`."""
    options = list(declared(kind))
    former = {flag_of(option.was): option.flag for option in options if option.was}
    with_flag = {option.flag for option in options if option.is_positional and not option.is_list}
    files, rest = [], []
    words = iter(argv)
    for word in words:
        typed, equals, value = word.partition("=")
        flag = former.get(typed.replace("_", "-"), typed)
        if flag not in with_flag:
            rest.append(flag + equals + value)
            continue
        file = value if equals else next(words, "--")
        if file.startswith("--"):
            raise ConfigError(f"{typed} lacks its file", f"write it like {typed} FILE")
        # A leading hyphen would make it an option.
        files.append(f"./{file}" if file.startswith("-") else file)
    return [*files, *rest]


def _usage_error(name: str, box: str) -> ConfigError:
    """The error and its hint from tyro's boxed message: parts divided by lines, first the error, then the hint."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in box.splitlines()]
    inside = " ".join(row.strip(" │╰╯") for row in rows[1:])
    wrong, *mends = filter(None, map(str.strip, re.split("─+|-{8,}", inside)))
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '--(.*)'\. Expected one of \((.*)\)\.?", wrong):
        value, option, known = found.groups()
        return ConfigError(f"unknown {option} {value!r}", f"choose one of {known.replace(chr(39), '')}")
    return ConfigError(wrong, mends[0] if mends else f"see landscape {name} --help")
