"""The problem of a run whose samples are spread over ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from importlib import metadata
from pathlib import Path

import numpy as np

import landscape
from landscape import models
from landscape.config import AnalysisConfig, to_json
from landscape.curvature.data import sum_of
from landscape.curvature.part import current_part
from landscape.files.runs import RunReader
from landscape.models.factory import SEED, Source, unlike_problem
from landscape.models.module import ModuleProblem
from landscape.models.problem import Problem
from landscape.ranks import RankError, Ranks

_ONE_VERSION = "install the same version on all machines"


def opened(reader: RunReader, config: AnalysisConfig, ranks: Ranks) -> tuple[Problem, Source | None]:
    """The problem of a run, opened by every rank within `taking` its part of the samples; raises as models.opened.

    Raises RankError for ranks with other code, libraries, arithmetic, settings or data than rank 0, as all of them
    decide from the same numbers what is multiplied next.
    """
    ranks.require_alike("torch", metadata.version("torch"), _ONE_VERSION)
    ranks.require_alike("landscape", f"{landscape.__version__} (source {_digest()})", _ONE_VERSION)
    ranks.require_alike("settings", to_json(config), "give all ranks the same options")
    ranks.require_alike("the run", str(reader.attrs["run_id"]), "give all ranks the same run file")
    ranks.require_alike(
        "eigenvectors of a matrix that hash to",
        hashlib.sha256(np.linalg.eigh(1 / (1 + np.add.outer(np.arange(100), np.arange(100))))[1].tobytes()).hexdigest(),
        "use machines of one kind, one environment, and one number of threads for all ranks",
    )
    problem, source = models.opened(reader, config)
    if source:
        ranks.require_alike(f"a source of --problem {source.name}", source.sha256[:12], "copy it to all machines")
        source = _agreed(ranks, problem, source)
    part = current_part()
    assert part
    seen = hashlib.sha256(" ".join(part.seen).encode()).hexdigest()[:12]
    hint = "the function that makes the problem must return the same on every rank: fix its seeds, copy its files"
    ranks.require_alike("data or constants of the model that sum to", seen, hint)
    return problem, source


def _agreed(ranks: Ranks, problem: Problem, source: Source) -> Source:
    """Where the problem comes from, with the checksum that it has in one process.

    Raises RankError, on every rank, for the first of them that has another problem than rank 0.
    """
    batches: dict[int, int] = {}
    assert isinstance(problem, ModuleProblem)
    every = ranks.gather((source.checksum, problem.data_sums))
    for rank, (checksum, sums) in enumerate(every):
        own, first = ({**json.loads(one), "data": ""} for one in (checksum, every[0][0]))
        # Of batches each rank has its own.
        own["data"] = str([number for number, one in sums.items() if batches.setdefault(number, one) != one] or "")
        if differs := unlike_problem(json.dumps(first), json.dumps(own)):
            raise RankError(f"rank {rank} has {differs} other than rank 0", SEED)
    return dataclasses.replace(source, checksum=json.dumps(json.loads(source.checksum) | {"data": sum_of(batches)}))


def _digest() -> str:
    """A checksum of the package's own source."""
    root, digest = Path(landscape.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
