"""What is called critical: nothing of a loss whose infimum is at infinity, in no unit; and degenerate points, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import scipy.optimize
import torch
from helpers.bilinear import K, balanced, target
from helpers.matrices import draw, matrix
from torch import Tensor, nn

from landscape.curvature.critical import CriticalPoint, SearchState, find_critical_point
from landscape.curvature.inertia import saddle_index
from landscape.curvature.objective import Objective, cross_entropy, mse
from landscape.curvature.operators import HessianOperator

SCALES = (1e-11, 1.0, 1e11)
Params = Mapping[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Problem = tuple[Objective, dict[str, Tensor]]
Make = Callable[[float, int], Problem]


def function(f: Callable[[Tensor], Tensor], start: Callable[[int], Tensor] = lambda seed: draw(2, seed=seed)) -> Make:
    """c f(x) from random points."""

    def make(c: float, seed: int) -> Problem:
        nothing = torch.zeros(1, 1)
        value = Objective(lambda P, _: c * f(P["x"]).view(1, 1), nothing, nothing, loss=lambda out, _: out[:, 0])
        return value, {"x": start(seed)}

    return make


def model(layers: Callable[[], nn.Module], x: Tensor, y: Tensor, decay: float = 0.0, of: Loss = cross_entropy) -> Make:
    """A module on data from its own random initialisation, with L2."""

    def make(c: float, seed: int) -> Problem:
        torch.manual_seed(seed)
        module = layers().double()
        value = Objective(module, x, y, loss=lambda z, t: c * of(z, t), weight_decay=c * decay)
        return value, {n: p.detach() for n, p in module.named_parameters()}

    return make


def perceptron(activation: Callable[[], nn.Module], inner: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, inner), activation(), nn.Linear(inner, outputs))


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def searched(make: Make, c: float, seed: int) -> tuple[CriticalPoint, Problem]:
    problem = make(c, seed)
    return find_critical_point(*problem, max_hvps=20_000), problem


X = draw(24, 3, seed=5)
SIDE = (X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) > 0).long()
SAME = torch.ones(24, dtype=torch.long)
NOWHERE: dict[str, Make] = {
    "exponential": function(lambda x: torch.exp(-x).sum()),
    "softplus": function(lambda x: nn.functional.softplus(-x).sum()),
    "arctan": function(lambda x: -torch.arctan(x).sum()),
    "logarithmic growth": function(lambda x: -torch.asinh(x).sum()),
    "Gaussian tail": function(lambda x: torch.erfc(x).sum()),
    "doubly exponential": function(lambda x: torch.exp(-torch.exp(x)).sum()),
    "linear": function(lambda x: x[0] + 2 * x[1]),
    "a minimum beside a tail": function(lambda x: (x[0] - 0.3).square() + torch.exp(-x[1])),
    "beside a hundred parameters": function(
        lambda x: (x[1:] - 30).square().sum() + torch.exp(-x[0]), lambda seed: draw(101, seed=seed)
    ),
    "curved valley": function(lambda x: (x[0] - x[1].square()).square() + torch.exp(-x[1])),
    "separable logistic regression": model(lambda: nn.Linear(3, 2), X, SIDE),
    # The gradient of the last bias is the mean error of its class, which has one sign.
    "one label, tanh": model(perceptron(nn.Tanh, 4, 2), X, SAME),
    "one label, GELU": model(perceptron(nn.GELU, 4, 2), X, SAME),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOWHERE)
def test_no_critical_point_where_there_is_none(name: str) -> None:
    """At no scale of the loss and from no start."""
    for seed, c in enumerate(SCALES):
        point, _ = searched(NOWHERE[name], c, seed)
        assert point.status != "critical", c
        assert point.status == "at-infinity" or name in ("linear", "curved valley")
        assert point.remaining > 1


def test_what_has_vanished_altogether_is_not_critical() -> None:
    """Where e^-x underflows neither gradient nor Hessian say anything."""
    objective, _ = NOWHERE["exponential"](1.0, 0)
    point = find_critical_point(objective, {"x": torch.full((2,), 1e3, dtype=torch.float64)})
    assert (point.status, point.grad_norm) == ("gradient-flat", 0.0)


Near = Callable[[Params], float]
"""How far parameters are from the nearest critical point that is known."""


def at(*values: float) -> Near:
    return lambda P: float((P["x"] - torch.tensor(values, dtype=torch.float64)).norm())


def solution(x: Tensor, y: Tensor, decay: float = 0.0) -> Near:
    """From the predictions of least squares, |x w - y|^2 / n + decay/2 |w|^2."""
    best = torch.linalg.pinv(x.T @ x + decay * len(x) / 2 * torch.eye(x.shape[1], dtype=torch.float64)) @ x.T @ y
    return lambda P: float((x @ (P["weight"].T - best)).norm())


def singular(P: Params) -> float:
    """From a product that keeps some singular directions of the target and drops the others."""
    _, U, s, V = target()
    product = U.T @ P["W"] @ P["E"] @ V
    kept = product.diagonal()
    return float((product - torch.diag(kept)).norm()) + float(torch.minimum(kept.abs(), (kept - s).abs()).norm())


def vanishing(P: Params) -> float:
    """From the saddle that keeps nothing: the product is 0, and neither factor sees the target."""
    Y = target()[0]
    return float((P["W"] @ P["E"]).norm() + (Y @ P["E"].T).norm() + (P["W"].T @ Y).norm())


def shrunk(decay: float) -> Near:
    """The same with L2, which takes `decay` of each value, beside the balance of the factors."""

    def near(P: Params) -> float:
        _, U, s, V = target()
        product, balance = U.T @ P["W"] @ P["E"] @ V, P["W"].T @ P["W"] - P["E"] @ P["E"].T
        kept = product.diagonal()
        values = torch.minimum(kept.abs(), (kept - s + decay).abs())
        return float((product - torch.diag(kept)).norm()) + float(values.norm()) + float(balance.norm())

    return near


def factors(size: float, decay: float = 0.0, around: tuple[int, ...] | None = None) -> Make:
    """Two factors of a matrix, from random points of a size around a critical point."""

    def make(c: float, seed: int) -> Problem:
        Y, W, E, _ = balanced(around or ())
        half = lambda out, y: 0.5 * c * (out - y).square().flatten(1).sum(1)  # noqa: E731
        objective = Objective(
            lambda P, _: (P["W"] @ P["E"])[None], torch.zeros(1, 1), Y[None], loss=half, weight_decay=c * decay
        )
        W, E = (x + size * draw(*x.shape, seed=2 * seed + i) for i, x in enumerate((W.expand(4, K), E.expand(K, 5))))
        return objective, {"W": W, "E": E}

    return make


def student(activation: Callable[[], nn.Module]) -> tuple[Make, Near]:
    """A network beside one that made its targets."""
    torch.manual_seed(3)
    teacher = perceptron(activation, 3, 2)().double()
    y, point = teacher(X).detach(), {n: p.detach() for n, p in teacher.named_parameters()}
    exact = Objective(teacher, X, y, loss=mse)

    def make(c: float, seed: int) -> Problem:
        moved = {n: p + 0.02 * draw(*p.shape, seed=seed) for n, p in point.items()}
        return Objective(teacher, X, y, loss=lambda z, t: c * mse(z, t)), moved

    return make, lambda P: exact.value(P) ** 0.5


def dead(c: float, seed: int) -> Problem:
    """Least squares in a last layer; of two hidden units one is never on."""
    objective, params = model(perceptron(nn.ReLU, 2, 2), X, X[:, :2], of=mse)(c, seed)
    kept = {"0.bias": torch.tensor([9.0, -99.0], dtype=torch.float64)}
    return objective, params | kept


def linear(x: Tensor, y: Tensor, decay: float = 0.0) -> tuple[Make, Near]:
    """Least squares without bias and its solution; mse is the mean over two outputs."""
    return model(lambda: nn.Linear(3, 2, bias=False), x, y, decay, mse), solution(x, y, 2 * decay)


def last_layer(P: Params) -> float:
    """From the means and at most one singular direction beside them, all that a unit that is always on can make."""
    hidden = (X @ P["0.weight"].T + P["0.bias"]).relu()
    out = hidden @ P["2.weight"].T + P["2.bias"]
    mean = X[:, :2].mean(0)
    U, s, V = torch.linalg.svd(X[:, :2] - mean, full_matrices=False)
    points = [mean, *(mean + s[i] * U[:, i : i + 1] @ V[i : i + 1] for i in range(2))]
    return min(float((out - point).norm()) for point in points)


GROUPS = torch.arange(3).repeat_interleave(8)
VOTES = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2] + [0, 1, 1, 1, 1, 2, 2, 2] + [2] * 4 + [1, 1, 0, 0])
SHARES = torch.stack([torch.bincount(VOTES[g == GROUPS], minlength=3) / 8 for g in range(3)]).double()
GRADED = torch.logspace(0, -8, 5, dtype=torch.float64)
SADDLE = matrix([3.0, 1.0, 0.1, -0.2, -2.0])
Y = X[:, :2].exp()
LOW = X * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
ONE_HOT, PAIR = torch.eye(3, dtype=torch.float64)[GROUPS], torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
RIDGE = scipy.optimize.brentq(lambda t: 0.1 * t - 1 / (1 + math.exp(2 * t)), 0, 9)
"""At x = 1 and -1, classes 1 and 0: weights (-t, t) with decay t = 1 / (1 + e^2t)."""


def five(seed: int) -> Tensor:
    return draw(5, seed=seed)


def hyperbola(P: Params) -> float:
    """From x y = 1 or the saddle at 0."""
    return min(abs(float(P["x"].prod()) - 1), float(P["x"].norm()))


def shares(P: Params) -> float:
    """From the share of each class in each group."""
    return float((P["weight"].T.softmax(1) - SHARES).norm())


def ridge(P: Params) -> float:
    """From the weights of the two points."""
    return float((P["weight"][:, 0] - torch.tensor([-RIDGE, RIDGE], dtype=torch.float64)).norm())


KNOWN: dict[str, tuple[Make, Near, float]] = {
    "least squares": (*linear(X, Y), 1e-9),
    "of deficient rank": (*linear(LOW, Y), 1e-9),
    "ridge": (*linear(X, Y, 0.3), 1e-9),
    "graded quadratic": (function(lambda x: (GRADED * (x - 1).square()).sum(), five), at(*[1.0] * 5), 1e-6),
    "quadratic saddle": (function(lambda x: (x - 1) @ SADDLE @ (x - 1), five), at(*[1.0] * 5), 1e-9),
    "far from 0": (function(lambda x: (x - 1e6).square().sum()), at(1e6, 1e6), 1e-6),
    "quartic": (function(lambda x: ((x - 1) ** 4).sum()), at(1.0, 1.0), 1e-8),
    "of degree 6": (function(lambda x: (x**6).sum()), at(0.0, 0.0), 1e-8),
    "quartic beside a quadratic": (
        function(lambda x: 3 * (x[0] - 0.37) ** 2 + (x[1] - 0.21) ** 4), at(0.37, 0.21), 1e-4
    ),
    "inflection": (function(lambda x: (x**3).sum()), at(0.0, 0.0), 1e-8),
    "monkey saddle": (function(lambda x: x[0] ** 3 - 3 * x[0] * x[1] ** 2), at(0.0, 0.0), 1e-8),
    "hyperbola": (function(lambda x: (x[0] * x[1] - 1) ** 2), hyperbola, 1e-8),
    "curved valley": (function(lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2), at(1.0, 1.0), 1e-8),
    "periodic": (function(lambda x: torch.cos(x).sum()), lambda P: float(torch.sin(P["x"]).norm()), 1e-9),
    "hyperbolic cosine": (function(lambda x: torch.cosh(x - 2).sum()), at(2.0, 2.0), 1e-9),
    "softmax regression": (model(lambda: nn.Linear(3, 3, bias=False), ONE_HOT, VOTES), shares, 1e-9),
    "separable, with L2": (model(lambda: nn.Linear(1, 2, bias=False), PAIR, torch.tensor([1, 0]), 0.1), ridge, 1e-9),
    "two factors": (factors(0.5), singular, 1e-8),
    "beside the origin": (factors(0.05), vanishing, 1e-8),
    "beside a saddle": (factors(0.05, around=(0, 2)), singular, 1e-8),
    "two factors with L2": (factors(0.5, 0.5), shrunk(0.5), 1e-8),
    "of a degenerate value": (factors(0.05, 0.4), shrunk(0.4), 1e-2),
    "GELU beside its teacher": (*student(nn.GELU), 1e-8),
    "squares beside their teacher": (*student(Square), 1e-8),
    "dead units": (dead, last_layer, 1e-7),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_critical_points_that_are_known(name: str) -> None:
    """Minima, saddles and degenerate ones, at each scale of the loss."""
    make, near, within = KNOWN[name]
    for seed, c in enumerate(SCALES):
        point, _ = searched(make, c, seed)
        assert point.status == "critical", c
        assert near(point.params) <= within, c


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_of_the_parameters(unit: float) -> None:
    """The same verdict, and the same point, where a parameter is counted in another unit."""
    tail = lambda x: (x[0] - 0.3).square() + torch.exp(-x[1])  # noqa: E731
    valley = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2  # noqa: E731
    for f, status in ((tail, "at-infinity"), (valley, "critical")):
        make = function(lambda x, f=f: f(x / unit), lambda seed: unit * draw(2, seed=seed))  # type: ignore[misc]
        point, _ = searched(make, 1.0, 1)
        assert point.status == status
        if status == "critical":
            torch.testing.assert_close(point.params["x"], torch.full((2,), unit, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "expected"),
    [(KNOWN["quadratic saddle"][0], 2), (KNOWN["beside the origin"][0], 12), (KNOWN["beside a saddle"][0], 3)],
)
def test_the_index_of_a_known_saddle(make: Make, expected: int) -> None:
    """Of the point that the search ends at: of two factors k (rank - r), and pairs in the wrong order (F3)."""
    point, (objective, _) = searched(make, 1.0, 0)
    index = saddle_index(HessianOperator(objective, point.params), rel_tau=1e-6)
    assert (point.status, index.negative, index.level) == ("critical", expected, "certified")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [NOWHERE["separable logistic regression"], KNOWN["two factors"][0], KNOWN["quartic"][0]]
)
def test_a_search_is_resumed_from_any_step(make: Make) -> None:
    """With the same point, verdict and products, bit for bit."""
    objective, start = make(1.0, 1)
    states: list[SearchState] = []
    whole = find_critical_point(objective, start, save=states.append)
    for state in states[:: max(1, len(states) // 6)] + states[-1:]:
        again = find_critical_point(objective, start, state=state)
        assert (again.status, again.num_products) == (whole.status, whole.num_products)
        assert again.remaining == whole.remaining
        assert all(torch.equal(again.params[n], p) for n, p in whole.params.items())
