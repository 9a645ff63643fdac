"""The house: arrows run one way, modules stay small, and nothing heavy is imported at start-up."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from landscape.config import TrainConfig

ROOT = Path(__file__).parents[1]
# Each room with the floor it stands on; an import may only go down, or stay inside its room.
FLOORS = {
    "cli": 6,
    "jobs": 5,
    "report": 5,
    "measure": 4,
    "training": 4,
    "exports": 3,
    "models": 3,
    "curvature": 2,
    "files": 2,
    "workers": 1.5,
    "ranks": 1.5,
    "devices": 1,
    "provenance": 1,
    "config": 1,
    "signals": 1,
    "options": 0.9,
    "combinations": 0.9,
    "json_files": 0.8,
    "choices": 0.8,
    "errors": 0.5,
    "results": 0.5,
    "memory": 0,
    "presets": 0,
    "progress": 0,
    "text": 0,
}


def room(module: str) -> str:
    name = module.removeprefix("landscape.")
    return max((r for r in FLOORS if name == r or name.startswith(r + ".")), key=len, default="")


def modules() -> list[Path]:
    return sorted((ROOT / "landscape").rglob("*.py"))


def scripts() -> list[Path]:
    """The scripts of the trial."""
    return sorted((ROOT / "analyses").glob("*.py"))


def suite() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def imports(path: Path, for_types: bool = True) -> set[str]:
    """Every module of landscape that a file imports, wherever in the file; for_types: those for type checkers, too."""
    modules: set[str] = set()
    tree = ast.parse(path.read_text())
    if not for_types:
        tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("landscape"):
            names = {f"{node.module}.{a.name}" for a in node.names}
            modules |= {n for n in names if (ROOT / (n.replace(".", "/") + ".py")).exists()} or {node.module}
        elif isinstance(node, ast.Import):
            modules |= {a.name for a in node.names if a.name.startswith("landscape.")}
    return modules - {"landscape"}


def outside(path: Path) -> set[str]:
    """Top-level names of all packages that a file imports."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports two of one name only where byte code is not kept."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in sorted(set(names)) if names.count(name) > 1] == []


def test_tests_take_helpers_from_the_folder_of_tests() -> None:
    """As `helpers.NAME`: `tests.helpers.NAME` would be another module, and of whatever clone is installed."""
    assert [path for path in (ROOT / "tests").rglob("*.py") if "tests" in outside(path)] == []


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_run_one_way(path: Path) -> None:
    """An import goes to a lower floor or stays in its room; no two rooms of one floor know each other."""
    name = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    here = room(name)
    if not here:
        assert name in ("landscape", "landscape.__main__")
        return
    for target in imports(path):
        there = room(target)
        assert there, f"{name} imports {target}, which has no floor"
        assert FLOORS[there] < FLOORS[here] or there == here, f"{name} imports {target}"


@pytest.mark.slow
def test_a_room_has_no_circle() -> None:
    """Modules of one room do not import each other in circles; types alone may."""
    graph = {str(p.relative_to(ROOT).with_suffix("")).replace("/", "."): imports(p, False) for p in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in graph.get(name, ()):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [("choices", {"h5py"}), ("curvature", {"h5py", "xarray"}), ("files", {"torch"}), ("report", {"torch", "h5py"})],
)
def test_rooms_keep_to_their_tools(room: str, forbidden: set[str]) -> None:
    """curvature sees no file, files no torch, figures read files as outsiders do."""
    for path in (ROOT / "landscape" / room).rglob("*.py"):
        assert not outside(path) & forbidden, path


@pytest.mark.parametrize("path", sorted((ROOT / "landscape/files").glob("*.py")), ids=lambda path: path.stem)
def test_files_know_no_model(path: Path) -> None:
    """It reads no options, and names no parameter, block or pair."""
    assert "landscape.config" not in imports(path)
    text = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert not text & {"E", "W", "V", "b1", "b2", "E,W", "W,V", "E,V", "all"}


@pytest.mark.slow
def test_only_files_write_hdf5() -> None:
    """h5py is imported by files alone (and asked for its version by provenance)."""
    users = {p.relative_to(ROOT / "landscape").with_suffix("").parts[0] for p in modules() if "h5py" in outside(p)}
    assert users == {"files", "provenance"}


NAMED = re.compile(r"(?<![A-Za-z0-9])(?:[EWV]+|b[12])(?![A-Za-z0-9])")
"""E, W, V, b1 or b2 as a word or a part of a name, and sequences such as "EW", which may be read letter by letter."""
OPTIONS = [f.name for f in dataclasses.fields(TrainConfig) if NAMED.search(f.name)]
OTHERS = re.compile("|".join([r"os\.W_OK", "compgen -W", *OPTIONS]))
"""Names of the system, and those of options, which a config declares."""


@pytest.mark.parametrize("room", ["measure", "files", "report", "cli", "jobs"])
def test_only_models_name_parameters(room: str) -> None:
    """Parameters, blocks and pairs of the embedding MLP have their names from its own declaration.

    So do captions, labels, examples and descriptions, or they speak of its two factors.
    """
    texts = {p: p.read_text() for suffix in ("py", "j2") for p in (ROOT / "landscape" / room).rglob(f"*.{suffix}")}
    assert len(texts) > 5
    named = {str(path): NAMED.findall(OTHERS.sub("", text)) for path, text in texts.items()}
    assert {path: names for path, names in named.items() if names} == {}


@pytest.mark.parametrize(
    "text", ['row["E"]', 'f"grad_norm_{x}_W"', "at.V", 'for name in "EW":', "dict(b1=0)", "# V", 'f"{x}_E"', '"E,W"']
)
def test_names_are_seen(text: str) -> None:
    """However they are written."""
    assert NAMED.search(text)


@pytest.mark.parametrize("path", scripts(), ids=lambda p: p.stem)
def test_the_trial_uses_public_names_alone(path: Path) -> None:
    """It reads files like anybody else, with pandas and its like."""
    import landscape

    assert imports(path) == set()
    tree = ast.parse(path.read_text())
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "landscape"}
    assert names <= set(landscape.__all__)
    own = {script.stem for script in scripts()} | {"landscape"} | sys.stdlib_module_names
    typesetters = {"docutils", "jinja2", "myst_parser"}
    assert outside(path) - own <= {"matplotlib", "numpy", "pandas", "scipy", "seaborn", "xarray"} | typesetters


def test_no_merge_is_left_open() -> None:
    """No file holds the marks of two versions; what git ignores is left alone."""
    folders = ("landscape", "tests", "docs", "analyses", "benchmarks", "studies", ".ci")
    texts = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    kinds = {".py", ".md", ".rst", ".j2", ".js", ".toml", ".txt", ".json", ".cff", ""}
    marked = re.compile(rb"^(<{7}|>{7})( |$)", re.MULTILINE)
    looked = [path for path in texts if path.is_file() and path.suffix in kinds and "_build" not in path.parts]
    assert ROOT / "README.md" in looked
    assert [path for path in looked if marked.search(path.read_bytes())] == []


def test_import_is_light() -> None:
    """`import landscape` brings neither torch nor matplotlib; the public names are all there."""
    code = "import sys, landscape; assert not {'torch', 'matplotlib', 'h5py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    import landscape

    for name in landscape.__all__:
        assert getattr(landscape, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = landscape.nothing


def test_one_conftest() -> None:
    """A second one would be imported in the place of the first, from which tests take their runs."""
    tests = Path(__file__).parent
    assert list(tests.rglob("conftest.py")) == [tests / "conftest.py"]
