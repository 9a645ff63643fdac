"""The Hessian file against matrices made independently from the run file's own parameters."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from torch import Tensor, nn

from landscape import models
from landscape.cli.tables import measurements
from landscape.config import HessianConfig, TrainConfig
from landscape.curvature.density import density_grid, density_of
from landscape.errors import ConfigError, LandscapeError, NumericsError
from landscape.measure import verify
from landscape.measure.measurement import Measurement
from landscape.measure.quantities import density
from landscape.models.embedding_mlp.blocks import BLOCKS, PAIRS
from landscape.training.loop import train

ALL_BLOCKS = tuple(BLOCKS)


def read_with_h5py(path: Path, step: int) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
    """Parameters at a step, training tokens and labels, config: by h5py alone."""
    with h5py.File(path) as file:
        row = list(file["checkpoints/step"][()]).index(step)
        group = file["checkpoints"]
        params = {n: torch.from_numpy(group[n][row]).double() for n in ("E", "W", "b1", "V", "b2") if n in group}
        rows = file["data/split"][()] == 0
        tokens, labels = (torch.from_numpy(file["data"][n][rows]).long() for n in ("tokens", "labels"))
        return params, tokens, labels, json.loads(file.attrs["config"])


def dense_hessian(path: Path, step: int, decay: float = 0.0) -> tuple[Tensor, Tensor, dict[str, slice]]:
    """Hessian and gradient over all parameters, by autograd of an ordinary PyTorch forward pass."""
    params, tokens, labels, config = read_with_h5py(path, step)
    sizes = [p.numel() for p in params.values()]

    def loss(flat: Tensor) -> Tensor:
        P = dict(
            zip(params, (v.view_as(p) for v, p in zip(flat.split(sizes), params.values(), strict=True)), strict=True)
        )
        if config["model"] == "embedding":
            z = nn.functional.embedding(tokens, P["E"])
        elif config["model"] in ("onehot", "tables"):
            z = nn.functional.one_hot(tokens, config["p"]).double()
        else:
            z = tokens.double()[:, :, None]
        hidden = torch.relu(nn.functional.linear(z.flatten(1), P["W"], P["b1"]))
        logits = nn.functional.linear(hidden, P["V"], P["b2"])
        return nn.functional.cross_entropy(logits, labels) + decay / 2 * flat.square().sum()

    at = torch.cat([p.reshape(-1) for p in params.values()])
    ends = np.cumsum([0, *sizes])
    where = {n: slice(a, b) for n, a, b in zip(params, ends, ends[1:], strict=False)}
    return torch.autograd.functional.hessian(loss, at), torch.func.grad(loss)(at), where


def pick(where: dict[str, slice], block: str) -> Tensor:
    return torch.cat([torch.arange(where[n].start, where[n].stop) for n in BLOCKS[block] if n in where])


@pytest.mark.parametrize("step", [0, 20, 60])
def test_every_eigenvalue_agrees_with_an_independent_dense_hessian(
    tiny_run: Path, tiny_hessian: HessianReader, step: int
) -> None:
    """Every reported eigenvalue of every block, the full spectra, inertia and norms, to 1e-9 relative."""
    H, g, where = dense_hessian(tiny_run, step)
    row = tiny_hessian.row(step)
    for i, block in enumerate(tiny_hessian.blocks):
        at = pick(where, block)
        values, vectors = np.linalg.eigh(H[at][:, at].numpy())
        norm = np.abs(values).max()
        k = row["eigenvalues"].shape[2]
        np.testing.assert_allclose(row["eigenvalues"][i], [values[:k], values[::-1][:k]], atol=1e-9 * norm, rtol=0)
        np.testing.assert_allclose(tiny_hessian.spectra(step)[block], values, atol=1e-9 * norm, rtol=0)
        tau = row["inertia_tolerance"][i]
        assert tau == pytest.approx(1e-8 * norm, rel=1e-6)
        counts = [(values < -tau).sum(), (abs(values) <= tau).sum(), (values > tau).sum()]
        assert row["inertia"][i].tolist() == counts
        assert row["inertia_lower"][i] == row["inertia_upper"][i] == counts[0]
        assert row["grad_norm"][i] == pytest.approx(float(g[at].norm()), rel=1e-10)
        assert row["residual_norm"][i].max() <= 1e-12 * norm
        if values[1] - values[0] > 1e-6 * norm:
            masses = dict.fromkeys(("E", "W", "V", "bias"), 0.0)
            at_list = at.tolist()
            for name, span in where.items():
                inside = [j for j, a in enumerate(at_list) if span.start <= a < span.stop]
                masses[name if name in masses else "bias"] += float((vectors[inside, 0] ** 2).sum())
            np.testing.assert_allclose(row["bottom_mass"][i], list(masses.values()), atol=1e-6)


@pytest.mark.parametrize("step", [0, 60])
def test_ratios_and_couplings_recomputed(tiny_run: Path, tiny_hessian: HessianReader, step: int) -> None:
    """Curvature, gradient and Proposition 4.1 ratios, coupling strength and ratios, each from its definition."""
    H, g, where = dense_hessian(tiny_run, step)
    params, _, _, _ = read_with_h5py(tiny_run, step)
    row = tiny_hessian.row(step)
    sub = lambda a, b: H[where[a], where[b]].numpy()  # noqa: E731
    top = lambda a: np.linalg.norm(sub(a, a), 2)  # noqa: E731
    sigma = {n: np.linalg.norm(params[n].numpy(), 2) for n in ("E", "W")}
    assert row["curvature_ratio"] == pytest.approx(top("W") / top("E"), rel=1e-9)
    assert row["curvature_ratio_predicted"] == pytest.approx((sigma["E"] / sigma["W"]) ** 2, rel=1e-9)
    assert row["gradient_ratio"] == pytest.approx(float(g[where["W"]].norm() / g[where["E"]].norm()), rel=1e-9)
    assert row["gradient_ratio_predicted"] == pytest.approx(sigma["E"] / sigma["W"], rel=1e-9)
    if step:
        with h5py.File(tiny_run) as file:
            count = file["tokens/count"][list(file["tokens/step"][()]).index(step)]
        assert row["prop41_ratio"] == pytest.approx(sigma["E"] / sigma["W"] / (count.mean() / step), rel=1e-9)
    else:
        assert np.isnan(row["prop41_ratio"])
    for i, (a, b) in enumerate((("E", "W"), ("W", "V"), ("E", "V"))):
        strength = np.linalg.norm(sub(a, b), 2) / np.sqrt(top(a) * top(b))
        assert row["coupling_strength"][i] == pytest.approx(strength, rel=1e-5)
        tau = row["inertia_tolerance"][tiny_hessian.blocks.index(f"{a},{b}")]
        root = [np.linalg.inv(np.linalg.cholesky(sub(x, x) + tau * np.eye(len(sub(x, x))))) for x in (a, b)]
        kappa = np.linalg.svd(root[0] @ sub(a, b) @ root[1].T, compute_uv=False)
        leading = row["coupling_ratios"][i]
        np.testing.assert_allclose(leading, kappa[: len(leading)], rtol=1e-5)
        # F0 on a trained net.
        assert row["coupling_index"][i] == row["inertia"][tiny_hessian.blocks.index(f"{a},{b}")][0]
    # F14 in the file.
    joint = tiny_hessian.blocks.index("E,W")
    assert -row["saddle_bound"] <= row["eigenvalues"][joint, 0, 0] < 0
    assert row["inertia"][joint, 0] <= row["saddle_rank_bound"]


@pytest.mark.slow
def test_regularised_objective_shifts_by_the_decay(tiny_run: Path, tmp_path: Path) -> None:
    """L + wd/2 |theta|^2 has every eigenvalue wd higher; its gradient has wd theta more."""
    config = HessianConfig(steps="60", objective="regularised", blocks=("E", "all"), k=10)
    row = analyse(tiny_run, config, tmp_path / "r.h5", quiet=True).row(60)
    H, g, where = dense_hessian(tiny_run, 60, decay=TINY.weight_decay)
    for i, block in enumerate(("E", "all")):
        at = pick(where, block)
        values = np.linalg.eigvalsh(H[at][:, at].numpy())
        np.testing.assert_allclose(row["eigenvalues"][i, 0], values[:10], atol=1e-10)
        assert row["grad_norm"][i] == pytest.approx(float(g[at].norm()), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "objective"), [("gelu", "data"), ("relu", "regularised")])
def test_no_saddle_bound_where_f14_does_not_hold(activation: Any, objective: Any, tmp_path: Path) -> None:
    """The bound is for ReLU and the data loss; elsewhere the file says that there is none."""
    run = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, activation=activation), run, quiet=True)
    row = analyse(run, HessianConfig(steps="60", blocks=("E,W",), objective=objective), quiet=True).row(60)
    assert np.isnan(row["saddle_bound"])
    assert row["saddle_rank_bound"] == -1


@pytest.mark.long
def test_matrix_free_agrees_with_dense(tiny_run: Path, tiny_hessian: HessianReader, tmp_path: Path) -> None:
    """method lanczos finds the dense eigenvalues within its residuals; its bracket holds the certified index."""
    config = HessianConfig(
        steps="60", method="lanczos", certify=True, density=True, blocks=ALL_BLOCKS, k=5, chunk_size=20, max_hvps=3000
    )
    result = analyse(tiny_run, config, tmp_path / "l.h5", quiet=True)
    row, dense = result.row(60), tiny_hessian.row(60)
    for i, block in enumerate(ALL_BLOCKS):
        j = tiny_hessian.blocks.index(block)
        norm = dense["operator_norm"][j]
        np.testing.assert_allclose(row["eigenvalues"][i], dense["eigenvalues"][j][:, :5], atol=2e-6 * norm, rtol=0)
        assert result.converged(60, i)
        assert row["num_products"][i] > 0
        spectrum = tiny_hessian.spectra(60)[block]
        true_index = (spectrum < -row["inertia_tolerance"][i]).sum()
        assert row["inertia_lower"][i] <= true_index <= row["inertia_upper"][i]
        exact = row["inertia_lower"][i] == row["inertia_upper"][i]
        assert row["inertia"][i].tolist() == [true_index if exact else -1, -1, -1]
        assert row["inertia_failure_probability"][i] <= 1e-3
    np.testing.assert_allclose(row["coupling_strength"], dense["coupling_strength"], rtol=1e-5)
    assert result.spectra(60) == {}
    words = ">= matrix-free: a lower bound without a known upper one"
    assert words in measurements(result)
    assert ">=" not in measurements(tiny_hessian)
    at = [tiny_hessian.blocks.index(block) for block in ALL_BLOCKS]
    away = np.abs(row["jensen_shannon"] - dense["jensen_shannon"][np.ix_(at, at)])
    assert (away <= row["jensen_shannon_error"] + 1e-12).mean() >= 0.9
    assert 0 < row["jensen_shannon_error"].max() < 0.3
    assert not dense["jensen_shannon_error"].any()
    # Coupling ratios by inner solves: each within its distance of one of the whitened dense coupling.
    H, _, where = dense_hessian(tiny_run, 60)
    for i, pair in enumerate(PAIRS):
        first, second = (pick(where, name) for name in pair)
        tau = row["inertia_tolerance"][ALL_BLOCKS.index(",".join(pair))]
        roots = []
        for at in (first, second):
            values, vectors = np.linalg.eigh(H[at][:, at].numpy())
            roots.append(vectors / np.sqrt(values + tau) @ vectors.T)
        true = np.linalg.svd(roots[0] @ H[first][:, second].numpy() @ roots[1], compute_uv=False)
        ratios, distances = row["coupling_ratios"][i], row["coupling_ratio_distance"][i]
        assert np.isnan(row["coupling_ratio_error"][i]).all()
        assert (ratios <= true[:5] * (1 + 1e-9)).all()
        assert (np.abs(ratios[:, None] - true).min(1) <= distances + 1e-9 * true[0]).all()
        np.testing.assert_allclose(ratios[0], true[0], rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["onehot", "tables", "scalar"])
def test_models_without_an_embedding(model: Any, tmp_path: Path) -> None:
    """One-hot inputs, tables and scalar inputs have blocks W, V, W,V and all; block E is refused with those named."""
    run = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, model=model, p=5, hidden=6), run, quiet=True)
    blocks = ("W", "V", "W,V", "all")
    result = analyse(run, HessianConfig(steps="60", blocks=blocks, k=10), quiet=True)
    H, _, where = dense_hessian(run, 60)
    for i, block in enumerate(blocks):
        at = pick(where, block)
        values = np.linalg.eigvalsh(H[at][:, at].numpy())
        k = min(10, len(values))
        norm = np.abs(values).max()
        np.testing.assert_allclose(result.row(60)["eigenvalues"][i, 0, :k], values[:k], atol=1e-9 * norm)
    with pytest.raises(ConfigError, match=f"the {model} model has no block 'E'"):
        analyse(run, HessianConfig(blocks=("E",)), tmp_path / "x.h5", quiet=True)


@pytest.mark.slow
def test_verify_agrees_and_notices_a_wrong_number(tiny_run: Path, tmp_path: Path) -> None:
    """PyHessian's top eigenvalue and a plain model's dense Hessian confirm the file, and not an altered one."""
    config = HessianConfig(steps="60", blocks=("E", "E,W"), objective="regularised")
    result = analyse(tiny_run, config, tmp_path / "h.h5", quiet=True)
    for opinion in verify.verify(tiny_run, result):
        assert opinion.agrees
        assert opinion.dense_difference is not None
        assert opinion.pyhessian == pytest.approx(opinion.largest, rel=1e-3)
    result.row(60)["eigenvalues"][0, 0, 3] *= 1 + 1e-6
    assert [o.agrees for o in verify.verify(tiny_run, result)] == [False, True]


def test_a_wrong_closed_form_is_caught(tiny_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every closed-form block is compared with Hessian-vector products before it is used."""
    from landscape.models.embedding_mlp import closed_form

    monkeypatch.setattr(closed_form.EmbeddingMLP, "_add_WV", lambda *args: None)
    with pytest.raises(NumericsError, match="closed form and automatic differentiation differ by"):
        analyse(tiny_run, HessianConfig(blocks=("W,V",)), tmp_path / "h.h5", quiet=True)


def test_adamw_has_no_regularised_objective() -> None:
    """Decoupled decay is no term of the loss; asking for its Hessian is an error."""
    data = {"tokens": np.zeros((1, 2), np.int32), "labels": np.zeros(1, np.int32), "split": np.zeros(1, np.int8)}
    with pytest.raises(ConfigError, match="adamw decouples its decay"):
        Measurement.of(models.of_config(TrainConfig(optimizer="adamw"), data), HessianConfig(objective="regularised"))


def test_a_refused_tolerance_leaves_no_file(tiny_run: Path, tmp_path: Path) -> None:
    """The same command with a valid tolerance begins one."""
    out = tmp_path / "x.h5"
    with pytest.raises(LandscapeError, match="tau 1.0e-30 is below the error"):
        analyse(tiny_run, HessianConfig(steps="0", blocks=("E",), rel_tau=1e-30), out, quiet=True)
    assert not out.exists()
    assert analyse(tiny_run, HessianConfig(steps="0", blocks=("E",)), out, quiet=True).steps == [0]


def test_bandwidths_that_the_grid_of_densities_does_not_resolve_are_refused(
    tiny_run: Path, tmp_path: Path, assert_refused: Refusal
) -> None:
    """Down to the finest one sums over the points are integrals, wherever a peak lies between two of them."""
    for bandwidth in (density.FINEST, 0.001):
        grid, width = density_grid(1.0, bandwidth, density.POINTS)
        spacing = grid[1] - grid[0]
        peaks = grid[255] + spacing * np.linspace(0, 1, 9)
        mass = [spacing * density_of(np.array([peak]), grid, width).sum() for peak in peaks]
        assert (np.abs(np.array(mass) - 1).max() < 1e-8) == (bandwidth >= density.FINEST)
    asked = ["hessian", tiny_run, "--bandwidth", 0.0039, "--out", tmp_path / "h.h5"]
    assert_refused(asked, 2, "bandwidth is 0.0039, but densities have 512 points", "raise --bandwidth to 0.004 or more")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients(mode: type[torch.no_grad | torch.inference_mode], tmp_path: Path) -> None:
    """Such as a loop that evaluates: analyses are those of any other caller."""
    config = HessianConfig(blocks=("E,W",), k=2, steps="20", device="cpu")
    train(TINY, run := tmp_path / "run.h5", quiet=True)
    usual = analyse(run, config, tmp_path / "usual.h5", quiet=True)
    with mode():
        reader = analyse(run, config, tmp_path / "found.h5", quiet=True)
        assert all(opinion.agrees for opinion in verify.verify(run, reader))
    for name, value in usual.rows(20)["spectrum"].items():
        np.testing.assert_array_equal(reader.rows(20)["spectrum"][name], value)
