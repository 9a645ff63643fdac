"""The blocks of a Transformer, the pairs among them, and on which parameters the mass of eigenvectors is reported."""

from __future__ import annotations

from collections.abc import Sequence

from landscape.models.problem import joint
from landscape.models.transformer.fields import BIASES, NORMS

MATRICES = ("E", "P", "Q", "K", "V", "O", "mlp_in", "mlp_out", "U")
PAIRS = (("E", "Q,K"), ("Q", "K"), ("V", "O"), ("mlp_in", "mlp_out"), ("E", "U"), ("E", "mlp_in"))
DEFAULT_BLOCKS = ("E", "Q", "K", "V", "O", "mlp_in", "mlp_out", "U", *map(joint, PAIRS), "all")
Groups = dict[str, tuple[str, ...]]


def blocks_of(parameters: Sequence[str]) -> Groups:
    """Each kind of matrix over all layers, joint blocks of the pairs, `all`, and each parameter such as Q.0."""
    kinds = _by_kind(parameters)
    joints = {joint(pair): pair for pair in (*PAIRS[1:], PAIRS[0])}
    found = {kind: kinds[kind] for kind in MATRICES if kind in kinds}
    for block, (first, second) in joints.items():
        if first in found and second in found:
            found[block] = (*found[first], *found[second])
    return found | {"all": tuple(parameters)} | {name: (name,) for name in parameters if name not in found}


def pairs_of(blocks: Groups) -> tuple[tuple[str, str], ...]:
    """The pairs that a model with these blocks has; a tied one has no U."""
    return tuple(pair for pair in PAIRS if joint(pair) in blocks)


def parts_of(parameters: Sequence[str]) -> Groups:
    """Matrices by kind, all biases, and what belongs to LayerNorms."""
    kinds = _by_kind(parameters)
    found = {kind: kinds[kind] for kind in MATRICES if kind in kinds}
    for part, members in (("bias", BIASES), ("norm", (*NORMS, "norm", "shift"))):
        if names := tuple(name for kind in members for name in kinds.get(kind, ())):
            found[part] = names
    return found


def _by_kind(parameters: Sequence[str]) -> Groups:
    found: dict[str, list[str]] = {}
    for name in parameters:
        found.setdefault(name.partition(".")[0], []).append(name)
    return {kind: tuple(names) for kind, names in found.items()}
