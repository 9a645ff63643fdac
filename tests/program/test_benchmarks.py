"""The benchmarks: peers compute what we compute, the page is made from the committed JSON, the GPU script runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import checkpoints, commands, page, peers, reports
from benchmarks.counts import Shape
from landscape import HessianConfig, TrainConfig
from landscape.models.embedding_mlp.products import Passes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> peers.Case:
    """A network of 4 slots after three steps."""
    monkeypatch.setattr(peers, "CACHE", tmp_path)
    config = TrainConfig(p=7, embed_dim=3, hidden=5, batch_size="full", train_fraction=0.6)
    return peers.case.__wrapped__(config, 3)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
def test_peers_compute_the_same(tiny: peers.Case) -> None:
    """Loss, gradient and products of the user's network in every tool, blocks and the whole."""
    assert max(tiny.check().values()) < peers.TOLERANCE
    for names in (("E",), ("E", "W"), ("W", "V")):
        H, v = tiny.landscape(names), tiny.probe(names)[:, 0]
        assert peers.relative(tiny.pyhessian_product(names)(v), H @ v) < peers.TOLERANCE
        assert peers.relative(tiny.curvlinops(names) @ v, H @ v) < peers.TOLERANCE
        assert peers.relative(tiny.eigenthings(names).matvec(v), H @ v) < peers.TOLERANCE
        assert peers.relative(tiny.torch_hessian(names), H.dense()) < peers.TOLERANCE


def test_another_network_is_refused(tiny: peers.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees a weight that differs in its seventh digit."""
    right = peers.Case.user_net

    def wrong(self: peers.Case, names: tuple[str, ...] = peers.ALL) -> peers.UserNet:
        net = right(self, names)
        net.output.weight.data[0, 0] += 1e-6
        return net

    monkeypatch.setattr(peers.Case, "user_net", wrong)
    with pytest.raises(AssertionError, match="not ours"):
        tiny.check()


def test_counts(tiny: peers.Case) -> None:
    """The counted parameters are those of the network; the matrix products of a hand-counted one."""
    assert tiny.shape.parameters == tiny.size()
    shape = Shape(N=10, V=3, s=2, d=2, h=4, C=3)
    assert shape.flops() == 6 * 2 * 10 * 4 * 3 + 12 * 2 * 3 * 2 * 4


def test_page_is_made_from_the_committed_results(tmp_path: Path) -> None:
    """docs/performance.md is what page.py makes of benchmarks/results; every figure it shows is there."""
    page.write(tmp_path)
    made, published = (folder / "performance.md" for folder in (tmp_path, ROOT / "docs"))
    assert made.read_text() == published.read_text()
    for picture in (ROOT / "docs/performance").glob("*.png"):
        assert (tmp_path / "performance" / picture.name).exists()
        assert f"performance/{picture.name}" in published.read_text()


def test_page_takes_other_programs_results(tmp_path: Path) -> None:
    """Lines that the GPU script leaves are shown, and no longer said to be missing."""
    results = tmp_path / "results"
    results.mkdir()
    line = {"row": "2", "what": "GPU: 16 products", "target": "≥ 5×", "found": "6×", "met": True, "part": ""}
    machine = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    (results / "gpu.json").write_text(json.dumps({"environments": {"a": machine}, "lines": [line]}))
    page.write(tmp_path, results)
    text = (tmp_path / "performance.md").read_text()
    assert "| 2 | GPU: 16 products | ≥ 5× | 6× | ✓ met | 1 |" in text
    assert "No row was run on a GPU" not in text


@pytest.mark.long
def test_profile_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds of work add up, nothing stays wrapped, and what matrix products take is a part of the products' time."""
    monkeypatch.setattr(peers, "CACHE", tmp_path)
    product = Passes.product
    train = TrainConfig(p=7, embed_dim=3, hidden=5, batch_size="full", train_fraction=0.6)
    config = HessianConfig(steps="3", k=2, method="lanczos", max_hvps=400, probes=2, probe_steps=5)
    found = checkpoints.by_kind(train, (3,), 3, config)
    kinds = found["kinds"]
    assert sum(work["seconds"] for work in kinds.values()) == pytest.approx(found["seconds"])
    assert Passes.product is product
    # Five blocks, two probes of five steps.
    assert kinds["products: densities"]["count"] == 50
    assert kinds[checkpoints.BASES]["count"] > kinds["products: the ends' search"]["count"] / 4 > 0
    for name, work in kinds.items():
        assert name.startswith("products: ") == ("gemms" in work)
    dense = checkpoints.by_kind(train, (3,), 3, HessianConfig(steps="3", k=2))["kinds"]
    assert dense[checkpoints.ASSEMBLY]["count"] > 0 < dense[checkpoints.EIGENVALUES]["count"]


def test_page_says_what_the_limit_is(tmp_path: Path) -> None:
    """Below a row that misses its target, and only there, a profile of the same part says why."""
    kinds = {
        "products: densities": {"seconds": 6.0, "count": 1280, "gemms": 3.0},
        checkpoints.FACTORISATIONS: {"seconds": 3.0, "count": 9},
        checkpoints.REST: {"seconds": 1.0, "count": 0},
    }
    here = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    part = {"environment": "a", "elsewhere": 0.0}
    for seconds, is_shown in ((400.0, True), (4.0, False)):
        waits = {
            name: {**part, "seconds": seconds * factor, "cpu": 1.0, "memory": 1e9}
            for name, factor in (("hessian", 1), ("hessian 100", 100), ("report", 1))
        }
        (tmp_path / "commands.json").write_text(json.dumps({"environments": {"a": here}, "parts": waits}))
        profiles = {"hessian": {**part, "step": 3, "seconds": 10.0, "kinds": kinds}}
        (tmp_path / "checkpoints.json").write_text(json.dumps({"environments": {"a": here}, "parts": profiles}))
        drawn = {"report": {**part, "seconds": 8.0, "libraries": {"matplotlib": 6.0, "numpy": 1.6, reports.OURS: 0.4}}}
        (tmp_path / "reports.json").write_text(json.dumps({"environments": {"a": here}, "parts": drawn}))
        page.write(tmp_path, tmp_path)
        text = (tmp_path / "performance.md").read_text()
        limit = (
            "| limit, on one thread at step 3: products: densities 6 s (1,280, GEMMs 50%); L D Lᵀ and Cholesky 3 s "
            "(9); files, Python and the rest 1 s. LAPACK and the matrix products in Hessian-vector products take 6 of "
            "the 10 CPU seconds of a checkpoint | | | | 1 |"
        )
        assert text.count(limit) == is_shown
        limit = "limit, in one process under a profiler: matplotlib 75%, numpy 20%, landscape 5% of 8 CPU seconds"
        assert (limit in text) == is_shown
        assert "| in all | 10, of which 6 are these GEMMs and LAPACK |" in text


@pytest.mark.slow
def test_profile_of_a_report(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries add up; what draws takes more than what this package does, which takes something."""
    run = tmp_path / "landscape-demo/demo.h5"
    run.parent.mkdir()
    shutil.copy(tiny_run, run)
    monkeypatch.setattr(reports, "demo", lambda: (SimpleNamespace(name=str(tmp_path)), {}))
    found = reports.by_library()
    libraries = found["libraries"]
    assert sum(libraries.values()) == pytest.approx(found["seconds"])
    assert libraries["matplotlib"] > libraries[reports.OURS] > 0
    assert list(tmp_path.iterdir()) == [run.parent]


def test_rows_that_meet_their_target_are_counted(tmp_path: Path) -> None:
    """And left out of the table of comparisons."""
    here = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    seconds = {"landscape --help": {"median": 1.5}, "landscape info": {"median": 0.5}}
    part = {"environment": "a", "elsewhere": 0.0, "seconds": seconds}
    results = {"environments": {"a": here}, "parts": {"processes": part}}
    (tmp_path / "startup.json").write_text(json.dumps(results))
    page.write(tmp_path, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert "1 of 2 comparisons with a target meet it, 1 of row 11, and are left out of the table." in text
    assert "| 11 | `landscape --help` | < 1 s | 1.50 s | ✗ not met | 1 |" in text
    assert "| 11 | `landscape info`" not in text


def test_memory_is_that_of_a_process_and_its_workers() -> None:
    """Two processes that have written 50 MB each; and of one that has ended, none."""
    code = "import os, sys; os.fork(); x = bytes([1]) * 50_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert (process.stdout.readline(), process.stdout.readline()) == (b"\n", b"\n")
        assert 100e6 < commands._memory(process.pid) < 150e6
        process.communicate()
    assert commands._memory(process.pid) == 0


def test_page_says_where_the_machine_was_busy(tmp_path: Path) -> None:
    """By the share of other programs, and by the load at the start in results that lack it."""
    here = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    shares: list[tuple[dict[str, float], str]] = [
        ({"elsewhere": 0.06}, "1 of 2 in commands"),
        ({"elsewhere": 0.04}, ""),
        ({"load_before": 1.6}, "1 of 2 in commands"),
        ({"load_before": 1.4}, ""),
    ]
    for share, told in shares:
        numbers = {"environment": "a", "seconds": 1.0, "cpu": 1.0, "memory": 1e9}
        parts = {"train": {**numbers, **share}, "report": {**numbers, "elsewhere": 0.0}}
        (tmp_path / "commands.json").write_text(json.dumps({"environments": {"a": here}, "parts": parts}))
        page.write(tmp_path, tmp_path)
        text = (tmp_path / "performance.md").read_text()
        assert ("**The machine was busy**" in text) == bool(told)
        assert told in text
        assert ("| 1, busy |" in text) == bool(told)
        assert "| 1 |" in text


@pytest.mark.slow
@pytest.mark.long
def test_gpu_script_runs_on_a_cpu(tmp_path: Path) -> None:
    """Everything it checks is right, and its JSON has the page's form."""
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OUT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {line["row"] for line in found["lines"]} == {"check", "1", "2", "5", "7"}
    page.write(tmp_path, tmp_path)
    assert "CPU: one product" in (tmp_path / "performance.md").read_text()
