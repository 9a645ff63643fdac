"""Hessians by inputs and activations, of single batches and of subsets, beside torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.matrices import assert_close, draw
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from landscape import HessianOperator, Objective, of_activations, saddle_index
from landscape.errors import ArgumentError, LandscapeError

X, Y = draw(6, 3), torch.arange(6) % 2


def net(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.ELU(inplace=True), nn.Linear(4, 2)).double()


def params_of(model: nn.Module) -> dict[str, Tensor]:
    """Others than the module's own, which do not matter."""
    return {n: 1.5 * p.detach() for n, p in model.named_parameters()}


def test_the_hessian_by_the_inputs_has_a_block_for_each_sample() -> None:
    model = net()
    params, hooks = params_of(model), len(model._forward_pre_hooks)
    objective, inputs = of_activations(Objective(model, X, Y, weight_decay=0.1), params)
    H = HessianOperator(objective, inputs)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, params, (x.view(6, 3).clone(),)), Y)

    expected = torch.func.hessian(loss)(X.reshape(-1))
    assert_close(H.dense(), expected, 1e-12)
    assert H.rows == ["inputs"]
    blocks = H.dense().view(6, 3, 6, 3).movedim(2, 1)
    assert float(blocks[~torch.eye(6, dtype=torch.bool)].abs().max()) == 0
    assert saddle_index(H).level == "certified"
    assert len(model._forward_pre_hooks) == hooks
    assert "inputs" not in dict(model.named_parameters())


def test_samples_that_the_model_couples_are_coupled() -> None:
    model = net(nn.BatchNorm1d(4))
    H = HessianOperator(*of_activations(Objective(model, X, Y), params_of(model))).dense()
    blocks = H.view(6, 3, 6, 3).movedim(2, 1)
    assert float(blocks[~torch.eye(6, dtype=torch.bool)].abs().max()) > 1e-3 * float(H.abs().max())


def by_model(model: Callable[..., Tensor], batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


@pytest.mark.parametrize("of_model", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_output_of_a_module_is_what_the_rest_is_a_function_of(of_model: bool, dtype: torch.dtype) -> None:
    """Whatever the loss takes, and where the next layer works in place."""
    model = net().to(dtype)
    params = params_of(model)
    data: tuple[object, ...] = ({"x": X, "y": Y}, by_model) if of_model else (X, Y)
    objective = Objective(model, *data, dtype=dtype)
    objective, hidden = of_activations(objective, params, "0")
    V, b = params["2.weight"].double(), params["2.bias"].double()
    at = X @ params["0.weight"].double().T + params["0.bias"].double()
    expected = torch.func.hessian(lambda z: F.cross_entropy(F.elu(z.view(6, 4)) @ V.T + b, Y))(at.reshape(-1))
    assert list(hidden) == ["outputs_of_0"]
    assert_close(hidden["outputs_of_0"].double(), at, 1e-6)
    relative = 1e-12 if dtype == torch.float64 else 1e-5
    assert_close(HessianOperator(objective, hidden).dense().double(), expected, relative)


def test_of_tokens_it_is_their_embedding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Tanh(), nn.Linear(6, 2)).double()
    tokens, params = torch.arange(12).view(6, 2) % 5, params_of(model)
    objective = Objective(model, tokens, Y)
    with pytest.raises(ArgumentError, match=r"first argument is a tensor of torch.int64"):
        of_activations(objective, params)
    H = HessianOperator(*of_activations(objective, params, "0"))
    z = params["0.weight"][tokens]
    expected = torch.func.hessian(
        lambda z: F.cross_entropy(z.view(6, 6).tanh() @ params["3.weight"].T + params["3.bias"], Y)
    )(z.reshape(-1))
    assert_close(H.dense(), expected, 1e-12)


def test_a_batch_and_a_subset_are_means_of_their_own() -> None:
    model, params = net(), params_of(net())
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    for data in (loader, (X, Y)):
        objective = Objective(model, data, weight_decay=0.1)
        for part, at in (
            (objective.subset([4, 1, 2]), [1, 2, 4] if data is loader else [4, 1, 2]),
            (objective.subset(torch.tensor([5])), [5]),
            (objective.batch(0), range(4 if data is loader else 6)),
        ):
            rows = list(at)
            alone = Objective(model, X[rows], Y[rows], weight_decay=0.1)
            assert part.value(params) == pytest.approx(alone.value(params), rel=1e-12)
            assert_close(HessianOperator(part, params).dense(), HessianOperator(alone, params).dense(), 1e-12)
    assert objective.batch(0).count == 6
    total = Objective(model, loader, nn.CrossEntropyLoss(reduction="sum"))
    parts = sum(total.batch(i).value(params) for i in range(2))
    assert parts == pytest.approx(total.value(params), rel=1e-12)


class Twice(nn.Module):
    """A part that is called twice, one that returns a tuple, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.pair, self.idle = nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.pair(self.f(self.f(x))[:, None])[0][:, 0]


def test_refusals() -> None:
    model = Twice().double()
    params, whole = params_of(model), Objective(model, X, Y)
    batches = Objective(model, [(X[:3], Y[:3]), (X[3:], Y[3:])])
    function = Objective(lambda p, x: x @ p["w"], X, Y)
    keywords = Objective(model, {"x": X, "y": Y}, lambda model, batch: F.cross_entropy(model(x=batch["x"]), batch["y"]))
    for act, message in (
        (lambda: of_activations(keywords, params), "the model is called with keywords alone"),
        (lambda: of_activations(whole, params, "f"), "the output of 'f' is made 2 times"),
        (lambda: of_activations(whole, params, "idle"), "the output of 'idle' is made 0 times"),
        (lambda: of_activations(whole, params, "pair"), "the output of 'pair' is a tuple"),
        (lambda: of_activations(whole, params, "g"), "the model has no module 'g'"),
        (lambda: of_activations(batches, params), "activations of 2 batches"),
        (lambda: of_activations(function, {"w": draw(3, 2)}), "the objective is of a function"),
        (lambda: whole.batch(1), "there is no batch 1"),
        (lambda: whole.subset([0, 6]), "there is no sample 6"),
        (lambda: whole.subset([1, 1]), "2 samples, 1 of them different"),
        (lambda: whole.subset("ab"), "there is no sample 'a'"),
        (lambda: whole.subset([]), "0 samples"),
        (lambda: whole.subset(torch.ones(6, dtype=torch.bool)), "there is no sample True"),
    ):
        with pytest.raises(LandscapeError, match=message):
            act()  # type: ignore[no-untyped-call]
