"""`--help`: every option once, under a heading, in 80 columns, with examples that can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers.commands import Refusal

from landscape.cli.declared import declared
from landscape.cli.grammar import parse
from landscape.cli.main import COMMANDS, run
from landscape.config import TrainConfig, preset

COMMAND = pytest.mark.parametrize("name", COMMANDS)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run([*argv, "--help"]) == 0
    return capsys.readouterr().out


@COMMAND
def test_a_command_is_in_the_module_of_its_name(name: str) -> None:
    """Others are those that CONTRIBUTING.md names; `completion` is beside the list that it completes."""
    other = {"slice": "slices", "import": "imports", "info": "files", "check": "files", "completion": "main"}
    assert COMMANDS[name].__module__ == f"landscape.cli.{other.get(name, name)}"


@COMMAND
def test_every_option_is_under_one_heading(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else is."""
    listed = [option for names in COMMANDS[name].groups.values() for option in names]
    assert sorted(listed) == sorted(option.name for option in declared(COMMANDS[name]))
    text = shown(capsys, name)
    for option in declared(COMMANDS[name]):
        named = option.metavar if option.is_positional else option.flag
        assert len(re.findall(rf"^  {re.escape(named.replace('--bias', '--no-bias'))}(?= |$)", text, re.M)) == 1


@pytest.mark.parametrize("columns", ["80", "60", "300"])
@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_the_terminal(
    name: str | None, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text fits a narrow one too; on a wide one lines stay short enough to be read."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = shown(capsys, *filter(None, [name])).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(len(line) <= int(columns) for line in lines if line.startswith(24 * " "))


@COMMAND
def test_help_without_noise(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No value that cannot be typed, and of a switch only the side that changes something."""
    text = shown(capsys, name)
    assert "None" not in text
    assert "(default: )" not in text
    assert not set(re.findall(r"--no-[\w-]+", text)) - {"--no-bias"}


@COMMAND
def test_examples_are_command_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of them come first, and the parser takes them."""
    examples = COMMANDS[name].examples
    assert len(examples) == 2
    for line in examples:
        program, command, *argv = shlex.split(line.partition(" >")[0], comments=True)
        assert (program, command) == ("landscape", name)
        assert isinstance(parse(name, COMMANDS[name], argv, *example_base(name)), COMMANDS[name])
    before, text = shown(capsys, name).split("examples:\n")
    assert before.startswith(f"usage: landscape {name}")
    assert text.splitlines()[:2] == [f"  {line}" for line in examples]


def example_base(name: str) -> list[object]:
    return [COMMANDS["train"](TrainConfig())] if name == "train" else []  # type: ignore[call-arg]


def test_the_usage_says_what_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """In brackets, as elsewhere."""
    for name, usage in (("demo", "[FOLDER]"), ("info", "FILE"), ("slice", "RUN --step N")):
        assert shown(capsys, name).startswith(f"usage: landscape {name} {usage} [options]\n")


def test_help_has_the_defaults_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the command would have."""
    for name in ("quick", "paper"):
        text = shown(capsys, "train", "--preset", name)
        assert f"(default: {preset(name).embed_dim})" in re.search(r"--embed-dim N .*", text)[0]  # type: ignore[index]


def test_the_overview_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """With what it does."""
    text = shown(capsys)
    for name, kind in COMMANDS.items():
        first = " ".join((kind.__doc__ or "").split()[:4])
        assert re.search(rf"^  {name} +{re.escape(first)}", text, re.M)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("trian", "did you mean train?"), ("hesian", "did you mean hessian?"), ("x", f"known: {', '.join(COMMANDS)}")],
)
def test_an_unknown_command(word: str, hint: str, assert_refused: Refusal) -> None:
    """The nearest known one is named, as of flags."""
    assert_refused([word], 2, f"unknown command '{word}'", hint)


def test_no_command(assert_refused: Refusal) -> None:
    """They are listed."""
    assert_refused([], 2, "no command is given", "name one: demo, train, import")


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("train --prest demo", "unknown option --prest", "did you mean --preset"),
        ("train --hiden=4", "unknown option --hiden", "did you mean --hidden"),
        ("demo --out mine", "unknown option --out", "landscape demo --help lists them"),
        ("train --xyzzy", "unknown option --xyzzy", "landscape train --help lists them"),
        ("info a.h5 b.h5", "unexpected argument 'b.h5'", "write it like landscape info FILE [options]"),
        ("slice", "landscape slice lacks RUN and --step N", "write it like landscape slice RUN --step N [options]"),
        ("import a.pt", "landscape import lacks --out PATH", "landscape import SOURCE ... --out PATH [options]"),
        ("hessian a.h5 --k", "--k lacks its value", "write it like --k N"),
        ("slice a.h5 --step x", "--step is 'x'", "it takes an integer"),
        ("train --lr=fast", "--lr is 'fast'", "it takes a number"),
        ("train --batch_size x", "--batch-size is 'x'", "it takes an integer or full"),
        ("train --lr-ratio x", "--lr-ratio is 'x'", "it takes a number, prop41, curvature or auto"),
        ("train --betas a 2", "--betas is 'a 2'", "it takes numbers"),
    ],
)
@pytest.mark.parametrize("columns", ["60", "200"])
def test_usage_errors(
    columns: str, line: str, error: str, hint: str, assert_refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words of ours, whatever the width of the terminal."""
    monkeypatch.setenv("COLUMNS", columns)
    assert_refused(line.split(), 2, error, hint)


def test_half_a_character_is_no_argument(assert_refused: Refusal) -> None:
    """No shell passes one, but a program that calls the command may."""
    for line in (["compare", "\ud800", "run.h5"], ["report", "run.h5", "--out", "\ud800"]):
        assert_refused(line, 2, r"'\ud800' is no name that the system knows", "without half characters")


@pytest.mark.parametrize("name", ["hessian", "critical", "slice", "sweep"])
def test_a_file_by_position_or_flag(name: str) -> None:
    """Wherever the file stands, alone or after its flag, the command is the same."""
    flag = "--config" if name == "sweep" else "--ckpt"
    more = ["--step", "3"] if name in ("critical", "slice") else ["--out", "x"]
    lines = (["a.h5", *more], [*more, "a.h5"], [flag, "a.h5", *more], [*more, f"{flag}=a.h5"])
    first, *others = (parse(name, COMMANDS[name], line) for line in lines)
    assert all(other == first for other in others)
    assert str(getattr(first, "config" if name == "sweep" else "run")) == "a.h5"


def test_a_file_after_its_flag_may_begin_with_a_hyphen() -> None:
    """As of other options; a flag without a file is refused."""
    found = parse("hessian", COMMANDS["hessian"], ["--ckpt=-a.h5"])
    assert found.run == Path("-a.h5")  # type: ignore[attr-defined]


def test_a_flag_without_its_file(assert_refused: Refusal) -> None:
    """Whatever follows it."""
    for more in ([], ["--quiet"]):
        assert_refused(["hessian", "--ckpt", *more], 2, "--ckpt lacks its file", "write it like --ckpt FILE")


@pytest.mark.parametrize("command", ["info", "check", "export", "hessian", "slice", "geometry"])
def test_an_option_where_the_file_belongs(command: str, assert_refused: Refusal) -> None:
    """It is named, not a file that is missing; of a file's name the mend is."""
    assert_refused([command, "--xyzzy"], 2, "unknown option --xyzzy", f"landscape {command} --help lists them")
    assert_refused([command, "-a.h5"], 2, "unknown option -a.h5", "for a file of that name write ./-a.h5")
