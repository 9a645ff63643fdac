"""`landscape hessian`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from landscape.cli import tables
from landscape.cli.parser import Printed, RunFile, flags, plain
from landscape.cli.printing import say
from landscape.config import HessianConfig
from landscape.errors import UNFINISHED, ConfigError, NumericsError, working_on
from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.options import field
from landscape.ranks import PATIENCE, Ranks, joined, launched
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.files.views import File

HEADINGS = {
    "What is measured": ("steps", "num_steps", "settle", "blocks", "only", "certify", "curve", "density", "k",
        "objective", "problem", "vectors",
    ),
    "Method": (
        "method", "dense_limit", "factor_limit", "spectra", "rtol", "rel_tau", "max_hvps", "probes", "probe_steps",
        "bandwidth", "seed", "chunk_size", "device", "dtype",
    ),
}  # fmt: skip
if TYPE_CHECKING:
    Analysis = HessianConfig
else:
    Analysis = flags(HessianConfig(), HEADINGS)

EXAMPLES = (
    "landscape hessian checkpoints/run.h5 --steps 0,500   # two checkpoints",
    f"landscape hessian checkpoints/run.h5 --blocks {' '.join(BALANCED)}    # no pairs: cheaper",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HessianOptions(Printed):
    """How the work is done, and where the result goes."""

    out: Path | None = field(
        None, "Hessian file to write. By default RUN.hessian.h5 beside the run, with --settle RUN.settled.h5."
    )
    overwrite: bool = field(
        False,
        "Replace a Hessian file of another run, other blocks or other settings; one that matches gets more steps.",
    )
    jobs: int | None = field(
        None,
        "Checkpoints measured at once, each in a process of one thread; the file is the same for any number. "
        "By default one per core, as far as memory allows. Matrix-free blocks are measured one checkpoint after the "
        "other.",
        at_least=1,
        at_most=1024,
    )
    patience: float = field(
        PATIENCE, "Under torchrun: seconds that a rank waits for the others before all of them end.", at_least=2
    )
    tables: bool = field(False, "Print tables of all quantities at all steps of the file.")
    verify: bool = field(False, "Compare with PyHessian's top eigenvalue, and with a dense Hessian where it fits.")
    quiet: bool = field(False, "No progress bar.")


def hessian(
    run: RunFile,
    *,
    config: Analysis = Analysis(),
    options: HessianOptions = HessianOptions(),
) -> int:
    """Measure block spectra, saddle indices and coupling ratios of a run's checkpoints."""
    from landscape.files.files import hessian_file, settled_file

    out = options.out or (settled_file if config.settle else hessian_file)(run)
    with working_on(out):
        if ranks := launched():
            return _over_ranks(ranks, run, plain(config), out, options)
        return _print(_measure(run, plain(config), out, options), run, plain(config), out, options)


def _over_ranks(ranks: Ranks, run: Path, config: HessianConfig, out: Path, options: HessianOptions) -> int:
    """Measure as one of several ranks, and print as the first of them."""
    if options.jobs is not None:
        raise ConfigError("jobs is for one process", "leave out --jobs, or start it without torchrun")
    from landscape.curvature.part import Part, taking
    from landscape.measure.hessian import follow

    with joined(ranks, options.patience), taking(Part(ranks.rank, ranks.size)):
        if ranks.rank:
            follow(run, config, ranks)
            return int(ranks.broadcast())
        result = _measure(run, config, out, options, ranks)
        ranks.broadcast(_code(result))
    return _print(result, run, config, out, options)


def _measure(run: Path, config: HessianConfig, out: Path, options: HessianOptions, ranks: Ranks | None = None) -> File:
    from landscape.measure import hessian

    jobs = 0 if ranks else options.jobs
    return hessian.hessian(run, config, out, options.overwrite, options.quiet, jobs, ranks)


def _print(result: File, run: Path, config: HessianConfig, out: Path, options: HessianOptions) -> int:
    """Compare with other tools if asked to, and print; returns the exit code."""
    opinions = []
    if options.verify:
        from landscape.measure.verify import verify

        opinions = verify(run, result, options.quiet)
    if options.csv:
        say(tables.file_csv(out))
    elif options.json:
        from landscape.measure.tables import rows

        settled = [{"step": step, **row} for step, row in rows(result, "settled").items()] if config.settle else []
        say(tables.hessian_document(result, verify=[dataclasses.asdict(o) for o in opinions], settled=settled))
    else:
        shown = tables.measurements(result) if options.tables else tables.summary(result, _asked(config, result))
        descents = f"\n{tables.descents(result)}\n" if config.settle else ""
        say(f"{shown}\n{descents}{tables.verification(opinions)}written: {printable(out)}")
    if not all(o.agrees for o in opinions):
        raise NumericsError("the dense Hessian disagrees", "please report this with the run file")
    return _code(result)


def _asked(config: HessianConfig, result: File) -> list[int]:
    """The steps that a command asks for: those that it lists, else all in the file."""
    is_list = config.steps not in ("auto", "all", "plateau")
    return [int(step) for step in config.steps.split(",")] if is_list else result.steps


def _code(result: File) -> int:
    from landscape.measure.tables import unconverged

    return UNFINISHED if any(unconverged(result).values()) else 0
