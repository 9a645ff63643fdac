"""Tasks, samplers, models and the training loop; resume bit for bit, also after a signal."""

from __future__ import annotations

import dataclasses
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.apart import Kill, run_apart
from helpers.hessians import analyse
from scipy.stats import entropy
from torch import nn

from landscape.choices.samplers import token_weights
from landscape.cli import main as cli
from landscape.config import HessianConfig, TrainConfig, preset
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.problem import plain_model
from landscape.models.tasks import TEST, TRAIN, UNUSED, make_data
from landscape.training import loop
from landscape.training.loop import summarise, train, train_ensemble
from landscape.training.tables import checkpoint_schedule

CPU = torch.device("cpu")


def variant(**changes: Any) -> TrainConfig:
    return dataclasses.replace(TINY, **changes)


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("task", ["add", "sub", "mul", "div", "squares"])
def test_every_pair_has_the_right_answer(task: Any, tokens: Any) -> None:
    """All pairs once, the answer by Python's own arithmetic, a / b checked by multiplying back."""
    data = make_data(variant(task=task, tokens=tokens, p=11))
    a, b = (data.tokens[:, k].tolist() for k in ((0, 2) if tokens == 4 else (0, 1)))
    assert len(set(zip(a, b, strict=True))) == len(a) == (110 if task == "div" else 121)
    rule = {
        "add": lambda x, y, c: c == (x + y) % 11,
        "sub": lambda x, y, c: c == (x - y) % 11,
        "mul": lambda x, y, c: c == (x * y) % 11,
        "div": lambda x, y, c: y != 0 and (c * y) % 11 == x,
        "squares": lambda x, y, c: c == (x * x + y * y) % 11,
    }[task]
    assert all(rule(*triple) for triple in zip(a, b, data.labels.tolist(), strict=True))
    if tokens == 4:
        assert set(data.tokens[:, 1]) == {11}
        assert set(data.tokens[:, 3]) == {12}


def test_split_by_seed_and_fractions() -> None:
    """Shares are exact; the same seed gives the same split, another seed another."""
    config = variant(p=31, train_fraction=0.3, test_fraction=0.2)
    split = make_data(config).split
    assert [(split == part).sum() for part in (TRAIN, TEST, UNUSED)] == [288, 192, 481]
    assert (split == make_data(config).split).all()
    assert (split != make_data(dataclasses.replace(config, seed=1)).split).any()
    rest = make_data(dataclasses.replace(config, test_fraction=None)).split
    assert [(rest == part).sum() for part in (TRAIN, TEST, UNUSED)] == [288, 673, 0]


@pytest.mark.parametrize("sampler", ["uniform", "random", "skewed", "zipf"])
def test_samplers_choose_training_pairs_by_token(sampler: Any) -> None:
    """The test set is the same for every sampler; uniform is even, skewed and zipf follow their token weights."""
    config = variant(p=31, train_fraction=0.3, test_fraction=0.2, sampler=sampler, skew=0.35)
    data = make_data(config)
    plain = make_data(dataclasses.replace(config, sampler="random"))
    assert ((data.split == TEST) == (plain.split == TEST)).all()
    count = np.bincount(data.subset(TRAIN)[0].ravel(), minlength=31)
    chance = np.bincount(plain.subset(TRAIN)[0].ravel(), minlength=31)
    if sampler == "uniform":
        assert np.ptp(count) < np.ptp(chance)
    if sampler in ("skewed", "zipf"):
        rng = np.random.default_rng([config.seed, 0])
        rng.permutation(961)
        weight = token_weights(31, {"skewed": 0.35, "zipf": 1.0}[sampler], rng)
        assert np.corrcoef(count, weight)[0, 1] > 0.5 > abs(np.corrcoef(chance, weight)[0, 1])


def test_uniform_is_exactly_even_where_it_can_be() -> None:
    """Without a test set drawn first, every token occurs equally often when the count is a multiple of p."""
    data = make_data(variant(p=31, train_fraction=310 / 961, sampler="uniform"))
    tokens = data.subset(TRAIN)[0]
    for slot in range(2):
        assert set(np.bincount(tokens[:, slot], minlength=31)) == {10}


def test_initialisation_is_pytorchs() -> None:
    """E ~ N(0, 1), W uniform within 1/sqrt(fan_in), each times its scale; sigma_max as the paper's set-up has it."""
    model = MLP(preset("paper")).requires_grad_(False)
    assert float(model.E.std()) == pytest.approx(1.0, abs=0.02)
    assert float(model.W.abs().max()) == pytest.approx(1 / 512**0.5, rel=1e-3)
    assert float(torch.linalg.matrix_norm(model.E.detach(), 2)) == pytest.approx(20.9, abs=0.6)
    assert float(torch.linalg.matrix_norm(model.W.detach(), 2)) == pytest.approx(1.14, abs=0.03)
    scaled = MLP(dataclasses.replace(preset("paper"), init_scale_E=0.5, init_scale_W=3.0))
    torch.testing.assert_close(scaled.E.detach(), model.E * 0.5)
    torch.testing.assert_close(scaled.W.detach(), model.W * 3.0)


def test_policy_prop41(tmp_path: Path) -> None:
    """lr_E / lr_W follows (sigma_max(E)/sigma_max(W)) / f_E, recomputed every K steps from what is stored."""
    config = variant(lr_ratio="prop41", lr_ratio_every=20, metrics_every=1, batch_size=3, dtype="float64")
    train(config, tmp_path / "r.h5", quiet=True)
    with RunReader(tmp_path / "r.h5") as reader:
        metrics, tokens = reader.metrics(), reader.tokens()
        for step in (20, 40):
            params = reader.checkpoint(step)
            f_E = tokens["count"][tokens["step"] == step].mean() / step
            assert f_E < 0.9
            expected = np.linalg.norm(params["E"], 2) / np.linalg.norm(params["W"], 2) / f_E
            used = metrics["lr_E"] / metrics["lr_W"]
            # The row of step s shows what moved the weights to step s.
            assert used[metrics["metric_step"] == step + 1] == pytest.approx(expected, rel=1e-9)
            assert used[metrics["metric_step"] == step + 19] == pytest.approx(expected, rel=1e-9)


def test_policy_curvature(tmp_path: Path) -> None:
    """lr_E / lr_W is sqrt(lambda_max(H_WW)/lambda_max(H_EE)) of the training loss, to 2 %."""
    run = tmp_path / "r.h5"
    train(variant(lr_ratio="curvature", lr_ratio_every=20, metrics_every=1, dtype="float64"), run, quiet=True)
    result = analyse(run, HessianConfig(steps="20,40", blocks=("E", "W")), quiet=True)
    with RunReader(run) as reader:
        metrics = reader.metrics()
    for step in (20, 40):
        used = (metrics["lr_E"] / metrics["lr_W"])[metrics["metric_step"] == step + 1]
        assert used == pytest.approx(result.row(step)["curvature_ratio"] ** 0.5, rel=0.02)


def test_metrics_are_what_the_checkpoints_say(tiny_run: Path) -> None:
    """Losses, accuracies, gradient norms, weight norms, singular values and f_E, recomputed from the file."""
    with RunReader(tiny_run) as reader:
        metrics, tokens, data = reader.metrics(), reader.tokens(), reader.data()
        for step in (20, 60):
            row = {n: v[metrics["metric_step"] == step].item() for n, v in metrics.items()}
            model, named = plain_model(TINY, reader.checkpoint(step), CPU)
            for part, name in ((TEST, "test"), (TRAIN, "train")):
                rows = data["split"] == part
                x, y = (torch.from_numpy(data[n][rows]).long() for n in ("tokens", "labels"))
                loss = nn.functional.cross_entropy(model(x), y)
                assert row[f"{name}_loss"] == pytest.approx(loss.item(), rel=1e-5)
                assert row[f"{name}_accuracy"] == pytest.approx((model(x).argmax(1) == y).double().mean().item())
            loss.backward()
            for name in ("E", "W", "V"):
                assert named[name].grad is not None
                assert row[f"grad_norm_{name}"] == pytest.approx(named[name].grad.norm().item(), rel=1e-4)
                assert row[f"weight_norm_{name}"] == pytest.approx(named[name].norm().item(), rel=1e-5)
            sigma = {n: torch.linalg.matrix_norm(named[n].detach(), 2).item() for n in ("E", "W")}
            assert row["sigma_max_E"] == pytest.approx(sigma["E"], rel=1e-5)
            assert row["f_E"] == pytest.approx(tokens["count"][tokens["step"] == step].mean() / step)
            assert row["prop41_ratio"] == pytest.approx(sigma["E"] / sigma["W"] / row["f_E"], rel=1e-5)
            E, W = named["E"].detach(), named["W"].detach()
            singular = np.linalg.svd(np.hstack([E @ W_k.T for W_k in W.split(TINY.embed_dim, dim=1)]), compute_uv=False)
            assert row["nuclear_norm"] == pytest.approx(singular.sum(), rel=1e-5)
            assert row["effective_rank"] == pytest.approx(np.exp(entropy(singular)), rel=1e-5)
            norms = named["E"].detach().norm(dim=1).numpy()
            np.testing.assert_allclose(tokens["embedding_norm"][tokens["step"] == step][0], norms, rtol=1e-5)


def test_checkpoint_schedules_are_united() -> None:
    """Every N, log-spaced, explicit, first and last, all together; a longer run holds the steps of a shorter one."""
    config = TrainConfig(steps=1000, checkpoint_every=300, checkpoint_log=2, checkpoint_at=(7, 999))
    assert checkpoint_schedule(config) == [0, 1, 3, 7, 10, 32, 100, 300, 316, 600, 900, 999, 1000]
    longer = dataclasses.replace(config, steps=5000)
    assert set(checkpoint_schedule(config)) <= set(checkpoint_schedule(longer))
    only_ends = TrainConfig(steps=50, checkpoint_log=0)
    assert checkpoint_schedule(only_ends) == [0, 50]


def test_early_stop_and_extra_steps(tmp_path: Path) -> None:
    """The run goes on extra_steps after the test accuracy was reached; its last step has a checkpoint."""
    config = variant(stop_test_accuracy=0.01, extra_steps=7, steps=500, checkpoint_every=0, checkpoint_log=0)
    summary = train(config, tmp_path / "r.h5", quiet=True)
    with RunReader(tmp_path / "r.h5") as reader:
        reached = reader.first_step("test_accuracy", 0.01)
        assert reached is not None
        assert reader.steps == [0, reached + 7]
    assert (summary.status, summary.steps) == ("complete", reached + 7)


def test_a_run_that_stopped_early_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More steps alone do not extend it; the command that `info` prints does."""
    monkeypatch.chdir(tmp_path)
    train(variant(stop_test_accuracy=0.01, steps=60), tmp_path / "r.h5", quiet=True)
    stopped = summarise(tmp_path / "r.h5").steps
    assert cli.run(["train", "--out", "r.h5", "--resume", "--steps", "90", "--quiet"]) == 0
    assert "--stop-test-accuracy none trains on to step 90" in capsys.readouterr().out
    assert summarise(tmp_path / "r.h5").steps == stopped < 90
    assert cli.run(["info", "r.h5"]) == 0
    command = re.search(r"extend +landscape (.*)", capsys.readouterr().out)
    assert command is not None
    assert cli.run([*command[1].split(), "--quiet"]) == 0
    assert summarise(tmp_path / "r.h5").steps == 90


def same_file(left: Path, right: Path) -> None:
    """Checkpoints, metrics, token statistics and resume state are the same, bit for bit."""
    with RunReader(left) as a, RunReader(right) as b:
        assert a.steps == b.steps
        assert a.attrs["status"] == b.attrs["status"] == "complete"
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [(a.checkpoint(s), b.checkpoint(s)) for s in a.steps]
        pairs += [(a.metrics(), b.metrics()), (a.tokens(), b.tokens()), (a.resume_state(), b.resume_state())]
        for x, y in pairs:
            assert x.keys() == y.keys()
            for name in x:
                assert np.asarray(x[name]).tobytes() == np.asarray(y[name]).tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": "adamw", "dtype": "float64", "freeze": "W"},
        {"sampler": "frequency_aware", "sampler_every": 30},
        *({"lr_ratio": policy, "lr_ratio_every": 30, "batch_size": 5} for policy in ("prop41", "auto")),
        {"model": "onehot"},
        {"model": "tables", "penalty": "nuclear"},
    ],
    ids=["adam", "sgd", "adamw", "frequency_aware", "prop41", "auto", "onehot", "nuclear"],
)
def test_two_hundred_steps_are_one_hundred_and_resume(changes: dict[str, Any], tmp_path: Path) -> None:
    """Weights, moments, RNG, order, metrics: 200 steps = 100 steps + resume of 100."""
    whole, parts = tmp_path / "whole.h5", tmp_path / "parts.h5"
    train(variant(**changes, steps=200), whole, quiet=True)
    train(variant(**changes, steps=100), parts, quiet=True)
    train(variant(**changes, steps=200), parts, resume=True, quiet=True)
    same_file(whole, parts)
    before = parts.read_bytes()
    train(variant(**changes, steps=200), parts, resume=True, quiet=True)
    assert parts.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, 0.9])
def test_a_changed_stop_holds_though_killed_at_once(
    stop: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has stopped early gets another rule and is killed before its next step: the rule decides, no stop."""
    path, early = tmp_path / "run.h5", variant(stop_test_accuracy=0.01, steps=60)
    assert train(early, path, quiet=True).steps < 60
    later = dataclasses.replace(early, stop_test_accuracy=stop)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_train_all", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(later, path, resume=True, quiet=True)
    assert train(later, path, resume=True, quiet=True).steps == 60


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_resume_after_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """A run stopped by Ctrl-C, SIGTERM, SIGHUP or SIGKILL resumes to the same file as an undisturbed one."""
    flags = ["--p", "11", "--embed-dim", "4", "--hidden", "8", "--batch-size", "20", "--steps", "1500", "--quiet"]
    flags += ["--checkpoint-every", "20", "--stop-test-accuracy", "1.0", "--extra-steps", "9999"]
    command = ["train", *flags, "--out"]
    whole, broken = tmp_path / "whole.h5", tmp_path / "broken.h5"
    kill = Kill(at=1100, number=number)
    assert run_apart(tmp_path, [*command, str(broken)], kill).code == kill.code
    with RunReader(broken) as reader:
        assert reader.attrs["status"] == ("running" if number == signal.SIGKILL else "interrupted")
        assert 100 <= reader.steps[-1] < 1500
        for step in reader.steps:
            reader.checkpoint(step)
    assert cli.run([*command, str(broken), "--resume"]) == 0
    assert cli.run([*command, str(whole)]) == 0
    same_file(whole, broken)


@pytest.mark.slow
def test_the_demo_preset_groks_on_every_seed(tmp_path: Path) -> None:
    """Seeds 0 to 9 reach 95 % on the test set, after at least three times the steps of 99 % on the training set."""
    runs = {tmp_path / f"{seed}.h5": dataclasses.replace(preset("demo"), seed=seed) for seed in range(10)}
    for summary in train_ensemble(runs, quiet=True):
        assert summary.memorise_step is not None
        assert summary.grok_step is not None
        assert summary.grok_step >= 3 * summary.memorise_step
