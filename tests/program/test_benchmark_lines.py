"""The verdicts of comparisons with other tools, from numbers made by hand, and these comparisons on a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import dense, eigenvalues, index, peers
from benchmarks.harness import Line
from landscape import TrainConfig

Numbers = dict[str, Any]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> peers.Case:
    """A network of 98 parameters after three steps."""
    monkeypatch.setattr(peers, "CACHE", tmp_path)
    config = TrainConfig(p=7, embed_dim=3, hidden=5, batch_size="full", train_fraction=0.6)
    return peers.case.__wrapped__(config, 3)


def search(seconds: float, pairs: int = 20, **more: Any) -> Numbers:
    """What a search left, with a residual that suits."""
    residual = 1e-8 if pairs == 20 else 1e-3
    return {"seconds": seconds, "pairs": pairs, "wanted": 20, "residual": residual, "beyond": 0, **more}


def ends(preset: str = "mid", **changed: Any) -> list[Line]:
    """Lines of one block: ours takes 2 s; curvlinops 8 s, hessian-eigenthings 5 s; PyHessian 30 s beside our 1 s."""
    top = [
        {"max_iter": 100, "tol": 1e-3, "rtol": 4e-3, "PyHessian": search(30.0, 0), "landscape": search(1.0)},
        {"max_iter": 200, "tol": 1e-6, "rtol": 2e-3, "PyHessian": search(90.0, 3), "landscape": search(1.5)},
    ]
    part = {
        "preset": preset,
        "block": "E",
        "order": 3904,
        "landscape": search(2.0),
        "curvlinops": search(8.0, run="BE"),
        "hessian-eigenthings": search(5.0, steps=200),
        "top": top,
    }
    return list(eigenvalues.lines({f"{preset} E": part | changed}))


def test_a_search_that_is_slower_by_the_target_meets_it() -> None:
    """One line per tool; each has its ratio and how the other tool searched."""
    curvlinops, eigenthings, pyhessian = ends()
    assert [line.row for line in (curvlinops, eigenthings, pyhessian)] == ["5"] * 3
    assert {line.part for line in (curvlinops, eigenthings, pyhessian)} == {"mid E"}
    assert (curvlinops.target, curvlinops.met) == ("≥ 3×", True)
    assert curvlinops.what == "10 eigenvalues at each end, mid, E (n = 3,904), curvlinops"
    expected = (
        "4×; landscape: 2 s, largest residual 1e-08; curvlinops, one run for both ends: 8 s, largest residual 1e-08"
    )
    assert curvlinops.result == expected
    assert (eigenthings.target, eigenthings.met) == ("–", None)
    assert eigenthings.result.startswith("2.5×; ")
    assert "hessian-eigenthings, 200 steps: 5 s" in eigenthings.result
    assert (pyhessian.target, pyhessian.met) == ("≥ 10×", True)
    assert pyhessian.what == "20 highest eigenvalues, mid, E (n = 3,904), PyHessian"


def test_a_search_that_is_not_slower_by_the_target_does_not_meet_it() -> None:
    """By any tool that has one; for quick there is none."""
    curvlinops, _, _ = ends(curvlinops=search(5.9, run="shifted"))
    assert curvlinops.met is False
    assert "curvlinops, a run for each end: 5.9 s" in curvlinops.result
    assert {(line.target, line.met) for line in ends("quick")} == {("–", None)}


def test_pyhessian_is_compared_at_its_faster_setting() -> None:
    """Whichever was run first: its ratio is the line's, beside our search to the residual which it reached."""
    slow = {"max_iter": 100, "tol": 1e-3, "rtol": 4e-3, "PyHessian": search(30.0, 0), "landscape": search(1.0)}
    fast = {"max_iter": 200, "tol": 1e-6, "rtol": 2e-3, "PyHessian": search(9.0, 3), "landscape": search(1.0)}
    for top in ([slow, fast], [fast, slow]):
        line = ends(top=top)[2]
        assert line.met is False
        assert line.result == (
            "9×; maxIter=200, tol=1e-06: 9 s, largest residual 1e-03, 3 of 20 pairs at 1e-06 (landscape, searching to "
            "2e-03: 1 s, largest residual 1e-08); maxIter=100, tol=0.001: 30 s, largest residual 1e-03, 0 of 20 pairs "
            "at 1e-06 (landscape, searching to 4e-03: 1 s, largest residual 1e-08)"
        )


def test_a_search_that_stopped_gives_a_lower_bound() -> None:
    """It counts if it is large enough; a search of ours that did not find its pairs never does."""
    for seconds, met in ((8.0, True), (5.0, False)):
        line = ends(curvlinops=search(seconds, 12, run="shifted"))[0]
        assert line.result.startswith(f"> {seconds / 2:.2g}×; ")
        assert f"not finished, stopped after {seconds:g} s with 12 of 20 pairs at 1e-06" in line.result
        assert line.met is met
    line = ends(landscape=search(2.0, 19))[0]
    assert line.result.startswith("4×; landscape: not finished")
    assert line.met is False
    top = [{"max_iter": 1, "tol": 1.0, "rtol": 1e-2, "PyHessian": search(30.0, 0), "landscape": search(1.0, 19)}]
    line = ends(top=top)[2]
    assert "landscape, searching to 1e-02: not finished, stopped after 1 s with 19 of 20 pairs at 1e-02" in line.result
    assert line.met is False


def test_eigenvalues_that_we_missed_are_a_disagreement() -> None:
    """Said, and not met, however fast we were."""
    line = ends(curvlinops=search(8.0, run="BE") | {"beyond": 2})[0]
    assert line.result.endswith("not the same: 2 of its eigenvalues lie further out than ours")
    assert line.met is False


def test_pairs_are_those_at_the_ends() -> None:
    """One copy of a double eigenvalue counts once; a value further in does not count; one further out is noticed."""
    ours = [[-5.0, -4.0], [9.0, 9.0]]
    for theirs, pairs, further in (
        ([9.0, -4.0, 9.0, -5.0], 4, 0),
        ([9.0, 8.0, -5.0], 2, 0),
        ([9.0, 9.0, 9.0], 2, 0),
        ([10.0, 9.0, -5.0], 2, 1),
        ([9.0, -5.0, -4.5], 2, 1),
        ([], 0, 0),
    ):
        assert eigenvalues.matched(np.array(theirs), np.ravel(ours), 1e-6) == pairs
        assert eigenvalues.beyond(np.array(theirs), ours, 1e-6) == further
    assert eigenvalues.beyond(np.array([10.0, 9.0, -6.0]), ours[1:], 1e-6) == 1


def test_the_best_way_finds_most_pairs_and_is_then_the_fastest() -> None:
    """A faster way that finds fewer is none."""
    ways = {"a": search(1.0, 19), "b": search(3.0), "c": search(2.0)}
    assert eigenvalues.best(ways) == "c"


def test_dense_blocks_must_be_slower_and_equal() -> None:
    """Met, too fast a peer, and one that differs."""
    part = {
        "net": "quick",
        "order": 2992,
        "landscape": {"median": 0.5},
        "PyHessian": {"seconds": 25.0, "difference": 1e-15},
        "curvlinops": {"seconds": 24.0, "difference": 1e-15, "batch": 128},
        "torch.func": {"seconds": 50.0, "difference": 1e-11, "batch": 16},
    }
    lines = list(dense.lines({"quick": part}))
    assert [line.met for line in lines] == [True, False, False]
    assert {(line.row, line.target) for line in lines} == {("3", "≥ 50×, agreement ≤ 1e-12")}
    assert lines[0].what == "H_[E,W] of quick, n = 2,992, products with PyHessian"
    assert lines[1].result == "48× (0.50 s against 24 s, 128 at once); agreement 1e-15"
    assert lines[2].result == "100× (0.50 s against 50 s, 16 at once); agreement 1e-11"


def test_an_index_must_be_faster_certified_and_equal() -> None:
    """One line per net; each of the three conditions can fail."""
    seconds = {"landscape": {"median": 1.0}, "the index alone": {"median": 0.5}, "eigvalsh": {"median": 4.0}}
    counts = {"negative": 3, "zero": 0, "positive": 7, "eigvalsh_negative": 3, "eigvalsh_positive": 7}
    part = {"net": "quick", "order": 10, "level": "certified", "seconds": seconds, **counts}
    [line] = index.lines({"quick": part})
    assert (line.row, line.target, line.met) == ("4", "≥ 4×, certified", True)
    assert line.what == "n₋, n₀ and n₊ of H_[E,W], quick, n = 10"
    expected = "4.00× (1 s against 4 s); n₋ alone 8.00× (0.5 s); certified, n₋ = 3, n₊ = 7, as by eigvalsh"
    assert line.result == expected
    for changed in (
        {"seconds": seconds | {"landscape": {"median": 1.1}}},
        {"level": "estimated"},
        {"eigvalsh_positive": 6},
    ):
        [line] = index.lines({"quick": part | changed})
        assert line.met is False
        assert ("not as by eigvalsh" in line.result) == ("eigvalsh_positive" in changed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_every_tool_finds_the_ends_of_a_tiny_block(tiny: peers.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs by each, none beyond ours; what is reported is one of the ways that were tried."""
    monkeypatch.setattr(eigenvalues, "K", 3)
    monkeypatch.setattr(eigenvalues, "BASIS", 30)
    monkeypatch.setattr(eigenvalues, "STEPS", (20, 60, 600))
    monkeypatch.setattr(eigenvalues, "SETTINGS", ((100, 1e-3), (2000, 1e-15)))
    results = eigenvalues.compared(tiny, "all", 20.0)
    for tool in ("landscape", "curvlinops", "hessian-eigenthings"):
        assert (results[tool]["pairs"], results[tool]["wanted"]) == (6, 6), tool
        assert results[tool]["residual"] <= eigenvalues.TOLERANCE
    for tool, way in (("curvlinops", "run"), ("hessian-eigenthings", "steps")):
        tried = results[tool]["tried"]
        assert tried[str(results[tool][way])]["seconds"] == results[tool]["seconds"]
        assert results[tool]["beyond"] == 0
        assert len(tried) > 1, tool
    assert [way["pairs"] for way in results["curvlinops"]["tried"].values()] == [6, 6]
    assert [setting["max_iter"] for setting in results["top"]] == [100, 2000]
    loose, tight = results["top"]
    for setting in (loose, tight):
        assert setting["landscape"]["pairs"] == 6
        assert setting["landscape"]["residual"] <= setting["rtol"]
        assert setting["rtol"] == pytest.approx(np.clip(setting["PyHessian"]["residual"], 1e-8, 1e-2), rel=0.1)
        assert setting["PyHessian"]["beyond"] == 0
    assert loose["PyHessian"]["residual"] > tight["PyHessian"]["residual"]
    assert tight["PyHessian"]["pairs"] == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_every_tool_assembles_a_tiny_block(tiny: peers.Case) -> None:
    """The same matrix, and the fastest of the batches."""
    results = dense.compared(tiny)
    for tool in dense.HOW:
        assert results[tool]["difference"] <= dense.AGREEMENT, tool
    for tool, batches in dense.BATCHES.items():
        assert list(results[tool]["tried"]) == [str(batch) for batch in batches]
        assert results[tool]["seconds"] == results[tool]["tried"][str(results[tool]["batch"])]
        assert results[tool]["seconds"] == min(results[tool]["tried"].values())
