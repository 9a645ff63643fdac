"""`landscape demo`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import tyro

from landscape.cli.declared import Command
from landscape.cli.geometry import Geometry
from landscape.cli.hessian import Hessian
from landscape.cli.report import Report
from landscape.cli.train import Train
from landscape.config import HessianConfig, preset
from landscape.options import field


@dataclasses.dataclass(frozen=True)
class Demo(Command):
    """Train a small network until it groks, measure its embedding and Hessian, and report: about a minute."""

    examples = (
        "landscape demo                                   # in ./landscape-demo",
        "landscape demo mine --steps 300 --checkpoints 2  # a shorter one, in mine",
    )
    groups = {"what is done": ("folder", "steps", "checkpoints"), "output": ("quiet",)}

    folder: tyro.conf.Positional[Path] = field(Path("landscape-demo"), "Folder to write; the same command resumes.")
    steps: int = field(3000, "Largest number of steps; training ends soon after it grokked.", at_least=1)
    checkpoints: int = field(
        12, "Checkpoints whose Hessian is measured; those of an earlier demo in the folder are kept.", at_least=1
    )
    quiet: bool = field(False, "No progress bars.")

    def execute(self) -> int:
        run, page = self.folder / "demo.h5", self.folder / "report"
        report = Report((run,), page, overwrite=True, quiet=self.quiet)
        parts = {
            f"train --preset demo --steps {self.steps} --out {run}": Train(
                dataclasses.replace(preset("demo"), steps=self.steps), out=run, resume=True, quiet=self.quiet
            ),
            f"geometry {run}": Geometry(run, quiet=self.quiet),
            f"report {run} --out {page}": report,
            f"hessian {run} --num-steps {self.checkpoints}": Hessian(
                HessianConfig(num_steps=self.checkpoints), run, quiet=self.quiet
            ),
            f"report {run} --out {page} --overwrite": report,
        }
        worst = 0
        for line, command in parts.items():
            print(f"$ landscape {line}", file=sys.stderr, flush=True)
            code = command.execute()
            if code not in (0, 3):
                return code
            worst = max(worst, code)
        return worst
