"""Descriptors of files that one process writes."""

from __future__ import annotations

import os
import weakref


class Handle:
    """An open descriptor, which children made by fork lose: their copies would keep its locks when this process ends.

    number: -1 once it is closed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        _open.add(self)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.number >= 0:
            number, self.number = self.number, -1
            os.close(number)


_open: weakref.WeakSet[Handle] = weakref.WeakSet()


def _lose_all() -> None:
    for handle in list(_open):
        handle.close()


os.register_at_fork(after_in_child=_lose_all)
