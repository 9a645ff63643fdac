"""What each rank of a group runs: random vectors, traffic, memory and decisions. Started by test_sharded.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.matrices import matrix
from helpers.rows import held, mine, whole

from benchmarks.ranks import traffic
from landscape.curvature.coupling import coupling
from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import eigsh, operator_norm
from landscape.curvature.inertia import saddle_index
from landscape.curvature.krylov import Krylov, advance
from landscape.curvature.operators import Deflated, MatrixOperator, Product, product_error
from landscape.curvature.sharded import Sharded
from landscape.curvature.trace import trace
from landscape.curvature.vectors import VectorSpace
from landscape.errors import ArgumentError, NumericsError

A = matrix(np.sort(np.random.default_rng(0).standard_normal(101)) ** 3)


def counted(n: int, dtype: torch.dtype, summand: bool) -> Sharded:
    """An operator of which each rank's part is the identity."""
    return Sharded(Product(lambda X: X.clone(), (n, n), dtype, torch.device("cpu")), summand=summand)


@pytest.mark.parametrize("n", [1, 3, 301, 200_003])
def test_random_vectors_are_those_of_one_process(n: int) -> None:
    """Bit for bit, pieces, uneven parts and empty ones included; and so is what is drawn next."""
    op = counted(n, torch.float64, False)
    ours, theirs = (torch.Generator().manual_seed(5) for _ in range(2))
    for m in (1, 3):
        alone = VectorSpace(op).randn(m, theirs)
        assert torch.equal(alone, torch.randn(n, m, generator=ours.clone_state(), dtype=torch.float64))
        assert torch.equal(op.space.randn(m, ours), mine(op, alone))
        assert torch.equal(whole(op, mine(op, alone)), alone)
    assert sum(op.space.sizes) == n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("summand", [False, True])
def test_traffic_and_memory_of_a_product_are_those_stated(summand: bool, dtype: torch.dtype) -> None:
    """(ranks - 1) / ranks n numbers a vector, sent and received, twice of summands; a basis of n / ranks a column."""
    n, columns, ranks = 400_000, 8, dist.get_world_size()
    op = counted(n, dtype, summand)
    krylov = Krylov(op.space, columns)
    krylov.fill(torch.Generator().manual_seed(0))
    # The first messages open connections.
    op @ krylov.block
    before = traffic()
    op @ krylov.block
    passed = np.subtract(traffic(), before)
    stated = (2 if summand else 1) * (ranks - 1) / ranks * n * dtype.itemsize
    np.testing.assert_allclose(passed, stated, rtol=0.01)
    assert krylov.basis.untyped_storage().nbytes() == columns * -(-n // ranks) * dtype.itemsize
    before = traffic()
    op.space.inner(krylov.block, krylov.basis)
    assert max(np.subtract(traffic(), before)) < 10_000


def test_searches_decide_as_one_process_does() -> None:
    """As many products, and eigenvalues, bounds, norms and quadratures to rounding; vectors are this rank's rows."""
    op, alone = held(A), MatrixOperator(A)
    for dtype in (torch.float64, torch.float32):
        one = eigsh(MatrixOperator(A.to(dtype)), 4, method="lanczos")
        several = eigsh(held(A.to(dtype)), 4, method="lanczos")
        eps = torch.finfo(dtype).eps
        np.testing.assert_allclose(several.values, one.values, atol=1e3 * eps * one.operator_norm)
        assert several.converged.all()
        vectors = whole(op, several.vectors[0])
        theta = torch.from_numpy(several.values[0]).to(dtype)
        left = (A.to(dtype) @ vectors - vectors * theta).norm(dim=0)
        np.testing.assert_allclose(several.residuals[0], left, atol=1e2 * eps * one.operator_norm)
        if dtype == torch.float64:
            assert several.num_products == one.num_products
            assert several.hidden.max() <= 1e-3 * one.operator_norm
            again = eigsh(op, 4, method="lanczos", v0=several.vectors)
            np.testing.assert_allclose(again.values, one.values, atol=1e-10)
    assert operator_norm(op) == pytest.approx(operator_norm(alone), rel=1e-12)
    ours, theirs = (quadrature(H, probes=2, steps=20) for H in (op, alone))
    np.testing.assert_allclose(ours.nodes, theirs.nodes, atol=1e-10)
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-8)


def test_every_rank_finds_the_same_numbers() -> None:
    """Bit for bit, so that all go on or stop together."""
    found = torch.from_numpy(eigsh(held(A), 4, method="lanczos").ritz)
    theirs = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, found)
    assert all(torch.equal(found, other) for other in theirs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_entry_of_one_rank_that_is_not_finite_stops_all(bad: float) -> None:
    """In the last row, which the first ranks do not see."""
    broken = A.clone()
    broken[-1, 0] = bad
    with pytest.raises(NumericsError, match="the Hessian is not finite: its products hold NaN or infinity"):
        eigsh(Sharded(MatrixOperator(broken)), 2, method="lanczos")
    op = Sharded(MatrixOperator(broken))
    krylov = Krylov(op.space, 8)
    krylov.fill(torch.Generator().manual_seed(0))
    with pytest.raises(NumericsError, match="the Hessian is not finite"):
        advance(op, [krylov])


def test_whole_vectors_and_matrices_are_refused() -> None:
    """Each rank gives its rows; and none has a matrix to write out."""
    op = Sharded(MatrixOperator(A))
    with pytest.raises(ArgumentError, match=r"vectors of 102 rows: rank \d holds \d+ of 101") as told:
        op @ torch.zeros(102, 1, dtype=torch.float64)
    assert told.value.hint == "give each rank its own rows: vectors[op.space.mine]"
    with pytest.raises(ArgumentError, match="an operator over ranks is never written out") as told:
        eigsh(op, 2)
    assert told.value.hint == 'give method="lanczos"'
    single = op @ mine(op, A[:, :1])[:, 0]
    torch.testing.assert_close(single, mine(op, A @ A[:, :1])[:, 0])


@pytest.mark.parametrize("n", [2, 1])
def test_what_takes_whole_vectors_refuses_those_over_ranks(n: int) -> None:
    """On every rank alike: one that held all rows would wait for ever for the others, which hold none."""
    op = Sharded(MatrixOperator(A[:n, :n]))
    takes: list[Callable[[], object]] = [
        lambda: saddle_index(op, method="lanczos"),
        lambda: product_error(op),
        lambda: trace(op),
        lambda: coupling(op, op, op),
        lambda: Deflated(op, object()),  # type: ignore[arg-type]
    ]
    refusal = f"spread over {dist.get_world_size()} ranks, and this takes whole ones"
    for take in takes:
        with pytest.raises(ArgumentError, match=refusal):
            take()
