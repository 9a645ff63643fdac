"""Products of five usual networks beside other tools: seconds, and memory for each parameter."""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness import PLAIN, TOOLS, Numbers, Part, Row, apart, main, peak_memory, summary, timed
from benchmarks.monitor import GPT
from benchmarks.peers import Product, flat, relative
from landscape import HessianOperator, Objective

DTYPES = ("float32", "float64")
TOLERANCE = 1e-10
"""Largest relative difference in float64 from the product of plain torch that counts as the same."""


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        shorter = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.beside = nn.Sequential(*(shorter if stride > 1 else ()))

    def forward(self, x: Tensor) -> Tensor:
        """x (sample, channel, row, column)."""
        return torch.relu(self.body(x) + self.beside(x))


class ViT(nn.Module):
    """ViT-Tiny on images of 224 x 224 in patches of 16, with the mean of all patches for a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, 192, 16, 16), nn.Parameter(0.02 * torch.randn(196, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, nn.LayerNorm(192), enable_nested_tensor=False)
        self.head = nn.Linear(192, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (sample, class) of images x (sample, 3, row, column)."""
        logits: Tensor = self.head(self.layers(self.patch(x).flatten(2).mT + self.place).mean(1))
        return logits


def resnet() -> nn.Module:
    """ResNet-18 for images of 32 x 32."""
    widths = [64, 64, 128, 256, 512]
    blocks = [
        block
        for before, width in zip(widths, widths[1:], strict=False)
        for block in (Residual(before, width, 1 if width == 64 else 2), Residual(width, width, 1))
    ]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """Two hidden layers of 1024 units."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


@dataclasses.dataclass(frozen=True)
class Usual:
    """A network by its maker, the shape of its inputs, and its classes; tokens as inputs where there are so many.

    rounds: of each tool, in turns, each in a process of its own; calls: products in a round.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    classes: int
    tokens: int = 0
    rounds: int = 2
    calls: int = 3

    def made(self, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
        """The network with random weights, its inputs, and targets (sample,)."""
        torch.manual_seed(0)
        model = self.make().eval().to(dtype)
        if self.tokens:
            tokens = torch.randint(self.tokens, (self.inputs[0], self.inputs[1] + 1))
            return nn.Sequential(model, nn.Flatten(0, 1)), tokens[:, :-1], tokens[:, 1:].flatten()
        return model, torch.randn(self.inputs).to(dtype), torch.randint(self.classes, self.inputs[:1])


def language(vocabulary: int, context: int, width: int, heads: int, layers: int) -> Callable[[], nn.Module]:
    """A maker of GPTs."""
    return functools.partial(GPT, vocabulary, width, heads, layers, context)


NETS = {
    "MLP": Usual(mlp, (512, 784), 10, rounds=3, calls=20),
    "ResNet-18": Usual(resnet, (32, 3, 32, 32), 10),
    "ViT-Tiny": Usual(ViT, (4, 3, 224, 224), 1000),
    "nanoGPT": Usual(language(65, 256, 384, 6, 6), (2, 256), 65, tokens=65),
    "GPT-2": Usual(language(50257, 1024, 768, 12, 12), (1, 64), 50257, tokens=50257, rounds=1),
}


def by_landscape(model: nn.Module, x: Tensor, y: Tensor) -> Product:
    objective = Objective(model, x, y, nn.CrossEntropyLoss(), dtype=next(model.parameters()).dtype)
    return HessianOperator(objective, dict(model.named_parameters())).__matmul__


def by_pyhessian(model: nn.Module, x: Tensor, y: Tensor) -> Product:
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
        solver = hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)
    sizes = [p.numel() for p in solver.params]

    def product(vector: Tensor) -> Tensor:
        v = [piece.view_as(p) for piece, p in zip(vector.split(sizes), solver.params, strict=True)]
        return flat(hessian_vector_product(solver.gradsH, solver.params, v))

    return product


def by_curvlinops(model: nn.Module, x: Tensor, y: Tensor) -> Product:
    from curvlinops import HessianLinearOperator

    params = list(model.parameters())
    return HessianLinearOperator(model, nn.CrossEntropyLoss(), params, [(x, y)], check_deterministic=False).__matmul__


def by_eigenthings(model: nn.Module, x: Tensor, y: Tensor) -> Product:
    from hessian_eigenthings import HessianOperator as Operator
    from hessian_eigenthings import supervised_loss

    return Operator(model, [(x, y)], supervised_loss(nn.CrossEntropyLoss())).matvec


def by_torch(model: nn.Module, x: Tensor, y: Tensor) -> Product:
    """A double backward pass whose graph is kept, without a check."""
    params = list(model.parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    gradient = flat(torch.autograd.grad(loss, params, create_graph=True))
    return lambda v: flat(torch.autograd.grad(gradient, params, v, retain_graph=True))


PRODUCTS: dict[str, Callable[[nn.Module, Tensor, Tensor], Product]] = {
    "landscape": by_landscape,
    "PyHessian": by_pyhessian,
    "curvlinops": by_curvlinops,
    "hessian-eigenthings": by_eigenthings,
    PLAIN: by_torch,
}


def once(name: str, dtype: str, tool: str) -> tuple[float, float, int, Tensor]:
    """Seconds of a product by a tool and of its set-up, the most memory that it took, and the product."""
    torch.set_num_threads(1)
    net = NETS[name]
    model, x, y = net.made(getattr(torch, dtype))
    v = torch.randn(sum(p.numel() for p in model.parameters()), generator=torch.Generator().manual_seed(1))
    v = v.to(getattr(torch, dtype))
    before = peak_memory()
    # Other tools' attention would be a fused kernel, which has no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        set_up, product = timed(lambda: PRODUCTS[tool](model, x, y))
        image = product(v)
        seconds, _ = timed(lambda: [product(v) for _ in range(net.calls)])
    return seconds / net.calls, set_up, peak_memory() - before, image.detach()


def products(name: str, dtype: str) -> Numbers:
    """Products of all tools in turns, each in a process of its own, so that its memory is seen."""
    seconds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    tools: dict[str, Numbers] = {}
    images: dict[str, Tensor] = {}
    for _ in range(NETS[name].rounds):
        for tool in TOOLS:
            took, set_up, memory, images[tool] = apart(once, name, dtype, tool)
            seconds[tool].append(took)
            tools[tool] = {"set_up": set_up, "memory": memory}
    for tool in TOOLS:
        tools[tool] |= {"seconds": summary(seconds[tool]), "error": relative(images[tool], images[PLAIN].double())}
    size = len(images[PLAIN])
    assert dtype != "float64" or tools["landscape"]["error"] <= TOLERANCE
    return {"net": name, "dtype": dtype, "parameters": size, "tools": tools}


def parts() -> list[Part]:
    works = {(name, dtype): functools.partial(products, name, dtype) for name in NETS for dtype in DTYPES}
    return [Part(f"{name} {dtype}", work, slow=name != "MLP") for (name, dtype), work in works.items()]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network: milliseconds and bytes for each parameter in each precision."""
    for name in NETS:
        both = [results[part] for dtype in DTYPES if (part := f"{name} {dtype}") in results]
        if both:
            what = f"one product, {name}, n = {both[0]['parameters']:,}, {', '.join(each['dtype'] for each in both)}"
            yield Row(what, {tool: _in_words([each["tools"][tool] for each in both], both) for tool in TOOLS})


def _in_words(each: list[Numbers], both: list[Numbers]) -> str:
    times = ", ".join(f"{1e3 * one['seconds']['median']:.3g}" for one in each)
    sizes = ", ".join(f"{one['memory'] / whole['parameters']:.0f}" for one, whole in zip(each, both, strict=True))
    wrong = "".join(
        f"; off by {one['error']:.0e}"
        for one, whole in zip(each, both, strict=True)
        if whole["dtype"] == "float64" and one["error"] > TOLERANCE
    )
    return f"{times} ms, {sizes} bytes a parameter{wrong}"


if __name__ == "__main__":
    sys.exit(main("models", parts()))
