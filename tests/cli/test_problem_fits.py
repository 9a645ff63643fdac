"""`--problem` beside a run file and names of blocks that do not fit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import foreign

from landscape.cli import main as cli
from landscape.storage.runs import RunReader


def wrapped(prefix: str) -> str:
    return (
        foreign.TINY.replace(
            "ModuleProblem(model(), x, y, ",
            f"ModuleProblem(torch.nn.ModuleDict({{'{prefix}': model()}}), x, y, ",
        )
        .replace('"0.*"', f'"{prefix}.0.*"')
        .replace('"2.weight"', f'"{prefix}.2.weight"')
    )


MISFITS: dict[str, tuple[str, list[str], str, str]] = {
    "shape": (
        foreign.TINY.replace("Linear(3, 4)", "Linear(3, 5)").replace("Linear(4, 3)", "Linear(5, 3)"),
        [],
        "parameter '0.weight' has shape (4, 3) in run.h5; in the module it is (5, 3)",
        "with the sizes that it was trained with",
    ),
    "missing": (
        foreign.TINY.replace("torch.nn.Tanh()", "torch.nn.PReLU()"),
        [],
        "run.h5 holds no parameter '1.weight', which the module has",
        "did you mean 0.weight or 2.weight",
    ),
    "more": (
        foreign.TINY.replace("Linear(4, 3)", "Linear(4, 3, bias=False)"),
        [],
        "run.h5 holds parameter '2.bias', which the module lacks",
        "did you mean 0.bias",
    ),
    "prefix": (
        wrapped("module"),
        [],
        "run.h5 holds no parameter 'module.0.weight', which the module has",
        "all names of the problem begin with 'module.' (nn.DataParallel",
    ),
    "block": (
        foreign.TINY,
        ["--blocks", "frist"],
        "the module has no block 'frist'",
        "did you mean first?",
    ),
    "pattern": (foreign.TINY, ["--blocks", "*.wieght"], "has no block '*.wieght'", "did you mean 0.weight or 2.weight"),
    "joint": (
        foreign.TINY,
        ["--blocks", "first,lats"],
        "has no block 'first,lats': 'lats' is no block or parameter",
        "did you mean last",
    ),
    "overlap": (foreign.TINY, ["--blocks", "first,0.bias"], "both sides hold 0.bias", "without a common parameter"),
    "three": (foreign.TINY, ["--blocks", "first,last,2.bias"], "joins 3 blocks", "join two"),
    "device": (
        foreign.TINY,
        ["--device", "cuda"],
        "--device cuda, but the data of the problem are on cpu",
        "move model",
    ),
}


@pytest.mark.parametrize(("text", "more", "error", "hint"), MISFITS.values(), ids=MISFITS.keys())
def test_problems_that_do_not_fit(
    text: str, more: list[str], error: str, hint: str, users_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first difference is named, with the nearest names."""
    foreign.refused(["hessian", "--ckpt", "run.h5", "--problem", "mine:problem", *more], text, error, hint, capsys)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_names_that_a_wrapper_prefixes(prefix: str, users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the wrapped network says so."""
    with RunReader(users_run) as reader:
        arrays = {prefix + name: values for name, values in reader.checkpoint(9).items()}
    foreign.record(Path("wrapped.h5"), {9: arrays})
    error = "wrapped.h5 holds no parameter '0.weight', which the module has"
    hint = f"all names in the file begin with '{prefix}'"
    foreign.refused(["hessian", "--ckpt", "wrapped.h5", "--problem", "mine:problem"], "", error, hint, capsys)


@pytest.mark.parametrize("command", ["hessian", "critical", "slice"])
def test_every_command_refuses_alike(command: str, users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words for a factory that fails, and for a network that does not fit."""
    step = [] if command == "hessian" else ["--step", "9"]
    argv = [command, "--ckpt", "run.h5", *step, "--problem", "mine.py:problem"]
    wider = foreign.TINY.replace("Linear(3, 4)", "Linear(3, 5)").replace("Linear(4, 3)", "Linear(5, 3)")
    foreign.refused(
        argv, wider, "parameter '0.weight' has shape (4, 3) in run.h5", "the sizes that it was trained with", capsys
    )
    foreign.refused(
        argv, "def problem(): return 1 / 0\n", "fails at mine.py, line 1: ZeroDivisionError", "traceback", capsys
    )


def test_running_statistics_are_those_of_the_model(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no parameters, and so in no checkpoint: the user is told."""
    Path("mine.py").write_text(foreign.TINY.replace("torch.nn.Tanh()", "torch.nn.BatchNorm1d(4, affine=False)"))
    argv = ["hessian", "--ckpt", "run.h5", "--problem", "mine.py:problem", "--steps", "9", "--blocks", "last"]
    assert cli.run([*argv, "--quiet"]) == 0
    expected = "warning: --problem mine.py:problem: the running statistics of '1' are those of the given model"
    assert expected in capsys.readouterr().err
