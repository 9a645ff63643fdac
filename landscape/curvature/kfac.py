"""How far K-FAC and EKFAC, which are curvlinops', are from the Hessian or its Gauss-Newton part, layer by layer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from landscape.curvature.checks import blaming
from landscape.curvature.interop import curvlinops, from_curvlinops
from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.modules import plain_names
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.curvature.spectral_sums import frobenius_norm
from landscape.curvature.vectors import Array
from landscape.errors import ArgumentError, kind_of
from landscape.results import Curve
from landscape.text import first_few

APPROXIMATIONS = {"K-FAC": "KFACLinearOperator", "EKFAC": "EKFACLinearOperator"}
_LOSSES: dict[Any, Callable[[], nn.Module]] = {
    cross_entropy: nn.CrossEntropyLoss,
    F.cross_entropy: nn.CrossEntropyLoss,
    F.mse_loss: nn.MSELoss,
    mse: nn.MSELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


@dataclasses.dataclass(frozen=True, repr=False)
class KroneckerDistances(Curve):
    """|K - H|_F / |H|_F of each layer's block, for K-FAC and EKFAC.

    Attributes:
        layer, approximation: names.
        distance: (layer, approximation); 0 is exact, 1 what K = 0 has. NaN where H is 0.
        low, high: (layer, approximation); intervals of at least 90 %, where both norms are estimated.
        skipped: parameters of modules that K-FAC does not know.
        num_products: with H and K, beside those that made K.
    """

    axes = {
        **dict.fromkeys(("distance", "low", "high"), ("layer", "approximation")),
        **{name: (name,) for name in ("layer", "approximation", "skipped")},
    }

    x, y, by, spread = "layer", "distance", "approximation", ("low", "high")
    words = {"distance": "|K − H| / |H|"}

    layer: list[str]
    approximation: list[str]
    distance: Array
    low: Array
    high: Array
    skipped: list[str]
    num_products: int


def kfac_distance(op: HessianOperator, probes: int = 30, seed: int = 0) -> KroneckerDistances:
    """How far K-FAC and EKFAC are from a Hessian, or from its Gauss-Newton part, block by block.

    The blocks are those of Linear and Conv2d modules, weight and bias together. K-FAC approximates the Gauss-Newton
    part with exact second derivatives of the loss (Eschenhagen et al., arXiv 2311.00636, "expand"); the L2 term is left
    out of both.

    Args:
        op: a HessianOperator with the part "hessian" or "gauss_newton", of a module and a cross-entropy, squared error
            or binary cross-entropy.
        probes: products for each norm of a block of more than 256 rows.
        seed: of the random vectors.

    Returns:
        The relative Frobenius distances; `to_dataframe()` is the table.

    Raises:
        ArgumentError: for another operator, loss or form of data, for samples that do not count alike, and where K-FAC
            knows no module of the rows.
        LandscapeError: where curvlinops is not installed.
    """
    if not isinstance(op, HessianOperator) or not op.is_symmetric:
        raise ArgumentError(f"{kind_of(op)} is no Hessian of named rows", "give a HessianOperator or a diagonal block")
    if op.part == "residual":
        raise ArgumentError("K-FAC of the residual part, which it does not approximate", "give the part 'gauss_newton'")
    library, module = curvlinops(), _module(op)
    own = _own_names(op.rows, module)
    params = {name: p for name, p in module.named_parameters() if name in own.values()}
    layers = _layers(module, params)
    if not layers:
        raise ArgumentError(
            f"K-FAC knows no module of {first_few(op.rows, 3)}", "give a block of parameters of nn.Linear or nn.Conv2d"
        )
    covered = [name for names in layers.values() for name in names]
    exact = HessianOperator(op.objective.with_decay(0.0), params, covered, part=op.part)
    data, loss = _data(op.objective), _loss(op.objective)
    _require_equal_samples(op.objective, loss)
    rows, products = [], 0
    with blaming("curvlinops fails", "call its KFACLinearOperator on the model, loss and data to see the traceback"):
        for kind in APPROXIMATIONS.values():
            ready = {name: params[name] for name in covered}
            made = getattr(library, kind)(
                module, loss, [*ready.values()], data, fisher_type="type-2", separate_weight_and_bias=False
            )
            approximation = from_curvlinops(made, ready)
            for names in layers.values():
                H, K = exact.block(names), approximation.block(names)
                away, norm = (frobenius_norm(x, probes, seed) for x in (K - H, H))
                products += 2 * away.num_products + norm.num_products
                rows.append((away.value, norm.value, away.low, norm.high, away.high, norm.low))
    shape = len(APPROXIMATIONS), len(layers)
    numbers = np.array(rows).reshape(*shape, 3, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance, low, high = np.moveaxis(numbers[..., 0] / numbers[..., 1], -1, 0).swapaxes(1, 2)
    skipped = [name for name in op.rows if own[name] not in covered]
    return KroneckerDistances([*layers], [*APPROXIMATIONS], distance, low, high, skipped, products)


def _module(op: HessianOperator) -> nn.Module:
    """A copy of the objective's module, with the operator's parameters."""
    if op.objective.module is None:
        raise ArgumentError("the model is a function: K-FAC reads modules", "make the Objective of a torch module")
    module = copy.deepcopy(op.objective.module).to(op.dtype)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, own in _own_names(op.params, module).items():
            parameters[own].copy_(op.params[name])
    return module.requires_grad_()


def _own_names(names: Iterable[str], module: nn.Module) -> dict[str, str]:
    """A module's own name of each parameter, which may be named as in a module that wraps it."""
    known, plain = dict(module.named_parameters(remove_duplicate=False)), plain_names(names)
    return {name: name if name in known else plain[name] for name in plain}


def _layers(module: nn.Module, params: dict[str, nn.Parameter]) -> dict[str, list[str]]:
    """The parameters of each module that K-FAC knows."""
    layers = {}
    for layer, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            names = [f"{layer}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)]
            if names := [name for name in names if name in params]:
                layers[layer or type(part).__name__] = names
    return layers


def _loss(objective: Objective) -> nn.Module:
    """The loss as a module that curvlinops takes."""
    loss = objective.loss
    if isinstance(loss, nn.CrossEntropyLoss | nn.MSELoss | nn.BCEWithLogitsLoss) and loss.reduction != "none":
        return loss
    if loss not in _LOSSES:
        raise ArgumentError(
            f"K-FAC has no formula for the loss {getattr(loss, '__name__', kind_of(loss))}",
            "give the Objective nn.CrossEntropyLoss(), nn.MSELoss() or nn.BCEWithLogitsLoss()",
        )
    return _LOSSES[loss]()


def _data(objective: Objective) -> list[Any]:
    data = list(objective.batches())
    if not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in data):
        raise ArgumentError("the batches are no pairs", "K-FAC takes batches (inputs, targets)")
    return data


def _require_equal_samples(objective: Objective, loss: nn.Module) -> None:
    """Raise ArgumentError for weights and ignored labels, which curvlinops passes over in silence."""
    what = [f"a loss with {name}" for name in ("weight", "pos_weight") if getattr(loss, name, None) is not None]
    if objective.has_weights:
        what.append("batches with weight=")
    if isinstance(loss, nn.CrossEntropyLoss) and any(
        bool((labels() == loss.ignore_index).any()) for _, labels in objective.targets()
    ):
        what.append(f"ignored labels, {loss.ignore_index}")
    if what:
        raise ArgumentError(f"K-FAC of {what[0]}: it counts all samples alike", "leave them out of the objective")
