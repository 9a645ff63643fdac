"""What an objective differentiates by: some of the parameters, rare ones, flat ones; and what it leaves alone."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from helpers.matrices import assert_close, draw
from helpers.modules import PER_SAMPLE, Point, make, pick, point_of, reference
from torch import Tensor, nn

from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import saddle_index
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, Part
from landscape.curvature.slices import slice_lines
from landscape.errors import ArgumentError


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


@pytest.mark.parametrize("norm", [1.0, 100.0], ids=["reached", "not reached"])
@pytest.mark.parametrize("use", ["value", "gradient", "operator"])
def test_parameters_of_the_module_do_not_change(use: str, norm: float) -> None:
    """Whatever is asked first: a module that renormalises its parameters is refused, and left as it was."""
    module = nn.Sequential(nn.Embedding(5, 4, max_norm=norm), nn.Linear(4, 3)).double()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    point, objective = dict(module.named_parameters()), Objective(module, torch.arange(9) % 5, torch.arange(9) % 3)
    ask = {"value": objective.value, "gradient": objective.gradient}.get(use, lambda P: HessianOperator(objective, P))
    with pytest.raises(ArgumentError, match=r"the model changes its parameter '0\.weight' in place"):
        ask(point)
    assert all(torch.equal(p, before[n]) for n, p in point.items())


def test_constants_and_data_do_not_change() -> None:
    """What a module and a loss write into constants, inputs and targets is not seen outside."""
    module = nn.Sequential(nn.Embedding(5, 4, max_norm=0.5), nn.ReLU(inplace=True), nn.Linear(4, 3)).double()
    last = {n: p for n, p in module.named_parameters() if n.startswith("2")}
    frozen, x, y = module[0].weight.detach().clone(), torch.arange(9) % 5, torch.arange(9) % 3
    matrix = HessianOperator(Objective(module, x, y), last).dense()
    assert torch.equal(module[0].weight, frozen)
    rows = frozen * (0.5 / (frozen.norm(dim=1, keepdim=True) + 1e-7)).clamp(max=1)
    assert_close(
        matrix,
        HessianOperator(Objective(module[1:], rows[x], y), last).dense(),
        1e-6,
    )
    data, labels = draw(9, 4), draw(9, 3)
    copies = data.clone(), labels.clone()
    HessianOperator(Objective(module[1:], data, labels, lambda z, y: (z - y.abs_()).square().sum(1)), last)
    assert torch.equal(data, copies[0])
    assert torch.equal(labels, copies[1])


class Language(nn.Module):
    """Tokens to tokens, with one matrix for embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.mix, self.head = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.wte(x)).tanh())


class Twice(nn.Module):
    """One submodule, with a buffer, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.a.register_buffer("scale", torch.ones(3))
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh() * self.a.scale) * self.b.scale


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("module", "x", "names"),
    [
        (Language(), torch.arange(9) % 4, ["mix.weight", "mix.bias"]),
        (Language(), torch.arange(9) % 4, ["head.weight"]),
        (Language(), torch.arange(9) % 4, ["wte.weight"]),
        (Twice(), draw(9, 3), ["a.0.weight"]),
        (Twice(), draw(9, 3), ["b.0.weight", "a.1.bias"]),
        (Twice(), draw(9, 3), ["b.scale"]),
    ],
    ids=["tied constant", "tied, by one name", "by the other", "shared", "shared, by both names", "shared buffer"],
)
def test_some_parameters_of_a_module_with_tied_ones(
    module: nn.Module, x: Tensor, names: list[str], double: bool
) -> None:
    """Tied constants stay one tensor, and whichever name is given stands for all."""
    module = copy.deepcopy(module).eval().to(torch.float64 if double else torch.float32)
    state, y = module.state_dict(), torch.arange(9) % 3
    point = {n: state[n].double() for n in names}
    matrix = HessianOperator(Objective(module, x, y), point).dense()
    plain = copy.deepcopy(module).double()

    def loss(*values: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            torch.func.functional_call(plain, dict(zip(names, values, strict=True)), (x,)), y
        )

    pieces = torch.autograd.functional.hessian(loss, tuple(point.values()))
    sizes = [p.numel() for p in point.values()]
    rows = [torch.cat([h.reshape(n, -1) for h in row], 1) for n, row in zip(sizes, pieces, strict=True)]
    assert_close(matrix, torch.cat(rows), 1e-10)


def test_a_submodule_under_two_names_is_put_back() -> None:
    """The parameters of the module are those that the optimiser trains, also after an analysis."""
    module = Twice().eval()
    before = module.state_dict(keep_vars=True)
    HessianOperator(Objective(module, draw(9, 3), torch.arange(9) % 3), point_of(module)).dense()
    after = module.state_dict(keep_vars=True)
    assert all(after[name] is held for name, held in before.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["module", "function"])
def test_tensors_of_a_loss(kind: str, dtype: torch.dtype) -> None:
    """Class weights are taken in the objective's precision, make torch's weighted mean, and stay what they are."""
    torch.manual_seed(0)
    module, x, y, weights = nn.Linear(3, 3), draw(9, 3), torch.arange(9) % 3, torch.tensor([1.0, 0.5, 3.0])
    loss = {
        "module": nn.CrossEntropyLoss(weight=weights, reduction="none"),
        "function": functools.partial(nn.functional.cross_entropy, weight=weights, reduction="none"),
    }[kind]
    bias = module.bias.detach().double()

    def mean(b: Tensor) -> Tensor:
        z = x @ module.weight.double().T + b
        return nn.functional.cross_entropy(z, y, weights.double())

    objective = Objective(module, x, y, loss, chunk_size=4, dtype=dtype)
    matrix = HessianOperator(objective, {"bias": bias}).dense().double()
    assert_close(matrix, torch.autograd.functional.hessian(mean, bias), 1e-10 if dtype == torch.float64 else 1e-5)
    kept = loss.weight if isinstance(loss, nn.Module) else loss.keywords["weight"]
    assert kept.dtype == torch.float32


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
    part = HessianOperator(objective, {n: point[n] for n in some})
    assert torch.equal(part.dense(), every.block([a, b]).dense())
    assert part.shape == (len(pick(whole, at, [a, b], [a, b])),) * 2
    squares = 0.25 * sum(float(point[n].square().sum()) for n in at if n not in some)
    assert objective.value(point) - objective.value({n: point[n] for n in some}) == pytest.approx(squares, rel=1e-12)


def test_parameters_that_few_samples_use() -> None:
    """A branch that only one sample of many takes is found, in whichever batch it lies."""
    x, point = torch.zeros(100, 1).double(), {"w": draw(1), "rare": draw(1, seed=1)}
    x[57] = 1.0

    def model(P: Point, x: Tensor) -> Tensor:
        rare = x[:, 0] != 0
        return (P["w"] + (P["rare"] * x[rare, 0]).sum()).expand(len(x)) if bool(rare.any()) else P["w"].expand(len(x))

    batches = list(zip(x.split(1), torch.zeros(100).split(1), strict=True))
    objective = Objective(model, batches, loss=lambda f, _: f**2)
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


# --- what finite differences must not mistake for a wrong derivative -------------------------------------------


def classifier(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers)


class Single(nn.Module):
    """tanh in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().tanh().to(x.dtype)


class Pick(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def forward(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        return outputs[0][:, -1]


def dead(module: nn.Module) -> nn.Module:
    """The module with all parameters 0, so that every unit is at its kink."""
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    return module


def memorised(margin: float) -> nn.Module:
    """A net whose last layer leaves a loss of about 3 exp(-margin) on the first class."""
    module = classifier(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        module[-1].bias.copy_(torch.tensor([margin, 0.0, 0.0, 0.0]))
    return module


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "module",
    [
        classifier(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4)),
        classifier(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 8, 3), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(16, 4)),
        classifier(nn.Linear(6, 8), nn.Hardtanh(), nn.Linear(8, 4)),
        dead(classifier(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))),
        memorised(10.0),
        memorised(20.0),
        classifier(nn.Linear(6, 8), Single(), nn.Linear(8, 4)),
        classifier(nn.Unflatten(1, (3, 2)), nn.LSTM(2, 4, batch_first=True), Pick(), nn.Linear(4, 4)),
    ],
    ids=["wide ReLU", "max pooling", "hard tanh", "all at kinks", "loss 1e-4", "loss 1e-8", "float32 inside", "LSTM"],
)
def test_kinks_and_rounding_are_accepted(module: nn.Module, dtype: torch.dtype) -> None:
    """Piecewise linear nets, losses without digits and models that round are no wrong derivatives."""
    x, y = draw(90, 6), torch.zeros(90).long()
    plain = functools.partial(nn.functional.cross_entropy, reduction="none")
    for scale in (1e-6, 1.0, 1e6):
        objective = Objective(module, x * scale, y, plain, chunk_size=40, dtype=dtype)
        HessianOperator(objective, dict(module.named_parameters()))


def of_two_steps(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy as one writes it: no digit is left where p is next to 1."""
    return -z.exp().div(z.exp().sum(1, keepdim=True)).gather(1, y[:, None])[:, 0].log()


def test_digits_that_are_lost_are_refused_and_torchs_are_kept() -> None:
    """At a loss of 1e-16 torch's cross-entropy is evaluated by ours, which has all digits; by hand there are none."""
    module, x, y = memorised(36.0), draw(90, 6), torch.zeros(90).long()
    point = dict(module.named_parameters())
    words = r"(?s)off finite differences .* take landscape's cross_entropy, which keeps"
    with pytest.raises(ArgumentError, match=words):
        HessianOperator(Objective(module, x, y, of_two_steps), point)
    ours, theirs = (
        HessianOperator(Objective(module, x, y, loss), point).block(["2.bias"]).dense()
        for loss in (None, nn.functional.cross_entropy)
    )
    assert_close(theirs, ours, 1e-13)
    assert 0 < float(ours.trace()) < 1e-14


def test_padding_is_constant() -> None:
    """The padding row of an embedding has no gradient, and so no curvature."""
    module = nn.Sequential(nn.Embedding(5, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 3)).double()
    x = torch.arange(30).reshape(10, 3) % 5
    H = HessianOperator(Objective(module, x, x.sum(1) % 3), dict(module.named_parameters())).dense()
    assert not H[:4].any()
    assert H[4:20].any()


@pytest.mark.parametrize("part", ["hessian", "gauss_newton", "residual"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients(mode: type[torch.no_grad | torch.inference_mode], part: Part) -> None:
    """Under torch.no_grad, where networks are evaluated, derivatives are not zeros."""
    module, x, y, loss, _ = make("mlp")
    objective = Objective(module, x, y, PER_SAMPLE[loss])
    before = HessianOperator(objective, point_of(module), part=part)
    gradient, index = objective.gradient(point_of(module)), saddle_index(before).negative
    unused = HessianOperator(objective, point_of(module), part=part)
    with mode():
        assert torch.equal(unused.dense(), before.dense())
        again = HessianOperator(Objective(module, x, y, PER_SAMPLE[loss]), point_of(module), part=part)
        assert saddle_index(again).negative == index
        assert torch.equal(again.dense(), before.dense())
        without = again.objective.gradient(point_of(module))
        lowest, t = eigsh(again, 1, "lowest", "dense").vectors[0], np.array([0.0, 0.1])
        at_rest = slice_lines(again.objective, point_of(module), list(again.rows), lowest, t)
    assert slice_lines(objective, point_of(module), list(before.rows), lowest, t).curvature == at_rest.curvature
    assert all(torch.equal(without[n], g) for n, g in gradient.items())
