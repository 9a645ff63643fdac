"""The figures of a report: functions of tidy frames, each of which draws one figure or, without its data, none."""

from __future__ import annotations

from collections.abc import Callable

from landscape.report.figures import curvature, embedding, overview, training
from landscape.report.figures.panels import Drawn
from landscape.report.sources import Frames

FIGURES: tuple[Callable[[Frames], Drawn | None], ...] = (
    overview.overview,
    training.training_curves,
    training.recorded_metrics,
    curvature.extreme_eigenvalues,
    curvature.saddle_index,
    curvature.index_curves,
    curvature.coupling_ratios,
    curvature.sharpness,
    curvature.tracking,
    curvature.spectra,
    curvature.densities,
    curvature.ratios,
    training.prop41_ratio,
    training.embedding_norms,
    embedding.fourier_shares,
    embedding.embedding_circles,
    embedding.geometry_progress,
)
"""In the order of a report; a new figure is one more function here, with a caption in templates/captions.j2."""
