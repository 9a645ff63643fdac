"""The error bars of densities, where the steps of a probe do not resolve the spectrum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from landscape.curvature.density import density_of, spectral_density
from landscape.curvature.operators import MatrixOperator


@pytest.mark.parametrize("steps", [60, 80])
def test_errors_allow_for_what_the_steps_do_not_resolve(steps: int) -> None:
    """A spectrum as wide as the norm at the default bandwidth: all probes are wrong in the same way."""
    values = np.linspace(-1, 1, 1500)
    result = spectral_density(MatrixOperator(torch.diag(torch.from_numpy(values))), steps=steps, method="lanczos")
    scores = (result.density - density_of(values, result.grid, result.width)) / result.standard_error
    inside = np.abs(result.grid) < 0.99
    # Beyond this lies one in twenty of Student's t with seven degrees of freedom.
    assert (np.abs(scores[inside]) > 2.36).mean() < 0.12
