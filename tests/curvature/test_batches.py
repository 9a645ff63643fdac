"""What a batch may be: dicts, graphs and other objects, and those of a size that the model fixes."""

from __future__ import annotations

import functools
import types
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.modules import dense, hessian
from helpers.refusals import X, Y, refused
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from landscape import Objective


class Graph:
    """What libraries of graphs put into a batch: tensors as attributes, of different lengths."""

    def __init__(self, x: Tensor, edges: Tensor, y: Tensor) -> None:
        self.x, self.edges, self.y = x, edges, y


class Convolved(nn.Module):
    """A node's outputs are of its neighbours; forward takes a graph, and with labels returns their loss."""

    def __init__(self, outputs: Callable[..., Any] = types.SimpleNamespace) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outputs = nn.Linear(3, 4), outputs

    def forward(self, x: Any, edges: Tensor | None = None, labels: Tensor | None = None) -> Any:
        if not isinstance(x, Tensor):
            x, edges = x["x"], x["edges"]
        assert edges is not None
        h = x.index_add(0, edges[1], x[edges[0]])
        logits = self.inner(h.tanh())
        return logits if labels is None else self.outputs(loss=F.cross_entropy(logits, labels))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("form", ["dict with labels", "UserDict with labels", "dict", "pair", "graph"])
def test_batches_of_any_form(form: str, several: bool) -> None:
    """Dicts with labels, pairs with other lengths beside, objects: each batch counts its labelled nodes."""
    module, edges = (
        Convolved(dict if form == "UserDict with labels" else types.SimpleNamespace),
        torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]),
    )
    parts = [(X[:4], Y[:4].where(torch.arange(4) < 3, -100)), (X[4:], Y[4:])] if several else [(X, Y)]
    made: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "dict with labels": lambda x, y: {"x": x, "edges": edges, "labels": y},
        "UserDict with labels": lambda x, y: UserDict(x=x, edges=edges, labels=y),
        "dict": lambda x, y: ({"x": x, "edges": edges}, y),
        "pair": lambda x, y: ((x, edges), y),
        "graph": lambda x, y: Graph(x, edges, y),
    }
    data = [made[form](x, y) for x, y in parts]
    of_graph = {"loss": lambda model, batch: F.cross_entropy(model(vars(batch)), batch.y)} if form == "graph" else {}
    matrix = hessian(Objective(module, data if several else data[0], **of_graph), module)

    def value(call: Callable[..., Any]) -> Tensor:
        sums = [F.cross_entropy(call(x.double(), edges), y, reduction="sum") for x, y in parts]
        return torch.stack(sums).sum() / sum(int((y >= 0).sum()) for _, y in parts)

    assert_close(matrix, dense(module, value), rtol=1e-10, atol=1e-12)


class Stateful(nn.Module):
    """A batch size of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x[:, None], torch.zeros(1, 5, 4, dtype=x.dtype))[0][:, -1])


def test_a_model_with_a_batch_size_of_its_own() -> None:
    """A list of such batches is measured; cut into them it is refused, with that hint."""
    module = Stateful()
    halves = [(X[:5], Y[:5]), (X[5:], Y[5:])]
    expected = dense(module, lambda call: sum(F.cross_entropy(call(x.double()), y) for x, y in halves) / 2)
    assert_close(hessian(Objective(module, halves), module), expected, rtol=1e-10, atol=1e-12)
    refused(lambda: hessian(Objective(module, X, Y, chunk_size=5), module), "the model fails", "takes a list of such")


@pytest.mark.parametrize("former", [{"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss])
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_former_arguments_of_torch_mean_what_they_did(loss: Any, former: dict[str, Any]) -> None:
    """A sum stays a sum, in a partial and within a function, whatever the batches."""
    model = nn.Linear(3, 4).double()
    y = Y if loss is F.cross_entropy else torch.eye(4).double()[Y]
    point, halves = dict(model.named_parameters()), [(X[:3], y[:3]), (X[3:], y[3:])]
    expected = float(loss(model(X.double()), y, **former).mean().detach())
    for data in ((X, y), halves):
        assert Objective(model, data, functools.partial(loss, **former)).value(point) == pytest.approx(expected)
    inner = Objective(model, (X, y), lambda z, t: loss(z, t, **former))
    assert inner.value(point) == pytest.approx(expected)
