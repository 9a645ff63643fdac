"""The hand-derived step against autograd and torch.optim, and runs side by side against each run alone."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.apart import Kill, run_apart
from helpers.marking import slow
from helpers.run_files import contents, same_run
from torch import Tensor, nn

from landscape.cli import main as cli
from landscape.config import TrainConfig
from landscape.curvature.losses import cross_entropy
from landscape.errors import ConfigError, FileError
from landscape.files.runs import RunReader
from landscape.files.writing import sole_writer
from landscape.models.embedding_mlp.networks import Networks, initial
from landscape.models.embedding_mlp.problem import plain_model
from landscape.models.networks import scores
from landscape.models.tasks import make_data
from landscape.training.ensemble import ensemble
from landscape.training.loop import train, train_ensemble
from landscape.training.optimizers import Optimizer

CPU = torch.device("cpu")
MOST_SEEDS = [(0, 1.0), (5, 0.5), (6, 3.0)]
"""Seeds and factors on lr, weight decay and lr_ratio of the members of the small ensembles."""


def variant(**changes: Any) -> TrainConfig:
    return dataclasses.replace(TINY, **changes)


def ensemble_of(config: TrainConfig) -> tuple[list[TrainConfig], Networks]:
    """Three members that differ in seed, learning rate and decay."""
    configs = [
        dataclasses.replace(config, seed=seed, lr=config.lr * factor, weight_decay=config.weight_decay * factor)
        for seed, factor in MOST_SEEDS
    ]
    data = make_data(config)
    return configs, Networks(config, [initial(c) for c in configs], data.tokens, data.labels, CPU)


def some_pairs(config: TrainConfig, rng: np.random.Generator, size: int = 12) -> np.ndarray[Any, Any]:
    return rng.integers(0, config.p**2 - (config.p if config.task == "div" else 0), (len(MOST_SEEDS), size))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "quadratic"])
@pytest.mark.parametrize(
    ("model", "tokens"),
    [("embedding", 2), ("embedding", 4), ("onehot", 2), ("onehot", 4), ("tables", 2), ("tables", 4), ("scalar", 2)],
)
def test_gradients_are_autograds(model: Any, tokens: Any, activation: Any, bias: bool) -> None:
    """Logits and gradients of every member equal those of Embedding -> Flatten -> Linear -> activation -> Linear."""
    config = variant(model=model, tokens=tokens, activation=activation, bias=bias, dtype="float64", task="div")
    configs, networks = ensemble_of(config)
    data, pairs = make_data(config), some_pairs(config, np.random.default_rng(0))
    batch = networks.batch(pairs)
    logits = networks.logits(batch)
    networks.backward(batch)
    for i, member in enumerate(configs):
        plain, named = plain_model(member, initial(member), CPU)
        x, y = (torch.from_numpy(array[pairs[i]]).long() for array in (data.tokens, data.labels))
        torch.testing.assert_close(logits[i].T, plain(x), rtol=1e-11, atol=1e-12)
        nn.functional.cross_entropy(plain(x), y).backward()
        assert set(named) == set(networks.shapes)
        for name, parameter in named.items():
            assert parameter.grad is not None
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(networks.grads[name][i], parameter.grad, rtol=1e-11, atol=1e-12 * scale)
        assert set(np.flatnonzero(batch.seen[i])) == set(data.tokens[pairs[i]].ravel())


def test_a_small_loss_keeps_its_gradient() -> None:
    """Where every p_y rounds to 1, the gradient in float32 is still that of float64."""
    gradients = []
    for dtype in ("float32", "float64"):
        _, networks = ensemble_of(variant(dtype=dtype))
        batch = networks.batch(some_pairs(TINY, np.random.default_rng(1), 1))
        networks.params["b2"].scatter_(1, batch.labels[:, 0], 40.0)
        networks.backward(batch)
        gradients.append(networks.grads["V"].double())
    assert 0 < float(gradients[1].abs().max()) < 1e-15
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6 * float(gradients[1].abs().max()))


def rescaled(W: nn.Parameter, slots: int, factors: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Tensor:
    """W whose tables, side by side, have `factors` of their singular values instead, by NumPy's SVD."""
    tables = np.hstack([T.T for T in np.split(W.detach().numpy(), slots, axis=1)])
    U, sigma, V = np.linalg.svd(tables, full_matrices=False)
    return torch.from_numpy(np.hstack([T.T for T in np.split(U * factors(sigma) @ V, slots, axis=1)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.02},
        {"optimizer": "adam", "weight_decay": 0.02},
        {"optimizer": "adamw", "weight_decay": 0.5},
        {"optimizer": "adam", "weight_decay": 0.02, "freeze": "E"},
        {"optimizer": "adamw", "weight_decay": 0.5, "freeze": "W"},
        {"optimizer": "adam", "model": "tables", "weight_decay": 0.02},
        {"optimizer": "adam", "model": "tables", "penalty": "nuclear", "weight_decay": 0.002},
        {"optimizer": "adamw", "model": "tables", "penalty": "nuclear", "weight_decay": 0.1},
        {"optimizer": "adam", "weight_decay": 0.02, "weight_decay_V": 0.2},
        {"optimizer": "adamw", "model": "tables", "penalty": "nuclear", "weight_decay": 0.1, "weight_decay_V": 0.5},
        {
            "optimizer": "sgd",
            "momentum": 0.9,
            "model": "tables",
            "penalty": "nuclear",
            "weight_decay": 0.002,
            "embed_dim": 7,
        },
    ],
    ids=str,
)
def test_two_hundred_steps_equal_torch_optim(changes: dict[str, Any]) -> None:
    """Parameters and moments of every member, each with rates and decay of its own, after 200 mini-batches."""
    config = variant(dtype="float64", **changes)
    configs, networks = ensemble_of(config)
    zeros = torch.zeros_like(networks.flat)
    mine = Optimizer(configs, networks, zeros, zeros.clone())
    ratios = [factor for _, factor in MOST_SEEDS]

    def rate(c: TrainConfig, ratio: float, name: str) -> float:
        return 0.0 if name == c.freeze else c.lr * (ratio if name == "E" else 1.0)

    mine.set_rates([{n: rate(c, r, n) for n in networks.shapes} for c, r in zip(configs, ratios, strict=True)])
    plain = [plain_model(c, initial(c), CPU) for c in configs]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    extra = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    is_nuclear = config.penalty == "nuclear"
    apart = {"W": 0.0} if is_nuclear else {}
    if config.weight_decay_V is not None:
        apart["V"] = config.weight_decay_V
    theirs = [
        kind(
            [
                {"params": [p], "lr": rate(c, r, n), **({"weight_decay": apart[n]} if n in apart else {})}
                for n, p in named.items()
                if n != c.freeze
            ],
            lr=c.lr,
            weight_decay=c.weight_decay,
            **extra,
        )
        for c, r, (_, named) in zip(configs, ratios, plain, strict=True)
    ]
    data, rng = make_data(config), np.random.default_rng(2)
    for number in range(1, 201):
        pairs = some_pairs(config, rng)
        networks.backward(networks.batch(pairs))
        mine.step(number)
        for c, (model, named), optimizer, rows in zip(configs, plain, theirs, pairs, strict=True):
            optimizer.zero_grad()
            x, y = (torch.from_numpy(array[rows]).long() for array in (data.tokens, data.labels))
            nn.functional.cross_entropy(model(x), y).backward()
            W, by = named["W"], c.weight_decay
            if is_nuclear and config.optimizer != "adamw":
                assert W.grad is not None
                W.grad += by * rescaled(W, c.tokens, lambda sigma: 1.0 * (sigma > 1e-7 * sigma[0]))
            optimizer.step()
            if is_nuclear and config.optimizer == "adamw":
                with torch.no_grad():
                    W.copy_(rescaled(W, c.tokens, lambda sigma, by=c.lr * by: np.maximum(sigma - by, 0)))
    keys = {"m": ("exp_avg", "momentum_buffer"), "v": ("exp_avg_sq",)}
    for i, ((_, named), optimizer) in enumerate(zip(plain, theirs, strict=True)):
        for name, parameter in named.items():
            torch.testing.assert_close(networks.params[name][i], parameter.detach(), rtol=1e-8, atol=1e-9)
            for moment in ("m", "v"):
                state = optimizer.state.get(parameter, {})
                held = [state[k] for k in keys[moment] if state.get(k) is not None]
                expected = held[0] if held else torch.zeros_like(parameter)
                actual = networks.parts(getattr(mine, moment))[name][i]
                torch.testing.assert_close(actual, expected.detach(), rtol=1e-6, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "vary"),
    [
        ({}, ()),
        slow({"tokens": 4, "activation": "gelu", "optimizer": "adamw"}, ("lr_ratio=0.5,3",)),
        slow({"optimizer": "sgd", "momentum": 0.9}, ("lr=0.01,0.1", "weight_decay=0,0.01")),
        slow({"batch_size": "full"}, ("init_scale_E=0.5,1", "init_scale_W=1,2")),
        ({"sampler": "frequency_aware", "sampler_every": 30}, ()),
        slow({"lr_ratio_every": 30, "batch_size": 5}, ("lr_ratio=2,prop41,curvature,auto",)),
        ({"model": "onehot"}, ()),
        ({"model": "tables", "penalty": "nuclear"}, ("weight_decay=0.01,0.1",)),
    ],
    ids=str,
)
def test_each_run_is_the_run_alone(changes: dict[str, Any], vary: tuple[str, ...], tmp_path: Path) -> None:
    """65 steps side by side: each file, its config included, is that of its run alone to 1e-5."""
    config = variant(**changes, steps=65)
    runs = ensemble(config, tmp_path / "run.h5", 2, vary)
    train_ensemble(runs, quiet=True)
    assert len(runs) == 2 * max(1, np.prod([entry.count(",") + 1 for entry in vary]))
    for path, member in runs.items():
        train(member, tmp_path / "alone.h5", overwrite=True, quiet=True)
        same_run(path, tmp_path / "alone.h5", 1e-5)


@pytest.mark.slow
def test_a_member_that_stops_early_leaves_the_others(tmp_path: Path) -> None:
    """Members end at steps of their own; each file is complete and ends where its run alone does."""
    config = variant(stop_test_accuracy=0.2, extra_steps=7, steps=150, dtype="float64")
    runs = ensemble(config, tmp_path / "run.h5", 5)
    ends = {summary.steps for summary in train_ensemble(runs, quiet=True)}
    assert len(ends) == 2
    for path, member in runs.items():
        train(member, tmp_path / "alone.h5", overwrite=True, quiet=True)
        same_run(path, tmp_path / "alone.h5", 1e-9)


@pytest.mark.slow
def test_resume_side_by_side_and_alone(tmp_path: Path) -> None:
    """Stopped at different steps, with one file missing and one finished, all go on to the same ends."""
    config = variant(steps=120, dtype="float64")
    whole, parts = (ensemble(config, tmp_path / f"{name}.h5", 4) for name in ("whole", "parts"))
    train_ensemble(whole, quiet=True)
    first, second, third, fourth = parts
    train_ensemble({path: dataclasses.replace(parts[path], steps=40) for path in (first, second)}, quiet=True)
    train(dataclasses.replace(parts[second], steps=60), second, resume=True, quiet=True)
    train(parts[fourth], fourth, quiet=True)
    before = fourth.read_bytes()
    train_ensemble(parts, resume=True, quiet=True)
    assert fourth.read_bytes() == before
    for left, right in zip(whole, parts, strict=True):
        same_run(left, right, 1e-9)
    train(dataclasses.replace(parts[third], steps=140), third, resume=True, quiet=True)
    assert contents(third)["resume/step"] == 140


FOUR = [
    "train", "--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "800", "--quiet",
    "--dtype", "float64", "--checkpoint-every", "20", "--seeds", "2", "--vary", "lr_ratio=1,2", "--out",
]  # fmt: skip
"""An ensemble of four."""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of FOUR that nothing has disturbed. Read only."""
    folder = tmp_path_factory.mktemp("four")
    assert cli.run([*FOUR, str(folder / "run.h5")]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_every_member_resumable(number: signal.Signals, four: Path, tmp_path: Path) -> None:
    """Exit code 130, no lock left, every file interrupted; --resume ends where an undisturbed ensemble does."""
    command = [*FOUR, str(tmp_path / "run.h5")]
    paths = [tmp_path / f"run-lr_ratio-{c}-s{i}.h5" for c in (1, 2) for i in range(2)]
    kill = Kill(at=4300, number=number)
    assert run_apart(tmp_path, command, kill).code == kill.code
    for path in paths:
        with RunReader(path) as reader:
            assert reader.attrs["status"] == ("running" if number == signal.SIGKILL else "interrupted")
            assert 80 <= reader.steps[-1] < 800
    assert number == signal.SIGKILL or not list(tmp_path.glob("*.lock"))
    assert cli.run([*command, "--resume"]) == 0
    for path in paths:
        same_run(path, four / path.name, 1e-6)


def test_every_file_of_an_ensemble_is_locked_and_kept(tmp_path: Path) -> None:
    """A member's file that exists or is being written stops the ensemble before anything is written."""
    runs = ensemble(variant(steps=2), tmp_path / "run.h5", 3)
    last = list(runs)[-1]
    with sole_writer(last), pytest.raises(FileError, match="is being written by another process"):
        train_ensemble(runs, quiet=True)
    last.write_text("mine")
    with pytest.raises(FileError, match="run-s2.h5 exists"):
        train_ensemble(runs, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run-s2.h5"]


@pytest.mark.parametrize(
    ("seeds", "vary", "error", "hint"),
    [
        (0, (), "seeds is 0", "--seeds takes an integer >= 1"),
        (None, ("hidden=8,16",), "vary 'hidden=8,16' varies 'hidden', which one ensemble cannot", "seeds vary with"),
        (None, ("lr",), "vary 'lr' lacks a value or names one twice", "lr=1,2,4"),
        (None, ("lr=1,1.0",), "vary 'lr=1,1.0' lacks a value or names one twice", "lr=1,2,4"),
        (2, ("lr=1", "lr=2"), "vary names lr twice", "give all values of a name at once"),
        (2, ("lr=fast,slow",), "lr cannot be 'fast'", "it takes float"),
        (2, ("lr=0.1,-1",), "lr is -1.0", "--lr takes a number >= 0"),
    ],
)
def test_what_an_ensemble_refuses(seeds: int | None, vary: tuple[str, ...], error: str, hint: str) -> None:
    """One line says what was wrong with the value, another how to mend it."""
    with pytest.raises(ConfigError) as caught:
        ensemble(TINY, Path("run.h5"), seeds, vary)
    assert error in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`landscape train --seeds --vary` writes a file a run, named by what varies, and one JSON list."""
    flags = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "4", "--quiet"]
    out = str(tmp_path / "run.h5")
    assert (
        cli.run(["train", *flags, "--seed", "5", "--seeds", "2", "--vary", "lr=0.1,1e-3", "--out", out, "--json"]) == 0
    )
    names = [f"run-lr-{lr}-s{seed}.h5" for lr in ("0.1", "1e-3") for seed in (5, 6)]
    documents = json.loads(capsys.readouterr().out)
    assert [Path(document["path"]).name for document in documents] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    with RunReader(tmp_path / names[3]) as reader:
        assert (reader.config["lr"], reader.config["seed"], reader.attrs["seed"]) == (1e-3, 6, 6)


def test_scores_are_cross_entropy_and_accuracy() -> None:
    """Of each member: as `cross_entropy` in float64 at losses from 1e-30 to 1e3; a tie is wrong."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1.0, 30.0, 300.0])[:, None, None]
    logits = sizes * torch.randn(3, 5, 40, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 1, 40), generator=generator)
    logits[0, :, 0] = 0.0
    losses, shares = scores(logits, labels)
    expected = cross_entropy(logits.mT, labels[:, 0]).mean(1)
    torch.testing.assert_close(losses, expected, rtol=1e-14, atol=0)
    right = logits.gather(1, labels)
    assert torch.equal(shares, ((logits >= right).sum(1) == 1).double().mean(1))
    easy = torch.zeros(1, 2, 1, dtype=torch.float64)
    easy[0, 1] = -70.0
    assert float(scores(easy, torch.zeros(1, 1, 1, dtype=torch.int64))[0]) == pytest.approx(np.exp(-70.0), rel=1e-14)
