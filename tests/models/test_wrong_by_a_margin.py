"""Curvature where a class is all but certain, the label or another one, against arithmetic with 60 digits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.matrices import draw
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape import models
from landscape.config import HessianConfig
from landscape.curvature.inertia import saddle_index
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import NumericsError
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measurement import Measurement, Point
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.networks import initial
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes
from landscape.models.problem import Structure
from landscape.models.tasks import make_data

MARGINS = (5.0, 20.0, 30.0, 36.0, 60.0)
Exact = NDArray[np.object_]


def exact(x: Tensor) -> Exact:
    """The same numbers with 60 digits."""
    return np.vectorize(lambda value: mpmath.mpf(float(value)), otypes=[object])(x.numpy())


def curvature(logits: Exact) -> Exact:
    """diag(p) - p p^T of one sample."""
    e = np.vectorize(mpmath.exp, otypes=[object])(logits)
    p = e / e.sum()
    matrix: Exact = np.diag(p) - np.outer(p, p)
    return matrix


def error(actual: Tensor, true: Exact) -> float:
    """|found - true| / |true| in Frobenius norms."""
    return float(mpmath.sqrt(((exact(actual) - true) ** 2).sum() / (true**2).sum()))


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("right", [True, False])
def test_one_sample(margin: float, right: bool) -> None:
    """Of a linear model that is right or wrong by a margin: every digit, and no negative eigenvalue."""
    logits = torch.tensor([0.3, margin, 1.1, 0.7], dtype=torch.float64)
    model = nn.Linear(1, 4, bias=False).double()
    model.weight.data = logits[:, None]
    x, y = torch.ones(1, 1), torch.tensor([1 if right else 0])
    operator = HessianOperator(Objective(model, x, y), dict(model.named_parameters()))
    with mpmath.workdps(60):
        assert error(operator.dense(), curvature(exact(logits))) < 1e-14
    index = saddle_index(operator)
    assert (index.negative, index.level) == (0, "certified")


@pytest.mark.parametrize("margin", MARGINS)
def test_forward_and_batched_derivatives(margin: float) -> None:
    """Forward over reverse, forward over forward and batched reverse over reverse have the same digits."""
    logits = torch.tensor([0.3, margin, 1.1, 0.7], dtype=torch.float64)

    def of(z: Tensor) -> Tensor:
        return cross_entropy(z, torch.tensor(0))

    matrices = [torch.func.hessian(of)(logits), torch.func.jacfwd(torch.func.jacfwd(of))(logits)]
    matrices.append(torch.autograd.functional.hessian(of, logits, vectorize=True))
    with mpmath.workdps(60):
        true = curvature(exact(logits))
        for matrix in matrices:
            assert error(matrix, true) < 1e-14


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("right", [True, False])
def test_network(margin: float, right: bool) -> None:
    """By automatic differentiation, by products and in closed form, each layer alone: J^T (diag(p) - p p^T) J."""
    x = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    params = {"E": draw(3, 2, seed=1), "W": draw(4, 4, seed=2), "V": draw(5, 4, seed=3)}
    pre = params["E"][x].flatten(1) @ params["W"].T
    best = (torch.relu(pre) @ params["V"].T).topk(2, 1)
    gap = best.values[:, 0] - best.values[:, 1]
    # The sample with the smallest margin, which outweighs all others, has this one.
    kept = gap > gap.median()
    x, pre = x[kept], pre[kept]
    params["V"] *= margin / float(gap[kept].min())
    y = best.indices[kept, 0 if right else 1]

    def model(P: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.relu(P["E"][x].flatten(1) @ P["W"].T) @ P["V"].T

    theirs = HessianOperator(Objective(model, x, y), params)
    products = EmbeddingHessian(Passes(params, x, y, torch.relu))
    closed = EmbeddingMLP(params, x, y, torch.relu)
    with mpmath.workdps(60):
        E, W, V = (exact(params[n]) for n in ("E", "W", "V"))
        true = dict.fromkeys(params, 0)
        for tokens in x.tolist():
            z = np.concatenate([E[t] for t in tokens])
            z_on = W @ z
            slope = np.array([mpmath.mpf(int(value > 0)) for value in z_on], dtype=object)
            A = curvature(V @ (z_on * slope)) / len(x)
            back = V * slope
            by_W = np.einsum("ch,i->chi", back, z).reshape(len(V), -1)
            by_E = np.zeros((len(V), 3, 2), dtype=object)
            for k, t in enumerate(tokens):
                by_E[:, t] += back @ W[:, 2 * k : 2 * k + 2]
            by_V = np.kron(np.eye(len(V), dtype=int).astype(object), (z_on * slope)[None])
            for n, J in (("E", by_E.reshape(len(V), -1)), ("W", by_W), ("V", by_V)):
                true[n] = true[n] + J.T @ A @ J
        for n, matrix in true.items():
            assert error(theirs.block([n]).dense(), matrix) < 3e-13
            assert error(products.block([n]).dense(), matrix) < 3e-13
            assert error(closed.hessian([n]), matrix) < 3e-13


@pytest.mark.parametrize("scale", [1e3, 3e3])
def test_closed_form_and_automatic_differentiation_agree(scale: float) -> None:
    """A last layer that is a thousand times as large does not end the analysis of a checkpoint."""
    train = dataclasses.replace(TINY, p=5, embed_dim=2, hidden=4, activation="relu", weight_decay=0.0, seed=2)
    params = initial(train)
    params["V"] = params["V"] * scale
    blocks = ("E", "W", "E,W", "W,V", "all")
    what = Measurement.of(models.of_config(train, vars(make_data(train))), HessianConfig(device="cpu", blocks=blocks))
    at = Checkpoint(what, Point(params))
    for block in what.blocks:
        matrix = at.matrix(block)
        assert matrix.error < 1e-12 * float(matrix.matrix.norm())


def undone(seed: int = 2) -> dict[str, Any]:
    """Parameters at which the last layer adds the same to each logit: blocks of E and W are 0 but for rounding."""
    train = dataclasses.replace(TINY, p=5, embed_dim=2, hidden=4, activation="relu", weight_decay=0.0, seed=seed)
    params = initial(train)
    return {"train": train, "params": {**params, "V": np.ones((len(params["V"]), 1)) * params["V"][:1]}}


def test_lost_digits_are_no_defect() -> None:
    """Automatic differentiation and the closed form each return their own rounding, whose size is in the error."""
    at = undone()
    problem = models.of_config(at["train"], vars(make_data(at["train"])))
    what = Measurement.of(problem, HessianConfig(device="cpu", blocks=("E", "W")))
    checkpoint = Checkpoint(what, Point(at["params"]))
    for block in what.blocks:
        assert float(checkpoint.matrix(block).matrix.norm()) < 1e-15


class Wrong(Structure):
    """A hand-derived structure whose blocks are wrong by a share."""

    def __init__(self, right: Structure, share: float) -> None:
        self.right, self.share = right, share

    def __getattribute__(self, name: str) -> Any:
        if name in ("right", "share", "dense"):
            return object.__getattribute__(self, name)
        return getattr(self.right, name)

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        matrix = self.right.dense(names, gauss_newton)
        return None if matrix is None else matrix * (1 + self.share)


@pytest.mark.parametrize("share", [1e-9, 1e-3])
def test_a_wrong_closed_form_is_a_defect(share: float) -> None:
    """Where digits are left, rounding explains nothing."""
    train = dataclasses.replace(TINY, p=5, embed_dim=2, hidden=4, seed=2)
    problem = models.of_config(train, vars(make_data(train)))
    right = problem.structure
    vars(problem)["structure"] = lambda *point: Wrong(right(*point), share)
    what = Measurement.of(problem, HessianConfig(device="cpu", blocks=("E,W",)))
    at = Checkpoint(what, Point(initial(train)))
    with pytest.raises(NumericsError, match="not by rounding"):
        at.matrix(what.blocks[0])


def test_a_kink_is_named() -> None:
    """Where an input of a ReLU is rounding, the Hessian jumps with it: no defect, and no matrix."""
    train = dataclasses.replace(TINY, p=5, embed_dim=2, hidden=4, activation="relu", weight_decay=0.0, seed=2)
    params = initial(train)
    # W z + b1 is 0 or some 1e-17, by the order of the sum.
    params["E"] = np.tile([0.1, 0.3], (len(params["E"]), 1))
    params["b1"] = -np.array([math.fsum(row) for row in params["W"] * [0.1, 0.3, 0.1, 0.3]])
    problem = models.of_config(train, vars(make_data(train)))
    what = Measurement.of(problem, HessianConfig(device="cpu", blocks=("W,V",)))
    with pytest.raises(NumericsError, match="of its size with the last places") as error:
        Checkpoint(what, Point(params)).matrix(what.blocks[0])
    assert "smooth activation" in str(error.value.hint)
