"""Former names of keyword arguments, which are still accepted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)


def renamed(**names: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a function take keyword arguments by their former names; names: former=present."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            # The former name wins: dataclasses.replace gives the present one as well.
            former = {names[name]: value for name, value in kwargs.items() if name in names}
            present = {name: value for name, value in kwargs.items() if name not in names}
            return cast(Callable[..., Result], function)(*args, **{**present, **former})

        return call

    return decorate


def former_names(kind: type) -> dict[str, str]:
    """Present names of a dataclass's fields by their former names, which the metadata `was` holds."""
    return {f.metadata["was"]: f.name for f in dataclasses.fields(kind) if f.metadata.get("was")}


def renamed_fields(kind: Class) -> Class:
    """Let a dataclass be made with the former names of its fields."""
    kind.__init__ = renamed(**former_names(kind))(kind.__init__)  # type: ignore[misc]
    return kind
