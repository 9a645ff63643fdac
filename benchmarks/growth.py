"""Growth of time and memory with p, d, h, N, checkpoints and eigenvalues, beside counts."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Line, Numbers, Part, alternate, apart, main, peak_memory, timed
from benchmarks.peers import case, trained
from landscape import HessianConfig, TrainConfig, eigsh, models, preset
from landscape.measure.measurement import Measurement

AXES: dict[str, tuple[str, Sequence[Any]]] = {
    "p": ("p", (31, 59, 97, 139)),
    "d": ("embed_dim", (64, 256, 1024, 4096)),
    "h": ("hidden", (128, 256, 512, 1024)),
    "N": ("train_fraction", (0.1, 0.2, 0.4, 0.8)),
}
CHECKPOINTS, EIGENVALUES = (1, 2, 4), (2, 5, 10, 20, 40)
SMALLEST = 64
"""Vectors of the smallest basis, that of a search for k = 2."""


def config(axis: str, value: Any) -> TrainConfig:
    """Preset mid with one size changed; the test set makes room for N."""
    return dataclasses.replace(preset("mid"), test_fraction=0.1, batch_size="full", **{AXES[axis][0]: value})


def product(axis: str) -> Numbers:
    """Seconds and counted FLOPs of one product."""
    cases = [case(config(axis, value)) for value in AXES[axis][1]]
    works: dict[str, Callable[[], Any]] = {}
    for i, at in enumerate(cases):
        works[str(i)] = functools.partial(at.landscape().__matmul__, at.probe()[:, 0])
    seconds = alternate(works, 7)
    x = [at.shape.N if axis == "N" else value for at, value in zip(cases, AXES[axis][1], strict=True)]
    counted = [at.shape.flops() for at in cases]
    return series("one product", axis, "s", x, [s["median"] for s in seconds.values()], counted)


def memory(axis: str) -> Numbers:
    """Peak bytes above the imports, with E, W, V, biases in one search; counted: its basis and that under H."""
    values = AXES[axis][1][:3]
    cases = [case(config(axis, value)) for value in values]
    peaks = [apart(_search_memory, config(axis, value), 2) for value in values]
    x = [at.shape.N if axis == "N" else value for at, value in zip(cases, values, strict=True)]
    counted = [8 * (2 * SMALLEST * at.size() + 2 * at.shape.N * (at.shape.h + at.shape.C)) for at in cases]
    return series("memory of one search", axis, "B", x, peaks, counted)


def memory_of_eigenvalues() -> Numbers:
    """Peak bytes of a search for k at both ends; counted: a basis of 6 max(k, min(4 k, 10)) + 16, and that under H."""
    peaks = [apart(_search_memory, preset("mid"), k) for k in EIGENVALUES]
    counted = [6 * max(k, min(4 * k, 10)) + 16 for k in EIGENVALUES]
    return series("memory of one search, mid", "k", "B", EIGENVALUES, peaks, counted)


def memory_of_checkpoints() -> Numbers:
    """Peak bytes of an analysis; counted: the same for any number of checkpoints."""
    peaks = [apart(_analysis_memory, count) for count in CHECKPOINTS]
    return series("memory of an analysis, quick", "checkpoints", "B", CHECKPOINTS, peaks, [1] * len(peaks))


def _search_memory(of: TrainConfig, k: int) -> int:
    torch.set_num_threads(1)
    at = case(of)
    before = peak_memory()
    eigsh(at.landscape(), k, method="lanczos", max_hvps=6 * k + SMALLEST)
    return peak_memory() - before


def _analysis_memory(count: int) -> int:
    torch.set_num_threads(1)
    before = peak_memory()
    analyse(count)
    return peak_memory() - before


def eigenvalues() -> Numbers:
    """Seconds of the k highest eigenvalues of W in preset quick; counted: k."""
    H = case(preset("quick"), 150).landscape(("W",))
    found = [timed(lambda k=k: eigsh(H, k, "highest", "lanczos")) for k in EIGENVALUES]
    return series("k highest of W, quick", "k", "s", EIGENVALUES, [s for s, _ in found], EIGENVALUES)


def checkpoints() -> Numbers:
    """Seconds of an analysis of preset quick, E and W dense; counted: checkpoints."""
    seconds = [timed(functools.partial(analyse, count))[0] for count in CHECKPOINTS]
    return series("analysis of E and W, quick", "checkpoints", "s", CHECKPOINTS, seconds, CHECKPOINTS)


def analyse(count: int) -> None:
    """E and W of the first checkpoints of preset quick, dense."""
    train, settings = preset("quick"), HessianConfig(blocks=("E", "W"), device="cpu")
    with trained(train, [10 * i for i in range(1, max(CHECKPOINTS) + 1)]) as reader:
        problem = models.of_run(reader, settings.device)
        measurement = Measurement(problem, settings)
        for step in reader.steps[:count]:
            measurement.run(reader.checkpoint(step), problem.training(reader, step))


def series(
    what: str, axis: str, unit: str, x: Sequence[float], y: Sequence[float], counted: Sequence[float]
) -> Numbers:
    """Points, and the slopes of both in log-log."""
    slope, expected = (float(np.polyfit(np.log(x), np.log(v), 1)[0]) for v in (y, counted))
    return {
        "what": what,
        "axis": axis,
        "unit": unit,
        "x": list(x),
        "y": list(y),
        "counted": list(counted),
        "slope": slope,
        "expected": expected,
    }


def parts() -> list[Part]:
    found = [Part(f"product against {axis}", functools.partial(product, axis)) for axis in AXES]
    found += [Part(f"memory against {axis}", functools.partial(memory, axis), slow=True) for axis in AXES]
    found += [Part("time against eigenvalues", eigenvalues)]
    found += [Part("time against checkpoints", checkpoints, slow=True)]
    found += [Part("memory against eigenvalues", memory_of_eigenvalues, slow=True)]
    return [*found, Part("memory against checkpoints", memory_of_checkpoints, slow=True)]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Exponents, without a target."""
    for part, numbers in found.items():
        ends = f"{numbers['axis']} = {numbers['x'][0]:,} to {numbers['x'][-1]:,}"
        told = f"{numbers['slope']:.2f} ({numbers['y'][0]:.3g} to {numbers['y'][-1]:.3g} {numbers['unit']})"
        yield Line("growth", f"{numbers['what']}, {ends}", f"{numbers['expected']:.2f}", told, None, part)


if __name__ == "__main__":
    sys.exit(main("growth", parts()))
