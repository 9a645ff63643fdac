"""`--problem`: a user's network, data and loss through the commands, and what a factory may not be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import foreign
from torch.nn import functional as F

from landscape.cli import main as cli
from landscape.storage.hessians import HessianReader
from landscape.storage.runs import RunReader
from landscape.storage.schema import LEVELS

Run = Callable[..., int]


@pytest.fixture(autouse=True)
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
def run(tmp_path: Path) -> Path:
    """Three checkpoints of the network in mine.py."""
    (tmp_path / "mine.py").write_text(foreign.TINY)
    mine = foreign.executed(foreign.TINY)
    loss = lambda model: F.cross_entropy(model(mine["x"]), mine["y"])  # noqa: E731
    return foreign.record(tmp_path / "run.h5", dict(foreign.trained(mine["model"](), loss, (0, 5, 9))))


def dense(run: Path, step: int, names: list[str]) -> torch.Tensor:
    """The Hessian of the mean cross-entropy by torch.func alone, from the file's own parameters."""
    mine = foreign.executed(foreign.TINY)
    with RunReader(run) as reader:
        every = {n: torch.from_numpy(a) for n, a in reader.checkpoint(step).items()}
    sizes = [every[n].numel() for n in names]
    model, x = mine["model"](), mine["x"].double()

    def value(vector: torch.Tensor) -> torch.Tensor:
        pieces = {n: v.view_as(every[n]) for n, v in zip(names, vector.split(sizes), strict=True)}
        logits = torch.func.functional_call(model, {**every, **pieces}, (x,))
        return F.cross_entropy(logits, mine["y"])

    return torch.func.hessian(value)(torch.cat([every[n].reshape(-1) for n in names]))


NAMES = {
    "first": ["0.weight", "0.bias"],
    "last": ["2.weight"],
    "first,last": ["0.weight", "0.bias", "2.weight"],
    "all": ["0.weight", "0.bias", "2.weight", "2.bias"],
    "*.bias": ["0.bias", "2.bias"],
    "0.weight": ["0.weight"],
    "*.bias,0.weight": ["0.bias", "2.bias", "0.weight"],
}


@pytest.mark.parametrize("problem", ["mine:problem", "mine.py:problem"])
def test_a_users_network_is_measured(problem: str, run: Path) -> None:
    """Eigenvalues and index of every block are those of the dense Hessian; blocks by name, parameter and pattern."""
    wanted = list(NAMES)
    assert cli.run(["hessian", "--ckpt", "run.h5", "--problem", problem, "--steps", "all", "--blocks", *wanted]) == 0
    found = HessianReader(run.with_name("run.hessian.h5"))
    assert found.steps == [0, 5, 9]
    assert found.blocks == wanted
    assert found.pairs == ["first,last", "*.bias,0.weight"]
    assert found.attrs["problem"] == problem
    for step in found.steps:
        row = found.row(step)
        for i, block in enumerate(wanted):
            values = torch.linalg.eigvalsh(dense(run, step, NAMES[block])).numpy()
            k = min(10, len(values))
            scale = np.abs(values).max()
            np.testing.assert_allclose(row["eigenvalues"][i, 0, :k], values[:k], atol=1e-9 * scale)
            np.testing.assert_allclose(row["eigenvalues"][i, 1, :k], values[::-1][:k], atol=1e-9 * scale)
            assert LEVELS[row["inertia_level"][i]] == "certified"
            assert row["inertia"][i, 0] == (values < -row["inertia_tolerance"][i]).sum()
        assert np.isfinite(row["coupling_strength"]).all()
        assert np.isnan([row["sharpness_adam"], row["sharpness_gd"], row["prop41_ratio"]]).all()


def test_without_blocks_all_that_the_problem_declares(run: Path) -> None:
    """The declared blocks, their pair and all parameters."""
    assert cli.run(["hessian", "--ckpt", "run.h5", "--problem", "mine:problem", "--steps", "9"]) == 0
    assert HessianReader(run.with_name("run.hessian.h5")).blocks == ["first", "last", "first,last", "all"]


def test_a_problem_without_pairs_has_tables(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem that declares nothing has one block, all, and dashes for the quantities of pairs."""
    plain = "\ndef plain():\n    return ModuleProblem(model().eval(), x, y)\n"
    Path("plain.py").write_text(foreign.TINY + plain)
    assert cli.run(["hessian", "--ckpt", "run.h5", "--problem", "plain:plain", "--steps", "9", "--quiet"]) == 0
    assert "written: run.hessian.h5" in capsys.readouterr().out
    assert HessianReader(run.with_name("run.hessian.h5")).blocks == ["all"]
    assert cli.run(["report", "run.h5", "--out", "page", "--quiet"]) == 0
    assert Path("page/report.md").exists()


def test_a_file_grows_with_the_same_source_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More blocks join a file; another source or none is refused by name, and replaces it with --overwrite."""
    command = ["hessian", "--ckpt", "run.h5", "--steps", "5"]
    assert cli.run([*command, "--problem", "mine:problem", "--blocks", "first"]) == 0
    out = run.with_name("run.hessian.h5")
    before = HessianReader(out).row(5)["eigenvalues"][0]
    assert cli.run([*command, "--problem", "./mine.py:problem", "--blocks", "*.bias,2.weight"]) == 0
    grown = HessianReader(out)
    assert (grown.blocks, grown.pairs) == (["first", "*.bias,2.weight"], ["first,last", "*.bias,2.weight"])
    np.testing.assert_array_equal(grown.row(5)["eigenvalues"][0], before)
    capsys.readouterr()
    Path("other.py").write_text(foreign.TINY + "# changed\n")
    assert cli.run([*command, "--problem", "other:problem"]) == 1
    said = capsys.readouterr().err
    assert "run.hessian.h5: it was made with --problem ./mine.py:problem (source" in said
    assert "not --problem other:problem (source" in said
    assert "hint: use --overwrite" in said
    assert cli.run([*command, "--problem", "other:problem", "--overwrite", "--blocks", "last"]) == 0
    assert HessianReader(out).attrs["problem"] == "other:problem"


def test_a_file_of_the_program_itself_needs_a_problem(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign run says what it lacks."""
    assert cli.run(["hessian", "--ckpt", "run.h5"]) == 1
    said = capsys.readouterr().err
    assert "error: run.h5 was recorded from mine, not written by `landscape train`" in said
    assert "--problem mine.py:problem" in said


def test_a_report_needs_the_files_alone(run: Path) -> None:
    """Blocks of any names are drawn, however long."""
    blocks = ["first", "last", "first,last", "*.bias", "*.bias,2.weight", "0.weight"]
    assert cli.run(["hessian", "--ckpt", "run.h5", "--problem", "mine.py:problem", "--quiet", "--blocks", *blocks]) == 0
    Path("mine.py").unlink()
    assert cli.run(["report", "run.h5", "--out", "page", "--quiet"]) == 0
    text = Path("page/report.md").read_text()
    assert "first,last" in text
    assert all(Path(f"page/figures/{name}.png").exists() for name in ("spectra", "densities"))


def test_json_stays_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user's file prints is no part of the document."""
    Path("mine.py").write_text(foreign.TINY + "\nprint('loaded')\n")
    assert cli.run(["hessian", "--ckpt", "run.h5", "--problem", "mine:problem", "--steps", "0", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["attributes"]["problem"] == "mine:problem"
    assert "loaded" in said.err


HEAD = "import torch\nfrom landscape import ModuleProblem\n"
FACTORIES = {
    "no colon": ("mine.py", "", "--problem mine.py names no function", "path/to/file.py:factory"),
    "no module": ("mien:problem", "", "there is no module 'mien'", "in the current folder: did you mean mine.py"),
    "no package": ("a.b.c:problem", "", "there is no module 'a.b.c'", "in the current folder: known: mine.py"),
    "no file": ("mien.py:problem", "", "mien.py does not exist", "did you mean mine.py"),
    "no function": ("mine:probelm", HEAD + "def problem(): pass", "mine has no 'probelm'", "did you mean problem"),
    "import fails": (
        "mine:problem",
        "import torch\nimport torhc\n",
        "fails at mine.py, line 2: ModuleNotFoundError: No module named 'torhc'",
        "call the function in Python",
    ),
    "syntax": ("mine.py:problem", "def problem(:\n", "fails at mine.py, line 1: SyntaxError: invalid syntax", "Python"),
    "raises": (
        "mine:problem",
        "def inner():\n    raise ValueError('no such data')\ndef problem():\n    return inner()\n",
        "fails at mine.py, line 2: ValueError: no such data",
        "call the function in Python",
    ),
    "raises elsewhere": (
        "mine.py:problem",
        "import torch\ndef problem():\n    return torch.zeros(2) @ torch.zeros(3)\n",
        "fails at mine.py, line 3: RuntimeError: ",
        "call the function in Python",
    ),
    "a script": (
        "mine:problem",
        "import sys\nsys.exit(0)\n",
        "ends the program at mine.py, line 2",
        'under if __name__ == "__main__"',
    ),
    "a model": (
        "mine:problem",
        "import torch\ndef problem(): return torch.nn.Linear(2, 2)\n",
        "returns a Linear, not a problem",
        "return landscape.ModuleProblem",
    ),
    "nothing": ("mine:problem", "def problem(): pass\n", "returns a NoneType, not a problem", "ModuleProblem"),
    "arguments": (
        "mine:problem",
        "def problem(path, width=3): pass\n",
        "cannot be called without arguments: missing a required argument: 'path'",
        "give its arguments defaults",
    ),
    "no function but a value": (
        "mine:problem",
        "problem = 3\n",
        "is a int, not a function",
        "write a function that returns it",
    ),
    "a complex parameter": (
        "mine:problem",
        HEAD + "def problem():\n    m = torch.nn.Linear(2, 2)\n"
        "    m.weight = torch.nn.Parameter(torch.zeros(2, 2).to(torch.complex64))\n"
        "    return ModuleProblem(m, torch.zeros(3, 2), torch.zeros(3).long())\n",
        "parameter 'weight' is torch.complex64: the Hessian is defined here for real parameters",
        "torch.view_as_real",
    ),
    "an integer parameter": (
        "mine:problem",
        HEAD + "def problem():\n    m = torch.nn.Linear(2, 2)\n"
        "    m.weight = torch.nn.Parameter(torch.zeros(2, 2).long(), requires_grad=False)\n"
        "    return ModuleProblem(m, torch.zeros(3, 2), torch.zeros(3).long())\n",
        "parameter 'weight' is torch.int64, which has no derivatives",
        "convert it to float",
    ),
    "a name with spaces": (
        "mine:problem",
        foreign.TINY.replace('"last"', '"the last"'),
        "a block cannot be named 'the last'",
        "leave out spaces",
    ),
}


@pytest.mark.parametrize(("name", "text", "error", "hint"), FACTORIES.values(), ids=FACTORIES.keys())
def test_factories_that_are_none(
    name: str, text: str, error: str, hint: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of error with the line of the user's file, one of hint, and no file."""
    refused(["hessian", "--ckpt", "run.h5", "--problem", name], text, error, hint, capsys)


def refused(argv: list[str], text: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    if text:
        Path("mine.py").write_text(text)
    before = set(Path().iterdir())
    assert cli.run(argv) in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert said[0].startswith("error: ")
    assert error in said[0]
    assert said[1].startswith("hint: ")
    assert hint in said[1]
    assert {p for p in Path().iterdir() if p.suffix == ".h5"} <= before


LAYER = "torch.nn.Tanh()"
REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "dropout": (
        {LAYER: "torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(0.1))", ".eval()": ""},
        "in training mode: Dropout '1.1'",
        "call model.eval()",
    ),
    "batch norm": (
        {LAYER: "torch.nn.BatchNorm1d(4, affine=False)", ".eval()": ""},
        "in training mode: BatchNorm1d '1'",
        "call model.eval()",
    ),
    "random numbers": (
        {"model(), x": "Own(lambda z: z + torch.randn_like(z)), x"},
        "curvature needs a deterministic loss",
        "fix its random numbers",
    ),
    "once differentiable": (
        {"model(), x": "Own(Once.apply), x"},
        "the second derivative by automatic differentiation is",
        "that can be differentiated twice",
    ),
    "no second derivative": (
        {"model(), x": "Own(attend), x"},
        "derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented",
        "fused attention",
    ),
    "gradient checkpointing": (
        {"model(), x": "Own(lambda z: torch.utils.checkpoint.checkpoint(torch.tanh, z, use_reentrant=True)), x"},
        "the loss cannot be differentiated: RuntimeError",
        "torch.utils.checkpoint",
    ),
    "NaN": (
        {"model(), x": "Own(lambda z: z / 0 * 0), x"},
        "of the 12 samples tried is NaN or infinite",
        "look at the model's outputs there",
    ),
    "shuffled": (
        {"x, y, blocks": "loader(shuffle=True), blocks"},
        "the loader gives other data when it is read again",
        "shuffle=False",
    ),
    "empty": ({"x, y, blocks": "[], blocks"}, "the list holds no batch", "give at least one"),
    "a generator": (
        {"x, y, blocks": "((a, b) for a, b in [(x, y)]), blocks"},
        "the batches are a generator, which can be read once only",
        "give a list or a DataLoader",
    ),
    "unused": (
        {"model(), x": "Unused(), x"},
        "the loss does not depend on '2.weight', '2.bias'",
        "leave out of params what the model does not use",
    ),
}
OWN = """
import torch.utils.checkpoint


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def attend(z):
    q = z[:, None, None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0][:, 0, 0]


class Own(torch.nn.Sequential):
    def __init__(self, function):
        super().__init__(*model())
        self.function = function

    def forward(self, x):
        return self[2](self[1](self.function(self[0](x))))


class Unused(torch.nn.Sequential):
    def __init__(self):
        super().__init__(*model())

    def forward(self, x):
        return self[0](x)[:, :3]


def loader(**settings):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 5, **settings)


def problem"""


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("changes", "error", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_losses_without_a_hessian(
    changes: dict[str, str], error: str, hint: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has no Hessian in this sense is refused before any work, and no file is made."""
    text = foreign.TINY.replace("\ndef problem", OWN)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    refused(["hessian", "--ckpt", "run.h5", "--problem", "mine:problem"], text, error, hint, capsys)


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
    text: str, more: list[str], error: str, hint: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first difference is named, with the nearest names."""
    refused(["hessian", "--ckpt", "run.h5", "--problem", "mine:problem", *more], text, error, hint, capsys)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_names_that_a_wrapper_prefixes(prefix: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the wrapped network says so."""
    with RunReader(run) as reader:
        arrays = {prefix + name: values for name, values in reader.checkpoint(9).items()}
    foreign.record(Path("wrapped.h5"), {9: arrays})
    error = "wrapped.h5 holds no parameter '0.weight', which the module has"
    hint = f"all names in the file begin with '{prefix}'"
    refused(["hessian", "--ckpt", "wrapped.h5", "--problem", "mine:problem"], "", error, hint, capsys)


@pytest.mark.parametrize("command", ["hessian", "critical", "slice"])
def test_every_command_refuses_alike(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words for a factory that fails, and for a network that does not fit."""
    step = [] if command == "hessian" else ["--step", "9"]
    argv = [command, "--ckpt", "run.h5", *step, "--problem", "mine.py:problem"]
    wider = foreign.TINY.replace("Linear(3, 4)", "Linear(3, 5)").replace("Linear(4, 3)", "Linear(5, 3)")
    refused(
        argv, wider, "parameter '0.weight' has shape (4, 3) in run.h5", "the sizes that it was trained with", capsys
    )
    refused(argv, "def problem(): return 1 / 0\n", "fails at mine.py, line 1: ZeroDivisionError", "traceback", capsys)


def test_running_statistics_are_those_of_the_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no parameters, and so in no checkpoint: the user is told."""
    Path("mine.py").write_text(foreign.TINY.replace("torch.nn.Tanh()", "torch.nn.BatchNorm1d(4, affine=False)"))
    argv = ["hessian", "--ckpt", "run.h5", "--problem", "mine.py:problem", "--steps", "9", "--blocks", "last"]
    assert cli.run([*argv, "--quiet"]) == 0
    expected = "warning: --problem mine.py:problem: the running statistics of '1' are those of the given model"
    assert expected in capsys.readouterr().err
