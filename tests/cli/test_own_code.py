"""What a user's own code prints or ends does not get into the results of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import foreign
from helpers.commands import landscape

from landscape.cli import main as cli

NOISY = foreign.TINY.replace(
    "def model():",
    """
import os
from sys import stdout


class Noisy(torch.nn.Tanh):
    def forward(self, x):
        print("forward says")
        return super().forward(x)


def model():
    print("factory says")
    os.system("echo a child says")
    stdout.write("an old stream says\\n")
""",
).replace("torch.nn.Tanh()", "Noisy()")
HESSIAN = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "0", "--blocks", "last", "--quiet"]


@pytest.mark.slow
def test_stdout_holds_the_results_alone(users_run: Path) -> None:
    """What the model, the factory and a child process print goes to stderr; stdout is one JSON document."""
    Path("mine.py").write_text(NOISY)
    done = landscape(*HESSIAN, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["file"] == "run.hessian.h5"
    for who in (b"forward", b"factory", b"a child", b"an old stream"):
        assert who + b" says" in done.stderr


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("self[0](x)", "return self[2](self[1](sys.exit('bye')))"),
        ("loss", "sys.exit(0)"),
        ("an argument parser", "argparse.ArgumentParser().parse_args(['--steps'])"),
    ],
)
def test_code_that_ends_the_program(place: str, line: str, users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error with the line of the user's file, where the model or the loss calls sys.exit; no file is left."""
    text = foreign.TINY.replace(
        "def model():", f"import argparse, sys\n\n\ndef loss(outputs, targets):\n    {line}\n\n\ndef model():"
    )
    if place.startswith("self"):
        text = text.replace("def loss(outputs, targets):", "class Ends(torch.nn.Sequential):\n  def forward(self, x):")
        text = text.replace("torch.nn.Sequential(torch", "Ends(torch")
    else:
        text = text.replace("x, y, blocks", "x, y, loss, blocks")
    number = next(i for i, row in enumerate(text.splitlines(), 1) if line in row)
    Path("mine.py").write_text(text)
    assert cli.run(HESSIAN) == 1
    said = capsys.readouterr().err.splitlines()[-2:]
    assert said[0] == f"error: your own code ends the program at mine.py, line {number}"
    assert said[1] == "hint: let it raise an exception, not call sys.exit"
    assert not Path("run.hessian.h5").exists()
