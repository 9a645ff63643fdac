"""Losses and modules that would silently get a wrong Hessian are refused, in words that say the mend."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.modules import by_autograd
from helpers.refusals import X, Y, at_row, net, operator, refused, table
from helpers.unsound import KeptSquare, OnceSquare, straight_through
from torch import Tensor, nn
from torch.nn import functional as F

from landscape import Objective, cross_entropy, mse
from landscape.errors import ArgumentError

elementwise = functools.partial(F.binary_cross_entropy_with_logits, reduction="none")
binary = torch.rand(10, 4, generator=torch.Generator().manual_seed(0)).round()
many = {"x": torch.randn(512, 3, generator=torch.Generator().manual_seed(1)), "y": torch.arange(512) * 7 % 4}


def hard(z: Tensor, y: Tensor) -> Tensor:
    """The 64 largest losses of the batch count."""
    values = cross_entropy(z, y)
    return values * torch.zeros_like(values).scatter(0, values.topk(min(64, len(values))).indices, 1.0)


def in_pairs(z: Tensor, _: Tensor) -> Tensor:
    """Consecutive samples belong together."""
    n = len(z) // 2 * 2
    distance = (z[0:n:2] - z[1:n:2]).square().sum(1)
    return torch.cat([distance.repeat_interleave(2), z.new_zeros(len(z) - n)])


def of_pairs(z: Tensor, _: Tensor) -> Tensor:
    return cross_entropy(z @ z.mT, torch.arange(len(z)))


WHOLE = "leave chunk_size out, so that batches are whole, in one process; or remove what ties their samples"
FAILS = "a batch that is cut into parts of other sizes fails: "
COUPLED = r"the loss of a batch changes by \d\S*% when it is cut into parts of other sizes"
COLUMN = r"give targets\[:, None\] for outputs \(N, 1\)"
one_output = {"model": nn.Linear(3, 1), "y": X[:, 0]}


@table(
    {
        "one number, cut": (
            lambda: operator(lambda z, y: F.cross_entropy(z, y), chunk_size=4),
            "the loss is one number for a batch, which is not cut into chunks",
            r"return one value for each sample \(reduction='none'\); or leave chunk_size out",
        ),
        "mean over samples, cut": (
            lambda: operator(lambda z, y: elementwise(z, y).mean(0), y=binary, chunk_size=4),
            r"the loss returns shape \(4,\) for 2 samples of a chunk",
            "return one value for each sample, or leave chunk_size out",
        ),
        "pairs, cut": (lambda: operator(of_pairs, chunk_size=5), FAILS + "cross_entropy of one class", WHOLE),
        "hard examples, cut": (lambda: operator(hard, chunk_size=128, **many), COUPLED, WHOLE),
        "consecutive pairs, cut": (lambda: operator(in_pairs, chunk_size=101, **many), COUPLED, WHOLE),
        "as large as wanted": (
            lambda: operator(lambda z, y: torch.ones(1 << 50), chunk_size=4),
            r"the loss fails on outputs \(4, 4\) and targets \(4,\): .*memory",
            "take a smaller chunk_size",
        ),
        "a number": (lambda: operator(lambda z, y: 1.0), "the loss returns a float", "return a tensor"),
        "half precision": (
            lambda: operator(lambda z, y: cross_entropy(z.bfloat16(), y)),
            "the loss is torch.bfloat16 in an objective of torch.float64",
            r"remove casts from model and loss, such as \.bfloat16\(\) and autocast",
        ),
        "complex": (
            lambda: operator(lambda z, y: torch.fft.fft(z)),
            "the loss is torch.complex128",
            "return real parts, or absolute values",
        ),
        "an accuracy": (
            lambda: operator(lambda z, y: z.argmax(1) == y),
            "the loss is torch.bool",
            "return floating-point numbers, which have derivatives",
        ),
        "infinite": (
            lambda: operator(lambda z, y: z[:, 0] / (y - 1), x=[(X[:1], Y[:1]), (X, Y)], y=None),
            "the loss of 1 of 2 batches is NaN or infinite, first of batch 1",
            "overflow, log of 0",
        ),
        "raises": (
            lambda: operator(lambda z, y: z @ y),
            r"the loss fails on outputs \(10, 4\) and targets \(10,\): RuntimeError",
            "call the model on this batch in Python",
        ),
        "raises in the last chunk": (
            lambda: operator(lambda z, y: z.reshape(4, 4)[:, 0], chunk_size=4) @ torch.ones(44).double(),
            r"the loss fails on outputs \(2, 4\) and targets \(2,\): RuntimeError",
            "call the model on this batch in Python",
        ),
        "no function": (lambda: operator(loss="mse"), "the loss is a str", r"give a torch loss, or a function of "),
        "constant": (
            lambda: operator(lambda z, y: z.detach()[:, 0]),
            r"the loss does not depend on '0.weight', '0.bias', '2.weight' and 1 more",
            r"for detach\(\) or no_grad in the model",
        ),
        "constant gradient": (
            lambda: operator(lambda z, y: cross_entropy(z + z.detach().square(), y)),
            "the first derivative by automatic differentiation is .*% off finite differences of the loss",
            r"without detach\(\), straight-through estimates",
        ),
        "mse, broadcast": (
            lambda: operator(mse, **one_output),
            r"mse of outputs \(10, 1\) and targets \(10,\): each output would meet other samples' targets",
            COLUMN,
        ),
        "torch's mse, broadcast": (
            lambda: operator(nn.MSELoss(), **one_output),
            r"mse_loss of outputs \(10, 1\) and targets \(10,\)",
            COLUMN,
        ),
        "one class": (
            lambda: operator(model=nn.Linear(3, 1), y=torch.zeros(10).long()),
            "cross_entropy of one class is 0 whatever the parameters",
            "for binary labels take torch.nn.BCEWithLogitsLoss",
        ),
        "soft labels": (
            lambda: operator(y=binary),
            r"cross_entropy of logits \(10, 4\) and labels \(10, 4\), torch.float64",
            r"labels are class indices, .* for probabilities take torch.nn.CrossEntropyLoss",
        ),
        "a column of labels": (lambda: operator(y=Y[:, None]), r"labels \(10, 1\), torch.int64", r"labels\[:, 0\]"),
        "missing classes": (
            lambda: operator(y=torch.arange(10)),
            "labels run from 0 to 9; the model has 4 classes, 0 to 3",
            "number the classes from 0",
        ),
        "missing classes of torch's loss, in the last chunk": (
            lambda: operator(nn.CrossEntropyLoss(), y=at_row(Y, 9, 4), chunk_size=2),
            "labels run from 0 to 4",
            "number the classes from 0",
        ),
        "negative labels alone": (lambda: cross_entropy(X, Y - 1), "labels run from -1 to 2", "number the classes"),
        "tokens without an axis": (
            lambda: operator(model=net(nn.Unflatten(1, (2, 2)))),
            r"cross_entropy of logits \(10, 2, 2\) and labels \(10,\)",
            r"labels are class indices, integers of shape logits.shape\[:-1\]",
        ),
        "no label left": (
            lambda: operator(y=torch.full((10,), -100)),
            "nothing counts: the weights of all batches are 0",
            "give some samples a target",
        ),
    }
)
def test_losses(make: Callable[[], Any], words: str, hint: str) -> None:
    """A loss is finite and has the derivatives that it says; cut into chunks, it is one value a sample."""
    refused(make, words, hint)


# --- modules --------------------------------------------------------------------------------------------------


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Recurrent(nn.Module):
    """A recurrent net with dropout between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 4, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[:, None])[0][:, -1]


class Attention(nn.Module):
    """Attention with dropout of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(3, 1, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x[:, None], x[:, None], x[:, None])[0][:, 0]


def clamped(P: dict[str, Tensor], x: Tensor) -> Tensor:
    P["w"].data.clamp_(-0.1, 0.1)
    return x @ P["w"]


def beside_stiff(P: dict[str, Tensor], x: Tensor) -> Tensor:
    """Two outputs; the second, without a second derivative, has 1e-4 of the first one's curvature."""
    return torch.stack([100 * x[:, 0] * P["w"][0], KeptSquare.apply(x @ P["w"])], 1)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(5, 4))
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), layer)


TWICE = r"build model and loss from torch operations that can be differentiated twice"
SECOND = r"the second derivative by automatic differentiation is [\d.]+% off finite differences of the gradient of "
RANDOM = r"the loss of the same parameters is \d\S* and then \d\S*: curvature needs a deterministic loss"
EVAL = r"put the module in eval mode \(dropout\)"


@table(
    {
        "batch norm, cut": (lambda: operator(model=net(nn.BatchNorm1d(4)), chunk_size=128, **many), COUPLED, WHOLE),
        "batch statistics in eval mode, cut": (
            lambda: operator(model=net(nn.BatchNorm1d(4, track_running_stats=False)).eval(), chunk_size=128, **many),
            COUPLED,
            WHOLE,
        ),
        "dropout": (lambda: operator(model=net(nn.Dropout(0.1))), RANDOM, EVAL),
        "recurrent": (lambda: operator(model=Recurrent()), RANDOM, EVAL),
        "attention": (lambda: operator(model=Attention(), y=Y % 3), RANDOM, EVAL),
        "tuple": (
            lambda: operator(model=net(Apply(lambda z: (z, z)))),
            "the model returns a tuple, not a tensor",
            r"say what the loss takes of it: loss=lambda outputs, targets: loss\(outputs\[0\], targets\)",
        ),
        "namespace": (
            lambda: operator(model=net(Apply(lambda z: types.SimpleNamespace(logits=z)))),
            "the model returns a SimpleNamespace",
            r"loss\(outputs\.logits, targets\)",
        ),
        "half precision": (
            lambda: operator(model=net(Apply(lambda z: z.bfloat16()))),
            "the loss is torch.bfloat16 in an objective of torch.float64",
            r"remove casts from model and loss",
        ),
        "wrong inputs": (
            lambda: operator(x=X[:, :2]),
            r"the model fails on inputs \(10, 2\): RuntimeError: mat1 and mat2",
            "call the model on this batch in Python",
        ),
        "once differentiable": (lambda: operator(model=net(Apply(OnceSquare.apply))), SECOND + "'[02]", TWICE),
        "kept slope": (lambda: operator(model=net(Apply(KeptSquare.apply))), SECOND + "'[02]", "once_different"),
        "kept slope beside a stiff direction": (
            lambda: operator(lambda z, y: z[:, 0] ** 2 - z[:, 1], beside_stiff, params={"w": torch.ones(3)}),
            SECOND + "'w'",
            "once_different",
        ),
        "straight-through": (
            lambda: operator(model=net(Apply(straight_through))),
            r"the first derivative by automatic differentiation is [\d.]+% off finite differences of the loss",
            "straight-through estimates",
        ),
        "asymmetric double backward": (
            lambda: operator(model=old_weight_norm()),
            SECOND + "'2.weight_v'",
            "weight_norm",
        ),
        "no_grad": (
            lambda: operator(model=net(Apply(torch.no_grad()(lambda z: z * 2)))),
            "the loss does not depend on '0.weight'",
            "no_grad in the model",
        ),
        "spectral norm in training mode": (
            lambda: operator(model=net(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))),
            SECOND + "'3.parametrizations.weight.original'",
            "spectral_norm in training mode",
        ),
        "weight norm": (
            lambda: operator(model=net(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))),
            SECOND + "'3.parametrizations.weight.original1'",
            "torch's weight_norm",
        ),
        "embedding bag": (
            lambda: operator(model=nn.Sequential(nn.EmbeddingBag(4, 3), nn.Linear(3, 4)), x=Y[:, None]),
            "the loss cannot be differentiated: NotImplementedError: the derivative for '_embedding_bag_backward'",
            "replace it by torch operations that can be differentiated twice",
        ),
        "sparse gradients": (
            lambda: operator(model=nn.Embedding(4, 4, sparse=True), x=Y),
            "the gradient of 'weight' is sparse",
            "make its module with sparse=False",
        ),
        "clipped embedding": (
            lambda: operator(model=nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Linear(3, 4)), x=Y),
            "the model changes its parameter '0.weight' in place",
            r"without max_norm",
        ),
        "clamped in place": (
            lambda: operator(lambda z, y: z**2, clamped, params={"w": X[0]}),
            "the model changes its parameter 'w' in place",
            r"compute a new tensor from it",
        ),
        "lazy": (
            lambda: operator(model=nn.LazyLinear(4)),
            "parameter 'weight' has no shape yet",
            "call the module once",
        ),
        "no function": (
            lambda: Objective("net", X, Y),
            "the model is a str",
            r"give a module or a function of \(params, inputs\)",
        ),
    }
)
def test_modules(make: Callable[[], Any], words: str, hint: str) -> None:
    """A module is a function of its parameters that can be differentiated twice."""
    refused(make, words, hint)


# --- hints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused_one", "followed", "meant"),
    [
        (
            {"loss": nn.MSELoss(), **one_output},
            {"loss": nn.MSELoss(), **one_output, "y": X[:, :1]},
            lambda m: F.mse_loss(m(X.double()), X[:, :1].double()),
        ),
        ({"y": binary}, {"y": binary, "loss": nn.CrossEntropyLoss()}, lambda m: F.cross_entropy(m(X.double()), binary)),
        (
            {"model": nn.Linear(3, 1), "y": Y[:, None] % 2},
            {"model": nn.Linear(3, 1), "y": Y[:, None] % 2, "loss": nn.BCEWithLogitsLoss()},
            lambda m: F.binary_cross_entropy_with_logits(m(X.double()), Y[:, None].double() % 2),
        ),
        (
            {"loss": of_pairs, "chunk_size": 5},
            {"loss": of_pairs},
            lambda m: of_pairs(m(X.double()), Y).mean(),
        ),
        (
            {"loss": lambda z, y: F.cross_entropy(z, y), "chunk_size": 4},
            {"loss": lambda z, y: F.cross_entropy(z, y, reduction="none"), "chunk_size": 4},
            lambda m: F.cross_entropy(m(X.double()), Y),
        ),
        (
            {"model": net(Apply(lambda z: types.SimpleNamespace(logits=z)))},
            {
                "model": net(Apply(lambda z: types.SimpleNamespace(logits=z))),
                "loss": lambda outputs, targets: cross_entropy(outputs.logits, targets),
            },
            lambda m: F.cross_entropy(m(X.double()).logits, Y),
        ),
    ],
    ids=["column", "soft labels", "one class", "coupled", "one number, cut", "namespace"],
)
def test_a_hint_leads_to_the_hessian_that_is_meant(
    refused_one: dict[str, Any], followed: dict[str, Any], meant: Callable[[nn.Module], Tensor]
) -> None:
    """Followed once: torch's Hessian of the mean over all samples."""
    with pytest.raises(ArgumentError):
        operator(**refused_one)
    module = followed.pop("model", net()).double()
    expected = by_autograd(meant(module), module)
    torch.testing.assert_close(operator(model=module, **followed).dense(), expected, rtol=1e-9, atol=1e-12)
