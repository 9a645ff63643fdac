"""Geometry of embeddings whose geometry is known: circles, lines and noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from landscape.choices.tasks import TASKS
from landscape.errors import ArgumentError
from landscape.measure import embeddings as emb

Floats = NDArray[np.float64]


def circles(n: int, frequencies: dict[int, float], seed: int = 0) -> Floats:
    """Rows on circles of these radii by frequency, each in a plane of its own, turned and moved at random."""
    angle = 2 * np.pi / n * np.outer(np.arange(n), list(frequencies))
    flat = np.hstack([np.cos(angle), np.sin(angle)]) * np.tile(list(frequencies.values()), 2)
    return turned(np.hstack([flat, np.zeros((n, 14))]), seed) + 5


def turned(X: Floats, seed: int = 0) -> Floats:
    Q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(X.shape[1], X.shape[1])))
    return np.asarray(X @ Q)


@pytest.mark.parametrize("n", [19, 18])
def test_circles_are_found_at_their_frequencies(n: int) -> None:
    """k equal circles: shares 1/k there and 0 elsewhere, participation ratio 2k, each an exact circle."""
    X = circles(n, {1: 2, 4: 2, 5: 2})
    share = np.zeros(n // 2 + 1)
    share[[1, 4, 5]] = 1 / 3
    np.testing.assert_allclose(emb.fourier_shares(X), share, atol=1e-14)
    assert emb.participation_ratio(emb.component_variances(X)) == pytest.approx(6)
    np.testing.assert_allclose(emb.component_variances(X)[-6:] / n, 2)
    geometry = emb.geometry(X, np.arange(n))
    assert np.flatnonzero(geometry["frequency_in_use"]).tolist() == [1, 4, 5]
    assert geometry["num_frequencies"] == 3
    np.testing.assert_allclose(geometry["circle_r2"][[1, 4, 5]], 1)
    assert geometry["top_circle_r2"] == pytest.approx(1)
    assert geometry["top_frequency_share_p"] == 1 / (1 + emb.PERMUTATIONS)
    assert geometry["participation_ratio_p"] == 1 / (1 + emb.PERMUTATIONS)
    assert geometry["participation_ratio"] < geometry["participation_ratio_null"]


def test_a_small_circle_is_found_beside_large_ones() -> None:
    """It has less of the variance than chance gives any frequency, and most of what the large ones leave."""
    noise = 0.1 * np.random.default_rng(0).normal(size=(19, 20))
    geometry = emb.geometry(circles(19, {2: 4.0, 3: 3.0, 7: 0.8}) + noise, np.arange(19))
    assert geometry["fourier_share"][7] < geometry["top_frequency_share_null"]
    assert np.flatnonzero(geometry["frequency_in_use"]).tolist() == [2, 3, 7]


def test_an_ellipse_is_no_circle() -> None:
    """Half axes a and b: the best circle has the radius (a + b) / 2, which is (a + b)^2 / (2 a^2 + 2 b^2) of it."""
    angle = 2 * np.pi / 11 * 3 * np.arange(11)
    X = turned(np.stack([3 * np.cos(angle), np.sin(angle), 0 * angle], axis=1))
    assert emb.circle_r2(X, np.array(3)) == pytest.approx(16 / 20)
    flat = np.cos(angle)[:, None]
    assert emb.circle_r2(flat, np.array(3)) == pytest.approx(1 / 2)


def test_frequencies_have_all_of_the_variance() -> None:
    """Parseval's identity, for odd and even numbers, the alternating frequency included."""
    for n in (11, 12):
        X = np.random.default_rng(0).normal(size=(n, 4))
        assert emb.fourier_shares(X).sum() == pytest.approx(1)
    beside = np.hstack([circles(12, {2: 1.0}), np.array([[1.0], [-1.0]] * 6)])
    np.testing.assert_allclose(emb.fourier_shares(beside)[[2, 6]], 1 / 2)


@pytest.mark.parametrize(("exponent", "rho"), [(1.0, 1.0), (2.0, 1.0), (0.5, 1.0)])
def test_a_line_is_found_with_its_spacing(exponent: float, rho: float) -> None:
    """Rows at x^b on a line: Spearman's rho is 1 and the scaling index b; where b is 1 distances are linear."""
    x = np.arange(19)
    X = turned(np.outer(x**exponent, [1.0, 0, 0, 0])) + 1
    geometry = emb.geometry(X, x)
    assert geometry["line_spearman"] == pytest.approx(rho)
    assert geometry["spearman"][0] == pytest.approx(rho)
    assert geometry["scaling_index"] == exponent
    assert geometry["scaling_r2"] == pytest.approx(1)
    assert geometry["participation_ratio"] == pytest.approx(1)
    for name in ("line_spearman", "scaling_r2", "pls_q2", "distance_r2_linear"):
        assert geometry[f"{name}_p"] == 1 / (1 + emb.PERMUTATIONS)
        assert geometry[name] > geometry[f"{name}_null"]
    if exponent == 1:
        assert geometry["distance_r2_linear"] == pytest.approx(1)
        assert geometry["pls_q2"] == pytest.approx(1)


def test_distances_of_a_line_beside_a_circle() -> None:
    """Squares of distances in orthogonal directions add up: both together explain all, neither does alone."""
    x = np.arange(17)
    X = turned(np.hstack([circles(17, {3: 4.0}), 0.7 * x[:, None]]))
    linear, circular, both = emb.distance_r2(X, x, np.array(3))
    assert both == pytest.approx(1)
    assert 0.1 < linear < 0.9
    assert 0.1 < circular < 0.9
    _, alone, _ = emb.distance_r2(circles(17, {3: 4.0}), x, np.array(3))
    assert alone == pytest.approx(1)


def test_distance_regression_is_that_of_least_squares() -> None:
    """R^2 of one and of two regressors against numpy's least squares over all pairs."""
    rng = np.random.default_rng(3)
    X, x = rng.normal(size=(11, 4)), np.arange(11)
    i, j = zip(*itertools.combinations(range(11), 2), strict=True)
    squared = ((X[list(i)] - X[list(j)]) ** 2).sum(1)
    apart = np.subtract(i, j)
    line, chord = apart**2.0, 4 * np.sin(np.pi / 11 * 2 * apart) ** 2
    expected = []
    for regressors in ([line], [chord], [line, chord]):
        A = np.stack([np.ones(len(i)), *regressors], axis=1)
        left = squared - A @ np.linalg.lstsq(A, squared)[0]
        expected.append(1 - (left**2).sum() / ((squared - squared.mean()) ** 2).sum())
    np.testing.assert_allclose(emb.distance_r2(X, x, np.array(2)), expected)


def test_spearman_is_that_of_scipy() -> None:
    rng = np.random.default_rng(4)
    coordinates, x = rng.normal(size=(15, 3)), rng.permutation(15)
    expected = [abs(scipy.stats.spearmanr(t, x).statistic) for t in coordinates.T]
    np.testing.assert_allclose(emb.spearman(coordinates, x), expected)


def test_partial_least_squares_with_all_components_is_least_squares() -> None:
    """With as many components as dimensions its folds predict what numpy's least squares of the folds do."""
    rng = np.random.default_rng(5)
    X, x = rng.normal(size=(23, emb.COMPONENTS)), np.arange(23)
    fold = np.random.default_rng(emb.SEED).permutation(23) % emb.FOLDS
    missed = 0.0
    for k in range(emb.FOLDS):
        A = np.column_stack([np.ones(23), X])
        slope = np.linalg.lstsq(A[fold != k], x[fold != k])[0]
        missed += ((x[fold == k] - A[fold == k] @ slope) ** 2).sum()
    assert emb.pls_q2(X, x) == pytest.approx(1 - missed / ((x - x.mean()) ** 2).sum())


@pytest.mark.slow
def test_noise_beats_its_null_as_often_as_chance_says() -> None:
    """p-values of white noise are uniform, and a third of a thousand is at most 1/3: Kolmogorov-Smirnov."""
    rng = np.random.default_rng(6)
    geometries = [emb.geometry(rng.normal(size=(11, 4)), np.arange(11)) for _ in range(120)]
    for statistic in emb.STATISTICS:
        p = np.array([one[f"{statistic.name}_p"] for one in geometries])
        # Ranks of 1 in 200, spread over their step, are uniform exactly.
        p -= rng.uniform(size=len(p)) / (1 + emb.PERMUTATIONS)
        assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3, statistic.name
    assert np.mean([one["pls_q2"] for one in geometries]) < 0
    assert np.mean([one["num_frequencies"] > 0 for one in geometries]) < 0.05


def test_the_null_is_that_of_scipy() -> None:
    """The p-value of rho against scipy's permutation test with draws of its own, to what 199 and 2000 draws allow."""
    rng = np.random.default_rng(7)
    x = np.arange(13)
    X = np.outer(x + rng.normal(scale=10, size=13), [1.0, 0.5])
    ours = emb.geometry(X, x)["line_spearman_p"]

    def rho(values: Floats, axis: int) -> Floats:
        ranks = scipy.stats.rankdata(values, axis=axis) - 7
        return np.abs(ranks @ (x - 6.0))

    theirs = scipy.stats.permutation_test(
        (X[:, 0],), rho, permutation_type="pairings", alternative="greater", n_resamples=2000, vectorized=True, rng=1
    ).pvalue
    assert 0.02 < theirs < 0.5
    assert ours == pytest.approx(theirs, abs=4 * np.sqrt(theirs / emb.PERMUTATIONS))


def test_turning_the_embedding_changes_nothing() -> None:
    """All but the null of the principal components, which permutes the columns, is that of E Q, to the last p-value."""
    rng = np.random.default_rng(8)
    X = circles(13, {2: 3.0, 5: 1.0}) + 0.3 * rng.normal(size=(13, 18))
    one, other = emb.geometry(X, np.arange(13)), emb.geometry(turned(X, 9), np.arange(13))
    of_columns = {f"{name}_{of}" for name in ("participation_ratio", "top_component_share") for of in ("null", "p")}
    for name in one.keys() - of_columns:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-9, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("exponent", [-1000, -300, 300, 1000])
def test_no_unit_of_the_embedding_matters(exponent: int) -> None:
    """Rows in other units have the same geometry, bit for bit, and their planes have these units."""
    X = circles(13, {3: 2.0, 5: 1.0}) + np.random.default_rng(0).normal(size=(13, 18))
    one, other = (emb.geometry(rows, np.arange(13)) for rows in (X, np.ldexp(X, exponent)))
    one["plane_position"] = np.ldexp(one["plane_position"], exponent)
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (np.ones((5, 3)), r"an embedding \(5, 3\) of 5 numbers"),
        (np.ones(7), r"an embedding \(7,\) of 7 numbers"),
        (np.diag([np.nan, *range(9)]), "99% of it finite"),
    ],
)
def test_what_is_no_embedding_is_refused(X: Floats, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as caught:
        emb.geometry(X, np.arange(len(X)))
    assert "finite entries for each of at least 6 numbers" in caught.value.hint


def test_rows_that_are_all_the_same_have_no_geometry() -> None:
    geometry = emb.geometry(np.ones((11, 4)), np.arange(11))
    assert np.isnan(geometry["participation_ratio"])
    assert np.isnan(geometry["line_spearman_p"])
    assert geometry["num_frequencies"] == 0


@pytest.mark.parametrize("p", [11, 13, 31])
def test_multiplication_runs_round_its_circle_in_the_logarithm(p: int) -> None:
    """Products of numbers are sums of their places; the order is that of the powers of one number."""
    order = emb.cyclic_order(p, multiplies=True)
    assert sorted(order) == list(range(1, p))
    place = {int(number): j for j, number in enumerate(order)}
    for a, b in itertools.product(range(1, p), repeat=2):
        assert place[a * b % p] == (place[a] + place[b]) % (p - 1)


def test_a_circle_in_the_logarithm_is_seen_in_that_order_alone() -> None:
    order = emb.cyclic_order(23, TASKS["mul"].multiplies)
    E = np.zeros((23, 5))
    E[order] = circles(22, {4: 1.0}, seed=1)[:, :5]
    assert emb.fourier_shares(E[order])[4] == pytest.approx(1)
    assert emb.geometry(E[order], order)["num_frequencies"] == 1
    assert emb.geometry(E[1:], np.arange(1, 23))["num_frequencies"] == 0


def test_a_composite_number_has_no_logarithm() -> None:
    with pytest.raises(ValueError, match="12 is not a prime"):
        emb.cyclic_order(12, multiplies=True)


@pytest.mark.parametrize("task", ["add", "sub", "mul", "div"])
def test_the_answer_stands_at_the_sum_of_the_places(task: str) -> None:
    """What a task declares of its group holds for each of its pairs."""
    kind, p = TASKS[task], 11
    order = emb.cyclic_order(p, kind.multiplies)
    n, place = len(order), np.full(p, -1)
    place[order] = np.arange(n)
    i, j = np.divmod(np.arange(n * n), n)
    answers = kind.answer(order[i], order[j], p) % p
    np.testing.assert_array_equal(place[answers], (i + kind.sign * j) % n)


def test_squares_have_no_such_sum() -> None:
    assert TASKS["squares"].sign == 0


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [11, 10])
def test_restricted_logits_are_those_of_the_two_dimensional_transform(sign: int, n: int) -> None:
    """Terms (k, k) and (k, -k) of numpy's 2D transform over a and b, with the constant; and all but them."""
    logits = np.random.default_rng(n).normal(size=(n, n, 4))
    keys = [2, 5]
    waves = np.fft.fft2(logits, axes=(0, 1))
    kept = np.zeros((n, n, 1))
    for k in keys:
        kept[k, sign * k % n] = kept[-k % n, -sign * k % n] = 1
    key = np.fft.ifft2(waves * kept, axes=(0, 1)).real
    constant = np.zeros((n, n, 1))
    constant[0, 0] = 1
    np.testing.assert_allclose(
        emb.restricted(logits, sign, keys), np.fft.ifft2(waves * (kept + constant), axes=(0, 1)).real, atol=1e-14
    )
    np.testing.assert_allclose(emb.excluded(logits, sign, keys), logits - key, atol=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
def test_all_frequencies_restrict_nothing_and_none_exclude_nothing(sign: int) -> None:
    """Logits that depend on the answer's place alone are those of all frequencies; none are excluded from any."""
    rng, n = np.random.default_rng(2), 9
    a, b = np.divmod(np.arange(n * n), n)
    logits = rng.normal(size=(n, 5))[(a + sign * b) % n].reshape(n, n, 5)
    np.testing.assert_allclose(emb.restricted(logits, sign, range(n // 2 + 1)), logits, atol=1e-14)
    others = rng.normal(size=(n, n, 5))
    np.testing.assert_array_equal(emb.excluded(others, sign, []), others)
    np.testing.assert_allclose(emb.restricted(others, sign, [])[3, 4], others.mean((0, 1)))


def test_when_a_quantity_appears() -> None:
    """Significant, and half of the last value; small ones at most twice; None where that never is so."""
    steps, p = [0, 10, 20, 30], np.array([0.5, 0.005, 0.01, 0.005])
    assert emb.appears(steps, np.array([0.9, 0.3, 0.5, 1.0]), p) == 20
    assert emb.appears(steps, np.array([3.0, 9.0, 8.0, 4.0]), p, falls=True) == 20
    assert emb.appears(steps, np.array([0.9, 0.3, 0.5, 1.0]), np.full(4, 0.02)) is None
    assert emb.appears(steps, np.full(4, np.nan), np.full(4, np.nan)) is None
