"""Losses and modules that would silently get a wrong Hessian are refused, in words that say the mend."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.refusals import X, Y, at_row, net, operator, refused, table
from helpers.unsound import KeptSquare, OnceSquare, straight_through
from torch import Tensor, nn
from torch.nn import functional as F

from landscape import Objective, cross_entropy, mse

elementwise = functools.partial(F.binary_cross_entropy_with_logits, reduction="none")
binary = torch.rand(10, 4, generator=torch.Generator().manual_seed(0)).round()
tokens = torch.arange(20).reshape(10, 2) % 4


@table(
    {
        "mean": (
            lambda: operator(F.cross_entropy),
            r"the loss returns shape \(\) for 10 samples; one value per sample, \(10,\), is needed",
            r"pass reduction='none', or leave out the mean or sum",
        ),
        "mean, chunks": (
            lambda: operator(F.cross_entropy, chunk_size=4),
            r"shape \(\) for 4 samples",
            "reduction='none'",
        ),
        "mean, single samples": (lambda: operator(F.cross_entropy, chunk_size=1), r"shape \(\) for 1 sample", "'none'"),
        "mean module": (
            lambda: Objective(net(), X, Y, nn.CrossEntropyLoss()),
            "CrossEntropyLoss has reduction 'mean'; the objective takes the mean itself",
            r"pass CrossEntropyLoss\(reduction='none'\)",
        ),
        "sum module": (lambda: Objective(net(), X, Y, nn.MSELoss(reduction="sum")), "has reduction 'sum'", "'none'"),
        "elementwise": (
            lambda: operator(elementwise, y=binary),
            r"the loss returns shape \(10, 4\) for 10 samples",
            r"sum or average over the other axes; for one value per token \(n, T\) pass per_token=True",
        ),
        "a column": (
            lambda: operator(lambda z, y: cross_entropy(z, y)[:, None]),
            r"the loss returns shape \(10, 1\)",
            r"flatten it: loss\(outputs, targets\)\.reshape\(len\(outputs\)\)",
        ),
        "mean over samples": (
            lambda: operator(lambda z, y: elementwise(z, y).mean(0), y=binary),
            r"the loss returns shape \(4,\) for 10 samples",
            "check that outputs and targets have the shapes which the loss expects",
        ),
        "mean over as many samples as outputs": (
            lambda: operator(lambda z, y: elementwise(z, y).mean(0), y=binary, chunk_size=4),
            r"the loss returns shape \(4,\) for 2 samples",
            "check that outputs and targets",
        ),
        "as large as wanted": (
            lambda: operator(lambda z, y: torch.ones(1 << 60), chunk_size=4),
            r"the loss fails on outputs \(4, 4\) and targets \(4,\): .*memory",
            "take a smaller chunk_size",
        ),
        "a number": (lambda: operator(lambda z, y: 1.0), "the loss returns a float", "return a tensor"),
        "single precision": (
            lambda: operator(lambda z, y: cross_entropy(z.float(), y)),
            "the values of the loss are torch.float32 in an objective of torch.float64",
            r"remove casts from model and loss, such as \.float\(\) and autocast; or pass dtype=torch\.float32",
        ),
        "infinite": (
            lambda: operator(lambda z, y: z[:, 0] / (y - 1)),
            "the loss of 3 of the 10 samples tried is NaN or infinite",
            "overflow, log of 0",
        ),
        "raises": (
            lambda: operator(lambda z, y: z @ y),
            r"the loss fails on outputs \(10, 4\) and targets \(10,\): RuntimeError",
            "it must work on these shapes and in the objective's dtype",
        ),
        "raises in the last chunk": (
            lambda: operator(lambda z, y: z.reshape(4, 4)[:, 0], chunk_size=4) @ torch.ones(44).double(),
            r"the loss fails on outputs \(2, 4\) and targets \(2,\): RuntimeError",
            "it must work on these shapes",
        ),
        "no function": (lambda: operator(loss="mse"), "the loss is a str", r"give a function of \(outputs, targets\)"),
        "pairs": (
            lambda: operator(lambda z, y: cross_entropy(z @ z.mT, torch.arange(len(z))), chunk_size=5),
            r"the loss of a sample changes by \d\S*% with the samples beside it in its chunk",
            "pass chunk_size=None, so that all samples go together, in one process; or remove what ties them",
        ),
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
            lambda: operator(mse, nn.Linear(3, 1), y=X[:, 0]),
            r"mse of outputs \(10, 1\) and targets \(10,\)",
            r"give both the same shape, such as targets\[:, None\] for outputs \(N, 1\)",
        ),
        "one class": (
            lambda: operator(model=nn.Linear(3, 1), y=torch.zeros(10).long()),
            "cross_entropy of one class is 0 whatever the parameters",
            "binary_cross_entropy_with_logits",
        ),
        "soft labels": (
            lambda: operator(y=binary),
            r"cross_entropy of logits \(10, 4\) and labels \(10, 4\), torch.float64",
            r"labels are class indices, .* for probabilities write the loss: lambda z, y: -\(y \* z\.log_softmax",
        ),
        "a column of labels": (lambda: operator(y=Y[:, None]), r"labels \(10, 1\), torch.int64", r"labels\[:, 0\]"),
        "ignored labels": (
            lambda: operator(y=at_row(Y, 3, -100)),
            "1 of 10 targets are -100, which the loss leaves out of its mean",
            r"keep = targets != -100, then inputs\[keep\] and targets\[keep\]",
        ),
        "ignored labels of a module": (
            lambda: operator(nn.CrossEntropyLoss(ignore_index=0, reduction="none")),
            "3 of 10 targets are 0",
            "leave these samples out",
        ),
        "ignored labels of a function": (
            lambda: operator(functools.partial(F.cross_entropy, ignore_index=1, reduction="none")),
            "3 of 10 targets are 1",
            "leave these samples out",
        ),
        "missing classes": (
            lambda: operator(y=torch.arange(10)),
            "labels run from 0 to 9; the model has 4 classes, 0 to 3",
            "number the classes from 0",
        ),
        "missing classes in the last chunk": (
            lambda: operator(y=at_row(Y, 9, 4), chunk_size=2),
            "labels run from 0 to 4",
            "number the classes from 0",
        ),
        "negative labels alone": (lambda: cross_entropy(X, Y - 1), "labels run from -1 to 2", "number the classes"),
        "tokens, undeclared": (
            lambda: operator(model=net(nn.Unflatten(1, (2, 2))), y=tokens % 2),
            r"the loss returns shape \(10, 2\) for 10 samples",
            "pass per_token=True",
        ),
        "samples, declared as tokens": (
            lambda: operator(mse, net(nn.Unflatten(1, (2, 2))), y=binary.view(10, 2, 2), per_token=True),
            r"the loss returns shape \(10,\) for 10 samples; one value per token, \(10, 2\), is needed",
            "check that outputs and targets",
        ),
        "tokens without an axis": (lambda: operator(per_token=True), r"per_token with targets \(10,\)", r"\(N, T"),
        "tokens on a grid": (
            lambda: operator(
                nn.CrossEntropyLoss(reduction="none"),
                net(nn.Unflatten(1, (4, 1, 1))),
                y=torch.zeros(10, 1, 1).long(),
                per_token=True,
            ),
            r"the loss returns shape \(10, 1, 1\) for 10 samples; one value per token, \(10, 1\), is needed",
            r"flatten the axes of the tokens to one, outputs to \(N, T, \.\.\.\) and targets to \(N, T\)",
        ),
        "no token left": (
            lambda: operator(y=torch.full((10, 2), -100), per_token=True),
            "every token has the target -100",
            "give some tokens a target",
        ),
    }
)
def test_losses(make: Callable[[], Any], words: str, hint: str) -> None:
    """A loss is one finite value per sample, or per declared token, with the derivatives that it has."""
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


class Checkpointed(nn.Module):
    """A layer whose activations are computed again on the way back."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.use_reentrant = nn.Linear(3, 5), nn.Linear(5, 4), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=self.use_reentrant))

    def inner(self, x: Tensor) -> Tensor:
        return self.a(x).tanh()


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


TRAINING = r"call model\.eval\(\): dropout is random, and batch norm ties the samples of a chunk together"
TWICE = r"build model and loss from torch operations that can be differentiated twice"
SECOND = r"the second derivative by automatic differentiation is [\d.]+% off finite differences of the gradient of "


@table(
    {
        "batch norm": (lambda: operator(model=net(nn.BatchNorm1d(4))), "in training mode: BatchNorm1d '3'", TRAINING),
        "dropout": (lambda: operator(model=net(nn.Dropout(0.1))), "in training mode: Dropout '3'", TRAINING),
        "recurrent": (lambda: operator(model=Recurrent()), "in training mode: RNN 'rnn'", TRAINING),
        "attention": (lambda: operator(model=Attention()), "in training mode: MultiheadAttention 'attend'", TRAINING),
        "many": (
            lambda: operator(model=net(nn.Sequential(*[nn.Dropout(0.1) for _ in range(5)]))),
            r"in training mode: Dropout '3\.0', Dropout '3\.1', Dropout '3\.2' and 2 more",
            TRAINING,
        ),
        "batch statistics in eval mode": (
            lambda: operator(model=net(nn.BatchNorm1d(4, track_running_stats=False)).eval(), chunk_size=5),
            "the loss of a sample changes by",
            "batch norm without running statistics",
        ),
        "tuple": (
            lambda: operator(model=net(Apply(lambda z: (z, z)))),
            "the model returns a tuple, not a tensor",
            r"say which tensor the loss takes: outputs=lambda out: out\[0\]",
        ),
        "namespace": (
            lambda: operator(model=net(Apply(lambda z: types.SimpleNamespace(logits=z)))),
            "the model returns a SimpleNamespace",
            r"outputs=lambda out: out\.logits",
        ),
        "complex outputs": (
            lambda: operator(lambda z, y: z.abs().square().sum(1), net(Apply(torch.fft.fft))),
            "the model's outputs are torch.complex128",
            r"return real parts, torch\.view_as_real",
        ),
        "half precision": (
            lambda: operator(model=net(Apply(lambda z: z.bfloat16()))),
            "the model's outputs are torch.bfloat16 in an objective of torch.float64",
            r"remove casts from model and loss",
        ),
        "wrong inputs": (
            lambda: operator(x=X[:, :2]),
            r"the model fails on inputs of shape \(10, 2\): RuntimeError: mat1 and mat2",
            "it must work on these shapes",
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
        "checkpoint": (lambda: operator(model=Checkpointed(False).double()), SECOND + "'a", "utils.checkpoint"),
        "checkpoint in float32": (
            lambda: operator(model=Checkpointed(False)),
            "the loss cannot be differentiated: RuntimeError: .*dtype",
            r"differentiable twice \(torch\.compile, torch\.utils\.checkpoint",
        ),
        "reentrant checkpoint": (
            lambda: operator(model=Checkpointed(True)),
            "the loss does not depend on 'a.weight', 'a.bias'",
            "leave out of params what the model does not use",
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
            "be differentiable twice",
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
        "labels as outputs": (
            lambda: operator(model=net(Apply(lambda z: z.argmax(1)))),
            "the model's outputs are torch.int64",
            "return floating-point numbers, which have derivatives",
        ),
        "no function": (
            lambda: Objective("net", X, Y),
            "the model is a str",
            r"give a module or a function of \(params, inputs\)",
        ),
    }
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_modules(make: Callable[[], Any], words: str, hint: str) -> None:
    """A module is a function of its parameters that can be differentiated twice, one sample by the other."""
    refused(make, words, hint)


def test_modules_that_are_put_in_training_mode_later() -> None:
    """The mode is looked at with each use, not only where the objective is made."""
    module = net(nn.Dropout(0.1)).eval()
    made = operator(model=module, chunk_size=5)
    module.train()
    refused(lambda: made @ torch.ones(made.shape[1]).double(), "in training mode: Dropout '3'", TRAINING)
    refused(lambda: made.objective.value(dict(module.named_parameters())), "in training mode", TRAINING)
