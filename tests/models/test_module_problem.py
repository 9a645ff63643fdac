"""Any module as a problem: the same numbers as the hand-derived problem of the same network, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.marking import slow
from torch import nn

from landscape import models
from landscape.config import HessianConfig
from landscape.errors import ArgumentError, ConfigError
from landscape.files.runs import RunReader
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.models.embedding_mlp.problem import plain_model
from landscape.models.module import ModuleProblem
from landscape.models.problem import Problem, Training
from landscape.training.loop import train

OURS = {"0.weight": "E", "2.weight": "W", "2.bias": "b1", "4.weight": "V", "4.bias": "b2"}
BLOCKS = {"E": ["0.*"], "W": ["2.weight"], "V": ["4.weight"]}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dense", slow("lanczos")])
@pytest.mark.long
def test_a_module_is_measured_as_the_problem_is(method: Any, tmp_path: Path) -> None:
    """A plain nn.Sequential with its own names, against the products and closed forms derived by hand."""
    config = dataclasses.replace(TINY, activation="tanh", embed_dim=3, hidden=6)
    train(config, tmp_path / "run.h5", quiet=True)
    with RunReader(tmp_path / "run.h5") as reader:
        by_hand = models.of_run(reader, "cpu")
        parameters, knows = reader.checkpoint(60), by_hand.training(reader, 60)
    model, named = plain_model(config, parameters, torch.device("cpu"))
    inputs, targets = by_hand.tokens, by_hand.labels  # type: ignore[attr-defined]
    pairs = [("E", "W"), ("W", "V")]
    foreign = ModuleProblem(model, inputs, targets, blocks=BLOCKS, pairs=pairs)
    ours = {name: OURS[name] for name, _ in model.named_parameters()}
    assert foreign.blocks["E,W"] == ("0.weight", "2.weight")
    settings = HessianConfig(
        blocks=("E", "W", "E,W", "W,V", "all"),
        method=method,
        k=3,
        device="cpu",
        rel_tau=1e-3,
        certify=True,
        density=True,
    )

    def numbers(problem: Problem, point: Point) -> dict[str, Any]:
        root = measure(Measurement.of(problem, settings), point).datasets["/"]
        return {str(name): x.values for name, x in root.items()}

    expected = numbers(by_hand, Point(parameters, knows))
    arrays = {name: parameters[ours[name]] for name in foreign.parameters}
    rates = {name: knows.rates[ours[name]] for name in foreign.parameters}
    measured = numbers(foreign, Point(arrays, Training(60, rates, None, float("nan"))))
    norm = expected["operator_norm"][:, None, None]
    np.testing.assert_allclose(measured["operator_norm"], expected["operator_norm"], rtol=1e-6)
    # Block `all` of the MLP loses its exact null vectors beforehand; those of its ends are not among them.
    np.testing.assert_allclose(measured["eigenvalues"] / norm, expected["eigenvalues"] / norm, atol=3e-6)
    np.testing.assert_allclose(measured["grad_norm"], expected["grad_norm"], rtol=1e-9)
    assert measured["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-12)
    lower, upper = (measured[f"inertia_{end}"][:4] for end in ("lower", "upper"))
    assert ((lower <= expected["inertia_upper"][:4]) & (expected["inertia_lower"][:4] <= upper)).all()
    assert measured["sharpness_gd"] == pytest.approx(expected["sharpness_gd"], rel=1e-4)
    assert np.isnan(measured["sharpness_adam"])
    np.testing.assert_allclose(measured["coupling_strength"], expected["coupling_strength"][:2], rtol=1e-5)
    if method == "dense":
        np.testing.assert_allclose(
            measured["coupling_ratios"], expected["coupling_ratios"][:2], rtol=1e-6, equal_nan=True
        )
        np.testing.assert_array_equal(measured["inertia"][:4], expected["inertia"][:4])


def test_tied_parameters_count_once() -> None:
    """A tied weight has one name, and its gradient is that of both uses."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Tanh(), torch.nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    problem = ModuleProblem(model.double(), torch.randn(5, 3).double(), torch.arange(5) % 3)
    assert problem.blocks == {"all": ("0.weight",)}
    assert problem.parameters["0.weight"].shape == (3, 3)


@pytest.mark.parametrize(
    ("blocks", "pairs", "error", "hint"),
    [
        ({"a": ["0.wieght"]}, [], "block 'a': '0.wieght' matches no parameter", "did you mean 0.weight"),
        ({"a": []}, [], "block 'a' names no parameter", "at least one"),
        ({"all": ["0.*"]}, [], "block 'all' is every parameter", "choose another name"),
        ({"a": ["0.*"]}, [("a", "b")], "pair a,b: no block 'b'", "known: a"),
        (["0.*"], [], "blocks are", "name each: blocks="),
        ({"a": [3]}, [], "block 'a': ", "printable strings"),
        ({".": ["0.*"]}, [], "a block cannot be named '.'", "leave out"),
        ({"2.bias": ["0.*"]}, [], "block '2.bias' has the name of a parameter, and holds others", "rename the block"),
        ({}, [("a", "b")], "pair a,b: no block 'a'", "declare the blocks of a pair"),
        ({"a": ["0.*"]}, "ab", "pair 'ab' is not two blocks", "two blocks, such as"),
        ({"a": ["0.*"]}, [{"a", "b"}], "is not two blocks", "two blocks, such as"),
        ({"a": ["0.*"], "b": ["2.*"]}, [("a", "b")] * 2, "pair a,b stands twice", "once"),
        ({"a": ["0.*"], "b": ["*"]}, [("a", "b")], "pair a,b: both blocks hold 0.bias", "without a common one"),
    ],
)
def test_blocks_that_cannot_be(blocks: Any, pairs: Any, error: str, hint: str) -> None:
    """Patterns that match nothing, blocks of nothing, pairs that overlap."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=error) as raised:
        ModuleProblem(model, torch.randn(4, 2), torch.zeros(4, dtype=torch.long), blocks=blocks, pairs=pairs)
    assert hint in raised.value.hint


def test_a_name_that_reads_like_a_pattern() -> None:
    """A parameter is found by its own name first."""
    model = nn.Module()
    model.forward = lambda x: x * model.get_parameter("a[0]") * model.get_parameter("a0")  # type: ignore[method-assign]
    for name in ("a[0]", "a0"):
        model.register_parameter(name, nn.Parameter(torch.ones(3)))
    problem = ModuleProblem(model, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), blocks={"one": ["a[0]"]})
    assert problem.blocks["one"] == ("a[0]",)


def test_a_block_that_is_not_there() -> None:
    """Named with those that are, before any work."""
    model = torch.nn.Linear(2, 2)
    problem = ModuleProblem(model, torch.randn(4, 2), torch.zeros(4, dtype=torch.long), blocks={"w": ["weight"]})
    with pytest.raises(ConfigError, match="the module has no block 'E'") as raised:
        Measurement.of(problem, HessianConfig(blocks=("E",), device="cpu"))
    assert raised.value.hint == "known: w all weight bias"


class Locked(nn.Sequential):
    """A network with a weight that is used twice, a buffer, and a lock, which nothing can copy."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3))
        self[2].weight = self[0].weight
        self.lock = threading.Lock()


class LockedLoss(nn.CrossEntropyLoss):
    """A loss that cannot be copied, either."""

    def __init__(self) -> None:
        super().__init__(weight=torch.tensor([1.0, 2.0, 0.5]), reduction="none")
        self.lock = threading.Lock()


def test_verification_needs_no_copy_of_the_model() -> None:
    """The plain loss of a module that cannot be copied is torch's own, and leaves the module as it was."""
    torch.manual_seed(0)
    x, y, model = torch.randn(7, 3), torch.arange(7) % 3, Locked()
    model(x)
    problem = ModuleProblem(model.eval(), x, y, LockedLoss())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moved = {n: p.detach().double() + 0.1 for n, p in model.named_parameters()}
    plain = problem.plain({name: value.numpy() for name, value in moved.items()})
    loss = plain.loss(plain.model(plain.inputs), plain.targets)
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    del model.lock
    copied = copy.deepcopy(model).double()
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            parameter.copy_(moved[name])
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    expected = nn.functional.cross_entropy(copied(x.double()), y, weights)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-13)
    for name, parameter in copied.named_parameters():
        torch.testing.assert_close(plain.parameters[name].grad, parameter.grad, rtol=1e-12, atol=1e-14)
