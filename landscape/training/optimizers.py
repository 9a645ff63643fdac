"""Optimisers with a learning rate of their own for E, and the policies that set lr_E / lr_W."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from landscape.config import TrainConfig
from landscape.training.models import MLP


def make_optimizer(config: TrainConfig, model: MLP) -> torch.optim.Optimizer:
    """Group 0 holds E (empty where there is none or it is frozen), group 1 everything else trainable."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for n, p in trainable.items() if n == "E"]},
        {"params": [p for n, p in trainable.items() if n != "E"]},
    ]
    lr, decay = config.lr, config.weight_decay
    match config.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, weight_decay=decay)
        case "adam":
            return torch.optim.Adam(groups, lr=lr, weight_decay=decay)
        case _:
            return torch.optim.AdamW(groups, lr=lr, weight_decay=decay)


def set_lr_ratio(optimizer: torch.optim.Optimizer, lr: float, ratio: float) -> None:
    """lr_E = ratio * lr; everything else keeps lr."""
    optimizer.param_groups[0]["lr"] = ratio * lr
    optimizer.param_groups[1]["lr"] = lr


def prop41_ratio(E: Tensor, W: Tensor, f_E: float) -> float:
    """(sigma_max(E) / sigma_max(W)) * (f_W / f_E) with f_W = 1 (arXiv 2505.15624, Proposition 4.1)."""
    sigma = [float(torch.linalg.matrix_norm(M.detach(), 2)) for M in (E, W)]
    return sigma[0] / sigma[1] / f_E


def next_lr_ratio(config: TrainConfig, model: MLP, f_E: float, curvatures: Callable[[], tuple[float, float]]) -> float:
    """c = lr_E / lr_W under the config's policy; `curvatures` gives lambda_max of H_EE and of H_WW.

    The curvature policy equalises lr^2 * lambda_max, the second-order loss change of a step of size lr. In a
    bilinear least-squares model (F1) it is then sigma_max(E) / sigma_max(W), as Proposition 4.1 says.
    """
    if config.lr_ratio == "prop41":
        return prop41_ratio(model.E, model.W, 1.0 if np.isnan(f_E) else f_E)
    if config.lr_ratio == "curvature":
        lambda_E, lambda_W = curvatures()
        return float(np.sqrt(lambda_W / lambda_E))
    return config.lr_ratio


def moments(optimizer: torch.optim.Optimizer, model: MLP) -> dict[str, np.ndarray]:
    """First and second moments by parameter as m_NAME and v_NAME; zeros where the optimiser keeps none."""
    result = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for prefix, keys in _MOMENTS.items():
            value = next((state[k] for k in keys if state.get(k) is not None), torch.zeros_like(parameter))
            result[f"{prefix}_{name}"] = value.detach().cpu().numpy().copy()
    return result


def restore_moments(optimizer: torch.optim.Optimizer, model: MLP, stored: dict[str, np.ndarray], step: int) -> None:
    """Put stored moments back, as after `step` optimiser steps."""
    if step == 0:
        return
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        m, v = (torch.from_numpy(stored[f"{k}_{name}"].copy()).to(parameter) for k in ("m", "v"))
        if isinstance(optimizer, torch.optim.SGD):
            optimizer.state[parameter] = {"momentum_buffer": m if optimizer.defaults["momentum"] else None}
        else:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step)),
                "exp_avg": m,
                "exp_avg_sq": v,
            }


_MOMENTS = {"m": ("exp_avg", "momentum_buffer"), "v": ("exp_avg_sq",)}
