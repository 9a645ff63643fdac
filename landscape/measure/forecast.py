"""How long an analysis will take, in how much memory, and its progress in units of time."""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

import torch

from landscape.curvature.inertia import ShiftedLDL
from landscape.curvature.krylov import num_vectors
from landscape.curvature.settle import STEPS
from landscape.curvature.storage import SHARE
from landscape.curvature.vectors import gaussian
from landscape.devices import LIBRARIES, dense_bytes, free_memory
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measurement import SETTLING, Measurement, Point
from landscape.models.blocks import Block
from landscape.progress import Bar

_ORDER = 1536
"""Order of the matrix whose factorisation is timed."""
_CURVE = 10
"""Factorisations, with the check of their counts, that an index curve takes."""
_OPEN = 6
"""Factorisations of a structured block that its index curve takes beyond the two of its index."""
_EVERY = 1.0
"""Seconds between two movements of a bar."""


def forecast(what: Measurement, point: Point) -> dict[str, float]:
    """Seconds that each block takes at one point: three timed products and a factorisation, times known counts.

    Pairs are counted with their joint block, what belongs to no block with the last one.
    """
    with what.threads():
        at = Checkpoint(what, point)
        matrix = gaussian(_ORDER, _ORDER).to(at.problem.device)
        unit = _seconds(lambda: ShiftedLDL(matrix + matrix.T, 1.0)) / _ORDER**3
        seconds = {block.name: _of_block(at, block, unit) for block in what.blocks}
        if what.settles:
            # Its steps take a gradient and a value each.
            one = _seconds(lambda: (at.objective.gradient(at.params), at.objective.value(at.params)))
            seconds = {SETTLING: STEPS * one, **seconds}
        if at.training:
            whole = gaussian(at.hessian.shape[0], 1).to(at.problem.device, at.hessian.dtype)
            seconds[what.blocks[-1].name] += 2 * 60 * _seconds(lambda: at.hessian @ whole)
    return seconds


def memory(what: Measurement, workers: int) -> int:
    """Bytes that this process and its workers take at most: those so far, and those of the largest block."""
    device, free = what.problem.device, free_memory(what.problem.device)
    if device.type == "cuda":
        taken = torch.cuda.max_memory_allocated(device)
    else:
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    def of_block(block: Block) -> int:
        if what.is_dense(block):
            # The libraries are loaded by now.
            return dense_bytes(what.order(block)) - LIBRARIES
        size = block.size * (4 if what.config.dtype == "float32" else 8)
        # What is more lies in a file.
        vectors = min(num_vectors(block.size, what.config.k) * size, int(SHARE * free))
        return vectors + what.factor(block)[1]

    return (1 + workers) * taken + max(1, workers) * max(map(of_block, what.blocks))


def _of_block(at: Checkpoint, block: Block, unit: float) -> float:
    """Seconds of a block; unit: those of a factorisation over the cube of its order."""
    what, config, n = at.what, at.config, block.size
    op, probe = at.restricted(at.hessian, block), gaussian(block.size, 1).to(at.problem.device, at.hessian.dtype)
    product = _seconds(lambda: op @ probe)
    if config.only:
        return 40 * product
    probes = config.probes * min(config.probe_steps, n) * product
    if not what.is_dense(block):
        certified = 600 * product if config.certify else 0.0
        # Panels are several times as fast as a factorisation with pivots.
        certified += (2 + _OPEN * config.curve) * 0.2 * unit * what.factor(block)[0] ** 3
        return 140 * product + certified + (probes if config.certify or config.curve or config.density else 0.0)
    # A closed form takes as long as one product for ten rows.
    assembled = (0.1 if what.is_cut(block) else 1.0) * n * product
    factor = unit * n**3
    ends = 15 * factor if what.is_full(block) else (240 + 0.065 * n) * product
    counted = 0.0 if what.is_full(block) else 1.5 * factor
    pair = 2.5 * factor if any(pair.name == block.name for pair in what.pairs) else 0.0
    if config.certify:
        ends, counted, pair = ends + factor, 2 * factor, 2 * pair
    if config.curve and not what.is_full(block):
        counted += _CURVE * factor
    return assembled + ends + counted + pair + (probes if config.density and not what.is_full(block) else 0.0)


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of three times."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def in_words(seconds: float) -> str:
    """A time to about two digits."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Blocks(Bar):
    """A bar of blocks, each at so many steps, that moves with the clock as far as the running ones may be.

    seconds: what each block is expected to take, alike without; processes: how many run at once.
    """

    def __init__(
        self,
        what: Measurement,
        steps: int,
        quiet: bool = False,
        seconds: Mapping[str, float] | None = None,
        processes: int = 1,
    ) -> None:
        self._share = dict.fromkeys(what.stages, 1.0) if seconds is None else dict(seconds)
        self._processes, self._count = processes, steps * len(what.stages)
        self._done, self._running, self._finished = 0.0, Counter[str](), 0
        self.n: float
        self._ended = threading.Event()
        form = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
        super().__init__(steps * sum(self._share.values()), "s", quiet, bar_format=form)
        self._clock = threading.Thread(target=self._tick, daemon=True)
        if not quiet:
            self._clock.start()

    def show(self, block: str, done: float, step: int | None = None) -> None:
        """Show the block being measured, and count it when it is done: 1 (cf. `measure.Progress`)."""
        where = {} if step is None else {"step": step}
        if 0 < done < 1:
            self.set_postfix(**where, block=block, factor=f"{done:.0%}", done=f"{self._finished}/{self._count}")
            return
        self._running[block] += -1 if done else 1
        if done:
            self._finished += 1
            # Sums of shares differ from their product with the number of steps by rounding.
            done = self.total if self._finished == self._count else self._done + self._share[block]
            self._done = min(done, self.total)
            self.n = max(self.n, self._done)
        self.set_postfix(**where, block=block, done=f"{self._finished}/{self._count}")

    def close(self) -> None:
        """Stop the clock and show the last state."""
        self._ended.set()
        super().close()

    def _tick(self) -> None:
        while not self._ended.wait(_EVERY):
            # No further than nine tenths of what is running, whatever was expected.
            most = self._done + 0.9 * sum(self._share[block] * count for block, count in self._running.items())
            self.n = min(max(self.n, most), self.n + self._processes * _EVERY)
            self.refresh()
