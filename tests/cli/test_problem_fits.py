"""`--problem` beside a run file and names of blocks that do not fit it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from safetensors.torch import save_model

from landscape.cli import main as cli
from landscape.files.runs import RunReader
from landscape.training.importers import import_checkpoints


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
        "did you mean 2.weight or 0.weight",
    ),
    "more": (
        foreign.TINY.replace("Linear(4, 3)", "Linear(4, 3, bias=False)"),
        [],
        "run.h5 holds '2.bias', which the module lacks",
        "did you mean 0.bias",
    ),
    "prefix": (
        wrapped("model"),
        [],
        "run.h5 holds no parameter 'model.0.weight', which the module has",
        "all names of the problem begin with 'model.' (a module that holds",
    ),
    "block": (
        foreign.TINY,
        ["--blocks", "frist"],
        "the module has no block 'frist'",
        "did you mean first?",
    ),
    "pattern": (foreign.TINY, ["--blocks", "*.wieght"], "has no block '*.wieght'", "did you mean 2.weight or 0.weight"),
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
    foreign.refused(["hessian", "run.h5", "--problem", "mine:problem", *more], text, error, hint, capsys)


def test_names_of_a_module_inside_of_another(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the outer network says so."""
    with RunReader(users_run) as reader:
        arrays = {f"model.{name}": values for name, values in reader.checkpoint(9).items()}
    foreign.record(Path("wrapped.h5"), {9: arrays})
    error = "wrapped.h5 holds no parameter '0.weight', which the module has"
    hint = "all names in the file begin with 'model.'"
    foreign.refused(["hessian", "wrapped.h5", "--problem", "mine:problem"], "", error, hint, capsys)


@pytest.mark.parametrize("command", ["hessian", "critical", "slice"])
def test_every_command_refuses_alike(command: str, users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words for a factory that fails, and for a network that does not fit."""
    step = [] if command == "hessian" else ["--step", "9"]
    argv = [command, "--run", "run.h5", *step, "--problem", "mine.py:problem"]
    wider = foreign.TINY.replace("Linear(3, 4)", "Linear(3, 5)").replace("Linear(4, 3)", "Linear(5, 3)")
    foreign.refused(
        argv, wider, "parameter '0.weight' has shape (4, 3) in run.h5", "the sizes that it was trained with", capsys
    )
    foreign.refused(
        argv, "def problem(): return 1 / 0\n", "fails at mine.py, line 1: ZeroDivisionError", "traceback", capsys
    )


TIED = """
import torch
from landscape import ModuleProblem


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tok = torch.nn.Embedding(5, 3)
        self.mid = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, x):
        return self.head(torch.tanh(self.mid(self.tok(x))))


def problem():
    x = torch.arange(5)
    return ModuleProblem(Tied(), x, x.roll(1), blocks={"ends": ["tok.weight[1:4]"], "tok": ["tok.*"]})
"""


@pytest.mark.slow
def test_tied_parameters_under_their_other_name(beside_the_user: None) -> None:
    """safetensors keeps one name of two, and not always the one that the model has first: the numbers are the same."""
    Path("mine.py").write_text(TIED)
    model = foreign.executed(TIED)["Tied"]()
    torch.save(model.state_dict(), "torch-7.pt")
    save_model(model, "safe-7.safetensors")
    rows = []
    for name, kept in (("torch-7.pt", "tok.weight"), ("safe-7.safetensors", "head.weight")):
        out = Path(name).with_suffix(".h5")
        import_checkpoints([name], out, quiet=True)
        with RunReader(out) as reader:
            assert kept in reader.checkpoint(7)
        own = ["--run", str(out), "--problem", "mine.py:problem"]
        assert cli.run(["hessian", *own, "--quiet", "--blocks", "ends", "tok", "all", "--verify"]) == 0
        assert cli.run(["critical", *own, "--step", "7", "--search-hvps", "5", "--quiet", "--blocks", "tok"]) in (0, 3)
        rows.append(HessianReader(out.with_name(f"{out.stem}.hessian.h5")).row(7))
    for quantity in ("eigenvalues", "inertia", "operator_norm"):
        np.testing.assert_array_equal(rows[0][quantity], rows[1][quantity])


def test_tied_parameters_of_which_a_file_holds_both(beside_the_user: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies, as .cpu() makes of a state on a GPU, may differ: the user chooses."""
    state = {name: value.clone() for name, value in foreign.executed(TIED)["Tied"]().state_dict().items()}
    torch.save(state, "copies-7.pt")
    import_checkpoints(["copies-7.pt"], "copies.h5", quiet=True)
    argv = ["hessian", "copies.h5", "--problem", "mine.py:problem"]
    error = "copies.h5 holds both 'tok.weight' and 'head.weight', which are tied in the module"
    foreign.refused(argv, TIED, error, "import the files again with --skip head.weight", capsys)
