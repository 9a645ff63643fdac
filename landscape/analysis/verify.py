"""A second opinion: the same blocks from a plain PyTorch model, through PyHessian and torch.func.hessian."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.config import BLOCKS, HessianConfig, TrainConfig, replace
from landscape.devices import dense_bytes, free_memory, pick_device
from landscape.errors import LandscapeError
from landscape.problems.embedding_mlp.model import ACTIVATIONS
from landscape.problems.tasks import TRAIN
from landscape.storage.hessians import HessianReader
from landscape.storage.runs import RunReader

AGREEMENT = 1e-9
"""Largest difference from the dense Hessian, relative to |H|, that counts as agreement."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """One block at one step, beside two second opinions.

    largest: the file's eigenvalue of largest magnitude, which is what power iteration finds (F13); pyhessian:
    PyHessian's top eigenvalue; dense_difference: max |lambda - lambda_dense| / |H| over all reported eigenvalues,
    None where the dense matrix does not fit.
    """

    step: int
    block: str
    largest: float
    pyhessian: float
    dense_difference: float | None

    @property
    def agrees(self) -> bool:
        """Whether the dense Hessian, where there is one, confirms the file."""
        return self.dense_difference is None or self.dense_difference <= AGREEMENT


def verify(run: Path, result: HessianReader) -> list[Verification]:
    """Compare a Hessian file with PyHessian and a dense Hessian, both made from the run's parameters alone."""
    try:
        from pyhessian import hessian as pyhessian
    except ImportError as error:
        raise LandscapeError("--verify needs pyhessian, which is not installed", "pip install pyhessian") from error
    config = replace(HessianConfig(), result.config)
    device = pick_device(config.device)
    found = []
    with RunReader(run) as reader:
        train = replace(TrainConfig(), reader.config)
        data = reader.data()
        rows = data["split"] == TRAIN
        tokens, labels = (torch.from_numpy(data[n][rows]).to(device, torch.int64) for n in ("tokens", "labels"))
        for step in result.steps:
            for i, block in enumerate(result.blocks):
                model, named = plain_model(train, reader.checkpoint(step), device)
                names = [n for n in BLOCKS[block] if n in named]
                for name, parameter in named.items():
                    parameter.requires_grad_(name in names)
                decay = train.weight_decay if config.objective == "regularised" else 0.0
                criterion = functools.partial(_regularised, decay, list(named.values()))
                row = result.row(step)
                ends = row["eigenvalues"][i]
                torch.manual_seed(config.seed)
                with warnings.catch_warnings():
                    # PyHessian keeps its graph through backward(); the gradients are cleared below.
                    warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
                    solver = pyhessian(model, criterion, data=(tokens, labels), cuda=device.type == "cuda")
                (top,), _ = solver.eigenvalues(maxIter=200, tol=1e-6, top_n=1)
                found.append(
                    Verification(
                        step,
                        block,
                        float(max(ends[:, 0], key=abs)),
                        float(top),
                        _dense_difference(model, named, names, decay, tokens, labels, ends, row["operator_norm"][i]),
                    )
                )
                model.zero_grad()
    return found


def plain_model(
    train: TrainConfig, parameters: dict[str, np.ndarray[Any, Any]], device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network as its users write it, in float64: input layer, flatten, Linear, activation, Linear."""

    class Input(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            if train.model == "onehot":
                return nn.functional.one_hot(tokens, train.vocabulary).double()
            return tokens.double()

    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ACTIVATIONS[train.activation](x)

    tensors = {n: torch.from_numpy(a).double() for n, a in parameters.items()}
    named: dict[str, Tensor] = {}
    first: nn.Module = Input()
    if train.model == "embedding":
        first = nn.Embedding(train.vocabulary, train.embed_dim, dtype=torch.float64)
        named["E"] = first.weight
    hidden, inputs = tensors["W"].shape
    layers = [
        nn.Linear(inputs, hidden, bias=train.bias, dtype=torch.float64),
        nn.Linear(hidden, len(tensors["V"]), bias=train.bias, dtype=torch.float64),
    ]
    for layer, weight, bias in zip(layers, ("W", "V"), ("b1", "b2"), strict=True):
        named[weight] = layer.weight
        if train.bias:
            named[bias] = layer.bias
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(tensors[name])
    return nn.Sequential(first, nn.Flatten(), layers[0], Activation(), layers[1]).to(device), named


def _regularised(decay: float, parameters: list[Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    penalty = torch.stack([p.square().sum() for p in parameters]).sum()
    return _cross_entropy(logits, labels) + 0.5 * decay * penalty


def _dense_difference(
    model: nn.Module,
    named: dict[str, Tensor],
    names: list[str],
    decay: float,
    tokens: Tensor,
    labels: Tensor,
    ends: np.ndarray[Any, Any],
    norm: float,
) -> float | None:
    """max |lambda - lambda_dense| / |H| over the reported eigenvalues; None where the matrix does not fit."""
    sizes = [named[n].numel() for n in names]
    n = sum(sizes)
    if dense_bytes(n) > free_memory(tokens.device) or n > 10_000:
        return None
    keys = {id(p): k for k, p in model.named_parameters()}

    def loss(vector: Tensor) -> Tensor:
        pieces = {
            keys[id(named[name])]: v.view_as(named[name]) for name, v in zip(names, vector.split(sizes), strict=True)
        }
        logits = torch.func.functional_call(model, pieces, (tokens,))
        return _cross_entropy(logits, labels) + 0.5 * decay * vector.square().sum()

    at = torch.cat([named[name].detach().reshape(-1) for name in names])
    dense = torch.func.jacrev(torch.func.grad(loss), chunk_size=64)(at)
    values = torch.linalg.eigvalsh((dense + dense.T) / 2).cpu().numpy()
    k = min(ends.shape[1], n)
    difference = max(np.abs(ends[0, :k] - values[:k]).max(), np.abs(ends[1, :k] - values[::-1][:k]).max())
    return float(difference / norm) if norm else float(difference)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 + sum of exp(z_c - z_y) over the wrong classes): log_softmax has no digits left at low loss."""
    others = logits - logits.gather(1, labels[:, None])
    return others.scatter(1, labels[:, None], -torch.inf).exp().sum(1).log1p().mean()
