"""Search the critical point nearest to a checkpoint and measure the Hessian there: `landscape critical`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from landscape.config import AnalysisConfig
from landscape.curvature.critical import SearchState, find_critical_point
from landscape.curvature.objective import differentiable
from landscape.curvature.operators import FunctionOperator, LinearOperator
from landscape.curvature.vectors import norm
from landscape.errors import ConfigError
from landscape.files.files import as_path, critical_file
from landscape.files.views import File
from landscape.measure.fields import STATUS, critical_table, search_table
from landscape.measure.search import Search, Start, as_arrays, searched
from landscape.models.problem import hessian
from landscape.progress import Bar

ENDS = str(STATUS["flag_meanings"]).split()


@differentiable
def critical(
    run: Path | str,
    step: int,
    config: AnalysisConfig,
    out: Path | str | None = None,
    tol: float = 1e-10,
    max_products: int = 60_000,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> File:
    """Search the critical point of the objective nearest to a checkpoint, and measure the Hessian there.

    The file is a Hessian file of one step; its group `critical_point` has the refined parameters, their gradient norm
    and the status, and `resume` the state of the search after its last step, from which `resume` continues it bit for
    bit on as many threads, also after Ctrl-C or a kill.

    Args:
        run: the run file.
        step: stored step to start from.
        config: what is measured at the point and how.
        out: by default RUN.critical-STEP.h5 beside the run.
        tol: distance to the critical point in units of |theta| up to which a point is critical.
        max_products: most Hessian-vector products of the search.
        resume: continue a search of these settings, also one that used up its products.
        overwrite: replace a file of another search or other settings, which is an error otherwise.
        quiet: without a progress bar.

    Returns:
        The finished file.

    Raises:
        LandscapeError: for what cannot be searched, measured or written.
    """
    run = as_path(run)
    out = as_path(out or critical_file(run, step))
    if not 0 < tol < 1:
        raise ConfigError(f"tol is {tol}", "--search-tol takes a number between 0 and 1")
    carry_out = functools.partial(_carried_out, tol=tol, most=max_products)
    search = Search(critical_table, search_table, SearchState, carry_out)
    return searched(search, run, step, config, out, resume, overwrite, quiet)


def _carried_out(
    start: Start,
    state: SearchState | None,
    save: Callable[[SearchState], None],
    quiet: bool,
    tol: float,
    most: int,
) -> dict[str, Any]:
    """The critical point and how the search for it went."""
    decay, params = start.problem.decay(start.config.objective), start.params
    objective = start.problem.objective(decay)
    # Most searches end long before their products are used up, so that the time until then says nothing.
    with Bar(None, "product", quiet) as bar:

        def counted(at: Mapping[str, Tensor]) -> LinearOperator:
            op = hessian(start.problem, at, decay)

            def apply(vectors: Tensor) -> Tensor:
                # A step of the search takes up to a thousand products.
                bar.update()
                return op @ vectors

            return FunctionOperator(apply, op.shape, op)

        def progress(grad_norm: float, products: int) -> bool:
            bar.set_postfix(grad_norm=f"{grad_norm:.2e}", refresh=False)
            bar.n = products
            return False

        point = find_critical_point(objective, params, tol, most, progress, counted, state, save)
    return {
        **as_arrays(point.params),
        "status": ENDS.index(point.status),
        "grad_norm": point.grad_norm,
        "start_grad_norm": norm(objective.gradient(params)),
        "loss": objective.value(point.params),
        "start_loss": objective.value(params),
        "remaining": point.remaining,
        "flatness": point.flatness,
        "distance": norm({n: p - params[n] for n, p in point.params.items()}),
        "num_products": point.num_products,
    }
