"""Parameters, blocks and pairs of the embedding MLP, as files and commands name them."""

from __future__ import annotations

from landscape.config import TrainConfig
from landscape.errors import lookup
from landscape.files.schema import PARAM, Field

PARAMETERS = (
    Field("E", ("token", "embed"), PARAM, "embedding matrix", needs="E"),
    Field("W", ("hidden", "slot_embed"), PARAM, "weight of the first linear layer", needs="W"),
    Field("b1", ("hidden",), PARAM, "bias of the first linear layer", needs="b1"),
    Field("V", ("class", "hidden"), PARAM, "weight of the output layer", needs="V"),
    Field("b2", ("class",), PARAM, "bias of the output layer", needs="b2"),
)


def parameters(config: TrainConfig) -> tuple[Field, ...]:
    """The parameters that the model of a run has."""
    missing = {*(() if config.model == "embedding" else ("E",)), *(() if config.bias else ("b1", "b2"))}
    return tuple(f for f in PARAMETERS if f.name not in missing)


def lengths(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes that only this model has."""
    d, vocabulary = config.embed_dim, config.num_tokens
    widths = {"embedding": d, "onehot": vocabulary, "tables": vocabulary, "scalar": 1}
    width = lookup(widths, "model", config.model)
    return {"slot_embed": config.slots * width}


BLOCKS: dict[str, tuple[str, ...]] = {
    "E": ("E",),
    "W": ("W",),
    "V": ("V",),
    "E,W": ("E", "W"),
    "W,V": ("W", "V"),
    "E,V": ("E", "V"),
    "all": ("E", "W", "b1", "V", "b2"),
}
PAIRS = (("E", "W"), ("W", "V"), ("E", "V"))
DEFAULT_BLOCKS = ("E", "W", "E,W", "W,V")
PARTS: dict[str, tuple[str, ...]] = {"E": ("E",), "W": ("W",), "V": ("V",), "bias": ("b1", "b2")}
"""Parameters on which the mass of eigenvectors is reported."""
CLAIM, CONTROL = "E,W", "W,V"
"""The pair of the claims, and its control: both are products of two factors."""
BALANCED = ("E", "W")
"""The two factors whose learning rates Proposition 4.1 balances."""
RATE_RATIO = "lr_E/lr_W"
"""Label of the option `lr_ratio` in reports."""
COLOURS = {
    "E": 0,
    "W": 1,
    "V": 4,
    "E,W": 3,
    "W,V": 2,
    "E,V": 5,
    "all": 7,
    "E[operands]": 8,
    "E[operands],W": 9,
}
"""Palette colour of each block in figures."""
