"""What the file of a user's problem imports from beside itself: part of its source."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

_INSTALLED = {"site-packages", "dist-packages"}


def helpers(file: Path, folder: Path) -> dict[str, Path]:
    """Modules in `folder`, by name, that a file in it imports, and those that they import, in turn.

    Import statements count wherever they stand, whether or not they run, so every process gets the same modules. What
    is installed is not the user's own, nor is this package, where it lies in the same folder.
    """
    modules: dict[str, Path] = {}
    left = [file] if file.is_relative_to(folder) and not _INSTALLED & {*folder.parts} else []
    while left:
        path = left.pop()
        for name in _imported(path, path.parent.relative_to(folder).parts):
            place = folder.joinpath(*name.split("."))
            own = next((p for p in (place / "__init__.py", place.with_name(f"{place.name}.py")) if p.is_file()), file)
            if own != file and name not in modules and name.partition(".")[0] != "landscape":
                modules[name] = own
                left.append(own)
    return modules


def _imported(path: Path, package: tuple[str, ...]) -> Iterator[str]:
    """All names that a file may import, parents first. A file that Python cannot read is refused where it is run."""
    tree = ast.Module([], [])
    with contextlib.suppress(OSError, SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
        tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = [*start, *([node.module] if node.module else [])]
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
