"""What the function that `--problem` names may not do or return, and losses without a Hessian."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import foreign

HEAD = "import torch\nfrom landscape import ModuleProblem\n"
FACTORIES = {
    "no colon": ("mine.py", "", "--problem mine.py names no function", "path/to/file.py:factory"),
    "no module": ("mien:problem", "", "there is no module 'mien'", "in the current folder: did you mean mine.py"),
    "no package": ("a.b.c:problem", "", "there is no module 'a.b.c'", "in the current folder: mine.py"),
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
        "TypeError: problem() missing 1 required positional argument: 'path'",
        "call the function in Python",
    ),
    "no function but a value": (
        "mine:problem",
        "problem = 3\n",
        "is an int, not a function",
        "write a function that returns it, def make(): return problem, and name that",
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
    name: str, text: str, error: str, hint: str, users_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of error with the line of the user's file, one of hint, and no file."""
    foreign.refused(["hessian", "run.h5", "--problem", name], text, error, hint, capsys)


@pytest.mark.parametrize("block", ["width", "step", "param_row_first", "first_error"])
def test_a_block_with_the_name_of_a_dataset(block: str, users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spectra and densities have a dataset named after each block beside others of their own."""
    text = foreign.TINY.replace('"last"', f'"{block}"')
    error = f"run.hessian.h5: {block!r} has another meaning in "
    command = ["hessian", "run.h5", "--problem", "mine:problem", "--density"]
    foreign.refused(command, text, error, "rename it", capsys)


@pytest.mark.parametrize("parameter", ["distance", "radius"])
def test_a_parameter_with_the_name_of_a_dataset(
    parameter: str, tmp_path: Path, beside_the_user: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search stores all parameters beside numbers of its own."""
    text = f"""
import torch
from landscape import ModuleProblem


class Scaled(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.{parameter} = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return super().forward(self.{parameter} * x)


def problem():
    return ModuleProblem(Scaled(), torch.eye(3), torch.arange(3), weight_decay=0.1)
"""
    arrays = {name: p.detach().numpy() for name, p in foreign.executed(text)["Scaled"]().named_parameters()}
    foreign.record(tmp_path / "run.h5", {0: arrays})
    argv = ["critical", "run.h5", "--step", "0", "--problem", "mine:problem"]
    error = f"run.critical-0.h5: {parameter!r} has another meaning in "
    foreign.refused(argv, text, error, "rename it", capsys)


LAYER = "torch.nn.Tanh()"
REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "dropout": (
        {LAYER: "torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Dropout(0.1))", ".eval()": ""},
        "the loss of the same parameters is",
        "put the module in eval mode",
    ),
    "batch norm, cut": (
        {
            LAYER: "torch.nn.BatchNorm1d(4, affine=False, track_running_stats=False)",
            ".eval()": "",
            "x, y, ": "x, y, chunk_size=6, ",
        },
        "the loss of a batch changes by",
        "leave chunk_size out",
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
        "fused ones cannot",
    ),
    "NaN": (
        {"model(), x": "Own(lambda z: z / 0 * 0), x"},
        "the loss of 1 of 1 batches is NaN or infinite",
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
        "or have forward add 0 * p.sum()",
    ),
}
OWN = """
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


@pytest.mark.parametrize(("changes", "error", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_losses_without_a_hessian(
    changes: dict[str, str], error: str, hint: str, users_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has no Hessian in this sense is refused before any work, and no file is made."""
    text = foreign.TINY.replace("\ndef problem", OWN)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    foreign.refused(["hessian", "run.h5", "--problem", "mine:problem"], text, error, hint, capsys)
