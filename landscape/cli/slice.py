"""`landscape slice`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from landscape.cli.parser import Options, RunFile, flags, plain
from landscape.cli.printing import say
from landscape.config import AnalysisConfig, SliceConfig
from landscape.errors import working_on
from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.options import field
from landscape.text import printable

if TYPE_CHECKING:
    Slice = SliceConfig
else:
    Slice = flags(
        SliceConfig(),
        {
            "What is drawn": ("plane", "block", "k", "radius", "points", "plane_points"),
            "Random planes": ("normalisation", "biases", "seed"),
        },
    )

EXAMPLES = (
    f"landscape slice checkpoints/run.h5 --step 500  # of {' and '.join(BALANCED)} together",
    "landscape slice checkpoints/run.h5 --step 500 --plane pca  # of the path",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceOptions(Options):
    """What is sliced and how, and where the figure goes."""

    out: Path | None = field(None, "Folder to write. By default reports/RUN-slices-STEP, or RUN-PLANE-STEP.")
    problem: str = field("", "Your own model, data and loss, as in `landscape hessian --problem`.")
    objective: Literal["data", "regularised"] = field(
        "data", "The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."
    )
    method: Literal["auto", "dense", "lanczos"] = field("auto", "How the eigenvectors are found.")
    max_hvps: int = field(3000, "Largest number of Hessian-vector products.")
    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device of the products.")
    formats: str = field("", "Save the figure as PNG or PDF, too: png, pdf or png,pdf.")
    overwrite: bool = field(False, "Replace an earlier slice; files added to its folder stay.")
    quiet: bool = field(False, "No progress bar.")


def slice(  # noqa: A001
    run: RunFile,
    *,
    step: Annotated[int, Parameter(help="Stored step to slice at.")],
    config: Slice = Slice(),
    options: SliceOptions = SliceOptions(),
) -> int:
    """Draw the loss along eigenvectors at a checkpoint, and on a plane: of eigenvectors, random, or of the path."""
    from landscape.files.files import as_path, unmade
    from landscape.files.folders import replaced_folder
    from landscape.measure import slices as measurement
    from landscape.report.figures.planes import plane
    from landscape.report.figures.slices import slices
    from landscape.report.style import chosen_formats, save_figure, style

    analysis = AnalysisConfig(
        problem=options.problem,
        objective=options.objective,
        method=options.method,
        max_hvps=options.max_hvps,
        device=options.device,
    )
    name = "slices" if config.plane == "eigen" else config.plane
    out = as_path(options.out) if options.out else Path("reports") / f"{run.stem}-{name}-{step}"
    with unmade(out), working_on(out), replaced_folder(out, "slice", options.overwrite) as draft:
        measured = measurement.slice(run, step, plain(config), analysis, options.quiet)
        with style():
            drawn = slices(measured) if isinstance(measured, measurement.Slices) else plane(measured)
            paths = save_figure(drawn.figure, drawn.data, draft, name, chosen_formats(options.formats))
    say("\n".join(map(printable, [drawn.title, *measured.summary(), *(out / path.name for path in paths.values())])))
    return 0
