"""Dense blocks of a small Transformer's Hessian, from products that share what they can, and its exact null vectors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.config import TrainConfig
from landscape.curvature.deflation import Directions, Spanned
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import differentiable, gradients
from landscape.curvature.symmetry import symmetrised
from landscape.models.transformer.head import LastMLP
from landscape.models.transformer.invariance import null_vectors
from landscape.models.transformer.model import Transformer, load_model

_MOST = 1 << 13
"""Parameters of a model whose columns are kept for all blocks of a checkpoint: half a gigabyte."""


class TransformerStructure:
    """What is known of a Transformer at one point (cf. `Structure`); products take automatic differentiation.

    A dense block is put together from columns of the whole Hessian, each of which is computed once and in one way
    whatever the block. Where nothing lies between the last MLP and the logits, its own blocks and that of U are closed
    forms, and the products of the columns before give the rest by symmetry. Columns of an embedding take the samples
    that hold its token.
    """

    def __init__(
        self, train: TrainConfig, params: Mapping[str, Tensor], tokens: Tensor, labels: Tensor, decay: float
    ) -> None:
        self.train, self.decay, self._params = train, decay, params
        self.tokens, self.labels = tokens, labels
        self._size = sum(p.numel() for p in params.values())
        self._found: dict[tuple[str, bool], Tensor] = {}

    def operator(self) -> None:
        """Automatic differentiation has to do."""

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        """A diagonal block or its Gauss-Newton part; None where it takes more columns than may be kept."""
        if self._size > _MOST and not self._late.keys() >= set(names):
            return None
        matrix = torch.cat([torch.cat([self._piece(a, b, gauss_newton) for b in names], dim=1) for a in names])
        matrix.diagonal().add_(self.decay)
        return matrix

    def starts(self, names: Sequence[str], k: int) -> tuple[Tensor | None, int]:
        """No start is known to be near."""
        return None, 0

    def null_vectors(self, names: Sequence[str]) -> Directions | None:
        """Those of the data loss alone, which decay moves (F17)."""
        found = null_vectors(self.train, self._params, self.tokens, names)
        return found if found.dimension and not self.decay else None

    def gauge(self, names: Sequence[str]) -> Spanned | None:
        """Not derived for a Transformer."""
        return None

    def bounds(self, names: Sequence[str]) -> Mapping[str, float]:
        """Nothing is known beforehand."""
        return {}

    def _piece(self, a: str, b: str, gauss_newton: bool) -> Tensor:
        """d2 L / (d a d b), to the last bit the transpose of d2 L / (d b d a)."""
        if a in self._late and b in self._late:
            return self._heads[gauss_newton].piece(self._late[a], self._late[b])
        first, second = sorted((a, b), key=lambda name: (name in self._late, self._places[name].start))
        found = self._columns(first, gauss_newton)[self._places[second]]
        if a == b:
            return symmetrised(found.clone())
        return found if second == a else found.T

    @functools.cached_property
    def _model(self) -> Transformer:
        return load_model(self.train, self._params)

    @functools.cached_property
    def _theta(self) -> dict[str, Tensor]:
        """The model's parameters in the order of the blocks' rows."""
        theta = dict(self._model.named_parameters())
        return {name: theta[name] for name in self._params}

    @functools.cached_property
    def _places(self) -> dict[str, slice]:
        """Where each parameter stands among all."""
        ends = itertools.accumulate(p.numel() for p in self._params.values())
        return {n: slice(end - p.numel(), end) for (n, p), end in zip(self._params.items(), ends, strict=True)}

    @functools.cached_property
    def _late(self) -> dict[str, str]:
        """The parameters behind the last attention by their names in `LastMLP`, where its formulas hold."""
        train = self.train
        if train.norm != "none" or train.tied:
            return {}
        layer = train.layers - 1
        found = {f"{kind}.{layer}": kind for kind in ("mlp_in", "b_in", "mlp_out", "b_out")}
        return {name: kind for name, kind in (found | {"U": "U"}).items() if name in self._params}

    @functools.cached_property
    def _heads(self) -> dict[bool, LastMLP]:
        """By whether they give the Gauss-Newton part."""
        with torch.no_grad():
            x = self._model.before_last_mlp(self.tokens)
        params = {kind: self._theta[name].detach() for name, kind in self._late.items()}
        kinds = (False, True)
        return {kind: LastMLP(params, x, self.labels, self._model.activation, kind) for kind in kinds}

    def _columns(self, name: str, gauss_newton: bool) -> Tensor:
        """The whole Hessian's columns of a parameter."""
        if (name, gauss_newton) not in self._found:
            tokens, size = self.tokens, self._theta[name].numel()
            if name == "E" and not self.train.tied:
                d = self.train.embed_dim
                held = [(tokens == token).any(1).nonzero()[:, 0] for token in range(size // d)]
                found = [
                    self._derivatives(name, slice(i * d, i * d + d), some, gauss_newton) for i, some in enumerate(held)
                ]
                self._found[name, gauss_newton] = torch.cat(found, dim=1)
            else:
                everything = torch.arange(len(tokens), device=tokens.device)
                self._found[name, gauss_newton] = self._derivatives(name, slice(0, size), everything, gauss_newton)
        return self._found[name, gauss_newton]

    @differentiable
    def _derivatives(self, name: str, at: slice, samples: Tensor, gauss_newton: bool) -> Tensor:
        """Derivatives of entries of a parameter's gradient by all parameters, (parameter, entry), from some samples."""
        if not len(samples):
            return self._theta[name].new_zeros(self._size, at.stop - at.start)
        logits = self._model(self.tokens[samples])
        losses = _quadratic(logits) if gauss_newton else cross_entropy(logits, self.labels[samples])
        loss = losses.sum() / len(self.tokens)
        (slopes,) = gradients(loss, [self._theta[name]], create_graph=True)
        slopes = slopes.reshape(-1)[at]
        found = slopes.new_empty(self._size, len(slopes))
        for column, unit in zip(found.T, torch.eye(len(slopes)).to(slopes), strict=True):
            rows = gradients(slopes, self._theta.values(), unit, keep=True)
            torch.cat([row.reshape(-1) for row in rows], out=column)
        return found


def _quadratic(logits: Tensor) -> Tensor:
    """The second-order term alone of the cross-entropy in the logits (sample, class) about where they are."""
    at = logits.detach()
    p, moved = at.softmax(1), logits - at
    # Only differences count: relative to the likeliest class nothing cancels at any loss.
    moved = moved - moved.gather(1, at.argmax(1, keepdim=True))
    return 0.5 * (p * (moved - (p * moved).sum(1, keepdim=True)).square()).sum(1)
