"""Products, dense blocks, eigenvalues and a whole run on a GPU: correctness first, then speed.

Stands alone: torch and `landscape` from this checkout are all it needs. Writes $OUT/gpu.json, to be kept as
benchmarks/results/gpu.json, and exits with 1 if anything is wrong. `--device cpu --small` tries it out anywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.counts import Shape
from landscape import HessianOperator, MatrixOperator, cross_entropy, eigsh, preset, saddle_index
from landscape.config import AnalysisConfig, TrainConfig
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.problem import EmbeddingMLPProblem
from landscape.models.problem import hessian
from landscape.models.tasks import TRAIN, make_data

BLOCKS = {"E": ["E"], "W": ["W"], "E,W": ["E", "W"], "W,V": ["W", "V"], "all": ["E", "W", "b1", "V", "b2"]}
MANY, K = 16, 10
TINY = TrainConfig(p=11, tokens=2, embed_dim=4, hidden=8, train_fraction=0.5, lr=0.01)
Params = dict[str, Tensor]


class Bench:
    """One device, and the lines and numbers found on it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.lines: list[dict[str, Any]] = []
        self.numbers: dict[str, Any] = {}
        self.wrong: list[str] = []

    def line(self, what: str, result: str) -> None:
        """One line of the page."""
        where = "GPU" if self.device.type == "cuda" else "CPU"
        self.lines.append({"what": f"{where}: {what}", "result": result})
        print(f"{what}: {result}", file=sys.stderr)

    def seconds(self, work: Callable[[], Any], rounds: int = 7) -> float:
        """Median seconds of a call, between CUDA events, after one that is not counted."""
        work()
        return statistics.median(self._once(work) for _ in range(rounds))

    def _once(self, work: Callable[[], Any]) -> float:
        if self.device.type != "cuda":
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3

    def attempt(self, work: Callable[..., None], *args: Any) -> None:
        """Run a section; an exception is recorded as wrong and does not stop the other sections."""
        try:
            work(self, *args)
        except Exception as problem:
            what = f"{work.__name__}{args[:1] if isinstance(args[0], str) else ''}: {problem!r}"
            self.wrong.append(what)
            self.line(work.__name__, repr(problem)[:200])

    def agree(self, what: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
        """Note a relative difference, and whether it is too large."""
        difference = float((actual.double().cpu() - expected).norm() / expected.norm())
        self.numbers.setdefault("differences", {})[what] = difference
        self.line(what, f"differs by {difference:.1e}, at most {tolerance:.0e} allowed")
        if not difference <= tolerance:
            self.wrong.append(what)


def checkpoints(config: TrainConfig, steps: list[int], device: torch.device) -> Iterator[tuple[int, Params]]:
    """Parameters in float64 at some steps of full-batch training with Adam."""
    tokens, labels = (torch.from_numpy(a).to(device, torch.int64) for a in make_data(config).subset(TRAIN))
    model = MLP(config).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    for step in range(max(steps) + 1):
        if step in steps:
            yield step, {n: p.detach().double().clone() for n, p in model.named_parameters()}
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(tokens), labels).mean().backward()
        optimizer.step()


def problem(config: TrainConfig, device: torch.device) -> EmbeddingMLPProblem:
    """The training problem of a config on a device."""
    data = make_data(config)
    arrays = {name: getattr(data, name) for name in ("tokens", "labels", "split")}
    return EmbeddingMLPProblem(config, arrays, device, AnalysisConfig().chunk_size)


def check(bench: Bench, config: TrainConfig) -> None:
    """Products, dense block, eigenvalues and index on the device against float64 on the CPU."""
    cpu = torch.device("cpu")
    ((_, exact),) = checkpoints(config, [30], cpu)
    reference, here = problem(config, cpu), problem(config, bench.device)
    params = {n: p.to(bench.device) for n, p in exact.items()}
    H = hessian(reference, exact, 0.0)
    vectors = torch.randn(H.shape[0], MANY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, there = H @ vectors, vectors.to(bench.device)
    bench.agree("one product", hessian(here, params, 0.0) @ there[:, 0], expected[:, 0], 1e-12)
    bench.agree(f"{MANY} products", hessian(here, params, 0.0) @ there, expected, 1e-12)
    single = {n: p.float() for n, p in params.items()}
    bench.agree("one product, float32", hessian(here, single, 0.0) @ there[:, 0].float(), expected[:, 0], 1e-4)
    autograd = HessianOperator(here.objective(0.0), params)
    bench.agree("products by autograd", autograd @ there, expected, 1e-10)
    block = BLOCKS["E,W"]
    dense, truth = here.structure(params, 0.0).dense(block), H.block(block).dense()
    assert dense is not None
    bench.agree("dense E,W", dense, truth, 1e-12)
    values = torch.linalg.eigvalsh(truth)
    ends = torch.stack([values[:K], values.flip(0)[:K]])
    for method in ("dense", "lanczos"):
        op = MatrixOperator(dense) if method == "dense" else hessian(here, params, 0.0).block(block)
        eigen = eigsh(op, K, method=method, rtol=1e-8, max_hvps=20_000)  # type: ignore[arg-type]
        bench.agree(f"eigenvalues of E,W, {method}", torch.from_numpy(eigen.values), ends, 1e-7)
    index = saddle_index(MatrixOperator(dense), method="dense")
    counts = torch.tensor([index.negative, index.positive], dtype=torch.float64)
    true_counts = [(values < -index.tolerance).sum(), (values > index.tolerance).sum()]
    bench.agree("index of E,W", counts, torch.stack(true_counts).double(), 0.0)


def rates(bench: Bench, dtype: torch.dtype, size: int) -> tuple[float, float]:
    """FLOP/s of a large matrix product and B/s of a large copy: what this device can do."""
    a = torch.randn(size, size, device=bench.device, dtype=dtype)
    out = torch.empty_like(a)
    flops = 2 * size**3 / bench.seconds(lambda: torch.mm(a, a, out=out))
    return flops, 2 * a.numel() * a.element_size() / bench.seconds(lambda: out.copy_(a))


def time_products(bench: Bench, name: str, config: TrainConfig, size: int) -> None:
    """Rows 1 and 2: against the floor of FLOPs and of bytes."""
    at = problem(config, bench.device)
    ((_, exact),) = checkpoints(config, [0], bench.device)
    V, d = exact["E"].shape
    shape = Shape(len(at.tokens), V, at.tokens.shape[1], d, config.hidden, config.p)
    for dtype in (torch.float32, torch.float64):
        H = hessian(at, {n: p.to(dtype) for n, p in exact.items()}, 0.0)
        vectors = torch.randn(H.shape[0], MANY, device=bench.device, dtype=dtype)
        first = vectors[:, 0].contiguous()
        one = bench.seconds(lambda H=H, v=first: H @ v)
        many = bench.seconds(lambda H=H, v=vectors: H @ v)
        autograd = HessianOperator(at.objective(0.0).in_dtype(dtype), exact)
        plain = bench.seconds(lambda H=autograd, v=first: H @ v)
        flops, speed = rates(bench, dtype, size)
        kind = str(dtype).removeprefix("torch.")
        floor = max(shape.flops() / flops, shape.bytes(H.dtype.itemsize) / speed)
        # The arrays of the point are read once for all vectors; their share of each shrinks.
        floor_many = max(MANY * shape.flops() / flops, shape.bytes(H.dtype.itemsize) / speed)
        bench.numbers[f"products {name} {kind}"] = {
            "shape": dataclasses.asdict(shape),
            "flops": shape.flops(),
            "bytes": shape.bytes(H.dtype.itemsize),
            "device_flops": flops,
            "device_bytes": speed,
            "seconds": one,
            "seconds_of_sixteen": many,
            "seconds_by_autograd": plain,
            "fraction": floor / one,
            "fraction_of_sixteen": floor_many / many,
        }
        result = f"{1e3 * one:.3g} ms, {floor / one:.1%} of the floor's speed ({1e3 * floor:.3g} ms)"
        bench.line(f"one product, {name}, {kind}", f"{result}; {plain / one:.2f}× automatic differentiation")
        result = f"{MANY * one / many:.2f}× sixteen single ones; {floor_many / many:.1%} of the floor's speed"
        bench.line(f"{MANY} products at once, {name}, {kind}", result)


def time_eigenvalues(bench: Bench, name: str, config: TrainConfig, step: int) -> None:
    """Ten eigenvalues at each end."""
    at = problem(config, bench.device)
    ((_, params),) = checkpoints(config, [step], bench.device)
    for block in ("E", "W", "E,W", "all"):
        started = time.perf_counter()
        eigen = eigsh(hessian(at, params, 0.0).block(BLOCKS[block]), K, method="lanczos")
        seconds = time.perf_counter() - started
        pairs, residual = int(eigen.converged.sum()), float(eigen.residuals.max() / eigen.operator_norm)
        bench.numbers[f"eigenvalues {name} {block}"] = {
            "seconds": seconds,
            "products": eigen.num_products,
            "pairs": pairs,
            "residual": residual,
        }
        result = f"{seconds:.3g} s, {eigen.num_products} products, {pairs} of {eigen.converged.size} pairs"
        bench.line(f"eigenvalues, {name}, {block}", f"{result}, largest residual {residual:.0e}")


def time_run(bench: Bench, name: str, config: TrainConfig, steps: list[int]) -> None:
    """Both ends of five blocks at checkpoint after checkpoint, started from the one before and from nothing."""
    at = problem(config, bench.device)
    before: dict[str, Tensor] = {}
    seconds, products = {"warm": 0.0, "cold": 0.0}, {"warm": 0, "cold": 0}
    for _, params in checkpoints(config, steps, bench.device):
        H = hessian(at, params, 0.0)
        for block, names in BLOCKS.items():
            for kind, start in (("warm", before.get(block)), ("cold", None)):
                started = time.perf_counter()
                eigen = eigsh(H.block(names), K, method="lanczos", v0=start)
                seconds[kind] += time.perf_counter() - started
                products[kind] += eigen.num_products
                if kind == "warm":
                    kept = eigen.vectors
            before[block] = kept
    ratio = seconds["cold"] / seconds["warm"]
    bench.numbers[f"run {name}"] = {"checkpoints": len(steps), "seconds": seconds, "products": products}
    result = f"{ratio:.2f}× ({seconds['warm']:.3g} s against {seconds['cold']:.3g} s)"
    bench.line(f"{len(steps)} checkpoints × {len(BLOCKS)} blocks, {name}, eigsh", result)


def environment(device: str) -> dict[str, str]:
    """Code, versions and device, as in the other benchmarks' JSON."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "git_commit": commit or "unknown",
        "machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
    }


def main() -> int:
    """Check, time, and write the JSON; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny networks, to see that it runs")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    bench = Bench(args.device)
    names = ("tiny",) if args.small else ("quick", "mid", "paper")
    nets = {name: TINY if args.small else preset(name) for name in names}
    searched = "tiny" if args.small else "mid"
    bench.attempt(check, nets[names[0]])
    # Do not time wrong results.
    if not bench.wrong:
        for name, config in nets.items():
            bench.attempt(time_products, name, config, 256 if args.small else 8192)
        bench.attempt(time_eigenvalues, searched, nets[searched], 10 if args.small else 150)
        bench.attempt(time_run, searched, nets[searched], [10, 12] if args.small else list(range(20, 220, 20)))
    document = {"environments": {"gpu": environment(args.device)}, "lines": bench.lines, "numbers": bench.numbers}
    text = json.dumps(document, indent=1)
    if out := os.environ.get("OUT"):
        (Path(out) / "gpu.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    for what in bench.wrong:
        print(f"wrong on this device: {what}", file=sys.stderr)
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
