"""Networks of a user's own with their run files: what `landscape` knows of them is in a file beside the user."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from landscape.cli import main as cli
from landscape.files import schema
from landscape.files.schema import Field, Table
from landscape.files.writer import Writer
from landscape.provenance import provenance

Arrays = Mapping[str, np.ndarray[Any, Any]]

TINY = """
import torch
from landscape import ModuleProblem, cross_entropy


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).eval()


x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
y = torch.arange(12) % 3


def problem():
    return ModuleProblem(model(), x, y, blocks={"first": ["0.*"], "last": ["2.weight"]}, pairs=[("first", "last")])
"""
"""mine.py: two layers."""


def executed(text: str) -> dict[str, Any]:
    """What a user's file defines."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "mine.py", "exec"), namespace)
    return namespace


def trained(model: nn.Module, loss: Any, steps: Sequence[int], lr: float = 0.1) -> Iterator[tuple[int, Arrays]]:
    """Gradient descent on loss(model), with the parameters at some of the steps."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(max(steps) + 1):
        if step in steps:
            yield step, {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
        optimiser.zero_grad()
        value: Tensor = loss(model)
        value.backward()
        optimiser.step()


def record(path: Path, checkpoints: Mapping[int, Arrays]) -> Path:
    """A run file of the parameters alone, as anybody's loop would leave it."""
    first = next(iter(checkpoints.values()))
    fields = [Field(n, tuple(f"{n}_{i}" for i in range(a.ndim)), "f8", n) for n, a in first.items()]
    axes = {axis: range(length) for f in fields for axis, length in zip(f.dims, first[f.name].shape, strict=True)}
    described = {
        "kind": schema.RECORDED,
        "model": "mine",
        "num_parameters": sum(a.size for a in first.values()),
        "blocks": {},
        "pairs": [],
        "aliases": {},
        "seed": 0,
    }
    attrs = {
        **provenance("cpu"),
        "run_id": uuid.uuid4().hex,
        "config": json.dumps(described),
        "seed": 0,
        "status": "running",
    }
    table = Table("checkpoints", "step", tuple(fields))
    with Writer.create(path, attrs, [(table, len(checkpoints))], axes) as writer:
        for step, arrays in checkpoints.items():
            writer.append(step, {"checkpoints": arrays})
        writer.finish("complete")
    return path


def refused(argv: list[str], text: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command ends in one line of error and one of hint with these words, and makes no file; text: mine.py."""
    if text:
        Path("mine.py").write_text(text)
    before = set(Path().iterdir())
    assert cli.run(argv) in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert said[0].startswith("error: ")
    assert error in said[0], said
    assert said[1].startswith("hint: ")
    assert hint in said[1]
    assert {p for p in Path().iterdir() if p.suffix == ".h5"} <= before
