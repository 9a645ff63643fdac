"""Steps that no optimiser takes (`--kick`): along the lowest eigenvector of a block, or at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from landscape import models
from landscape.config import TrainConfig
from landscape.curvature.eigsh import eigsh
from landscape.curvature.vectors import gaussian, seeded
from landscape.models.problem import Problem, hessian

_JOINT = ("E", "W")
RTOL = 1e-3
"""Residual of the eigenvector relative to |H|."""
HELD = 10
"""Directions that `--kick held` avoids."""
HVPS = 500
"""Most products of a search; what it has by then is a direction of curvature nearly as negative."""


def kick(config: TrainConfig, data: Any, theta: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """What is added to some of the parameters; its sign is that in which the training loss falls.

    data: tokens, labels, split by name; theta: parameters in float64.
    """
    problem = models.of_config(config, data, theta["E"].device.type)
    names = _JOINT if config.kick == "random" else tuple(config.kick.split(","))
    if config.kick == "random":
        direction = gaussian(sum(theta[name].numel() for name in names), 1, seeded(config.seed, step)).to(theta["E"])
    else:
        direction = _lowest(config, problem, theta, names, 1)
    direction = direction[:, 0]
    slope = direction @ _flat(problem.objective(0.0).gradient(theta), names)
    norm = _flat(theta, _JOINT).norm()
    return _parts(
        direction * (-config.kick_size * norm / direction.norm() * (1.0 if slope >= 0 else -1.0)), theta, names
    )


def held(config: TrainConfig, data: Any, theta: dict[str, Tensor]) -> Tensor:
    """Orthonormal directions of E,W that steps avoid, (E and W laid out flat, direction); as `kick`."""
    problem = models.of_config(config, data, theta["E"].device.type)
    return _lowest(config, problem, theta, _JOINT, HELD)


def without(directions: Tensor, step: dict[str, Tensor]) -> dict[str, Tensor]:
    """A step of the parameters without its components along the directions, for those that change."""
    flat = _flat(step, _JOINT)
    return _parts(flat - directions @ (directions.T @ flat), step, _JOINT)


def _lowest(config: TrainConfig, problem: Problem, theta: dict[str, Tensor], names: tuple[str, ...], k: int) -> Tensor:
    """The k lowest eigenvectors (n, k) of the Hessian of the training loss in these parameters."""
    block = hessian(problem, theta, 0.0).block(names)
    return eigsh(block, k, "lowest", "lanczos", rtol=RTOL, max_hvps=HVPS, seed=config.seed).vectors[0]


def _flat(theta: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([theta[name].reshape(-1) for name in names])


def _parts(flat: Tensor, theta: dict[str, Tensor], names: tuple[str, ...]) -> dict[str, Tensor]:
    """The opposite of `_flat`."""
    pieces = flat.split([theta[name].numel() for name in names])
    return {name: piece.view_as(theta[name]) for name, piece in zip(names, pieces, strict=True)}
