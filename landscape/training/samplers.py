"""The batches of a run (arXiv 2505.15624, section 4): shuffled epochs, or drawn by token probabilities.

Sampler `frequency_aware` draws by probabilities that follow the gradients; a batch of the whole training set leaves
nothing to draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.choices.samplers import SAMPLERS
from landscape.config import TrainConfig
from landscape.models.tasks import Floats, Ints, operands


class BatchSampler:
    """Draws batches of training-pair indices; its state can be stored and restored."""

    def __init__(self, config: TrainConfig, tokens: NDArray[np.int32], batch_size: int) -> None:
        self.p, self.operands = config.classes, tokens if config.reads_text else operands(tokens)
        self.batch_size = batch_size
        self.follow = SAMPLERS[config.sampler].follow
        self.rng = np.random.default_rng([config.seed, 1])
        self.probability: Floats = np.full(config.num_tokens, 1.0 / self.p)
        self.probability[self.p :] = 0.0
        self.order: Ints = np.arange(len(tokens))
        self.position = len(tokens)

    def refresh(self, gradient_norm: Floats) -> None:
        """Set the token probabilities by the norms of the embeddings' gradients, for a sampler that follows them."""
        if self.follow:
            self.probability[: self.p] = self.follow(gradient_norm[: self.p])

    def draw(self) -> Ints | None:
        """Indices of the next batch; None for the whole training set."""
        size = len(self.order)
        if self.batch_size >= size:
            return None
        if self.follow:
            # Of the words of a text most probabilities are so small that their products underflow.
            log_share = np.log(np.maximum(self.probability, np.finfo(float).tiny))[self.operands].sum(axis=1)
            cumulative = np.cumsum(np.exp(log_share - log_share.max()))
            at = self.rng.random(self.batch_size) * cumulative[-1]
            drawn: Ints = np.searchsorted(cumulative, at, side="right").clip(max=size - 1)
            return drawn
        if self.position + self.batch_size > size:
            self.order, self.position = self.rng.permutation(size), 0
        self.position += self.batch_size
        return self.order[self.position - self.batch_size : self.position]

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as fixed-size arrays."""
        state = self.rng.bit_generator.state
        inner = state["state"]
        words = [inner[k] >> shift & (2**64 - 1) for k in ("state", "inc") for shift in (0, 64)]
        return {
            "rng": np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64),
            "order": self.order,
            "position": self.position,
            "token_probability": self.probability,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly from `state`."""
        w = [int(x) for x in state["rng"]]
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": w[0] | w[1] << 64, "inc": w[2] | w[3] << 64},
            "has_uint32": w[4],
            "uinteger": w[5],
        }
        self.order, self.position = state["order"].copy(), int(state["position"])
        self.probability = state["token_probability"].copy()
