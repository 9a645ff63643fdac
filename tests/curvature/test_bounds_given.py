"""Upper bounds of the saddle index, from theory or from a random run, that what is proved contradicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.matrices import Diagonal, matrix

from landscape.curvature import eigsh as complement
from landscape.curvature import inertia
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import from_spectrum, saddle_index
from landscape.curvature.operators import MatrixOperator
from landscape.errors import NumericsError


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_a_bound_from_theory_below_what_is_proved_is_an_error(method: Any) -> None:
    """1,500 of 3,000 by products, 15 of 30 by a factorisation: 3 is no bound, and no certainty either."""
    count = 1500 if method == "lanczos" else 15
    values = np.r_[-np.linspace(0.01, 1, count), np.linspace(0.1, 1, count)]
    op = Diagonal(values) if method == "lanczos" else MatrixOperator(matrix(values))
    words = r"the upper bound given for the index is 3, but at least \d+ eigenvalues are below -tau = -1.000e-0\d"
    with pytest.raises(NumericsError, match=words) as refusal:
        saddle_index(op, method=method, upper=3, max_hvps=200)
    assert refusal.value.hint == "leave the bound out, or give one that holds for this operator"
    assert saddle_index(op, method=method, upper=count, max_hvps=200).upper == count


def test_a_bound_from_theory_below_every_eigenvalue_is_an_error() -> None:
    eigen = eigsh(MatrixOperator(matrix(np.linspace(-1, 1, 20))), 2)
    with pytest.raises(NumericsError, match="upper bound given for the index is 9, but at least 10 eigenvalues"):
        from_spectrum(eigen, upper=9)
    assert from_spectrum(eigen, upper=10).negative == 10


def test_a_random_bound_below_what_is_proved_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection has five negative eigenvalues, the run's bound was three: there is no bound then, but theory's."""
    monkeypatch.setattr(inertia, "index_bounds", lambda *_: complement.Bounds(0, 3, 1e-6, 0))
    op = Diagonal(np.r_[-np.ones(5) * np.arange(1, 6), np.linspace(0.1, 1, 95)])
    count = saddle_index(op, method="lanczos")
    assert (count.lower, count.upper, count.level, count.failure_probability) == (5, 100, "estimated", 0)
    count = saddle_index(op, method="lanczos", upper=7)
    assert (count.lower, count.upper, count.level, count.failure_probability) == (5, 7, "bracketed", 0)
