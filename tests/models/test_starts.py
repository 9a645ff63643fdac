"""Where the low ends of blocks are known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.hessians import analyse
from helpers.networks import embedding_net
from torch import Tensor

from landscape import models
from landscape.choices.activations import ACTIVATIONS
from landscape.config import HessianConfig, TrainConfig
from landscape.curvature.eigsh import eigsh
from landscape.curvature.operators import Deflated, MatrixOperator
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.gauge import SoftmaxShift
from landscape.models.embedding_mlp.problem import low_end, saddle_bound
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes
from landscape.models.problem import hessian, tensors
from landscape.training.loop import train


def by_hand(activation: str, inactive: bool = False) -> EmbeddingHessian:
    """A net whose second slot always holds the same token, as `op` does; `inactive` switches one direction off."""
    point, x, y, _ = embedding_net(activation, True, 4)
    x[:, 1] = 2
    if inactive:
        point["E"][:, 0] = 0
        point["W"][:, ::3] = 0
    return EmbeddingHessian(Passes(point, x, y, ACTIVATIONS[activation]))


def test_an_inactive_direction_gives_the_lowest_eigenvector() -> None:
    """With Eu = Wu = 0 the bound of F14 is attained, and its eigenvector is the first start vector."""
    op = by_hand("relu", inactive=True).block(["E", "W"])
    starts, products = low_end(op, 2)
    assert starts is not None
    x, H = starts[:, 0], op.dense()
    bound = saddle_bound(op.passes.table_gradient(), 3).sigma_max
    assert float((H @ x + bound * x).norm()) <= 1e-13 * float(H.norm())
    assert float(torch.linalg.eigvalsh(H)[0]) == pytest.approx(-bound, rel=1e-11)
    assert products % 3 == 0


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("block", ["W", "V"])
def test_exact_null_vectors(block: str, activation: str) -> None:
    """What no sample sees, and the softmax shift, have no curvature, whatever the activation."""
    op = by_hand(activation).block([block])
    starts, products = low_end(op, 4)
    assert starts is not None
    assert products == 0
    assert starts.shape[1] >= 4
    assert float((op @ starts).abs().max()) <= 1e-14 * float(op.dense().norm())
    assert float((starts.T @ starts - torch.eye(starts.shape[1])).abs().max()) <= 1e-14


@pytest.fixture(scope="module")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starts") / "run.h5"
    # In float64, so that the trained network, and with it the number of products, is the same on all machines.
    sizes = {"p": 11, "embed_dim": 8, "hidden": 32, "batch_size": 36, "dtype": "float64"}
    train(TrainConfig(**sizes, seed=2, steps=200, checkpoint_every=0, device="cpu"), path, quiet=True)
    return path


@pytest.mark.slow
@pytest.mark.long
def test_a_cluster_that_random_starts_do_not_resolve(memorised: Path) -> None:
    """The low end of E,W of a memorised net is the dense one's, found with fewer products; so are W and V."""
    with RunReader(memorised) as reader:
        problem = models.of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(200))
    for block in ("E,W", "W", "V"):
        op = hessian(problem, params, 0.0).block(problem.blocks[block])
        assert isinstance(op, EmbeddingHessian)
        starts, products = low_end(op, 10)
        target: MatrixOperator | Deflated | EmbeddingHessian = op
        if block == "V":
            target = Deflated(op, SoftmaxShift(params, ["V"]))
        dense = torch.linalg.eigvalsh(dense_of(target))
        eigen = eigsh(target, 10, method="lanczos", v0=starts)
        warm, cold = (eigsh(target, 10, "lowest", "lanczos", v0=v0).num_products for v0 in (starts, None))
        assert eigen.converged.all()
        assert abs(torch.from_numpy(eigen.values[0]) - dense[:10]).max() <= eigen.tol * eigen.operator_norm
        assert abs(torch.from_numpy(eigen.values[1]) - dense.flip(0)[:10]).max() <= 1e-9 * eigen.operator_norm
        assert warm + products < cold


def dense_of(op: Deflated | EmbeddingHessian | MatrixOperator) -> Tensor:
    return op.dense()


@pytest.mark.long
def test_an_analysis_begins_there(memorised: Path, tmp_path: Path) -> None:
    """A matrix-free analysis of E,W counts the products of its start vectors, and agrees with the dense one."""
    both = [
        analyse(
            memorised,
            HessianConfig(blocks=("E,W",), k=4, steps="200", method=method, certify=True, device="cpu"),
            tmp_path / f"{method}.h5",
            quiet=True,
        ).row(200)
        for method in ("lanczos", "dense")
    ]
    assert both[0]["converged"].all()
    norm = float(both[1]["operator_norm"][0])
    assert abs(both[0]["eigenvalues"] - both[1]["eigenvalues"]).max() <= 1e-6 * norm
