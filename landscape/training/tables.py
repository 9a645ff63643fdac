"""The tables of a run file, and the steps that it has rows of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig
from landscape.errors import ConfigError
from landscape.files.rows import ROWS
from landscape.files.schema import Field, Scales, Table
from landscape.models import fields
from landscape.models.embedding_mlp.blocks import PARAMETERS
from landscape.models.text import read_text
from landscape.options import flag_of

SIGMA = ("E", "W")
"""Matrices whose largest singular value is followed."""


def _each(moment: str, meaning: str, parameters: Sequence[Field]) -> tuple[Field, ...]:
    """A dataset beside each parameter."""
    return tuple(
        dataclasses.replace(f, name=f"{moment}_{f.name}", long_name=meaning.format(f.name)) for f in parameters
    )


def _metrics(parameters: Sequence[Field]) -> Table:
    """Norms of each matrix, and what Proposition 4.1 needs where there are E and W."""
    names = [f.name for f in parameters]
    matrices = [f.name for f in parameters if len(f.dims) == 2]
    columns = [
        Field("train_loss", (), "f8", "mean cross-entropy over the training set", "nat"),
        Field("test_loss", (), "f8", "mean cross-entropy over the test set", "nat"),
        Field("train_accuracy", (), "f8", "share of training pairs answered rightly"),
        Field("test_accuracy", (), "f8", "share of test pairs answered rightly"),
    ]
    for n in matrices:
        formula = f"|dL/d{n}|_F, whole training set"
        columns.append(Field(f"grad_norm_{n}", (), "f8", f"gradient norm of {n}", formula=formula, needs=n))
    for n in matrices:
        columns.append(Field(f"weight_norm_{n}", (), "f8", f"norm of {n}", formula=f"|{n}|_F", needs=n))
    for n in SIGMA:
        if n in names:
            columns.append(Field(f"sigma_max_{n}", (), "f8", f"largest singular value of {n}", needs=n))
    meaning = "learning rate of E in the step after; a ratio lr_E / lr_W measured at a step is in the row after it"
    columns.append(Field("lr_E", (), "f8", meaning, needs="E"))
    if "W" in names:
        columns.append(Field("lr_W", (), "f8", "learning rate of W and of all that is not E"))
        formula = "(sigma_max_E / sigma_max_W) * (f_W / f_E) with f_W = 1; NaN before the first batch"
        meaning = "lr_E / lr_W that Proposition 4.1 asks for"
        columns.append(Field("prop41_ratio", (), "f8", meaning, formula=formula, needs="E"))
        shares = "exp(-sum p ln p), p the singular values of [T_1 ... T_s] as shares of their sum; T_k = E W_k^T"
        meaning = "effective rank of the tables; NaN where all are 0"
        columns.append(Field("effective_rank", (), "f8", meaning, formula=shares, needs="W"))
        formula = "sum of the singular values of [T_1 ... T_s]"
        columns.append(Field("nuclear_norm", (), "f8", "of the tables", formula=formula, needs="W"))
    else:
        columns.append(Field("lr", (), "f8", "learning rate of all that is not E"))
    formula = "mean over operand tokens of the share of steps so far whose batch held the token"
    columns.append(Field("f_E", (), "f8", "update frequency of operand tokens", formula=formula, needs="E"))
    return Table("metrics", "metric_step", tuple(columns))


TOKENS = Table(
    "tokens",
    "step",
    (
        Field("count", ("token",), "i8", "steps so far whose batch held the token"),
        Field("embedding_norm", ("token",), "f8", "norm of the token's embedding", formula="|E[token]|_2", needs="E"),
        Field(
            "grad_norm",
            ("token",),
            "f8",
            "gradient norm of the token's embedding, accumulated",
            formula="sum over steps so far in which E was not frozen of |dL_batch/dE[token]|_2",
            needs="E",
        ),
    ),
)


def tables_of(parameters: Sequence[Field], holds: bool = False) -> tuple[Table, ...]:
    """The tables of the file of a model with these parameters; holds: of a run whose steps avoid some directions."""
    resume = (
        Field("step", (), "i8", "optimiser steps done"),
        *parameters,
        *_each("m", "first moment or momentum of {}", parameters),
        *_each("v", "second moment of {}", parameters),
        *(_each("held", "{} at which the directions were found that steps avoid", parameters) if holds else ()),
        Field("rng", ("rng_word",), "u8", "state of the batch generator (PCG64)"),
        Field("order", ("train_sample",), "i8", "order of the training pairs in this epoch"),
        Field("position", (), "i8", "pairs of this epoch already used"),
        Field("count", ("token",), "i8", "steps so far whose batch held the token"),
        Field("grad_norm", ("token",), "f8", "accumulated gradient norm of the token's embedding", needs="E"),
        Field("token_probability", ("token",), "f8", "sampling probability of operand tokens"),
        Field("lr_ratio", (), "f8", "lr_E / lr_W in force"),
        Field("can_rise", (), "i8", "0: lr_ratio auto rises no more"),
        Field("initial_loss", (), "f8", "training loss at step 0, of lr_ratio auto", "nat"),
        Field("least_loss", (), "f8", "least training loss that lr_ratio auto has seen", "nat"),
        Field("ratio_of_least", (), "f8", "lr_E / lr_W that led to that"),
        Field("stop_step", (), "i8", "step at which the run will stop early; -1: not decided"),
    )
    return (
        Table("checkpoints", "step", tuple(parameters)),
        _metrics(parameters),
        TOKENS,
        Table(MOMENTS, "step", _each("v", "Adam's second moment of {}, not bias-corrected", parameters)),
        Table("resume", "resume_slot", resume, newest="step"),
        fields.DATA,
    )


MOMENTS = "moments"
"""Only of optimisers that have them: with lr and beta_2 it is the preconditioner of the step."""
TABLES = tables_of(PARAMETERS)
"""Those of an embedding MLP that has all of its parameters."""


def tables(config: TrainConfig) -> tuple[Table, ...]:
    """The tables of a run's file."""
    declared, dtype = fields.parameters(config), "f4" if config.dtype == "float32" else "f8"
    names, has_moments = [f.name for f in declared], OPTIMIZERS[config.optimizer].second_moments
    return tuple(
        t.present(names, dtype) for t in tables_of(declared, config.kick == "held") if t.group != MOMENTS or has_moments
    )


def scales(config: TrainConfig) -> Scales:
    """The axes of a run's file; words label the tokens of a text."""
    words = dict.fromkeys(("token", "class"), read_text(config).words) if config.reads_text else {}
    return {**{axis: range(n) for axis, n in {**fields.axes(config), "rng_word": 6}.items()}, **words}


def checkpoint_schedule(config: TrainConfig) -> list[int]:
    """All steps that get a checkpoint, including the first and the last.

    The log-spaced steps do not depend on the run's length, so that a longer run has those of a shorter one. Raises
    ConfigError for a rule that gives more checkpoints than a file can hold.
    """
    decades = math.log10(config.steps or 1)
    asked = {
        "checkpoint_every": config.steps // config.checkpoint_every if config.checkpoint_every else 0,
        "checkpoint_log": math.ceil(decades * config.checkpoint_log),
    }
    for rule, count in asked.items():
        if count > ROWS:
            raise ConfigError(
                f"{rule} {getattr(config, rule)} asks for {count:,} checkpoints; files have at most {ROWS:,}",
                f"{'lower' if rule == 'checkpoint_log' else 'raise'} {flag_of(rule)}, or lower --steps",
            )
    wanted = {0, config.steps, *config.checkpoint_at}
    if config.checkpoint_every:
        wanted.update(range(0, config.steps, config.checkpoint_every))
    wanted.update(round(10 ** (i / config.checkpoint_log)) for i in range(asked["checkpoint_log"]))
    return sorted(step for step in wanted if step <= config.steps)
