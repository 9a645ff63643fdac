"""The benchmarks: peers compute what we compute, the page is made from the committed JSON, the GPU script runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import commands, page, peers
from benchmarks.counts import Shape
from landscape import TrainConfig

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
    """docs/performance.md is what page.py makes of benchmarks/results."""
    page.write(tmp_path)
    made, published = (folder / "performance.md" for folder in (tmp_path, ROOT / "docs"))
    assert made.read_text() == published.read_text()


def test_page_takes_other_programs_results(tmp_path: Path) -> None:
    """Lines that the GPU script leaves are shown, and no longer said to be missing."""
    results = tmp_path / "results"
    results.mkdir()
    line = {"what": "GPU: 16 products", "result": "6×"}
    machine = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    (results / "gpu.json").write_text(json.dumps({"environments": {"a": machine}, "lines": [line]}))
    page.write(tmp_path, results)
    text = (tmp_path / "performance.md").read_text()
    assert "| GPU: 16 products | 6× |" in text
    assert "Nothing was measured on a GPU" not in text


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
    """By the share of its time that other programs took."""
    here = {"git_commit": "0" * 40, "machine": "a machine", "torch_version": "2.11"}
    for share, busy in ((0.06, True), (0.04, False)):
        numbers = {"cpu": 2.0, "memory": 1e9, "converged": True, "elsewhere": share}
        results = {"environments": {"a": here}, "parts": {"train": numbers}}
        (tmp_path / "commands.json").write_text(json.dumps(results))
        page.write(tmp_path, tmp_path)
        text = (tmp_path / "performance.md").read_text()
        assert "| `landscape train --preset quick` | 2 CPU s, 1.0 GB |" in text
        assert ("5% of the machine during: train." in text) == busy


@pytest.mark.slow
@pytest.mark.long
def test_gpu_script_runs_on_a_cpu(tmp_path: Path) -> None:
    """Everything it checks is right, and its JSON has the page's form."""
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OUT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    for what in ("one product", "16 products", "eigenvalues", "2 checkpoints"):
        assert any(line["what"].startswith(f"CPU: {what}") for line in results["lines"])
    page.write(tmp_path, tmp_path)
    assert "CPU: one product" in (tmp_path / "performance.md").read_text()
