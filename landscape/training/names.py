"""The steps in the names of checkpoints: never guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from landscape.errors import ConfigError, FileError
from landscape.text import first_few

_NUMBER = re.compile(r"\d+(?:\.\d+)*(?:[A-Za-z%]+(?![A-Za-z]))?")
"""A number with the letters that follow it at once, such as the unit of 10k."""
_NAMED = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?)[=_-]?(\d+)(?![\d.]*[0-9A-Za-z%])", re.I)
"""A number that a name calls its step."""
_LONGEST = 15


def pattern_of(text: str) -> re.Pattern[str]:
    """The regular expression of --step-pattern. Raises ConfigError for one without a group."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"--step-pattern {text!r} is no regular expression: {error}", r"such as 'step(\d+)'"
        ) from error
    if not pattern.groups:
        raise ConfigError(f"--step-pattern {text!r} has no group", r"put the step in brackets: 'step(\d+)'")
    return pattern


def steps_of(names: Sequence[str], pattern: str) -> dict[str, int]:
    """The step of each name that has one.

    names: without suffixes. pattern: a regular expression whose first group is the step; empty: the number after `step`
    or `iter`, a name's only number, or the only one in which names that are else alike differ. Raises FileError where
    that leaves a doubt, ConfigError for a pattern that matches no number.
    """
    if pattern:
        compiled = pattern_of(pattern)
        found = {name: match[1] or "" for name in names if (match := compiled.search(name))}
    else:
        found = _numbers(names)
    for name, digits in found.items():
        if not re.fullmatch(rf"\d{{1,{_LONGEST}}}", digits, re.ASCII):
            raise ConfigError(f"the step of {name} would be {digits!r}", "let the group of --step-pattern match digits")
    return {name: int(digits) for name, digits in found.items()}


def _numbers(names: Sequence[str]) -> dict[str, str]:
    """The number in each name that is its step beyond doubt. Raises FileError for a name of which there is none."""
    found: dict[str, str] = {}
    alike: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if len(named := _NAMED.findall(name)) == 1:
            found[name] = named[0]
        elif numbers := _NUMBER.findall(name):
            alike.setdefault(_NUMBER.sub("#", name), {})[name] = numbers
    for group in alike.values():
        columns = list(zip(*group.values(), strict=True))
        differing = [column for column in columns if len(set(column)) > 1] if len(columns) > 1 else columns
        if len(differing) != 1 or not all(number.isdigit() for number in differing[0]):
            name, numbers = next(iter(group.items()))
            raise FileError(
                f"which number is the step of {name}? It has {first_few(numbers, 5)}", _hint(names, name, numbers)
            )
        found |= dict(zip(group, differing[0], strict=True))
    return found


def _hint(names: Sequence[str], name: str, numbers: Sequence[str]) -> str:
    """A pattern that works for all names with numbers; preferably of a whole number, and of the last one."""
    places = list(_NUMBER.finditer(name))
    for match in sorted(places, key=lambda m: (m[0].isdigit(), "." not in m[0], m.start()), reverse=True):
        digits = re.match(r"\d+", match[0])
        start = max((other.end() for other in places if other.end() <= match.start()), default=0)
        unit = match[0][len(digits[0]) :] if digits else ""
        if not digits or "." in unit:
            continue
        text = re.escape(name[start : match.start()]).replace("\\-", "-") or "^"
        pattern = rf"{text}(\d+){unit}"
        found = {other: re.search(pattern, other) for other in names if _NUMBER.search(other)}
        steps = {match[1] for match in found.values() if match}
        if len(steps) == len(found) and re.search(pattern, name)[1] == digits[0]:  # type: ignore[index]
            # Joined, for a pattern may begin with a hyphen.
            what = f"takes {digits[0]} for {match[0]}" if unit else f"takes {digits[0]}"
            return f"--step-pattern='{pattern}' {what}; else rename the files, such as step{digits[0]}"
    return "rename the files, such as step100"
