"""torchvision also where its compiled operators are of another release of torch than the one installed."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

_MISSING = torch.library.Library("torchvision", "FRAGMENT")
"""The operators that the import asks for; they exist as long as this object does."""


def torchvision() -> ModuleType:
    """The package; without compiled operators its networks work, its box operators do not."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            _MISSING.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision")
