"""Rows of comparisons with other tools, from numbers made by hand, and these comparisons on a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import answer, dense, eigenvalues, index, peers
from benchmarks.harness import Row
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


def ends(**changed: Any) -> list[Row]:
    """Rows of one block: ours takes 2 s; curvlinops 8 s, hessian-eigenthings 5 s; PyHessian 30 s beside our 1 s."""
    slow = {"PyHessian": search(90.0, 3), "landscape": search(1.5)}
    fast = {"PyHessian": search(30.0, 0), "landscape": search(1.0)}
    tools = {"landscape": search(2.0), "curvlinops": search(8.0), "hessian-eigenthings": search(5.0)}
    return list(
        eigenvalues.rows(
            {"mid E": {"preset": "mid", "block": "E", "order": 3904, "top": [slow, fast], **tools} | changed}
        )
    )


def test_searches_are_compared_by_their_seconds() -> None:
    """One row for both ends, and one for the highest, with PyHessian's faster setting and ours to its residual."""
    both, top = ends()
    assert both.what == "10 eigenvalues at each end, mid, E (n = 3,904)"
    assert both.by == {"landscape": "2 s", "curvlinops": "8 s", "hessian-eigenthings": "5 s"}
    assert top.what == "20 highest, mid, E (n = 3,904), to PyHessian's largest residual, 1e-03"
    assert top.by == {"landscape": "1 s", "PyHessian": "30 s"}


def test_a_search_that_stopped_says_so() -> None:
    """Any tool's, also ours; and one that found eigenvalues which ours missed."""
    both, _ = ends(curvlinops=search(6.0, 12), landscape=search(2.0, 19))
    assert both.by["curvlinops"] == "> 6 s, 12 of 20 pairs"
    assert both.by["landscape"] == "> 2 s, 19 of 20 pairs"
    both, _ = ends(curvlinops=search(8.0) | {"beyond": 2})
    assert both.by["curvlinops"] == "8 s; 2 of its eigenvalues lie further out than ours"


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


def test_dense_blocks_are_compared_with_their_largest_difference() -> None:
    part = {
        "net": "quick",
        "order": 2992,
        "landscape": {"median": 0.5},
        "PyHessian": {"seconds": 25.0, "difference": 1e-15},
        "curvlinops": {"seconds": 24.0, "difference": 1e-15},
        "torch.func": {"seconds": 50.0, "difference": 1e-11},
    }
    [row] = dense.rows({"quick": part})
    assert row.what == "the block E,W of quick as a matrix, n = 2,992; all agree to 1e-11"
    assert row.by == {"landscape": "0.5 s", "PyHessian": "25 s", "curvlinops": "24 s", "plain torch": "50 s"}


def test_an_index_that_eigvalsh_contradicts_is_named() -> None:
    seconds = {"landscape": {"median": 1.0}, "the index alone": {"median": 0.5}, "eigvalsh": {"median": 4.0}}
    counts = {"negative": 3, "positive": 7, "eigvalsh_negative": 3, "eigvalsh_positive": 7}
    part = {"net": "quick", "order": 10, "level": "certified", "seconds": seconds, **counts}
    [row] = index.rows({"quick": part})
    assert row.what == "saddle index of E,W, quick, n = 10: certified here"
    assert row.by == {"landscape": "0.5 s", "plain torch": "4 s"}
    [row] = index.rows({"quick": part | {"eigvalsh_negative": 4}})
    assert row.what.endswith("certified here; (3, 7) here and (4, 7) by eigvalsh")


def test_a_forecast_is_beside_what_it_took() -> None:
    case = {"forecast": 10.0, "seconds": 5.0, "products": 45}
    rows = list(answer.rows({"forecast": dict.fromkeys(answer.CASES, case)}))
    assert len(rows) == 6
    assert rows[0].what == "`landscape hessian`: demo, 4 steps, all cores"
    assert rows[0].by == {"landscape": "5 s after a forecast of 10 s, 45 products"}


def test_an_end_counts_if_its_pair_is_right_and_the_outermost() -> None:
    """A small residual further in is no end, nor is a large one anywhere."""

    def tool(seconds: float, setting: Any, values: list[float], residuals: list[float]) -> Numbers:
        return {
            "seconds": {"median": seconds},
            "setting": setting,
            "products": 30,
            "values": values,
            "residuals": residuals,
        }

    tools = {
        "landscape": tool(2.0, 1e-3, [-1.0, 100.0], [1e-4, 1e-9]),
        "curvlinops": tool(3.0, 1e-3, [-2.0, 100.1], [2e-3, 1e-5]),
        "hessian-eigenthings": tool(1.0, 40, [-0.9, 99.0], [1e-3, 1e-5]),
        "PyHessian": tool(0.5, 1e-5, [90.0], [1e-4]),
    }
    [row] = answer.rows({"peers": {"order": 9, "norm": 100.0, "tools": tools}})
    assert row.by == {
        "landscape": "2 s, 30 products, λ_min and λ_max (rtol=1e-03)",
        "curvlinops": "3 s, 30 products, λ_max (eigsh for each end, tol=1e-03)",
        "hessian-eigenthings": "1 s, 30 products, λ_min (40 steps in one basis)",
        "PyHessian": "0.5 s, 30 products, no end (tol=1e-05)",
    }


@pytest.mark.slow
def test_every_tool_finds_the_ends_of_a_small_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the residual; PyHessian the one of largest modulus."""
    monkeypatch.setattr(answer, "ROUNDS", 1)
    data = torch.randint(5, (4, 9), generator=torch.Generator().manual_seed(0))
    tools = answer.ends(answer.untrained(data), data)["tools"]
    low, high = tools["landscape"]["values"]
    norm = max(high, -low)
    for tool in ("landscape", "hessian-eigenthings", "PyHessian"):
        assert max(tools[tool]["residuals"]) <= answer.RTOL, tool
    # No residual of curvlinops: its products are wrong here (`by_curvlinops`).
    for tool in ("curvlinops", "hessian-eigenthings"):
        assert tools[tool]["values"] == pytest.approx([low, high], abs=2 * answer.RTOL * norm), tool
    [largest] = tools["PyHessian"]["values"]
    assert abs(largest) == pytest.approx(norm, rel=2 * answer.RTOL)
    assert all(1 < each["products"] < 500 for each in tools.values())


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
    for tool in dense.TOOLS:
        assert results[tool]["difference"] <= 1e-12, tool
    for tool, batches in dense.BATCHES.items():
        assert list(results[tool]["tried"]) == [str(batch) for batch in batches]
        assert results[tool]["seconds"] == results[tool]["tried"][str(results[tool]["batch"])]
        assert results[tool]["seconds"] == min(results[tool]["tried"].values())
