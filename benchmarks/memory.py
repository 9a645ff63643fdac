"""Peak memory of one checkpoint of preset paper: spectrum, density and index of every block, matrix-free."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import torch

from benchmarks.harness import Line, Numbers, Part, apart, main, peak_memory, timed
from benchmarks.peers import trained
from landscape import HessianConfig, preset, problems
from landscape.analysis.checkpoint import Checkpoint
from landscape.analysis.measurement import Measurement
from landscape.problems.problem import Arrays

LIMIT, MAX_PRODUCTS = 2e9, 500
"""Bytes above the imports; products per search, enough to fill the longest basis."""


def checkpoint(name: str) -> Numbers:
    """The peak of a separate process, before and after."""
    trained(preset(name), [0]).close()
    return apart(_checkpoint, name)


def _checkpoint(name: str) -> Numbers:
    torch.set_num_threads(1)
    train = preset(name)
    config = HessianConfig(method="lanczos", max_hvps=MAX_PRODUCTS, device="cpu")
    with trained(train, [0]) as reader:
        before = peak_memory()
        measurement = Measurement(problems.of_run(reader, config.device), config)
        seconds, _ = timed(functools.partial(_blocks, measurement, reader.checkpoint(0)))
    return {
        "preset": name,
        "blocks": list(measurement.config.blocks),
        "max_products": MAX_PRODUCTS,
        "seconds": seconds,
        "before": before,
        "peak": peak_memory(),
    }


def _blocks(measurement: Measurement, arrays: Arrays) -> None:
    at = Checkpoint(measurement.problem, measurement.config, arrays)
    for block in measurement.config.blocks:
        measurement._block(at, block)


def parts() -> list[Part]:
    return [Part(name, functools.partial(checkpoint, name), slow=True) for name in ("quick", "paper")]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 10."""
    for part, numbers in found.items():
        above = numbers["peak"] - numbers["before"]
        what = f"peak memory of one checkpoint, {numbers['preset']}, {' '.join(numbers['blocks'])} by Lanczos"
        told = f"{above / 1e9:.2f} GB ({numbers['max_products']} products a search, {numbers['seconds']:.3g} s)"
        is_target = numbers["preset"] == "paper"
        target = f"≤ {LIMIT / 1e9:g} GB above the imports" if is_target else "–"
        yield Line("10", what, target, told, above <= LIMIT if is_target else None, part)


if __name__ == "__main__":
    sys.exit(main("memory", parts()))
