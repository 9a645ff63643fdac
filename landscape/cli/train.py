"""`landscape train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from landscape.cli import tables
from landscape.cli.printing import say
from landscape.config import TrainConfig
from landscape.errors import INTERRUPTED, complain, working_on
from landscape.presets import PRESETS
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.training.loop import RunSummary

    Preset = str
else:
    Preset = Literal[tuple(PRESETS)]


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a network to grok, with dense checkpoints of all parameters in HDF5."""

    run: TrainConfig
    preset: Preset = "quick"
    """Defaults of all options: quick (seconds), mid (half a minute), paper (arXiv 2505.15624; a GPU helps);
    Transformers: transformer (half a minute), nanda (arXiv 2301.05217) and power (arXiv 2201.02177), for a GPU."""
    config: Path | None = None
    """JSON file of options; overrides the preset, and flags override both."""
    out: Path = Path("checkpoints/run.h5")
    """Run file to write."""
    seeds: int | None = None
    """Train this many seeds side by side, counted from --seed: RUN-s0.h5, RUN-s1.h5 and so on. At most 256 runs, those
    of --vary included."""
    vary: tuple[str, ...] = ()
    """Train several values side by side, such as lr_ratio=1,2,4 lr=0.01,0.02; one of the files is
    RUN-lr_ratio-2-lr-0.01.h5. Takes lr, lr_ratio, weight_decay, init_scale_E, init_scale_W; combines with --seeds."""
    resume: bool = False
    """Resume the run file; start it if there is none."""
    overwrite: bool = False
    """Replace an existing run file."""
    fsync: bool = False
    """Sync every commit to disk, so that it survives a power failure."""
    json: bool = False
    """Print the summary as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.training.ensemble import ensemble
        from landscape.training.loop import train_ensemble

        runs = ensemble(self.run, self.out, self.seeds, self.vary)
        with working_on(self.out):
            summaries = train_ensemble(runs, self.resume, self.overwrite, self.quiet, self.fsync)
        if self.json:
            documents = [dataclasses.asdict(summary) for summary in summaries]
            say(tables.document(documents if self.seeds or self.vary else documents[0]))
        else:
            for summary in summaries:
                _print_summary(summary)
        diverged = [summary.divergence for summary in summaries if summary.divergence]
        for error in diverged:
            complain(error)
        return INTERRUPTED if any(summary.status == "interrupted" for summary in summaries) else 1 if diverged else 0


def _print_summary(summary: RunSummary) -> None:
    say(
        f"{printable(summary.path)}: {summary.status} at step {summary.steps}, {summary.checkpoints} checkpoints\n"
        f"accuracy: train {summary.train_accuracy:.4f}, test {summary.test_accuracy:.4f}; {reached(summary)}"
    )


def reached(summary: RunSummary) -> str:
    thresholds = (("train 99 %", summary.memorise_step), ("test 95 %", summary.grok_step))
    return "; ".join(f"{n} at step {step}" if step is not None else f"{n}: not reached" for n, step in thresholds)
