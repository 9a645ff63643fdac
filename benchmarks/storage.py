"""Cost of the run file: checkpoints against numpy.tofile, reads against numpy.fromfile, and --fsync."""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.harness import Line, Numbers, Part, main
from landscape.config import TrainConfig, preset
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import initial
from landscape.training.member import Member

ROUNDS = 40
WRITES, READS = 1.3, 0.5
"""Targets: checkpoint time in tofile times; read speed as a share of fromfile's, both from an open file."""


def measure(work: Callable[[int], Any]) -> float:
    """Median seconds of ROUNDS calls."""
    seconds = []
    for i in range(ROUNDS):
        started = time.perf_counter()
        work(i)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def storage(name: str) -> Numbers:
    """Seconds per checkpoint and per read, for the parameters of one preset."""
    with tempfile.TemporaryDirectory() as folder:
        return {"preset": name, "rounds": ROUNDS, **_storage(preset(name), Path(folder))}


def _storage(config: TrainConfig, folder: Path) -> Numbers:
    parameters = initial(config)
    raw = np.concatenate([a.reshape(-1) for a in parameters.values()])
    found: Numbers = {"bytes": raw.nbytes}
    for name, fsync in (("checkpoint", False), ("checkpoint_fsync", True)):
        member = Member(config, folder / f"{name}.h5")
        member.open(False, "cpu", fsync)
        with member.writer as writer:
            found[name] = measure(lambda i, w=writer: w.append_to("checkpoints", i, parameters))
    with (folder / "raw.bin").open("wb", buffering=0) as file:
        found["tofile"] = measure(lambda _: raw.tofile(file))
    size = raw.nbytes

    def at(file: IO[bytes], place: int, count: int) -> Any:
        file.seek(place)
        return np.fromfile(file, raw.dtype, count)

    embeddings = np.concatenate([parameters["E"].reshape(-1)] * ROUNDS)
    embeddings.tofile(folder / "E.bin")
    with (folder / "raw.bin").open("rb") as one, (folder / "E.bin").open("rb") as column:
        found["fromfile_checkpoint"] = measure(lambda i: at(one, i * size, raw.size))
        found["fromfile_E_over_steps"] = measure(lambda _: at(column, 0, embeddings.size))
    started = time.perf_counter()
    with RunReader(folder / "checkpoint.h5") as reader:
        assert len(reader.tables["checkpoints"].rows) == ROUNDS
        found["open_and_verify"] = time.perf_counter() - started
        found["read_checkpoint"] = measure(reader.checkpoint)
        found["read_E_over_steps"] = measure(lambda _: reader.tables["checkpoints"].column("E"))
    found["file_bytes"] = (folder / "checkpoint.h5").stat().st_size
    return found


def parts() -> list[Part]:
    return [Part(name, functools.partial(storage, name)) for name in ("quick", "mid", "paper")]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Writes and reads, by preset."""
    for part, numbers in found.items():
        write, plain = numbers["checkpoint"], numbers["tofile"]
        what = f"a checkpoint against tofile, {part} ({numbers['bytes'] / 1e6:.2g} MB)"
        told = f"{write / plain:.2f}× ({1e3 * write:.3g} ms against {1e3 * plain:.3g} ms)"
        yield Line("storage", what, f"≤ {WRITES}×", told, write <= WRITES * plain, part)
        for read, raw in (("checkpoint", "fromfile_checkpoint"), ("E_over_steps", "fromfile_E_over_steps")):
            own, other = numbers[f"read_{read}"], numbers[raw]
            told = f"{other / own:.2f}× its speed ({1e3 * own:.3g} ms against {1e3 * other:.3g} ms)"
            what = f"reading {read.replace('_', ' ')} against fromfile, {part}"
            yield Line("storage", what, f"≥ {READS:g}×", told, other / own >= READS, part)


if __name__ == "__main__":
    sys.exit(main("storage", parts()))
