"""Ten eigenvalues at each end of a block, beside PyHessian and curvlinops with SciPy's eigsh; the low end of E,W."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Line, Numbers, Part, load, main, timed
from benchmarks.peers import Case, case
from landscape import eigsh, preset
from landscape.analysis.checkpoint import Checkpoint
from landscape.config import AnalysisConfig
from landscape.curvature.lanczos import EigenResult
from landscape.problems.embedding_mlp import starts
from landscape.problems.embedding_mlp.blocks import BLOCKS

K, STEP, TOLERANCE = 10, 150, 1e-6
CAP, LONG_CAP = 5.0, 150.0
"""Seconds of products after which curvlinops with SciPy's eigsh stops, at each end; for quick and for mid."""
BASIS = 76
"""Vectors of ARPACK's basis, as many as of ours: with SciPy's own, 21, it needs more products."""
UNBROKEN = 600
"""Steps of hessian-eigenthings' Lanczos at each end: it has no restarts."""
LOOSELY = ", as accurate as PyHessian"
TARGETS = {"PyHessian": 10.0, "curvlinops": 3.0, "hessian-eigenthings": None}
LOW_END = 30.0
SEARCHED = ("E", "W", "E,W", "all")


def own(at: Case, block: str, tol: float | None = None) -> Numbers:
    """The eigenvalues as `landscape hessian` computes them; to another residual than 1e-6 always by a search."""
    arrays = {name: p.numpy() for name, p in at.params.items()}
    tell = {} if tol is None else {"method": "lanczos", "rtol": tol}
    config = AnalysisConfig(k=K, blocks=(block,), device="cpu", **tell)

    def search() -> tuple[EigenResult, int]:
        point = Checkpoint(at.problem, config, arrays)
        return point.eigen(block), point.products[block]

    return summed(*timed(search))


def summed(seconds: float, found: tuple[EigenResult, int]) -> Numbers:
    """What a search of ours took, and how far it came."""
    eigen, products = found
    return {
        "seconds": seconds,
        "products": products,
        "pairs": int(eigen.converged.sum()),
        "wanted": eigen.converged.size,
        "residual": float(eigen.residuals.max() / eigen.operator_norm),
        "norm": eigen.operator_norm,
        "values": eigen.values.tolist(),
    }


def pyhessian(at: Case, names: tuple[str, ...], norm: float) -> Numbers:
    """PyHessian's eigenvalues(): the 2 K of largest modulus, as it does not separate the ends."""
    torch.manual_seed(0)
    seconds, (values, vectors) = timed(lambda: at.pyhessian(names).eigenvalues(maxIter=200, tol=TOLERANCE, top_n=2 * K))
    columns = torch.stack([torch.cat([piece.reshape(-1) for piece in v]) for v in vectors], 1)
    return {"seconds": seconds, **judged(at, names, np.array(values), columns, norm)}


def curvlinops(at: Case, names: tuple[str, ...], norm: float, cap: float) -> Numbers:
    """SciPy's eigsh on curvlinops' operator at the residual that we ask for, each end until it is found or for `cap`.

    ARPACK's tolerance is relative to each eigenvalue. So that it means the norm also where eigenvalues vanish, the
    low end is searched in H - |H| I.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator
    from scipy.sparse.linalg import eigsh as arpack

    H, products = at.curvlinops(names).to_scipy(), 0
    one = timed(lambda: H @ np.ones(H.shape[1]))[0]
    # Each restart multiplies at most ncv - k vectors.
    restarts = max(2, round(cap / one / (BASIS - K)))
    options = {"k": K, "tol": TOLERANCE, "ncv": BASIS, "maxiter": restarts, "rng": 0}

    def search(shift: float, which: str) -> Any:
        def apply(x: Any) -> Any:
            nonlocal products
            products += 1
            return H @ x - shift * x.reshape(-1)

        operator = LinearOperator(H.shape, matvec=apply, dtype=np.float64)
        try:
            return arpack(operator, which=which, **options)
        except ArpackNoConvergence as stopped:
            return stopped.eigenvalues, stopped.eigenvectors

    def both() -> tuple[Any, Any]:
        low, high = search(norm, "SA"), search(0.0, "LA")
        return np.concatenate([low[0] + norm, high[0]]), np.concatenate([low[1], high[1]], 1)

    seconds, (values, vectors) = timed(both)
    return {"seconds": seconds, "products": products, **judged(at, names, values, torch.from_numpy(vectors), norm)}


def eigenthings(at: Case, names: tuple[str, ...], norm: float) -> Numbers:
    """hessian-eigenthings' Lanczos for each end, orthogonalised against its whole basis."""
    from hessian_eigenthings import lanczos

    H = at.eigenthings(names)
    options = {"k": K, "max_iter": min(UNBROKEN, H.size), "tol": TOLERANCE, "reorthogonalize": True, "seed": 0}
    seconds, found = timed(lambda: [lanczos(H, which=which, **options) for which in ("SA", "LA")])
    values = torch.cat([end.eigenvalues for end in found]).numpy()
    vectors = torch.cat([end.eigenvectors for end in found]).T
    products = sum(end.iterations for end in found)
    return {"seconds": seconds, "products": products, **judged(at, names, values, vectors, norm)}


def judged(at: Case, names: tuple[str, ...], values: Any, vectors: Tensor, norm: float) -> Numbers:
    """Residuals |H v - lambda v| / |H| of a peer's pairs, by our products."""
    v = vectors.to(at.dtype)
    v = v / v.norm(dim=0)
    residuals = (at.landscape(names) @ v - v * torch.as_tensor(values)).norm(dim=0) / norm
    return {
        "pairs": int((residuals <= TOLERANCE).sum()),
        "wanted": 2 * K,
        "residual": float(residuals.max()) if len(values) else None,
        "values": np.sort(values).tolist(),
    }


def block(name: str, block: str, cap: float) -> Numbers:
    """Run each tool once: these searches take seconds to minutes."""
    at, names = case(preset(name), STEP), BLOCKS[block]
    found = own(at, block)
    return {
        "preset": name,
        "block": block,
        "order": at.size(names),
        "landscape": found,
        "PyHessian": pyhessian(at, names, found["norm"]),
        "curvlinops": curvlinops(at, names, found["norm"], cap),
        "hessian-eigenthings": eigenthings(at, names, found["norm"]),
    }


def loosely(name: str, block: str) -> Numbers:
    """Our search at the residual that PyHessian reached on the same block."""
    reached = load("eigenvalues")["parts"][f"{name} {block}"]["PyHessian"]["residual"]
    at = case(preset(name), STEP)
    return {"of": f"{name} {block}", "tol": reached, "landscape": own(at, block, reached)}


def low_end() -> Numbers:
    """Row 6."""
    H = case(preset("mid"), STEP).landscape(BLOCKS["E,W"])

    def search() -> tuple[EigenResult, int]:
        v0, spent = starts.low_end(H, K)
        return eigsh(H, K, "lowest", "lanczos", rtol=TOLERANCE, v0=v0), spent

    return {"preset": "mid", "low end": summed(*timed(search))}


def parts() -> list[Part]:
    quick = [Part(f"quick {b}", functools.partial(block, "quick", b, CAP), slow=b != "E,W") for b in SEARCHED]
    mid = [Part(f"mid {b}", functools.partial(block, "mid", b, LONG_CAP), slow=True) for b in SEARCHED]
    loose = [
        Part(f"{name} {b}{LOOSELY}", functools.partial(loosely, name, b), slow=name == "mid" or b != "E,W")
        for name in ("quick", "mid")
        for b in SEARCHED
    ]
    return [*quick, *mid, *loose, Part("mid E,W low end", low_end)]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Rows 5 and 6."""
    for part, numbers in found.items():
        if "low end" in numbers:
            low = numbers["low end"]
            met = low["pairs"] == low["wanted"] and low["seconds"] <= LOW_END
            what = f"{K} lowest of E,W, {numbers['preset']}, step {STEP}"
            yield Line("6", what, f"≤ {LOW_END:g} s", told(low), met, part)
            continue
        if "of" in numbers:
            continue
        mine = numbers["landscape"]
        done = mine["pairs"] == mine["wanted"]
        what = f"{K} eigenvalues at each end, {numbers['preset']}, {numbers['block']} (n = {numbers['order']:,})"
        for tool, target in TARGETS.items():
            peer = numbers[tool]
            ratio = peer["seconds"] / mine["seconds"]
            text = f"{ratio:.2g}×; landscape: {told(mine)}; {tool}: {told(peer)}"
            if tool == "PyHessian" and part + LOOSELY in found:
                loose, tol = found[part + LOOSELY]["landscape"]["seconds"], found[part + LOOSELY]["tol"]
                ratio = peer["seconds"] / loose
                text += f"; as accurate as that, {tol:.0e}: {ratio:.2g}× (landscape: {loose:.3g} s)"
            if target is None or numbers["preset"] != "mid":
                yield Line("5", f"{what}, {tool}", "–", text, None, part)
            else:
                yield Line("5", f"{what}, {tool}", f"≥ {target:g}×", text, done and ratio >= target, part)


def told(search: Numbers) -> str:
    """The end of a search in words."""
    residual = "residual is unknown" if search["residual"] is None else f"largest residual {search['residual']:.0e}"
    if search["pairs"] == search["wanted"]:
        return f"{search['seconds']:.3g} s, {residual}"
    short = f"{search['pairs']} of {search['wanted']} pairs at {TOLERANCE:.0e}"
    return f"not finished, stopped after {search['seconds']:.3g} s with {short}; of those found the {residual}"


if __name__ == "__main__":
    sys.exit(main("eigenvalues", parts()))
