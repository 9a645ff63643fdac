"""The recipes of docs/architectures.md have the Hessian of plain autograd."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marking import cases
from helpers.matrices import draw
from helpers.vision import torchvision
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

PAGE = (Path(__file__).parents[2] / "docs/architectures.md").read_text()
RECIPES = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?\nhessian = .*?\n)", PAGE, re.DOTALL | re.MULTILINE))
"""Each up to its operator."""
CASTING = ("GPT-2", "Llama", "LoRA")
"""Whose logits or norms transformers computes in float32, where nothing keeps it from that."""


def made(recipe: str) -> dict[str, Any]:
    """The variables of a recipe."""
    torchvision()  # transformers imports it
    variables: dict[str, Any] = {}
    with warnings.catch_warnings() if "peft" in recipe else contextlib.nullcontext():
        if "peft" in recipe:
            warnings.simplefilter("ignore")
        exec(recipe, variables)
    return variables


def in_double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(RECIPES, long=["ResNet"]))
def test_products_are_those_of_a_second_backward_pass(name: str) -> None:
    """Of the model's own loss in float64, over all parameters of the recipe."""
    recipe = made(RECIPES[name])
    hessian, model = recipe["hessian"], recipe["model"].double()
    v = draw(hessian.shape[0], seed=1)
    with sdpa_kernel(SDPBackend.MATH):
        if "batch" in recipe:
            loss = model(**{key: in_double(x) for key, x in recipe["batch"].items()}).loss
        else:
            loss = torch.nn.functional.cross_entropy(model(in_double(recipe["images"])), recipe["labels"])
        params = [p for p in model.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, params, create_graph=True)
        along = torch.cat([g.reshape(-1) for g in slopes]) @ v
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(along, params)])
    tolerance = 3e-6 if name in CASTING else 1e-12
    assert float((hessian @ v - expected).norm()) <= tolerance * float(expected.norm())


def test_every_section_is_tested() -> None:
    assert list(RECIPES) == ["GPT-2", "Llama", "BERT", "ViT", "ResNet", "LoRA"]
