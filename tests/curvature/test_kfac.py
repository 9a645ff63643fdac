"""K-FAC's distance from the Hessian: 0 where it is exact, and that of the dense matrices elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curvlinops import KFACLinearOperator
from helpers.matrices import Diagonal, draw
from torch import nn

from landscape import HessianOperator, Objective, kfac_distance


def network(*modules: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*modules).double()


def test_linear_regression_and_one_sample_are_exact() -> None:
    """G of a linear layer and squared errors is A (x) 1; of one sample it is a Kronecker product in each layer."""
    model = network(nn.Linear(4, 3))
    objective = Objective(model, draw(20, 4), draw(20, 3, seed=1), nn.MSELoss(), weight_decay=0.1)
    for part in ("hessian", "gauss_newton"):
        result = kfac_distance(HessianOperator(objective, dict(model.named_parameters()), part=part))
        assert result.layer == ["0"]
        assert np.abs(result.distance).max() < 1e-12
    model = network(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    one = Objective(model, draw(1, 4), torch.tensor([2]), nn.CrossEntropyLoss())
    result = kfac_distance(HessianOperator(one, dict(model.named_parameters()), part="gauss_newton"))
    assert result.distance.shape == (2, 2)
    assert np.abs(result.distance).max() < 1e-12


def test_distances_are_those_of_the_matrices() -> None:
    """Two batches of other sizes; EKFAC is nearer to G; parameters at which the operator is, not the module."""
    model = network(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))
    params = {name: p + 0.3 for name, p in model.named_parameters()}
    data = [(draw(size, 4, seed=size), torch.arange(size) % 3) for size in (9, 6)]
    H = HessianOperator(Objective(model, data, nn.CrossEntropyLoss()), params, part="gauss_newton")
    result = kfac_distance(H)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(params[name])
    weights = [p for name, p in model.named_parameters() if name.startswith(("0", "3"))]
    theirs = KFACLinearOperator(
        model, nn.CrossEntropyLoss(), weights, data, fisher_type="type-2", separate_weight_and_bias=False
    )
    K = (theirs @ torch.eye(theirs.shape[0], dtype=torch.float64)).detach()
    for i, (names, at) in enumerate(((["0.weight", "0.bias"], slice(0, 30)), (["3.weight", "3.bias"], slice(30, 51)))):
        exact = H.block(names).dense()
        true = float((K[at, at] - exact).norm() / exact.norm())
        assert result.distance[i, 0] == pytest.approx(true, rel=1e-10)
        assert result.low[i, 0] <= true <= result.high[i, 0]
    assert (result.distance[:, 1] < result.distance[:, 0]).all()
    assert result.skipped == ["1.weight", "1.bias"]
    table = result.to_dataframe()
    assert list(table) == ["layer", "approximation", "distance", "low", "high"]
    assert list(table["approximation"].unique()) == ["K-FAC", "EKFAC"]


@pytest.mark.slow
def test_names_that_wrappers_prefix() -> None:
    """Of DataParallel and torch.compile: the numbers of the module inside, and the operator's own names."""
    model = network(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    data = draw(9, 4), torch.arange(9) % 3
    plain = kfac_distance(
        HessianOperator(Objective(model, *data, nn.CrossEntropyLoss()), dict(model.named_parameters()))
    )
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        objective = Objective(wrapped, *data, nn.CrossEntropyLoss())
        result = kfac_distance(HessianOperator(objective, dict(wrapped.named_parameters())))
        assert np.array_equal(result.distance, plain.distance)
        assert result.layer == plain.layer
        assert [name.partition(".")[2] for name in result.skipped] == plain.skipped


def test_large_layers_have_intervals() -> None:
    """Beyond 256 rows by random vectors: the interval holds the exact distance."""
    model = network(nn.Linear(12, 25), nn.Tanh(), nn.Linear(25, 4))
    objective = Objective(model, draw(40, 12), torch.arange(40) % 4, nn.CrossEntropyLoss())
    H = HessianOperator(objective, dict(model.named_parameters()), part="gauss_newton")
    estimate, exact = kfac_distance(H), kfac_distance(H, probes=400)
    assert (estimate.low <= exact.distance).all()
    assert (exact.distance <= estimate.high).all()
    assert (estimate.high - estimate.low)[0].min() > 1e-3 > (exact.high - exact.low).max()


def test_words_of_errors() -> None:
    """What K-FAC does not take is named."""
    model = network(nn.LayerNorm(4), nn.Linear(4, 3))
    params = dict(model.named_parameters())
    H = HessianOperator(Objective(model, draw(9, 4), draw(9, 3), nn.HuberLoss()), params)
    with pytest.raises(ValueError, match="no formula for the loss a HuberLoss"):
        kfac_distance(H)
    with pytest.raises(ValueError, match="K-FAC knows no module of 0.weight"):
        kfac_distance(H.block(["0.weight"]))
    with pytest.raises(ValueError, match="is no Hessian of named rows"):
        kfac_distance(Diagonal(np.ones(3)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "label", "message"),
    [
        ({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))}, 0, "a loss with weight"),
        ({"loss": nn.CrossEntropyLoss(), "weight": lambda batch: 1.0}, 0, "batches with weight="),
        ({"loss": nn.CrossEntropyLoss(ignore_index=2)}, 0, "ignored labels, 2"),
        ({}, -100, "ignored labels, -100"),
    ],
)
def test_samples_that_do_not_count_alike_are_refused(options: dict[str, object], label: int, message: str) -> None:
    """curvlinops counts them as all others: the distance would be that of another matrix."""
    model = network(nn.Linear(4, 3))
    data = [(draw(6, 4), torch.tensor([label, 1, 2, 0, 1, 2]))]
    objective = Objective(model, data, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"K-FAC of {message}: it counts all samples alike"):
        kfac_distance(HessianOperator(objective, dict(model.named_parameters())))


def test_the_residual_part_is_refused() -> None:
    model = network(nn.Linear(4, 3))
    objective = Objective(model, draw(6, 4), torch.arange(6) % 3)
    with pytest.raises(ValueError, match="K-FAC of the residual part"):
        kfac_distance(HessianOperator(objective, dict(model.named_parameters()), part="residual"))
