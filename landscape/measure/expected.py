"""What an analysis will take, and how far it is."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Collection, Sequence

import torch

from landscape.devices import one_thread
from landscape.measure.measurement import Measurement
from landscape.models.blocks import Block
from landscape.progress import Bar, duration

_ORDER = 384
"""Order of the matrix that the speed of this machine is taken from: a hundredth of a second."""
_WORTH_SAYING = 5.0


class Blocks(contextlib.AbstractContextManager["Blocks"]):
    """A bar that moves by the expected work of each block, and before the work a line that says how long it takes.

    todo: the blocks of each checkpoint.
    """

    def __init__(
        self, measurement: Measurement, todo: Sequence[Collection[str]], processes: int = 0, quiet: bool = False
    ) -> None:
        wanted = set().union(*todo)
        self._seconds = {b.name: _seconds(measurement, b) for b in measurement.blocks if b.name in wanted}
        self._done, self._count = 0, sum(map(len, todo))
        if is_known := None not in self._seconds.values():
            # Whole milliseconds, whose sum in any order is the total: one past it would be a warning of tqdm.
            shares = {block: 1 + round(1e3 * (seconds or 0.0)) for block, seconds in self._seconds.items()}
        else:
            # A search takes as many products as it needs.
            shares = dict.fromkeys(self._seconds, 1)
        self._shares = shares
        total = sum(shares[block] for blocks in todo for block in blocks)
        seconds = total / 1e3 / max(1, processes) if is_known else None
        if not quiet and (not is_known or total >= 1e3 * _WORTH_SAYING):
            self._announce(len(todo), seconds, measurement.config.max_hvps)
        form = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
        self._bar = Bar(total, "block", quiet, seconds=seconds, bar_format=form)

    def _announce(self, checkpoints: int, seconds: float | None, most: int) -> None:
        needed = f"up to {most:,} products for each large one" if seconds is None else f"roughly {duration(seconds)}"
        print(f"blocks: {self._count}, checkpoints: {checkpoints}, {needed}", file=sys.stderr)

    def show(self, block: str, done: bool, step: int | None = None) -> None:
        """Show the block being measured, and count it when it is done."""
        if done:
            self._done += 1
            self._bar.set_postfix(done=f"{self._done}/{self._count}", refresh=False)
            self._bar.update(self._shares[block])
        at = {} if step is None else {"step": step}
        what = {"then": "pairs"} if self._done == self._count else {"block": block}
        self._bar.set_postfix(**at, **what, done=f"{self._done}/{self._count}")

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _seconds(measurement: Measurement, block: Block) -> float | None:
    """Roughly the seconds that a dense block takes on one core that is idle; None for others.

    Fitted to networks of 3,000 and 6,900 parameters: its eigenvalues, or the factors that stand for them, and the
    assembly of its matrix.
    """
    order = measurement.order(block)
    if not measurement.config.is_dense(order):
        return None
    size = order / _ORDER
    cubes = 0.7 if measurement.config.is_full(order) else 0.25
    return _unit() * (cubes * size**3 + 4 * size**2)


@functools.cache
def _unit() -> float:
    """The seconds of the eigenvalues of a small matrix here; the least of three, of which the first starts LAPACK."""
    matrix = torch.linspace(-1, 1, _ORDER**2, dtype=torch.float64).reshape(_ORDER, _ORDER)
    taken = []
    # CPU time of one thread: where others keep the cores busy, threads that wait for each other take a hundred times
    # as long.
    with one_thread():
        for _ in range(3):
            started = time.thread_time()
            torch.linalg.eigvalsh(matrix + matrix.T)
            taken.append(time.thread_time() - started)
    return min(taken)
