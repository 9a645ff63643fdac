"""The network in plain PyTorch, and other tools for its Hessian."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.counts import Shape
from benchmarks.harness import CACHE
from landscape import TrainConfig, train
from landscape.config import AnalysisConfig, to_json
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.problem import EmbeddingMLPProblem
from landscape.models.problem import hessian, tensors

USER_NAMES = {
    "E": "embedding.weight",
    "W": "hidden.weight",
    "b1": "hidden.bias",
    "V": "output.weight",
    "b2": "output.bias",
}
ALL = tuple(USER_NAMES)
TOLERANCE = 1e-10
"""Largest relative difference in float64 between the user's network and ours."""
Product = Callable[[Tensor], Tensor]


class UserNet(nn.Module):
    """Embedding, flatten, Linear, ReLU, Linear."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.V, shape.d)
        self.hidden = nn.Linear(shape.s * shape.d, shape.h)
        self.output = nn.Linear(shape.h, shape.C)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.relu(self.hidden(self.embedding(tokens).flatten(1))))


@dataclasses.dataclass(frozen=True)
class Case:
    """One network with its training set at one step, for `landscape` and its peers alike; params in float64."""

    config: TrainConfig
    problem: EmbeddingMLPProblem
    params: dict[str, Tensor]
    dtype: torch.dtype = torch.float64

    @property
    def shape(self) -> Shape:
        (V, d), (N, s) = self.params["E"].shape, self.problem.tokens.shape
        return Shape(N, V, s, d, len(self.params["W"]), len(self.params["V"]))

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """Tokens and labels of the training set."""
        return self.problem.tokens, self.problem.labels

    def size(self, names: Sequence[str] = ALL) -> int:
        """Number of parameters of a block."""
        return sum(self.params[n].numel() for n in names)

    def probe(self, names: Sequence[str] = ALL, columns: int = 1) -> Tensor:
        """Random vectors (n, columns)."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.size(names), columns, generator=generator, dtype=torch.float64).to(self.dtype)

    def landscape(self, names: Sequence[str] = ALL) -> Any:
        """Our operator of a block."""
        params = {n: p.to(self.dtype) for n, p in self.params.items()}
        return hessian(self.problem, params, 0.0).block(list(names))

    def user_net(self, names: Sequence[str] = ALL) -> UserNet:
        """The user's network at the same parameters; only those named require a gradient."""
        net = UserNet(self.shape).to(self.dtype)
        with torch.no_grad():
            for name, theirs in USER_NAMES.items():
                parameter = net.get_parameter(theirs)
                parameter.copy_(self.params[name])
                parameter.requires_grad_(name in names)
        return net

    def pyhessian(self, names: Sequence[str] = ALL) -> Any:
        """PyHessian's solver for a block, with the whole training set as its batch."""
        from pyhessian import hessian

        with warnings.catch_warnings():
            # backward() keeps the graph; drop the solver after use.
            warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
            return hessian(self.user_net(names), nn.CrossEntropyLoss(), data=self.data, cuda=False)

    def pyhessian_product(self, names: Sequence[str] = ALL) -> Product:
        """The product in PyHessian's eigenvalue loop."""
        from pyhessian.utils import hessian_vector_product

        solver, shapes = self.pyhessian(names), [self.params[n].shape for n in names]

        def product(vector: Tensor) -> Tensor:
            pieces = vector.split([shape.numel() for shape in shapes])
            v = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
            return flat(hessian_vector_product(solver.gradsH, solver.params, v))

        return product

    def curvlinops(self, names: Sequence[str] = ALL) -> Any:
        """curvlinops' operator of a block, with the whole training set as its batch."""
        from curvlinops import HessianLinearOperator

        net = self.user_net(names)
        params = [net.get_parameter(USER_NAMES[n]) for n in names]
        return HessianLinearOperator(net, nn.CrossEntropyLoss(), params, [self.data])

    def eigenthings(self, names: Sequence[str] = ALL) -> Any:
        """hessian-eigenthings' operator of a block, with the whole training set as its batch."""
        from hessian_eigenthings import HessianOperator, supervised_loss

        return HessianOperator(self.user_net(names), [self.data], supervised_loss(nn.CrossEntropyLoss()))

    def torch_hessian(self, names: Sequence[str], chunk: int = 64) -> Tensor:
        """A block as a matrix by torch.func: forward-over-reverse products with `chunk` unit vectors at once."""
        net = self.user_net(names)

        def loss(vector: Tensor) -> Tensor:
            pieces = vector.split([self.params[n].numel() for n in names])
            named = {USER_NAMES[n]: v.view_as(self.params[n]) for n, v in zip(names, pieces, strict=True)}
            logits = torch.func.functional_call(net, named, (self.data[0],))
            return nn.functional.cross_entropy(logits, self.data[1])

        at, gradient = flat([self.params[n].to(self.dtype) for n in names]), torch.func.grad(loss)

        def product(v: Tensor) -> Tensor:
            return torch.func.jvp(gradient, (at,), (v,))[1]

        rows: Tensor = torch.func.vmap(product, chunk_size=chunk)(torch.eye(len(at), dtype=self.dtype))
        return rows.detach()

    def check(self) -> dict[str, float]:
        """Relative differences to ours in float64: loss, gradient, product. AssertionError if beyond rounding."""
        exact = dataclasses.replace(self, dtype=torch.float64)
        objective, net = self.problem.objective(0.0), exact.user_net()
        loss = nn.functional.cross_entropy(net(self.data[0]), self.data[1])
        loss.backward()
        gradient = flat([net.get_parameter(theirs).grad for theirs in USER_NAMES.values()])
        ours, v = objective.gradient(self.params), exact.probe()[:, 0]
        Hv = exact.landscape() @ v
        errors = {
            "loss": abs(float(loss.detach()) / objective.value(self.params) - 1),
            "gradient": relative(gradient, flat([ours[n] for n in ALL])),
            "PyHessian product": relative(exact.pyhessian_product()(v), Hv),
            "curvlinops product": relative(exact.curvlinops() @ v, Hv),
            "hessian-eigenthings product": relative(exact.eigenthings().matvec(v), Hv),
        }
        wrong = {what: error for what, error in errors.items() if error > TOLERANCE}
        assert not wrong, f"the user's network is not ours: {wrong}"
        return errors


def flat(pieces: Sequence[Tensor]) -> Tensor:
    """One vector of all entries."""
    return torch.cat([piece.reshape(-1) for piece in pieces])


def relative(actual: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((actual.double() - expected).norm() / expected.norm())


def trained(config: TrainConfig, steps: Sequence[int]) -> RunReader:
    """A run trained to the last of `steps`, with a checkpoint at each; cached."""
    changes = {"steps": max(steps), "checkpoint_at": tuple(steps), "checkpoint_every": 0, "checkpoint_log": 0}
    config = dataclasses.replace(config, **changes, stop_test_accuracy=None, device="cpu")
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"{hashlib.sha256(to_json(config).encode()).hexdigest()[:12]}.h5"
    if not path.exists():
        train(config, path, resume=True, quiet=True)
    return RunReader(path)


@functools.lru_cache(maxsize=4)
def case(config: TrainConfig, step: int = 0) -> Case:
    """The network of a config at one step, in float64."""
    with trained(config, [step]) as reader:
        problem = EmbeddingMLPProblem(config, reader.data(), torch.device("cpu"), AnalysisConfig().chunk_size)
        return Case(config, problem, tensors(problem, reader.checkpoint(step)))
