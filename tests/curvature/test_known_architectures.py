"""Networks that others wrote: products and ends of their Hessians against differences of gradients and curvlinops."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.marking import cases
from helpers.matrices import draw
from helpers.vision import torchvision
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import eigsh as scipy_eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscape.curvature.eigsh import eigsh
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import ArgumentError


@dataclasses.dataclass
class Case:
    """A network in eval mode with its data; logits: how they are picked of what it returns."""

    model: nn.Module
    inputs: Any
    targets: Tensor
    logits: Callable[[Any], Tensor] = lambda out: out

    def objective(self, **settings: Any) -> Objective:
        settings.setdefault("loss", lambda out, targets: cross_entropy(self.logits(out), targets))
        return Objective(self.model, self.inputs, self.targets, **settings)

    def hessian(self, **settings: Any) -> HessianOperator:
        return HessianOperator(self.objective(**settings), dict(self.model.named_parameters()))

    def gradient(self) -> Tensor:
        """As its users write it: the mean cross-entropy and a backward pass."""
        output = self.model(**self.inputs) if isinstance(self.inputs, dict) else self.model(self.inputs)
        loss = nn.functional.cross_entropy(self.logits(output).flatten(0, -2), self.targets.flatten())
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(self.model.parameters()))])

    def difference(self, v: Tensor, step: float = 1e-5) -> Tensor:
        """(gradient(theta + h v) - gradient(theta - h v)) / 2h, of |v| = 1."""
        sizes = [p.numel() for p in self.model.parameters()]
        gradients = []
        for h in (step, -step):
            moved = zip(self.model.parameters(), v.split(sizes), strict=True)
            with torch.no_grad():
                before = [p.clone() for p in self.model.parameters()]
                for p, piece in moved:
                    p.add_(h * piece.view_as(p))
            gradients.append(self.gradient())
            with torch.no_grad():
                for p, old in zip(self.model.parameters(), before, strict=True):
                    p.copy_(old)
        return (gradients[0] - gradients[1]) / (2 * step)


def gpt2(attention: str = "eager") -> Case:
    torchvision()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 1, "n_head": 2}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **off, attn_implementation=attention, use_cache=False))
    ids = torch.randint(0, 11, (5, 6))
    return Case(model, {"input_ids": ids}, ids.roll(-1, 1), lambda out: out.logits)


def bert() -> Case:
    torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 12, "max_position_embeddings": 6, "num_labels": 3}
    model = BertForSequenceClassification(BertConfig(**sizes, attn_implementation="eager"))
    ids, mask = torch.randint(1, 11, (6, 5)), torch.ones(6, 5).long()
    mask[:2, 3:] = 0
    return Case(model, {"input_ids": ids, "attention_mask": mask}, torch.arange(6) % 3, lambda out: out.logits)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.V = nn.Embedding(7, 4), nn.LSTM(4, 6, 2, batch_first=True), nn.Linear(6, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.V(self.lstm(self.embed(tokens))[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
        self.embed, self.V = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.V(self.layers(self.embed(tokens)).mean(1))


def sequences(model: nn.Module) -> Case:
    tokens = torch.randint(0, 7, (8, 4))
    return Case(model, tokens, tokens.sum(1) % 7)


CASES: dict[str, Callable[[], Case]] = {
    "GPT-2": gpt2,
    "GPT-2, scaled_dot_product_attention": lambda: gpt2("sdpa"),
    "BERT": bert,
    "LSTM": lambda: sequences(Recurrent()),
    "TransformerEncoder": lambda: sequences(Encoder()),
}


def case(name: str) -> Case:
    """In float64 and eval mode, at weights large enough for curvature of both signs."""
    torch.manual_seed(0)
    made = CASES[name]()
    made.model.double().eval()
    with torch.no_grad():
        for i, p in enumerate(made.model.parameters()):
            p.add_(0.3 * draw(*p.shape, seed=i))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(CASES, long=["GPT-2"]))
def test_products_and_ends(name: str) -> None:
    """Products within 1e-8 of differences of plain gradients, chunked or not; the ends are those of SciPy on these."""
    made = case(name)
    hessian = made.hessian()
    n = hessian.shape[0]
    v = draw(n, 2, seed=1)
    v = v / v.norm(dim=0)
    product = hessian @ v
    expected = torch.stack([made.difference(x) for x in v.T], 1)
    assert float((product - expected).norm()) <= 1e-8 * float(expected.norm())
    assert float((made.hessian(chunk_size=3) @ v - product).norm()) <= 1e-13 * float(product.norm())
    plain = LinearOperator((n, n), lambda x: made.difference(torch.from_numpy(x.reshape(-1))).numpy(), dtype=float)
    ends = [
        scipy_eigsh(plain, 2, which=end, tol=1e-7, v0=np.ones(n), return_eigenvectors=False) for end in ("SA", "LA")
    ]
    ours = eigsh(hessian, 2, method="lanczos", rtol=1e-6, max_hvps=600)
    scale = ours.operator_norm
    np.testing.assert_allclose(ours.values, [np.sort(ends[0]), np.sort(ends[1])[::-1]], atol=1e-5 * scale)
    assert ours.values[0, 0] < -1e-3 * scale


@pytest.mark.slow
@pytest.mark.long
def test_resnet_18() -> None:
    """Eleven million parameters, with batch norm's running statistics: a product is curvlinops' own."""
    from curvlinops import HessianLinearOperator

    torch.manual_seed(0)
    model = torchvision().models.resnet18(num_classes=3).double().eval()
    images, labels = torch.randn(3, 3, 32, 32).double(), torch.arange(3)
    hessian = Case(model, images, labels).hessian()
    v = draw(hessian.shape[0], seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [(images, labels)]
        other = HessianLinearOperator(
            model, nn.CrossEntropyLoss(), list(model.parameters()), data, check_deterministic=False
        )
        expected = other @ v
    assert hessian.shape[0] == 11_178_051
    assert float((hessian @ v - expected).norm()) <= 1e-10 * float(expected.norm())


@pytest.mark.slow
def test_training_mode_is_refused() -> None:
    """BERT as it is made for training, with dropout."""
    made = case("BERT")
    made.model.train()
    with pytest.raises(ArgumentError, match="the loss of the same parameters is .* and then") as raised:
        made.hessian()
    assert "eval mode" in raised.value.hint


def labelled(sizes: list[int] | None) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """BERT and batches with labels, as a Trainer takes them."""
    made = case("BERT")
    batch = {**made.inputs, "labels": made.targets}
    cut = {name: value.split(sizes or [len(value)]) for name, value in batch.items()}
    return made.model, [dict(zip(cut, parts, strict=True)) for parts in zip(*cut.values(), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [None, [4, 2]])
def test_batches_with_labels_take_the_models_own_loss(sizes: list[int] | None) -> None:
    """As its Trainer does, of one batch and of several; ragged ones count their samples."""
    model, batches = labelled(sizes)
    hessian = HessianOperator(Objective(model, batches), dict(model.named_parameters()))
    v = draw(hessian.shape[1], seed=1)
    expected = case("BERT").hessian() @ v
    assert float((hessian @ v - expected).norm()) <= 1e-12 * float(expected.norm())


class Flash(nn.Module):
    """Attention that insists on a kernel without second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0, -1]


def test_a_kernel_without_second_derivative_is_refused() -> None:
    """Where the model overrides the choice of the plain one, the hint names fused kernels."""
    made = Case(Flash().double(), torch.randn(4, 3, 8).double(), torch.arange(4))
    with pytest.raises(ArgumentError, match="cannot be differentiated") as raised:
        made.hessian()
    assert "fused ones cannot" in raised.value.hint


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_value_is_that_of_the_loss_that_is_differentiated() -> None:
    """Without gradients nn.TransformerEncoder would give 0 for masked tokens, which a mean over tokens takes in."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
            self.embed, self.encode = nn.Embedding(5, 4), nn.TransformerEncoder(layer, 1)

        def forward(self, x: Tensor) -> Tensor:
            encoded: Tensor = self.encode(self.embed(x), src_key_padding_mask=x == 0)
            return encoded.mean(1)

    torch.manual_seed(0)
    module, x, y = Masked().eval(), torch.tensor([[1, 2, 0], [3, 0, 0], [4, 1, 2]]), torch.arange(3)
    params = {n: p.detach().double() for n, p in module.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
        expected = nn.functional.cross_entropy(torch.func.functional_call(module, leaves, (x,)), y)
    assert Objective(module, x, y).value(params) == pytest.approx(float(expected.detach()), rel=1e-14)
    assert torch.backends.mha.get_fastpath_enabled()
