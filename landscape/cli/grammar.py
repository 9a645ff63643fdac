"""What may be typed for a command, brought into the form of its parser."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import tyro

from landscape.cli.declared import Command, Option, declared
from landscape.cli.help import usage, written
from landscape.errors import ConfigError, suggest
from landscape.options import flag_of


def parse(name: str, kind: type[Command], argv: Sequence[str], base: Any = None) -> Command:
    """The command that the arguments ask for. base: a command with its defaults. Raises ConfigError."""
    arguments = plain(kind, argv)
    _require_paths(kind, arguments)
    box = io.StringIO()
    defaults = {} if base is None else {"default": base}
    with contextlib.redirect_stderr(box):
        try:
            parsed: Command = tyro.cli(
                kind, prog=f"landscape {name}", args=arguments, config=(tyro.conf.OmitArgPrefixes,), **defaults
            )
        except SystemExit:
            raise _usage_error(name, kind, arguments, box.getvalue()) from None
    if getattr(parsed, "json", False) and getattr(parsed, "csv", False):
        raise ConfigError("json and csv are two formats", "give one of them")
    return parsed


def plain(kind: type[Command], argv: Sequence[str]) -> list[str]:
    """Arguments in one form: present names of options, values of a list apart, and first the files.

    A run file may follow a flag, such as `--ckpt`, or a list, whose values do not end in .h5. `--` ends all this.
    """
    options = {option.flag: option for option in declared(kind)}
    former = {flag_of(option.was): option.flag for option in options.values() if option.was}
    files: list[str] = []
    rest: list[str] = []
    words = deque(argv)
    while words and words[0] != "--":
        typed, equals, value = words.popleft().partition("=")
        flag = former.get(typed.replace("_", "-"), typed)
        option = options.get(flag)
        if option is None or option.is_positional and option.is_list:
            rest.append(flag + equals + value)
        elif option.is_positional:
            file = value if equals else words.popleft() if words else "--"
            if file.startswith("--"):
                raise ConfigError(f"{typed} lacks its file", f"write it like {typed} FILE")
            # A leading hyphen would make it an option.
            files.append(f"./{file}" if file.startswith("-") else file)
        elif option.is_list:
            values = [value] if equals else []
            while not equals and words and not words[0].startswith("--"):
                (files if words[0].endswith(".h5") else values).append(words.popleft())
            rest += [flag, *_separated(option, values)]
        else:
            rest.append(flag + equals + value)
    return [*files, *rest, *words]


def _require_paths(kind: type[Command], arguments: Sequence[str]) -> None:
    """Raise ConfigError for an empty path, as an unset variable of the shell leaves, which would be the folder here."""
    options = {option.flag: option for option in declared(kind)}
    asked: Option | None = None
    for word in arguments:
        option = options.get(word.partition("=")[0])
        if not word and (asked is None or asked.is_path) or option and option.is_path and word.endswith("="):
            of = option or asked
            raise ConfigError(f"{of.flag if of else 'the file or folder'} is empty", "name a file or folder")
        if option:
            asked = None if option.is_switch or "=" in word else option
        elif not (asked and asked.is_list):
            asked = None


def _separated(option: Option, values: list[str]) -> list[str]:
    """The values of a list, one by one, or in one word if the option is a text."""
    if not option.many or not values:
        return values
    joined = ",".join(value.strip(",") if len(values) > 1 else value for value in values)
    return [joined] if option.kind is str else joined.split(",")


def _usage_error(name: str, kind: type[Command], arguments: Sequence[str], box: str) -> ConfigError:
    """What tyro's boxed message says, in our words: its parts are divided by lines, first the error, then the hint."""
    options = {option.flag: option for option in declared(kind)}
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in box.splitlines()]
    inside = " ".join(row.strip(" │╰╯") for row in rows[1:])
    wrong, *mends = filter(None, map(str.strip, re.split("─+|-{8,}", inside)))
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(?:--)?(.*)'\. Expected one of \((.*)\)\.?", wrong):
        value, option, known = found.groups()
        return ConfigError(f"unknown {option} {value!r}", f"choose one of {known.replace(chr(39), '')}")
    found = re.match(r"(Missing|Error).* '?(--[\w-]+)'?[.:]", wrong)
    if found and found[2] in options:
        problem, option = found[1], options[found[2]]
        if problem == "Missing":
            return ConfigError(f"{option.flag} lacks its value", f"write it like {written(option)}")
        return ConfigError(f"{option.flag} is {_given(option, arguments)}", f"it takes {option.takes}")
    if re.match("Missing value for argument '[a-z]", wrong):
        # The parser took an unknown option for the file.
        word = next((word for word in arguments if word.startswith("-") and word.partition("=")[0] not in options), "")
        return _unknown(name, options.values(), word)
    if wrong.startswith("Missing"):
        lacks = [written(option) for option in options.values() if option.is_required and option.help in wrong]
        return ConfigError(f"landscape {name} lacks {' and '.join(lacks)}", f"write it like {usage(name, kind)}")
    if found := re.match(r"Unrecognized options: ([^,]+)", wrong):
        word = found[1].partition("=")[0]
        if not word.startswith("-"):
            return ConfigError(f"unexpected argument {found[1]!r}", f"write it like {usage(name, kind)}")
        return _unknown(name, options.values(), word)
    return ConfigError(wrong, mends[0] if mends else f"see landscape {name} --help")


def _unknown(name: str, options: Iterable[Option], word: str) -> ConfigError:
    """The error of an option that a command has not, or of a file that would be one."""
    flags = [written(option).split()[0] for option in options if not option.is_positional]
    otherwise = (
        f"for a file of that name write ./{word}" if word.endswith(".h5") else f"landscape {name} --help lists them"
    )
    return ConfigError(f"unknown option {word.partition('=')[0]}", suggest(word, flags, otherwise))


def _given(option: Option, arguments: Sequence[str]) -> str:
    """The value of an option that was given, as it was typed."""
    at = next(i for i, word in enumerate(arguments) if word.replace("_", "-").partition("=")[0] == option.flag)
    if "=" in arguments[at]:
        return repr(arguments[at].partition("=")[2])
    values = list(itertools.takewhile(lambda word: not word.startswith("--"), arguments[at + 1 :]))
    return repr(" ".join(values if option.is_list else values[:1]))
