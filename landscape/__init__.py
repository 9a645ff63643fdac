"""Direct Hessian measurements of the loss landscape of networks that grok."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Looked up on first use, so that `landscape --help` does not import torch.
_HOMES = {
    "TrainConfig": "landscape.config",
    "HessianConfig": "landscape.config",
    "preset": "landscape.config",
    "train": "landscape.training.trainer",
    "train_ensemble": "landscape.training.trainer",
    "ensemble": "landscape.training.ensemble",
    "analyse": "landscape.pipeline",
    "SweepConfig": "landscape.plan",
    "load_sweep": "landscape.plan",
    "sweep_runs": "landscape.plan",
    "run_sweep": "landscape.sweep",
    "write_report": "landscape.report",
    "open_run": "landscape.storage.views",
    "open_hessian": "landscape.storage.views",
    "RunReader": "landscape.storage.runs",
    "SpectrumReader": "landscape.storage.spectra",
    "Objective": "landscape.curvature.objective",
    "HessianOperator": "landscape.curvature.operators",
    "MatrixOperator": "landscape.curvature.operators",
    "eigsh": "landscape.curvature.lanczos",
    "EigenResult": "landscape.curvature.lanczos",
    "cross_entropy": "landscape.curvature.objective",
    "mse": "landscape.curvature.objective",
    "spectral_density": "landscape.curvature.density",
    "SpectralDensity": "landscape.curvature.density",
    "jensen_shannon": "landscape.curvature.density",
    "trace": "landscape.curvature.density",
    "Trace": "landscape.curvature.density",
    "saddle_index": "landscape.curvature.inertia",
    "Inertia": "landscape.curvature.inertia",
    "coupling": "landscape.curvature.coupling",
    "CouplingResult": "landscape.curvature.coupling",
    "principal_angles": "landscape.curvature.coupling",
    "Deflated": "landscape.curvature.gauge",
    "GaugeTangent": "landscape.curvature.gauge",
    "SoftmaxShift": "landscape.curvature.gauge",
    "find_critical_point": "landscape.curvature.critical",
    "CriticalPoint": "landscape.curvature.critical",
    "product_error": "landscape.curvature.operators",
    "track": "landscape.curvature.tracking",
    "slice_lines": "landscape.curvature.slices",
    "slice_plane": "landscape.curvature.slices",
    "LandscapeError": "landscape.errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'landscape' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
