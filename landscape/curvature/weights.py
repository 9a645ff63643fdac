"""What each sample or token counts in the mean, as the loss and the caller declare it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from landscape.curvature.checks import blaming
from landscape.curvature.data import Tree, shapes, tensors_of
from landscape.errors import ArgumentError, kind_of

IGNORED = -100
"""The target of tokens that are left out, as in torch.nn.functional.cross_entropy."""
WeightFunction = Callable[[Tree], Tensor]
"""From targets to one weight for each sample (n,) or token (n, T)."""
_WEIGHTED = (nn.functional.cross_entropy, nn.functional.nll_loss)


class Weights:
    """L = sum of w_i loss_i / sum of w_i c_i over samples or tokens i.

    w_i: 0 for ignored tokens, else what `function` gives for the targets, 1 without it. c_i: the weight of the class of
    sample i where the loss has class weights (and has taken its value times that), as the mean of nn.CrossEntropyLoss;
    1 where it has none.
    """

    def __init__(self, loss: Any, per_token: bool, function: WeightFunction | None) -> None:
        keywords = getattr(loss, "keywords", {})
        self._ignored = getattr(loss, "ignore_index", keywords.get("ignore_index", IGNORED))
        is_weighted = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) or getattr(loss, "func", None) in _WEIGHTED
        found = getattr(loss, "weight", keywords.get("weight")) if is_weighted else None
        self._classes: Tensor | None = None if found is None else found.detach().double()
        self.axes, self._function = 1 + per_token, function

    def shape(self, targets: Tree) -> tuple[int, ...]:
        """The shape of the values of the loss: (n,), or (n, T) of tokens."""
        return tuple(tensors_of(targets)[0].shape[: self.axes])

    def of(self, targets: Tree) -> Tensor | None:
        """The w_i, bool where they are 0 and 1; None where all are 1. Raises ArgumentError."""
        kept = self._kept(targets)
        if self._function is None:
            return kept
        with blaming(f"weights= fails on targets {shapes(targets)}"):
            found = self._function(targets)
        if not isinstance(found, Tensor) or found.shape != self.shape(targets):
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else kind_of(found)
            raise ArgumentError(
                f"weights returns {what} for targets {shapes(targets)}; {self.shape(targets)} is needed",
                "return one weight for each sample (n,), or with per_token for each token (n, T)",
            )
        found = found if found.dtype == torch.bool else found.double()
        if not bool((found.isfinite() & (found >= 0)).all()):
            raise ArgumentError("weights are negative or not finite somewhere", "return numbers of at least 0")
        return found if kept is None else kept & found if found.dtype == torch.bool else found.where(kept, 0.0)

    def total(self, pieces: Iterable[Tree], is_whole: bool = True) -> float:
        """The sum of w_i c_i over targets. Raises ArgumentError where nothing counts, and for ignored samples.

        is_whole: whether these are all targets; in a part of them nothing need count.
        """
        total, left_out, samples = 0.0, 0, 0
        for targets in pieces:
            if len(self.shape(targets)) < self.axes:
                raise ArgumentError(
                    f"per_token with targets {shapes(targets)}", "give targets (N, T, ...), or leave out per_token"
                )
            weights, kept = self.of(targets), self._kept(targets)
            samples += len(tensors_of(targets)[0])
            left_out += 0 if kept is None else int((~kept).sum())
            total += self._sum(targets, weights)
        if left_out and self.axes == 1:
            raise ArgumentError(
                f"{left_out} of {samples} targets are {self._ignored}, which the loss leaves out of its mean",
                f"leave these samples out: keep = targets != {self._ignored}, then inputs[keep] and targets[keep]",
            )
        if is_whole and not total > 0:
            if self._function or self._classes is not None:
                raise ArgumentError("the weights of all samples or tokens are 0", "give some a weight above 0")
            raise ArgumentError(
                f"every token has the target {self._ignored}: nothing is left", "give some tokens a target"
            )
        return total

    def clean(self, targets: Tree) -> Tree:
        """The targets with a class in the place of what is ignored, whose value is dropped."""
        kept = self._kept(targets)
        return targets if kept is None else targets.where(kept, 0)

    def _kept(self, targets: Tree) -> Tensor | None:
        """Which samples or tokens have a target; None: all."""
        if not isinstance(targets, Tensor) or targets.ndim != self.axes or targets.is_floating_point():
            return None
        kept = torch.ne(targets, self._ignored)
        return None if bool(kept.all()) else kept

    def _sum(self, targets: Tree, weights: Tensor | None) -> float:
        by_class = self._classes
        if by_class is None or not isinstance(targets, Tensor) or targets.is_floating_point():
            return float(math.prod(self.shape(targets)) if weights is None else weights.sum())
        index = self.clean(targets).long()
        if int(index.min()) < 0 or int(index.max()) >= len(by_class):
            raise ArgumentError(
                f"labels run from {int(index.min())} to {int(index.max())}; the loss has weights of {len(by_class)} "
                "classes",
                "number the classes from 0, and give each a weight",
            )
        each = by_class.to(index.device)[index]
        return float((each if weights is None else each * weights).sum())
