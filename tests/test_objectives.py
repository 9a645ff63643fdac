"""What an objective differentiates by: some of the parameters, rare ones, flat ones; and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from test_operators import PER_SAMPLE, Point, assert_close, draw, make, pick, point_of, reference
from torch import Tensor, nn

from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator


def test_parameters_without_curvature_give_zeros() -> None:
    """A parameter whose gradient is constant or zero has zero rows and columns, alone, joint and off the diagonal."""
    whole, at = reference("mlp")
    module, x, y, loss, _ = make("mlp")
    point = {**point_of(module), "linear": draw(2), "times zero": draw(2)}
    names = list(at)

    def model(P: Point, x: Tensor) -> Tensor:
        outputs = torch.func.functional_call(module, {n: P[n] for n in names}, (x,))
        return torch.stack([outputs, (P["linear"] + 0 * P["times zero"]).expand_as(outputs)], -1)

    # The first two outputs go through the squared error, the last two count as they are.
    both = Objective(model, x, y, lambda f, y: PER_SAMPLE[loss](f[..., 0], y) + f[..., 1].sum(1))
    operator = HessianOperator(both, point)
    n = len(whole)
    assert_close(operator.dense()[:n, :n], whole)
    assert not operator.dense()[n:].any()
    assert not operator.block(["linear"]).dense().any()
    assert not operator.block(["times zero"], ["0.weight"]).dense().any()
    assert operator.block(["0.weight"], ["linear"]).dense().shape == (15, 2)


def test_linear_loss_gives_zeros() -> None:
    """A loss that is linear in the parameters has the zero Hessian."""
    objective = Objective(lambda P, x: x @ P["w"], draw(6, 3), torch.zeros(6), loss=lambda out, _: out)
    assert torch.equal(HessianOperator(objective, {"w": draw(3)}).dense(), torch.zeros(3, 3, dtype=torch.float64))


class Counting(nn.Linear):
    """A layer that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_buffers_of_the_module_do_not_change() -> None:
    """Products through a module that writes into a buffer leave the buffer as it was."""
    module = Counting().double()
    operator = HessianOperator(Objective(module, draw(9, 3), torch.arange(9) % 3), dict(module.named_parameters()))
    assert bool((operator @ draw(operator.shape[1])).any())
    assert module.calls == 0


def test_operator_keeps_its_own_point() -> None:
    """Training the module on does not move an operator that was made before."""
    module, x, y, loss, _ = make("mlp")
    operator = HessianOperator(Objective(module, x, y, PER_SAMPLE[loss]), dict(module.named_parameters()))
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2.0)
    assert_close(operator.dense(), reference("mlp")[0])


def test_some_parameters_of_a_float32_module() -> None:
    """What is not given is constant, in the objective's precision; the L2 term is of the given ones."""
    whole, at = reference("mlp")
    module, x, y, loss, (a, b) = make("mlp")
    some = {n: p for n, p in point_of(module).items() if n in (a, b)}
    rounded = module.float()
    with torch.no_grad():
        # Numbers that float32 holds exactly, so that the constants are the same in both.
        for p in module.parameters():
            p.copy_((p * 64).round() / 64)
    point = {n: p.double() for n, p in point_of(rounded).items()}
    objective = Objective(rounded, x, y, PER_SAMPLE[loss], weight_decay=0.5)
    every = HessianOperator(objective, point)
    found = HessianOperator(objective, {n: point[n] for n in some})
    assert torch.equal(found.dense(), every.block([a, b]).dense())
    assert found.shape == (len(pick(whole, at, [a, b], [a, b])),) * 2
    squares = 0.25 * sum(float(point[n].square().sum()) for n in at if n not in some)
    assert objective.value(point) - objective.value({n: point[n] for n in some}) == pytest.approx(squares, rel=1e-12)


def test_parameters_that_few_samples_use() -> None:
    """A branch that only one sample of many takes is found, in whichever chunk it lies."""
    x, point = torch.zeros(100, 1).double(), {"w": draw(1), "rare": draw(1, seed=1)}
    x[57] = 1.0

    def model(P: Point, x: Tensor) -> Tensor:
        rare = x[:, 0] != 0
        return (P["w"] + (P["rare"] * x[rare, 0]).sum()).expand(len(x)) if bool(rare.any()) else P["w"].expand(len(x))

    objective = Objective(model, x, torch.zeros(100), lambda f, _: f**2, chunk_size=1)
    expected = torch.tensor([[2.0, 0.02], [0.02, 0.02]], dtype=torch.float64)
    torch.testing.assert_close(HessianOperator(objective, point).dense(), expected, rtol=1e-14, atol=1e-14)


def test_fused_attention_in_a_function() -> None:
    """A function's attention, too, goes through the kernel that can be differentiated twice."""
    x, w = draw(6, 2, 3), draw(3, 3, seed=1)

    def attend(w: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x @ w, x, x)

    def plain(w: Tensor) -> Tensor:
        weights = (x @ w @ x.mT / 3**0.5).softmax(-1)
        return (weights @ x).square().sum((1, 2)).mean()

    objective = Objective(lambda P, _: attend(P["w"]), x, x, lambda f, _: f.square().sum((1, 2)))
    expected = torch.autograd.functional.hessian(plain, w).reshape(9, 9)
    assert_close(HessianOperator(objective, {"w": w}).dense(), expected, 1e-12)
