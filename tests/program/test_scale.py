"""docs/scale.md: the bytes that it states were measured, and its script runs under a Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cluster import cluster, missing

from benchmarks import ranks

TEXT = (ranks.ROOT / "docs/scale.md").read_text(encoding="utf-8")


def test_ranks_send_and_hold_what_the_page_states() -> None:
    """On every number of processes, to 1 %."""
    for case in ranks.load("ranks")["parts"]["processes"]["cases"]:
        stated = 2 * (case["ranks"] - 1) / case["ranks"] * case["n"] * 4
        assert case["product_bytes"] == pytest.approx(stated, rel=0.01, abs=1000)
        assert case["basis_bytes"] == -(-case["n"] // case["ranks"]) * ranks.COLUMNS * 4


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_script_of_the_page_runs_under_slurm(tmp_path: Path) -> None:
    """As written, but on the one node that there is."""
    (tmp_path / "rows.py").write_text(re.findall(r"```python\n(# rows\.py\n.*?)```", TEXT, re.DOTALL)[0])
    (tmp_path / "rows.sbatch").write_text(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)[0])
    with cluster() as env:
        # sbatch passes the environment on, as where a virtual environment is active.
        env = {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}
        ended = subprocess.run(["sbatch", "--wait", "--nodes", "1", "rows.sbatch"], cwd=tmp_path, env=env)
    said = "".join(path.read_text() for path in tmp_path.glob("rows-*.out"))
    assert ended.returncode == 0, said
    assert "this rank holds (1, 7655, 2) of 15310 rows" in said
