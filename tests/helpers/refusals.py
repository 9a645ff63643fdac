"""An objective that can be spoilt in one place, and what its refusal has to say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from landscape import HessianOperator, Objective, cross_entropy
from landscape.errors import LandscapeError

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 4


def net(last: nn.Module | None = None) -> nn.Sequential:
    """A fresh float32 net from 3 inputs to 4 outputs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), last or nn.Identity())


def operator(
    loss: Any = cross_entropy, model: Any = None, x: Any = X, y: Any = Y, params: Any = None, **settings: Any
) -> HessianOperator:
    """The Hessian operator of `net`, with something exchanged."""
    model = net() if model is None else model
    objective = Objective(model, x, y, loss, **settings)
    return HessianOperator(objective, dict(model.named_parameters()) if params is None else params)


def point(**wrong: Any) -> dict[str, Any]:
    """The parameters of `net`, with some exchanged."""
    return {**dict(net().named_parameters()), **{n.replace("_", "."): p for n, p in wrong.items()}}


def at_row(x: Tensor, row: int, value: float) -> Tensor:
    """A copy with one number exchanged."""
    x = x.clone()
    x.view(len(x), -1)[row, 0] = value
    return x


def refused(make: Callable[[], Any], words: str, hint: str) -> None:
    """`make` raises an error that the command line prints too, with these words and this hint."""
    with pytest.raises(LandscapeError) as caught:
        make()
    assert re.search(words, str(caught.value)), str(caught.value)
    assert re.search(hint, caught.value.hint), caught.value.hint
    assert "torch.Size" not in str(caught.value)


def table(cases: dict[str, tuple[Callable[[], Any], str, str]]) -> Any:
    return pytest.mark.parametrize(("make", "words", "hint"), cases.values(), ids=cases.keys())


def warned(call: Callable[[], object], message: str, hint: str = "") -> None:
    """The call returns something false, and warns once, with these words and this hint."""
    with pytest.warns(UserWarning, match=message) as said:
        assert not call()
    assert len(said) == 1, [str(one.message) for one in said]
    assert hint in str(said[0].message)
