"""Gromov's analytic solution of modular addition (arXiv 2301.02679) as a critical point whose index is known.

Quadratic hidden units of frequency k and phases (φ, ψ), output cos of the sum:

    f(n, m)_q = a Σ cos(2πkq/p + φ + ψ) [cos(2πkn/p + φ) + cos(2πkm/p + ψ)]² + b

There the terms that carry no answer vanish for many random phases. Seven a frequency, (φ, ψ) = 2πj/7 (1, 3), cancel
them exactly, since none of 1+3, 3·1+3, 1−3, 1+3·3, 2(1+3), 2·1, 2·3 is a multiple of 7. With all (p−1)/2 frequencies
and b = 1/p the outputs are exactly one where q = n + m mod p, and zero elsewhere. So the squared error is zero, its
Hessian is the Gauss-Newton matrix, and the saddle index is 0.

    python studies/gromov.py checkpoints/gromov.h5
    landscape hessian checkpoints/gromov.h5 --problem studies/gromov.py:problem --certify --k 10 \\
        --blocks inputs output all
    python analyses/collect_gromov.py checkpoints/gromov.h5
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn

import landscape

P, PHASES = 13, 7


class Quadratic(nn.Module):
    """Two one-hot inputs, quadratic units, a bias at the output. Width PHASES (p - 1)/2."""

    def __init__(self, p: int = P) -> None:
        super().__init__()
        k = torch.arange(1, (p + 1) // 2, dtype=torch.float64).repeat_interleave(PHASES)[:, None]
        angle = 2 * math.pi * k * torch.arange(p) / p
        phi = 2 * math.pi / PHASES * torch.arange(PHASES, dtype=torch.float64).repeat((p - 1) // 2)[:, None]
        self.first = nn.Parameter(torch.cos(angle + phi))
        self.second = nn.Parameter(torch.cos(angle + 3 * phi))
        # The wanted terms of a frequency add to PHASES/2 cos(2πk(n + m - q)/p), and these to PHASES (p δ - 1)/4.
        self.readout = nn.Parameter(torch.cos(angle + 4 * phi).T * 4 / (PHASES * p))
        self.bias = nn.Parameter(torch.full((p,), 1 / p, dtype=torch.float64))

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.first.T[pairs[:, 0]] + self.second.T[pairs[:, 1]]).square() @ self.readout.T + self.bias


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Of each sample."""
    return (output - target).square().sum(1)


def problem() -> landscape.ModuleProblem:
    """All pairs, with the blocks of the three matrices."""
    pairs = torch.cartesian_prod(torch.arange(P), torch.arange(P))
    target = nn.functional.one_hot(pairs.sum(1) % P, P).double()
    blocks = {"inputs": ["first", "second"], "output": ["readout", "bias"]}
    return landscape.ModuleProblem(Quadratic(), pairs, target, loss=squared_error, blocks=blocks)


if __name__ == "__main__":
    with landscape.Recorder(sys.argv[1], Quadratic()) as recorder:
        recorder.checkpoint(0)
