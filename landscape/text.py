"""Text for people: escaped for the terminal, plots and CSV, and shortened."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def printable(text: object) -> str:
    r"""One line of text with control, bidirectional and invisible characters escaped, as in \x1b."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def literal(name: str) -> str:
    """A name as a label of a plot that shows its letters.

    Matplotlib typesets what stands between dollars, and leaves labels that begin with an underscore out of legends.
    """
    return " " * name.startswith("_") + name.replace("$", r"\$")


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet evaluates: an apostrophe precedes text that looks like a formula."""
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if value.startswith(_FORMULA) and not _is_number(shown) else shown


def csv_text(table: pd.DataFrame) -> str:
    """A table without its index, with text in headers and cells escaped."""
    text = table.select_dtypes(exclude=["number", "bool"]).columns
    safe = table.assign(**{name: table[name].map(csv_cell) for name in text})
    shown: str = safe.rename(columns=csv_cell).to_csv(index=False, lineterminator="\n")
    return shown


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index, with text in headers and cells escaped."""
    path.write_text(csv_text(table), encoding="utf-8")


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def first_few(words: Sequence[str], most: int, between: str = ", ") -> str:
    """The first of some words, and how many there are besides."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def counted(number: int) -> str:
    """A count for a message, of whatever size."""
    return f"{number:,}" if number < 10**12 else "more than 10^12"
