"""Checkpoints that other programs would have written, and what an import must make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from helpers.recording import small, states

State = dict[str, torch.Tensor]


def a_state(step: int, dtype: torch.dtype = torch.float32) -> State:
    """Random parameters, others at each step."""
    generator = torch.Generator().manual_seed(step)
    return {n: torch.randn(p.shape, generator=generator).to(dtype) for n, p in small().named_parameters()}


def same(path: Path, truth: dict[int, State]) -> None:
    """A run file holds these states bit for bit, and nothing else."""
    stored = states(path)
    assert list(stored) == sorted(truth)
    for step, state in truth.items():
        assert stored[step].keys() == state.keys()
        for name, tensor in state.items():
            wide = tensor if tensor.dtype == torch.float64 else tensor.float()
            assert torch.equal(torch.from_numpy(np.asarray(stored[step][name])), wide)
            assert torch.equal(wide.to(tensor.dtype), tensor)
