"""Modules that several processes share: the Hessian is that of the plain module, or the wrapper is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.matrices import draw
from helpers.ranks import started
from torch import Tensor, nn

from landscape import HessianOperator, Objective, gathered, preconditioner
from landscape.errors import ArgumentError


def net() -> nn.Module:
    """Its parameters have odd sizes, which two ranks cut unequally."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 2)).eval()


def product(module: nn.Module) -> Tensor:
    """Of the Hessian with a fixed vector."""
    inputs = draw(7, 3, seed=1)
    hessian = HessianOperator(Objective(module, inputs, torch.arange(7) % 2), dict(module.named_parameters()))
    return hessian @ draw(hessian.shape[0], seed=2)


def adam_D(module: nn.Module) -> dict[str, Tensor]:
    """D of Adam after a step on fixed data; the module moves."""
    params = dict(module.named_parameters())
    optimizer = torch.optim.Adam(params.values(), lr=0.01)
    nn.functional.cross_entropy(module(draw(7, 3, seed=1).float()), torch.arange(7) % 2).backward()
    optimizer.step()
    return preconditioner(optimizer, params)


def wrapped(folder: Path) -> None:
    """Write the products of the wrapped modules of a rank, and what is said of those that are refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    dist.init_process_group("gloo")
    sharded, other = net(), nn.Linear(3, 2)
    with torch.no_grad():
        sharded[2].running_mean += 0.5
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (sharded[0], sharded):
        fully_shard(part, mesh=mesh)
    refused = []
    one = FullyShardedDataParallel(nn.Linear(3, 2), device_id=torch.device("cpu"))
    for make in (lambda: product(sharded), lambda: gathered(sharded, other), lambda: product(one)):
        with pytest.raises(ArgumentError) as raised:
            make()
        refused.append((str(raised.value), raised.value.hint))
    ddp = product(nn.parallel.DistributedDataParallel(net()))
    results = {"ddp": ddp, "fsdp2": product(gathered(sharded, net())), "refused": refused, "D": adam_D(sharded)}
    torch.save(results, folder / f"{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_modules_over_two_ranks(tmp_path: Path) -> None:
    """To 1e-12, buffers included; the refusals say what gathering takes."""
    with started(tmp_path, 2, wrapped, tmp_path) as crew:
        crew.join()
        assert crew.codes == [0, 0], crew.said()
    moved = net()
    with torch.no_grad():
        moved[2].running_mean += 0.5
    expected, D = {"ddp": product(net()), "fsdp2": product(moved)}, adam_D(moved)
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        for name, own in expected.items():
            assert float((results[name] - own).norm()) <= 1e-12 * float(own.norm()), name
        for name, own in D.items():
            assert torch.allclose(results["D"][name], own, rtol=1e-5), name
        sharded, other, one = results["refused"]
        assert "the parameters of FSDPSequential are DTensors" in sharded[0]
        assert (
            "landscape.gathered(model, plain): a plain module with all 42 parameters, 0.0 GB on each rank" in sharded[1]
        )
        assert "the sharded and the plain module differ in 0.bias" in other[0]
        assert "sharded by FullyShardedDataParallel" in one[0]
        assert "full state dict" in one[1]


class DeepSpeedEngine(nn.Module):
    """What is used of DeepSpeed's, which is known by its name."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        super().__init__()
        self.module, self.stage = module, stage

    def zero_optimization_stage(self) -> int:
        return self.stage


class PipelineEngine(DeepSpeedEngine):
    pass


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_module_of_a_deepspeed_engine(stage: int) -> None:
    engine = DeepSpeedEngine(net(), stage)
    assert torch.equal(product(engine), product(net()))


@pytest.mark.parametrize("engine", [DeepSpeedEngine(net(), 3), PipelineEngine(net(), 1)])
def test_engines_that_hold_a_part_are_refused(engine: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{type(engine).__name__} of DeepSpeed holds only a part") as raised:
        product(engine)
    assert "consolidated checkpoint" in raised.value.hint
