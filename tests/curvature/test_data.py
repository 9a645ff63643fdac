"""Data of any form: the same Hessian from tensors, trees of them and loaders with batches of any size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.modules import dense, hessian
from helpers.refusals import X, Y, net, refused, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from landscape import Objective, cross_entropy, mse
from landscape.curvature import data as data_module
from landscape.models.module import ModuleProblem

WORDS, T = torch.arange(70).reshape(10, 7) * 5 % 11, 7
TAGS = WORDS % 4
MASK = torch.arange(7) < (torch.arange(10) % 6 + 2)[:, None]


@dataclasses.dataclass
class Out:
    """What models of a library return."""

    loss: None
    logits: Tensor


class Tagger(nn.Module):
    """Keyword arguments in, an object out; what the mask hides is not seen by the rest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.V = nn.Embedding(11, 3), nn.Linear(3, 4)

    def forward(self, words: Tensor, mask: Tensor) -> Out:
        h = self.embed(words) * mask[..., None]
        return Out(None, self.V(torch.tanh(h + h.mean(1, keepdim=True))))


def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split(list(sizes)), Y.split(list(sizes)), strict=True))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), 4),
        DataLoader(TensorDataset(X, Y), 10),
        batches(1, 5, 4),
        batches(7, 1, 1, 1),
    ],
    ids=["4 4 2", "10", "1 5 4", "7 1 1 1"],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_loader_is_the_mean_over_samples(loader: Any, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sizes of the batches, kept in memory or read anew; torch.func.hessian's mean over all samples."""
    if not is_kept:
        monkeypatch.setattr(data_module, "_SHARE", 0.0)
    module = net()
    expected = dense(module, lambda call: F.cross_entropy(call(X.double()), Y))
    objective = Objective(module, loader)
    assert_close(hessian(objective, module), expected, rtol=1e-10, atol=1e-12)
    point = dict(module.named_parameters())
    value = objective.value(point)
    assert value == pytest.approx(F.cross_entropy(module.double()(X.double()), Y).item(), rel=1e-12)


def tagged(loss: Any = cross_entropy, tags: Any = TAGS, **settings: Any) -> Tensor:
    module, forms = (
        Tagger(),
        [
            (({"words": WORDS, "mask": MASK.float()}, tags), 3),
            (((WORDS, MASK.float()), tags), None),
            ((ragged(tags),), None),
        ],
    )
    matrices = [
        hessian(Objective(module, *data, loss=lambda o, y: loss(o.logits, y), chunk_size=size, **settings), module)
        for data, size in forms
    ]
    assert_close(matrices[0], matrices[1], rtol=1e-10, atol=1e-13)
    assert_close(matrices[0], matrices[2], rtol=1e-10, atol=1e-13)
    return matrices[0]


def ragged(tags: Any) -> list[tuple[dict[str, Tensor], Any]]:
    """Batches of 3, 6 and 1 samples with keyword arguments."""
    cut = (slice(0, 3), slice(3, 9), slice(9, 10))
    pick = (lambda at: {n: v[at] for n, v in tags.items()}) if isinstance(tags, dict) else lambda at: tags[at]
    return [({"words": WORDS[at], "mask": MASK[at].float()}, pick(at)) for at in cut]


def expected_of(value: Callable[[Tensor], Tensor]) -> Tensor:
    return dense(Tagger(), lambda call: value(call(WORDS, MASK.double()).logits.flatten(0, 1)))


padded = TAGS.where(MASK, -100)
classes = torch.tensor([1.0, 0.5, 3.0, 0.25])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "plain"),
    [
        (cross_entropy, {}),
        (functools.partial(cross_entropy, label_smoothing=0.1), {"label_smoothing": 0.1}),
    ],
    ids=["plain", "smoothed"],
)
def test_ignored_tokens_of_ragged_batches(loss: Any, plain: dict[str, Any]) -> None:
    """The mean over the tokens that have a target, of all batches together."""
    assert_close(
        tagged(loss, padded),
        expected_of(lambda z: F.cross_entropy(z, padded.flatten(), **plain)),
        rtol=1e-9,
        atol=1e-12,
    )


class OfTokens(nn.CrossEntropyLoss):
    """Classes in the last axis."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input.movedim(-1, 1), target)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("tags", [TAGS, padded], ids=["all", "ignored"])
def test_class_weights_divide_as_torch_does(tags: Tensor, smoothing: float) -> None:
    """The weighted mean of nn.CrossEntropyLoss, ignored tokens and smoothing included."""
    settings: dict[str, Any] = {"weight": classes, "label_smoothing": smoothing}
    matrix = tagged(OfTokens(reduction="none", **settings), tags)
    plain = nn.CrossEntropyLoss(**settings).double()
    assert_close(matrix, expected_of(lambda z: plain(z, tags.flatten())), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [MASK, MASK * torch.linspace(0.1, 2, 7)], ids=["mask", "weights"])
def test_a_mask_beside_the_targets(mask: Tensor) -> None:
    """Targets are a dict, and a batch counts by its mask, however ragged."""

    def loss(z: Tensor, y: dict[str, Tensor]) -> Tensor:
        return (cross_entropy(z, y["tags"]) * y["mask"]).sum() / y["mask"].sum()

    matrix = tagged(loss, {"tags": TAGS, "mask": mask}, weight=lambda batch: batch[1]["mask"].sum())
    flat = mask.double().flatten()

    def value(z: Tensor) -> Tensor:
        return (F.cross_entropy(z, TAGS.flatten(), reduction="none") * flat).sum() / flat.sum()

    assert_close(matrix, expected_of(value), rtol=1e-9, atol=1e-12)


def test_tuples_and_their_order() -> None:
    """A tuple is the arguments of the module, a loader's batch the same; the data may be one pair."""
    module = Two()
    y = torch.stack([Y, 1 - Y], 1).float()
    expected = dense(module, lambda call: F.mse_loss(call(X.double(), X.double().flip(0)), y.double()))
    whole, loader = ((X, X.flip(0)), y), [((X[a], X.flip(0)[a]), y[a]) for a in (slice(0, 4), slice(4, 10))]
    for objective in (
        Objective(module, whole, loss=mse),
        Objective(module, loader, loss=mse),
        Objective(module, *whole, loss=mse, chunk_size=3),
    ):
        assert_close(hessian(objective, module), expected, rtol=1e-10, atol=1e-12)


def test_in_another_precision() -> None:
    """Batches are used in the objective's precision, and stay what they are."""
    module, loader = net(), batches(3, 7)
    single, double = (hessian(Objective(module, loader, dtype=d), module) for d in (torch.float32, torch.float64))
    assert_close(single.double(), double, rtol=1e-4, atol=1e-5)
    assert loader[0][0].dtype == torch.float32


class Once:
    """Other data at each reading."""

    def __init__(self, *passes: Any) -> None:
        self.passes = itertools.cycle(passes)

    def __iter__(self) -> Iterator[Any]:
        return iter(next(self.passes))


def failing() -> Iterator[Any]:
    yield X, Y
    raise OSError("no such picture")


def problem(loader: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: ModuleProblem(net(), loader, **settings)


@table(
    {
        "generator": (
            problem((x, y) for x, y in batches(5, 5)),
            "the batches are a generator, which can be read once only",
            "give a list or a DataLoader",
        ),
        "shuffled": (
            problem(DataLoader(TensorDataset(X, Y), 4, shuffle=True, generator=torch.Generator().manual_seed(0))),
            "the loader gives other data when it is read again: batch 0 holds other numbers than at first",
            "shuffle=False",
        ),
        "shorter": (problem(Once(batches(5, 5), batches(10)[:0])), "it ends after 0 of 2 batches", "shuffle=False"),
        "longer": (problem(Once(batches(5, 5)[:1], batches(5, 5))), "it goes on after 1 batches", "shuffle=False"),
        "empty": (problem([]), "the list holds no batch", "drop_last=True"),
        "empty batch": (problem([(X[:0], Y[:0])]), "the data of batch 0 have no samples", "at least one"),
        "samples": (problem([X, X]), r"there is no loss for batches \(10, 3\)", "loss=lambda model, batch: "),
        "samples with a loss of outputs": (
            lambda: hessian(Objective(net(), [X, X], loss=nn.CrossEntropyLoss()), net()),
            r"a batch is a Tensor, not a pair \(inputs, targets\)",
            "loss=lambda model, batch: ",
        ),
        "dicts": (problem([{"x": X, "y": Y}]), r"there is no loss for batches x \(10, 3\), y \(10,\)", "model, batch"),
        "three": (problem([(X, X, Y)]), "there is no loss for batches", "loss=lambda model, batch: "),
        "fails": (problem(Once(failing())), "the loader fails: OSError: no such picture", "iterate over it in Python"),
        "NaN": (
            problem([(X, Y), (X / 0, Y)]),
            "10 of 10 rows of inputs of batch 1 have NaN or infinite numbers, the first at row 0",
            "leave these samples out",
        ),
        "the loss in the place of the targets": (
            lambda: Objective(net(), batches(10), "mse"),
            "targets hold no tensor: a str",
            "give a batch",
        ),
        "no targets": (lambda: ModuleProblem(net(), X), r"there is no loss for batches \(10, 3\)", "or pairs"),
        "no parameters": (lambda: ModuleProblem(nn.Tanh(), X, Y), "Tanh has no parameters", "that is trained"),
        "no module": (lambda: ModuleProblem(lambda x: x, X, Y), "the model is a function", "torch.nn.Module"),
        "weight that is none": (
            lambda: Objective(net(), X, Y, weight=3.0),
            "weight is a float",
            "a function of a batch",
        ),
        "negative weight": (
            lambda: hessian(Objective(net(), X, Y, weight=lambda batch: -1.0), net()),
            r"weight= returns -1\.0 for a batch",
            "a number of at least 0",
        ),
        "weights of samples": (
            lambda: hessian(Objective(net(), X, Y, weight=lambda batch: torch.ones(10)), net()),
            "weight= returns tensor",
            "a number of at least 0",
        ),
        "weight that fails": (
            lambda: hessian(Objective(net(), X, Y, weight=lambda batch: batch.mask), net()),
            r"weight= fails on a batch: AttributeError: 'tuple' object has no attribute 'mask'",
            "in Python",
        ),
        "no weight": (
            lambda: hessian(Objective(net(), X, Y, weight=lambda batch: 0.0), net()),
            "nothing counts: the weights of all batches are 0",
            "give some",
        ),
        "lengths that say nothing": (
            lambda: hessian(
                Objective(net(), [{"x": X, "edge": Y[:4]}] * 2, lambda model, batch: model(batch["x"]).square().mean()),
                net(),
            ),
            r"what a batch x \(10, 3\), edge \(4,\) counts in the mean is not known",
            "weight=lambda batch: ",
        ),
        "cut where lengths differ": (
            lambda: hessian(Objective(net(), (X, Y[:4]), nn.CrossEntropyLoss(), chunk_size=3), net()),
            "a batch whose tensors have no common number of samples is not cut into chunks: inputs 10, targets 4",
            "leave chunk_size out",
        ),
        "weights of too few classes": (
            lambda: hessian(Objective(net(), X, Y, nn.CrossEntropyLoss(weight=torch.ones(3))), net()),
            "the loss has weights of 3 classes; the model has 4",
            "give each a weight",
        ),
        "labels of a later batch": (
            lambda: hessian(Objective(net(), [(X, Y), (X, Y + 1)]), net()),
            "labels run from 1 to 4; the model has 4 classes",
            "number the classes from 0",
        ),
        "a dataclass": (
            lambda: hessian(Objective(Tagger(), (WORDS, MASK.float()), TAGS), Tagger()),
            "the model returns an Out, not a tensor",
            r"loss\(outputs\.logits, targets\)",
        ),
        "an argument that fails": (
            lambda: hessian(Objective(Tagger(), {"wrods": WORDS}, TAGS), Tagger()),
            r"the model fails on inputs wrods \(10, 7\): TypeError",
            "in Python",
        ),
        "a sample that sees its batch": (
            lambda: hessian(Objective(nn.Sequential(net(), Centred()), X, Y, chunk_size=5), nn.Sequential(net())),
            "the loss of a batch changes by .* when it is cut",
            "remove what ties their samples",
        ),
        "random in the last batch": (
            lambda: hessian(Objective(nn.Sequential(Noisy(), net()), batches(9, 1)), nn.Sequential(Noisy(), net())),
            "the loss of the same parameters is .* and then",
            "fix its random numbers",
        ),
    }
)
def test_data_that_cannot_be(make: Callable[[], Any], words: str, hint: str) -> None:
    """Each is refused with what is wrong and how to mend it."""
    refused(make, words, hint)


class Centred(nn.Module):
    """Every sample minus the mean of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Two(nn.Module):
    """Two arguments that mean something else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.first(x) * self.second(z).tanh()


class Noisy(nn.Module):
    """Noise on batches of one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if len(x) == 1 else x


def test_data_that_change_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that is too large to be kept is compared at every further reading."""
    monkeypatch.setattr(data_module, "_SHARE", 0.0)
    first, other = batches(5, 5), [(X + 1, Y), (X, Y)]
    objective = Objective(net(), Once(first, first, first, first, first, first, other))
    refused(lambda: hessian(objective, net()), "batch 0 holds other numbers than at first", "shuffle=False")
