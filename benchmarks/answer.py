"""What the first answer costs: forecasts beside what they foretold, products, and the same ends by other tools."""

from __future__ import annotations

import copy
import functools
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import landscape
from benchmarks.commands import UNFINISHED
from benchmarks.eigenvalues import one_basis, residuals
from benchmarks.harness import ROOT, Numbers, Part, Row, alternate, every_core, main, timed
from benchmarks.monitor import GPT, loss_of, text
from benchmarks.peers import trained
from landscape import HessianConfig, HessianOperator, ModuleProblem, Objective, Recorder, preset
from landscape.curvature.eigsh import glimpse, operator_norm

ROUNDS = 3
STEP = 150
"""Of the small GPT's training."""
CASES: dict[str, tuple[str, tuple[int, ...], str]] = {
    "demo, 4 steps": ("demo", (100, 300, 600, 1000), ""),
    "quick": ("quick", (600,), ""),
    "transformer": ("transformer", (600,), ""),
    "GPT": ("GPT", (STEP,), ""),
    "GPT, --only sharpness": ("GPT", (STEP,), "--only sharpness"),
    "quick, --certify": ("quick", (600,), "--certify"),
}
"""By name: a preset or the small GPT, its checkpoints, and options of `landscape hessian`."""
FORECAST = re.compile(r"note: about ([\d.]+) (s|min|h) and at most ")
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
RTOL = 1e-3
"""Residual |H v - lambda v| / |H| at which a pair is right."""
Pairs = tuple[Any, Tensor, int]
"""Eigenvalues, their vectors (n, value), and products."""


def untrained(data: Tensor) -> GPT:
    """The character model of monitor.py."""
    torch.manual_seed(0)
    return GPT(int(data.max()) + 1)


@functools.cache
def gpt() -> GPT:
    """That model after STEP steps of Adam on all of its data."""
    data = text()
    model = untrained(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEP):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
    return model


def problem() -> ModuleProblem:
    """That model as a user hands it to `landscape hessian --problem`."""
    data = text()
    return ModuleProblem(untrained(data), [data], loss=loss_of)


def hessian_of(case: str, folder: str) -> list[str]:
    """The command that analyses a case, whose run file is made if it is not there, into the folder's hessian.h5."""
    name, steps, options = CASES[case]
    if name == "GPT":
        run = Path(folder) / "run.h5"
        with Recorder(run, gpt()) as recorder:
            recorder.checkpoint(STEP)
        options += " --problem benchmarks.answer:problem"
    else:
        with trained(preset(name), steps) as reader:
            run = reader.path.resolve()
    chosen = ["--steps", ",".join(map(str, steps)), *options.split()]
    return [sys.executable, "-m", "landscape", "hessian", str(run), "--out", f"{folder}/hessian.h5", *chosen]


def foretold(case: str) -> Numbers:
    """Seconds that an analysis foretells and then takes, on every core, and its products."""
    with tempfile.TemporaryDirectory() as folder:
        call = hessian_of(case, folder)
        silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(call, cwd=ROOT, env=every_core(), **silent) as process:
            assert process.stderr
            note = next(filter(None, map(FORECAST.match, process.stderr)))
            seconds, _ = timed(process.communicate)
        if process.returncode not in (0, UNFINISHED):
            raise subprocess.CalledProcessError(process.returncode, call)
        with landscape.open(Path(folder) / "hessian.h5") as file:
            products = int(file.to_xarray()["num_products"].sum())
    return {"forecast": float(note[1]) * UNITS[note[2]], "seconds": seconds, "products": products}


def by_landscape(model: nn.Module, data: Tensor, rtol: float) -> Pairs:
    """The search of `landscape hessian` by default, of whose pairs the outermost count."""
    H = HessianOperator(Objective(model, [data], loss_of), dict(model.named_parameters()))
    config = HessianConfig()
    eigen = glimpse(H, config.k, rtol, config.seed, config.max_hvps).eigen
    return eigen.values[:, 0], eigen.vectors[:, :, 0].T, eigen.num_products


def by_eigenthings(model: nn.Module, data: Tensor, steps: int) -> Pairs:
    """hessian-eigenthings' Lanczos, both ends from one basis."""
    from hessian_eigenthings import HessianOperator as Operator

    return one_basis(Operator(model, [data], loss_of), 1, steps)


def by_curvlinops(model: nn.Module, data: Tensor, tol: float) -> Pairs:
    """SciPy's eigsh on curvlinops' operator, once for each end.

    Its products are jvp(jacrev), which torch 2.13 gets wrong for the weights of a LayerNorm: here by about 1 %.
    """
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    net, inputs, targets = classifier(model, data)
    H = HessianLinearOperator(net, nn.CrossEntropyLoss(), list(net.parameters()), [(inputs, targets)]).to_scipy()
    products = mock.Mock(side_effect=H.matvec)
    counted = LinearOperator(H.shape, matvec=products, dtype=np.float64)
    ends = [eigsh(counted, k=1, which=which, tol=tol, rng=0) for which in ("SA", "LA")]
    values, vectors = (np.concatenate(each, -1) for each in zip(*ends, strict=True))
    return values, torch.from_numpy(vectors), products.call_count


def by_pyhessian(model: nn.Module, data: Tensor, tol: float) -> Pairs:
    """PyHessian's power iteration, which finds the eigenvalue of largest modulus alone."""
    import pyhessian

    torch.manual_seed(0)
    net, inputs, targets = classifier(model, data)
    inside = sys.modules["pyhessian.hessian"]
    with (
        warnings.catch_warnings(),
        mock.patch.object(inside, "hessian_vector_product", side_effect=inside.hessian_vector_product) as products,
    ):
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
        solver = pyhessian.hessian(net, nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False)
        values, vectors = solver.eigenvalues(maxIter=1000, tol=tol, top_n=1)
    return values, torch.cat([piece.reshape(-1) for piece in vectors[0]]).detach()[:, None], products.call_count


def classifier(model: nn.Module, data: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """A copy of the model whose outputs are rows of logits, its inputs and their targets."""
    return nn.Sequential(copy.deepcopy(model), nn.Flatten(0, 1)), data[:, :-1], data[:, 1:].flatten()


SEARCHES: dict[str, tuple[Callable[[nn.Module, Tensor, Any], Pairs], tuple[Any, ...], str]] = {
    "landscape": (by_landscape, (RTOL,), "rtol={:.0e}"),
    "curvlinops": (by_curvlinops, (RTOL,), "eigsh for each end, tol={:.0e}"),
    "hessian-eigenthings": (by_eigenthings, (20, 40, 60, 80, 100, 150, 200), "{} steps in one basis"),
    "PyHessian": (by_pyhessian, (1e-3, 1e-4, 1e-5, 1e-6, 1e-7), "tol={:.0e}"),
}
"""How each tool searches, its settings from the loosest, and these in words.

The first setting that suffices counts, which a user of that tool could not know beforehand.
"""


def ends(model: nn.Module, data: Tensor) -> Numbers:
    """Both ends of a model's spectrum by every tool, set-up included, in turns."""
    model = copy.deepcopy(model).double()
    H = HessianOperator(Objective(model, [data], loss_of), dict(model.named_parameters()))
    norm = operator_norm(H)
    tools: dict[str, Numbers] = {}
    works: dict[str, Callable[[], Pairs]] = {}
    # Other tools' attention would be a fused kernel, which has no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        for tool, (search, settings, _) in SEARCHES.items():
            for setting in settings:
                values, vectors, count = search(model, data, setting)
                errors = residuals(H, values, vectors, norm).tolist()
                tools[tool] = {"setting": setting, "products": count, "values": list(values), "residuals": errors}
                if max(errors) <= RTOL:
                    break
            works[tool] = functools.partial(search, model, data, setting)
        for tool, seconds in alternate(works, ROUNDS).items():
            tools[tool]["seconds"] = seconds
    return {"order": H.shape[0], "norm": norm, "tools": tools}


def parts() -> list[Part]:
    return [
        Part("forecast", lambda: {case: foretold(case) for case in CASES}),
        Part("peers", lambda: ends(gpt(), text())),
    ]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """What was forecast and what it took, and both ends by every tool."""
    forecasts = results.get("forecast", {})
    for case, each in ((case, forecasts[case]) for case in CASES if case in forecasts):
        took = f"{each['seconds']:.3g} s after a forecast of {each['forecast']:.3g} s, {each['products']:,} products"
        yield Row(f"`landscape hessian`: {case}, all cores", {"landscape": took})
    if "peers" in results:
        numbers = results["peers"]
        what = f"λ_min and λ_max to {RTOL:g} ‖H‖ of a small GPT, n = {numbers['order']:,}"
        yield Row(what, {tool: _in_words(numbers, tool) for tool in numbers["tools"]})


def _in_words(numbers: Numbers, tool: str) -> str:
    """What a tool took, how, and which ends it found."""
    each, within = numbers["tools"][tool], 2 * RTOL * numbers["norm"]
    right = {
        name: [v for v, error in zip(one["values"], one["residuals"], strict=True) if error <= RTOL]
        for name, one in numbers["tools"].items()
    }
    every = [value for values in right.values() for value in values]
    outermost = {"λ_min": min(every), "λ_max": max(every)}
    seen = [end for end, at in outermost.items() if any(abs(value - at) <= within for value in right[tool])]
    return (
        f"{each['seconds']['median']:.3g} s, {each['products']} products, {' and '.join(seen) or 'no end'} "
        f"({SEARCHES[tool][2].format(each['setting'])})"
    )


if __name__ == "__main__":
    sys.exit(main("answer", parts()))
