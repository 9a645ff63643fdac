"""Tasks, optimisers, samplers and activations by name: an unknown name is an error, a new one is used everywhere."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from landscape.choices.activations import ACTIVATIONS, activation
from landscape.choices.optimizers import OPTIMIZERS
from landscape.choices.registry import Registry
from landscape.choices.samplers import SAMPLERS
from landscape.choices.tasks import TASKS, task
from landscape.config import TrainConfig, preset, replace, to_json
from landscape.errors import ConfigError
from landscape.measure.quantities import QUANTITIES, found_in
from landscape.models.tasks import make_data

REGISTRIES: dict[str, Registry[Any]] = {
    "task": TASKS, "optimizer": OPTIMIZERS, "sampler": SAMPLERS, "activation": ACTIVATIONS,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    """What a test registers is gone with it."""
    before = {kind: dict(registry) for kind, registry in REGISTRIES.items()}
    yield
    for kind, entries in before.items():
        REGISTRIES[kind].clear()
        REGISTRIES[kind].update(entries)


def test_a_task_registered_by_its_user() -> None:
    """A config takes it, from JSON too, and the labels are its answers."""

    @task()
    def cubes(a: Any, b: Any, p: int) -> Any:
        """a^3+b^3"""
        return a**3 + b**3

    config = TrainConfig(task="cubes", p=7, tokens=2)
    assert replace(TrainConfig(), json.loads(to_json(config))) == config
    data = make_data(config)
    assert (data.labels == [(a**3 + b**3) % 7 for a, b in data.tokens.tolist()]).all()
    with pytest.raises(ConfigError, match="unknown task 'cubs'") as stop:
        TrainConfig(task="cubs")
    assert stop.value.hint == "did you mean cubes?"


@pytest.mark.parametrize("p", [9, 7])
def test_a_task_that_divides(p: int) -> None:
    """It needs a prime, and leaves out b = 0; its name does not matter."""

    @task(divides=True)
    def inverse_sum(a: Any, b: Any, p: int) -> Any:
        """a+1/b"""
        return a + np.array([pow(int(x), -1, p) for x in b])

    if p == 9:
        with pytest.raises(ConfigError, match="p is 9, not a prime"):
            TrainConfig(task="inverse_sum", p=p)
        return
    data = make_data(TrainConfig(task="inverse_sum", p=p, tokens=2))
    assert len(data.tokens) == p * (p - 1)
    assert ((data.labels - data.tokens[:, 0]) * data.tokens[:, 1] % p == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_slopes_by_hand_are_autograds(name: str, dtype: torch.dtype) -> None:
    """An activation without a slope by hand gets the same numbers, bit for bit."""
    known = ACTIVATIONS[name]
    activation()(named("again", known.phi))
    torch.manual_seed(0)
    pre, back = torch.randn(2, 5, 7, dtype=dtype), torch.randn(2, 5, 7, dtype=dtype)
    phi = known(pre)
    assert torch.equal(ACTIVATIONS["again"].slope(back, pre, phi), known.slope(back.clone(), pre, phi))


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_piecewise_linear_activations_say_so(name: str) -> None:
    """Exactly those whose second derivative is 0."""
    x = torch.linspace(-2, 2, 40, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(ACTIVATIONS[name](x).sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros(1)
    assert ACTIVATIONS[name].piecewise_linear == (float(second.abs().max()) == 0)


def named(name: str, function: Any) -> Any:
    def renamed(x: torch.Tensor) -> Any:
        """An activation."""
        return function(x)

    renamed.__name__ = name
    return renamed


@pytest.mark.parametrize("option", ["task", "model", "activation", "sampler", "optimizer", "freeze", "device"])
def test_unknown_names(option: str) -> None:
    """In a config, from JSON or from code."""
    with pytest.raises(ConfigError, match=f"unknown {option} 'nothing'"):
        replace(TrainConfig(), {option: "nothing"})
    with pytest.raises(ConfigError, match=f"unknown {option} 3") as stop:
        replace(TrainConfig(), {option: 3})
    assert stop.value.hint.startswith("choose one of ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(REGISTRIES))
def test_help_shows_the_registry(kind: str) -> None:
    """Every name with its meaning."""
    done = subprocess.run([sys.executable, "-m", "landscape", "train", "--help"], capture_output=True, text=True)
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert f"--{kind}" in shown
    assert " ".join(REGISTRIES[kind].meanings.split()) in shown


def test_a_name_is_registered_once() -> None:
    """Another entry cannot take its place."""
    with pytest.raises(ValueError, match="task 'add' is registered twice"):
        task()(TASKS["add"].answer)


def test_a_quantity_counts_once() -> None:
    """Where another module imports it, too; two with a dataset of one name are an error."""
    (one, *_), home, guest = QUANTITIES, ModuleType("home"), ModuleType("guest")
    home.quantity = guest.imported = one  # type: ignore[attr-defined]
    assert found_in([home, guest]) == (one,)
    guest.imported = dataclasses.replace(one)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"two quantities have the dataset '{min(one.names)}'"):
        found_in([home, guest])


def test_an_unknown_preset() -> None:
    """The nearest known one is named."""
    with pytest.raises(ConfigError, match="unknown preset 'quik'") as stop:
        preset("quik")
    assert stop.value.hint == "did you mean quick?"
