"""The parameters of a Transformer as its run file holds them: names, axes and lengths, by the options of the run."""

from __future__ import annotations

from landscape.config import TrainConfig
from landscape.files.schema import PARAM, Field

_MATRICES = {
    "Q": (("head_row", "embed"), "queries"),
    "K": (("head_row", "embed"), "keys"),
    "V": (("head_row", "embed"), "values"),
    "O": (("embed", "head_row"), "outputs of the heads"),
    "mlp_in": (("hidden", "embed"), "first linear layer"),
    "b_in": (("hidden",), "bias of the first linear layer"),
    "mlp_out": (("embed", "hidden"), "second linear layer"),
    "b_out": (("embed",), "bias of the second linear layer"),
    "norm_1": (("embed",), "scale of the LayerNorm of the attention"),
    "shift_1": (("embed",), "shift of the LayerNorm of the attention"),
    "norm_2": (("embed",), "scale of the LayerNorm of the MLP"),
    "shift_2": (("embed",), "shift of the LayerNorm of the MLP"),
}
"""Axes and meaning of what each layer has one of; row head * head_dim + i of a head_row belongs to that head."""
BIASES = ("b_in", "b_out")
NORMS = ("norm_1", "shift_1", "norm_2", "shift_2")


def parameters(config: TrainConfig) -> tuple[Field, ...]:
    """The parameters of a run's model in the order of block `all`, those of layer l named such as Q.l."""
    missing = {*(() if config.bias else BIASES), *(NORMS if config.norm == "none" else ())}
    found = [_field("E", ("token", "embed"), "embedding matrix")]
    if config.positions == "learned":
        found.append(_field("P", ("slot", "embed"), "embedding of the positions"))
    for layer in range(config.layers):
        for name, (dims, meaning) in _MATRICES.items():
            if name not in missing:
                found.append(_field(f"{name}.{layer}", dims, f"{meaning}, layer {layer}"))
    if config.norm == "pre":
        found.append(_field("norm", ("embed",), "scale of the last LayerNorm"))
        found.append(_field("shift", ("embed",), "shift of the last LayerNorm"))
    if not config.tied:
        found.append(_field("U", ("class", "embed"), "unembedding matrix"))
    return tuple(found)


def lengths(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes that only a Transformer has."""
    return {"head_row": config.embed_dim}


def _field(name: str, dims: tuple[str, ...], meaning: str) -> Field:
    return Field(name, dims, PARAM, meaning, needs=name)
