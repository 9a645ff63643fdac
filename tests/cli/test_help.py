"""`--help` with every option and examples that can be typed, and usage errors that lead to the right command line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from landscape.cli.main import COMMANDS, app, run

COMMAND = pytest.mark.parametrize("name", COMMANDS)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run([*argv, "--help"]) == 0
    return capsys.readouterr().out


@COMMAND
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first sentence, its options and its examples, in 80 columns even on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    text, (command, examples) = shown(capsys, name), COMMANDS[name]
    words = text.split()
    assert words[:3] == ["Usage:", "landscape", name]
    assert " ".join((command.__doc__ or "").split()[:5]) in text
    flags = {n for one in app()[name].assemble_argument_collection() for n in one.names if n.startswith("--")}
    assert not {flag for flag in flags if flag not in text}
    assert all(line in text for line in examples)
    assert max(map(len, text.replace("".join(examples), "").splitlines())) <= 80


@COMMAND
def test_examples_are_command_lines(name: str) -> None:
    """Two of them, and the parser takes them."""
    command, examples = COMMANDS[name]
    assert len(examples) == 2
    for line in examples:
        program, *argv = shlex.split(line, comments=True)
        assert (program, argv[0]) == ("landscape", name)
        assert app().parse_args(argv, exit_on_error=False, print_error=False)[0] is command


def test_the_overview_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """So has `landscape` alone."""
    text = shown(capsys)
    assert all(f" {name} " in text for name in COMMANDS)
    assert run([]) == 0
    assert capsys.readouterr().out == text


def test_help_is_light() -> None:
    """Neither torch nor numpy is imported to show it."""
    code = (
        "import sys; from landscape.cli.main import run; run(['train', '--help']); "
        "assert not {'torch', 'h5py', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_file_by_position_or_flag() -> None:
    """First, or after its flag."""
    for line in (["a.h5", "--out", "x"], ["--out", "x", "--run", "a.h5"], ["--out", "x", "--run=a.h5"]):
        _, bound, _ = app().parse_args(["hessian", *line])
        assert bound.arguments["run"] == Path("a.h5")
