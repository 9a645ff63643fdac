"""The options of a command, read from the dataclasses that declare them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

import tyro

from landscape.options import check_bounds, flag_of

RunFile: TypeAlias = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""The positional argument of the commands that work on one run."""


@dataclasses.dataclass(frozen=True)
class Command(abc.ABC):
    """A command: a frozen dataclass, whose fields and those of the configs in it are its options.

    examples: command lines, each with a comment; groups: names of the fields under each heading of the help;
    interrupted: what an interrupted command leaves to be done.
    """

    examples: ClassVar[tuple[str, ...]]
    groups: ClassVar[dict[str, tuple[str, ...]]]
    interrupted: ClassVar[str] = "the same command resumes"

    def __post_init__(self) -> None:
        """Raise ConfigError for a number outside the bounds of its field."""
        check_bounds(self)

    @abc.abstractmethod
    def execute(self) -> int:
        """Run the command; returns its exit code."""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option or positional argument.

    kind: its type; default: its value where it is not given, MISSING where it has to be; was: its former name;
    many: whether commas separate values of it.
    """

    name: str
    kind: Any
    default: Any
    help: str
    was: str
    many: bool
    is_positional: bool

    @property
    def flag(self) -> str:
        """The flag, as the parser has it."""
        return flag_of(self.name)

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def is_required(self) -> bool:
        """Whether the command does not run without it."""
        return self.default is dataclasses.MISSING

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return self.many or self._is_tuple

    @property
    def is_path(self) -> bool:
        """Whether it takes files or folders."""
        return Path in self._kinds()

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty where it takes other values alone."""
        return tuple(str(word) for kind in self._kinds() if get_origin(kind) is Literal for word in get_args(kind))

    @property
    def metavar(self) -> str:
        """Its value in the usage: the words that it takes, or what stands for others."""
        one = self.name.upper()
        if self.is_list:
            one = one.removesuffix("S")
        names = {int: "N", float: "X", Path: one if self.is_positional else "PATH"}
        shown = [names.get(kind, one) for kind in self._kinds() if get_origin(kind) is not Literal]
        words = [*dict.fromkeys(shown), *self.choices]
        one = "{" + ",".join(words) + "}" if self.choices and not shown else "|".join(words)
        return f"{one} ..." if self.is_list else one

    @property
    def takes(self) -> str:
        """The numbers and words that it takes, in a sentence."""
        names = {int: "integers", float: "numbers"} if self.is_list else {int: "an integer", float: "a number"}
        *most, last = [*(names[kind] for kind in self._kinds() if kind in names), *self.choices]
        return f"{', '.join(most)} or {last}" if most else last

    @property
    def _is_tuple(self) -> bool:
        return get_origin(self.kind) is tuple

    def _kinds(self) -> list[Any]:
        """The types of one value."""
        if self._is_tuple:
            return [get_args(self.kind)[0]]
        union = [] if get_origin(self.kind) is Literal else get_args(self.kind)
        return [kind for kind in union or (self.kind,) if kind is not NoneType]


def declared(kind: type[Any], base: Any = None) -> Iterator[Option]:
    """The options of a command or config, those of its nested configs included.

    base: what has the defaults instead of the dataclass.
    """
    hints = get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        default = f.default if base is None else getattr(base, f.name)
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from declared(hint, None if default is dataclasses.MISSING else default)
            continue
        # What the parser is told about a field, it is told of positional arguments.
        is_positional = get_origin(hint) is Annotated
        plain = get_args(hint)[0] if is_positional else hint
        told = f.metadata
        yield Option(f.name, plain, default, told["help"], told["was"], told.get("many", False), is_positional)
