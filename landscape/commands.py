"""The commands and their flags: one dataclass each, from which tyro makes `--help`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from landscape.config import AnalysisConfig, HessianConfig, SliceConfig, TrainConfig, check_value


@dataclasses.dataclass(frozen=True)
class Train:
    """A grokking run; dense checkpoints of E, W and all other parameters in HDF5."""

    run: TrainConfig
    preset: Literal["quick", "mid", "paper"] = "quick"
    """Starting point of all options: quick (seconds), mid (half a minute), paper (arXiv 2505.15624; a GPU helps)."""
    config: Path | None = None
    """JSON file of options, applied over the preset; flags win over both."""
    out: Path = Path("checkpoints/run.h5")
    """Run file to write."""
    seeds: int | None = None
    """Train this many seeds, counted up from --seed, side by side: RUN-s0.h5, RUN-s1.h5 and so on for RUN.h5; with
    --vary at most 256 runs."""
    vary: tuple[str, ...] = ()
    """Train several values side by side, such as lr_ratio=1,2,4 lr=0.01,0.02, with RUN-lr_ratio-2-lr-0.01.h5 among the
    files; of lr, lr_ratio, weight_decay, init_scale_E and init_scale_W, with --seeds every seed of each."""
    resume: bool = False
    """Go on where the run file stops (start it if there is none)."""
    overwrite: bool = False
    """Replace an existing run file."""
    fsync: bool = False
    """Sync every commit to the disk, so that it survives a loss of power too."""
    json: bool = False
    """Print the summary as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Hessian:
    """Block spectra, saddle indices and coupling ratios of a run's checkpoints."""

    analysis: HessianConfig
    ckpt: Path
    """Run file to analyse."""
    out: Path | None = None
    """Hessian file to write; None: RUN.hessian.h5 beside the run."""
    overwrite: bool = False
    """Replace a Hessian file of another run or other settings (one that matches is resumed, and gets what it lacks)."""
    fsync: bool = False
    """Sync every step to the disk, so that it survives a loss of power too."""
    verify: bool = False
    """Compare with PyHessian's top eigenvalue and with a dense Hessian where it fits."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Critical:
    """The critical point of the objective nearest to a checkpoint, and the Hessian there."""

    ckpt: Path
    """Run file to start from."""
    step: int
    """Stored step to start from."""
    # A saddle index belongs to a critical point of what was minimised.
    analysis: AnalysisConfig = AnalysisConfig(objective="regularised")
    out: Path | None = None
    """Hessian file to write, with the refined parameters; None: RUN.critical-STEP.h5 beside the run."""
    grad_tol: float = 1e-10
    """Gradient norm at which a point counts as critical."""
    search_products: int = 60_000
    """Hessian-vector products of the search at most."""
    resume: bool = False
    """Continue an earlier search, or start one: after Ctrl-C or a kill, with more products, or with more blocks."""
    overwrite: bool = False
    """Replace an existing file."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self) -> None:
        check_value("grad_tol", self.grad_tol, lambda x: 0 < x < 1, "a number between 0 and 1")
        check_value("search_products", self.search_products, lambda x: 0 <= x <= 1 << 53, "an integer from 0 to 2^53")


@dataclasses.dataclass(frozen=True)
class Slice:
    """The loss along unit eigenvectors of a checkpoint, and on the plane of the lowest and the highest."""

    slice: SliceConfig
    ckpt: Path
    """Run file to slice."""
    step: int
    """Stored step to slice at."""
    out: Path | None = None
    """Folder to write; None: reports/RUN-slices-STEP."""
    objective: Literal["data", "regularised"] = "data"
    """The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."""
    method: Literal["auto", "dense", "lanczos"] = "auto"
    """How the eigenvectors are found."""
    max_products: int = 3000
    """Hessian-vector products at most."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the products run."""
    overwrite: bool = False
    """Replace existing figures."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many runs and their analyses over all cores; repeated, it resumes where it stopped."""

    config: Path
    """JSON file of cases, grid, seeds and analyses."""
    out: Path = Path("checkpoints")
    """Folder to write; the files are OUT/NAME/CASE-FIELD=VALUE-sSEED.h5, and .hessian.h5 beside them."""
    jobs: int | None = None
    """Worker processes of one thread each; None: one a core."""
    overwrite: bool = False
    """Remove the files of the sweep that the folder holds, and start anew; other files are refused."""
    json: bool = False
    """Print the results as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self) -> None:
        if self.jobs is not None:
            check_value("jobs", self.jobs, lambda x: 1 <= x <= 1024, "an integer from 1 to 1024")


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures and a page from run files and Hessian files."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Run files, Hessian files or both; RUN.hessian.h5 beside a run is found by itself."""
    out: Path | None = None
    """Folder to write; None: reports/NAME of the first file."""
    overwrite: bool = False
    """Replace an earlier report; files that were added to its folder stay."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Info:
    """What a run file or Hessian file holds, what it lacks, and how to resume it."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    config: bool = False
    """Print the configuration as JSON, ready for --config, and nothing else."""
    json: bool = False
    """Print everything as one JSON document."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Whether every committed row of a file is whole. Exit code 0: complete; 1: damaged; 3: whole but unfinished."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    repair: bool = False
    """Trim an interrupted file to its committed rows; of a damaged one the original is kept beside it."""
    json: bool = False
    """Print everything as one JSON document."""


Command = Train | Hessian | Critical | Slice | Sweep | Report | Info | Check
