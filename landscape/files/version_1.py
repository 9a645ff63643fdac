"""The layout of files of version 1, which do not declare it. Frozen.

Their tables name their datasets in the attribute `fields` of the checksums, and their datasets have descriptions; axes
and types follow from the options of the run and analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landscape.files.guard import Guard
from landscape.files.layout import FIELDS, to_json
from landscape.files.schema import LEVEL, MARKED, RUN, Field, Table
from landscape.text import printable

_PARAMETERS = {"E": "token embed", "W": "hidden slot_embed", "b1": "hidden", "V": "class hidden", "b2": "class"}
_BY_TOKEN = {"count", "embedding_norm", "grad_norm", "token_probability"}
_OF_RUN = {"rng": ("rng_word", "u8"), "order": ("train_sample", "i8")}
_DATA = {"tokens": ("sample slot", "i4"), "labels": ("sample", "i4"), "split": ("sample", "i1")}
_OF_HESSIAN = {
    "block end rank": "eigenvalues residual_norm converged previous_rank previous_overlap",
    "block end rank part": "eigenvector_mass",
    "block end": "hidden subspace_overlap crossings",
    "block sign": "inertia",
    "block part": "bottom_mass",
    "block part rank": "principal_angles",
    "block other_block": "jensen_shannon jensen_shannon_error",
    "pair": "coupling_strength coupling_index",
    "pair rank": "coupling_ratios coupling_ratio_error coupling_ratio_distance",
    "": "sharpness_gd sharpness_adam train_loss curvature_ratio curvature_ratio_predicted gradient_ratio "
    "gradient_ratio_predicted prop41_ratio saddle_bound saddle_rank_bound previous_step checkpoint_crc32",
}
"""Axes of the root's datasets; all others have one row per block."""
_MARKED = {
    "num_products", "inertia", "inertia_lower", "inertia_upper", "saddle_index_gauge_free", "previous_rank",
    "crossings", "coupling_index", "saddle_rank_bound", "previous_step", "checkpoint_crc32",
}  # fmt: skip
_INTEGERS = _MARKED | {"step", "position", "count", "stop_step", "stalled", "restarts", "iterations"}
_BYTES = {"converged", "inertia_level", "status"}
_CODES: dict[str, dict[str, object]] = {
    "inertia_level": LEVEL,
    "split": {"flag_values": [0, 1, 2], "flag_meanings": "train test unused"},
    "status": {"flag_values": [0, 1, 2], "flag_meanings": "unfinished gradient-flat critical"},
}
_LABELS = {
    "pair": ["E,W", "W,V", "E,V"],
    "end": ["lowest", "highest"],
    "sign": ["negative", "zero", "positive"],
    "part": ["E", "W", "V", "bias"],
}


def layout(guard: Guard, kind: str, config: Mapping[str, Any]) -> str:
    """The layout of a file. Raises FileError, TypeError or LookupError for invalid files."""
    if kind == RUN:
        precision = {"float32": "f4", "float64": "f8"}[config["dtype"]]
        moments = [] if config["optimizer"] == "sgd" else ["moments"]
        groups = ["checkpoints", "metrics", "tokens", *moments, "resume"]
        tables = [Table("data", "", tuple(_described(guard, "data", name, *of) for name, of in _DATA.items()))]
        labels: dict[str, list[str]] = {}
    else:
        precision = "f8"
        groups = ["/", "spectrum", "density", *(["eigenvectors"] if config["eigenvectors"] else [])]
        groups += ["critical_point"] if "steps" not in config or guard.has("critical_point") else []
        groups += ["resume"] if guard.has("resume") else []
        blocks = list(map(printable, config["blocks"]))
        tables, labels = [], {"block": blocks, "other_block": blocks, **_LABELS}
    return to_json([*(_table(guard, kind, group, precision) for group in groups), *tables], labels)


def _table(guard: Guard, kind: str, group: str, precision: str) -> Table:
    named = guard.require("fields", str, guard.open(guard.group(group), "crc32", f"{group}/crc32"))
    names = str(named).split(maxsplit=FIELDS)
    fields = (_described(guard, group, name, *_shape(kind, group, name, precision)) for name in names)
    if group == "resume":
        return Table(group, "resume_slot", tuple(fields), "step" if kind == RUN else "iterations")
    return Table(group, "metric_step" if group == "metrics" else "step", tuple(fields))


def _shape(kind: str, group: str, name: str, precision: str) -> tuple[str, str]:
    """Axes and type of a dataset."""
    bare = name[2:] if kind == RUN and name[:2] in ("m_", "v_") else name
    integer = "i1" if name in _BYTES else "i8" if name in _INTEGERS else "f8"
    match group:
        case "/":
            return next((dims for dims, names in _OF_HESSIAN.items() if name in names.split()), "block"), integer
        case "spectrum":
            return f"param_row_{name}", "f8"
        case "eigenvectors":
            return f"end rank param_row_{name}", "f8"
        case "density":
            return "" if name == "width" else "density_point", "f8"
        case _ if bare in _PARAMETERS:
            return _PARAMETERS[bare], precision
        case _ if name in _OF_RUN:
            return _OF_RUN[name]
    return "token" if name in _BY_TOKEN and group in ("tokens", "resume") else "", integer


def _described(guard: Guard, group: str, name: str, dims: str, dtype: str) -> Field:
    """A field with the description of its dataset."""
    owner = guard.open(guard.group(group), name, f"{group}/{name}".lstrip("/"))
    long_name, units, formula = (
        printable(guard.attribute(what, str, owner) or "") for what in ("long_name", "units", "formula")
    )
    marks = MARKED if group == "/" and name in _MARKED else {}
    return Field(name, tuple(dims.split()), dtype, long_name, units, formula, _CODES.get(name, marks))
