"""A Recorder beside an optimiser: what torch's own state says at each checkpoint, and the sharpness of its step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from helpers.recording import move, small
from helpers.refusals import refused
from torch import nn
from torch.nn import functional as F

import landscape
from landscape import Recorder
from landscape.cli import main as cli
from landscape.files.runs import RunReader

MINE = foreign.executed(foreign.TINY)
Make = Callable[[nn.Sequential], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, betas=(0.9, 0.98)),
    "groups": lambda net: torch.optim.Adam(
        [{"params": net[0].parameters()}, {"params": [net[2].weight], "lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-4}],
        lr=0.01,
    ),
    "amsgrad": lambda net: torch.optim.Adam(net.parameters(), lr=0.1, amsgrad=True),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5),
}


def trained(net: nn.Sequential, optimizer: torch.optim.Optimizer, path: Path | None, steps: int = 6) -> None:
    """Some steps, each recorded if there is a path, with a learning rate that changes."""
    recorder = Recorder(path, net, optimizer=optimizer, metrics=["lr"]) if path else None
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(steps):
        if recorder:
            recorder.checkpoint(step)
        optimizer.zero_grad()
        F.cross_entropy(net(MINE["x"]), MINE["y"]).backward()
        optimizer.step()
        scheduler.step()
    if recorder:
        recorder.checkpoint(steps)
        recorder.close()


def preconditioned(net: nn.Sequential, optimizer: torch.optim.Optimizer, adaptive: bool) -> float:
    """lambda_max of D^(1/2) H D^(1/2) from torch.func and the optimiser's own state, after its last step."""
    net = net.double()
    names = dict(net.named_parameters())
    rates = {id(p): torch.zeros(p.shape, dtype=torch.float64) for p in names.values()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            rates[id(p)] += group["lr"]
            if adaptive:
                state = optimizer.state[p]
                v = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].double()
                rates[id(p)] /= (v / (1 - group["betas"][1] ** float(state["step"]))).sqrt() + group["eps"]
    sizes = [p.numel() for p in names.values()]

    def value(vector: torch.Tensor) -> torch.Tensor:
        pieces = {n: v.view_as(names[n]) for n, v in zip(names, vector.split(sizes), strict=True)}
        return F.cross_entropy(torch.func.functional_call(net, pieces, (MINE["x"].double(),)), MINE["y"])

    H = torch.func.hessian(value)(torch.cat([p.detach().reshape(-1) for p in names.values()]))
    root = torch.cat([rates[id(p)].reshape(-1) for p in names.values()]).sqrt()
    return torch.linalg.eigvalsh(root[:, None] * H * root).max().item()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_sharpness_of_a_recorded_training(kind: str, beside_the_user: None) -> None:
    """As the dense Hessian and the optimiser's own state have it; the training is that without a Recorder."""
    Path("mine.py").write_text(foreign.TINY)
    net, alone = MINE["model"](), MINE["model"]()
    optimizer = OPTIMIZERS[kind](net)
    trained(net, optimizer, Path("run.h5"))
    trained(alone, OPTIMIZERS[kind](alone), None)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), alone.parameters(), strict=True))
    argv = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "0,6", "--blocks", "all"]
    assert cli.run([*argv, "--quiet"]) == 0
    rows = [HessianReader("run.hessian.h5").row(step) for step in (0, 6)]
    adaptive = kind != "momentum"
    assert rows[1]["sharpness_gd"] == pytest.approx(preconditioned(net, optimizer, False), rel=1e-6)
    assert np.isfinite(rows[0]["sharpness_gd"])
    # Before its first step Adam has no moments.
    assert np.isnan(rows[0]["sharpness_adam"])
    if adaptive:
        assert rows[1]["sharpness_adam"] == pytest.approx(preconditioned(net, optimizer, True), rel=1e-4)
    else:
        assert np.isnan(rows[1]["sharpness_adam"])


@pytest.mark.slow
def test_what_is_stored(tmp_path: Path) -> None:
    """Learning rates as they change, 0 for what is frozen or not given to the optimiser; moments bit for bit."""
    net, path = small(), tmp_path / "run.h5"
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam([net[0].weight, net[0].bias, net[2].weight], lr=0.1)
    x = torch.randn(5, 2)
    moments = {}
    with Recorder(path, net, optimizer=optimizer) as recorder:
        for step in range(300):
            recorder.checkpoint(step)
            moments[step] = {
                n: optimizer.state[p]["exp_avg_sq"].clone() for n, p in net.named_parameters() if p in optimizer.state
            }
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    data = landscape.open(path).to_xarray()
    rates = data["optimizer_lr"].transpose("step", "parameter").values
    assert rates[:, 0].tolist() == [0.1, *(0.1 / (1 + step) for step in range(299))]
    assert np.array_equal(rates[:, 0], rates[:, 2])
    assert not rates[:, [1, 3]].any()
    assert data["optimizer_updates"].sel(parameter="0.weight").values.tolist() == list(range(300))
    with RunReader(path) as reader:
        for step in (1, 150, 299):
            stored = reader.second_moments(step)
            assert stored is not None
            for name, value in moments[step].items():
                assert np.array_equal(stored[name], value.numpy())


@pytest.mark.slow
def test_a_resumed_recording(tmp_path: Path) -> None:
    """An optimiser may come later, for the steps from there on; it cannot be left out where the file has its state."""
    net, path = small(), tmp_path / "run.h5"
    adam, sgd = torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1)
    for step, optimizer in enumerate((None, sgd, adam)):
        with Recorder(path, net, resume=True, optimizer=optimizer) as recorder:
            move(net, step)
            recorder.checkpoint(step)
    with RunReader(path) as reader:
        rates = [float(reader.optimizer_at(step)["optimizer_lr"][0]) for step in range(3)]  # type: ignore[index]
        assert np.isnan(rates[0])
        assert rates[1:] == [0.1, 0.001]
        assert reader.checkpoint(1)["0.bias"].tolist() == [1.125] * 3
    other = "with the same kind: optimizer="
    refused(lambda: Recorder(path, net, resume=True), "run.h5 holds an optimiser's state", other)
    refused(lambda: Recorder(path, net, resume=True, optimizer=sgd), "run.h5 holds the second moments of Adam", other)


def test_mistakes(tmp_path: Path) -> None:
    """What is no optimiser of this model, and names that its state needs."""
    at, net = tmp_path / "run.h5", small()
    foreign_one = torch.optim.SGD(small().parameters(), lr=0.1)
    clash: Any = nn.ParameterDict({"w": torch.ones(2), "v_w": torch.ones(2)})
    adam = torch.optim.Adam(clash.parameters())
    refused(lambda: Recorder(at, net, optimizer="adam"), "the optimizer is str", "torch.optim.Optimizer")  # type: ignore[arg-type]
    refused(lambda: Recorder(at, net, optimizer=foreign_one), "moves no parameter of the model", "trains this model")
    refused(lambda: Recorder(at, net, metrics=["optimizer_lr"]), "'optimizer_lr' cannot be the name", "rename it")
    said = "parameter 'v_w' has the name of the second moments of 'w'"
    refused(lambda: Recorder(at, clash, optimizer=adam), said, "rename it, or leave out the optimizer")
    assert not list(tmp_path.iterdir())
