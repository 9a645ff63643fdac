"""A file holds measurements of one problem: data, constants and loss are compared at each call, job and rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from helpers.ranks import command, started

from landscape import Recorder
from landscape.cli import main as cli
from landscape.config import AnalysisConfig, SliceConfig
from landscape.measure.slices import slice as slice_checkpoint
from landscape.models.factory import load

MINE = """
import functools
import torch
from torch import nn
from landscape import ModuleProblem, cross_entropy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("project", torch.linspace(-1, 1, 40).reshape(4, 10), persistent=False)
        self.out, self.masks = nn.Linear(10, 3), [torch.ones(10)]

    def forward(self, x):
        return self.out(torch.cos(x @ self.project) * self.masks[0])


class Weighted(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, z, y):
        return self.weight * cross_entropy(z, y)


x, y, weight = torch.linspace(-1, 1, 80).reshape(20, 4), torch.arange(20) % 3, 2.0
loss = Weighted(weight)
net = Net().eval()
generator = torch.Generator()
generator.seed()


def draw(*shape):
    return torch.rand(shape, generator=generator)


def problem():
    return ModuleProblem(net, x, y, loss)


def data():
    return ModuleProblem(net, x + draw(20, 4), y, loss)


def batches():
    return ModuleProblem(net, [(x[:9], y[:9]), (x[9:] + draw(1), y[9:])], loss=loss)


def buffer():
    net.project = draw(4, 10)
    return problem()


def mask():
    net.masks = [draw(10).round()]
    return problem()


def module():
    return ModuleProblem(net, x, y, Weighted(float(draw())))


def partial():
    scaled = functools.partial(lambda z, y, weight: weight.sum() * cross_entropy(z, y), weight=draw(1))
    return ModuleProblem(net, x, y, scaled)


def closure():
    scale = draw(1)
    return ModuleProblem(net, x, y, lambda z, y: scale * cross_entropy(z, y))
"""
CHANGES = {
    "data": "data",
    "batches": "data",
    "buffer": "buffer 'project'",
    "mask": "tensor 'masks'",
    "module": "loss",
    "partial": "loss",
    "closure": "loss",
}


@pytest.fixture
def mine(beside_the_user: None) -> None:
    """A run of equal parameters, and problems that are others at each call."""
    Path("mine.py").write_text(MINE)
    model = foreign.executed(MINE)["Net"]()
    with Recorder("run.h5", model) as recorder:
        for step in range(3):
            recorder.checkpoint(step)


@pytest.mark.parametrize(("function", "what"), CHANGES.items(), ids=CHANGES.keys())
def test_an_extension_by_another_problem(
    function: str, what: str, mine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by what differs, and nothing is measured; so is a search that is resumed."""
    argv = ["hessian", "run.h5", "--problem", f"mine.py:{function}", "--quiet"]
    assert cli.run([*argv, "--steps", "0"]) == 0
    before = Path("run.hessian.h5").read_bytes()
    capsys.readouterr()
    error = f"run.hessian.h5: it was measured on another problem: the {what} of --problem mine.py:{function} is not"
    foreign.refused([*argv, "--steps", "1"], "", error, "torch.manual_seed(0)", capsys)
    foreign.refused([*argv, "--steps", "0"], "", error, "--overwrite measures all steps anew", capsys)
    assert Path("run.hessian.h5").read_bytes() == before
    assert cli.run([*argv, "--steps", "all", "--overwrite"]) == 0
    rows = [HessianReader("run.hessian.h5").row(step)["eigenvalues"].tobytes() for step in range(3)]
    assert len(set(rows)) == 1
    search = ["critical", "run.h5", "--step", "0", "--problem", f"mine.py:{function}", "--search-hvps", "2", "--quiet"]
    assert cli.run(search) in (0, 3)
    capsys.readouterr()
    foreign.refused([*search, "--resume"], "", f"on another problem: the {what} of", "seed the function", capsys)


def test_the_same_problem_goes_on(mine: None) -> None:
    """From another process, too; the file says of what it is."""
    argv = ["hessian", "run.h5", "--problem", "mine.py:problem", "--quiet"]
    for step in ("0", "1", "all"):
        assert cli.run([*argv, "--steps", step]) == 0
    made = json.loads(HessianReader("run.hessian.h5").attrs["problem_checksum"])
    assert list(made) == ["data", "buffer 'project'", "tensor 'masks'", "loss"]
    assert json.loads(load("mine.py:problem")[1].checksum) == made
    config = AnalysisConfig(problem="mine.py:problem")
    assert json.loads(slice_checkpoint("run.h5", 0, SliceConfig(k=1), config).problem_checksum) == made


@pytest.mark.slow
def test_jobs_that_make_other_problems(mine: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker compares its own with that of the command, before it measures."""
    argv = ["hessian", "run.h5", "--problem", "mine.py:data", "--steps", "all", "--quiet", "--jobs", "2"]
    assert cli.run(argv) == 1
    said = capsys.readouterr().err
    assert "error: --problem mine.py:data makes another problem in each process: the data is not the same" in said
    assert "hint: draw it the same at each call" in said
    assert not Path("run.hessian.h5").exists()
    # Once it is seeded, all goes on where nothing was measured.
    Path("mine.py").write_text(MINE.replace("generator.seed()", "generator.manual_seed(0)"))
    assert cli.run(argv) == 0


@pytest.mark.slow
@pytest.mark.parametrize("function", ["data", "buffer", "closure"])
def test_ranks_that_make_other_problems(function: str, mine: None) -> None:
    """It is named before anything is measured."""
    folder = Path.cwd()
    argv = ["hessian", "run.h5", "--problem", f"mine.py:{function}", "--steps", "all", "--quiet"]
    with started(folder, 2, command, folder, argv) as crew:
        crew.join()
    assert crew.codes == [1, 1]
    assert f"rank 1 has {CHANGES[function]} other than rank 0" in crew.said()
    assert not (folder / "run.hessian.h5").exists()


@pytest.mark.slow
def test_one_process_goes_on_where_ranks_ended(mine: None) -> None:
    """The checksum of the data does not depend on who has which part of them."""
    folder = Path.cwd()
    Path("mine.py").write_text(MINE.replace("generator.seed()", "generator.manual_seed(0)"))
    for function in ("problem", "batches"):
        argv = ["hessian", "run.h5", "--problem", f"mine.py:{function}", "--quiet", "--out", f"{function}.h5"]
        with started(folder, 2, command, folder, [*argv, "--steps", "0"]) as crew:
            crew.join()
        assert crew.codes == [0, 0], crew.said()
        assert cli.run([*argv, "--steps", "all"]) == 0
        assert HessianReader(f"{function}.h5").steps == [0, 1, 2]


def test_tensors_that_a_forward_pass_leaves(beside_the_user: None) -> None:
    """They are no part of the problem."""
    text = MINE.replace("        return self.out", "        self.seen = x.detach().sum()\n        return self.out")
    Path("mine.py").write_text(text)
    with Recorder("run.h5", foreign.executed(text)["Net"]()) as recorder:
        recorder.checkpoint(0)
        recorder.checkpoint(1)
    for step in ("0", "1"):
        assert cli.run(["hessian", "run.h5", "--problem", "mine.py:problem", "--quiet", "--steps", step]) == 0
    assert torch.is_grad_enabled()
