"""The kinds of cases that curvlinops tests itself with, given as there, have the Hessian and Gauss-Newton it finds."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscape import HessianOperator, Objective

Batches = list[tuple[Any, Tensor]]


class OfMapping(nn.Module):
    """A network whose one argument is a mapping."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.net(batch["x"])


class ClassesSecond(nn.Module):
    """A network of sequences whose classes are the second axis, as torch's cross-entropy takes them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).movedim(-1, 1)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))


def batches(sizes: tuple[int, int], x: tuple[int, ...], y: Callable[[int], Tensor], mapping: bool = False) -> Batches:
    """Two batches of unequal sizes; as mappings one is a dict and one only behaves as such."""
    data: Batches = [(torch.rand(n, *x), y(n)) for n in sizes]
    if mapping:
        (a, s), (b, t) = data
        data = [(UserDict({"x": a}), s), ({"x": b}, t)]
    return data


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, a loss with its own reduction, and batches."""

    model: Callable[[], nn.Module]
    loss: nn.Module
    data: Callable[[], Any]


def labels(*more: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(0, 3, (n, *more))


def numbers(*more: int) -> Callable[[int], Tensor]:
    return lambda n: torch.rand(n, *more)


CASES = {
    f"{name}, {reduction}": Case(model, loss(reduction=reduction), data)
    for name, model, loss, data, reductions in (
        ("classes", lambda: mlp(10, 3), nn.CrossEntropyLoss, lambda: batches((3, 4), (10,), labels()), "mean sum"),
        (
            "one soft label",
            lambda: mlp(10, 1),
            nn.BCEWithLogitsLoss,
            lambda: batches((3, 4), (10,), numbers(1)),
            "mean",
        ),
        (
            "soft labels",
            lambda: mlp(10, 2),
            nn.BCEWithLogitsLoss,
            lambda: batches((3, 4), (10,), numbers(2)),
            "mean sum",
        ),
        ("numbers", lambda: mlp(8, 3), nn.MSELoss, lambda: batches((2, 6), (8,), numbers(3)), "mean sum"),
        (
            "classes of mappings",
            lambda: OfMapping(mlp(10, 3)),
            nn.CrossEntropyLoss,
            lambda: batches((3, 4), (10,), labels(), mapping=True),
            "mean",
        ),
        (
            "soft labels of mappings",
            lambda: OfMapping(mlp(10, 1)),
            nn.BCEWithLogitsLoss,
            lambda: batches((3, 4), (10,), numbers(1), mapping=True),
            "mean",
        ),
        (
            "numbers of mappings",
            lambda: OfMapping(mlp(10, 2)),
            nn.MSELoss,
            lambda: batches((3, 4), (10,), numbers(2), mapping=True),
            "mean",
        ),
        (
            "classes of sequences",
            lambda: ClassesSecond(mlp(10, 3)),
            nn.CrossEntropyLoss,
            lambda: batches((3, 4), (5, 10), labels(5)),
            "mean sum",
        ),
        (
            "soft labels of sequences",
            lambda: mlp(10, 2),
            nn.BCEWithLogitsLoss,
            lambda: batches((3, 4), (5, 10), numbers(5, 2)),
            "mean sum",
        ),
        (
            "numbers of sequences",
            lambda: mlp(8, 3),
            nn.MSELoss,
            lambda: batches((2, 6), (5, 8), numbers(5, 3)),
            "mean sum",
        ),
        (
            "images",
            lambda: nn.Sequential(nn.Conv2d(1, 2, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)),
            nn.CrossEntropyLoss,
            lambda: batches((5, 5), (1, 12, 12), labels()),
            "mean",
        ),
        (
            "a loader",
            lambda: mlp(10, 3),
            nn.CrossEntropyLoss,
            lambda: DataLoader(TensorDataset(torch.rand(11, 10), torch.randint(0, 3, (11,))), batch_size=3),
            "mean",
        ),
    )
    for reduction in reductions.split()
}


def in_dtype(x: Any, dtype: torch.dtype) -> Any:
    """Batches with their floating-point numbers in this precision."""
    if isinstance(x, Tensor):
        return x.to(dtype) if x.is_floating_point() else x
    if isinstance(x, Mapping | UserDict):
        return type(x)({name: in_dtype(value, dtype) for name, value in x.items()})
    return tuple(in_dtype(part, dtype) for part in x)


def count_of(x: Any) -> int:
    """Samples of a batch."""
    return len(x) if isinstance(x, Tensor) else len(x["x"])


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """To 1e-6 of the norm in float32 and 1e-12 in float64."""
    assert actual.dtype == expected.dtype
    relative = 1e-6 if actual.dtype == torch.float32 else 1e-12
    assert float((actual - expected).norm()) <= relative * float(expected.norm())
    assert float(expected.norm()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("subset", ["all", "without weights", "without biases", "shuffled"])
@pytest.mark.parametrize("name", CASES)
def test_hessian_and_gauss_newton(name: str, subset: str, dtype: torch.dtype) -> None:
    """Of all parameters, of some, and in another order."""
    torch.manual_seed(0)
    case = CASES[name]
    model, data = case.model().to(dtype), case.data()
    data = data if isinstance(data, DataLoader) and dtype == torch.float32 else [in_dtype(b, dtype) for b in data]
    params = dict(model.named_parameters())
    left_out = subset.removeprefix("without ").removesuffix("s").removesuffix("e")
    params = {n: p for n, p in params.items() if left_out not in n}
    if subset == "shuffled":
        params = dict(reversed(params.items()))
    objective = Objective(model, data, loss=case.loss, dtype=dtype)
    eye = torch.eye(sum(p.numel() for p in params.values()), dtype=dtype)
    for theirs, part in ((HessianLinearOperator, "hessian"), (GGNLinearOperator, "gauss_newton")):
        expected = theirs(model, case.loss, list(params.values()), data, batch_size_fn=count_of) @ eye
        assert_equal(HessianOperator(objective, params, part=part) @ eye, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_function_of_parameters(dtype: torch.dtype) -> None:
    """A model that is a plain function; curvlinops has a module of the same layers."""
    torch.manual_seed(0)
    data = [in_dtype(batch, dtype) for batch in batches((3, 4), (10,), numbers(3))]
    module = mlp(10, 3).to(dtype)
    params = dict(module.named_parameters())

    def model(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return (x @ p["0.weight"].T + p["0.bias"]).relu() @ p["2.weight"].T + p["2.bias"]

    objective, eye = Objective(model, data, loss=nn.MSELoss(), dtype=dtype), torch.eye(73, dtype=dtype)
    for theirs, part in ((HessianLinearOperator, "hessian"), (GGNLinearOperator, "gauss_newton")):
        expected = theirs(module, nn.MSELoss(), list(params.values()), data) @ eye
        assert_equal(HessianOperator(objective, params, part=part) @ eye, expected)
