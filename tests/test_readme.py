"""README commands and examples run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_commands_and_examples(tmp_path: Path) -> None:
    """Every shell and Python block works in order, in an empty folder; make targets exist (CI runs them)."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ran = 0
    for kind, text in re.findall(r"```(sh|python)\n(.*?)```", README, re.DOTALL):
        if kind == "python":
            subprocess.run([sys.executable, "-W", "error", "-c", text], cwd=tmp_path, check=True, env=env)
            ran += 1
            continue
        for line in text.splitlines():
            command = line.split("  #")[0].strip()
            if command.startswith("make "):
                assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            elif not (command.startswith("h5dump") and shutil.which("h5dump") is None):
                subprocess.run(command, shell=True, cwd=tmp_path, check=True, env=env, stdout=subprocess.DEVNULL)
                ran += 1
    assert ran >= 6


def test_links_and_pictures_exist() -> None:
    """What the README points at is in the repository."""
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_script_and_command_is_known() -> None:
    """Commands named in the README are commands of the program."""
    assert set(re.findall(r"`landscape (\w+)", README)) <= {"train", "hessian", "report"}
    assert all((ROOT / s).exists() for s in re.findall(r"python (analyses/\w+\.py)", README))
