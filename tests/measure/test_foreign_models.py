"""A Transformer and an LSTM of a user's own from run file to figures, beside torch.func.hessian of their own loss."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import foreign
from helpers.hessians import HessianReader
from torch import Tensor
from torch.nn import functional as F

from landscape.cli import main as cli
from landscape.files.runs import RunReader
from landscape.files.schema import LEVELS
from landscape.models.blocks import choose

TRANSFORMER = '''
import torch
from torch import nn
from landscape import ModuleProblem, cross_entropy


class Language(nn.Module):
    """Next token of short sequences; padding is neither attended to nor predicted."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(7, 4), nn.Parameter(torch.randn(5, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(4, 7)

    def forward(self, tokens, padding):
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).bool()
        hidden = self.embed(tokens) + self.place[: tokens.shape[1]]
        return {"logits": self.head(self.encoder(hidden, causal, padding))}


def model():
    torch.manual_seed(0)
    return Language()


drawn = torch.randint(1, 7, (9, 6), generator=torch.Generator().manual_seed(1))
drawn = drawn.where(torch.arange(6) < (torch.arange(9) % 4 + 3)[:, None], 0)
tokens, targets = drawn[:, :-1], drawn[:, 1:].where(drawn[:, 1:] > 0, -100)


def batches():
    """Four of different sizes, each cut to its longest sequence."""
    cut = []
    for at in (slice(0, 4), slice(4, 6), slice(6, 7), slice(7, 9)):
        length = int((tokens[at] > 0).sum(1).max())
        x, y = tokens[at, :length], targets[at, :length]
        cut.append(({"tokens": x, "padding": x == 0}, y))
    return cut


def problem():
    return ModuleProblem(
        model().eval(),
        batches(),
        loss=lambda outputs, targets: cross_entropy(outputs["logits"], targets),
        blocks={"embed": ["embed.*", "place"], "attention": ["*.self_attn.*"], "head": ["head.*"]},
        pairs=[("embed", "head")],
    )
'''
LSTM = '''
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from landscape import ModuleProblem, mse


class Forecast(nn.Module):
    """The next value of a series."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, series):
        return self.out(self.lstm(series[..., None])[0][:, -1])[:, 0]


def model():
    torch.manual_seed(0)
    return Forecast()


series = torch.sin(torch.arange(12)[:, None] * 0.7 + torch.arange(7) * 0.9)
x, y = series[:, :-1], series[:, -1]


def problem():
    blocks = {"recurrent": ["lstm.*"], "out": ["out.*"]}
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    return ModuleProblem(model(), loader, loss=mse, blocks=blocks, pairs=[("recurrent", "out")], weight_decay=1e-3)
'''


def language_loss(mine: dict[str, Any], call: Callable[..., Any]) -> Tensor:
    logits = call(mine["tokens"], mine["tokens"] == 0)["logits"]
    return F.cross_entropy(logits.flatten(0, 1), mine["targets"].flatten(), ignore_index=-100)


def forecast_loss(mine: dict[str, Any], call: Callable[..., Any]) -> Tensor:
    outputs = call(mine["x"].to(torch.float64))
    return F.mse_loss(outputs, mine["y"].to(torch.float64))


LOSSES = {"transformer": (TRANSFORMER, language_loss), "lstm": (LSTM, forecast_loss)}
EXTRA = {"transformer": ["*.norm?.weight", "*.linear?.*,attention"], "lstm": ["lstm.weight_hh_l0"]}


def dense(name: str, arrays: foreign.Arrays) -> tuple[dict[str, list[int]], Tensor]:
    """Rows by parameter, and the Hessian of the user's own mean loss over all data at once, by torch.func alone."""
    text, loss = LOSSES[name]
    mine = foreign.executed(text)
    model, every = mine["model"](), {n: torch.from_numpy(a) for n, a in arrays.items()}
    sizes = [p.numel() for p in every.values()]
    rows = dict(zip(every, torch.arange(sum(sizes)).split(sizes), strict=True))

    def value(vector: Tensor) -> Tensor:
        pieces = {n: v.view_as(p) for (n, p), v in zip(every.items(), vector.split(sizes), strict=True)}
        return loss(mine, lambda *inputs: torch.func.functional_call(model, pieces, inputs))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        at = torch.cat([p.reshape(-1) for p in every.values()])
        return {n: r.tolist() for n, r in rows.items()}, torch.func.jacrev(torch.func.grad(value))(at)


@pytest.fixture(params=list(LOSSES))
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's folder with mine.py and three checkpoints of its network in run.h5."""
    text, loss = LOSSES[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("mine.py").write_text(text)
    mine = foreign.executed(text)
    model = mine["model"]().double()
    foreign.record(Path("run.h5"), dict(foreign.trained(model, lambda m: loss(mine, m), (0, 4, 8), lr=0.3)))
    return str(request.param)


@pytest.mark.slow
@pytest.mark.long
def test_from_run_to_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every number that the embedding MLP gets: spectra, index, coupling, densities, tracking, slices."""
    own = ["--run", "run.h5", "--problem", "mine.py:problem"]
    declared = {"transformer": ["embed", "attention", "head"], "lstm": ["recurrent", "out"]}[name]
    pair = f"{declared[0]},{declared[-1]}"
    blocks = [*declared, pair, "all", *EXTRA[name]]
    assert cli.run(["hessian", *own, "--steps", "0,8", "--certify", "--density", "--quiet", "--blocks", *blocks]) == 0
    reader = HessianReader("run.hessian.h5")
    assert reader.blocks == blocks
    assert reader.pairs[0] == pair
    chosen = choose(foreign.executed(LOSSES[name][0])["problem"](), blocks).blocks
    names = {block.name: block.members for block in chosen}
    with RunReader("run.h5") as run:
        for step in reader.steps:
            row = reader.row(step)
            rows, whole = dense(name, run.checkpoint(step))
            for i, block in enumerate(blocks):
                at = [row for parameter in names[block] for row in rows[parameter]]
                values = torch.linalg.eigvalsh(whole[at][:, at]).numpy()
                scale = np.abs(values).max()
                np.testing.assert_allclose(row["eigenvalues"][i, 0], values[:4], rtol=0, atol=1e-9 * scale)
                np.testing.assert_allclose(row["eigenvalues"][i, 1], values[::-1][:4], rtol=0, atol=1e-9 * scale)
                assert row["residual_norm"][i].max() < 1e-9 * scale
                assert LEVELS[row["inertia_level"][i]] == "certified"
                assert row["inertia"][i, 0] == (values < -row["inertia_tolerance"][i]).sum()
                assert row["trace"][i] == pytest.approx(values.sum(), abs=1e-9 * scale)
                assert (reader.densities(step)[block] >= 0).all()
            assert np.isfinite(row["coupling_strength"]).all()
            assert np.isnan(row["sharpness_adam"])
        assert np.isfinite(reader.row(8)["subspace_overlap"]).all()
    capsys.readouterr()
    assert cli.run(["slice", *own, "--step", "8", "--k", "1", "--points", "5", "--plane-points", "3"]) == 0
    assert pair in capsys.readouterr().out
    assert Path("reports/run-slices-8/slices.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm"], indirect=True)
def test_without_matrices(name: str) -> None:
    """By products alone the same ends, with residuals and a bracket of the index."""
    command = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "8", "--blocks", "all"]
    fewer = ["--k", "2", "--max-hvps", "200", "--probes", "2", "--probe-steps", "10"]
    assert cli.run([*command, *fewer, "--method", "lanczos", "--quiet"]) == 0
    row = HessianReader("run.hessian.h5").row(8)
    with RunReader("run.h5") as run:
        arrays = run.checkpoint(8)
    values = torch.linalg.eigvalsh(dense(name, arrays)[1]).numpy()
    scale = np.abs(values).max()
    np.testing.assert_allclose(row["eigenvalues"][0], [values[:2], values[::-1][:2]], rtol=0, atol=1e-5 * scale)
    negative = (values < -row["inertia_tolerance"][0]).sum()
    assert row["inertia_lower"][0] <= negative <= row["inertia_upper"][0]


@pytest.mark.slow
def test_a_critical_point(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The search goes through the problem's own objective, with its decay; its gradient is that of the loss."""
    command = ["critical", "run.h5", "--problem", "mine.py:problem", "--step", "8", "--json", "--quiet"]
    assert cli.run([*command, "--search-hvps", "8", "--blocks", "head.*" if name == "transformer" else "out"]) in (
        0,
        3,
    )
    point = json.loads(capsys.readouterr().out)["critical_point"]
    assert point["grad_norm"] <= point["start_grad_norm"]
    text, loss = LOSSES[name]
    mine, decay = foreign.executed(text), {"transformer": 0.0, "lstm": 1e-3}[name]
    model = mine["model"]().double()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.tensor(point[n], dtype=torch.float64))
    value = loss(mine, model) + decay / 2 * torch.stack([p.square().sum() for p in model.parameters()]).sum()
    value.backward()
    norm = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum().sqrt()
    assert point["loss"] == pytest.approx(value.item(), rel=1e-10)
    assert point["grad_norm"] == pytest.approx(norm.item(), rel=1e-6, abs=1e-12)


@pytest.mark.slow
def test_a_second_opinion(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--verify: PyHessian and torch.func over the same data."""
    command = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "8", "--blocks", "all"]
    assert cli.run([*command, "--verify", "--json", "--quiet", "--k", "2"]) == 0
    (opinion,) = json.loads(capsys.readouterr().out)["verify"]
    assert opinion["dense_difference"] < 1e-9
