"""One checkpoint by kind of work, beside what its matrix products and LAPACK take alone."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.linalg
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.commands import LARGE, STEPS
from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.peers import trained
from benchmarks.profiles import GEMMS
from landscape import HessianConfig, TrainConfig, analyse, preset
from landscape.curvature import coupling, inertia, lanczos, search
from landscape.curvature.krylov import Krylov
from landscape.curvature.operators import HessianOperator, MatrixOperator
from landscape.curvature.pencil import _Basis
from landscape.curvature.solve import ConjugateGradients
from landscape.measure import checkpoint
from landscape.models.embedding_mlp.dense import EmbeddingMLP
from landscape.models.embedding_mlp.products import Passes

CHECKS, REST = "starts and checks", "files, Python and the rest"
PURPOSES: tuple[tuple[Any, str, str], ...] = (
    (checkpoint, "eigsh", "the ends' search"),
    (checkpoint, "shifted_ends", "the ends' search"),
    (search, "search_complement", "the search of the complement"),
    (checkpoint, "quadrature", "densities"),
    (checkpoint, "coupling", "coupling ratios"),
    (coupling, "spectral_norm", "the coupling strength"),
    (inertia, "index_bounds", "bounds of the index"),
    (lanczos, "eigsh", "the sharpness"),
)
"""Functions that multiply, where they are called from, and what for."""
ASSEMBLY, DENSE, AUTOGRAD = "assembly of dense blocks", "products with dense blocks", "automatic differentiation"
BASES, CG = "orthogonalisation and Ritz pairs", "vectors of conjugate gradients"
FACTORISATIONS, SOLVES, EIGENVALUES = (
    "L D Lᵀ and Cholesky",
    "solves with factors",
    "dense eigenvalue problems, SVD and QR",
)
LAPACK = {FACTORISATIONS, SOLVES, EIGENVALUES}
KINDS: dict[str, tuple[tuple[Any, tuple[str, ...]], ...]] = {
    ASSEMBLY: ((EmbeddingMLP, ("hessian",)),),
    DENSE: ((MatrixOperator, ("__matmul__",)),),
    AUTOGRAD: ((HessianOperator, ("__matmul__",)),),
    BASES: (
        (Krylov, ("lead", "fill", "take", "project", "vectors", "residual_vectors", "restart")),
        (_Basis, ("grow",)),
    ),
    CG: ((ConjugateGradients, ("solve",)),),
    FACTORISATIONS: ((torch.linalg, ("ldl_factor_ex", "cholesky_ex", "cholesky")),),
    SOLVES: ((torch.linalg, ("solve_triangular", "ldl_solve")),),
    EIGENVALUES: (
        (torch.linalg, ("eigvalsh", "eigh", "svdvals", "svd", "qr")),
        (np.linalg, ("eigvalsh", "eigh", "svd")),
        (scipy.linalg, ("eigh_tridiagonal",)),
        (scipy.linalg.lapack, ("dsytrd", "dsterf", "dormqr")),
    ),
}
"""Functions by kind of work; what one takes inside of another is the inner one's."""


class Watch:
    """CPU seconds and calls by kind of work while it is a context; of products the columns, and seconds by shape."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.shapes: dict[str, Counter[tuple[Any, ...]]] = {}
        self.examples: dict[tuple[Any, ...], Callable[[], Any]] = {}
        self._kinds, self._purposes, self._since = [REST], [CHECKS], 0.0
        self._patches = [patch.object(at, name, self._for(purpose, at, name)) for at, name, purpose in PURPOSES]
        for kind, places in KINDS.items():
            self._patches += [
                patch.object(at, n, self._as(kind, getattr(at, n))) for at, names in places for n in names
            ]
        self._patches.append(patch.object(Passes, "product", self._product))
        self._multiply = Passes.product

    def __enter__(self) -> Watch:
        for each in self._patches:
            each.start()
        self._since = time.process_time()
        return self

    def __exit__(self, *failure: object) -> None:
        self._turn()
        for each in self._patches:
            each.stop()

    def _turn(self) -> None:
        """Credit the time since the last turn to the innermost kind."""
        now = time.process_time()
        self.seconds[self._kinds[-1]] += now - self._since
        self._since = now

    def _during(self, kind: str, count: int, work: Callable[[], Any]) -> Any:
        self._turn()
        self._kinds.append(kind)
        self.counts[kind] += count
        try:
            return work()
        finally:
            self._turn()
            self._kinds.pop()

    def _as(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **k: self._during(kind, 1, functools.partial(function, *a, **k))

    def _for(self, purpose: str, at: Any, name: str) -> Callable[..., Any]:
        function = getattr(at, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self._purposes.append(purpose)
            try:
                return function(*arguments, **options)
            finally:
                self._purposes.pop()

        return watched

    @property
    def _product(self) -> Callable[..., Any]:
        def product(passes: Passes, v: Mapping[str, Any], rows: Any, m: int) -> Any:
            kind, work = f"products: {self._purposes[-1]}", functools.partial(self._multiply, passes, v, rows, m)
            shape, before = (*v, "to", *rows, m), self.seconds[kind]
            self.examples[shape] = work
            found = self._during(kind, m, work)
            self.shapes.setdefault(kind, Counter())[shape] += self.seconds[kind] - before
            return found

        return product


def gemm_share(work: Callable[[], Any]) -> float:
    """Share of matrix products in the time of some profiled calls."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        seconds, _ = timed(lambda: [work() for _ in range(CALLS)])
    found = (e for e in watched.key_averages() if e.key.removeprefix("aten::").rstrip("_") in GEMMS)
    return sum(e.self_cpu_time_total for e in found) / 1e6 / seconds


CALLS = 5


def by_kind(train: TrainConfig, steps: tuple[int, ...], step: int, config: HessianConfig) -> Numbers:
    """CPU seconds of `landscape hessian` of one checkpoint, and seconds and counts of each kind of work.

    gemms: what the matrix products in the products take, by their share in the products of each shape.
    """
    with trained(train, steps) as reader, tempfile.TemporaryDirectory() as folder, Watch() as watch:
        analyse(reader.path, config, Path(folder) / "hessian.h5", quiet=True)
    shares = {shape: gemm_share(work) for shape, work in watch.examples.items()}
    kinds = {kind: {"seconds": s, "count": watch.counts[kind]} for kind, s in watch.seconds.most_common()}
    for kind, shapes in watch.shapes.items():
        kinds[kind]["gemms"] = sum(shares[shape] * seconds for shape, seconds in shapes.items())
    return {"step": step, "seconds": watch.seconds.total(), "kinds": kinds}


def parts() -> list[Part]:
    """One part for each part of `commands` that measures checkpoints, under its name."""
    blocks = tuple(LARGE.split()[3:])
    works: dict[str, tuple[str, tuple[int, ...], HessianConfig]] = {
        "hessian": ("quick", STEPS, HessianConfig(steps="1500")),
        "hessian full": ("quick", STEPS, HessianConfig(steps="1500", spectra="full")),
        "hessian mid": ("mid", (150,), HessianConfig(steps="150")),
        "hessian paper": ("paper", (150,), HessianConfig(steps="150", k=4, blocks=blocks)),
    }
    return [
        Part(name, functools.partial(by_kind, preset(run), steps, int(config.steps), config), slow=True)
        for name, (run, steps, config) in works.items()
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """No lines: a profile has no target."""
    yield from ()


def limit(found: Mapping[str, Numbers], part: str) -> str:
    """What the limit of a checkpoint is, and how far it is: a line below a row of `commands`."""
    numbers = found[part]
    seconds, largest = numbers["seconds"], list(numbers["kinds"].items())[:SHOWN]
    told = "; ".join(f"{kind} {_seconds(work)}" for kind, work in largest)
    return (
        f"limit, on one thread at step {numbers['step']:,}: {told}. LAPACK and the matrix products in "
        f"Hessian-vector products take {_alone(numbers):.3g} of the {seconds:.3g} CPU seconds of a checkpoint"
    )


SHOWN = 4
"""Kinds of work that `limit` names."""


def _alone(numbers: Numbers) -> float:
    """Seconds of the GEMMs in products, and of LAPACK."""
    found = numbers["kinds"].items()
    return float(sum(work["seconds"] if kind in LAPACK else work.get("gemms", 0.0) for kind, work in found))


def _seconds(work: Numbers) -> str:
    gemms = f", GEMMs {work['gemms'] / work['seconds']:.0%}" if work.get("gemms") else ""
    return f"{work['seconds']:.3g} s ({work['count']:,}{gemms})" if work["count"] else f"{work['seconds']:.3g} s"


def section(found: Mapping[str, Numbers]) -> str:
    """A table of all kinds of work; empty without results."""
    if not found:
        return ""
    kinds = dict.fromkeys(kind for numbers in found.values() for kind in numbers["kinds"])
    rows = [f"| CPU seconds | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|"]
    for kind in kinds:
        cells = (numbers["kinds"].get(kind) for numbers in found.values())
        rows.append(f"| {kind} | {' | '.join(_seconds(work) if work else '' for work in cells)} |")
    told = "{:.3g}, of which {:.3g} are these GEMMs and LAPACK"
    totals = (told.format(numbers["seconds"], _alone(numbers)) for numbers in found.values())
    rows.append(f"| in all | {' | '.join(totals)} |")
    return "\n\n".join([ABOUT, "\n".join(rows)])


ABOUT = (
    "One checkpoint by kind of work, on one thread; in brackets products or calls, and of Hessian-vector products the "
    "share of the time that their matrix products take alone (GEMMs)."
)


if __name__ == "__main__":
    sys.exit(main("checkpoints", parts()))
