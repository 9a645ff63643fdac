"""Problems: data and loss that make an objective of stored parameters, and blocks of parameters."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.choices.optimizers import EPSILON
from landscape.curvature.objective import Objective
from landscape.curvature.operators import BlockOperator, Directions, HessianOperator, Spanned
from landscape.files.runs import RunReader
from landscape.models.rows import Groups, Shapes

Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class ParameterSpec:
    """Shape of a parameter, names of its axes, and a short description."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    meaning: str = ""


@dataclasses.dataclass(frozen=True)
class Training:
    """What the trainer knew at a checkpoint.

    rates: learning rate by parameter, 0 if frozen, NaN if unknown; second_moments: those of Adam by parameter, their
    bias corrected, or of RMSprop, infinite where there was no update, or None; update_frequency: share of the steps so
    far that updated an operand's embedding; epsilons: what the optimiser adds to the moments' roots, by parameter,
    where it is not 1e-8; is_adam: whether the moments are Adam's.
    """

    step: int
    rates: Mapping[str, float]
    second_moments: Arrays | None
    update_frequency: float
    epsilons: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_adam: bool = True

    def preconditioner(self, shapes: Mapping[str, Sequence[int]], is_adaptive: bool) -> dict[str, Tensor] | None:
        """D of a step -D^(-1) grad: 1 / lr, or Adam's (sqrt(v) + eps) / lr; None where that is not known.

        It is infinite where nothing moves.
        """
        moments = self.second_moments if is_adaptive else {}
        if moments is None or any(map(math.isnan, self.rates.values())):
            return None
        D = {}
        for name, shape in shapes.items():
            root = torch.ones(*shape, dtype=torch.float64)
            if is_adaptive:
                root = torch.as_tensor(moments[name]).double().sqrt() + self.epsilons.get(name, EPSILON)
            D[name] = root / self.rates[name]
        return D


@dataclasses.dataclass(frozen=True)
class Plain:
    """The model as plain PyTorch in float64 at some point, for verification without our own code.

    Attributes:
        model: the module.
        parameters: the module's own tensors by the problem's names.
        inputs, targets: the training samples.
        loss: the mean over the data set, from its outputs and targets.
    """

    model: nn.Module
    parameters: Mapping[str, Tensor]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


class Structure:
    """Exact hand-derived results at one point, always checked against automatic differentiation; here none."""

    def operator(self) -> BlockOperator | None:
        """The Hessian over all parameters by products; None: use automatic differentiation."""
        return None

    def dense(self, names: Sequence[str], gauss_newton: bool = False) -> Tensor | None:
        """A diagonal block, or its Gauss-Newton part, in closed form, symmetric to the last bit; None: by products."""
        return None

    def pulls(self) -> Mapping[str, float]:
        """What weight decay balances at a minimum (F19), of the data loss, as far as the model has it.

        `tables`: sigma_max(G) of F14; `bias`: the norm of the gradient by the first layer's bias.
        """
        return {}

    def starts(self, names: Sequence[str], k: int) -> tuple[Tensor | None, int]:
        """Vectors (n, m) near the k lowest eigenvectors of a block, and the number of products used."""
        return None, 0

    def null_vectors(self, names: Sequence[str]) -> Directions | None:
        """Exact null vectors of a block, whose eigenvalues would otherwise get random signs from rounding."""
        return None

    def index(
        self,
        names: Sequence[str],
        tolerances: Sequence[float],
        limit: int,
        progress: Callable[[float], object],
        share: float = 0.0,
    ) -> list[tuple[int, int]] | None:
        """Bounds of a block's saddle index at absolute tolerances; None: nothing is known.

        limit: the largest order of a factor, 0: by theory alone; share: of an upper bound, to which it need be known.
        """
        return None

    def gauge_free_index(
        self, names: Sequence[str], tolerance: float, limit: int, progress: Callable[[float], object]
    ) -> int | None:
        """The index on the complement of the gauge tangents, by a factor up to the limit; None: not certain."""
        return None

    def gauge(self, names: Sequence[str]) -> Spanned | None:
        """Directions of a block along which the network does not change to first order."""
        return None

    def bounds(self, names: Sequence[str]) -> Mapping[str, float]:
        """Theoretical bounds: `saddle_bound` on -lambda_min, `saddle_rank_bound` on the index.

        `saddle_bound_ROWS` are those of the joint block's named rows. names: members, which may be rows.
        """
        return {}


class Problem(abc.ABC):
    """A model with its training set and loss, at any parameters.

    blocks: members by block, in the order of its rows, each a parameter or rows of one, such as "E[0:97]";
    default_blocks: those analysed by default. rows: names of rows by parameter, such as "operands" of E.
    pairs: blocks whose coupling is measured, each named after its joint block "A,B". parts: groups of parameters on
    which the mass of eigenvectors is reported. balanced: the two factors whose learning rates Proposition 4.1 balances
    (arXiv 2505.15624), or None.
    """

    name: str
    parameters: Mapping[str, ParameterSpec]
    blocks: Mapping[str, tuple[str, ...]]
    default_blocks: tuple[str, ...]
    rows: Groups = {}
    pairs: Sequence[tuple[str, str]]
    parts: Mapping[str, tuple[str, ...]]
    balanced: tuple[str, str] | None = None
    device: torch.device

    @abc.abstractmethod
    def decay(self, objective: str) -> float:
        """Weight decay of an objective: 0 for `data`, that of the run for `regularised`. Raises ConfigError."""

    @abc.abstractmethod
    def objective(self, decay: float) -> Objective:
        """The loss over the training set, with decay/2 |theta|^2."""

    def structure(self, params: Mapping[str, Tensor], decay: float) -> Structure | None:
        """Exact results at a point; None for a model without any."""
        return None

    def has_closed_form(self, names: Sequence[str]) -> bool:
        """Whether `Structure.dense` gives the block of these parameters."""
        return False

    def factor(self, names: Sequence[str], limit: int) -> tuple[int, int]:
        """Order and bytes of the factor by which `Structure.index` counts, up to a limit; 0, 0 without one."""
        return 0, 0

    @abc.abstractmethod
    def training(self, reader: RunReader, step: int) -> Training:
        """What the trainer knew at a stored step."""

    @abc.abstractmethod
    def plain(self, arrays: Arrays) -> Plain:
        """The model at stored parameters, for verification."""

    @property
    def buffers(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the buffers that each checkpoint has, by name."""
        return {}

    def with_buffers(self, buffers: Mapping[str, Any]) -> Problem:
        """The problem with these numbers in its buffers."""
        return self


def plain_axes(name: str, count: int) -> tuple[str, ...]:
    """Names of the axes of a parameter of which only the shape is known; no parameter of a module is called so."""
    return tuple(f"{name}.{i}" for i in range(count))


def tensors(problem: Problem, arrays: Arrays) -> dict[str, Tensor]:
    """Stored parameters in float64 on the problem's device."""
    return {n: torch.as_tensor(arrays[n]).to(problem.device, torch.float64) for n in problem.parameters}


def with_state(problem: Problem, arrays: Arrays) -> Problem:
    """The problem with the buffers that were stored with these parameters, if it has any.

    Those of a module that keeps running statistics change from step to step.
    """
    names = problem.buffers
    return problem.with_buffers({n: arrays[n] for n in names}) if names else problem


def hessian(problem: Problem, params: Mapping[str, Tensor], decay: float) -> BlockOperator:
    """The Hessian over all parameters, by hand-derived products if the problem has them."""
    structure = problem.structure(params, decay)
    by_hand = structure.operator() if structure else None
    return by_hand or HessianOperator(problem.objective(decay), params)


def shapes_of(parameters: Mapping[str, ParameterSpec]) -> Shapes:
    """Shape by parameter."""
    return {name: spec.shape for name, spec in parameters.items()}


def joint(pair: tuple[str, str]) -> str:
    """The name of a pair and its joint block."""
    return ",".join(pair)
