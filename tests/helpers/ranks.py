"""The ranks of one command as forks of a process that has imported everything, started as torchrun starts them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers.apart import SERVER
from torch.distributed import TCPStore


class Crew:
    """Processes that work together, and what they have said; codes: how they ended."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.codes = folder, size, list[int]()
        self.processes: list[Any] = []

    def join(self) -> None:
        """Wait for all; what is stopped ends with the others."""
        for process in self.processes:
            process.join()
        self.codes = [process.exitcode for process in self.processes]

    def said(self, stream: str = "err") -> str:
        return "".join((self.folder / f"{rank}.{stream}").read_text() for rank in range(self.size))


@contextlib.contextmanager
def started(
    folder: Path, size: int, work: Callable[..., None], *what: Any, env: Mapping[int, Mapping[str, str]] | None = None
) -> Iterator[Crew]:
    """`work(*what)` in `size` processes; env: what more the environment of a rank holds."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    crew = Crew(folder, size)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    for rank in range(size):
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **(env or {}).get(rank, {})}
        crew.processes.append(SERVER.Process(target=_enter, args=(folder, rank, own, work, what)))
        crew.processes[-1].start()
    try:
        yield crew
    finally:
        for process in crew.processes:
            if process.is_alive():
                process.kill()
            process.join()


def _enter(folder: Path, rank: int, env: Mapping[str, str], work: Callable[..., None], what: tuple[Any, ...]) -> None:
    os.environ.update(env)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        setattr(sys, f"std{name}", open(number, "w", closefd=False))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    work(*what)


def command(folder: Path, argv: list[str]) -> None:
    """`landscape` in a folder, as a new interpreter would call it."""
    os.chdir(folder)
    sys.argv = ["landscape", *argv]
    import_module("landscape.__main__").main()
