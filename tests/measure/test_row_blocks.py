"""Blocks of some rows of a parameter: E on the operands alone, and on the tokens that every sample holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from helpers.marking import slow

from landscape import ModuleProblem, models
from landscape.cli import main as cli
from landscape.cli.tables import verification
from landscape.config import AnalysisConfig, HessianConfig, SliceConfig, Spectra
from landscape.curvature.operators import HessianOperator
from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.measure import tables
from landscape.measure.measurement import Measurement
from landscape.measure.slices import slice as slice_checkpoint
from landscape.measure.verify import AGREEMENT, verify
from landscape.models.problem import tensors
from landscape.training.loop import train

P, D, H = 5, 4, 16
STEP = 40
BLOCKS = ("E[operands]", "E[constants]", "E[operands],W", "E[constants],W", "E[2:4]", "E[1:],V")


@pytest.fixture(scope="module")
def four_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a op b =, whose embedding has a row for each operand and two for op and =. Read only."""
    path = tmp_path_factory.mktemp("rows") / "run.h5"
    train(dataclasses.replace(TINY, p=P, tokens=4, embed_dim=D, hidden=H, steps=STEP), path, quiet=True)
    return path


@pytest.fixture(scope="module")
def whole(four_tokens: Path) -> tuple[dict[str, range], torch.Tensor]:
    """The rows of the dense Hessian over all parameters that belong to each, and that matrix, by autograd."""
    with RunReader(four_tokens) as reader:
        problem = models.of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(STEP))
        matrix = HessianOperator(problem.objective(0.0), params).dense()
    start, rows = 0, {}
    for name, value in params.items():
        rows[name] = range(start, start + value.numel())
        start += value.numel()
    return rows, matrix


def picked(block: str, rows: dict[str, range]) -> list[int]:
    """The rows of the dense Hessian that make up one of BLOCKS."""
    E = rows["E"]
    tokens = {
        "E[operands]": range(P),
        "E[constants]": range(P, P + 2),
        "E[2:4]": range(2, 4),
        "E[1:]": range(1, P + 2),
    }
    picks: list[int] = []
    for part in block.split(","):
        picks += E[D * tokens[part].start : D * tokens[part].stop] if part in tokens else rows[part]
    return picks


@pytest.mark.slow
@pytest.mark.parametrize(("method", "spectra"), [("dense", "full"), slow("dense", "ends"), slow("lanczos", "auto")])
def test_rows_are_measured_as_any_block(
    method: str, spectra: Spectra, four_tokens: Path, whole: tuple[dict[str, range], torch.Tensor], tmp_path: Path
) -> None:
    """Ends, index, gradient, masses and couplings are those of the rows and columns of the dense Hessian."""
    config = HessianConfig(blocks=BLOCKS, k=3, steps=str(STEP), device="cpu", spectra=spectra)
    result = analyse(four_tokens, dataclasses.replace(config, method=method), tmp_path / "h.h5", quiet=True)
    assert result.blocks == list(BLOCKS)
    assert result.pairs[-3:] == ["E[operands],W", "E[constants],W", "E[1:],V"]
    rows, matrix = whole
    row = result.row(STEP)
    with RunReader(four_tokens) as reader:
        problem = models.of_run(reader, "cpu")
        gradient = problem.objective(0.0).gradient(tensors(problem, reader.checkpoint(STEP)))
    flat = torch.cat([g.reshape(-1) for g in gradient.values()])
    for i, block in enumerate(BLOCKS):
        at = picked(block, rows)
        values = np.linalg.eigvalsh(matrix[at][:, at].numpy())
        scale = np.abs(values).max()
        reach = 1e-12 * scale if method == "dense" and spectra == "full" else 1e-5 * scale
        assert np.abs(row["eigenvalues"][i, 0] - values[:3]).max() <= reach
        assert np.abs(row["eigenvalues"][i, 1] - values[::-1][:3]).max() <= reach
        below = int((values < -row["inertia_tolerance"][i]).sum())
        assert row["inertia_lower"][i] <= below <= row["inertia_upper"][i]
        assert method == "lanczos" or row["inertia"][i, 0] == below
        assert row["saddle_index_gauge_free"][i] == -1
        assert row["grad_norm"][i] == pytest.approx(float(flat[at].norm()), rel=1e-12)
        assert row["bottom_mass"][i].sum() == pytest.approx(1.0)
        only_E = block.partition(",")[1] == ""
        assert (row["bottom_mass"][i][result.parts.index("E")] > 1 - 1e-9) == only_E
    for j, pair in enumerate(result.pairs):
        if pair not in BLOCKS or method == "lanczos":
            continue
        first, second = (picked(part, rows) for part in pair.split(","))
        tau = row["inertia_tolerance"][BLOCKS.index(pair)]
        roots = []
        for at in (first, second):
            shifted = matrix[at][:, at] + tau * torch.eye(len(at), dtype=torch.float64)
            lowest = float(torch.linalg.eigvalsh(shifted)[0])
            roots.append(torch.linalg.cholesky(shifted) if lowest > 0 else None)
        if roots[0] is None or roots[1] is None:
            assert np.isnan(row["coupling_ratios"][j]).all()
            continue
        half = torch.linalg.solve_triangular(roots[0], matrix[first][:, second], upper=False)
        ratios = torch.linalg.svdvals(torch.linalg.solve_triangular(roots[1], half.T, upper=False)).numpy()
        np.testing.assert_allclose(row["coupling_ratios"][j][:3], ratios[:3], rtol=1e-6)


@pytest.mark.slow
def test_f15_constant_tokens_have_the_curvature_of_a_bias(four_tokens: Path, tmp_path: Path) -> None:
    """F15: without a Gauss-Newton part, op and = have the eigenvalue -|dL/db1| with the columns that read them."""
    with RunReader(four_tokens) as reader:
        problem = models.of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(STEP))
        residual = HessianOperator(problem.objective(0.0), params, part="residual").block(["E", "W"]).dense()
        bias = float(problem.objective(0.0).gradient(params)["b1"].norm())
    at = [*range(D * P, D * (P + 2)), *range(D * (P + 2), len(residual))]
    values = np.linalg.eigvalsh(residual[at][:, at].numpy())
    assert values[: 2 * D] == pytest.approx([-bias] * 2 * D, rel=1e-12)
    assert np.abs(values[2 * D : -2 * D]).max() < 1e-12 * bias


@pytest.mark.slow
def test_all_rows_are_the_parameter(tiny_run: Path, tmp_path: Path) -> None:
    """Two tokens: every token is an operand, and the block is that of E, bit for bit."""
    config = HessianConfig(blocks=("E", "E[operands]", "E[0:7]"), k=3, steps="60", device="cpu")
    row = analyse(tiny_run, config, tmp_path / "h.h5", quiet=True).row(60)
    for name in ("eigenvalues", "inertia", "grad_norm", "eigenvector_mass"):
        assert row[name][0].tobytes() == row[name][1].tobytes() == row[name][2].tobytes(), name


@pytest.mark.long
def test_rows_in_other_commands(four_tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slice`, `critical`, `--verify` and `report` take them; what is verified agrees with the dense Hessian."""
    monkeypatch.chdir(tmp_path)
    slices = slice_checkpoint(four_tokens, STEP, SliceConfig(block="E[operands],W", k=1), AnalysisConfig(device="cpu"))
    assert slices.agreement < 1e-6
    out = tmp_path / "run.hessian.h5"
    argv = ["hessian", str(four_tokens), "--out", str(out), "--steps", str(STEP), "--k", "3", "--certify", "--quiet"]
    assert cli.run([*argv, "--blocks", "E", "E[operands]", "E[operands],W"]) == 0
    result = HessianReader(out)
    title, line = tables.by_step(result)
    strength = result.row(STEP)["coupling_strength"][result.pairs.index("E[operands],W")]
    assert line[title.index("coupling")] == f"{strength:.4g}"
    assert "kappa, excess index and coupling are those of E[operands],W" in tables.notes(result)
    opinions = verify(four_tokens, result)
    assert [o.agrees for o in opinions] == [True] * 3
    assert [np.isnan(o.pyhessian) for o in opinions] == [False, True, True]
    assert "nan" not in verification(opinions)
    assert max(o.dense_difference or 0 for o in opinions) < AGREEMENT
    assert cli.run(["report", str(out), "--out", "page", "--quiet"]) == 0
    assert "E[operands],W" in (tmp_path / "page/report.html").read_text()
    argv = ["critical", str(four_tokens), "--step", str(STEP), "--out", "point.h5", "--search-hvps", "300"]
    assert cli.run([*argv, "--blocks", "E[operands]", "--k", "2", "--quiet"]) in (0, 3)
    assert HessianReader(tmp_path / "point.h5").blocks == ["E[operands]"]


@pytest.mark.parametrize(
    ("block", "error", "hint"),
    [
        ("E[operand]", "E[operand]: E has no rows 'operand'", "did you mean E[operands]?"),
        ("E[0:9]", "E[0:9] is no range within 0:7, the rows of E", "the one after the last: E[0:7]"),
        ("E[3:3]", "E[3:3] is no range within 0:7, the rows of E", "the one after the last: E[0:7]"),
        ("W[first]", "W[first]: W has no rows 'first'", "known: W[0:8]"),
        ("E[constants]", "E[constants]: E has no rows 'constants'", "E[operands]"),
        ("E[3]", "E[3]: E has no rows '3'", "did you mean E[0:7]?"),
        ("E[-1:]", "E[-1:]: E has no rows '-1:'", "did you mean E[0:7]?"),
        ("E[0:4],E[3:7]", "both sides hold E[3:4]", "join blocks without a common parameter or row"),
        ("E,E[3:7]", "both sides hold E[3:7]", "join blocks without a common parameter or row"),
        ("Q[0:2]", "the embedding model has no block 'Q[0:2]'", "known: "),
    ],
)
def test_rows_that_are_not_there(
    block: str, error: str, hint: str, tiny_run: Path, tmp_path: Path, assert_refused: Refusal
) -> None:
    """What was wrong, and what there is; nothing is written."""
    out = tmp_path / "h.h5"
    assert_refused(["hessian", tiny_run, "--out", out, "--blocks", block], 2, error, hint, [tiny_run])
    assert not out.exists()


def test_a_modules_blocks_may_be_rows() -> None:
    """Blocks of a ModuleProblem are declared by rows, too; no row may stand twice."""
    model = torch.nn.Sequential(torch.nn.Embedding(6, 2), torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    x, y = torch.arange(6).reshape(3, 2), torch.arange(3)
    problem = ModuleProblem(
        model, x, y, blocks={"some": ["0.weight[0:2]", "0.weight[4:]"], "out": "2.*"}, pairs=[("some", "out")]
    )
    assert problem.blocks["some"] == ("0.weight[0:2]", "0.weight[4:6]")
    assert problem.blocks["some,out"] == ("0.weight[0:2]", "0.weight[4:6]", "2.weight", "2.bias")
    with pytest.raises(ArgumentError, match=r"block 'some' holds 0.weight\[1:2\] twice\nhint: name each row once"):
        ModuleProblem(model, x, y, blocks={"some": ["0.weight[0:2]", "0.weight[1:]"]})
    with pytest.raises(ArgumentError, match=r"pair a,b: both blocks hold 0.weight\[1:3\]"):
        ModuleProblem(model, x, y, blocks={"a": ["0.weight"], "b": ["0.weight[1:3]"]}, pairs=[("a", "b")])


@pytest.mark.slow
def test_each_rows_bound_is_reported(four_tokens: Path, tmp_path: Path) -> None:
    """F14 on rows of E, F15: that of op and = is |dL/db1|; it holds for the block, and is none without such tokens."""
    out = tmp_path / "h.h5"
    blocks = ("E,W", "E[operands],W", "E[constants],W")
    row = analyse(four_tokens, HessianConfig(blocks=blocks, steps=str(STEP), device="cpu"), out, quiet=True).row(STEP)
    with RunReader(four_tokens) as reader:
        problem = models.of_run(reader, "cpu")
        params = tensors(problem, reader.checkpoint(STEP))
        gradient = problem.objective(0.0).gradient(params)
        structure = problem.structure(params, 0.0)
    assert row["saddle_bound_constants"] == pytest.approx(float(gradient["b1"].norm()), rel=1e-12)
    whole = max(row["saddle_bound_constants"], row["saddle_bound_operands"])
    assert row["saddle_bound"] == pytest.approx(whole, rel=1e-12)
    depth = -row["eigenvalues"][:, 0, 0]
    assert (
        depth * (1 - 1e-12) <= [row["saddle_bound"], row["saddle_bound_operands"], row["saddle_bound_constants"]]
    ).all()
    assert structure is not None
    inside = structure.bounds(("E[1:4]", "W"))
    assert 0 < inside["saddle_bound"] <= row["saddle_bound_operands"] * (1 + 1e-12)
    assert 0 < inside["saddle_rank_bound"] <= 3 * D
    assert structure.bounds(("E", "W[0:3]")) == structure.bounds(("W", "V")) == {}


def test_without_constant_tokens_there_is_no_bound_on_them(tiny_hessian: HessianReader) -> None:
    """Two operands alone: the whole bound is theirs."""
    row = tiny_hessian.row(60)
    assert np.isnan(row["saddle_bound_constants"])
    assert row["saddle_bound_operands"] == row["saddle_bound"]


@pytest.mark.parametrize(("limit", "order"), [(8000, (P + 2) * D + 4 * D * H), (280, P * D + 4 * D * H)])
def test_memory_is_counted_for_what_is_assembled(limit: int, order: int, four_tokens: Path) -> None:
    """Rows are cut from the matrix of whole parameters where that is dense; else they are assembled by products."""
    with RunReader(four_tokens) as reader:
        problem = models.of_run(reader, "cpu")
    config = HessianConfig(blocks=("E[operands],W",), dense_limit=limit, device="cpu")
    what = Measurement.of(problem, config)
    assert what.order(what.blocks[0]) == order
