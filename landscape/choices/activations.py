"""Activations of the hidden layer, elementwise and differentiable twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from landscape.choices.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    Slope = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Activation:
    """phi(x), called as a function; piecewise_linear: phi'' is 0 wherever it exists, which theory asks for."""

    phi: Callable[[Tensor], Tensor]
    piecewise_linear: bool
    by_hand: Slope | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.phi(x)

    def slope(self, back: Tensor, pre: Tensor, phi: Tensor) -> Tensor:
        """back * phi'(pre); phi: phi(pre). May overwrite `back`."""
        if self.by_hand:
            return self.by_hand(back, pre, phi)
        import torch

        with torch.enable_grad():
            x = pre.detach().requires_grad_()
            slope: Tensor = torch.autograd.grad(self.phi(x), x, back)[0]
        return slope


ACTIVATIONS: Registry[Activation] = Registry("activation")


def activation(
    piecewise_linear: bool = False, by_hand: Slope | None = None
) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Register a function as an activation of its name.

    by_hand: (back, pre, phi(pre)) -> back * phi'(pre), to spare the time of automatic differentiation.
    """

    def register(phi: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        ACTIVATIONS.add(phi.__name__, Activation(phi, piecewise_linear, by_hand), phi.__doc__)
        return phi

    return register


def _relu_slope(back: Tensor, pre: Tensor, phi: Tensor) -> Tensor:
    import torch

    slope: Tensor = torch.ops.aten.threshold_backward(back, pre, 0)
    return slope


@activation(piecewise_linear=True, by_hand=_relu_slope)
def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return x.relu()


def _gelu_slope(back: Tensor, pre: Tensor, phi: Tensor) -> Tensor:
    import torch

    slope: Tensor = torch.ops.aten.gelu_backward(back, pre)
    return slope


@activation(by_hand=_gelu_slope)
def gelu(x: Tensor) -> Tensor:
    """x Phi(x)"""
    import torch

    return torch.nn.functional.gelu(x)


def _tanh_slope(back: Tensor, pre: Tensor, phi: Tensor) -> Tensor:
    import torch

    slope: Tensor = torch.ops.aten.tanh_backward(back, phi)
    return slope


@activation(by_hand=_tanh_slope)
def tanh(x: Tensor) -> Tensor:
    """tanh x"""
    return x.tanh()


@activation(by_hand=lambda back, pre, phi: back.mul_(pre).mul_(2))
def quadratic(x: Tensor) -> Tensor:
    """x^2"""
    return x.square()
