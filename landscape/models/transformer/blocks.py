"""Parameters, blocks, pairs and colours of a Transformer, as files, commands and figures name them."""

from __future__ import annotations

from collections.abc import Sequence

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
    fields = [_field("E", ("token", "embed"), "embedding matrix")]
    if config.positions == "learned":
        fields.append(_field("P", ("slot", "embed"), "embedding of the positions"))
    for layer in range(config.layers):
        for name, (dims, meaning) in _MATRICES.items():
            if name not in missing:
                fields.append(_field(f"{name}.{layer}", dims, f"{meaning}, layer {layer}"))
    if config.norm == "pre":
        fields.append(_field("norm", ("embed",), "scale of the last LayerNorm"))
        fields.append(_field("shift", ("embed",), "shift of the last LayerNorm"))
    if not config.tied:
        fields.append(_field("U", ("class", "embed"), "unembedding matrix"))
    return tuple(fields)


def lengths(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes that only a Transformer has."""
    return {"head_row": config.embed_dim}


def _field(name: str, dims: tuple[str, ...], meaning: str) -> Field:
    return Field(name, dims, PARAM, meaning, needs=name)


COLOURS = {
    "P": 6,
    "Q": 1,
    "K": 3,
    "O": 5,
    "mlp_in": 2,
    "mlp_out": 9,
    "U": 8,
    "E,Q,K": 0,
    "Q,K": 3,
    "V,O": 4,
    "mlp_in,mlp_out": 2,
    "E,U": 1,
    "E,mlp_in": 9,
}
"""Palette colour of each block in figures: those of single blocks differ, and those of pairs."""


MATRICES = ("E", "P", "Q", "K", "V", "O", "mlp_in", "mlp_out", "U")
PAIRS = (("E", "Q,K"), ("Q", "K"), ("V", "O"), ("mlp_in", "mlp_out"), ("E", "U"), ("E", "mlp_in"))
DEFAULT_BLOCKS = ("E", "Q", "K", "V", "O", "mlp_in", "mlp_out", "U", *map(",".join, PAIRS))
Groups = dict[str, tuple[str, ...]]


def blocks_of(parameters: Sequence[str]) -> Groups:
    """Each kind of matrix over all layers, joint blocks of the pairs, `all`, and each parameter such as Q.0."""
    kinds = _by_kind(parameters)
    joints = {",".join(pair): pair for pair in (*PAIRS[1:], PAIRS[0])}
    blocks = {kind: kinds[kind] for kind in MATRICES if kind in kinds}
    for block, (first, second) in joints.items():
        if first in blocks and second in blocks:
            blocks[block] = (*blocks[first], *blocks[second])
    return blocks | {"all": tuple(parameters)} | {name: (name,) for name in parameters if name not in blocks}


def pairs_of(blocks: Groups) -> tuple[tuple[str, str], ...]:
    """The pairs that a model with these blocks has; a tied one has no U."""
    return tuple(pair for pair in PAIRS if ",".join(pair) in blocks)


def parts_of(parameters: Sequence[str]) -> Groups:
    """Matrices by kind, all biases, and what belongs to LayerNorms."""
    kinds = _by_kind(parameters)
    parts = {kind: kinds[kind] for kind in MATRICES if kind in kinds}
    for part, members in (("bias", BIASES), ("norm", (*NORMS, "norm", "shift"))):
        if names := tuple(name for kind in members for name in kinds.get(kind, ())):
            parts[part] = names
    return parts


def _by_kind(parameters: Sequence[str]) -> Groups:
    by_kind: dict[str, list[str]] = {}
    for name in parameters:
        by_kind.setdefault(name.partition(".")[0], []).append(name)
    return {kind: tuple(names) for kind, names in by_kind.items()}
