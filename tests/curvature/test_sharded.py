"""Vectors whose rows are spread over two and four processes: the engine's own tests, traffic, memory, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.rows import over_ranks

from landscape.curvature.operators import MatrixOperator
from landscape.curvature.sharded import Sharded
from landscape.errors import LandscapeError

HERE = Path(__file__).parent
UNLIKE = """
import sys
from pathlib import Path

import torch
from benchmarks.ranks import joined
from landscape.curvature.operators import MatrixOperator
from landscape.curvature.sharded import Sharded
from landscape.errors import LandscapeError

with joined(int(sys.argv[1]), 2, Path(sys.argv[2])):
    try:
        Sharded(MatrixOperator(torch.eye(3)))
    except LandscapeError as error:
        print(error, error.hint, sep="; ")
"""


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_engine_does_over_ranks_what_it_does_in_one_process(ranks: int, tmp_path: Path) -> None:
    """Its tests pass on every rank, with each matrix on both of two ranks, or its entries shared out to four."""
    tests = [f"{HERE}/{name}.py" for name in ("rows_on_ranks", "test_krylov", "test_solvers")]
    # Few of the searches: each of their thousands of products waits for all ranks.
    engine = "invariant or narrows or whole_space or lead_on or lockstep or restarts"
    of_two = f"({engine} or clusters or small_orders) and not (1-0 or 1-5 or 257 or 300)"
    chosen = of_two if ranks == 2 else "signs or invariant or narrows"
    over_ranks(ranks, tmp_path, *tests, "-k", f"rows_on_ranks or (({chosen}) and not dense and not 1000000 and not 1e)")


def test_vectors_over_ranks_need_a_process_group() -> None:
    """They are refused without one."""
    with pytest.raises(
        LandscapeError, match="rows are spread over the ranks of a process group, and there is none"
    ) as told:
        Sharded(MatrixOperator(torch.eye(3)))
    assert told.value.hint == "start with torchrun, and call torch.distributed.init_process_group() first"


@pytest.mark.slow
def test_machines_that_compute_differently_are_refused(tmp_path: Path) -> None:
    """A rank whose BLAS takes its processor for one of 2008 finds eigenvectors of other digits."""
    path = os.pathsep.join([str(HERE.parents[1]), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", UNLIKE, str(rank), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path, **cores},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, cores in enumerate(({}, {"OPENBLAS_CORETYPE": "Nehalem"}))
    ]
    for child in children:
        assert child.communicate()[0] == (
            "1 of 2 ranks compute eigenvectors to other digits than rank 0; "
            "use machines of one kind, one environment, and one number of threads for all ranks\n"
        )
