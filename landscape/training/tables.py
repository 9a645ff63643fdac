"""The tables of a run file, and those that a run has."""

from __future__ import annotations

import dataclasses

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig
from landscape.problems.embedding_mlp.fields import DATA, PARAMETERS, axes, parameters
from landscape.storage.inspect import FileState
from landscape.storage.schema import Field, Scales, Table


def _each(moment: str, meaning: str) -> tuple[Field, ...]:
    """A dataset beside each parameter."""
    return tuple(
        dataclasses.replace(f, name=f"{moment}_{f.name}", long_name=meaning.format(f.name)) for f in PARAMETERS
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
MOMENTS = Table("moments", "step", _each("v", "Adam's second moment of {}, not bias-corrected"))
"""Only of optimisers that have them: with lr and beta_2 it is the preconditioner of the step."""
RESUME = Table(
    "resume",
    "resume_slot",
    (
        Field("step", (), "i8", "optimiser steps done"),
        *PARAMETERS,
        *_each("m", "first moment or momentum of {}"),
        *_each("v", "second moment of {}"),
        Field("rng", ("rng_word",), "u8", "state of the batch generator (PCG64)"),
        Field("order", ("train_sample",), "i8", "order of the training pairs in this epoch"),
        Field("position", (), "i8", "pairs of this epoch already used"),
        Field("count", ("token",), "i8", "steps so far whose batch held the token"),
        Field("grad_norm", ("token",), "f8", "accumulated gradient norm of the token's embedding", needs="E"),
        Field("token_probability", ("token",), "f8", "sampling probability of operand tokens"),
        Field("lr_ratio", (), "f8", "lr_E / lr_W in force"),
        Field("stop_step", (), "i8", "step at which the run will stop early; -1: not decided"),
    ),
    newest="step",
)
TABLES = (CHECKPOINTS, METRICS, TOKENS, MOMENTS, RESUME, DATA)


def tables(config: TrainConfig) -> tuple[Table, ...]:
    """The tables of a run's file."""
    names, dtype = parameters(config), "f4" if config.dtype == "float32" else "f8"
    moments = OPTIMIZERS[config.optimizer].second_moments
    return tuple(t.present(names, dtype) for t in TABLES if t is not MOMENTS or moments)


def scales(config: TrainConfig) -> Scales:
    """The axes of a run's file."""
    return {axis: range(n) for axis, n in {**axes(config), "rng_word": 6}.items()}


def lacks(state: FileState) -> list[str]:
    """Missing parts of a run file, and why."""
    config = {**dataclasses.asdict(TrainConfig()), **state.config}
    held = state.holds("checkpoints")
    absent = [f.name for f in PARAMETERS if f.name not in held]
    notes = [f"no {', '.join(absent)}: model {config['model']}, bias {config['bias']}"] if absent else []
    if not state.holds("moments"):
        notes.append(f"no second moments: optimizer {config['optimizer']}")
    return notes
