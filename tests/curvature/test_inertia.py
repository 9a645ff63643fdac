"""The saddle index: certificates on exactly known spectra, and brackets that are never wrong."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from helpers.draws import drawn, draws
from helpers.matrices import Diagonal, at_minus_tau, drawn_spectrum, exact_index, matrix
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature import complement, random_start
from landscape.curvature.complement import ACCEPTED, index_bounds
from landscape.curvature.inertia import Inertia, certified, from_spectrum, saddle_index
from landscape.curvature.lanczos import eigsh
from landscape.curvature.operators import MatrixOperator
from landscape.curvature.random_start import RandomRun, kuczynski_wozniakowski
from landscape.curvature.vectors import seeded
from landscape.errors import NumericsError

METHODS = ["dense", "lanczos"]
Array = NDArray[np.float64]


def exact_matrix(values: Array) -> Tensor:
    """A full matrix with exactly these eigenvalues, multiples of 2^-46 up to 1: by Hadamard's matrix nothing rounds."""
    Q = torch.from_numpy(scipy.linalg.hadamard(len(values)) / len(values) ** 0.5)
    return Q @ torch.diag(torch.from_numpy(values)) @ Q.T


def true_index(values: Array, found: Inertia) -> int:
    return int((values < -found.tolerance).sum())


# --- certified ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_certified_inertia_of_prescribed_spectra(seed: int) -> None:
    """Index, zeros and positives are exactly right at level certified; so they are from every eigenvalue."""
    values = drawn_spectrum(seed, 1e-8, 12)
    operator = MatrixOperator(matrix(values, seed))
    norm = np.abs(values).max()
    expected = [(values < -1e-8 * norm).sum(), (np.abs(values) <= 1e-8 * norm).sum(), (values > 1e-8 * norm).sum()]
    for found in (saddle_index(operator, method="dense"), from_spectrum(eigsh(operator, 1, method="dense"))):
        assert [found.negative, found.zero, found.positive] == expected
        assert (found.lower, found.upper, found.level) == (expected[0], expected[0], "certified")
        assert found.tolerance == pytest.approx(1e-8 * norm, rel=2e-3)
        assert 0 < found.error < found.tolerance
        assert found.failure_probability == 0


@pytest.mark.slow
def test_a_certificate_near_the_tolerance_is_never_wrong() -> None:
    """Eigenvalues within 6e-14 of -tau, known to the last bit: brackets hold, certificates are right, both occur."""
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(200):
        near = -0.5 + rng.integers(-16, 17, rng.integers(1, 6)) * 2.0**-48
        values = np.concatenate([[-1.0], near, np.round(rng.uniform(-0.4, 1, 15 - len(near)) * 2**46) / 2**46])
        found = certified(exact_matrix(values), 0.5, 1.0)
        index = true_index(values, found)
        assert found.lower <= index <= found.upper
        assert found.upper - found.lower <= (np.abs(values + 0.5) <= 2 * found.error).sum()
        assert (found.level == "certified") == (found.lower == found.upper) == (found.negative == index)
        levels.append(found.level)
    assert min(levels.count("certified"), levels.count("bracketed")) > 20


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("exact", [True, False])
def test_an_eigenvalue_at_minus_tau_is_bracketed(copies: int, exact: bool) -> None:
    """Eigenvalues exactly at -tau may count or not: no certificate, and zero and positive stay open."""
    values = np.concatenate([[-1.0, -0.75], np.full(copies, -0.5), np.linspace(0.125, 1, 14 - copies)])
    A = torch.diag(torch.from_numpy(values)) if exact else matrix(values)
    for found in (certified(A, 0.5, 1.0), from_spectrum(eigsh(MatrixOperator(A), 1), tau=0.5)):
        assert (found.level, found.lower, found.upper) == ("bracketed", 2, 2 + copies)
        assert found.negative == found.zero == -1


@pytest.mark.parametrize("steps", [-80, -40, -20, 20, 40, 80])
def test_a_shift_that_hits_an_eigenvalue_is_moved(steps: int) -> None:
    """Where -tau -+ rho is an eigenvalue to the last bit the factorisation breaks down; the bracket still holds."""
    values = np.array([-1.0, -0.5 + steps * 2.0**-52, 0.25, 1.0])
    found = certified(torch.diag(torch.from_numpy(values)), 0.5, 1.0)
    assert found.lower <= true_index(values, found) <= found.upper
    assert found.error < 1e-12


def test_positives_are_counted_with_an_eigenvalue_at_tau() -> None:
    """An eigenvalue exactly at +tau is within the tolerance, and breaks no count."""
    found = certified(torch.diag(torch.tensor([-1.0, -0.25, 0.5, 1.0], dtype=torch.float64)), 0.5, 1.0)
    assert (found.negative, found.zero, found.positive) == (1, 2, 1)


@pytest.mark.parametrize("relative_error", [0.0, 1e-13, 1e-6, 1e-2])
@pytest.mark.parametrize("n", [1, 2, 10, 60, 300])
def test_a_refusal_names_a_tau_that_works(n: int, relative_error: float) -> None:
    """tau below the error of H is refused; the tau in the hint is accepted, half of it is not."""
    values = np.random.default_rng(n).standard_normal(n)
    A, norm = matrix(values), float(np.abs(values).max())
    with pytest.raises(NumericsError, match="tau 1.0e-17 is below the error of the computed Hessian, ") as refusal:
        certified(A, 1e-17 * norm, norm, relative_error * norm)
    words = refusal.value.hint.split()
    assert words[:3] == ["use", "tau", ">="]
    tau = float(words[3])
    found = certified(A, tau * norm, norm, relative_error * norm)
    assert relative_error * norm < found.error < tau * norm
    with pytest.raises(NumericsError, match="is below the error"):
        certified(A, 0.4 * tau * norm, norm, relative_error * norm)


def test_the_error_of_the_matrix_widens_the_bracket() -> None:
    """Eigenvalues within the error of -tau count in the upper bound only; theory may cap it."""
    A = matrix([-1.0, -0.505, -0.495, 1.0])
    eigen = eigsh(MatrixOperator(A, error=0.01), 2)
    assert not eigen.converged.any()
    for found in (certified(A, 0.5, 1.0, error=0.01), from_spectrum(eigen, tau=0.5)):
        assert (found.level, found.lower, found.upper, found.negative) == ("bracketed", 1, 3, -1)
    assert from_spectrum(eigen, tau=0.5, upper=2).upper == 2
    with pytest.raises(NumericsError, match=r"tau 1.0e-08 is below the error of the computed Hessian, 1.0e-02"):
        from_spectrum(eigen)


def test_single_precision_is_no_ground_for_a_certificate_at_1e_8() -> None:
    """In float32 the default tolerance is refused on every path; 1e-3 is certified."""
    values = np.concatenate([[-1.0, -0.5, 0.25, 1.0], np.zeros(60)])
    operator = MatrixOperator(exact_matrix(values).float())
    assert torch.equal(operator.matrix.double(), exact_matrix(values))
    found = saddle_index(operator, rel_tau=1e-3, method="dense")
    assert (found.negative, found.zero, found.positive, found.level) == (2, 60, 2, "certified")
    for attempt in (
        lambda: saddle_index(operator, method="dense"),
        lambda: saddle_index(operator, 1e-8, method="lanczos"),
        lambda: from_spectrum(eigsh(operator, 1, method="dense")),
    ):
        with pytest.raises(NumericsError, match="tau 1.0e-08 is below the error of the computed Hessian"):
            attempt()


@pytest.mark.parametrize("method", METHODS)
def test_zero_identity_and_order_one(method: str) -> None:
    """The smallest and plainest matrices have the obvious index; zeros are counted where the matrix is zero."""
    for values in ([0.0], [0.0] * 5, [3.0], [-3.0], [1.0] * 5, [-1.0] * 70, [-2.0, 0.0]):
        found = saddle_index(MatrixOperator(torch.diag(torch.tensor(values, dtype=torch.float64))), method=method)
        index = sum(v < 0 for v in values)
        assert found.negative == found.lower == found.upper == index
        if method == "dense" or not any(values):
            assert (found.zero, found.positive) == (values.count(0.0), sum(v > 0 for v in values))


@pytest.mark.parametrize("scale", [2.0**-400, 2.0**-300, 1.0, 2.0**300, 2.0**330, 2.0**400])
def test_an_eigenvalue_at_minus_tau_is_certified_at_no_scale(scale: float) -> None:
    """Squares of the shifted inverse underflow from 2^330 on; the inertia is exact, by fractions."""
    for seed in range(12):
        A, tau = at_minus_tau(seed)
        found = certified(A * scale, tau * scale, scale)
        assert found.level == "bracketed"
        assert found.lower <= exact_index(A, -tau) <= found.upper
        away = certified(A * scale, 2 * tau * scale, scale)
        assert (away.level, away.negative) == ("certified", exact_index(A, -2 * tau))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_the_stated_error_covers_that_of_computed_eigenvalues(n: int) -> None:
    """Those of LAPACK, of order 3 up to 1.5 n eps |H| off, against 40 digits."""
    for seed in range(30):
        A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double()
        eigen = eigsh(MatrixOperator(A + A.T), n, method="dense")
        with mpmath.workdps(40):
            exact = sorted(mpmath.eigsy(mpmath.matrix((A + A.T).tolist()), eigvals_only=True))
            away = max(abs(x - mpmath.mpf(float(y))) for x, y in zip(exact, eigen.ritz, strict=True))
        assert away <= from_spectrum(eigen).error / 2, seed


def test_an_eigenvalue_off_by_more_than_n_eps_is_bracketed() -> None:
    """The lowest of order 3 is above -tau by exact elimination, and computed below it."""
    A = -torch.randn(3, 3, generator=torch.Generator().manual_seed(16)).double()
    eigen = eigsh(MatrixOperator(A + A.T), 3, method="dense")
    for steps in range(-20, 21):
        found = from_spectrum(eigen, 1 + steps * 2.0**-52)
        assert found.lower <= exact_index(A + A.T, -found.tolerance) <= found.upper


@pytest.mark.parametrize("method", METHODS)
def test_a_zero_matrix_in_error_has_no_index(method: str) -> None:
    """The true matrix may be -0.1 everywhere on the diagonal: no tau that is a share of |H| = 0 is beyond that."""
    zero = torch.zeros(9, 9, dtype=torch.float64)
    for rel_tau in (None, 0.5):
        with pytest.raises(NumericsError, match=r"tau 0.0e\+00 is below the error of the computed Hessian") as refusal:
            saddle_index(MatrixOperator(zero, 0.1), rel_tau, method=method)  # type: ignore[arg-type]
        assert "absolute" in refusal.value.hint
    with pytest.raises(NumericsError, match="which is 0 but for it"):
        certified(zero, 0.1, 0.0, 0.1)
    found = certified(zero, 0.3, 0.0, 0.1)
    assert (found.negative, found.zero, found.positive, found.level) == (0, 9, 0, "certified")
    with pytest.raises(NumericsError, match="which is 0 but for it"):
        from_spectrum(eigsh(MatrixOperator(zero, 0.1), 1, method="dense"))


# --- bracketed ------------------------------------------------------------------------------------------------


@drawn
@pytest.mark.slow
@pytest.mark.long
def test_matrix_free_brackets_of_prescribed_spectra() -> None:
    """lower <= index <= upper for many spectra; equal where no eigenvalue lies near -tau; no certificate is claimed."""
    for seed in range(draws(25, 60)):
        values = drawn_spectrum(seed, 1e-3, 20)
        found = saddle_index(MatrixOperator(matrix(values, seed)), method="lanczos", seed=seed)
        index = true_index(values, found)
        assert found.lower <= index <= found.upper, seed
        assert found.level == "bracketed", seed
        assert 0 <= found.failure_probability <= ACCEPTED
        assert found.lower == found.upper == found.negative == index, seed
        assert found.tolerance == pytest.approx(1e-3 * np.abs(values).max(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_brackets_hold_with_a_continuum_across_the_tolerance(seed: int) -> None:
    """A bulk that runs smoothly through -tau: wide brackets are allowed, wrong ones are not."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.uniform(-0.05, 0.05, 200), rng.standard_normal(40)])
    found = saddle_index(MatrixOperator(matrix(values, seed)), rel_tau=0.01, method="lanczos", seed=seed)
    assert found.lower <= true_index(values, found) <= found.upper < 240
    assert found.level == "bracketed"
    assert 0 < found.failure_probability <= ACCEPTED


@pytest.mark.slow
def test_a_small_budget_gives_an_estimate_and_theory_a_bound() -> None:
    """With too few products there is no upper bound but n, or one given from theory; the estimate's interval holds."""
    values = np.concatenate([np.linspace(-1, -0.01, 150), np.linspace(0.001, 1, 250)])
    operator = MatrixOperator(matrix(values))
    found = saddle_index(operator, method="lanczos", max_hvps=60)
    assert (found.level, found.negative, found.upper, found.failure_probability) == ("estimated", -1, 400, 0)
    assert 0 < found.lower <= 150
    assert found.estimate.low <= 150 <= found.estimate.high < 400
    capped = saddle_index(operator, method="lanczos", max_hvps=60, upper=170)
    assert (capped.level, capped.upper, capped.failure_probability) == ("bracketed", 170, 0)
    assert capped.lower <= capped.estimate.low <= 150 <= capped.estimate.high <= 170
    assert saddle_index(operator, method="dense").negative == 150


@drawn
@pytest.mark.slow
@pytest.mark.long
def test_a_hidden_eigenvalue_is_never_missed() -> None:
    """One eigenvalue just below -tau among 150, and nothing gathered before: every seed counts it."""
    tau = 0.02
    values = np.concatenate([[-1.02 * tau], np.linspace(-0.2 * tau, 0.2 * tau, 60), np.linspace(0.01, 1, 89)])
    operator = MatrixOperator(matrix(values))
    blind = eigsh(operator, 1, which="highest", method="lanczos")
    for seed in range(draws(50, 200)):
        bounds = index_bounds(operator, blind, tau, 1e-14, 1e-6, 3000, seed)
        assert bounds.lower == bounds.upper == 1, seed
        assert 0 < bounds.failure_probability <= ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-12, 1e-4, 2e-3, 2e-2])
def test_products_of_known_error_are_refused_or_bracketed(size: float) -> None:
    """With a skew error of norm `size` beside tau 1e-2 the bracket holds for the exact matrix, or tau is refused."""
    values = np.concatenate([-np.geomspace(1.1e-2, 1, 12), np.linspace(0, 1, 50)])
    skew = torch.randn(62, 62, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    skew = skew - skew.T
    operator = MatrixOperator(matrix(values) + size * skew / torch.linalg.matrix_norm(skew))
    refused = 0
    for method in METHODS:
        try:
            found = saddle_index(operator, rel_tau=1e-2, method=method)
        except NumericsError:
            refused += 1
        else:
            assert found.lower <= true_index(values, found) <= found.upper
            assert found.error >= size if size > 1e-10 else found.negative == 12
    assert refused == (2 if size == 2e-2 else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rest", [np.linspace(-0.2, 0.2, 60), np.linspace(-0.7, 0.0, 60), np.r_[np.linspace(-0.745, -0.7, 30), np.ones(30)]]
)
def test_bounds_fail_as_seldom_as_they_say(rest: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted at one in five, a bound misses an eigenvalue at the limit in at most that share of runs."""
    tau, accepted, runs = 0.02, 0.2, 300
    monkeypatch.setattr(random_start, "_CHECK_EVERY", 2)
    op = Diagonal(np.concatenate([[-0.7501 * tau], tau * rest, np.geomspace(tau, 1, 40)]))
    blind = torch.zeros(len(op.values), 0, dtype=torch.float64)
    chances = [complement._run(op, blind, tau, 0.0, accepted, 40, seeded(seed), True)[1] for seed in range(runs)]
    missed = sum(chance <= accepted for chance in chances)
    assert missed > 0
    assert scipy.stats.binom.sf(missed - 1, runs, accepted) > 1e-4, missed / runs


def test_each_run_of_a_search_has_a_share_of_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of those that copies take might have ended the search wrongly: 1/2, 1/6, 1/12 and so on."""
    failures, chances, run = list[float](), list[float](), complement._run

    def recorded(*arguments: Any) -> tuple[Tensor, float, int]:
        found = run(*arguments)
        failures.append(arguments[4])
        chances.append(found[1])
        return found

    monkeypatch.setattr(complement, "_run", recorded)
    op = Diagonal(np.concatenate([[-1.0] * 4, np.linspace(-0.001, 0.001, 500), np.geomspace(0.1, 1, 50)]))
    bounds = index_bounds(op, eigsh(op, 1, which="highest", method="lanczos"), 0.02, 1e-14, 1e-6, 3000, 0)
    assert (bounds.lower, bounds.upper) == (4, 4)
    runs = len(failures)
    assert runs >= 2
    assert failures == pytest.approx([1e-6 / (j * (j + 1)) for j in range(1, runs + 1)])
    assert bounds.failure_probability == pytest.approx(runs * (runs + 1) * chances[-1])
    assert 0 < bounds.failure_probability <= 1e-6


def test_a_bound_takes_no_more_products_than_the_spectrum_needs() -> None:
    """A bulk within a hundredth of tau, and a few large eigenvalues: a quarter of the steps of the worst spectrum."""
    tau = 1e-3
    op = Diagonal(np.concatenate([np.linspace(-1e-5, 1e-5, 5000), np.geomspace(0.01, 1, 20)]))
    eigen = eigsh(op, 1, method="lanczos")
    bounds = index_bounds(op, eigen, tau, 1e-14, 1e-6, 3000, 0)
    steps = next(k for k in range(1000) if kuczynski_wozniakowski(5020, k, 0.75 * tau) <= 1e-6)
    assert (bounds.lower, bounds.upper) == (0, 0)
    assert bounds.num_products <= steps / 4


def test_the_width_of_the_spectrum_is_shown_too() -> None:
    """Ten steps show neither end to a hundredth: they are no proof, however far the lowest value is from -tau."""
    op = Diagonal(np.linspace(0, 1, 500))
    run = RandomRun(op, None, seeded(0))
    chances = [complement._chance(run, 5.0, is_exact=False) for _ in itertools.islice(run.projections(120), 12)]
    assert chances[0] == 1.0
    assert chances[-1] < 1e-6
    nothing = torch.zeros(500, 0, dtype=torch.float64)
    assert complement.unseen(op, nothing, 0.5, 1e-6, 1, seed=0) == (False, 1)


def test_a_direction_half_found_still_counts() -> None:
    """A gathered vector above -tau that hides a negative direction from its complement: the residual term counts it."""
    tau, share = 0.02, 0.018
    values = torch.cat([torch.tensor([-0.03]), torch.linspace(0.1, 1, 59)]).double()
    operator = MatrixOperator(torch.diag(values))
    q = torch.zeros(60, 1, dtype=torch.float64)
    q[0], q[-1] = (1 - share) ** 0.5, share**0.5
    quotient = q.T @ operator.matrix @ q
    assert -tau < float(quotient) < -tau / 4
    eigen = dataclasses.replace(eigsh(operator, 1), values=quotient.numpy(), vectors=q[None])
    bounds = index_bounds(operator, eigen, tau, 1e-14, 1e-6, 3000, 0)
    assert (bounds.lower, bounds.upper) == (0, 1)


@pytest.mark.parametrize("error", [1e-14, 1e-8])
def test_bounds_are_those_of_full_reorthogonalisation(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding, with the same products; steps are left as they are only where products are exact."""
    values = np.concatenate([-np.geomspace(0.3, 1, 8), np.linspace(-0.004, 0.004, 400), np.geomspace(0.01, 2, 1200)])
    op, asked = Diagonal(values), []

    def fully(*arguments: Any, partial: bool, **options: Any) -> RandomRun:
        asked.append(partial)
        return RandomRun(*arguments, partial=False, **options)

    eigen = eigsh(op, 2, method="lanczos")
    partial = index_bounds(op, eigen, 0.02, error, 1e-6, 3000, 0)
    monkeypatch.setattr(complement, "RandomRun", fully)
    full = index_bounds(op, eigen, 0.02, error, 1e-6, 3000, 0)
    assert set(asked) == {error == 1e-14}
    assert (partial.lower, partial.upper, partial.num_products) == (full.lower, full.upper, full.num_products)
    assert partial.lower == partial.upper == 8
    assert partial.failure_probability == pytest.approx(full.failure_probability, rel=1e-5)


def test_orthogonalisation_counts_as_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 negative directions, each 64 gathered make a step cost a product more; a hopeless search is not begun."""
    values = np.concatenate([-np.linspace(0.1, 1, 400), np.linspace(0.1, 1, 1600)])
    op, runs = Diagonal(values), list[RandomRun]()

    def recorded(*arguments: Any, **options: Any) -> RandomRun:
        runs.append(RandomRun(*arguments, **options))
        return runs[-1]

    eigen = eigsh(op, 2, method="lanczos")
    monkeypatch.setattr(complement, "RandomRun", recorded)
    bounds = index_bounds(op, eigen, 0.02, 1e-14, 1e-6, 1500, 0)
    spent = sum(run.num_products * (1 + run.locked.shape[1] / 64) for run in runs)
    assert 1200 < spent <= 1500
    assert bounds.num_products < 1000
    assert bounds.upper is None
    assert 100 < bounds.lower < 400
    runs.clear()
    assert index_bounds(op, eigen, 0.02, 1e-14, 1e-6, 3000, 0, expected=300).lower == 2
    assert not runs


@pytest.mark.parametrize(("lowest", "lower", "upper"), [(-195, 0, 1), (-205, 0, 1), (-220, 1, 1), (-180, 0, 0)])
def test_products_in_error_leave_the_bracket_open(lowest: int, lower: int, upper: int) -> None:
    """An eigenvalue within the error 0.001 of -tau = -0.02 may count or not; beyond it on either side it is known."""
    operator = MatrixOperator(torch.diag(torch.cat([torch.tensor([lowest * 1e-4]), torch.linspace(0, 1, 59)]).double()))
    bounds = index_bounds(operator, eigsh(operator, 1), 0.02, 1e-3, 1e-6, 3000, 0)
    assert (bounds.lower, bounds.upper) == (lower, upper)


@pytest.mark.slow
def test_an_uncertain_run_gives_no_upper_bound() -> None:
    """A tolerance too fine for the longest run leaves the upper bound open; a coarser one closes it."""
    operator = Diagonal(np.linspace(0, 1, 20_000))
    eigen = eigsh(operator, 1, method="lanczos", rtol=1e-3)
    fine, coarse = (index_bounds(operator, eigen, tau, 1e-14, 1e-6, 3000, 0) for tau in (2e-5, 1e-3))
    assert (fine.lower, fine.upper, fine.failure_probability) == (0, None, 0)
    assert (coarse.lower, coarse.upper) == (0, 0)
    assert 0 < coarse.failure_probability <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("low", ["cluster", "giant", "decaying"])
def test_directions_gathered_stay_orthogonal(low: str) -> None:
    """One pass a step is enough: long after Ritz values converged, a run holds no copy and no part of the basis."""
    ends = {"cluster": -1 - 1e-9 * np.arange(10), "giant": [-1e8], "decaying": -np.geomspace(1, 1e-5, 40)}
    values = np.concatenate([ends[low], np.linspace(0, 1, 600)])
    A = matrix(values)
    Q = torch.linalg.qr(torch.randn(len(A), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    generator = torch.Generator().manual_seed(2)
    found, _, steps = complement._run(MatrixOperator(A), Q, 1e-6, 0.0, 0.0, 300, generator)
    assert steps == 300
    assert found.shape[1] > 0
    together = torch.cat([Q, found], dim=1)
    assert float((together.T @ together - torch.eye(together.shape[1]).to(A)).abs().max()) <= 1e-13
