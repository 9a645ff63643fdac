"""Directions along which a Transformer's loss does not change at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.config import TrainConfig


class NullVectors:
    """U -> U + 1 c^T, and E[x] + c against P[slot] - c for the tokens x that only these slots hold.

    They are exact null vectors of the cross-entropy at every point: the softmax takes no notice of what all logits
    have in common, and E and P only act by their sum. params: those of the block `names` and others; groups: tokens
    and slots that belong together. dimension: embed_dim for U, and for each group if the block holds E and P.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        names: Sequence[str],
        groups: Sequence[tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        self.names, self.sizes = list(names), [params[n].numel() for n in names]
        self.d = params["E"].shape[1]
        self._shifts: list[Tensor] = []
        if {"E", "P"} <= set(names):
            vocabulary, slots = len(params["E"]), len(params["P"])
            for tokens, places in groups:
                shift = params["E"].new_zeros(vocabulary + slots)
                shift[list(tokens)] = 1.0
                shift[[vocabulary + place for place in places]] = -1.0
                self._shifts.append(shift / shift.norm())
        self.dimension = self.d * (len(self._shifts) + ("U" in names))

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        pieces = dict(zip(self.names, vectors.split(self.sizes), strict=True))
        if "U" in pieces:
            by_class = pieces["U"].reshape(-1, self.d, *vectors.shape[1:])
            pieces["U"] = (by_class - by_class.mean(0)).reshape(pieces["U"].shape)
        if self._shifts:
            both = torch.cat([pieces["E"], pieces["P"]])
            rows = both.reshape(-1, self.d, *vectors.shape[1:])
            for shift in self._shifts:
                rows = rows - torch.tensordot(shift, torch.tensordot(shift, rows, 1), 0)
            both = rows.reshape(both.shape)
            pieces["E"], pieces["P"] = both.split([len(pieces["E"]), len(pieces["P"])])
        return torch.cat(list(pieces.values()))


def groups(config: TrainConfig) -> list[tuple[range, list[int]]]:
    """Tokens with the slots that only they are in: the operands, and each mark beside them; or all words."""
    if config.reads_text:
        return [(range(config.num_tokens), list(range(config.slots)))]
    operands = {2: [0, 1], 3: [0, 1], 4: [0, 2]}[config.tokens]
    marks = [slot for slot in range(config.tokens) if slot not in operands]
    tokens = range(config.p, config.num_tokens)
    return [(range(config.p), operands), *((range(t, t + 1), [slot]) for t, slot in zip(tokens, marks, strict=True))]
