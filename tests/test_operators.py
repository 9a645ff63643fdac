"""Hessian-vector products against autograd, curvlinops and PyHessian, and what they must not do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from landscape.curvature.objective import Objective, cross_entropy, mse
from landscape.curvature.operators import HessianOperator


class Attention(nn.Module):
    """A small transformer block, with a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.head = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.project(x.unflatten(1, (2, 3))))
        weights = (self.query(z) @ self.key(z).transpose(1, 2)).softmax(-1)
        return self.head((weights @ self.value(z)).mean(1))


def problem(kind: str, weight_decay: float = 0.0, chunk: int | None = None) -> tuple[nn.Module, Objective]:
    torch.manual_seed(0)
    model = {"mlp": nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), "attention": Attention()}[kind].double()
    x, y = torch.randn(70, 6), torch.randint(0, 3, (70,))
    return model, Objective(model, x, y, weight_decay=weight_decay, chunk_size=chunk)


def reference(model: nn.Module, objective: Objective, decay: float = 0.0) -> Tensor:
    """The whole Hessian by autograd with torch's own cross-entropy (torch.func.hessian is wrong for LayerNorm)."""
    params = {n: p.detach() for n, p in model.named_parameters()}
    sizes = [p.numel() for p in params.values()]

    def loss(flat: Tensor) -> Tensor:
        split = dict(
            zip(params, (v.view_as(p) for v, p in zip(flat.split(sizes), params.values(), strict=True)), strict=True)
        )
        logits = torch.func.functional_call(model, split, (objective.inputs,))
        return nn.functional.cross_entropy(logits, objective.targets) + decay / 2 * flat.square().sum()

    return torch.autograd.functional.hessian(loss, torch.cat([p.reshape(-1) for p in params.values()]))


@pytest.mark.parametrize("kind", ["mlp", "attention"])
@pytest.mark.parametrize(("decay", "chunk"), [(0.0, None), (0.1, None), (0.1, 64)])
def test_equals_autograd(kind: str, decay: float, chunk: int | None) -> None:
    """Dense, single and several products equal autograd's Hessian; ragged chunks are weighted by samples."""
    model, objective = problem(kind, decay, chunk)
    expected = reference(model, objective, decay)
    H = HessianOperator(objective, dict(model.named_parameters()))
    torch.testing.assert_close(H.dense(), expected, atol=1e-14, rtol=1e-10)
    V = torch.randn(len(expected), 3, dtype=torch.float64)
    torch.testing.assert_close(H @ V, expected @ V, atol=1e-13, rtol=1e-10)
    torch.testing.assert_close(H @ V[:, 0], expected @ V[:, 0], atol=1e-13, rtol=1e-10)


def test_blocks_in_any_order() -> None:
    """Diagonal, joint and off-diagonal blocks are the matching parts of the whole; T and to_scipy agree."""
    model, objective = problem("mlp")
    params = dict(model.named_parameters())
    whole = HessianOperator(objective, params)
    H = whole.dense()
    ends = np.cumsum([0, *(p.numel() for p in params.values())])
    at = {n: slice(a, b) for n, a, b in zip(params, ends, ends[1:], strict=False)}
    torch.testing.assert_close(whole.block(["2.weight"]).dense(), H[at["2.weight"], at["2.weight"]])
    off = whole.block(["0.weight"], ["2.weight"])
    torch.testing.assert_close(off.dense(), H[at["0.weight"], at["2.weight"]])
    torch.testing.assert_close(off.T.dense(), off.dense().T)
    joint = whole.block(["2.weight", "0.weight"]).dense()
    torch.testing.assert_close(joint[15:, :15], H[at["0.weight"], at["2.weight"]])
    scipy_off = off.to_scipy()
    np.testing.assert_allclose(scipy_off @ np.eye(15), off.dense().numpy(), atol=1e-14)
    np.testing.assert_allclose(scipy_off.rmatvec(np.ones(30)), off.dense().numpy().T @ np.ones(30), atol=1e-13)


def test_unused_parameters_have_no_curvature() -> None:
    """A parameter that the loss does not see gives zeros, not a crash; so does a frozen one its curvature."""
    model, objective = problem("attention")
    model.head.weight.requires_grad_(False)
    H = HessianOperator(objective, dict(model.named_parameters()))
    assert torch.equal(H.block(["unused"]).dense(), torch.zeros(2, 2, dtype=torch.float64))
    assert float(H.block(["head.weight"]).dense().norm()) > 0


def test_no_side_effects_and_deterministic() -> None:
    """Products change no .grad, mode, requires_grad or value, and come out the same, bit for bit, twice."""
    model, objective = problem("mlp")
    model.eval()
    model[0].weight.requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    before = [p.detach().clone() for p in model.parameters()]
    v = torch.ones(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    first = HessianOperator(objective, dict(model.named_parameters())) @ v
    second = HessianOperator(objective, dict(model.named_parameters())) @ v
    assert torch.equal(first, second)
    assert not model.training
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert all(bool((p.grad == 7).all()) for p in model.parameters() if p.grad is not None)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_mse_is_torch_mse() -> None:
    """The squared error is normalised as torch's MSELoss."""
    a, b = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    assert float(mse(a, b).mean()) == pytest.approx(float(nn.functional.mse_loss(a, b)), rel=1e-14)
    y = torch.randint(0, 3, (7,))
    assert float(cross_entropy(a, y).mean()) == pytest.approx(float(nn.functional.cross_entropy(a, y)), rel=1e-14)


def test_second_libraries() -> None:
    """curvlinops and PyHessian see the same Hessian."""
    from curvlinops import HessianLinearOperator
    from pyhessian import hessian as pyhessian

    model, objective = problem("mlp")
    params = dict(model.named_parameters())
    H = HessianOperator(objective, params)
    dense = H.dense()
    theirs = HessianLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [(objective.inputs, objective.targets)],
        check_deterministic=False,
    )
    v = torch.randn(len(dense), dtype=torch.float64)
    torch.testing.assert_close(theirs @ v, H @ v, atol=1e-13, rtol=1e-10)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
        solver = pyhessian(model, nn.CrossEntropyLoss(), data=(objective.inputs, objective.targets), cuda=False)
        (top,), _ = solver.eigenvalues(maxIter=500, tol=1e-10)
    assert top == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-5)


def test_errors_name_the_value() -> None:
    """Unknown parameters, wrong lengths and unpaired data are refused."""
    model, objective = problem("mlp")
    H = HessianOperator(objective, dict(model.named_parameters()))
    with pytest.raises(ValueError, match=r"no parameter 'w'; the objective has 0.weight, 0.bias"):
        H.block(["w"])
    with pytest.raises(ValueError, match="vectors of length 5; this operator takes 53"):
        H @ torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ValueError, match="3 inputs and 2 targets"):
        Objective(model, torch.zeros(3, 6), torch.zeros(2))
