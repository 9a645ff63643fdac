"""The comparison of tools: `landscape` is right in every row, and the published table is the one the script makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def cells(page: str) -> list[list[str]]:
    """The cells of the page's table, without its head."""
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


@pytest.mark.slow
def test_no_wrong_entry(tmp_path: Path) -> None:
    """The script exits with 0, and makes the rows and verdicts of docs/accuracy.md."""
    page = tmp_path / "accuracy.md"
    done = subprocess.run(
        [sys.executable, "benchmarks/accuracy.py", "--out", page], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made, published = cells(page.read_text()), cells((ROOT / "docs/accuracy.md").read_text())
    assert len(made) >= 34
    assert {row[4][-1] for row in made} == {"✓", "–"}
    # The last digits of errors differ between machines; what was computed and who was right may not.
    assert [row[:4] for row in made] == [row[:4] for row in published]
    verdicts = [[[cell[-1] for cell in row[4:]] for row in table] for table in (made, published)]
    assert verdicts[0] == verdicts[1]
