"""Losses and batches as users write them, each against plain automatic differentiation of the loss that is meant."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from landscape import HessianOperator, Objective, cross_entropy, saddle_index
from landscape.errors import ArgumentError

torch.manual_seed(0)
X, Y = torch.randn(8, 3), torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])
TOKENS, TAGS = torch.randn(6, 5, 3), torch.randint(0, 3, (6, 5))
GREY = torch.randint(0, 255, (8, 3), dtype=torch.uint8)


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Tensor
    y: Tensor


class Laplacian(nn.Module):
    """The Laplacian of a network beside itself, by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        curved = torch.func.vmap(torch.func.hessian(lambda z: self.net(z)[0]))(x)
        return torch.cat([curved.diagonal(dim1=1, dim2=2).sum(1, keepdim=True), self.net(x)], 1)


class Graph(nn.Module):
    """A layer over the edges of a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.out(torch.sparse.mm(edges, torch.tanh(self.inside(x))))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def by_tokens(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1)


def by_sample(model: nn.Module, batch: Any) -> Tensor:
    return torch.func.vmap(lambda x, y: F.cross_entropy(model(x), y))(*batch)


def of_edges(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["edges"]), batch["y"])


def edges(layout: torch.layout) -> dict[str, Tensor]:
    matrix = (torch.eye(8) + torch.eye(8).roll(1, 0)).to_sparse(layout=layout)
    return {"x": X, "edges": matrix, "y": Y}


def meant(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X.double()), Y)


CASES: dict[str, tuple[Callable[[], nn.Module], Any, Any, Callable[[nn.Module], Tensor]]] = {
    "means over tokens": (
        network, (TOKENS, TAGS), by_tokens, lambda model: by_tokens(model(TOKENS.double()), TAGS).mean(),
    ),
    "means over tokens, (model, batch)": (
        network, {"x": TOKENS, "y": TAGS}, lambda model, batch: by_tokens(model(batch["x"]), batch["y"]),
        lambda model: by_tokens(model(TOKENS.double()), TAGS).mean(),
    ),
    "means over tokens of ours": (
        network, (TOKENS, TAGS), lambda z, y: cross_entropy(z, y).mean(1),
        lambda model: by_tokens(model(TOKENS.double()), TAGS).mean(),
    ),
    "chosen samples": (
        network, (X, Y), lambda z, y: F.cross_entropy(z, y, reduction="none")[y != 0],
        lambda model: F.cross_entropy(model(X.double()), Y, reduction="none")[Y != 0].mean(),
    ),
    "hard samples of nll": (
        network, (X, Y), lambda z, y: F.nll_loss(z.log_softmax(1), y, reduction="none").topk(3).values,
        lambda model: F.cross_entropy(model(X.double()), Y, reduction="none").topk(3).values.mean(),
    ),
    "inputs that the loss prepares": (
        network, DataLoader(TensorDataset(GREY, Y), 3), lambda f, b: F.cross_entropy(f(b[0].float() / 255), b[1]),
        lambda model: F.cross_entropy(model(GREY.double() / 255), Y),
    ),
    "one-hot inputs": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), (Y, Y),
        lambda model, batch: F.cross_entropy(model(F.one_hot(batch[0], 3).float()), batch[1]),
        lambda model: F.cross_entropy(model(F.one_hot(Y, 3).double()), Y),
    ),
    "a dataclass with slots": (
        network, Slotted(X, Y), lambda model, batch: F.cross_entropy(model(batch.x), batch.y), meant,
    ),
    "vmap over samples": (network, (X, Y), by_sample, meant),
    "vmap over samples, a number": (network, (X, Y), lambda model, batch: by_sample(model, batch).mean(), meant),
    "a Laplacian by torch.func": (
        Laplacian, (X, X[:, :2]), nn.MSELoss(), lambda model: F.mse_loss(model(X.double()), X[:, :2].double()),
    ),
    "sparse edges": (
        Graph, edges(torch.sparse_coo), of_edges,
        lambda model: F.cross_entropy(model(X.double(), edges(torch.sparse_coo)["edges"].double()), Y),
    ),
    "sparse edges in a list": (
        Graph, [edges(torch.sparse_coo)], of_edges,
        lambda model: F.cross_entropy(model(X.double(), edges(torch.sparse_coo)["edges"].double()), Y),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_as_written(name: str) -> None:
    make, data, loss, plain = CASES[name]
    torch.manual_seed(1)
    model = make()
    hessian = HessianOperator(objective := Objective(model, data, loss), dict(model.named_parameters()))

    exact = copy.deepcopy(model).double()
    params, value = list(exact.parameters()), plain(exact)
    slopes = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
    rows = [
        torch.cat([
            h.reshape(-1) for h in torch.autograd.grad(slope, params, retain_graph=True, materialize_grads=True)
        ])
        for slope in torch.cat([slope.reshape(-1) for slope in slopes])
        if slope.requires_grad
    ]  # fmt: skip
    torch.testing.assert_close(objective.value(dict(model.named_parameters())), value.item(), rtol=1e-12, atol=0)
    columns = hessian @ torch.eye(len(rows)).double()
    torch.testing.assert_close(columns, torch.stack(rows), rtol=0, atol=1e-12 * float(columns.norm()))
    index = saddle_index(hessian)
    assert index.level == "certified"
    assert index.negative == int((torch.linalg.eigvalsh(torch.stack(rows)) < -index.tolerance).sum())


def test_sparse_tensors_have_a_checksum() -> None:
    other = edges(torch.sparse_coo)
    other["edges"] = 2 * other["edges"]
    model = Graph()
    same, changed = (
        Objective(model, [batch], of_edges).sums for batch in (edges(torch.sparse_coo), other)
    )  # fmt: skip
    assert same == Objective(model, [edges(torch.sparse_coo)], of_edges).sums != changed


def test_nested_tensors_are_refused_by_name() -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    with pytest.raises(ArgumentError, match="hold a nested tensor"):
        Objective(network(), (nested, Y[:2]), nn.CrossEntropyLoss())


def test_a_pruned_model_is_left_as_it_was() -> None:
    """Pruning computes the weight in a hook, which leaves a tensor of the last call in the module."""
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    model(torch.zeros(1, 3, dtype=torch.float64))
    before = model[0].weight
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2
    objective = Objective(model, (x, y), nn.CrossEntropyLoss())
    H = HessianOperator(objective, dict(model.named_parameters()))
    assert H.dense().isfinite().all()
    assert model[0].weight is before
