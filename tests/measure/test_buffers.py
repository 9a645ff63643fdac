"""Buffers belong to a checkpoint: a network is measured with those that it had at each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from helpers.ranks import command, started
from safetensors.torch import save_file
from torch import Tensor, nn

from landscape import HessianConfig, ModuleProblem, Recorder
from landscape.cli import main as cli
from landscape.config import AnalysisConfig, SliceConfig
from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.measure.slices import slice as slice_checkpoint
from landscape.models.factory import load

MINE = """
import torch
from torch import nn
from landscape import ModuleProblem


class Net(nn.Module):
    '''Running statistics, a count of calls that scales the outputs, and a constant outside the state.'''

    def __init__(self, scale=2.0):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))
        self.register_buffer("keep", torch.ones(2, dtype=torch.bool))
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.keep[1] = self.calls % 2 == 0
        hidden = torch.tanh(self.norm(self.conv(x))).mean(-1) * self.keep
        return self.head(hidden) * self.scale / (1 + self.calls / 10)


x = torch.randn(20, 1, 6, generator=torch.Generator().manual_seed(0))
y = torch.arange(20) % 3


def net(scale=2.0):
    torch.manual_seed(1)
    return Net(scale)


def problem():
    return ModuleProblem(net().eval(), x, y)


def wrapped():
    return ModuleProblem(nn.DataParallel(net()).eval(), x, y)


def compiled():
    return ModuleProblem(torch.compile(net().eval()), x, y)
"""
STEPS = (0, 1, 4, 9)
DEFINED = foreign.executed(MINE)


def steps(net: nn.Module) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train, and tell of each step of STEPS before it is left."""
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            yield step, {name: value.clone() for name, value in net.state_dict().items()}
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(DEFINED["x"]), DEFINED["y"]).backward()
        optimizer.step()


def record(net: nn.Module, path: str, recorded: nn.Module | None = None) -> dict[int, dict[str, Any]]:
    states = {}
    with Recorder(path, net if recorded is None else recorded) as recorder:
        for step, state in steps(net):
            states[step] = state
            assert recorder.checkpoint(step)
    return states


def truth(state: dict[str, Any]) -> tuple[float, Tensor]:
    """The loss of the trained network in eval mode, and its Hessian by torch alone."""
    net = DEFINED["net"]()
    net.load_state_dict(state)
    net.double().eval()
    parameters = list(net.parameters())
    loss = nn.functional.cross_entropy(net(DEFINED["x"].double()), DEFINED["y"])
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    rows = [torch.autograd.grad(g, parameters, retain_graph=True) for g in gradient]
    return float(loss.detach()), torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


def agree(path: Path, states: dict[int, dict[str, Any]]) -> None:
    """The eigenvalues in a Hessian file are those of the trained networks."""
    reader = HessianReader(path)
    assert reader.steps == list(states)
    for step, state in states.items():
        loss, H = truth(state)
        row = reader.row(step)
        values = torch.linalg.eigvalsh(H).numpy()
        np.testing.assert_allclose(row["train_loss"], loss, rtol=1e-12)
        k = row["eigenvalues"].shape[-1]
        np.testing.assert_allclose(row["eigenvalues"][0, 0], values[:k], atol=1e-12)
        np.testing.assert_allclose(row["eigenvalues"][0, 1], values[::-1][:k], atol=1e-12)


@pytest.fixture
def mine(beside_the_user: None) -> None:
    Path("mine.py").write_text(MINE)


OWN = ["--run", "run.h5", "--problem", "mine.py:problem"]


def test_buffers_are_recorded(mine: None) -> None:
    """Persistent ones of each step bit for bit, with named axes, and no others; other readers see them, too."""
    states = record(DEFINED["net"](), "run.h5")
    names = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "calls", "keep"]
    with h5py.File("run.h5") as file:
        group = file["buffers"]
        assert {name for name in group if not name.endswith(".0")} == {*names, "step", "crc32"}
        assert group["norm.running_mean"].dims[1][0].name == "/buffers/norm.running_mean.0"
        for name in names:
            expected = np.stack([state[name].numpy() for state in states.values()])
            np.testing.assert_array_equal(group[name][()], expected)
    with RunReader("run.h5") as reader:
        for step, state in states.items():
            assert {n: v.tobytes() for n, v in reader.checkpoint(step).items()} == {
                n: v.numpy().tobytes() for n, v in state.items()
            }
    # A bit of a buffer is as good as one of a parameter.
    with h5py.File("run.h5", "r+") as file:
        file["buffers/norm.running_var"][1, 0] += 1
    assert cli.run(["check", "run.h5"]) == 1
    with RunReader("run.h5") as reader:
        assert reader.steps == [0, 4, 9]


@pytest.mark.parametrize("more", [[], ["--jobs", "2"]], ids=["serial", "jobs"])
def test_every_step_is_measured_with_its_own(more: list[str], mine: None) -> None:
    """Against plain autograd on the trained network in eval mode; what is not in the state is the module's own."""
    states = record(DEFINED["net"](), "run.h5")
    # Extended, so that two processes measure them.
    assert cli.run(["hessian", *OWN, "--steps", "4", "--quiet"]) == 0
    assert cli.run(["hessian", *OWN, "--steps", "all", "--quiet", *more]) == 0
    agree(Path("run.hessian.h5"), states)


@pytest.mark.slow
def test_ranks_have_those_of_each_step(mine: None) -> None:
    """Two ranks, each with half of the samples."""
    states, folder = record(DEFINED["net"](), "run.h5"), Path.cwd()
    with started(folder, 2, command, folder, ["hessian", *OWN, "--steps", "all", "--quiet"]) as crew:
        crew.join()
    assert crew.codes == [0, 0], crew.said()
    agree(folder / "run.hessian.h5", states)


def test_slices_critical_points_and_the_library(mine: None) -> None:
    """They have the buffers of their step, too."""
    states = record(DEFINED["net"](), "run.h5")
    loss, H = truth(states[9])
    assert cli.run(["critical", *OWN, "--step", "9", "--search-hvps", "3", "--quiet"]) in (0, 3)
    point = HessianReader("run.critical-9.h5").critical_point(9)
    np.testing.assert_allclose(point["start_loss"], loss, rtol=1e-12)
    slices = slice_checkpoint("run.h5", 9, SliceConfig(k=1), AnalysisConfig(problem="mine.py:problem"))
    np.testing.assert_allclose(slices.value, loss, rtol=1e-12)
    np.testing.assert_allclose(slices.eigenvalues, torch.linalg.eigvalsh(H)[[0, -1]], atol=1e-12)
    problem, _ = load("mine.py:problem")
    measurement = Measurement.of(problem, HessianConfig(problem="mine.py:problem"))
    for step, state in states.items():
        with RunReader("run.h5") as reader:
            row = measure(measurement, Point(reader.checkpoint(step), problem.training(reader, step))).datasets["/"]
        np.testing.assert_allclose(row["train_loss"], truth(state)[0], rtol=1e-12)


def test_a_problem_with_other_buffers() -> None:
    """It is another one; the module is left alone, and shares its parameters."""
    net = DEFINED["net"]().eval()
    net.norm.note = net.norm.running_mean
    before = {name: value.clone() for name, value in net.state_dict().items()}
    problem = ModuleProblem(net, DEFINED["x"], DEFINED["y"])
    buffers = {"norm.running_mean": np.array([0.3, -0.2], "f4"), "calls": torch.tensor(5)}
    params = {name: p.double() for name, p in net.named_parameters()}
    loss_value = problem.with_buffers(buffers).objective(0.0).value(params)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    other = DEFINED["net"]().eval()
    other.norm.running_mean.copy_(torch.tensor([0.3, -0.2]))
    other.calls.fill_(5)
    assert loss_value == ModuleProblem(other, DEFINED["x"], DEFINED["y"]).objective(0.0).value(params)
    assert loss_value != problem.objective(0.0).value(params)
    for wrong, words in (({"scale": torch.ones(())}, "no buffer 'scale'"), ({"keep": np.ones(3)}, r"shape \(3,\)")):
        with pytest.raises(ArgumentError, match=words):
            problem.with_buffers(wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_that_wrappers_prefix(prefix: str, mine: None) -> None:
    """Recorded or imported, of the wrapped network or the plain one: they are the same tensors."""
    net, states = DEFINED["net"](), {}
    wrap = {"module.": nn.DataParallel, "_orig_mod.": torch.compile}
    outer: Any = net
    for part in reversed(prefix.split(".")[:-1]):
        outer = wrap[f"{part}."](outer)
    assert all(name.startswith(prefix) for name in outer.state_dict())
    states = record(net, "run.h5", outer)
    for step in STEPS:
        save_file({prefix + name: value for name, value in states[step].items()}, f"at-{step}.safetensors")
    assert cli.run(["import", "at-*.safetensors", "--out", "imported.h5", "--quiet"]) == 0
    for run in ("run.h5", "imported.h5"):
        with RunReader(run) as reader:
            assert reader.checkpoint(0).keys() == states[0].keys()
        for name in ("problem", "wrapped", "compiled"):
            argv = [
                "hessian",
                "--run",
                run,
                "--problem",
                f"mine.py:{name}",
                "--steps",
                "all",
                "--quiet",
                "--overwrite",
            ]
            assert cli.run(argv) == 0
            agree(Path(run).with_suffix(".hessian.h5"), states)


def test_imported_buffers_that_look_like_parameters(mine: None) -> None:
    """Floating ones are told from parameters by the problem."""
    text = MINE.replace('"scale", torch.tensor(scale), persistent=False', '"scale", torch.tensor(scale)')
    Path("mine.py").write_text(text)
    net = foreign.executed(text)["net"](0.5)
    torch.save(net.state_dict(), "at-3.pt")
    assert cli.run(["import", "at-3.pt", "--out", "run.h5", "--quiet"]) == 0
    assert cli.run(["hessian", *OWN, "--quiet"]) == 0
    net.eval()
    loss = nn.functional.cross_entropy(net.double()(DEFINED["x"].double()), DEFINED["y"]).item()
    np.testing.assert_allclose(HessianReader("run.hessian.h5").row(3)["train_loss"], loss, rtol=1e-12)


def test_tensors_that_one_side_lacks_are_named(mine: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without buffers, as of earlier versions, and one with buffers that the module has not in its state."""
    net = DEFINED["net"]()
    foreign.record(Path("run.h5"), {0: {n: p.detach().double().numpy() for n, p in net.named_parameters()}})
    error = "run.h5 holds no buffer 'calls', which the module has"
    foreign.refused(["hessian", *OWN], "", error, "register_buffer(..., persistent=False)", capsys)
    torch.save({**net.state_dict(), "scale": torch.ones(())}, "at-3.pt")
    assert cli.run(["import", "at-3.pt", "--out", "run.h5", "--quiet", "--overwrite"]) == 0
    capsys.readouterr()
    foreign.refused(
        ["hessian", *OWN], "", "run.h5 holds 'scale', which the module lacks", "import --skip scale", capsys
    )
    assert cli.run(["import", "at-3.pt", "--out", "run.h5", "--quiet", "--overwrite", "--skip", "scale"]) == 0
    assert cli.run(["hessian", *OWN, "--quiet"]) == 0
