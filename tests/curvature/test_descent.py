"""Descent from a point: the iterates of torch's Adam, in any unit of the loss, and the same bits after a stop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from helpers.bilinear import balanced

from landscape.curvature.objective import Objective
from landscape.curvature.settle import DescentState, descend

A = torch.diag(torch.tensor([4.0, 1.0, 0.5, -0.0], dtype=torch.float64))
B = torch.tensor([1.0, 2.0, -1.0, 0.0], dtype=torch.float64)
START = {"x": torch.tensor([3.0, -2.0, 1.0, 5.0], dtype=torch.float64)}
MINIMISER = torch.tensor([0.25, 2.0, -2.0, 5.0], dtype=torch.float64)
"""Of x A x / 2 - B x, with the start's own entry where there is no curvature."""


def of_one(f: object) -> Objective:
    """An objective that is a function of the parameters alone."""
    return Objective(
        lambda P, _: f(P).reshape(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), loss=lambda out, _: out[:, 0]
    )  # type: ignore[operator]


def quadratic() -> Objective:
    return of_one(lambda P: 0.5 * P["x"] @ A @ P["x"] - B @ P["x"])


def scaled(unit: float) -> tuple[Objective, dict[str, torch.Tensor]]:
    """|W E - Y|^2 / 2 in some unit, and a start beside its saddle."""
    Y, W, E, _ = balanced((0,))
    return of_one(lambda P: unit / 2 * (P["W"] @ P["E"] - Y).square().sum()), {"W": W + 0.3, "E": E - 0.2}


@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e9])
def test_the_steps_are_those_of_torch(unit: float) -> None:
    """torch.optim.Adam at a rate of 0.0025 |theta| a step, whatever the unit of the loss, while it falls."""
    objective, start = scaled(1.0)
    theta = {n: p.clone().requires_grad_() for n, p in start.items()}
    flat = torch.cat([p.flatten() for p in start.values()])
    rate = 2.5e-3 * float(flat.norm()) / len(flat) ** 0.5
    adam = torch.optim.Adam(theta.values(), lr=rate, eps=0)
    for _ in range(30):
        for n, g in objective.gradient({n: p.detach() for n, p in theta.items()}).items():
            theta[n].grad = g
        adam.step()
    point = descend(scaled(unit)[0], start, 1e-12, 30)
    assert (point.status, point.num_steps, point.rate) == ("unfinished", 30, pytest.approx(rate))
    for n, p in theta.items():
        torch.testing.assert_close(point.params[n], p.detach(), rtol=1e-9, atol=1e-9)


def test_the_first_step_has_the_length_it_is_said_to_have() -> None:
    """0.0025 |theta|, shared by the entries that have a gradient; one without stays."""
    point = descend(quadratic(), START, 1e-12, 1)
    moved = point.params["x"] - START["x"]
    entry = 2.5e-3 * float(START["x"].norm()) / 2
    torch.testing.assert_close(moved, entry * torch.tensor([-1.0, 1.0, -1.0, 0.0], dtype=torch.float64))
    assert point.distance == pytest.approx(entry * 3**0.5)


def test_the_objective_falls_and_the_rate_is_halved() -> None:
    """To the rounding of the objective; from next to a minimiser, where the first step is far too long."""
    states = list[DescentState]()
    start = {"x": MINIMISER + torch.tensor([0.01, 0.0, 0.0, 1000.0], dtype=torch.float64)}
    point = descend(quadratic(), start, 1e-6, 20_000, save=states.append)
    values, rates = [quadratic().value(at.params) for at in states], [at.rate for at in states]
    assert point.status == "settled"
    assert all(np.diff(values) <= 1e-14)
    assert all(np.diff(rates) <= 0)
    assert point.rate == rates[-1] < rates[0]
    assert float(np.log2(rates[0] / point.rate)).is_integer()
    torch.testing.assert_close(point.params["x"][:3], MINIMISER[:3], rtol=0, atol=1e-6)


def test_a_kink_ends_it_as_stalled() -> None:
    """|x| has a gradient of 1 wherever it is not 0: no step is short enough, and more steps change nothing."""
    objective = of_one(lambda P: P["x"].abs() + (P["x"] - 0.3) ** 2 / 2)
    start = {"x": torch.tensor(1.0, dtype=torch.float64)}
    point, more = (descend(objective, start, 1e-3, steps) for steps in (5000, 9000))
    assert (point.status, more.status) == ("stalled", "stalled")
    assert point.num_steps == more.num_steps < 5000
    assert torch.equal(point.params["x"], more.params["x"])
    assert abs(float(point.params["x"])) < 1e-3


def test_it_settles_at_the_share_that_is_asked_for() -> None:
    """At the first iterate below it, next to the minimiser."""
    seen: list[float] = []
    point = descend(quadratic(), START, 1e-3, 20_000, lambda grad, n: bool(seen.append(grad)))
    assert point.status == "settled"
    assert seen[-1] == point.grad_norm <= 1e-3 * point.start_grad_norm < seen[-2]
    again = descend(quadratic(), point.params, 0.5, 0)
    assert (again.num_steps, again.distance, again.value) == (0, 0.0, point.value)


def test_a_stationary_start_is_settled() -> None:
    """Without a step, and from parameters that are all zero, too."""
    point = descend(of_one(lambda P: P["x"].square().sum()), {"x": torch.zeros(3, dtype=torch.float64)})
    assert (point.status, point.num_steps, point.distance) == ("settled", 0, 0.0)


@pytest.mark.parametrize("stop", [0, 1, 13])
def test_a_stopped_descent_ends_at_the_same_bits(stop: int) -> None:
    """Also from a state that was copied before later steps."""
    objective, start = scaled(1.0)
    whole, states = descend(objective, start, 1e-9, 40), list[DescentState]()
    descend(objective, start, 1e-9, stop, save=states.append)
    resumed = descend(objective, start, 1e-9, 40, state=states[-1])
    assert states[-1].num_steps == stop
    assert all(torch.equal(resumed.params[n], whole.params[n]) for n in whole.params)
    numbers = [f.name for f in dataclasses.fields(whole) if f.name not in ("params", *whole.axes)]
    assert np.array_equal(resumed.gradient_norms, whole.gradient_norms[stop:])
    assert [getattr(resumed, n) for n in numbers] == [getattr(whole, n) for n in numbers]


def test_progress_may_end_it() -> None:
    """As Ctrl-C in a notebook would."""
    assert descend(quadratic(), START, 1e-6, 100, lambda grad, n: n == 3).num_steps == 3
