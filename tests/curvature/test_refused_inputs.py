"""Parameters, data, settings and vectors that mean nothing are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import X, Y, at_row, net, operator, point, refused, table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscape import (
    HessianOperator,
    MatrixOperator,
    ModuleProblem,
    Objective,
    mse,
)
from landscape.errors import ArgumentError, NumericsError

NAN, INF = float("nan"), float("inf")
numbers = torch.rand(10, 4, generator=torch.Generator().manual_seed(0))


def zeros() -> dict[str, Tensor]:
    """Parameters at which all outputs are 0."""
    return {n: torch.zeros_like(p) for n, p in net().named_parameters()}


# --- parameters -----------------------------------------------------------------------------------------------


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 4))
    module[2].weight = module[0].weight
    return module


def vector(P: dict[str, Tensor], x: Tensor) -> Tensor:
    return x @ P["w"]


@table(
    {
        "misspelt": (
            lambda: operator(params=point(**{"0_wieght": torch.ones(5, 3)})),
            "the module has no parameter '0.wieght'",
            r"did you mean 0\.weight",
        ),
        "misspelt, in a function": (
            lambda: operator(lambda z, y: z**2, vector, params={"w": X[0], "v": X[0]}),
            "the loss does not depend on 'v'$",
            "check the spelling",
        ),
        "missing, in a function": (
            lambda: operator(lambda z, y: z**2, vector, params={"v": X[0]}),
            r"the model fails on inputs \(10, 3\): KeyError: 'w'",
            "call the model and the loss on this batch in Python",
        ),
        "unused": (
            lambda: operator(
                model=nn.ModuleDict({"a": net(), "b": net()})["a"].append(nn.Identity()), params=point(w=X)
            ),
            "no parameter 'w'",
            "known: 0.weight, 0.bias, 2.weight, 2.bias",
        ),
        "another shape": (
            lambda: operator(params=point(**{"0_bias": torch.ones(1)})),
            r"parameter '0.bias' has shape \(1,\); in the module it is \(5,\)",
            "give the parameters of this module",
        ),
        "tied": (
            lambda: operator(model=tied(), params=tied().state_dict()),
            "'0.weight' and '2.weight' are one tied tensor",
            r"name it once, as dict\(model\.named_parameters\(\)\) does",
        ),
        "complex": (
            lambda: operator(lambda z, y: z.abs() ** 2, vector, params={"w": X[0] + 0j}),
            "parameter 'w' is torch.complex64: the Hessian is defined here for real parameters",
            r"torch\.view_as_real\(p\), .*torch\.view_as_complex",
        ),
        "integers": (
            lambda: operator(params=point(**{"0_bias": torch.arange(5)})),
            "parameter '0.bias' is torch.int64, which has no derivatives",
            "leave it out, or convert it to float",
        ),
        "NaN": (
            lambda: operator(params=point(**{"0_bias": torch.tensor([0, NAN, INF, 0, 0])})),
            "parameter '0.bias' has 2 NaN or infinite numbers",
            "take an earlier checkpoint, or a smaller lr",
        ),
        "NumPy": (
            lambda: operator(params=point(**{"0_bias": np.ones(5)})),
            "parameter '0.bias' is a ndarray",
            "tensor",
        ),
        "another device": (
            lambda: operator(params=point(**{"0_bias": torch.ones(5, device="meta")})),
            "parameter '0.bias' is on meta, the data on cpu",
            "move the model or the data",
        ),
        "an iterator": (
            lambda: operator(params=net().parameters()),
            "params are a generator",
            r"give tensors by name: dict\(model\.named_parameters\(\)\)",
        ),
        "none": (lambda: operator(params={}), "params are empty", "give tensors by name"),
        "block as a word": (lambda: operator().block("0.weight"), "not '0.weight'", r"give \['0.weight'\]"),
        "block with a misspelt name": (
            lambda: operator().block(["0.wieght"]),
            r"no parameter '0.wieght' among 0\.weight, 0\.bias",
            r"did you mean 0\.weight",
        ),
        "block twice the same": (lambda: operator().block(["0.bias"] * 2), "names given twice: 0.bias, 0.bias", "once"),
        "empty block": (lambda: operator().block([]), "a block of no parameters", "name at least one"),
        "part": (
            lambda: HessianOperator(operator().objective, point(), part="gauss-newton"),
            "part is 'gauss-newton'",
            "choose from hessian, gauss_newton, residual",
        ),
        "no objective": (lambda: HessianOperator(net(), point()), "the objective is a Sequential", "give an Objective"),
    }
)
def test_parameters(make: Callable[[], Any], words: str, hint: str) -> None:
    """Parameters are finite real tensors that the loss depends on, by their names."""
    refused(make, words, hint)


# --- data and settings ----------------------------------------------------------------------------------------


@table(
    {
        "NaN": (
            lambda: operator(x=at_row(at_row(X, 7, NAN), 4, NAN)),
            "2 of 10 rows of inputs have NaN or infinite numbers, the first at row 4",
            "leave these samples out, or mend them",
        ),
        "infinite": (
            lambda: operator(x=at_row(X, 9, INF)),
            "1 of 10 rows of inputs .* row 9",
            "leave these samples out",
        ),
        "NaN targets": (
            lambda: operator(mse, y=at_row(numbers, 0, NAN)),
            "1 of 10 rows of targets .* row 0",
            "leave these",
        ),
        "complex": (
            lambda: operator(x=X.to(torch.complex64)),
            "the model fails on inputs",
            "real inputs: .*view_as_real",
        ),
        "NumPy in a dict": (lambda: operator(x={"ids": X.numpy()}), "the data hold a ndarray", "from_numpy"),
        "list": (lambda: operator(y=[1, 2]), "targets hold no tensor: a list", "give a batch"),
        "dict of lists": (
            lambda: operator(x={"ids": [1, 2]}, y={"labels": [1, 2]}),
            "targets hold no tensor: a dict",
            r"give a batch \(inputs, targets\), a dict or another object of tensors",
        ),
        "NumPy": (
            lambda: operator(x=X.numpy()),
            "the data hold a ndarray, not a tensor",
            r"torch\.from_numpy\(array\)",
        ),
        "loader": (
            lambda: operator(x=DataLoader(TensorDataset(X, Y), 4)),
            "the data are a DataLoader, and there are targets beside them",
            "pass it alone",
        ),
        "lengths": (
            lambda: operator(x=X[:3], y=Y[:2]),
            r"cross_entropy of logits \(3, 4\) and labels \(2,\)",
            r"integers of shape logits.shape\[:-1\]",
        ),
        "nothing": (lambda: operator(x=X[:0], y=Y[:0]), "targets have no samples", "give at least one"),
        "chunk size 0": (lambda: operator(chunk_size=0), "chunk_size is 0", "a whole number of at least 1"),
        "chunk size -1": (lambda: operator(chunk_size=-1), "chunk_size is -1", "a whole number of at least 1"),
        "chunk size 2.5": (lambda: operator(chunk_size=2.5), "chunk_size is 2.5", "a whole number of at least 1"),
        "decay as a word": (lambda: operator(weight_decay="1"), "weight_decay is '1'", "give a finite number"),
        "decay of a problem": (
            lambda: ModuleProblem(net(), X, Y, weight_decay="1"),
            "weight_decay is '1'",
            "give a finite number",
        ),
        "loss of a problem": (lambda: ModuleProblem(net(), X, Y, loss="mse"), "the loss is a str", "a function of"),
        "decay": (lambda: operator(weight_decay=NAN), "weight_decay is nan", "give a finite number"),
        "precision": (lambda: operator(dtype=torch.bfloat16), "dtype is torch.bfloat16", "take torch.float64"),
    }
)
def test_data_and_settings(make: Callable[[], Any], words: str, hint: str) -> None:
    """Data are finite tensors, and settings numbers that mean something."""
    refused(make, words, hint)


# --- vectors --------------------------------------------------------------------------------------------------


@table(
    {
        "length": (
            lambda: operator() @ torch.ones(3).double(),
            "vectors of length 3; this operator takes 44",
            "give one number per parameter of the columns",
        ),
        "precision": (
            lambda: operator() @ torch.ones(44),
            r"not vectors: torch.float32, \(44,\)",
            r"give a tensor \(n,\) or \(n, m\) of torch.float64",
        ),
        "NumPy": (lambda: operator().__matmul__(np.ones(44)), "not vectors: ndarray", r"use to_scipy\(\)"),
        "three axes": (lambda: operator() @ torch.ones(44, 1, 1).double(), r"\(44, 1, 1\)", r"give a tensor \(n,\)"),
        "NaN": (
            lambda: operator() @ torch.full((44,), NAN).double(),
            "a Hessian-vector product is NaN or infinite",
            "or a vector that is not",
        ),
        "a derivative at a pole": (
            lambda: (
                operator(lambda z, y: z.square().sum(1).sqrt(), net(), torch.zeros(10, 3), params=zeros())
                @ torch.ones(44).double()
            ),
            "a Hessian-vector product is NaN or infinite",
            "log or sqrt or norm of 0",
        ),
        "matrix of integers": (
            lambda: MatrixOperator(torch.eye(3).long()),
            "not a real matrix: torch.int64",
            "float64",
        ),
        "vector as a matrix": (lambda: MatrixOperator(torch.ones(3)), r"shape \(3,\)", "two-dimensional"),
        "NumPy matrix": (lambda: MatrixOperator(np.eye(3)), "not a real matrix: ndarray", "two-dimensional"),
    }
)
def test_vectors_and_matrices(make: Callable[[], Any], words: str, hint: str) -> None:
    """Vectors have the operator's length and precision, and products are finite."""
    refused(make, words, hint)


def test_kinds_of_errors() -> None:
    """Wrong arguments are ValueErrors as before, numbers that are not finite are not; tracebacks show the hint."""
    with pytest.raises(ValueError, match="chunk_size is 0\nhint: give a whole number of at least 1") as caught:
        Objective(net(), X, Y, chunk_size=0)
    assert isinstance(caught.value, ArgumentError)
    assert not issubclass(NumericsError, ValueError)
