"""How far an analysis is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from landscape.measure.measurement import Measurement
from landscape.progress import Bar


class Blocks(Bar):
    """A bar of blocks that moves by the work each takes: of dense ones the cube of the order.

    todo: the names of the blocks of each checkpoint.
    """

    def __init__(self, what: Measurement, todo: Sequence[Collection[str]], quiet: bool = False) -> None:
        # A matrix-free search takes as many products as it needs.
        orders = {block.name: what.order(block) if what.is_dense else 1 for block in what.blocks}
        largest = max(orders.values())
        # Whole numbers, whose sum in any order is the total: one past it would be a warning of tqdm.
        self._work = {name: 1 + round(1e3 * (order / largest) ** 3) for name, order in orders.items()}
        self._finished, self._count = 0, sum(map(len, todo))
        total = sum(self._work[name] for names in todo for name in names)
        super().__init__(total, "block", quiet, bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}")

    def show(self, block: str, is_done: bool, step: int | None = None) -> None:
        """Show the block being measured, and count it when it is done."""
        if is_done:
            self._finished += 1
            self.update(self._work[block])
        at = {} if step is None else {"step": step}
        now = {"then": "pairs"} if self._finished == self._count else {"block": block}
        self.set_postfix(**at, **now, done=f"{self._finished}/{self._count}")
