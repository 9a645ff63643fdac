"""`landscape report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro

from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.errors import ConfigError, working_on
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Report(Command):
    """An HTML page with figures, from run files and Hessian files."""

    examples = (
        "landscape report checkpoints/run.h5                    # with run.hessian.h5",
        "landscape report checkpoints/*.h5 --out reports/mine   # several runs",
    )
    groups = {"what is reported": ("files", "problem"), "output": ("out", "formats", "overwrite", "quiet")}
    interrupted = "nothing was changed; the same command starts again"

    files: tyro.conf.Positional[tuple[Path, ...]] = required(
        "Run files, Hessian files or both; the analyses beside a run are included."
    )
    out: Path | None = field(None, "Folder to write. By default reports/NAME of the first file.")
    problem: str = field(
        "", "Your own problem, as in `landscape hessian --problem`: refuse Hessian files made with another one."
    )
    formats: str = field("", "Save figures as PNG or PDF, too: png, pdf or png,pdf.")
    overwrite: bool = field(False, "Replace an earlier report; files added to its folder stay.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.report.page import write_report

        if not self.files:
            raise ConfigError("no file given", "name run or Hessian files: landscape report RUN.h5 ...")
        out = self.out or Path("reports") / self.files[0].name.removesuffix(".h5").removesuffix(".hessian")
        with working_on(out):
            page = write_report(self.files, out, self.overwrite, self.quiet, self.problem, self.formats)
        say(printable(page))
        return 0
