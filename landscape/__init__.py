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
    from landscape.curvature.activations import of_activations as of_activations
    from landscape.curvature.coupling import CouplingResult as CouplingResult
    from landscape.curvature.coupling import Excess as Excess
    from landscape.curvature.coupling import coupling as coupling
    from landscape.curvature.coupling import excess_index as excess_index
    from landscape.curvature.critical import CriticalPoint as CriticalPoint
    from landscape.curvature.critical import find_critical_point as find_critical_point
    from landscape.curvature.curve import IndexCurve as IndexCurve
    from landscape.curvature.curve import index_curve as index_curve
    from landscape.curvature.density import SpectralDensity as SpectralDensity
    from landscape.curvature.density import spectral_density as spectral_density
    from landscape.curvature.diagonal import Diagonal as Diagonal
    from landscape.curvature.diagonal import diagonal as diagonal
    from landscape.curvature.eigsh import EigenResult as EigenResult
    from landscape.curvature.eigsh import eigsh as eigsh
    from landscape.curvature.eigsh import track as track
    from landscape.curvature.fisher import FisherOperator as FisherOperator
    from landscape.curvature.heterogeneity import BlockDensities as BlockDensities
    from landscape.curvature.heterogeneity import block_densities as block_densities
    from landscape.curvature.inertia import Inertia as Inertia
    from landscape.curvature.inertia import saddle_index as saddle_index
    from landscape.curvature.influence import Influence as Influence
    from landscape.curvature.influence import influence as influence
    from landscape.curvature.interop import from_curvlinops as from_curvlinops
    from landscape.curvature.interop import from_scipy as from_scipy
    from landscape.curvature.interop import to_curvlinops as to_curvlinops
    from landscape.curvature.kfac import KroneckerDistances as KroneckerDistances
    from landscape.curvature.kfac import kfac_distance as kfac_distance
    from landscape.curvature.losses import cross_entropy as cross_entropy
    from landscape.curvature.losses import mse as mse
    from landscape.curvature.modules import gathered as gathered
    from landscape.curvature.objective import Objective as Objective
    from landscape.curvature.operators import Deflated as Deflated
    from landscape.curvature.operators import HessianOperator as HessianOperator
    from landscape.curvature.operators import LinearOperator as LinearOperator
    from landscape.curvature.operators import MatrixOperator as MatrixOperator
    from landscape.curvature.planes import PathPlane as PathPlane
    from landscape.curvature.planes import pca_plane as pca_plane
    from landscape.curvature.planes import random_plane as random_plane
    from landscape.curvature.preconditioned import Preconditioned as Preconditioned
    from landscape.curvature.settle import SettledPoint as SettledPoint
    from landscape.curvature.settle import descend as descend
    from landscape.curvature.slices import slice_lines as slice_lines
    from landscape.curvature.slices import slice_plane as slice_plane
    from landscape.curvature.solve import Solution as Solution
    from landscape.curvature.solve import solve as solve
    from landscape.curvature.spectral_sums import effective_dimension as effective_dimension
    from landscape.curvature.spectral_sums import frobenius_norm as frobenius_norm
    from landscape.curvature.spectral_sums import log_determinant as log_determinant
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
    from landscape.measure.settle import settle as settle
    from landscape.measure.slices import slice as slice  # noqa: A004
    from landscape.models import network as network
    from landscape.models.embedding_mlp.gauge import GaugeTangent as GaugeTangent
    from landscape.models.embedding_mlp.gauge import SoftmaxShift as SoftmaxShift
    from landscape.models.module import ModuleProblem as ModuleProblem
    from landscape.report.page import write_report as write_report
    from landscape.results import Estimate as Estimate
    from landscape.training.ensemble import ensemble as ensemble
    from landscape.training.loop import train as train
    from landscape.training.loop import train_ensemble as train_ensemble
    from landscape.training.monitor import Monitor as Monitor
    from landscape.training.preconditioner import preconditioner as preconditioner
    from landscape.training.preconditioner import run_preconditioner as run_preconditioner
    from landscape.training.recorder import Recorder as Recorder

# Looked up on first use, so that `landscape --help` does not import torch.
_NAMES = {
    "config": "TrainConfig HessianConfig preset",
    "training.loop": "train train_ensemble",
    "training.ensemble": "ensemble",
    "training.monitor": "Monitor",
    "training.recorder": "Recorder",
    "training.preconditioner": "preconditioner run_preconditioner",
    "measure.hessian": "hessian",
    "measure.critical": "critical",
    "measure.settle": "settle",
    "measure.geometry": "geometry",
    "measure.slices": "slice",
    "jobs.plan": "SweepConfig load_sweep sweep_runs",
    "jobs.run": "sweep",
    "report.page": "write_report",
    "files.views": "open File",
    "curvature.objective": "Objective",
    "curvature.modules": "gathered",
    "curvature.losses": "cross_entropy mse",
    "curvature.operators": "LinearOperator HessianOperator MatrixOperator Deflated",
    "curvature.preconditioned": "Preconditioned",
    "curvature.fisher": "FisherOperator",
    "curvature.influence": "influence Influence",
    "curvature.activations": "of_activations",
    "curvature.solve": "solve Solution",
    "curvature.kfac": "kfac_distance KroneckerDistances",
    "curvature.interop": "to_curvlinops from_curvlinops from_scipy",
    "curvature.eigsh": "eigsh EigenResult track",
    "curvature.density": "spectral_density SpectralDensity",
    "curvature.heterogeneity": "block_densities BlockDensities",
    "curvature.inertia": "saddle_index Inertia",
    "curvature.curve": "index_curve IndexCurve",
    "curvature.coupling": "coupling CouplingResult excess_index Excess",
    "models.embedding_mlp.gauge": "GaugeTangent SoftmaxShift",
    "models.module": "ModuleProblem",
    "models": "network",
    "curvature.critical": "find_critical_point CriticalPoint",
    "curvature.settle": "descend SettledPoint",
    "curvature.trace": "trace Trace",
    "curvature.diagonal": "diagonal Diagonal",
    "curvature.spectral_sums": "frobenius_norm log_determinant effective_dimension",
    "curvature.slices": "slice_lines slice_plane",
    "curvature.planes": "random_plane pca_plane PathPlane",
    "results": "Estimate",
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
