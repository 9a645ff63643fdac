"""Descent from a point: the iterates of a quadratic in closed form, a falling objective, the same bits after a stop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from helpers.bilinear import balanced, bilinear

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


@pytest.mark.parametrize("steps", [1, 7])
def test_the_iterates_of_a_quadratic(steps: int) -> None:
    """x_n - x* = (1 - A / |A|)^n (x_0 - x*): the stiffest direction is at rest after a step."""
    point = descend(quadratic(), START, 1e-12, steps)
    assert (point.status, point.num_steps) == ("unfinished", steps)
    assert point.step_size == pytest.approx(1 / 4)
    expected = MINIMISER + (1 - A.diag() * point.step_size) ** steps * (START["x"] - MINIMISER)
    torch.testing.assert_close(point.params["x"], expected, rtol=0, atol=1e-12)
    assert float(point.params["x"][0]) == pytest.approx(0.25, abs=1e-12)
    assert point.distance == pytest.approx(float((expected - START["x"]).norm()))


def test_it_settles_at_the_share_that_is_asked_for() -> None:
    """At the first iterate below it, next to the minimiser."""
    seen: list[float] = []
    point = descend(quadratic(), START, 1e-6, 10_000, lambda grad, n: bool(seen.append(grad)))
    assert point.status == "settled"
    assert seen[-1] == point.grad_norm <= 1e-6 * point.start_grad_norm < seen[-2]
    torch.testing.assert_close(point.params["x"], MINIMISER, rtol=0, atol=1e-4)
    again = descend(quadratic(), point.params, 0.5, 0)
    assert (again.num_steps, again.distance, again.value) == (0, 0.0, point.value)


def test_the_objective_falls_and_the_step_never_grows() -> None:
    """From beside a crest, where the first step is far too long: it is halved until the objective falls."""
    objective, states = of_one(lambda P: -torch.cos(P["x"]).sum()), list[DescentState]()
    start = {"x": torch.tensor([1.6], dtype=torch.float64)}
    point = descend(objective, start, 1e-8, 500, save=states.append)
    values, sizes = [objective.value(at.params) for at in states], [at.step_size for at in states]
    assert point.status == "settled"
    assert all(np.diff(values) <= 1e-15)
    assert all(np.diff(sizes) <= 0)
    assert 0 < point.step_size < 4 < sizes[0]
    assert float(np.log2(sizes[0] / point.step_size)).is_integer()


@pytest.mark.parametrize("stop", [0, 1, 13])
def test_a_stopped_descent_ends_at_the_same_bits(stop: int) -> None:
    """Also from a state that was copied before later steps."""
    Y, W, E, _ = balanced((0,))
    objective, start = bilinear(Y), {"W": W + 0.3, "E": E - 0.2}
    whole, states = descend(objective, start, 1e-9, 40), list[DescentState]()
    descend(objective, start, 1e-9, stop, save=states.append)
    resumed = descend(objective, start, 1e-9, 40, state=states[-1])
    assert states[-1].num_steps == stop
    assert all(torch.equal(resumed.params[n], whole.params[n]) for n in whole.params)
    numbers = [f.name for f in dataclasses.fields(whole) if f.name not in ("params", *whole.axes)]
    assert np.array_equal(resumed.gradient_norms, whole.gradient_norms[stop:])
    assert [getattr(resumed, n) for n in numbers] == [getattr(whole, n) for n in numbers]


def test_a_kink_ends_it_as_stalled() -> None:
    """|x| has a gradient of 1 wherever it is not 0: no step is short enough, and more steps change nothing."""
    objective = of_one(lambda P: P["x"].abs() + (P["x"] - 0.3) ** 2 / 2)
    start = {"x": torch.tensor(1.0, dtype=torch.float64)}
    point, more = (descend(objective, start, 1e-3, steps) for steps in (1000, 2000))
    assert (point.status, more.status) == ("stalled", "stalled")
    assert point.num_steps == more.num_steps < 1000
    assert torch.equal(point.params["x"], more.params["x"])
    assert abs(float(point.params["x"])) < 1e-3


def test_progress_may_end_it() -> None:
    """As Ctrl-C in a notebook would."""
    assert descend(quadratic(), START, 1e-6, 100, lambda grad, n: n == 3).num_steps == 3
