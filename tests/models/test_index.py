"""Saddle indices by Schur complements: against dense spectra, fifty digits, and products that do not agree."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest
import torch
from helpers import fifty_digits
from helpers.draws import drawn, draws
from helpers.matrices import matrix
from torch import Tensor

from landscape.curvature.operators import BlockOperator, FunctionOperator
from landscape.curvature.schur import Complement, Elimination
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.gauge import GaugeTangent
from landscape.models.embedding_mlp.index import StructuredIndex
from landscape.models.embedding_mlp.products import EmbeddingHessian, Passes

TAUS = (1e-3, 1e-5, 1e-7, 1e-9, 1e-11)
EXACT = 1 << 40
"""A limit that admits every factor."""


def ignored(share: float) -> None:
    """No progress."""


# --- the elimination ------------------------------------------------------------------------------------------


def eliminated(A: Tensor, first: int, last: int, meant: Tensor) -> Complement | None:
    """The complement of a dense matrix, rows before `first` one span of five after the other."""
    work = Elimination(first, last, len(A), 7, A, ignored)
    work.add((first, len(A)), (first, len(A)), A[first:, first:])
    for start in range(0, first, 5):
        span = start, start + 5
        assert not A[start + 5 : first, start : start + 5].any()
        assert work.eliminate(span, A[slice(*span), slice(*span)].clone(), [(first, len(A))], A[slice(*span), first:])
    return work.finish(lambda vectors: meant @ vectors)


def arrow(n: int, first: int) -> Tensor:
    """A matrix (n, n) whose rows before `first` are coupled within fives, positive definite but for the last 40."""
    A = matrix(np.linspace(1, 3, n), seed=n)
    for start, other in itertools.permutations(range(0, first, 5), 2):
        A[start : start + 5, other : other + 5] = 0
    A[-40:, -40:] -= 2 * torch.eye(40)
    return A


@pytest.mark.parametrize(("n", "first"), [(60, 0), (61, 10), (1300, 0), (1300, 25)])
def test_the_complement_is_that_of_the_dense_matrix(n: int, first: int) -> None:
    """In one panel and in several, with rows that are never stored and without; its bounds hold and are rounding."""
    A, last = arrow(n, first), n - 40
    left = eliminated(A, first, last, A)
    assert left
    S = A[last:, last:] - A[last:, :last] @ torch.linalg.solve(A[:last, :last], A[:last, last:])
    assert float((left.matrix - S).abs().max()) < left.d + 1e-12
    assert max(left.a, left.b, left.d) < 1e-11


def test_bounds_show_what_differs_from_the_matrix_that_was_meant() -> None:
    """Each of the three by the part that is wrong, and no other."""
    A = arrow(60, 10)
    for name, rows, cols in (("a", 3, 12), ("b", 55, 12), ("d", 55, 50)):
        meant = A.clone()
        meant[rows, cols] += 1e-6
        meant[cols, rows] += 1e-6
        left = eliminated(A, 10, 20, meant)
        assert left
        bounds = dataclasses.asdict(left)
        assert [part for part in "abd" if bounds[part] > 1e-10] == [name]
        assert bounds[name] >= 1e-6


def test_what_is_not_positive_definite_has_no_complement() -> None:
    """In the stored rows."""
    assert eliminated(-arrow(60, 0), 0, 20, -arrow(60, 0)) is None


# --- against the dense matrix ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Net:
    """A network at a point, fresh or trained, with the shape of its data drawn."""

    params: dict[str, Tensor]
    tokens: Tensor
    labels: Tensor
    words: str

    def __post_init__(self) -> None:
        self.closed = EmbeddingMLP(self.params, self.tokens, self.labels, torch.relu)
        passes = Passes(self.params, self.closed.tokens, self.closed.labels, torch.relu)
        self.G, self.hessian = passes.G, EmbeddingHessian(passes)

    def index(
        self, rows: Tensor | None, limit: int, gauge: bool = False, op: BlockOperator | None = None
    ) -> StructuredIndex:
        """Of the rows of E with W, or of W,V."""
        return StructuredIndex(self.closed, op or self.hessian, self.G, rows, limit, gauge)

    def blocks(self) -> Iterator[tuple[str, Tensor | None, Tensor]]:
        """Each block with its rows of E and its matrix."""
        p, (V, d) = len(self.params["V"]), self.params["E"].shape
        H = self.closed.hessian(["E", "W"])
        kept = torch.cat([torch.arange(p * d), torch.arange(V * d, len(H))])
        yield "E,W", torch.arange(V), H
        yield "E[operands],W", torch.arange(p), H[kept][:, kept]
        yield "W,V", None, self.closed.hessian(["W", "V"])

    def token_wise(self, rows: Tensor | None) -> int:
        """A limit that admits the token-wise factor, but not the exact one unless it is smaller."""
        return self.index(rows, 0).orders.token_wise or 0


def drawn_net(seed: int) -> Net:
    """Narrow and wide, with two tokens and four, dead units, samples twice, a constant operand, tokens never seen."""
    rng = np.random.default_rng(seed)
    p, h, slots = int(rng.choice([5, 7, 11])), int(rng.choice([6, 12, 24])), int(rng.choice([2, 4]))
    d = int(rng.choice([2, 4, p - 1, p, p + 1, p + 5, 2 * p]))
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))
    a, b = pairs[torch.randperm(p * p, generator=generator)[: int(rng.uniform(0.3, 0.9) * p * p)]].T
    constants = [torch.full_like(a, p), torch.full_like(a, p + 1)]
    x = torch.stack([a, b] if slots == 2 else [a, constants[0], b, constants[1]], 1)
    y, words = (a + b) % p, []
    if rng.random() < 0.2:
        x[:, 0] = x[0, 0]
        words.append("constant operand")
    if rng.random() < 0.2:
        seen = ((x[:, 1:] != 1).all(1)).nonzero()[:, 0]
        x, y = x[seen], y[seen]
        words.append("a token never seen")
    if rng.random() < 0.2:
        x, y = torch.cat([x, x[:3]]), torch.cat([y, y[:3]])
        words.append("samples twice")
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    shapes = {"E": (p + slots - 2, d), "W": (h, slots * d), "b1": (h,), "V": (p, h), "b2": (p,)}
    params = {name: normal(*shape) / (shape[-1] ** 0.5 if name != "E" else 1) for name, shape in shapes.items()}
    if rng.random() < 0.3:
        params["b1"][: h // 3] = -50
        words.append("dead units")
    steps = int(rng.choice([0, 20, 150, 600]))
    return Net(trained(params, x, y, steps), x, y, f"p {p} d {d} h {h} slots {slots} steps {steps} {', '.join(words)}")


def trained(params: dict[str, Tensor], x: Tensor, y: Tensor, steps: int) -> dict[str, Tensor]:
    """The parameters after so many steps of Adam with weight decay, at which the small networks interpolate."""
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.01, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = torch.relu(leaves["E"][x].flatten(1) @ leaves["W"].T + leaves["b1"])
        torch.nn.functional.cross_entropy(hidden @ leaves["V"].T + leaves["b2"], y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in leaves.items()}


@drawn
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(draws(12, 240)))
def test_f17_brackets_hold_the_index_of_the_dense_block(seed: int) -> None:
    """By theory alone, by the token-wise factor and by the exact one, over eight decades of tau; the last is tight."""
    net = drawn_net(seed)
    for name, rows, H in net.blocks():
        eigenvalues = torch.linalg.eigvalsh(H)
        norm = float(eigenvalues.abs().max())
        slack = 10 * len(H) * torch.finfo(H.dtype).eps * norm
        for limit in (0, net.token_wise(rows), EXACT):
            index = net.index(rows, limit)
            brackets = index.brackets([tau * norm for tau in TAUS], ignored)
            for tau, (lower, upper) in zip(TAUS, brackets, strict=True):
                least, most = (int((eigenvalues < -tau * norm + side).sum()) for side in (-slack, slack))
                assert lower <= most, (net.words, name, limit, tau, lower, most)
                assert upper >= least, (net.words, name, limit, tau, upper, least)
                if limit == EXACT and tau >= 1e-5:
                    assert lower == upper or least < most, (net.words, name, tau, lower, upper)


@drawn
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(draws(6, 60)))
def test_gauge_free_counts_are_those_of_the_complement(seed: int) -> None:
    """Of the tangents of GL(d), by the exact factor and the token-wise one."""
    net = drawn_net(seed)
    names, rows = ["E", "W"], torch.arange(len(net.params["E"]))
    H, tangent = net.closed.hessian(names), GaugeTangent(net.params, names)
    if tangent.dimension < net.closed.d**2:
        pytest.skip("a direction is dead in E and in W")
    complement = torch.linalg.qr(tangent.basis(), mode="complete")[0][:, tangent.dimension :]
    eigenvalues, norm = torch.linalg.eigvalsh(complement.T @ H @ complement), float(torch.linalg.matrix_norm(H, 2))
    for limit in (net.index(rows, 0, gauge=True).orders.token_wise or 0, EXACT):
        index = net.index(rows, limit, gauge=True)
        brackets = index.brackets([tau * norm for tau in TAUS[:3]], ignored)
        for tau, (lower, upper) in zip(TAUS, brackets, strict=False):
            true = int((eigenvalues < -tau * norm).sum())
            assert lower <= true <= upper, (net.words, limit, tau)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_brackets_hold_against_fifty_digits(seed: int) -> None:
    """On networks of up to 60 parameters, whose Hessians are computed anew in decimal arithmetic."""
    p, h, d, generator = 3, 3, int([2, 3, 5][seed % 3]), torch.Generator().manual_seed(seed)
    x = torch.cartesian_prod(torch.arange(p), torch.arange(p))[torch.randperm(9, generator=generator)[:6]]
    y = x.sum(1) % p
    shapes = {"E": (p, d), "W": (h, 2 * d), "V": (p, h)}
    params = {n: torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    net = Net(params | {"b1": torch.zeros(h).double(), "b2": torch.zeros(p).double()}, x, y, f"seed {seed}")

    def loss(P: dict[str, np.ndarray]) -> fifty_digits.Number:
        samples = []
        for tokens, label in zip(x.tolist(), y.tolist(), strict=True):
            inputs = [number for token in tokens for number in P["E"][token]]
            hidden = [fifty_digits.relu(z) for z in fifty_digits.affine(P["W"], None, inputs)]
            samples.append(fifty_digits.cross_entropy(fifty_digits.affine(P["V"], None, hidden), label))
        return fifty_digits.total(samples) * (1 / Decimal(len(samples)))

    with fifty_digits.digits():
        _, H = fifty_digits.hessian(loss, params)
        of_E, of_W = p * d, h * 2 * d
        for rows, kept in ((torch.arange(p), range(of_E + of_W)), (None, range(of_E, len(H)))):
            true = fifty_digits.Spectrum(H[np.ix_(kept, kept)])
            for limit, tau in itertools.product((0, net.token_wise(rows), EXACT), TAUS):
                tolerance = tau * float(true.norm)
                ((lower, upper),) = net.index(rows, limit).brackets([tolerance], ignored)
                assert lower <= true.below(-Decimal(tolerance)) <= upper, (limit, tau)


def test_an_embedding_of_zeros_moves_nothing_by_W() -> None:
    """In every slot the rank is 0: E,W is its coupling alone, W,V the block of V."""
    net = drawn_net(1)
    zero = Net({**net.params, "E": torch.zeros_like(net.params["E"])}, net.tokens, net.labels, "zeros")
    for name, rows, H in zero.blocks():
        eigenvalues = torch.linalg.eigvalsh(H)
        tau = 1e-6 * float(eigenvalues.abs().max())
        ((lower, upper),) = zero.index(rows, EXACT).brackets([tau], ignored)
        assert lower == upper == int((eigenvalues < -tau).sum()), name


def test_products_that_do_not_agree_certify_nothing() -> None:
    """A Hessian that is off by a millionth leaves what theory knows, or a tolerance that allows for it."""
    net = drawn_net(1)
    rows = torch.arange(len(net.params["E"]))

    class Wrong(FunctionOperator):
        def block(self, names: list[str], cols: list[str] | None = None) -> FunctionOperator:
            op = net.hessian.block(names)
            return FunctionOperator(lambda v: (1 + 1e-6) * (op @ v), op.shape, op)

    norm = float(torch.linalg.matrix_norm(net.closed.hessian(["E", "W"]), 2))
    wrong = Wrong(lambda v: v, net.hessian.shape, net.hessian)
    taus = [1e-5 * norm, 1e-7 * norm]
    assert net.index(rows, EXACT, op=wrong).brackets(taus, ignored) == net.index(rows, 0).brackets(taus, ignored)
