"""The file formats as data: what a dataset and a table are, and those of the run file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

VERSION = "1.1"
RUN = "landscape.run"
HESSIAN = "landscape.hessian"
PARAM = "param"
"""Stands for the run's own precision, f4 or f8."""

SPLIT: dict[str, object] = {"flag_values": [0, 1, 2], "flag_meanings": "train test unused"}
LEVEL: dict[str, object] = {"flag_values": [0, 1, 2, 3], "flag_meanings": "none estimated bracketed certified"}
LEVELS = str(LEVEL["flag_meanings"]).split()
UNKNOWN = -1
"""A count or step that is not known."""
MARKED: dict[str, object] = {"_FillValue": UNKNOWN}
"""Of the datasets that may hold UNKNOWN: by this attribute xarray and netCDF mask it."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One dataset: `dims` beyond the row axis of its table, storage type and description."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    long_name: str
    units: str = "1"
    formula: str = ""
    attrs: dict[str, object] = dataclasses.field(default_factory=dict)
    needs: str = ""
    """Parameter without which the dataset is left out."""
    since: str = "1.0"
    """Schema version that introduced the dataset; older files are read without it."""

    @property
    def description(self) -> dict[str, object]:
        """The attributes of the dataset."""
        formula = {"formula": self.formula} if self.formula else {}
        return {"units": self.units, "long_name": self.long_name, **self.attrs, **formula}


@dataclasses.dataclass(frozen=True)
class Table:
    """A group of datasets that share a first axis, `row`, and are committed row by row."""

    group: str
    row: str
    fields: tuple[Field, ...]

    def present(self, parameters: Collection[str]) -> Table:
        """The table of a model that has only these parameters."""
        kept = tuple(f for f in self.fields if not f.needs or f.needs in parameters)
        return dataclasses.replace(self, fields=kept)

    def at(self, version: str) -> Table:
        """The table as files of a schema version hold it."""
        kept = tuple(f for f in self.fields if release(f.since) <= release(version))
        return dataclasses.replace(self, fields=kept)


def release(version: str) -> tuple[int, ...]:
    """A version such as 1.0, to be compared with others."""
    return tuple(map(int, version.split(".")))


PARAMETERS = (
    Field("E", ("token", "embed"), PARAM, "embedding matrix", needs="E"),
    Field("W", ("hidden", "slot_embed"), PARAM, "weight of the first linear layer", needs="W"),
    Field("b1", ("hidden",), PARAM, "bias of the first linear layer", needs="b1"),
    Field("V", ("class", "hidden"), PARAM, "weight of the output layer", needs="V"),
    Field("b2", ("class",), PARAM, "bias of the output layer", needs="b2"),
)
CHECKPOINTS = Table("checkpoints", "step", PARAMETERS)

METRICS = Table(
    "metrics",
    "metric_step",
    (
        Field("train_loss", (), "f8", "mean cross-entropy over the training set", "nat"),
        Field("test_loss", (), "f8", "mean cross-entropy over the test set", "nat"),
        Field("train_accuracy", (), "f8", "share of training pairs answered rightly"),
        Field("test_accuracy", (), "f8", "share of test pairs answered rightly"),
        Field("grad_norm_E", (), "f8", "gradient norm of E", formula="|dL/dE|_F, whole training set", needs="E"),
        Field("grad_norm_W", (), "f8", "gradient norm of W", formula="|dL/dW|_F, whole training set"),
        Field("grad_norm_V", (), "f8", "gradient norm of V", formula="|dL/dV|_F, whole training set"),
        Field("weight_norm_E", (), "f8", "norm of E", formula="|E|_F", needs="E"),
        Field("weight_norm_W", (), "f8", "norm of W", formula="|W|_F"),
        Field("weight_norm_V", (), "f8", "norm of V", formula="|V|_F"),
        Field("sigma_max_E", (), "f8", "largest singular value of E", needs="E"),
        Field("sigma_max_W", (), "f8", "largest singular value of W"),
        Field("lr_E", (), "f8", "learning rate of E", needs="E"),
        Field("lr_W", (), "f8", "learning rate of W and of all that is not E"),
        Field(
            "prop41_ratio",
            (),
            "f8",
            "lr_E / lr_W that Proposition 4.1 asks for",
            formula="(sigma_max_E / sigma_max_W) * (f_W / f_E) with f_W = 1; NaN before the first batch",
            needs="E",
        ),
        Field(
            "f_E",
            (),
            "f8",
            "update frequency of operand tokens",
            formula="mean over operand tokens of the share of steps so far whose batch held the token",
            needs="E",
        ),
    ),
)

TOKENS = Table(
    "tokens",
    "step",
    (
        Field("count", ("token",), "i8", "steps so far whose batch held the token"),
        Field(
            "embedding_norm",
            ("token",),
            "f8",
            "norm of the token's embedding",
            formula="|E[token]|_2",
            needs="E",
        ),
        Field(
            "grad_norm",
            ("token",),
            "f8",
            "gradient norm of the token's embedding, accumulated",
            formula="sum over steps so far of |dL_batch/dE[token]|_2",
            needs="E",
        ),
    ),
)

MOMENTS = Table(
    "moments",
    "step",
    tuple(
        dataclasses.replace(f, name=f"v_{f.name}", long_name=f"Adam's second moment of {f.name}, not bias-corrected")
        for f in PARAMETERS
    ),
)
"""Only of runs with Adam or AdamW: with lr and beta_2 it is the preconditioner of the step."""

DATA = (
    Field("tokens", ("sample", "slot"), "i4", "input tokens"),
    Field("labels", ("sample",), "i4", "right answer"),
    Field("split", ("sample",), "i1", "use of the pair", attrs=SPLIT),
)

RESUME = Table(
    "resume",
    "resume_slot",
    (
        Field("step", (), "i8", "optimiser steps done"),
        *PARAMETERS,
        *(
            dataclasses.replace(f, name=f"{moment}_{f.name}", long_name=f"{text} of {f.name}")
            for moment, text in (("m", "first moment or momentum"), ("v", "second moment"))
            for f in PARAMETERS
        ),
        Field("rng", ("rng_word",), "u8", "state of the batch generator (PCG64)"),
        Field("order", ("train_sample",), "i8", "order of the training pairs in this epoch"),
        Field("position", (), "i8", "pairs of this epoch already used"),
        Field("count", ("token",), "i8", "steps so far whose batch held the token"),
        Field("grad_norm", ("token",), "f8", "accumulated gradient norm of the token's embedding", needs="E"),
        Field("token_probability", ("token",), "f8", "sampling probability of operand tokens"),
        Field("lr_ratio", (), "f8", "lr_E / lr_W in force"),
        Field("stop_step", (), "i8", "step at which the run will stop early; -1: not decided"),
    ),
)

RUN_TABLES = (CHECKPOINTS, METRICS, TOKENS, MOMENTS, RESUME)
COMMIT = Field(
    "crc32",
    (),
    "u8",
    "commit record",
    formula="2^32 + CRC-32 of the row's bytes, row label first and then the datasets in the order of the "
    "attribute `fields`; anything below 2^32: not written",
)
