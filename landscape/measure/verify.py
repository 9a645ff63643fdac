"""Verify a Hessian file with a plain PyTorch model, PyHessian and torch.func.hessian: `--verify`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape import models
from landscape.config import HessianConfig, replace
from landscape.curvature.objective import differentiable
from landscape.devices import dense_bytes, free_memory
from landscape.errors import LandscapeError
from landscape.files.runs import RunReader
from landscape.files.views import File
from landscape.measure.settle import settled
from landscape.measure.tables import rows
from landscape.models.blocks import Block, choose
from landscape.models.problem import Plain, with_state
from landscape.progress import Bar

AGREEMENT = 1e-9
"""Largest difference from the dense Hessian, relative to |H|, that counts as agreement, beside what a search hides."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """One block at one step, beside two independent results.

    largest: the file's eigenvalue of largest magnitude, which is what power iteration finds (F13); pyhessian:
    PyHessian's top eigenvalue, NaN for rows of a parameter, which it cannot select; dense_difference: max
    |lambda - lambda_dense| / |H| over all eigenvalues that converged, None where the dense matrix does not fit; hidden:
    how far off the file says that they may be, relative to |H|.
    """

    step: int
    block: str
    largest: float
    pyhessian: float
    dense_difference: float | None
    hidden: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the dense Hessian, if computed, confirms the file."""
        return self.dense_difference is None or self.dense_difference <= AGREEMENT + self.hidden


@differentiable
def verify(run: Path, file: File, quiet: bool = True) -> list[Verification]:
    """Compare a Hessian file with PyHessian and a dense Hessian, computed from the run's parameters."""
    try:
        from pyhessian import hessian as pyhessian
    except ImportError as error:
        raise LandscapeError("--verify needs pyhessian, which is not installed", "pip install pyhessian") from error
    config = replace(HessianConfig(), file.config)
    verifications = []
    count = len(file.steps) * len(file.blocks)
    with RunReader(run) as reader, Bar(count, "block", quiet, desc="verify") as bar:
        problem = models.opened(reader, config)[0]
        blocks = choose(problem, file.blocks).blocks
        decay = problem.decay(config.objective)
        for step, row in rows(file).items():
            arrays = settled(reader, problem, config, step)[0] if config.settle else reader.checkpoint(step)
            for i, chosen in enumerate(blocks):
                plain = with_state(problem, arrays).plain(arrays)
                for name, parameter in plain.parameters.items():
                    parameter.requires_grad_(name in chosen.parameters)
                ends = row["eigenvalues"][i]
                torch.manual_seed(config.seed)
                top = np.nan
                if chosen.positions is None:
                    with warnings.catch_warnings():
                        # PyHessian keeps its graph through backward(); the gradients are cleared below.
                        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
                        criterion = functools.partial(_regularised, plain, decay)
                        data, is_cuda = (plain.inputs, plain.targets), problem.device.type == "cuda"
                        solver = pyhessian(plain.model, criterion, data=data, cuda=is_cuda)
                    (top,), _ = solver.eigenvalues(maxIter=200, tol=1e-6, top_n=1)
                norm, has_converged = row["operator_norm"][i], row["converged"][i] == 1
                largest = float(max(ends[:, 0][~np.isnan(ends[:, 0])], key=abs))
                apart = _dense_difference(plain, chosen, decay, np.where(has_converged, ends, np.nan), norm)
                hidden = float(np.max(row["hidden"][i], where=has_converged[:, 0], initial=0.0)) / (norm or 1.0)
                verifications.append(Verification(step, chosen.name, largest, float(top), apart, hidden))
                plain.model.zero_grad()
                bar.update()
    return verifications


def _regularised(plain: Plain, decay: float, outputs: Tensor, targets: Tensor) -> Tensor:
    penalty = torch.stack([p.square().sum() for p in plain.parameters.values()]).sum()
    return plain.loss(outputs, targets) + 0.5 * decay * penalty


def _dense_difference(
    plain: Plain, chosen: Block, decay: float, ends: np.ndarray[Any, Any], norm: float
) -> float | None:
    """max |lambda - lambda_dense| / |H| over eigenvalues that are not NaN; None where the matrix does not fit."""
    parameters = [plain.parameters[name] for name in chosen.parameters]
    sizes = [p.numel() for p in parameters]
    n = sum(sizes)
    if dense_bytes(n) > free_memory(plain.inputs.device) or n > 10_000:
        return None
    keys = {id(p): key for key, p in plain.model.named_parameters()}

    def loss(vector: Tensor) -> Tensor:
        moved = zip(parameters, vector.split(sizes), strict=True)
        pieces = {keys[id(p)]: piece.view_as(p) for p, piece in moved}
        outputs = torch.func.functional_call(plain.model, pieces, (plain.inputs,))
        return plain.loss(outputs, plain.targets) + 0.5 * decay * vector.square().sum()

    at = torch.cat([p.detach().reshape(-1) for p in parameters])
    dense = torch.func.jacrev(torch.func.grad(loss), chunk_size=64)(at)
    dense = chosen.of(chosen.of(dense).T)
    values = torch.linalg.eigvalsh((dense + dense.T) / 2).cpu().numpy()
    k = min(ends.shape[1], len(values))
    apart = np.abs(np.stack([ends[0, :k] - values[:k], ends[1, :k] - values[::-1][:k]]))
    difference = np.max(apart, where=~np.isnan(apart), initial=0.0)
    return float(difference / norm) if norm else float(difference)
