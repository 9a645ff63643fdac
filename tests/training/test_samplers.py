"""Batches that follow the gradients of the tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
from conftest import TINY

from landscape.models.tasks import TRAIN, make_data
from landscape.training.samplers import BatchSampler


def test_frequency_aware_batches() -> None:
    """p_i is the softmax of |grad_i|^2 over its mean, and pairs are drawn in proportion to p_a p_b."""
    config = dataclasses.replace(TINY, sampler="frequency_aware")
    tokens = make_data(config).subset(TRAIN)[0]
    sampler = BatchSampler(config, tokens, 25)
    gradient = np.linspace(0.5, 1.5, 7)
    sampler.refresh(gradient)
    expected = np.exp(gradient**2 / (gradient**2).mean())
    np.testing.assert_allclose(sampler.probability, expected / expected.sum(), rtol=1e-12)
    drawn = np.bincount(np.concatenate([sampler.draw() for _ in range(4000)]), minlength=len(tokens))
    share = sampler.probability[tokens].prod(axis=1)
    share /= share.sum()
    sigma = np.sqrt(share * (1 - share) * 100_000)
    assert (abs(drawn - 100_000 * share) < 5 * sigma).all()
