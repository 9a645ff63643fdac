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
    from landscape.curvature.coupling import principal_angles as principal_angles
    from landscape.curvature.critical import CriticalPoint as CriticalPoint
    from landscape.curvature.critical import find_critical_point as find_critical_point
    from landscape.curvature.density import SpectralDensity as SpectralDensity
    from landscape.curvature.density import jensen_shannon as jensen_shannon
    from landscape.curvature.density import spectral_density as spectral_density
    from landscape.curvature.eigsh import EigenResult as EigenResult
    from landscape.curvature.eigsh import eigsh as eigsh
    from landscape.curvature.inertia import Inertia as Inertia
    from landscape.curvature.inertia import saddle_index as saddle_index
    from landscape.curvature.losses import cross_entropy as cross_entropy
    from landscape.curvature.losses import linear_cross_entropy as linear_cross_entropy
    from landscape.curvature.losses import mse as mse
    from landscape.curvature.objective import Objective as Objective
    from landscape.curvature.operators import Deflated as Deflated
    from landscape.curvature.operators import HessianOperator as HessianOperator
    from landscape.curvature.operators import MatrixOperator as MatrixOperator
    from landscape.curvature.operators import product_error as product_error
    from landscape.curvature.slices import slice_lines as slice_lines
    from landscape.curvature.slices import slice_plane as slice_plane
    from landscape.curvature.trace import Trace as Trace
    from landscape.curvature.trace import trace as trace
    from landscape.curvature.tracking import track as track
    from landscape.errors import LandscapeError as LandscapeError
    from landscape.exports import export as export
    from landscape.files.hessians import HessianReader as HessianReader
    from landscape.files.runs import RunReader as RunReader
    from landscape.files.views import File as File
    from landscape.files.views import GeometryFile as GeometryFile
    from landscape.files.views import HessianFile as HessianFile
    from landscape.files.views import RunFile as RunFile
    from landscape.files.views import open as open  # noqa: A004
    from landscape.files.views import open_geometry as open_geometry
    from landscape.files.views import open_hessian as open_hessian
    from landscape.files.views import open_run as open_run
    from landscape.jobs.plan import SweepConfig as SweepConfig
    from landscape.jobs.plan import load_sweep as load_sweep
    from landscape.jobs.plan import sweep_runs as sweep_runs
    from landscape.jobs.run import run_sweep as run_sweep
    from landscape.measure.geometry import measure_geometry as measure_geometry
    from landscape.measure.hessian import analyse as analyse
    from landscape.models.embedding_mlp.gauge import GaugeTangent as GaugeTangent
    from landscape.models.embedding_mlp.gauge import SoftmaxShift as SoftmaxShift
    from landscape.models.module import ModuleProblem as ModuleProblem
    from landscape.report.page import write_report as write_report
    from landscape.training.ensemble import ensemble as ensemble
    from landscape.training.loop import train as train
    from landscape.training.loop import train_ensemble as train_ensemble
    from landscape.training.recorder import Recorder as Recorder

# Looked up on first use, so that `landscape --help` does not import torch.
_NAMES = {
    "config": "TrainConfig HessianConfig preset",
    "training.loop": "train train_ensemble",
    "training.ensemble": "ensemble",
    "training.recorder": "Recorder",
    "measure.hessian": "analyse",
    "measure.geometry": "measure_geometry",
    "jobs.plan": "SweepConfig load_sweep sweep_runs",
    "jobs.run": "run_sweep",
    "report.page": "write_report",
    "files.views": "open File open_run open_hessian open_geometry RunFile HessianFile GeometryFile",
    "files.runs": "RunReader",
    "files.hessians": "HessianReader",
    "curvature.objective": "Objective",
    "curvature.losses": "cross_entropy mse linear_cross_entropy",
    "curvature.operators": "HessianOperator MatrixOperator Deflated product_error",
    "curvature.eigsh": "eigsh EigenResult",
    "curvature.density": "spectral_density SpectralDensity jensen_shannon",
    "curvature.inertia": "saddle_index Inertia",
    "curvature.coupling": "coupling CouplingResult principal_angles excess_index Excess",
    "models.embedding_mlp.gauge": "GaugeTangent SoftmaxShift",
    "models.module": "ModuleProblem",
    "curvature.critical": "find_critical_point CriticalPoint",
    "curvature.trace": "trace Trace",
    "curvature.tracking": "track",
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
