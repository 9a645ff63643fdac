"""What the file of record costs: checkpoints against numpy.tofile, reads against numpy.fromfile, and --fsync."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from landscape.config import TrainConfig, preset
from landscape.provenance import provenance
from landscape.storage.runs import RunReader
from landscape.training.member import Member
from landscape.training.networks import initial

ROUNDS = 40


def measure(work: Callable[[int], Any]) -> float:
    """Median seconds of ROUNDS calls."""
    seconds = []
    for i in range(ROUNDS):
        started = time.perf_counter()
        work(i)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def storage(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Seconds per checkpoint and per read, for the parameters of one model."""
    parameters = initial(config)
    raw = np.concatenate([a.reshape(-1) for a in parameters.values()])
    found: dict[str, Any] = {"bytes": raw.nbytes}
    for name, fsync in (("checkpoint", False), ("checkpoint_fsync", True)):
        member = Member(config, folder / f"{name}.h5")
        member.open(False, "cpu", fsync)
        with member.writer as writer:
            found[name] = measure(lambda i, w=writer: w.checkpoint(i, parameters))
    with (folder / "raw.bin").open("wb", buffering=0) as file:
        found["tofile"] = measure(lambda _: raw.tofile(file))
    size = raw.nbytes
    embeddings = np.concatenate([parameters["E"].reshape(-1)] * ROUNDS)
    embeddings.tofile(folder / "E.bin")
    found["fromfile_checkpoint"] = measure(
        lambda i: np.fromfile(folder / "raw.bin", raw.dtype, raw.size, offset=i * size)
    )
    found["fromfile_E_over_steps"] = measure(lambda _: np.fromfile(folder / "E.bin", raw.dtype))
    started = time.perf_counter()
    with RunReader(folder / "checkpoint.h5") as reader:
        assert len(reader.tables["checkpoints"].rows) == ROUNDS
        found["open_and_verify"] = time.perf_counter() - started
        found["read_checkpoint"] = measure(reader.checkpoint)
        found["read_E_over_steps"] = measure(lambda _: reader.tables["checkpoints"].column("E"))
    found["file_bytes"] = (folder / "checkpoint.h5").stat().st_size
    return found


def main() -> int:
    """Measure every preset and print one JSON document."""
    results = {}
    for name in ("quick", "mid", "paper"):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = storage(preset(name), Path(folder))
    print(json.dumps({"environment": provenance("cpu"), "rounds": ROUNDS, "presets": results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
