"""Commands and examples of the README and the guides run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.apart import SERVER
from helpers.hessians import HessianReader
from helpers.vision import torchvision

from landscape.cli import main as cli
from landscape.files.schema import LEVELS
from landscape.presets import PRESETS

ROOT = Path(__file__).parents[2]
# The example of docs/trial.md reads the runs of the trial, which tests/claims has small ones of.
PAGES = (ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs/trial.md"}))
README = PAGES[0].read_text()
OUTSIDERS = ("h5dump", "h5ls", "ncdump")
"""Programs that a newcomer may lack; CI has them."""


SMALL = {"p": 23, "embed_dim": 8, "hidden": 16, "steps": 600}
"""Sizes and steps of `--preset demo` and `quick` here, whose own dense blocks take half a minute and more."""
WORDS = "40"
"""Words of the text in docs/how-to.md here, for the same reason."""


def command(argv: list[str]) -> None:
    if "--vocabulary" in argv:
        argv[argv.index("--vocabulary") + 1] = WORDS
    if "--preset" in argv or argv == ["demo"]:
        for name in ("demo", "quick"):
            PRESETS[name] = PRESETS[name] | SMALL
    sys.exit(cli.run(argv))


def script(text: str) -> None:
    """Run an example; a warning is an error, except with Lightning and PEFT, which themselves cause some."""
    if re.search(r"^(import|from) (lightning|peft|torchvision|transformers)", text, re.MULTILINE):
        # They import torchvision, which may be of another release than torch.
        torchvision()
    if not re.search(r"^(import|from) (lightning|peft)", text, re.MULTILINE):
        warnings.simplefilter("error")
        # What curvlinops imports uses it.
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)
    exec(text, {"__name__": "__main__"})


def work_in(folder: Path, work: Callable[[Any], None], what: Any) -> None:
    os.chdir(folder)
    work(what)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in which every shell and Python block of the pages ran, in order, without a warning.

    A Python block that begins with the name of a file is that file. Blocks and commands of `landscape` but the lightest
    run in forks of a process that has imported it.
    """
    folder = tmp_path_factory.mktemp("readme")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def fork(work: Callable[[Any], None], what: Any) -> None:
        child = SERVER.Process(target=work_in, args=(folder, work, what))
        child.start()
        child.join()
        assert child.exitcode == 0, what

    for page in PAGES:
        for kind, text in re.findall(r"```(sh|python)\n(.*?)```", page.read_text(), re.DOTALL):
            if file := re.match(r"# (\w+\.py)\n", text):
                (folder / file[1]).write_text(text)
                continue
            if kind == "python":
                fork(script, text)
                continue
            for line in text.replace("\\\n", "").splitlines():
                words = line.split("  #")[0].strip()
                program = words.partition(" ")[0]
                missing = program in OUTSIDERS and shutil.which(program) is None
                if program == "landscape" and not words.startswith("landscape info"):
                    fork(command, shlex.split(words)[1:])
                elif program != "make" and not missing:
                    subprocess.run(words, shell=True, cwd=folder, check=True, env=env, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.long
def test_commands_and_examples(folder: Path) -> None:
    """They leave the files that they name behind; the index of every block is certified."""
    for name in (
        "checkpoints/first.h5",
        "reports/first/report.html",
        "reports/first-slices-500/slices.svg",
        "checkpoints/lightning.h5",
    ):
        assert (folder / name).stat().st_size > 0
    reader = HessianReader(folder / "checkpoints/first.hessian.h5")
    assert reader.steps == [0, 500]
    assert reader.blocks == ["E", "W", "E,W", "W,V"]
    for step in reader.steps:
        assert {LEVELS[level] for level in reader.row(step)["inertia_level"]} == {"certified"}


@pytest.mark.long
def test_a_smooth_activation_reaches_a_saddle(folder: Path) -> None:
    """With activation x^2 a point with |grad| <= 1e-10, a certified index, and negative curvature of E and W."""
    reader = HessianReader(folder / "checkpoints/smooth.critical-1000.h5")
    assert reader.critical_point(1000)["grad_norm"] <= 1e-10
    row = reader.row(1000)
    assert {LEVELS[level] for level in row["inertia_level"]} == {"certified"}
    assert row["grad_norm"].max() <= 1e-10
    assert row["inertia"][reader.blocks.index("E,W")][0] > 0


def test_links_and_pictures_exist() -> None:
    """What the pages point at is in the repository, make targets included."""
    for page in PAGES:
        text = page.read_text()
        places = {"#" + title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        for link in re.findall(r"\]\(([^)]+)\)", text):
            file = page.parent / link.partition("#")[0]
            assert link.startswith("https://") or link in places or (file.is_file() and file != page), link
    targets = re.findall(r"`make ([\w-]+)`", README)
    assert len(targets) >= 2
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_script_and_command_is_known() -> None:
    """Commands named in the README are commands of the program."""
    assert set(re.findall(r"`landscape ([a-z]+)", README)) <= set(cli.COMMANDS)
    assert all((ROOT / s).exists() for s in re.findall(r"python (analyses/\w+\.py)", README))
