"""Measure the Hessian and loss landscape of networks that grok."""

from __future__ import annotations

import importlib

# Set by type checkers alone. Ctrl-C ends the import of typing, which is long, in a traceback: this comes before any
# handler.
TYPE_CHECKING = False
__version__ = "0.1.0"

if TYPE_CHECKING:
    from landscape.config import HessianConfig as HessianConfig
    from landscape.config import TrainConfig as TrainConfig
    from landscape.config import preset as preset
    from landscape.curvature.coupling import CouplingResult as CouplingResult
    from landscape.curvature.coupling import Excess as Excess
    from landscape.curvature.coupling import coupling as coupling
    from landscape.curvature.coupling import excess_index as excess_index
    from landscape.curvature.critical import CriticalPoint as CriticalPoint
    from landscape.curvature.critical import find_critical_point as find_critical_point
    from landscape.curvature.density import SpectralDensity as SpectralDensity
    from landscape.curvature.density import spectral_density as spectral_density
    from landscape.curvature.eigsh import EigenResult as EigenResult
    from landscape.curvature.eigsh import eigsh as eigsh
    from landscape.curvature.eigsh import track as track
    from landscape.curvature.inertia import Inertia as Inertia
    from landscape.curvature.inertia import saddle_index as saddle_index
    from landscape.curvature.losses import cross_entropy as cross_entropy
    from landscape.curvature.losses import mse as mse
    from landscape.curvature.objective import Objective as Objective
    from landscape.curvature.operators import Deflated as Deflated
    from landscape.curvature.operators import HessianOperator as HessianOperator
    from landscape.curvature.operators import LinearOperator as LinearOperator
    from landscape.curvature.operators import MatrixOperator as MatrixOperator
    from landscape.curvature.slices import slice_lines as slice_lines
    from landscape.curvature.slices import slice_plane as slice_plane
    from landscape.curvature.trace import Trace as Trace
    from landscape.curvature.trace import trace as trace
    from landscape.errors import LandscapeError as LandscapeError
    from landscape.exports import export as export
    from landscape.files.views import File as File
    from landscape.files.views import open as open  # noqa: A004
    from landscape.jobs.plan import SweepConfig as SweepConfig
    from landscape.jobs.plan import load_sweep as load_sweep
    from landscape.jobs.plan import sweep_runs as sweep_runs
    from landscape.jobs.run import sweep as sweep
    from landscape.measure.critical import critical as critical
    from landscape.measure.geometry import geometry as geometry
    from landscape.measure.hessian import hessian as hessian
    from landscape.measure.slices import slice as slice  # noqa: A004
    from landscape.models import network as network
    from landscape.models.embedding_mlp.gauge import GaugeTangent as GaugeTangent
    from landscape.models.embedding_mlp.gauge import SoftmaxShift as SoftmaxShift
    from landscape.models.module import ModuleProblem as ModuleProblem
    from landscape.report.page import write_report as write_report
    from landscape.training.ensemble import ensemble as ensemble
    from landscape.training.loop import train as train
    from landscape.training.loop import train_ensemble as train_ensemble
    from landscape.training.monitor import Monitor as Monitor
    from landscape.training.recorder import Recorder as Recorder

# Looked up on first use, so that `landscape --help` does not import torch.
_NAMES = {
    "config": "TrainConfig HessianConfig preset",
    "training.loop": "train train_ensemble",
    "training.ensemble": "ensemble",
    "training.monitor": "Monitor",
    "training.recorder": "Recorder",
    "measure.hessian": "hessian",
    "measure.critical": "critical",
    "measure.geometry": "geometry",
    "measure.slices": "slice",
    "jobs.plan": "SweepConfig load_sweep sweep_runs",
    "jobs.run": "sweep",
    "report.page": "write_report",
    "files.views": "open File",
    "curvature.objective": "Objective",
    "curvature.losses": "cross_entropy mse",
    "curvature.operators": "LinearOperator HessianOperator MatrixOperator Deflated",
    "curvature.eigsh": "eigsh EigenResult track",
    "curvature.density": "spectral_density SpectralDensity",
    "curvature.inertia": "saddle_index Inertia",
    "curvature.coupling": "coupling CouplingResult excess_index Excess",
    "models.embedding_mlp.gauge": "GaugeTangent SoftmaxShift",
    "models.module": "ModuleProblem",
    "models": "network",
    "curvature.critical": "find_critical_point CriticalPoint",
    "curvature.trace": "trace Trace",
    "curvature.slices": "slice_lines slice_plane",
    "exports": "export",
    "errors": "LandscapeError",
}
_HOMES = {name: f"landscape.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # A type checker would take it for a promise of every name.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'landscape' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
