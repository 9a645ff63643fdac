"""A small model that changes at each step, and what is read back of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from landscape.files.runs import RunReader


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def move(model: nn.Module, step: int) -> None:
    """Other parameters at each step."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.full_like(p, step + i / 8))


def states(path: Path) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    with RunReader(path) as reader:
        return {step: reader.checkpoint(step) for step in reader.steps}
