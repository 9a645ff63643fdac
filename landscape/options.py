"""One declaration a field of a config: its default, help, choices and bounds, and what checks them."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from landscape.choices.registry import Registry
from landscape.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Default = TypeVar("Default")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a number has to lie between."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def hold(self, x: float) -> bool:
        """Whether they hold for a number; they never do for NaN and infinity."""
        return -math.inf < x < math.inf and self.at_least <= x <= self.at_most and self.above < x < self.below

    def words(self, number: str) -> str:
        """What a value is, `number` being "a number" or "an integer"."""
        if self.above == 0 and min(self.at_most, self.below) == 1:
            return "a fraction between 0 and 1"
        if self.at_most < math.inf:
            start = f"from {_short(self.at_least)} to" if self.at_least > -math.inf else "up to"
            return f"{number} {start} {_short(self.at_most)}"
        return f"{number} {f'>= {self.at_least}' if self.at_least > -math.inf else f'> {self.above}'}"


def field(
    default: Default,
    help: str,
    choices: Registry[Any] | None = None,
    **bounds: float,
) -> Default:
    """A field of a config: default, help, and what it takes: the names of a registry, or numbers within `Bounds`."""
    shown = f"{help} {choices.meanings}." if choices else help
    limits = Bounds(**bounds) if bounds else None
    metadata = {"help": shown, "choices": choices, "bounds": limits}
    return dataclasses.field(default=default, metadata=metadata)


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def check(config: DataclassInstance) -> None:
    """Raise ConfigError for a field whose value does not have the annotated type or lies outside its bounds."""
    for f in dataclasses.fields(config):
        value, choices = getattr(config, f.name), f.metadata.get("choices")
        if choices is not None and isinstance(value, str):
            choices[value]
        elif not _fits(value, kind := _kinds(type(config))[f.name]):
            raise _misfit(f.name, value, kind, str(f.type))
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and abs(number) >> 64 for number in numbers):
            raise ConfigError(f"{f.name} cannot be {reprlib.repr(value)}", "it takes numbers below 2^64")
    check_bounds(config)


def check_bounds(config: DataclassInstance) -> None:
    """Raise ConfigError for a field whose number lies outside its bounds, with what its flag takes."""
    for f in dataclasses.fields(config):
        value, bounds = getattr(config, f.name), f.metadata.get("bounds")
        if bounds and isinstance(value, int | float) and not bounds.hold(value):
            number = "an integer" if int in (kind := _kinds(type(config))[f.name], *get_args(kind)) else "a number"
            names = [name for part in get_args(kind) for name in get_args(part)]
            wanted = bounds.words(number) + ("," + " or ".join(["", *names]) if names else "")
            raise ConfigError(f"{f.name} is {value}", f"{flag_of(f.name)} takes {wanted}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a type."""
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, type) and kind is not tuple and not hasattr(kind, "__origin__"):
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    origin = getattr(kind, "__origin__", None)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(kind)[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, get_args(kind)[1]) for v in value.values())
    return any(_fits(value, part) for part in get_args(kind))


def _misfit(name: str, value: Any, kind: Any, annotation: str) -> ConfigError:
    if get_origin(kind) is not Literal:
        return ConfigError(f"{name} cannot be {reprlib.repr(value)}", f"it takes {annotation}")
    known = ", ".join(map(str, get_args(kind)))
    return ConfigError(f"unknown {name} {reprlib.repr(value)}", f"choose one of {known}")


def _short(number: float) -> str:
    """A number, those about a power of two by it."""
    for less in range(3):
        power = abs(int(number)) + less
        if power >= 1 << 20 and power & (power - 1) == 0:
            return f"{'-' * (number < 0)}2^{power.bit_length() - 1}{f' - {less}' * (less > 0)}"
    return str(number)


@functools.cache
def _kinds(config: type) -> dict[str, Any]:
    """The types of a config's fields, whose annotations are strings."""
    return get_type_hints(config)
