"""Random small networks and graded matrices, and what the package says of their curvature beside exact arithmetic.

python tests/helpers/certificates.py --count 600 --seed 0 draws networks, --matrices graded matrices; each wrong answer
is printed with the seed that makes it again (--count 1 --seed S).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from helpers import fifty_digits as fifty
from helpers.fifty_digits import Exact, Number, Spectrum, digits
from torch import Tensor, nn
from torch.nn import functional as F

import landscape
from landscape import HessianOperator, MatrixOperator, Objective
from landscape.errors import ArgumentError, NumericsError

# --- losses ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss as users write it, beside what it is.

    torch: of outputs (N, C) and targets, with a reduction of its own, or one value a sample (own); exact: of one
    sample, to be divided by the sum of `weight` (a sum by nothing); labels: which the targets are.
    """

    torch: Callable[[Tensor, Tensor], Tensor]
    exact: Callable[[Sequence[Number], Any], Number]
    labels: str = "class"
    own: bool = False
    weight: Callable[[Any], Decimal] = lambda y: Decimal(1)


def _smoothed(z: Sequence[Number], y: int, share: float, weights: Sequence[float] = ()) -> Number:
    """torch's smoothing: each class's own loss takes part by its weight."""
    s = Decimal(share)
    w = [Decimal(x) for x in weights] or [Decimal(1)] * len(z)
    each = [fifty.cross_entropy(z, c) * w[c] for c in range(len(z))]
    return each[y] * (1 - s) + fifty.total(each) * (s / len(z))


def _mean(values: Sequence[Number]) -> Number:
    return fifty.total(values) * (1 / Decimal(len(values)))


def _huber(x: Number) -> Number:
    if abs(x.value) <= 1:
        return fifty.square(x) * Decimal("0.5")
    return (x if x.value > 0 else -x) - Decimal("0.5")


WEIGHTS = (1.0, 3.0, 0.25)


def _own(z: Tensor, y: Tensor) -> Tensor:
    """The label's probability."""
    return z.softmax(-1).gather(-1, y[:, None])[:, 0]


LOSSES: dict[str, Loss] = {
    "nn.CrossEntropyLoss": Loss(nn.CrossEntropyLoss(), fifty.cross_entropy),
    "F.cross_entropy": Loss(F.cross_entropy, fifty.cross_entropy),
    "nn.CrossEntropyLoss(sum)": Loss(
        nn.CrossEntropyLoss(reduction="sum"), fifty.cross_entropy, weight=lambda y: Decimal(0)
    ),
    "nn.CrossEntropyLoss(weight)": Loss(
        nn.CrossEntropyLoss(torch.tensor(WEIGHTS, dtype=torch.float64)),
        lambda z, y: fifty.cross_entropy(z, y) * Decimal(WEIGHTS[y]),
        weight=lambda y: Decimal(WEIGHTS[y]),
    ),
    "nn.CrossEntropyLoss(label_smoothing)": Loss(
        nn.CrossEntropyLoss(label_smoothing=0.1), lambda z, y: _smoothed(z, y, 0.1)
    ),
    "nn.CrossEntropyLoss(ignore_index)": Loss(
        nn.CrossEntropyLoss(ignore_index=0),
        lambda z, y: fifty.cross_entropy(z, y) * int(y != 0),
        weight=lambda y: Decimal(int(y != 0)),
    ),
    "landscape.cross_entropy": Loss(landscape.cross_entropy, fifty.cross_entropy),
    "nll(log_softmax)": Loss(
        lambda z, y: F.nll_loss(z.log_softmax(-1), y, reduction="none"), fifty.cross_entropy, own=True
    ),
    "-log(softmax) by hand": Loss(lambda z, y: -_own(z, y).log(), fifty.cross_entropy, own=True),
    "logsumexp - z_y": Loss(
        lambda z, y: z.logsumexp(-1) - z.gather(-1, y[:, None])[:, 0], fifty.cross_entropy, own=True
    ),
    "1 - p": Loss(lambda z, y: 1 - _own(z, y), fifty.missed, own=True),
    "focal": Loss(
        lambda z, y: -((1 - _own(z, y)) ** 2) * _own(z, y).log(),
        lambda z, y: fifty.square(fifty.missed(z, y)) * fifty.cross_entropy(z, y),
        own=True,
    ),
    "nn.BCEWithLogitsLoss": Loss(
        nn.BCEWithLogitsLoss(),
        lambda z, y: _mean([fifty.softplus(-v if t else v) for v, t in zip(z, y, strict=True)]),
        "binary",
    ),
    "log(1 + exp(-z))": Loss(
        lambda z, y: torch.log(1 + torch.exp(-(2 * y - 1) * z)).mean(-1),
        lambda z, y: _mean([fifty.softplus(-v if t else v) for v, t in zip(z, y, strict=True)]),
        "binary",
        own=True,
    ),
    "squared hinge": Loss(
        lambda z, y: (1 - (2 * y - 1) * z).clamp_min(0).square().mean(-1),
        lambda z, y: _mean([fifty.square(fifty.relu(1 - (v if t else -v))) for v, t in zip(z, y, strict=True)]),
        "binary",
        own=True,
    ),
    "exp(-z)": Loss(
        lambda z, y: torch.exp(-(2 * y - 1) * z).mean(-1),
        lambda z, y: _mean([fifty.exp(-v if t else v) for v, t in zip(z, y, strict=True)]),
        "binary",
        own=True,
    ),
    "nn.MSELoss": Loss(
        nn.MSELoss(), lambda z, y: _mean([fifty.square(v - t) for v, t in zip(z, y, strict=True)]), "numbers"
    ),
    "nn.HuberLoss": Loss(
        nn.HuberLoss(), lambda z, y: _mean([_huber(v - t) for v, t in zip(z, y, strict=True)]), "numbers"
    ),
    "squares by hand": Loss(
        lambda z, y: (z * z - 2 * z * y + y * y).sum(-1),
        lambda z, y: fifty.total([fifty.square(v - t) for v, t in zip(z, y, strict=True)]),
        "numbers",
        own=True,
    ),
}

# --- networks -------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], Callable[[Number], Number]]] = {
    "tanh": (nn.Tanh, fifty.tanh),
    "gelu": (nn.GELU, fifty.gelu),
    "relu": (nn.ReLU, fifty.relu),
}


@dataclasses.dataclass
class Network:
    """A drawn network, its data and loss. x (N, d) and y hold each row once, `copies` (N,) how often it is there."""

    seed: int
    activation: str
    loss: str
    module: nn.Sequential
    x: Tensor
    y: Tensor
    copies: list[int]
    notes: list[str]

    @property
    def params(self) -> dict[str, Tensor]:
        """The module's parameters by name."""
        return {name: p.detach() for name, p in self.module.named_parameters()}

    def objective(self) -> Objective:
        """As users give it."""
        loss = LOSSES[self.loss]
        times = torch.tensor(self.copies)
        data = self.x.repeat_interleave(times, 0), self.y.repeat_interleave(times, 0)
        own: Any = loss.torch
        if loss.own:
            own = lambda model, batch: loss.torch(model(batch[0]), batch[1]).mean()  # noqa: E731
        if self.seed % 4 == 0 and len(data[0]) > 1:
            # Batches of unequal sizes.
            first = len(data[0]) // 3 + 1
            return Objective(
                self.module, list(zip(*(part.tensor_split([first]) for part in data), strict=True)), loss=own
            )
        return Objective(self.module, data, loss=own)

    def exact(self) -> tuple[Decimal, Exact]:
        """The loss and its Hessian."""
        loss, (_, act) = LOSSES[self.loss], ACTIVATIONS[self.activation]
        x, y = fifty.exact(self.x), self.y.tolist() if self.y.ndim == 1 else fifty.exact(self.y)
        layers = [i for i, layer in enumerate(self.module) if isinstance(layer, nn.Linear)]
        whole = sum((loss.weight(t) * n for t, n in zip(y, self.copies, strict=True)), Decimal(0)) or Decimal(1)

        def value(p: Mapping[str, Exact]) -> Number:
            samples = []
            for row, target, n in zip(x, y, self.copies, strict=True):
                h: Any = row
                for i in layers:
                    h = fifty.affine(p[f"{i}.weight"], p.get(f"{i}.bias"), h)
                    h = h if i == layers[-1] else [act(a) for a in h]
                samples.append(loss.exact(h, target) * (n / whole))
            return fifty.total(samples)

        return fifty.hessian(value, self.params)


def drawn_network(seed: int) -> Network:
    """Networks of 10 to 60 parameters: of any scale, loss and offset; graded, duplicated, saturated."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    loss, activation = str(rng.choice(list(LOSSES))), str(rng.choice(list(ACTIVATIONS)))
    kind = LOSSES[loss].labels
    while True:
        sizes = [int(rng.integers(1, 5)) for _ in range(rng.integers(1, 4))] + [int(rng.integers(2, 5))]
        sizes = [max(2, n) for n in sizes[:-1]] + [1 if kind != "class" and rng.random() < 0.5 else sizes[-1]]
        bias = rng.random() < 0.7
        if loss == "nn.CrossEntropyLoss(weight)":
            sizes[-1] = len(WEIGHTS)
        if 10 <= sum(a * b + b * bias for a, b in itertools.pairwise(sizes)) <= 60:
            break
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias, dtype=torch.float64), ACTIVATIONS[activation][0]()]
    module = nn.Sequential(*layers[:-1])
    notes, scale = [], 10 ** rng.uniform(-2, 2)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(generator=generator).mul_(scale / p.shape[-1] ** 0.5 if p.ndim == 2 else scale)
    rows = int(rng.integers(1, 9))
    x = torch.randn(rows, sizes[0], dtype=torch.float64, generator=generator)

    def sometimes(share: float, what: str) -> bool:
        if happens := rng.random() < share:
            notes.append(what)
        return happens

    first, last = module[0], module[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        if sometimes(0.15, "graded data"):
            x *= torch.logspace(0, -float(rng.uniform(2, 8)), sizes[0], dtype=torch.float64)
        if sometimes(0.15, "graded weights"):
            first.weight *= torch.logspace(0, -float(rng.uniform(2, 8)), sizes[0], dtype=torch.float64)
        if bias and len(sizes) > 2 and sometimes(0.15, "a hidden unit shut off"):
            first.bias[0] = -(10 ** rng.uniform(1, 3))
        z = module(x)
        if kind == "class":
            y = z.argmax(-1) if rng.random() < 0.7 else torch.randint(0, sizes[-1], (rows,), generator=generator)
        elif kind == "binary":
            y = (z > 0).double() if rng.random() < 0.7 else torch.randint(0, 2, z.shape, generator=generator).double()
        else:
            y = z + 10 ** rng.uniform(-7, 1) * torch.randn(z.shape, dtype=torch.float64, generator=generator)
        if kind != "numbers" and sometimes(0.6, "margins"):
            aside = z.topk(2).values.diff().abs() if kind == "class" else z.abs()
            aside = aside[aside > 0]
            margin = 800.0 if rng.random() < 0.1 else rng.uniform(0.5, 30)
            if len(aside):
                last.weight *= margin / float(aside.min())
                if bias:
                    last.bias *= margin / float(aside.min())
        if bias and kind == "class" and sometimes(0.2, "offset"):
            last.bias += 10 ** rng.uniform(0, 8)
    many = sometimes(0.2, "duplicated rows")
    copies = [int(10 ** rng.uniform(0, 3)) if many and rng.random() < 0.5 else 1 for _ in range(rows)]
    return Network(seed, activation, loss, module, x, y, copies, notes)


# --- matrices -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Matrix:
    """A drawn matrix as it is, A, and the operator that stands for it, with a bound on its error."""

    seed: int
    A: Tensor
    operator: MatrixOperator
    notes: list[str]


def drawn_matrix(seed: int) -> Matrix:
    """Graded by up to 1e-12, with clusters, exact zeros and eigenvalues near -tau; some in float32 or with an error."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    n, notes = int(rng.integers(3, 40)), []

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    kind = str(rng.choice(["graded", "clusters", "low rank", "near tau"]))
    notes.append(kind)
    Q = torch.linalg.qr(normal(n, n))[0]
    if kind == "graded":
        d = torch.logspace(0, -float(rng.uniform(2, 12)), n, dtype=torch.float64)
        A = normal(n, n) * d * d[:, None]
    elif kind == "clusters":
        values = rng.choice([1.0, -1.0, 0.5, -1e-4, 1e-9, -1e-11, 0.0], n)
        A = (Q * torch.from_numpy(values * (1 + 1e-13 * rng.standard_normal(n)))) @ Q.T
    elif kind == "low rank":
        # Integers: zero eigenvalues are exact.
        B = torch.randint(-2, 3, (n, max(1, n // 3)), generator=generator).double()
        A = (B * torch.from_numpy(rng.choice([-1.0, 1.0], B.shape[1]))) @ B.T
    else:
        values = 10 ** rng.uniform(-10, 0, n) * rng.choice([-1.0, 1.0], n)
        values[:1] = 1.0
        tau = float(rng.choice([1e-3, 1e-8, 1e-10, 1e-12]))
        values[1:4] = -tau * (1 + rng.choice([-1.0, 1.0], 3)[: n - 1] * 10 ** rng.uniform(-14, -1, 3)[: n - 1])
        A = (Q * torch.from_numpy(values)) @ Q.T
    A = A.triu() + A.triu(1).T
    A = A * 10 ** rng.uniform(-10, 5)
    if rng.random() < 0.2:
        notes.append("float32")
        rounded = A.float()
        # The difference of the two is exact.
        return Matrix(seed, A, MatrixOperator(rounded, 1.0000001 * float((rounded.double() - A).norm())), notes)
    if rng.random() < 0.2:
        notes.append("with an error")
        E = normal(n, n) * 10 ** rng.uniform(-14, -4) * A.norm()
        moved = A + (E + E.T)
        return Matrix(seed, A, MatrixOperator(moved, 1.0000001 * float((moved - A).norm())), notes)
    return Matrix(seed, A, MatrixOperator(A), notes)


Blocks = tuple[Any, Any, Any]
LANCZOS_EVERY = 5
"""Of so many cases one is asked the matrix-free questions too, which take most of the time."""

# --- what is said, beside what is -------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    """How often each question met each level, and every wrong answer."""

    levels: dict[str, collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    wrong: dict[str, list[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    vanished: int = 0

    def __str__(self) -> str:
        lines = []
        for question, counts in self.levels.items():
            of = sum(counts.values())
            shares = ", ".join(f"{level} {n / of:.0%}" for level, n in counts.most_common())
            lines.append(f"{question} ({of}): {shares}")
        if self.vanished:
            lines.append(f"{self.vanished} answers of 0 where the truth is below 1e-300")
        lines.append(f"{len(self.wrong)} wrong answers")
        for question, words in self.wrong.items():
            lines.append(f"{question}: {words[0]}" + (f" (and {len(words) - 1} more)" if words[1:] else ""))
        return "\n".join(lines)


class Witness:
    """Asks the questions about one drawn case and notes the answers."""

    def __init__(self, report: Report, case: str, H: Exact) -> None:
        self.report, self.case = report, case
        # float64 holds no such number: 0 is the nearest that can be said.
        self.vanished = max(abs(x) for x in H.flat) < Decimal("1e-300")

    def ask(self, question: str, answer: Callable[[], Any]) -> Any:
        """The answer, None if it is refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                result = answer()
            except (NumericsError, ArgumentError) as error:
                # Its first words, without numbers and names.
                words = re.split(r"[:,;]| \S*\d| '", str(error))[0]
                self.note(question, f"refused ({words})")
                return None
        level = getattr(result, "level", None)
        self.note(question, level if isinstance(level, str) else "answered")
        return result

    def note(self, question: str, level: str) -> None:
        self.report.levels[question.partition(":")[0]][level] += 1

    def require(self, question: str, holds: bool, words: str) -> None:
        """Count a wrong answer unless it holds."""
        if holds:
            return
        if self.vanished:
            self.report.vanished += 1
        else:
            self.report.wrong[f"{self.case}: {question}"].append(words)

    # Each of these takes the operator and the exact spectrum of what it stands for.

    def index(self, name: str, op: Any, true: Spectrum, rel_tau: float | None, method: Any) -> None:
        """The saddle index."""
        question = f"saddle_index {method} rel_tau {rel_tau}: {name}"
        inertia = self.ask(question, lambda: landscape.saddle_index(op, rel_tau, method))
        if inertia is None:
            return
        n = true.below(Decimal(-inertia.tolerance))
        self.require(
            question,
            inertia.lower <= n <= inertia.upper,
            f"{inertia.level} {inertia.lower} to {inertia.upper}, true {n}",
        )

    def eigenvalues(self, name: str, op: Any, true: Spectrum, method: Any) -> None:
        """The outermost eigenvalues, in order where the matrix is written out."""
        question, n = f"eigsh {method}: {name}", op.shape[0]
        eigen = self.ask(question, lambda: landscape.eigsh(op, min(3, n), method=method))
        if eigen is None:
            return
        # The last digit of the values themselves.
        slack = 8 * n * torch.finfo(op.dtype).eps * eigen.operator_norm
        for end, (values, residuals) in enumerate(zip(eigen.values, eigen.residuals, strict=True)):
            for i, (value, residual) in enumerate(zip(values, residuals, strict=True)):
                index, reach = (n - 1 - i if end else i), residual + eigen.error + slack
                low, high = (Decimal(float(value)) + Decimal(side * float(reach)) for side in (-1, 1))
                holds = true.within(index, low, high) if method == "dense" else true.has(low, high)
                self.require(question, holds, f"{value:.17g} +- {reach:.1e} holds no eigenvalue {index} of {n}")
                away = float(eigen.hidden[end]) + eigen.error + slack
                # It is of the operator as it is, with the rounding of its products.
                if method == "lanczos" and isinstance(op, MatrixOperator) and math.isfinite(away):
                    low, high = (Decimal(float(value)) + Decimal(side * away) for side in (-1, 1))
                    self.require(question, true.within(index, low, high), f"{value:.17g}: hidden {away:.1e} of {index}")

    def ratios(self, name: str, blocks: Blocks, exact: Blocks, tau: Any, method: Any) -> None:
        """Coupling ratios, and the joint index by them."""
        question = f"coupling {method} tau {'default' if tau is None else 'given'}: {name}"
        result = self.ask(question, lambda: landscape.coupling(*blocks, tau, method=method))
        if result is None:
            return
        shift = Decimal(result.tolerance)
        n = Spectrum(joint(*exact)).below(-shift)
        inside = result.index_lower <= n <= result.index_upper
        self.require(question, inside, f"index {result.index_lower} to {result.index_upper}, true {n}")
        self.note(f"index of {question}", "known" if result.index >= 0 else "bracketed")
        squares = fifty.squared_ratios(*exact, shift)
        if squares is None:
            # Conjugate gradients may pass negative curvature by, as the docstring says.
            self.require(question, method == "lanczos", "a shifted diagonal block is not positive definite")
            return
        oblong = exact[1].shape[0] != exact[1].shape[1]
        if max(abs(x) for x in exact[1].flat) < Decimal("1e-300") and not result.ratios.any():
            self.report.vanished += 1
            return
        # Distances of products assume of the diagonal blocks that they have no negative curvature.
        assumed = all(isinstance(H, MatrixOperator) for H in blocks) or method == "dense"
        assumed = assumed or not any(Spectrum(H).below(-Spectrum(H).norm * Decimal("1e-30")) for H in exact[::2])
        for i, (ratio, error, distance) in enumerate(zip(result.ratios, result.errors, result.distances, strict=True)):

            def around(away: float, ratio: float = float(ratio)) -> tuple[Decimal, Decimal]:
                last_digit = Decimal(ratio) * Decimal("1e-15")
                low, high = Decimal(ratio) - Decimal(away) - last_digit, Decimal(ratio) + Decimal(away) + last_digit
                return low.copy_abs() * max(low, Decimal(0)), high**2

            if math.isfinite(error):
                holds = squares.within(squares.order - 1 - i, *around(float(error)))
                self.require(question, holds, f"ratio {i}: {ratio:.17g} +- {error:.1e} holds none of its rank")
            if math.isfinite(distance) and assumed:
                low, high = around(float(distance))
                holds = squares.has(low, high) or (oblong and low == 0)
                self.require(question, holds, f"ratio {i}: {ratio:.17g}: none as near as {distance:.1e}")

    def excess(self, name: str, blocks: Blocks, exact: Blocks, method: Any) -> None:
        """What the coupling adds to the index."""
        question = f"excess_index {method}: {name}"
        excess = self.ask(question, lambda: landscape.excess_index(*blocks, method=method))
        if excess is None:
            return
        shift = Decimal(-excess.tolerance)
        n, a, c = (Spectrum(H).below(shift) for H in (joint(*exact), exact[0], exact[2]))
        n -= a + c
        self.require(
            question, excess.lower <= n <= excess.upper, f"{excess.level} {excess.lower} to {excess.upper}, true {n}"
        )


def joint(A: Exact, B: Exact, C: Exact) -> Exact:
    """[[A, B], [B^T, C]]."""
    return np.vstack([np.hstack([A, B]), np.hstack([B.T, C])])


def ask_of_network(seed: int, report: Report) -> None:
    """Every question about one drawn network."""
    network = drawn_network(seed)
    what = f"{network.loss}, {network.activation}, {', '.join(network.notes) or 'plain'}"
    with digits():
        value, H = network.exact()
        witness = Witness(report, f"network {seed} ({what}, loss {float(value):.1e}, n {len(H)})", H)
        op = witness.ask("HessianOperator", lambda: HessianOperator(network.objective(), network.params))
        if op is None:
            return
        names = list(network.params)
        rng = np.random.default_rng(seed)
        sizes = [p.numel() for p in network.params.values()]
        starts = dict(zip(names, np.cumsum([0, *sizes]), strict=False))
        rows = {n: range(starts[n], starts[n] + size) for n, size in zip(names, sizes, strict=True)}
        block = [names[i] for i in rng.permutation(len(names))[: rng.integers(1, len(names) + 1)]]
        some = [i for n in block for i in rows[n]]
        for name, part, at in (("whole", op, list(range(len(H)))), (f"block {block}", op.block(block), some)):
            true = Spectrum(H[np.ix_(at, at)])
            witness.index(name, part, true, None, "dense")
            # As it is written out anew for each question.
            written = witness.ask("written out", part.symmetric)
            if written is None:
                continue
            for rel_tau in (1e-10, 1e-12):
                witness.index(name, written, true, rel_tau, "dense")
            witness.eigenvalues(name, written, true, "dense")
            if name == "whole" and seed % LANCZOS_EVERY == 0:
                for rel_tau in (None, 1e-6):
                    witness.index(name, part, true, rel_tau, "lanczos")
                witness.eigenvalues(name, part, true, "lanczos")
        if len(names) > 1:
            cut = int(rng.integers(1, len(names)))
            first, second = names[:cut], names[cut:]
            blocks = op.block(first), op.block(first, second), op.block(second)
            m = starts[second[0]]
            _ask_of_blocks(witness, blocks, (H[:m, :m], H[:m, m:], H[m:, m:]), str(first), seed)


def ask_of_matrix(seed: int, report: Report) -> None:
    """Every question about one drawn matrix."""
    matrix = drawn_matrix(seed)
    op, n = matrix.operator, len(matrix.A)
    with digits():
        H = fifty.exact(matrix.A)
        witness = Witness(report, f"matrix {seed} ({', '.join(matrix.notes)}, n {n})", H)
        true = Spectrum(H)
        for rel_tau in (None, 1e-10, 1e-12):
            witness.index("whole", op, true, rel_tau, "dense")
        if seed % LANCZOS_EVERY == 0:
            for rel_tau in (None, 1e-6):
                witness.index("whole", op, true, rel_tau, "lanczos")
        for method in ("dense", "lanczos") if seed % LANCZOS_EVERY == 0 else ("dense",):
            witness.eigenvalues("whole", op, true, method)
        m = int(np.random.default_rng(seed).integers(1, n))
        M, error = op.matrix, op.error
        blocks = tuple(MatrixOperator(part, error) for part in (M[:m, :m], M[:m, m:], M[m:, m:]))
        _ask_of_blocks(witness, blocks, (H[:m, :m], H[:m, m:], H[m:, m:]), f"{m} of {n}", seed)


def _ask_of_blocks(witness: Witness, blocks: Blocks, exact: Blocks, name: str, seed: int) -> None:
    """Coupling at the default tau, and at one above what the diagonal blocks have below zero; the excess index."""
    least = max(float(-_lowest(H)) for H in (exact[0], exact[2]))
    above = 1.5 * max(least, 1e-10 * float(Spectrum(joint(*exact)).norm))
    for method in ("dense", "lanczos") if seed % LANCZOS_EVERY == 0 else ("dense",):
        for tau in (None, above) if isinstance(blocks[0], MatrixOperator) or seed % 2 else (above,):
            witness.ratios(name, blocks, exact, tau, method)
        witness.excess(name, blocks, exact, method)


def _lowest(H: Exact) -> Decimal:
    """The lowest eigenvalue to 14 digits of the norm, from below."""
    spectrum = Spectrum(H)
    low, high = -3 * spectrum.norm, 3 * spectrum.norm
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if spectrum.below(middle) else (middle, high)
    return low


def asked(ask: Callable[[int, Report], None], seeds: Iterator[int] | range) -> Report:
    """The report on many drawn cases."""
    report = Report()
    for seed in seeds:
        ask(seed, report)
    return report


def main() -> int:
    """Print the report; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrices", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ask = ask_of_matrix if args.matrices else ask_of_network
    report = asked(ask, range(args.seed, args.seed + args.count))
    print(report)
    return int(bool(report.wrong))


if __name__ == "__main__":
    raise SystemExit(main())
