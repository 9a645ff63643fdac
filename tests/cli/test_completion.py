"""Completion by a real shell: what it offers for what is typed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from landscape.cli.main import COMMANDS, run


def printed(shell: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["completion", shell]) == 0
    return out.getvalue()


def offered(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    (folder / "script").write_text(printed("bash"))
    asked = 'COMP_WORDS=(landscape "$@"); COMP_CWORD=$#; _landscape; printf \'%s\\n\' "${COMPREPLY[@]}"'
    line = ["bash", "-c", f"source ./script; {asked}", "-", *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash(tmp_path: Path) -> None:
    """Commands, options, the words of an option, and files elsewhere."""
    (tmp_path / "run.h5").touch()
    assert offered(tmp_path, "") == set(COMMANDS)
    assert offered(tmp_path, "he") == {"hessian"}
    assert offered(tmp_path, "hessian", "--max") == {"--max-hvps"}
    assert offered(tmp_path, "train", "--task", "s") == {"sub", "squares"}
    assert offered(tmp_path, "info", "ru") == {"run.h5"}
    assert offered(tmp_path, "hessian", "ru") == {"run.h5"}
    assert offered(tmp_path, "completion", "") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell: str) -> None:
    """Without an error."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=printed(shell), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_zsh_finds_it_in_a_folder_of_functions(tmp_path: Path) -> None:
    """As the help says."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "_landscape").write_text(printed("zsh"))
    line = ["zsh", "-fec", "fpath=($PWD $fpath); autoload -U compinit; compinit -u; print -r -- $_comps[landscape]"]
    done = subprocess.run(line, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "_landscape\n")
