"""Geometry of an embedding of numbers: how its rows lie, and whether chance would have done the same.

X (number, embed) has a row a number, in the order in which the task's group runs round its circle (`cyclic_order`).
Functions of X take any leading axes and centre what they are given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.errors import ArgumentError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERMUTATIONS = 199
"""Draws of each null, so that p-values are multiples of 1/200."""
SEED = 0
"""Seed of the permutations, the same for every checkpoint, so that no result depends on the order of the work."""
LEVEL = 0.01
"""A quantity beats its null where its p-value is at most this."""
SMALLEST = 0.01
"""Share of the variance below which no frequency is in use, chance or not."""
COORDINATES = 3
"""Principal coordinates among which a number line is looked for."""
COMPONENTS, FOLDS = 3, 5
"""Components of the partial least squares, and folds of its cross-validation."""
FEWEST = 6
"""Fewest numbers that have a geometry here."""
_AT_ONCE = 1 << 22
"""Distances held at once, which bounds memory."""
PLANES = 4
"""Frequencies with the largest shares whose planes are kept."""
EXPONENTS = 2.0 ** (np.arange(-48, 49) / 16)
"""Exponents that the scaling index is chosen from, a factor of 1.04 apart."""


@dataclasses.dataclass(frozen=True)
class Statistic:
    """A number that is judged by a permutation null; falls: whether it is small where there is structure."""

    name: str
    long_name: str
    formula: str
    falls: bool = False


STATISTICS = (
    Statistic("participation_ratio", "participation ratio of the principal components", "(sum l)^2 / sum l^2", True),
    Statistic("top_component_share", "variance share of the first principal component", "l_1 / sum l"),
    Statistic("top_frequency_share", "largest share of a frequency in the variance", "max of fourier_share"),
    Statistic("top_circle_r2", "share of the plane of the top frequency that lies on its circle", "of circle_r2"),
    Statistic(
        "line_spearman", "largest |Spearman rho| of the first three principal coordinates with the number", "max |rho|"
    ),
    Statistic("scaling_r2", "R^2 of the line's coordinate on number^scaling_index", "corr(t, x^index)^2"),
    Statistic("pls_q2", "cross-validated R^2 of the number from the embedding", "1 - PRESS / SS"),
    Statistic("distance_r2_linear", "R^2 of squared distances on (x_i - x_j)^2", "corr^2"),
    Statistic("distance_r2_circular", "R^2 of squared distances on squared chords of the top frequency", "corr^2"),
    Statistic("distance_r2", "R^2 of squared distances on both", "of the multiple regression"),
)


def cyclic_order(p: int, multiplies: bool) -> Ints:
    """The numbers in the order of their group's circle: 0 ... p - 1, or powers of the least primitive root of a prime.

    The power is the discrete logarithm; 0, which has none, is left out.
    """
    if not multiplies:
        return np.arange(p)
    for root in range(1, p):
        powers = [pow(root, j, p) for j in range(p - 1)]
        if len(set(powers)) == p - 1:
            return np.array(powers)
    raise ValueError(f"{p} is not a prime")


def principal_coordinates(X: Floats) -> Floats:
    """Coordinates (number, component) of the centred rows along their principal axes, the largest variance first."""
    U, S, _ = np.linalg.svd(centred(X), full_matrices=False)
    return np.asarray((U * S)[:, (S / S[0]) > 1e-10])


def component_variances(X: Floats) -> Floats:
    """Variances (..., component) along the principal axes, ascending, times the number of rows."""
    X = centred(X)
    gram = np.swapaxes(X, -1, -2) @ X if X.shape[-1] < X.shape[-2] else X @ np.swapaxes(X, -1, -2)
    return np.asarray(np.maximum(np.linalg.eigvalsh(gram), 0))


def participation_ratio(variances: Floats) -> Floats:
    """(sum l)^2 / sum l^2 of the principal variances l: 2k for k equal circles in planes of their own."""
    return np.asarray(variances.sum(-1) ** 2 / (variances**2).sum(-1))


def fourier_shares(X: Floats) -> Floats:
    """Share (..., frequency) of each frequency 0 ... n // 2 in the variance of the rows; that of 0 is 0.

    Source: the Fourier transform of the embedding over the numbers in arXiv 2301.05217, section 4.1.
    """
    X = centred(X)
    n = X.shape[-2]
    power = (np.abs(np.fft.rfft(X, axis=-2)) ** 2).sum(-1)
    # All but the constant and, for even n, the alternating one stand for themselves and their conjugate.
    power[..., 1 : (n + 1) // 2] *= 2
    power[..., 0] = 0
    return np.asarray(power / power.sum(-1, keepdims=True))


def plane(X: Floats, frequency: Ints) -> NDArray[np.complex128]:
    """The rows projected on the plane of their components cos and sin of a frequency, as complex numbers (..., number).

    frequency (...): at most (n - 1) // 2. Turned so that their best circle with equal steps begins at its real radius
    and runs round counter-clockwise.
    """
    X, turn = centred(X), _turn(frequency, X.shape[-2])
    waves = np.stack([turn.real, turn.imag], axis=-1)
    U, S, _ = np.linalg.svd(np.swapaxes(X, -1, -2) @ waves, full_matrices=False)
    # In one dimension the plane is a line.
    z = X @ (U * (S / S[..., :1] > 1e-10)[..., None, :]) @ np.array([1, 1j])[: U.shape[-1]]
    forth, back = ((z * way).mean(-1, keepdims=True) for way in (turn.conj(), turn))
    is_mirrored = np.abs(back) > np.abs(forth)
    z, first = np.where(is_mirrored, z.conj(), z), np.where(is_mirrored, back.conj(), forth)
    return np.asarray(z * first.conj() / np.abs(first))


def circle_r2(X: Floats, frequency: Ints) -> Floats:
    """How well the rows lie on a circle that they run round `frequency` (...) times: 1 for an exact one.

    Of the variance of their projection on the `plane` of this frequency it is the share of the best circle with equal
    steps.
    """
    z = plane(X, frequency)
    return np.asarray(np.abs((z * _turn(frequency, X.shape[-2]).conj()).mean(-1)) ** 2 / (np.abs(z) ** 2).mean(-1))


def spearman(coordinates: Floats, x: NDArray[Any]) -> Floats:
    """|Spearman rho| (..., component) of coordinates (..., number, component) with x; their signs are arbitrary."""
    # Tables and commands do without scipy.stats, which is slow to import.
    from scipy.stats import rankdata

    ranks, of_x = rankdata(coordinates, axis=-2), rankdata(x)
    return np.abs(_correlation(np.swapaxes(ranks, -1, -2), of_x))


def scaling(coordinate: Floats, x: NDArray[Any]) -> tuple[Floats, Floats]:
    """Exponent b for which x^b correlates best with a coordinate (..., number), and the R^2 there.

    1: numbers are equally spaced along it; below 1 their spacing shrinks as they grow, above 1 it widens. The
    definition is our own; it is not the scaling rate index of arXiv 2502.16147.
    """
    r2 = _correlation(coordinate[..., None, :], np.asarray(x, float) ** EXPONENTS[:, None]) ** 2
    best = r2.argmax(-1)
    return EXPONENTS[best], np.take_along_axis(r2, best[..., None], -1)[..., 0]


def pls_q2(X: Floats, x: NDArray[Any]) -> Floats:
    """Cross-validated R^2 of x predicted from the rows by partial least squares: 1 - PRESS / SS, below 0 for noise.

    Three components and five folds, drawn once from a fixed seed. Source: Wold et al. 1984; the components are found as
    the steps of conjugate gradients on the normal equations, which are the same (Phatak and de Hoog 2002).
    """
    fold = np.random.default_rng(SEED).permutation(len(x)) % FOLDS
    missed = np.zeros(X.shape[:-2])
    for i in range(FOLDS):
        seen, left_out = fold != i, fold == i
        rows, mean = X[..., seen, :], X[..., seen, :].mean(-2, keepdims=True)
        slope = _pls_slope(rows - mean, x[seen] - x[seen].mean())
        predicted = x[seen].mean() + ((X[..., left_out, :] - mean) @ slope[..., None])[..., 0]
        missed += ((x[left_out] - predicted) ** 2).sum(-1)
    return np.asarray(1 - missed / ((x - x.mean()) ** 2).sum())


def distance_r2(X: Floats, x: NDArray[Any], frequency: Ints) -> tuple[Floats, Floats, Floats]:
    """R^2 of the squared distances |e_i - e_j|^2 on (x_i - x_j)^2, on squared chords of the frequency, and on both.

    A chord is 2 sin(pi frequency (i - j) / n), the distance on a circle that is run round `frequency` (...) times.
    Squares, because they add up over orthogonal directions (Pythagoras).
    """
    n = X.shape[-2]
    i, j = np.triu_indices(n, 1)
    norms = (X**2).sum(-1)
    squared = norms[..., i] + norms[..., j] - 2 * (X @ np.swapaxes(X, -1, -2))[..., i, j]
    line = (x[i] - x[j]) ** 2.0
    frequencies, which = np.unique(frequency, return_inverse=True)
    chord = 4 * np.sin(np.pi / n * np.outer(frequencies, j - i)) ** 2
    with_line, between = _correlation(squared, line), _correlation(chord, line)[which]
    with_chord = _correlation(squared, chord[which])
    both = with_line**2 + with_chord**2 - 2 * with_line * with_chord * between
    return with_line**2, with_chord**2, both / (1 - between**2)


def geometry(X: Floats, x: NDArray[Any]) -> dict[str, Any]:
    """Every quantity of one embedding, the tested ones with `NAME_null`, what 1 % of the null reach, and `NAME_p`.

    X (number, embed) in the order of `cyclic_order`, x (number,): the numbers. The null of the principal components
    permutes each column by itself (parallel analysis, Horn 1965); those of all other quantities permute the rows, so
    that numbers and embeddings are paired at random, and choose frequency, coordinate and exponent anew in each draw.
    NaN for rows that are all the same. Raises ArgumentError for what is no table of finite numbers.
    """
    n = len(X)
    if X.ndim != 2 or n < FEWEST or len(x) != n or not np.isfinite(X).all():
        raise ArgumentError(
            f"an embedding {X.shape} of {len(x)} numbers, {np.isfinite(X).mean():.0%} of it finite",
            f"give a row of finite entries for each of at least {FEWEST} numbers",
        )
    quantities: dict[str, Any] = dict.fromkeys([s.name for s in STATISTICS], np.full(1 + PERMUTATIONS, np.nan))
    quantities |= {"component_share": np.full(min(X.shape), np.nan), "spearman": np.full(COORDINATES, np.nan)}
    quantities |= {name: np.full(n // 2 + 1, np.nan) for name in ("fourier_share", "circle_r2")}
    quantities |= {"scaling_index": np.nan, "top_frequency": -1, "frequency_in_use": np.zeros(n // 2 + 1, bool)}
    planes = number_of_planes(n)
    quantities |= {"plane_frequency": np.full(planes, -1), "plane_position": np.full((planes, n, 2), np.nan)}
    if np.ptp(X, axis=0).any():
        # Fourth powers of large and small entries are out of range; another power of 2 changes no digit.
        _, unit = np.frexp(np.abs(X).max())
        quantities |= _measured(np.ldexp(X, -unit), np.asarray(x, float), np.random.default_rng(SEED))
        quantities["plane_position"] = np.ldexp(quantities["plane_position"], unit)
    quantities["num_frequencies"] = int(quantities["frequency_in_use"].sum())
    for statistic in STATISTICS:
        quantities |= _judged(statistic, quantities[statistic.name])
    return quantities


def number_of_planes(n: int) -> int:
    """Planes of n numbers that are kept."""
    return min(PLANES, (n - 1) // 2)


def _measured(X: Floats, x: Floats, rng: np.random.Generator) -> dict[str, Any]:
    """The quantities, the tested ones (1 + draw,): what is there first, and then what chance does."""
    n = len(X)
    shuffled = rng.permuted(np.broadcast_to(X, (PERMUTATIONS, *X.shape)), axis=1)
    variances = component_variances(np.concatenate([X[None], shuffled]))
    T = principal_coordinates(X)
    orders = np.stack([np.arange(n), *(rng.permutation(n) for _ in range(PERMUTATIONS))])
    drawn = T[orders]
    share = fourier_shares(drawn)
    circles = np.arange(1, (n - 1) // 2 + 1)
    top = circles[share[:, circles].argmax(1)]
    rho = spearman(drawn[..., :COORDINATES], x)
    line = np.take_along_axis(drawn, rho.argmax(1)[:, None, None], 2)[..., 0]
    index, scaling_r2 = scaling(line, x)
    few = max(1, _AT_ONCE // n**2)
    by_part = [distance_r2(drawn[i : i + few], x, top[i : i + few]) for i in range(0, len(drawn), few)]
    linear, circular, both = map(np.concatenate, zip(*by_part, strict=True))
    highest = share.max(1)
    r2 = np.full(n // 2 + 1, np.nan)
    # A frequency of which nothing but rounding is there has no plane.
    there = circles[share[0, circles] > 1e-20]
    r2[there] = circle_r2(np.broadcast_to(T, (len(there), *T.shape)), there)
    planes = np.full((number_of_planes(n), n), np.nan, complex)
    largest = there[np.argsort(-share[0, there], kind="stable")][: len(planes)]
    planes[: len(largest)] = plane(np.broadcast_to(T, (len(largest), *T.shape)), largest)
    rhos = np.full(COORDINATES, np.nan)
    rhos[: rho.shape[1]] = rho[0]
    return {
        "participation_ratio": participation_ratio(variances),
        "top_component_share": variances[:, -1] / variances.sum(1),
        "top_frequency_share": highest,
        "top_circle_r2": circle_r2(drawn, top),
        "line_spearman": rho.max(1),
        "scaling_r2": scaling_r2,
        "pls_q2": pls_q2(drawn, x),
        "distance_r2_linear": linear,
        "distance_r2_circular": circular,
        "distance_r2": both,
        "component_share": variances[0, ::-1] / variances[0].sum(),
        "fourier_share": share[0],
        "circle_r2": r2,
        "plane_frequency": np.pad(largest, (0, len(planes) - len(largest)), constant_values=-1),
        "plane_position": np.stack([planes.real, planes.imag], axis=-1),
        "spearman": rhos,
        "scaling_index": float(index[0]),
        "top_frequency": int(top[0]),
        "frequency_in_use": _in_use(T, orders),
    }


def _in_use(X: Floats, orders: Ints) -> NDArray[np.bool_]:
    """Which frequencies are in use: the largest that beats the largest of any draw, and again without it.

    A frequency beside larger ones would otherwise be judged by draws that have their variance, too.
    """
    used = np.zeros(len(X) // 2 + 1, bool)
    waves = np.fft.rfft(centred(X), axis=0)
    total = (X**2).sum()
    while True:
        waves[used] = 0
        left = np.fft.irfft(waves, len(X), axis=0)
        if (left**2).sum() <= 1e-20 * total:
            return used
        # In the draws the frequencies found have no share either.
        share = np.where(used, 0, fourier_shares(left[orders]))
        share /= share.sum(1, keepdims=True)
        k = int(share[0].argmax())
        is_chance = _p_values(share[:1, k], share[1:].max(1))[0] > LEVEL
        if is_chance or share[0, k] * (left**2).sum() < SMALLEST * total:
            return used
        used[k] = True


def _judged(statistic: Statistic, values: Floats) -> dict[str, float]:
    """A quantity, what it takes to beat its null, and its p-value; values (1 + draw,)."""
    sign = -1 if statistic.falls else 1
    null = np.sort(sign * values[1:])
    known = np.isfinite(values[0])
    return {
        statistic.name: float(values[0]),
        f"{statistic.name}_null": float(sign * null[-int(LEVEL * (1 + PERMUTATIONS))]),
        f"{statistic.name}_p": float(_p_values(sign * values[:1], null)[0]) if known else np.nan,
    }


def _p_values(values: Floats, null: Floats) -> Floats:
    """(1 + draws at least as large) / (1 + draws), for each value."""
    # Draws that are the same arrangement differ by rounding.
    reached = null >= values[:, None] - 1e-12 * np.abs(values[:, None])
    return np.asarray((1 + reached.sum(1)) / (1 + len(null)))


def appears(steps: Sequence[int] | Ints, values: Floats, p_values: Floats, falls: bool = False) -> int | None:
    """The first step at which a quantity beats its null at 1 % and reaches half of its last value; None: never.

    falls: of a quantity that is small where there is structure, at most twice its last value.
    """
    there = p_values <= LEVEL
    there &= values <= 2 * values[-1] if falls else values >= values[-1] / 2
    return int(steps[int(there.argmax())]) if there.any() else None


def key_part(logits: Floats, sign: int, frequencies: Sequence[int] | Ints) -> Floats:
    """The part of logits (a, b, class) that is made of cos and sin(w (a + sign b)) of some frequencies, w = 2 pi k / n.

    a and b are places on the group's circle of n: for multiplication discrete logarithms.
    """
    n = len(logits)
    a, b = np.arange(n)[:, None], np.arange(n)
    by_answer = logits[(a - sign * b) % n, b].mean(1)
    waves = np.fft.rfft(by_answer, axis=0)
    waves[np.setdiff1d(np.arange(len(waves)), frequencies)] = 0
    waves[0] = 0
    return np.asarray(np.fft.irfft(waves, n, axis=0)[(a + sign * b) % n])


def restricted(logits: Floats, sign: int, frequencies: Sequence[int] | Ints) -> Floats:
    """Logits of the constant and the key frequencies alone (restricted loss of arXiv 2301.05217, section 5.1).

    All frequencies give the mean of the logits over the pairs with one answer in the group.
    """
    return np.asarray(logits.mean((0, 1)) + key_part(logits, sign, frequencies))


def excluded(logits: Floats, sign: int, frequencies: Sequence[int] | Ints) -> Floats:
    """Logits without the key frequencies (excluded loss of arXiv 2301.05217, section 5.1)."""
    return np.asarray(logits - key_part(logits, sign, frequencies))


def centred(X: Floats) -> Floats:
    """Rows (..., number, embed) less their mean."""
    return np.asarray(X - X.mean(-2, keepdims=True), float)


def _turn(frequency: Ints, n: int) -> NDArray[np.complex128]:
    """exp(i w x), w = 2 pi frequency / n, (..., number)."""
    return np.asarray(np.exp(2j * np.pi / n * np.asarray(frequency)[..., None] * np.arange(n)))


def _correlation(a: Floats, b: Floats) -> Floats:
    """Pearson's correlation over the last axis; 0 with what is constant."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    norm = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    product = (a * b).sum(-1)
    return np.asarray(np.divide(product, norm, out=np.zeros_like(product), where=norm > 0))


def _pls_slope(X: Floats, y: Floats) -> Floats:
    """Coefficients (..., embed) of partial least squares of y (number,) on centred rows."""
    transposed: Callable[[Floats], Floats] = lambda v: (np.swapaxes(X, -1, -2) @ v[..., None])[..., 0]  # noqa: E731
    left = np.broadcast_to(y, X.shape[:-1])
    gradient = transposed(left)
    slope, towards = np.zeros_like(gradient), gradient
    size = first = (gradient**2).sum(-1, keepdims=True)
    for _ in range(COMPONENTS):
        change = (X @ towards[..., None])[..., 0]
        # Once nothing but rounding is left, further components are noise.
        going = size > 1e-20 * first
        step = np.where(going, size, 0) / np.where(going, (change**2).sum(-1, keepdims=True), 1)
        slope, left = slope + step * towards, left - step * change
        gradient = transposed(left)
        before, size = size, (gradient**2).sum(-1, keepdims=True)
        towards = gradient + size / np.where(going, before, 1) * towards
    return slope
