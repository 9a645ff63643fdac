"""Options as cyclopts reads them: flags of dataclasses, and its errors in the words of this program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter, exceptions

from landscape.errors import ConfigError, suggest
from landscape.options import check_bounds, field

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from cyclopts.argument import Argument, ArgumentCollection

Config = TypeVar("Config", bound="DataclassInstance")
FLAT = Parameter(name="*")
"""What makes a flag without a prefix of each field of a dataclass."""
RunFile: TypeAlias = Annotated[Path, Parameter(name=["--run", "--ckpt"], help="Run file.")]


@FLAT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command, checked against their bounds."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Printed(Options):
    """Options of a command that prints a table."""

    json: bool = field(False, "Print everything as one JSON document.")
    csv: bool = field(False, "Print a table as CSV.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json and self.csv:
            raise ConfigError("json and csv are two formats", "give one of them")


def flags(config: DataclassInstance, headings: Mapping[str, Sequence[str]]) -> Any:
    """A dataclass with the fields of a config, each under its heading of the help, and its values as defaults.

    Of a switch that is on, the flag is --no-NAME.
    """
    kind, hints = type(config), get_type_hints(type(config))
    fields = {f.name: f for f in dataclasses.fields(config)}
    members: list[tuple[str, Any, Any]] = []
    for heading, names in headings.items():
        group = Group.create_ordered(heading)
        for name in filter(fields.get, names):
            default = getattr(config, name)
            flag = Parameter(group=group, negative=f"--no-{name}" if default is True else "")
            value = dataclasses.field(default=default, metadata=fields[name].metadata)
            members.append((name, Annotated[hints[name], flag], value))
    # cyclopts takes classes of the module `types` for built-in ones.
    namespace = {"__module__": kind.__module__}
    return FLAT(dataclasses.make_dataclass(kind.__name__, members, bases=(kind,), frozen=True, namespace=namespace))


def plain(config: Config) -> Config:
    """The config of the library, from one that `flags` made."""
    kind = type(config).__base__
    assert kind is not None
    library_config: Config = kind(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
    return library_config


def shown(default: Any) -> str | None:
    """A default in the help, where it says something."""
    if default is None or default in ("", ()) or isinstance(default, bool):
        return None
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def require_paths(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raise ConfigError for an empty path, as an unset variable of the shell leaves, which would be the folder here."""
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        if Path in kinds and any(not token.value for token in argument.tokens):
            raise ConfigError(f"{_name(argument)} is empty", "name a file or folder")


def explained(error: exceptions.CycloptsError) -> ConfigError:
    """An error of the parser: what is wrong, and how to mend it."""
    command = " ".join(["landscape", *(error.command_chain or ())])
    see = f"see {command} --help"
    match error:
        case exceptions.UnknownCommandError():
            word, known = (error.unused_tokens or [""])[0], [name for name in error.app or () if name[0] != "-"]
            return ConfigError(f"unknown command {word!r}", suggest(word, known))
        case exceptions.UnknownOptionError():
            word = (error.token.keyword or error.token.value).partition("=")[0]
            known = [name for argument in error.argument_collection for name in argument.names if name[0] == "-"]
            return ConfigError(f"unknown option {word}", suggest(word, known, see))
        case exceptions.UnusedCliTokensError():
            return ConfigError(f"unexpected argument {(error.unused_tokens or [''])[0]!r}", see)
        case exceptions.CoercionError(argument=argument, token=token) if argument and token:
            if get_origin(argument.hint) is Literal:
                what = _name(argument).lstrip("-").lower()
                return ConfigError(
                    f"unknown {what} {token.value!r}", suggest(token.value, map(str, get_args(argument.hint)))
                )
            return ConfigError(f"{_name(argument)} is {token.value!r}", f"it takes {_takes(argument.hint)}")
        case exceptions.MissingArgumentError(argument=argument) if argument:
            if error.keyword:
                return ConfigError(f"{error.keyword} lacks its value", see)
            name = _name(argument)
            first = f"write it first: {command} {name}" if argument.field_info.is_positional else see
            return ConfigError(f"{command} lacks {name}", first)
        case _:
            error.verbose = False
            return ConfigError(str(error), see)


def _name(argument: Argument) -> str:
    """The flag of an argument; of a file, its name in the usage."""
    return argument.name if not argument.field_info.is_positional else argument.name.lstrip("-").upper()


def _takes(hint: Any) -> str:
    """The values of a type, in words."""
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    words = {int: "an integer", float: "a number", Path: "a path", bool: "true or false", str: "a text"}
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (type(None), Ellipsis)]
    return words[hint] if hint in words else " or ".join(map(_takes, kinds))
