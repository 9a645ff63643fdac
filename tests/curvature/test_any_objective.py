"""Any module, loss and batches: the Hessian is that of the mean that was meant, or it is refused with a hint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.unsound import KeptSquare, OnceSquare, straight_through
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import LandscapeError

N, WIDTH, HIDDEN, CLASSES, TOKENS = 9, 3, 4, 3, 2
Point = dict[str, Tensor]


# What the module computes between its two layers, and what is meant by it; None: nothing that has a Hessian.
MIDDLES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]] = {
    "tanh": (torch.tanh, torch.tanh),
    "relu": (nn.ReLU(inplace=True), torch.relu),
    "layer norm": (nn.LayerNorm(HIDDEN, elementwise_affine=False), lambda z: F.layer_norm(z, (HIDDEN,))),
    "once differentiable": (OnceSquare.apply, torch.square),
    "kept slope": (KeptSquare.apply, torch.square),
    "checkpoint": (lambda z: checkpoint(torch.tanh, z, use_reentrant=False), torch.tanh),
    "reentrant checkpoint": (lambda z: checkpoint(torch.tanh, z, use_reentrant=True), torch.tanh),
    "batch norm in training mode": (
        nn.BatchNorm1d(HIDDEN, affine=False).double(),
        lambda z: F.batch_norm(z, None, None, training=True),
    ),
    "a derivative": (
        lambda z: torch.autograd.grad(z.tanh().sum(), z, create_graph=True)[0],
        lambda z: 1 - z.tanh() ** 2,
    ),
    "batch norm in eval mode": (
        nn.BatchNorm1d(HIDDEN, affine=False).double().eval(),
        lambda z: z / (1 + nn.BatchNorm1d(1).eps) ** 0.5,
    ),
    "batch norm without statistics": (
        nn.BatchNorm1d(HIDDEN, affine=False, track_running_stats=False).eval(),
        lambda z: F.batch_norm(z, None, None, training=True),
    ),
    "dropout": (nn.Dropout(0.5), lambda z: z),
    "dropout in eval mode": (nn.Dropout(0.5).eval(), lambda z: z),
    "functional dropout": (F.dropout, lambda z: z),
    "straight-through": (straight_through, None),
    "detached": (lambda z: z.detach().tanh(), None),
    "attention": (
        lambda z: F.scaled_dot_product_attention(z[:, None], z[:, None].tanh(), z[:, None])[:, 0],
        lambda z: z,
    ),
}


class Net(nn.Module):
    """Linear, something, linear; outputs (N, CLASSES), (N,), a tuple or sequences (N, TOKENS, CLASSES)."""

    def __init__(self, middle: Callable[[Tensor], Tensor], ending: str) -> None:
        super().__init__()
        self.a, self.b, self.middle, self.ending = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES), middle, ending

    def forward(self, x: Tensor) -> Any:
        outputs = self.b(self.middle(self.a(x)))
        if self.ending == "column":
            return outputs[:, :1]
        if self.ending == "numbers":
            return outputs[:, 0]
        if self.ending == "tokens":
            return torch.stack([outputs, outputs.flip(1)], 1)
        return (outputs,) if self.ending == "tuple" else outputs


Loss = Callable[[Tensor, Tensor], Tensor]
LABELS: dict[str, Tensor] = {
    "labels": torch.arange(N) % CLASSES,
    "int32 labels": (torch.arange(N) % CLASSES).int(),
    "a column of labels": (torch.arange(N) % CLASSES)[:, None],
    "soft labels": torch.rand(N, CLASSES, generator=torch.Generator().manual_seed(0)).softmax(1),
    "labels with -100": torch.where(torch.arange(N) == 4, -100, torch.arange(N) % CLASSES),
    "too large labels": torch.arange(N),
    "binary": (torch.arange(N * CLASSES).reshape(N, CLASSES) % 2).float(),
    "numbers": torch.arange(N) / N,
    "columns": torch.arange(N)[:, None] / N,
    "rows": torch.arange(N * CLASSES).reshape(N, CLASSES) / N,
    "numbers with NaN": torch.arange(N) / torch.where(torch.arange(N) == 3, torch.nan, N),
    "tokens": torch.arange(N * TOKENS).reshape(N, TOKENS) % CLASSES,
    "tokens with -100": torch.where(
        torch.arange(N * TOKENS) % 5 == 1, -100, torch.arange(N * TOKENS) % CLASSES
    ).reshape(N, TOKENS),
}


def of_tokens(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.movedim(-1, 1), y, reduction="none")


def contrastive(z: Tensor, y: Tensor) -> Tensor:
    """Each sample against all of its batch."""
    return cross_entropy(z @ z.mT, torch.arange(len(z)))


# What is passed as the loss, and what is meant by it of one batch; None: the same.
LOSSES: dict[str, tuple[Loss, Loss | None]] = {
    "ours": (cross_entropy, F.cross_entropy),
    "smoothed": (
        functools.partial(cross_entropy, label_smoothing=0.1),
        functools.partial(F.cross_entropy, label_smoothing=0.1),
    ),
    "torch": (functools.partial(F.cross_entropy, reduction="none"), F.cross_entropy),
    "torch mean": (F.cross_entropy, None),
    "torch sum": (functools.partial(F.cross_entropy, reduction="sum"), None),
    "module": (nn.CrossEntropyLoss(reduction="none"), F.cross_entropy),
    "mean module": (nn.CrossEntropyLoss(), None),
    "mean in a function": (lambda z, y: F.cross_entropy(z, y), None),
    "tokens": (of_tokens, F.cross_entropy),
    "mse": (mse, F.mse_loss),
    "mse mean": (F.mse_loss, None),
    "elementwise mse": (functools.partial(F.mse_loss, reduction="none"), F.mse_loss),
    "squares": (lambda z, y: ((z - y) ** 2).mean(), None),
    "binary": (
        lambda z, y: F.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1),
        F.binary_cross_entropy_with_logits,
    ),
    "elementwise binary": (
        functools.partial(F.binary_cross_entropy_with_logits, reduction="none"),
        F.binary_cross_entropy_with_logits,
    ),
    "contrastive": (contrastive, lambda z, y: contrastive(z, y).mean()),
    "detached": (lambda z, y: cross_entropy(z.detach(), y), F.cross_entropy),
    "float32": (lambda z, y: cross_entropy(z.float(), y), F.cross_entropy),
    "infinite": (lambda z, y: cross_entropy(z, y) / (y - y), F.cross_entropy),
}


def intended(case: dict[str, Any], batches: list[tuple[Tensor, Tensor]], point: Point, all_of: Point) -> Tensor | None:
    """The Hessian of the mean that is meant by torch alone; None where nothing is meant."""
    plain, ending, loss = MIDDLES[case["middle"]][1], case["ending"], case["loss"]
    if plain is None or ending == "tuple":
        return None
    net, meant = Net(plain, ending).double(), LOSSES[loss][1] or LOSSES[loss][0]
    sizes = [p.numel() for p in point.values()]
    # A sum counts as it is; a mean by its samples, of a cross-entropy those that have a label.
    of_classes = not {"mse", "squares", "binary"} & set(loss.split())
    counts = [
        float((y != -100).sum()) if of_classes and not y.is_floating_point() else float(len(y)) for _, y in batches
    ]
    weights = [1.0 for _ in counts] if loss == "torch sum" else [count / sum(counts) for count in counts]

    def mean(vector: Tensor) -> Tensor:
        pieces = {n: v.view_as(p) for (n, p), v in zip(point.items(), vector.split(sizes), strict=True)}
        values = []
        for (x, y), weight in zip(batches, weights, strict=True):
            outputs = torch.func.functional_call(net, {**all_of, **pieces}, (x,))
            is_flat = ending == "tokens" and not y.is_floating_point()
            values.append(meant(outputs.flatten(0, 1), y.flatten()) if is_flat else meant(outputs, y))
            values[-1] = values[-1] * weight if weight else 0.0
        return sum(values, torch.zeros(()))

    at = torch.cat([p.reshape(-1) for p in point.values()])
    return torch.func.jacrev(torch.func.grad(mean))(at)


def examine(case: dict[str, Any]) -> str:
    """Build the operator of a float32 module; "refused" with words and a hint, or "right"."""
    torch.manual_seed(0)
    net, params = Net(MIDDLES[case["middle"]][0], case["ending"]), case["params"]
    x, y = torch.randn(N, WIDTH), LABELS[case["target"]]
    every = {n: p.detach().double() for n, p in net.named_parameters()}
    point = {n: p for n, p in every.items() if params != "trainable" or n != "a.weight"}
    wrong = {
        "misspelt": {"a.wieght": every["a.weight"]},
        "complex": {"b.bias": every["b.bias"] + 0j},
        "NaN": {"b.bias": every["b.bias"] * torch.nan},
        "integer": {"b.bias": every["b.bias"].long()},
    }.get(params, {})
    batches = list(zip(x.split(case["batches"]), y.split(case["batches"]), strict=True))
    data = batches if len(batches) > 1 else batches[0]
    try:
        objective = Objective(net, data, loss=LOSSES[case["loss"]][0], chunk_size=case["chunk_size"])
        matrix = HessianOperator(objective, {**point, **wrong}).dense()
    except LandscapeError as error:
        return "refused" if error.hint else "without a hint"
    assert not wrong
    as_used = [(a.double(), b.double() if b.is_floating_point() else b.long()) for a, b in batches]
    expected = intended(case, as_used, point, every)
    if expected is None:
        # The cross-entropy of one class is 0 whatever it is given.
        assert case["ending"] == "column"
        assert not matrix.any()
        return "right"
    torch.testing.assert_close(matrix, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    return "right"


AXES: dict[str, list[Any]] = {
    "middle": list(MIDDLES),
    "ending": ["classes", "column", "numbers", "tuple", "tokens"],
    "loss": list(LOSSES),
    "target": list(LABELS),
    "params": ["all", "trainable", "misspelt", "complex", "NaN", "integer"],
    "chunk_size": [None, 1, 2, 4, 20],
    "batches": [[N], [4, 5], [6, 1, 2]],
}
SOUND = [
    {"middle": "tanh", "ending": ending, "loss": loss, "target": target, "params": "all"}
    for ending, losses, targets in (
        ("classes", ("ours", "smoothed", "float32"), ("labels", "int32 labels", "labels with -100")),
        ("classes", ("torch", "torch mean", "torch sum", "mean module"), ("labels", "labels with -100", "soft labels")),
        ("classes", ("mse", "mse mean", "elementwise mse"), ("rows",)),
        ("classes", ("binary", "elementwise binary"), ("binary",)),
        ("numbers", ("mse", "mse mean"), ("numbers",)),
        ("column", ("mse",), ("columns",)),
        ("tokens", ("ours", "smoothed", "tokens"), ("tokens", "tokens with -100")),
    )
    for loss in losses
    for target in targets
]
WHOLE = [
    *({"middle": "tanh", "loss": loss} for loss in ("mean in a function", "contrastive")),
    *({"middle": middle, "loss": "ours"} for middle in MIDDLES if middle.startswith("batch norm") or "check" in middle),
    {"middle": "a derivative", "loss": "ours"},
]
"""Right where no batch is cut."""


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A sound objective with up to three of its ingredients exchanged."""
    case = {**draw(st.sampled_from(SOUND)), "batches": [N], "chunk_size": draw(st.sampled_from([None, 2, 4]))}
    for axis in draw(st.lists(st.sampled_from(list(AXES)), max_size=3, unique=True)):
        case[axis] = draw(st.sampled_from(AXES[axis]))
    return case


@pytest.mark.slow
@settings(max_examples=300, derandomize=True)
@given(case=cases())
@pytest.mark.long
def test_right_or_refused(case: dict[str, Any]) -> None:
    """Whatever is put together: no other exception, and no other number than the mean's by torch."""
    assert examine(case) in ("right", "refused")


@pytest.mark.parametrize("case", SOUND, ids=lambda case: f"{case['loss']}, {case['target']}")
@pytest.mark.parametrize(("batches", "chunk_size"), [([N], None), ([N], 4), ([6, 1, 2], None)])
def test_sound_objectives_are_right(case: dict[str, Any], batches: list[int], chunk_size: int | None) -> None:
    """What is meant to work does, as one batch, in ragged chunks of it and in ragged batches."""
    assert examine({**case, "batches": batches, "chunk_size": chunk_size}) == "right"


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: f"{case['middle']}, {case['loss']}")
@pytest.mark.parametrize("batches", [[N], [4, 5]])
def test_batches_are_units(case: dict[str, Any], batches: list[int]) -> None:
    """What ties the samples of a batch, or takes a derivative or computes again within, is as it is in training."""
    whole = {"ending": "classes", "target": "labels", "params": "all", "batches": batches, "chunk_size": None}
    assert examine({**case, **whole}) == "right"
