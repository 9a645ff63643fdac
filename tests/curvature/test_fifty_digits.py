"""What the package says of curvature holds against arithmetic of eighty digits, on drawn networks and matrices."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import mpmath
import numpy as np
import pytest
import torch
from helpers import certificates, fifty_digits
from helpers.certificates import ACTIVATIONS, LOSSES, Network
from helpers.draws import drawn, draws
from helpers.matrices import draw, exact_ratios
from torch import nn

# --- the arithmetic itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_exact_hessians_are_those_of_autograd(activation: str, loss: str) -> None:
    """Where nothing cancels the two agree to rounding, in the value too."""
    torch.manual_seed(len(loss))
    outputs = 3
    module = nn.Sequential(nn.Linear(2, 4), ACTIVATIONS[activation][0](), nn.Linear(4, outputs)).double()
    x, copies = draw(4, 2, seed=1), [1, 3, 1, 2]
    y = {"class": torch.tensor([0, 2, 1, 1]), "binary": (draw(4, outputs) > 0).double(), "numbers": draw(4, outputs)}
    network = Network(0, activation, loss, module, x, y[LOSSES[loss].labels], copies, [])
    times = torch.tensor(copies)
    data, targets = network.x.repeat_interleave(times, 0), network.y.repeat_interleave(times, 0)

    def value(*leaves: torch.Tensor) -> torch.Tensor:
        params = dict(zip(network.params, leaves, strict=True))
        return LOSSES[loss].torch(torch.func.functional_call(module, params, data), targets).mean()

    blocks = torch.autograd.functional.hessian(value, tuple(network.params.values()))
    sizes = [p.numel() for p in network.params.values()]
    H = torch.cat([torch.cat([B.reshape(m, -1) for B in row], 1) for row, m in zip(blocks, sizes, strict=True)])
    with fifty_digits.digits():
        loss_value, exact = network.exact()
    assert float(loss_value) == pytest.approx(float(value(*network.params.values())), rel=1e-13)
    np.testing.assert_allclose(exact.astype(float), H, rtol=0, atol=1e-13 * float(H.abs().max()))


@pytest.mark.parametrize("x", ["-1e3", "-12.5", "-11.9", "-1", "0", "3", "40"])
def test_the_normal_distribution_keeps_its_digits(x: str) -> None:
    """GELU and its two derivatives are those of mpmath far into the tail."""
    with fifty_digits.digits(), mpmath.workdps(2 * fifty_digits.DIGITS):
        axis = np.array([Decimal(1)], object)
        y = fifty_digits.gelu(fifty_digits.Number(Decimal(x), axis))
        gelu = lambda t: t * mpmath.erfc(-t / mpmath.sqrt(2)) / 2  # noqa: E731
        slope = lambda t: mpmath.erfc(-t / mpmath.sqrt(2)) / 2 + t * mpmath.npdf(t)  # noqa: E731
        bend = lambda t: (2 - t * t) * mpmath.npdf(t)  # noqa: E731
        (_, first, second), at = y.parents[0], mpmath.mpf(x)
        for value, function in ((y.value, gelu), (first, slope), (second[0], bend)):
            assert abs(mpmath.mpf(str(value)) - function(at)) <= abs(function(at)) * mpmath.mpf(10) ** -70


def test_spectra_are_counted_to_seventy_digits() -> None:
    """Counts of a rational matrix of known eigenvalues change at them, multiplicities and zeros included."""
    with fifty_digits.digits():
        rng, n = np.random.default_rng(0), 9
        values = [Decimal(v) for v in (-3, -3, 0, 0, 0, 1, 2, 2, 5)]
        # A product of reflections, each rational and orthogonal.
        Q = np.array([[Decimal(int(i == j)) for j in range(n)] for i in range(n)], object)
        for _ in range(n):
            v = np.array([Decimal(int(x)) for x in rng.integers(-5, 6, n)], object)
            Q = Q - np.outer(Q @ v, v) * (2 / (v @ v))
        spectrum = fifty_digits.Spectrum((Q * np.array(values, object)) @ Q.T)
        near = Decimal("1e-70")
        for value in values:
            assert spectrum.below(value - near) == sum(v < value for v in values)
            assert spectrum.below(value + near) == sum(v <= value for v in values)
        assert spectrum.within(2, Decimal(0), Decimal(0))
        assert not spectrum.has(Decimal("1e-60"), Decimal("0.9"))
        assert fifty_digits.Spectrum(np.full((3, 3), Decimal(0), object)).within(1, Decimal(0), Decimal(0))


def test_ratios_are_those_of_mpmath() -> None:
    """The squares of the coupling ratios, both ways up; None where a block is not positive definite."""
    M = draw(7, 7, seed=2)
    H = M @ M.T
    for m in (3, 4):
        blocks = H[:m, :m], H[:m, m:], H[m:, m:]
        expected = exact_ratios(tuple(B.numpy() for B in blocks), 1e-3)
        with fifty_digits.digits(), mpmath.workdps(70):
            exact = [fifty_digits.exact(B) for B in blocks]
            squares = fifty_digits.squared_ratios(*exact, Decimal(1e-3))
            assert squares is not None
            for i, ratio in enumerate(reversed(expected)):
                square, near = Decimal(mpmath.nstr(ratio**2, 60)), Decimal("1e-45")
                assert squares.within(i, square - near, square + near)
            assert fifty_digits.squared_ratios(-exact[0], exact[1], exact[2], Decimal(1e-3)) is None


# --- what is said ---------------------------------------------------------------------------------------------


@drawn
@pytest.mark.parametrize(
    ("ask", "seeds"),
    [(certificates.ask_of_network, draws(7, 600)), (certificates.ask_of_matrix, draws(15, 500))],
    ids=["networks", "matrices"],
)
def test_nothing_said_is_wrong(ask: Callable[[int, certificates.Report], None], seeds: int) -> None:
    """Of networks, and of graded and clustered matrices, some in float32 and some with a stated error.

    No certified index, bracket, eigenvalue or ratio is beyond its bounds, and most questions are answered.
    """
    report = certificates.asked(ask, range(seeds))
    print(report)
    assert not report.wrong
    levels = report.levels["saddle_index dense rel_tau None"]
    assert levels["certified"] > sum(levels.values()) / 2
