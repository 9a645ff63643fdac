"""The user's own problem: a function of theirs, named `package.module:factory` or `path/to/file.py:factory`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from landscape.errors import ConfigError, FileError, LandscapeError, kind_of, suggest
from landscape.files.files import sha256
from landscape.models.helpers import helpers
from landscape.text import first_few

if TYPE_CHECKING:
    from landscape.models.module import ModuleProblem

_FOLDERS: set[Path] = set()
"""Those that problems of this process came from."""
_LOADED: weakref.WeakSet[ModuleType] = weakref.WeakSet()
"""Modules of files that problems of this process came from."""
_MOST_BYTES = 1 << 24
"""Largest size of a problem's file."""
_RUN: weakref.WeakKeyDictionary[ModuleType, dict[str, str]] = weakref.WeakKeyDictionary()
"""By file, SHA-256 of the sources of problems in a module at first: Python does not read the module again."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a problem comes from: its name on the command line, the function, and SHA-256 of its source.

    checksum: the checksums of what it has made, as JSON by what they are of; empty where they are not known.
    """

    name: str
    function: str
    sha256: str
    checksum: str = ""

    @property
    def attrs(self) -> dict[str, str]:
        """What a Hessian file says of it."""
        return {"problem": self.name, "problem_sha256": self.sha256, "problem_checksum": self.checksum}


SEED = "draw it the same at each call: seed the function, as by torch.manual_seed(0) first, or read it from a file"
"""The hint for a problem that is another one at each call."""


def unlike_problem(was: str, now: str) -> str:
    """What of a problem differs from another one, by their checksums; empty if nothing does."""
    before, after = (json.loads(checksum or "{}") for checksum in (was, now))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return first_few(names, 3)


def unlike_source(attrs: Mapping[str, Any], source: Source | None) -> str:
    """Why what a Hessian file holds was not measured with this problem; empty if it was.

    The same function of the same source may be named in another way, from another folder.
    """
    was, digest = str(attrs.get("problem", "")), str(attrs.get("problem_sha256", ""))
    now = source or Source("", "", "")
    if (was.rpartition(":")[2], digest) == (now.function, now.sha256):
        return ""
    theirs, ours = (
        f"--problem {name} (source {code[:12]})" if name else "no --problem"
        for name, code in ((was, digest), (now.name, now.sha256))
    )
    return f"it was made with {theirs}, not {ours}"


def load(name: str) -> tuple[ModuleProblem, Source]:
    """Call the factory that `name` stands for; what it prints goes to stderr.

    Raises ConfigError for a name that leads to no factory, LandscapeError kinds for one that fails or returns no
    problem.
    """
    from landscape.models.module import ModuleProblem

    place, colon, function = name.rpartition(":")
    if not (colon and place and function):
        raise ConfigError(
            f"--problem {name} names no function", "write package.module:factory or path/to/file.py:factory"
        )
    with contextlib.redirect_stdout(sys.stderr), _unchanged():
        module = _imported(name, place)
        factory = _function(name, module, place, function)
        if getattr(module, "__file__", None) is None:
            raise ConfigError(f"--problem {name}: {place} is a part of Python", "name a module or a file of your own")
        with _blaming(name, _file_of(factory, module)):
            problem = factory()
    if not isinstance(problem, ModuleProblem):
        raise ConfigError(
            f"--problem {name} returns {kind_of(problem)}, not a problem",
            "return landscape.ModuleProblem(model, inputs, targets, loss)",
        )
    source = dataclasses.replace(_source(name, factory, module), checksum=json.dumps(problem.fingerprint()))
    if _RUN.setdefault(module, {}).setdefault(_file_of(factory, module), source.sha256) != source.sha256:
        raise FileError(
            f"--problem {name}: its source has changed since this process ran it",
            "begin a new process, or name the file, which is read anew: path/to/file.py:factory",
        )
    return problem, source


def _source(name: str, factory: Callable[[], Any], module: ModuleType) -> Source:
    place, _, function = name.rpartition(":")
    file, named = Path(_file_of(factory, module)).resolve(), Path(str(module.__file__)).resolve()
    # Where the name is looked for; a package's file lies one folder deeper.
    above = 0 if _is_file(place) else place.count(".") + (named.name == "__init__.py")
    alone = sha256(file)
    lines = [f"{helper} {sha256(path)}" for helper, path in sorted(helpers(file, named.parents[above]).items())]
    whole = hashlib.sha256("\n".join([alone, *lines]).encode()).hexdigest() if lines else alone
    return Source(name, function, whole)


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Undo what the user's code sets for the whole process and an analysis depends on, and write no bytecode.

    Python would take it for that of a file which is edited within the same second and stays as long.
    """
    import numpy as np
    import torch

    folder, gradients, dtype = os.getcwd(), torch.is_grad_enabled(), torch.get_default_dtype()
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with np.errstate():
            yield
    finally:
        sys.dont_write_bytecode = writes_none
        os.chdir(folder)
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)


def _imported(name: str, place: str) -> ModuleType:
    """The module of a file, or one that is installed or lies in the current folder."""
    if _is_file(place):
        path = Path(place)
        if not path.is_file():
            why = "is a pipe, a device or a folder, not a file" if path.exists() else "does not exist"
            raise FileError(f"--problem {name}: {place} {why}", _beside(path.parent, path.name))
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(
                f"--problem {name}: {place} has more than {_MOST_BYTES:,} bytes",
                "name a Python file, and read the data from others there",
            )
        folder = path.resolve().parent
        _make_importable(folder)
        # As they are now, and not those of the same name beside another problem.
        for helper in helpers(path.resolve(), folder):
            if _is_own(helper):
                del sys.modules[helper]
        module_name = _name_of(path)
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise FileError(f"--problem {name}: {place} is no Python file", "name a file that ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        _LOADED.add(module)
        with _blaming(name, str(path)):
            spec.loader.exec_module(module)
        return module
    _make_importable(Path.cwd())
    if sys.modules.get(place) in _LOADED:
        # A file that was named as one, perhaps in another folder.
        del sys.modules[place]
    try:
        spec = importlib.util.find_spec(place)
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{place}.".startswith(f"{error.name}."):
            raise _failure(name, error, "") from error
        spec = None
    except Exception as error:
        # A parent package that fails.
        raise _failure(name, error, "") from error
    if spec is None:
        raise ConfigError(f"--problem {name}: there is no module {place!r}", _beside(Path(), f"{place}.py"))
    with _blaming(name, spec.origin or ""):
        return importlib.import_module(place)


def _name_of(path: Path) -> str:
    """What the module of a file is called.

    By its own name, processes that it starts, such as a loader's workers, find its classes. Where Python or another
    file has that name, they would find something else.
    """
    own = path.stem
    is_free = own not in sys.stdlib_module_names and (own not in sys.modules or sys.modules[own] in _LOADED)
    return own if is_free else f"landscape_problem_{own}"


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _is_own(name: str) -> bool:
    """Whether a module was imported from the folder of a problem, not from Python or a package of the same name."""
    file = Path(str(getattr(sys.modules.get(name), "__file__", None)))
    place = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return place in {folder.joinpath(*name.split(".")) for folder in _FOLDERS}


def _make_importable(folder: Path) -> None:
    """As `python file.py` does for the folder of a script.

    Where a file there has the name of a module of Python, that comes first: this program and the processes that it
    starts need it.
    """
    others = [place for place in sys.path if place != str(folder)]
    names = {path.stem for path in folder.iterdir()} if folder.is_dir() else set[str]()
    python = os.path.dirname(os.__file__)
    last = max((i + 1 for i, place in enumerate(others) if place in (python, f"{python}/lib-dynload")), default=0)
    at = last if names & sys.stdlib_module_names else 0
    sys.path[:] = [*others[:at], str(folder), *others[at:]]
    _FOLDERS.add(folder)
    importlib.invalidate_caches()


def _beside(folder: Path, wanted: str) -> str:
    names = sorted(p.name for p in folder.glob("*.py") if p.is_file()) if folder.is_dir() else []
    where = "the current folder" if folder.resolve() == Path.cwd() else str(folder)
    return (
        f"in {where}: {suggest(wanted, names, ', '.join(names))}"
        if names
        else f"there is no Python file in {where}: check the name"
    )


def _function(name: str, module: ModuleType, place: str, function: str) -> Callable[[], Any]:
    if not hasattr(module, function):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        hint = suggest(function, own) if own else "define it there: a function without arguments"
        raise ConfigError(f"--problem {name}: {place} has no {function!r}", hint)
    factory: Any = getattr(module, function)
    if not callable(factory):
        raise ConfigError(
            f"--problem {name} is {kind_of(factory)}, not a function",
            f"write a function that returns it, def make(): return {function}, and name that",
        )
    return factory  # type: ignore[no-any-return]


def _file_of(factory: Callable[[], Any], module: ModuleType) -> str:
    """The file that defines the factory, which need not be the module that it was named by."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(factory))
    except TypeError:
        file = None
    return file or str(module.__file__)


@contextlib.contextmanager
def _blaming(name: str, file: str) -> Iterator[None]:
    """Whatever the user's code raises, with its line."""
    try:
        yield
    except (LandscapeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failure(name, error, file) from error


def _failure(name: str, error: BaseException, file: str) -> LandscapeError:
    """What went wrong in the user's file, and where: the last line that is in it."""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{Path(error.filename).name}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        wanted = [f for f in frames if file and os.path.realpath(f.filename) == os.path.realpath(file)]
        own = wanted or [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen")]
        place = f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else name.rpartition(":")[0]
    if isinstance(error, SystemExit):
        return LandscapeError(
            f"--problem {name} ends the program at {place}",
            'put what a script does under if __name__ == "__main__":, so that it can be imported',
        )
    words = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    first = next(iter(words.splitlines()), "")[:300]
    return LandscapeError(
        f"--problem {name} fails at {place}: {type(error).__name__}{': ' if first else ''}{first}",
        "call the function in Python to see the whole traceback",
    )
