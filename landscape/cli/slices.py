"""`landscape slice`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from landscape.cli.printing import say
from landscape.config import AnalysisConfig, SliceConfig
from landscape.errors import working_on
from landscape.options import field
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Slice:
    """The loss along unit eigenvectors at a checkpoint, and on the plane of the lowest and the highest."""

    slice: SliceConfig
    ckpt: Path
    """Run file to slice."""
    step: int
    """Stored step to slice at."""
    out: Path | None = None
    """Folder to write. None: reports/RUN-slices-STEP."""
    problem: str = ""
    """Your own model, data and loss, as in `landscape hessian --problem`."""
    objective: Literal["data", "regularised"] = "data"
    """The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."""
    method: Literal["auto", "dense", "lanczos"] = "auto"
    """How the eigenvectors are found."""
    max_hvps: int = field(3000, "Largest number of Hessian-vector products.", was="max_products")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the products."""
    overwrite: bool = False
    """Replace existing figures."""

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.analysis.slices import slice_checkpoint
        from landscape.report.figures.slices import slices
        from landscape.report.style import FORMATS, save_figure, style
        from landscape.storage.files import refuse_existing

        analysis = AnalysisConfig(
            problem=self.problem,
            objective=self.objective,
            method=self.method,
            max_hvps=self.max_hvps,
            device=self.device,
        )
        out = self.out or Path("reports") / f"{self.ckpt.stem}-slices-{self.step}"
        with working_on(out):
            if not self.overwrite:
                for form in (*FORMATS, "csv"):
                    refuse_existing(out / f"slices.{form}", "use --overwrite to replace it, or another --out")
            found = slice_checkpoint(self.ckpt, self.step, self.slice, analysis)
            with style():
                drawn = slices(found)
                paths = save_figure(drawn.figure, drawn.data, out, "slices")
        numbers = [f"{name}: {value}" for name, value in drawn.numbers.items()]
        say("\n".join(map(printable, [drawn.caption, *numbers, *paths])))
        return 0
