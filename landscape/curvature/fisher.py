"""The Fisher information matrix: exact, from sampled targets, and the empirical one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.curvature.checks import require_choice, require_count, require_seed
from landscape.curvature.losses import IGNORED, cross_entropy, mse
from landscape.curvature.objective import Objective, gradients, require_objective
from landscape.curvature.operators import Curvature, GaussNewton, ObjectiveOperator, Term, second_derivative
from landscape.curvature.vectors import gaussian, seeded
from landscape.errors import ArgumentError

Kind = Literal["exact", "monte_carlo", "empirical"]


class FisherOperator(ObjectiveOperator):
    """The Fisher information matrix of a model, or a block of it, by exact products over the whole data set.

    The loss of a sample is -log p(target | outputs): of a softmax for cross-entropy, of independent coins for binary
    cross-entropy with logits, and of a Gaussian for squared errors, N(output, 1/2) of torch's and N(output, d/2) of
    `landscape.mse`, which averages over d outputs. The matrix is c sum_n E[g_n g_n^T] over samples n, where g_n is
    the gradient of -log p and c the objective's own normalisation: 1 of a sum, one over what torch divides by of a
    mean. Each token or pixel of a cross-entropy is a sample; those with an ignored label do not count. It is a matrix
    of the model, without the L2 term, which `.shift(weight_decay)` adds.

    Args:
        objective: of a loss of torch or of landscape.cross_entropy or landscape.mse, without class weights.
        params: tensors to differentiate by, of which the operator takes a copy; everything else is constant.
        block: names of rows, in their order. Default: all.
        cols: names of columns. Default: those of the rows.
        kind: "exact" takes the expectation, which is the Gauss-Newton part of these losses; "monte_carlo" draws targets
            from the model; "empirical" takes the true targets, which is no estimate of the Fisher information.
        draws: targets for each sample, of "monte_carlo".
        seed: of these. All products and blocks are of the same targets.

    Raises:
        ArgumentError: for another loss, targets that are probabilities, and what `HessianOperator` refuses.

    Source: Martens, arXiv 1412.1193; of the empirical one Kunstner, Balles & Hennig, arXiv 1905.12558.
    """

    shown = ("shape", "rows", "cols", "kind", "draws", "seed", "dtype", "device")

    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        block: Sequence[str] | None = None,
        cols: Sequence[str] | None = None,
        kind: Kind = "exact",
        draws: int = 1,
        seed: int = 0,
    ) -> None:
        require_objective(objective)
        require_choice("kind", kind, get_args(Kind))
        require_count("draws", draws)
        require_seed(seed)
        self.kind, self.draws, self.seed = kind, draws, seed
        self._likelihood = _likelihood_of(objective)
        super().__init__(objective, params, block, cols)
        _, targets = next(objective.targets())
        if self._likelihood.family == "softmax" and targets().is_floating_point():
            raise ArgumentError(
                "the Fisher matrix of targets that are probabilities, not of drawn classes", "give class indices"
            )

    def _terms_of(self, rows: list[Tensor], cols: list[Tensor]) -> list[Term]:
        objective, terms = self.objective, list[Term]()
        for (outputs, loss), (number, targets) in zip(objective.chunks(), objective.targets(), strict=True):
            curvature: Curvature
            if self.kind == "exact":
                curvature = second_derivative(loss)
            elif self.kind == "empirical":
                curvature = functools.partial(self._outer, functools.partial(self._true, loss))
            else:
                curvature = functools.partial(self._outer, functools.partial(self._drawn, targets, number))
            terms.append(GaussNewton(outputs, curvature, self.params, rows, cols))
        return terms

    def _outer(self, slopes_of: Callable[[Tensor], Tensor], outputs: Tensor) -> Callable[[Tensor, bool], Tensor]:
        """c sum_n u_n u_n^T, the mean over draws of slopes u (draw, sample, d)."""
        u, scale = slopes_of(outputs), self.objective.count

        def product(vectors: Tensor, batched: bool) -> Tensor:
            by_sample = self._likelihood.by_sample(vectors, outputs.ndim)
            along = torch.einsum("ksd,...sd->...ks", u, by_sample)
            return self._likelihood.as_outputs(torch.einsum("...ks,ksd->...sd", along, u) / (len(u) * scale), vectors)

        return product

    def _true(self, loss: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
        leaf = outputs.requires_grad_()
        (slope,) = gradients(loss(leaf), [leaf])
        return self.objective.count * self._likelihood.by_sample(slope, outputs.ndim)[None]

    def _drawn(self, targets: Callable[[], Tensor], number: int, outputs: Tensor) -> Tensor:
        by_sample = self._likelihood.by_sample(outputs, outputs.ndim)
        slopes = self._likelihood.draw(by_sample, self.draws, seeded(self.seed, number))
        return slopes * self._likelihood.counts(targets()).to(outputs)

    def sampling_error(self, probes: int = 10, seed: int = 0) -> float:
        """|F - F_exact| / |F_exact| of Monte-Carlo draws in Frobenius norm; it falls as 1 / sqrt(draws).

        It is the error of these very draws, because exact products cost no more.

        Args:
            probes: random vectors, with each of which both are multiplied once.
            seed: of these.

        Raises:
            ArgumentError: for an exact or an empirical one.
        """
        if self.kind != "monte_carlo":
            raise ArgumentError(f"the sampling error of kind {self.kind!r}: nothing was drawn", "take 'monte_carlo'")
        require_count("probes", probes)
        exact = copy.copy(self)
        exact.kind = "exact"
        exact._choose(self.rows, self.cols)
        vectors = gaussian(self.shape[1], probes, seed).to(self.device, self.dtype)
        images = exact @ vectors
        difference = float((self @ vectors - images).norm())
        return difference / float(images.norm()) if difference else 0.0


@dataclasses.dataclass(frozen=True)
class _Likelihood:
    """p(target | outputs) of a loss.

    axis: of the classes of a softmax, counted from the front, or -1; ignored: label that does not count; mean: whether
    a squared error is averaged over the outputs of a sample.
    """

    family: Literal["softmax", "coins", "gaussian"]
    axis: int = -1
    ignored: int = IGNORED
    mean: bool = False

    def by_sample(self, x: Tensor, ndim: int) -> Tensor:
        """Outputs of `ndim` axes, or several of them (m, ...), as (sample, d), or (m, sample, d)."""
        lead = x.shape[: x.ndim - ndim]
        if self.family == "softmax":
            x = x.movedim(self._classes(x, ndim), -1)
            return x.reshape(*lead, -1, x.shape[-1])
        return x.reshape(*lead, x.shape[len(lead)] if ndim else 1, -1)

    def as_outputs(self, x: Tensor, like: Tensor) -> Tensor:
        """The opposite, shaped as the outputs `like`."""
        if self.family == "softmax":
            axis = self._classes(like, like.ndim - x.ndim + 2)
            return x.reshape(like.movedim(axis, -1).shape).movedim(-1, axis)
        return x.reshape(like.shape)

    def _classes(self, x: Tensor, ndim: int) -> int:
        return x.ndim - ndim + min(self.axis, ndim - 1) if self.axis >= 0 else -1

    def draw(self, outputs: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        """The gradients of -log p by outputs (sample, d) at targets drawn from p (draw, sample, d)."""
        size = (draws, len(outputs), 1 if self.family == "softmax" else outputs.shape[1])
        if self.family == "gaussian":
            noise = torch.randn(size, generator=generator, dtype=torch.float64).to(outputs)
            return noise * math.sqrt(2 / outputs.shape[1] if self.mean else 2)
        # Compared in float64: the same targets in every precision.
        uniform = torch.rand(size, generator=generator, dtype=torch.float64).to(outputs.device)
        if self.family == "coins":
            # Neither loses digits where the model is sure.
            return torch.where(uniform < outputs.double().sigmoid(), -(-outputs).sigmoid(), outputs.sigmoid())
        p, edges = outputs.softmax(-1), outputs.double().softmax(-1).cumsum(-1)
        label = torch.searchsorted(edges, uniform.permute(1, 0, 2)[..., 0].contiguous()).T[..., None]
        label, p = label.clamp(max=p.shape[-1] - 1), p.expand(draws, *p.shape)
        # p - 1 of the drawn class is minus all others, which keeps its digits.
        return p.scatter(-1, label, -p.scatter(-1, label, 0.0).sum(-1, keepdim=True))

    def counts(self, targets: Tensor) -> Tensor:
        """1 for samples that count, 0 for others (sample, 1)."""
        if self.family != "softmax":
            return torch.ones(1)
        return (targets != self.ignored).reshape(-1, 1)


_FAMILIES: dict[Any, _Likelihood] = {
    cross_entropy: _Likelihood("softmax"),
    F.cross_entropy: _Likelihood("softmax", axis=1),
    nn.CrossEntropyLoss: _Likelihood("softmax", axis=1),
    F.binary_cross_entropy_with_logits: _Likelihood("coins"),
    nn.BCEWithLogitsLoss: _Likelihood("coins"),
    mse: _Likelihood("gaussian", mean=True),
    F.mse_loss: _Likelihood("gaussian"),
    nn.MSELoss: _Likelihood("gaussian"),
}


def _likelihood_of(objective: Objective) -> _Likelihood:
    loss = objective.loss
    inner = type(loss) if isinstance(loss, nn.Module) else getattr(loss, "func", loss)
    if inner not in _FAMILIES:
        raise ArgumentError(
            f"the Fisher matrix of the loss {getattr(inner, '__name__', inner)}, of which no likelihood is known",
            "give torch's or landscape's cross_entropy or mse, or torch's BCEWithLogitsLoss, by itself; for tokens "
            "landscape.cross_entropy takes logits (..., C) as they are",
        )
    options = vars(loss) | dict(loss.named_buffers()) if isinstance(loss, nn.Module) else getattr(loss, "keywords", {})
    for name in ("weight", "pos_weight", "label_smoothing"):
        value = options.get(name)
        if value is not None and (isinstance(value, Tensor) or value):
            raise ArgumentError(
                f"the Fisher matrix of a loss with {name}, which is not -log of a likelihood",
                f"leave {name} out, or take the Gauss-Newton part: HessianOperator(..., part='gauss_newton')",
            )
    if objective.has_weights:
        raise ArgumentError(
            "the Fisher matrix of batches with weight=, which is not -log of a likelihood", "leave weight= out"
        )
    return dataclasses.replace(_FAMILIES[inner], ignored=options.get("ignore_index", IGNORED))
