"""`landscape demo`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from landscape.cli.geometry import GeometryOptions, geometry
from landscape.cli.hessian import Analysis, HessianOptions, hessian
from landscape.cli.parser import Options
from landscape.cli.report import ReportOptions, report
from landscape.cli.train import Run, TrainOptions, train
from landscape.config import preset
from landscape.options import field

EXAMPLES = (
    "landscape demo                                   # in ./landscape-demo",
    "landscape demo mine --steps 300 --checkpoints 2  # a shorter one, in mine",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """How much is done."""

    steps: int = field(3000, "Largest number of steps; training ends soon after it grokked.", at_least=1)
    checkpoints: int = field(
        12, "Checkpoints whose Hessian is measured; those of an earlier demo in the folder are kept.", at_least=1
    )
    quiet: bool = field(False, "No progress bars.")


def demo(
    folder: Annotated[Path, Parameter(help="Folder to write; the same command resumes.")] = Path("landscape-demo"),
    *,
    options: DemoOptions = DemoOptions(),
) -> int:
    """Train a small network until it groks, measure its embedding and Hessian, and report: about a minute."""
    run, page, quiet = folder / "demo.h5", folder / "report", options.quiet
    config = Run(**{**dataclasses.asdict(preset("demo")), "steps": options.steps})

    def write() -> int:
        return report(run, options=ReportOptions(out=page, overwrite=True, quiet=quiet))

    parts: dict[str, Callable[[], int]] = {
        f"train --preset demo --steps {options.steps} --out {run}": lambda: train(
            run=config, options=TrainOptions(out=run, resume=True, quiet=quiet)
        ),
        f"report {run} --out {page}": write,
        f"geometry {run}": lambda: geometry(run, options=GeometryOptions(quiet=quiet)),
        f"hessian {run} --num-steps {options.checkpoints}": lambda: hessian(
            run, config=Analysis(num_steps=options.checkpoints), options=HessianOptions(quiet=quiet)
        ),
        f"report {run} --out {page} --overwrite": write,
    }
    worst = 0
    for line, command in parts.items():
        print(f"$ landscape {line}", file=sys.stderr, flush=True)
        code = command()
        if code not in (0, 3):
            return code
        worst = max(worst, code)
    return worst
