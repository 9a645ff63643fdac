"""A Transformer on arithmetic pairs as a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.config import TrainConfig
from landscape.models.embedding_mlp.problem import mean_cross_entropy
from landscape.models.problem import Arrays, ParameterSpec, Plain
from landscape.models.trained import TrainedProblem
from landscape.models.transformer.blocks import DEFAULT_BLOCKS, blocks_of, pairs_of, parameters, parts_of
from landscape.models.transformer.model import Transformer, plain_model
from landscape.models.transformer.structure import MOST_KEPT, TransformerStructure


class TransformerProblem(TrainedProblem):
    """A run of `landscape train --model transformer` (cf. `Problem`); products take automatic differentiation."""

    def __init__(self, train: TrainConfig, data: Arrays, device: torch.device, chunk_size: int) -> None:
        super().__init__(train, data, device, chunk_size)
        shapes = {n: tuple(p.shape) for n, p in self.model.named_parameters()}
        self.parameters = {f.name: ParameterSpec(shapes[f.name], f.dims, f.long_name) for f in parameters(train)}
        blocks = blocks_of(list(self.parameters))
        self.blocks, self.pairs, self.parts = blocks, pairs_of(blocks), parts_of(list(self.parameters))
        self.default_blocks = tuple(b for b in DEFAULT_BLOCKS if b in blocks)

    def network(self) -> Transformer:
        return Transformer(self.train)

    def structure(self, params: Mapping[str, Tensor], decay: float) -> TransformerStructure:
        """What is known at a point."""
        return TransformerStructure(self.train, params, self.tokens, self.labels, decay)

    def has_closed_form(self, names: Sequence[str]) -> bool:
        """Those of a network whose columns are kept; of a larger one, the last layer's are not worth an exception."""
        return sum(p.numel() for p in self.model.parameters()) <= MOST_KEPT

    def plain(self, arrays: Arrays) -> Plain:
        """torch's own multi-head attention, LayerNorm and Linear."""
        model, named = plain_model(self.train, arrays, self.device)
        return Plain(model, named, self.tokens, self.labels, mean_cross_entropy)
