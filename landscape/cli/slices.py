"""`landscape slice`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from landscape.cli.declared import Command, RunFile
from landscape.cli.printing import say
from landscape.config import AnalysisConfig, SliceConfig
from landscape.errors import working_on
from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Slice(Command):
    """The loss along unit eigenvectors at a checkpoint, and on the plane of the lowest and the highest."""

    examples = (
        f"landscape slice checkpoints/run.h5 --step 500            # of {' and '.join(BALANCED)} together",
        f"landscape slice checkpoints/run.h5 --step 500 --block {BALANCED[0]}  # of {BALANCED[0]} alone",
    )
    groups = {
        "what is drawn": ("run", "step", "block", "k", "radius", "points", "plane_points", "objective", "problem"),
        "method": ("method", "max_hvps", "device"),
        "output": ("out", "formats", "overwrite", "quiet"),
    }
    interrupted = "nothing was drawn; the same command starts again"

    slice: SliceConfig
    run: RunFile = required("Run file to slice.", was="ckpt")
    step: int = required("Stored step to slice at.")
    out: Path | None = field(None, "Folder to write. By default reports/RUN-slices-STEP.")
    problem: str = field("", "Your own model, data and loss, as in `landscape hessian --problem`.")
    objective: Literal["data", "regularised"] = field(
        "data", "The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."
    )
    method: Literal["auto", "dense", "lanczos"] = field("auto", "How the eigenvectors are found.")
    max_hvps: int = field(3000, "Largest number of Hessian-vector products.", was="max_products")
    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device of the products.")
    formats: str = field("", "Save the figure as PNG or PDF, too: png, pdf or png,pdf.")
    overwrite: bool = field(False, "Replace an earlier slice; files added to its folder stay.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.files.files import as_path, unmade
        from landscape.files.folders import replaced_folder
        from landscape.measure.slices import slice_checkpoint
        from landscape.report.figures.slices import slices
        from landscape.report.style import chosen_formats, save_figure, style

        analysis = AnalysisConfig(
            problem=self.problem,
            objective=self.objective,
            method=self.method,
            max_hvps=self.max_hvps,
            device=self.device,
        )
        out = as_path(self.out) if self.out else Path("reports") / f"{self.run.stem}-slices-{self.step}"
        with unmade(out), working_on(out), replaced_folder(out, "slice", self.overwrite) as draft:
            measured = slice_checkpoint(self.run, self.step, self.slice, analysis, self.quiet)
            with style():
                drawn = slices(measured)
                paths = save_figure(drawn.figure, drawn.data, draft, "slices", chosen_formats(self.formats))
        pairs = zip(measured.names, measured.eigenvalues, measured.slope, strict=True)
        numbers = [f"{name}: lambda {value:.6g}, slope {slope:.3g}" for name, value, slope in pairs]
        say("\n".join(map(printable, [drawn.title, *numbers, *(out / path.name for path in paths.values())])))
        return 0
