"""The tables of the Hessian file, whose datasets the quantities declare, and those of a critical point."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from landscape.config import AnalysisConfig
from landscape.files.inspect import FileState
from landscape.files.schema import Field, Table, counted
from landscape.measure.embeddings import LEVEL, PERMUTATIONS, STATISTICS, Statistic
from landscape.measure.quantities import QUANTITIES, density, tracking

BOOKKEEPING = (
    counted(
        "num_products",
        ("block",),
        "Hessian-vector products used; 0: assembled in closed form; missing (-1): not yet measured",
    ),
    Field("seconds", ("block",), "f8", "wall time of the block", "s"),
    Field(
        "recorded_loss",
        (),
        "f8",
        "training loss that the run recorded at this step, as train_loss, loss or training_loss; NaN: none",
        "nat",
    ),
    counted("previous_step", (), "analysed step that the tracking starts from; missing (-1): none"),
    counted("checkpoint_crc32", (), "commit record of the checkpoint; missing (-1): not known"),
)
ROOT = Table(
    "/",
    "step",
    (*(f for q in QUANTITIES for f in q.fields), *tracking.FIELDS, *density.FIELDS, *BOOKKEEPING),
)
"""All that a file may have of a step."""


def root_table(config: AnalysisConfig) -> Table:
    """What a file has of a step with these settings."""
    without = {name for q in QUANTITIES if not q.is_asked_for(config) for name in q.names}
    if config.only:
        without |= {field.name for field in tracking.FIELDS}
    if not config.density:
        without |= {field.name for field in density.FIELDS}
    return losses_in(dataclasses.replace(ROOT, fields=tuple(f for f in ROOT.fields if f.name not in without)), config)


def losses_in(table: Table, config: AnalysisConfig) -> Table:
    """The table of an analysis: a loss of the user's own problem may be anything, not in nat alone."""
    if not config.problem:
        return table
    fields = (dataclasses.replace(f, units="1") if f.units == "nat" else f for f in table.fields)
    return dataclasses.replace(table, fields=tuple(fields))


def density_table(blocks: tuple[str, ...]) -> Table:
    """The smoothed spectral densities of the blocks, on one grid of eigenvalues a step."""
    fields = [
        Field("eigenvalue", ("density_point",), "f8", "grid of eigenvalues"),
        Field("width", (), "f8", "standard deviation of the Gaussian that the densities are smoothed with"),
    ]
    for b in blocks:
        fields.append(Field(b, ("density_point",), "f8", f"spectral density of block {b}", "1 / eigenvalue"))
        fields.append(
            Field(
                f"{b}_error",
                ("density_point",),
                "f8",
                f"standard error of the density of block {b}: over probes, and what one step fewer of each changes",
                "1 / eigenvalue",
            )
        )
    return Table("density", "step", tuple(fields))


def vectors_table(blocks: tuple[str, ...]) -> Table:
    """The eigenvectors of the blocks, in the order of `eigenvalues`."""
    fields = tuple(Field(b, ("end", "rank", f"param_row_{b}"), "f8", f"unit eigenvectors of block {b}") for b in blocks)
    return Table("eigenvectors", "step", fields)


def spectrum_table(blocks: tuple[str, ...]) -> Table:
    """The full spectra of the dense blocks."""
    fields = tuple(Field(b, (f"param_row_{b}",), "f8", f"all eigenvalues of block {b}, ascending") for b in blocks)
    return Table("spectrum", "step", fields)


ENDS = {"end": ["lowest", "highest"], "sign": ["negative", "zero", "positive"]}
"""Labels of the axes that every file has."""


_STATUSES = "unfinished gradient-flat critical at-infinity"
STATUS: dict[str, object] = {"flag_values": [0, 1, 2, 3], "flag_meanings": _STATUSES}
POINT = (
    Field("status", (), "i1", "what the search for a critical point ended at", attrs=STATUS),
    Field("grad_norm", (), "f8", "gradient norm of the objective, all parameters"),
    Field("start_grad_norm", (), "f8", "gradient norm at the checkpoint"),
    Field("loss", (), "f8", "objective", "nat"),
    Field("start_loss", (), "f8", "objective at the checkpoint", "nat"),
    Field(
        "remaining",
        (),
        "f8",
        "predicted distance to the critical point; infinite: Newton steps do not shrink; NaN: the search began with a "
        "gradient that is rounding",
        formula="|s_i| / (1 - |s_i| / |s_(i-1)|), H s_i = -g",
    ),
    Field("flatness", (), "f8", "how flat H is along the gradient that is left", formula="|H g| / (|H| |g|)"),
    Field("distance", (), "f8", "distance from the checkpoint", formula="|theta - theta_checkpoint|_2"),
    Field("num_products", (), "i8", "Hessian-vector products of the search"),
)
SEARCH = (
    Field("step", (), "i8", "stored step that the search began at"),
    Field("checkpoint_crc32", (), "i8", "commit record of that checkpoint in the run file"),
    Field("radius", (), "f8", "radius of the trust region"),
    Field("largest", (), "f8", "radius of a restart"),
    Field("krylov_radius", (), "f8", "radius for which the Krylov space of this point was made; NaN: none yet"),
    Field("first", (), "f8", "gradient norm where the search began"),
    Field("norm", (), "f8", "largest |H| seen"),
    Field("newton", (), "f8", "length of the Newton step at the point before; NaN: none was taken"),
    Field("remaining", (), "f8", "predicted distance to the critical point; NaN: none yet"),
    Field("at_restart", (), "f8", "gradient norm at the last restart"),
    Field("stalled", (), "i8", "steps in a row that gained little"),
    Field("restarts", (), "i8", "restarts that gained little"),
    Field("iterations", (), "i8", "steps tried"),
    Field("num_products", (), "i8", "Hessian-vector products so far"),
)
SETTLED_STATUS: dict[str, object] = {"flag_values": [0, 1, 2], "flag_meanings": "unfinished settled stalled"}


def _before_and_after(name: str, long_name: str, units: str = "1", formula: str = "") -> tuple[Field, Field]:
    """A number at the point and at the checkpoint."""
    return (
        Field(name, (), "f8", long_name, units, formula),
        Field(f"start_{name}", (), "f8", f"{long_name}, at the checkpoint", units, formula),
    )


SETTLED = (
    Field("status", (), "i1", "what the descent ended at", attrs=SETTLED_STATUS),
    Field("num_steps", (), "i8", "steps of the descent"),
    Field("rate", (), "f8", "what the last step could move a parameter by"),
    Field("weight_decay", (), "f8", "lambda of what was descended: the data loss + lambda/2 |theta|^2"),
    Field("distance", (), "f8", "distance from the checkpoint", formula="|theta - theta_checkpoint|_2"),
    Field(
        "relative_distance",
        (),
        "f8",
        "that distance in units of the checkpoint",
        formula="distance / |theta_checkpoint|_2",
    ),
    *_before_and_after("grad_norm", "gradient norm of what was descended, all parameters"),
    *_before_and_after("objective", "what was descended", "nat"),
    *_before_and_after("loss", "data loss on the training set", "nat"),
    *_before_and_after("train_accuracy", "accuracy on the training set; NaN: not a run of `landscape train`"),
    *_before_and_after("test_accuracy", "accuracy on the test set; NaN: not a run of `landscape train`"),
    *_before_and_after(
        "saddle_excess",
        "what sigma_max(G) of F14 exceeds the weight decay by, at most 0 at a minimum; NaN: no embedding or no decay",
        formula="sigma_max(G) - lambda",
    ),
    *_before_and_after(
        "bias_gradient",
        "gradient of the data loss by the first layer's bias in decays; NaN: no embedding, bias or decay",
        formula="|dL/db_1| / lambda",
    ),
)
DESCENT = (
    Field("step", (), "i8", "stored step that the descent began at"),
    Field("checkpoint_crc32", (), "i8", "commit record of that checkpoint in the run file"),
    Field("rate", (), "f8", "what the next step can move a parameter by"),
    Field("first_rate", (), "f8", "the same of the first step"),
    Field("first", (), "f8", "gradient norm where the descent began"),
    Field("largest", (), "f8", "largest entry of any gradient so far"),
    Field("num_steps", (), "i8", "steps so far"),
    Field("averaged", (), "i8", "steps whose gradients are in the mean"),
)
MOMENTS = {"mean": "mean of the gradient by {}", "square": "mean of the squared gradient by {}"}
"""What Adam keeps of each parameter; datasets are named `mean_PARAMETER` and `square_PARAMETER`."""


def _tested(statistic: Statistic) -> tuple[Field, ...]:
    """A quantity with its permutation null."""
    name, reach = statistic.name, "falls to" if statistic.falls else "reaches"
    return (
        Field(name, (), "f8", statistic.long_name, formula=statistic.formula),
        Field(f"{name}_null", (), "f8", f"what {LEVEL:.0%} of the null {reach}"),
        Field(f"{name}_p", (), "f8", "its p-value", formula=f"(1 + draws of the null beyond it) / {1 + PERMUTATIONS}"),
    )


USED: dict[str, object] = {"flag_values": [0, 1], "flag_meanings": "unused used"}
GEOMETRY = Table(
    "/",
    "step",
    (
        Field(
            "component_share", ("component",), "f8", "variance share of a principal component", formula="l_i / sum l"
        ),
        Field("fourier_share", ("frequency",), "f8", "share of a frequency of the group's circle in the variance"),
        Field("frequency_in_use", ("frequency",), "i1", "whether it beats the null at 1 %", attrs=USED),
        counted("num_frequencies", (), "frequencies in use"),
        counted("top_frequency", (), "frequency of the largest share that has a circle; missing (-1): none"),
        Field("circle_r2", ("frequency",), "f8", "share of a frequency's plane that lies on its circle"),
        counted("plane_frequency", ("plane",), "frequencies of the largest shares; missing (-1): no more"),
        Field("plane_position", ("plane", "place", "side"), "f8", "the numbers in the plane of a frequency"),
        Field("spearman", ("coordinate",), "f8", "|Spearman rho| of a principal coordinate with the number"),
        Field("scaling_index", (), "f8", "exponent b for which number^b correlates best with the line's coordinate"),
        *(field for statistic in STATISTICS for field in _tested(statistic)),
        Field("loss", ("split",), "f8", "mean cross-entropy, without pairs that have no place", "nat"),
        Field("restricted_loss", ("split",), "f8", "that of the last step's frequencies in use alone", "nat"),
        Field("excluded_loss", ("split",), "f8", "that without the last step's frequencies in use", "nat"),
        counted("checkpoint_crc32", (), "commit record of the checkpoint"),
    ),
)
NUMBERS = Table("numbers", "", (Field("number", ("place",), "i8", "number at a place of the group's circle"),))
"""Places are those of 0, 1, ... for addition, and discrete logarithms for multiplication."""


def critical_table(parameters: Iterable[Field]) -> Table:
    """The refined parameters and how they were found."""
    return Table("critical_point", "step", (*parameters, *POINT))


def search_table(parameters: Iterable[Field]) -> Table:
    """The state of the search."""
    return Table("resume", "", (*parameters, *SEARCH))


def settled_table(parameters: Iterable[Field] = ()) -> Table:
    """How a descent went, and the settled parameters where they are stored."""
    return Table("settled", "step", (*parameters, *SETTLED))


def descent_table(parameters: Iterable[Field]) -> Table:
    """The state of the descent."""
    parameters = tuple(parameters)
    moments = (
        dataclasses.replace(one, name=f"{moment}_{one.name}", long_name=meaning.format(one.name))
        for moment, meaning in MOMENTS.items()
        for one in parameters
    )
    return Table("resume", "", (*parameters, *moments, *DESCENT))


def lacks(state: FileState) -> list[str]:
    """Missing parts of a Hessian file, and why."""
    full, blocks = state.holds("spectrum"), state.config.get("blocks", [])
    partial = [str(block) for block in blocks if block not in full]
    notes = (
        [f"no full spectrum of {', '.join(partial)}: --spectra full stores those of dense blocks"] if partial else []
    )
    if not state.holds("eigenvectors"):
        notes.append("no eigenvectors: --vectors stores them")
    return notes
