"""Planes through a point on which a loss is drawn: of random directions, or of the path of a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from landscape.curvature.checks import require_choice, require_parameters, require_seed
from landscape.curvature.vectors import Array, gaussian, to_array
from landscape.errors import ArgumentError, kind_of
from landscape.results import Curve

Normalisation = Literal["filter", "layer", "none"]
_LINE = 1e-6
"""Second singular value relative to the first, below which checkpoints lie on a line."""


def random_plane(
    params: Mapping[str, Tensor], seed: int = 0, normalisation: Normalisation = "filter", biases: bool = False
) -> Tensor:
    """Two random directions whose filters have the norms of the parameters' own.

    A step of 1 along such a direction changes each filter by as much as its norm, whatever the scale of a layer, so
    that planes of different networks can be compared (Li et al. 2018, arXiv 1712.09913, section 4).

    Args:
        params: parameters by name.
        seed: of the directions.
        normalisation: "filter": each filter, a row of a matrix or what belongs to one entry of a parameter's first
            axis, has the norm of the parameter's filter; "layer": each parameter has the norm of the parameter;
            "none": standard normal entries.
        biases: also move parameters of fewer than two axes, biases and scales of norms, each as one filter. By default
            the directions are 0 there, as in the paper's code.

    Returns:
        The directions (n, 2) over all parameters, in float64.

    Raises:
        ArgumentError: for an unknown normalisation, and where the directions would be 0.
        NumericsError: for parameters that are not finite.
    """
    require_parameters(params)
    require_seed(seed)
    require_choice("normalisation", normalisation, get_args(Normalisation))
    directions = gaussian(sum(p.numel() for p in params.values()), 2, seed)
    pieces = directions.split([p.numel() for p in params.values()])
    for p, piece in zip(params.values(), pieces, strict=True):
        if p.ndim < 2 and not biases:
            piece.zero_()
        elif normalisation != "none" and p.numel():
            filters = len(p) if normalisation == "filter" and p.ndim > 1 else 1
            drawn = piece.view(filters, -1, 2)
            own = p.detach().to("cpu", torch.float64).reshape(filters, -1, 1)
            drawn *= own.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
    if not directions.any():
        raise ArgumentError(
            f"the random directions over {', '.join(params)} are 0",
            "choose parameters of two axes or more that are not 0, or set --biases",
        )
    return directions.to(next(iter(params.values())).device)


@dataclasses.dataclass(frozen=True, repr=False)
class PathPlane(Curve):
    """The plane through the last checkpoint in which the checkpoints vary most.

    first, second (checkpoint,): their projections, the last at 0; share (component,): of their variance;
    outside (checkpoint,): distance from the plane, relative to the distance from the last checkpoint; directions
    (parameter, component): orthonormal.
    """

    axes = {
        "first": ("checkpoint",),
        "second": ("checkpoint",),
        "outside": ("checkpoint",),
        "share": ("component",),
        "directions": ("parameter", "component"),
    }
    x, y = "first", "second"
    words = {"first": "component 1", "second": "component 2"}

    first: Array
    second: Array
    share: Array
    outside: Array
    directions: Tensor


def pca_plane(checkpoints: Sequence[Mapping[str, Tensor]]) -> PathPlane:
    """The first two principal components of checkpoints about the last one (Li et al. 2018, arXiv 1712.09913).

    The first checkpoint has coordinates of at most 0. A random walk of many steps already has shares of 61 and 15 %
    (Antognini and Sohl-Dickstein 2018, arXiv 1806.08805).

    Args:
        checkpoints: at least three points of a path, each parameters by name, in order.

    Returns:
        The plane, the shares of the variance about the mean, and the path in it.

    Raises:
        ArgumentError: for fewer checkpoints, those of different networks, and checkpoints on a line.
        NumericsError: for parameters that are not finite.
    """
    if not isinstance(checkpoints, Sequence):
        raise ArgumentError(f"checkpoints are {kind_of(checkpoints)}", "give a list of parameters by name")
    if len(checkpoints) < 3:
        raise ArgumentError(f"{len(checkpoints)} checkpoints span no plane", "give at least three")
    for checkpoint in checkpoints:
        require_parameters(checkpoint)
    shapes = [{name: tuple(p.shape) for name, p in checkpoint.items()} for checkpoint in checkpoints]
    for i, other in enumerate(shapes):
        if other != shapes[-1]:
            raise ArgumentError(
                f"checkpoint {i} has other parameters than the last one", "give checkpoints of one network"
            )
    path = torch.stack([_flat(checkpoint, shapes[-1]) for checkpoint in checkpoints])
    path -= path.mean(0)
    # Squares of any size are then in range.
    scale = float(path.abs().max()) or 1.0
    path /= scale
    gram = path @ path.T
    squares, vectors = (x.flip(-1)[..., :2] for x in torch.linalg.eigh(gram))
    if not float(squares[1]) > _LINE**2 * float(squares[0]):
        raise ArgumentError(
            f"the {len(checkpoints)} checkpoints lie on a line", "give checkpoints of which three span a plane"
        )
    directions = torch.linalg.qr(path.T @ vectors)[0]
    coordinates = path @ directions
    coordinates -= coordinates[-1].clone()
    signs = torch.where(coordinates[0] > 0, -1.0, 1.0)
    coordinates, directions = coordinates * signs, directions * signs
    distances = (path - path[-1]).square().sum(1)
    outside = ((distances - coordinates.square().sum(1)).clamp(min=0) / distances.where(distances > 0, 1)).sqrt()
    return PathPlane(
        first=to_array(scale * coordinates[:, 0]),
        second=to_array(scale * coordinates[:, 1]),
        share=to_array(squares / gram.trace()),
        outside=to_array(outside),
        directions=directions,
    )


def _flat(checkpoint: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    return torch.cat([checkpoint[name].detach().double().reshape(-1) for name in names])
