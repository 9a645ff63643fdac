"""A user's network in a file, with a run of it, for the tests of `--problem`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import foreign
from torch.nn import functional as F


@pytest.fixture
def beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with no module of an earlier test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def run(beside_the_user: None, tmp_path: Path) -> Path:
    """Three checkpoints of the network in mine.py."""
    (tmp_path / "mine.py").write_text(foreign.TINY)
    mine = foreign.executed(foreign.TINY)
    loss = lambda model: F.cross_entropy(model(mine["x"]), mine["y"])  # noqa: E731
    return foreign.record(tmp_path / "run.h5", dict(foreign.trained(mine["model"](), loss, (0, 5, 9))))
