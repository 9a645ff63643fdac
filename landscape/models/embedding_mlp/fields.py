"""The parameters of the embedding MLP as files hold them: names, axes and lengths."""

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
