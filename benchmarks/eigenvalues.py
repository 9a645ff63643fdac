"""Ten eigenvalues at each end of a block, and its twenty highest, beside the tools that search for them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Numbers, Part, Row, main, timed
from benchmarks.peers import Case, case
from landscape import EigenResult, LinearOperator, eigsh, preset
from landscape.models.embedding_mlp.blocks import BLOCKS

K, STEP, TOLERANCE = 10, 150, 1e-6
CAPS = {"quick": 5.0, "mid": 60.0}
"""Least seconds of products at each end after which ARPACK stops."""
PATIENCE = 3.0
"""ARPACK may take this many times our own seconds at each end, if that is more."""
BASIS = 76
"""Vectors of ARPACK's basis, as many as of ours: with SciPy's own, 21, it needs more products."""
RUNS = {"shifted": "a run for each end", "BE": "one run for both ends"}
STEPS = (100, 200, 300, 600)
"""Steps of hessian-eigenthings' Lanczos, which has no restarts and never stops early."""
SETTINGS = ((100, 1e-3), (200, 1e-6))
"""PyHessian's maxIter and tol: its defaults, and what finds more accurate pairs."""
LOOSEST, TIGHTEST = 1e-2, 1e-8
TOOLS = ("landscape", "curvlinops", "hessian-eigenthings")
SEARCHED = (("quick", "all"), ("mid", "E,W"), ("mid", "all"))


def own(at: Case, block: str) -> Numbers:
    """Both ends as `landscape hessian` searches them."""

    def search() -> tuple[EigenResult, int]:
        eigen = eigsh(at.landscape(BLOCKS[block]), K)
        return eigen, eigen.num_products

    return summed(*timed(search))


def summed(seconds: float, result: tuple[EigenResult, int]) -> Numbers:
    """What a search of ours took, and how far it came."""
    eigen, products = result
    return {
        "seconds": seconds,
        "products": products,
        "pairs": int(eigen.converged.sum()),
        "wanted": eigen.converged.size,
        "residual": float(eigen.residuals.max() / eigen.operator_norm),
        "norm": eigen.operator_norm,
        "rtol": eigen.tol,
        "values": eigen.values.tolist(),
    }


def top(at: Case, names: tuple[str, ...], norm: float, max_iter: int, tol: float) -> Numbers:
    """The 2 K highest eigenvalues by PyHessian's eigenvalues(), and by our search at the residual which that reached.

    PyHessian finds eigenvalues of largest modulus and does not separate the ends: here these are the highest.
    """
    torch.manual_seed(0)
    seconds, pairs = timed(lambda: at.pyhessian(names).eigenvalues(maxIter=max_iter, tol=tol, top_n=2 * K))
    columns = torch.stack([torch.cat([piece.reshape(-1) for piece in v]) for v in pairs[1]], 1).detach()
    # Its vectors are shorter than 1 by 1e-6, and so its eigenvalues are too small: the vectors alone are judged.
    image = at.landscape(names) @ columns
    values = ((columns * image).sum(0) / (columns * columns).sum(0)).numpy()
    residual = float(residuals(at.landscape(names), values, columns, norm).max())
    rtol = min(LOOSEST, max(TIGHTEST, residual))

    def search() -> tuple[EigenResult, int]:
        eigen = eigsh(at.landscape(names), 2 * K, "highest", "lanczos", rtol=rtol)
        return eigen, eigen.num_products

    mine = summed(*timed(search))
    return {
        "max_iter": max_iter,
        "tol": tol,
        "rtol": rtol,
        "PyHessian": {"seconds": seconds, **judged(at, names, values, columns, mine)},
        "landscape": mine,
    }


def curvlinops(at: Case, names: tuple[str, ...], mine: Numbers, cap: float) -> Numbers:
    """SciPy's eigsh on curvlinops' operator at our residual, by the better of two ways; `cap` is of each end."""
    ways = {run: arpack(at, names, mine, cap, run) for run in RUNS}
    run = best(ways)
    return {**ways[run], "run": run, "tried": tried(ways)}


def arpack(at: Case, names: tuple[str, ...], mine: Numbers, cap: float, run: str) -> Numbers:
    """ARPACK for both ends, in two runs or in one.

    Its tolerance is relative to each eigenvalue. So that it means the norm also where eigenvalues vanish, the low end
    has a run of its own in H - |H| I.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator
    from scipy.sparse.linalg import eigsh as search

    H, products = at.curvlinops(names).to_scipy(), 0
    n, norm = H.shape[1], mine["norm"]
    # The first product pays for what every later one finds prepared.
    _ = H @ np.ones(n)
    one = timed(lambda: H @ np.ones(n))[0]

    def end(shift: float, which: str, k: int, seconds: float) -> Any:
        def apply(x: Any) -> Any:
            nonlocal products
            products += 1
            return H @ x - shift * x.reshape(-1)

        # Each restart multiplies at most ncv - k vectors.
        basis = min(BASIS, n)
        restarts = max(2, round(seconds / one / (basis - k)))
        operator = LinearOperator(H.shape, matvec=apply, dtype=np.float64)
        try:
            return search(operator, which=which, k=k, tol=TOLERANCE, ncv=basis, maxiter=restarts, rng=0)
        except ArpackNoConvergence as stopped:
            return stopped.eigenvalues, stopped.eigenvectors

    def both() -> tuple[Any, Any]:
        if run == "BE":
            pairs: tuple[Any, Any] = end(0.0, "BE", 2 * K, 2 * cap)
            return pairs
        low, high = end(norm, "SA", K, cap), end(0.0, "LA", K, cap)
        return np.concatenate([low[0] + norm, high[0]]), np.concatenate([low[1], high[1]], 1)

    seconds, (values, vectors) = timed(both)
    return {"seconds": seconds, "products": products, **judged(at, names, values, torch.from_numpy(vectors), mine)}


def eigenthings(at: Case, names: tuple[str, ...], mine: Numbers) -> Numbers:
    """hessian-eigenthings' Lanczos, with the fewest steps of STEPS that find all pairs, else those that find most."""
    ways: dict[str, Numbers] = {}
    for steps in sorted({min(steps, at.size(names)) for steps in STEPS}):
        search = ways[str(steps)] = unbroken(at, names, mine, steps)
        if search["pairs"] == search["wanted"]:
            break
    steps = best(ways)
    return {**ways[steps], "steps": int(steps), "tried": tried(ways)}


def unbroken(at: Case, names: tuple[str, ...], mine: Numbers, steps: int) -> Numbers:
    """Both ends from one basis: its `lanczos` returns one end, and would build the same basis for the other."""
    H = at.eigenthings(names)
    seconds, (values, vectors, products) = timed(lambda: one_basis(H, K, steps))
    return {"seconds": seconds, "products": products, **judged(at, names, values, vectors, mine)}


def one_basis(H: Any, k: int, steps: int) -> tuple[Any, Tensor, int]:
    """k eigenpairs at each end of hessian-eigenthings' operator by its Lanczos of so many steps, and its products."""
    from hessian_eigenthings.algorithms.lanczos import lanczos_tridiagonal

    start = torch.randn(H.size, generator=torch.Generator().manual_seed(0), dtype=H.dtype)
    form = lanczos_tridiagonal(H, start, steps, reorthogonalize=True)
    m = len(form.alphas)
    theta, turn = torch.linalg.eigh(
        torch.diag(form.alphas) + torch.diag(form.betas[: m - 1], 1) + torch.diag(form.betas[: m - 1], -1)
    )
    ends = [*range(min(k, m)), *range(max(k, m - k), m)]
    return theta[ends].numpy(), torch.stack(form.basis).T @ turn[:, ends], form.iterations


def best(ways: Mapping[str, Numbers]) -> str:
    """The way that found most pairs, and of several such the fastest."""
    return min(ways, key=lambda way: (-ways[way]["pairs"], ways[way]["seconds"]))


def tried(ways: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Seconds and pairs of each way."""
    return {way: {key: search[key] for key in ("seconds", "products", "pairs")} for way, search in ways.items()}


def residuals(H: LinearOperator, values: Any, vectors: Tensor, norm: float) -> Tensor:
    """Residuals |H v - lambda v| / |H| of a peer's pairs, by our products."""
    v = vectors.to(H.dtype)
    v = v / v.norm(dim=0)
    return (H @ v - v * torch.as_tensor(values)).norm(dim=0) / norm


def judged(at: Case, names: tuple[str, ...], values: Any, vectors: Tensor, mine: Numbers) -> Numbers:
    """How many of a peer's pairs are right, and whether it found eigenvalues that we missed."""
    errors = residuals(at.landscape(names), values, vectors, mine["norm"])
    right = np.asarray(values)[(errors <= TOLERANCE).numpy()]
    ours = np.ravel(mine["values"])
    # A residual bounds the error of an eigenvalue, of theirs and of ours.
    within = (TOLERANCE + mine["rtol"]) * mine["norm"]
    return {
        "pairs": matched(right, ours, within),
        "wanted": 2 * K,
        "residual": float(errors.max()) if len(values) else None,
        "beyond": beyond(right, mine["values"], within),
        "values": np.sort(values).tolist(),
    }


def matched(values: Any, ours: Any, within: float) -> int:
    """How many eigenvalues have one of ours for themselves: a residual does not tell whether a pair is among the K."""
    theirs, ours = np.sort(values), np.sort(ours)
    i = j = count = 0
    while i < len(theirs) and j < len(ours):
        if abs(theirs[i] - ours[j]) <= within:
            i, j, count = i + 1, j + 1, count + 1
        elif theirs[i] < ours[j]:
            i += 1
        else:
            j += 1
    return count


def beyond(values: Any, ours: Sequence[Sequence[float]], within: float) -> int:
    """At how many places, counted from outside, eigenvalues lie further out than ours: there our search is wrong.

    ours: the values of both ends, or of the highest alone.
    """
    theirs = np.sort(values)
    further = [high - mine for high, mine in zip(theirs[::-1], np.sort(ours[-1])[::-1], strict=False)]
    if len(ours) == 2:
        further += [mine - low for low, mine in zip(theirs, np.sort(ours[0]), strict=False)]
    return sum(bool(distance > within) for distance in further)


def block(name: str, block: str) -> Numbers:
    """Run each tool once: these searches take seconds to minutes."""
    return {"preset": name, "block": block, **compared(case(preset(name), STEP), block, CAPS[name])}


def compared(at: Case, block: str, cap: float) -> Numbers:
    """Every tool's search in one block."""
    names = BLOCKS[block]
    mine = own(at, block)
    return {
        "order": at.size(names),
        "landscape": mine,
        "curvlinops": curvlinops(at, names, mine, max(cap, PATIENCE * mine["seconds"])),
        "hessian-eigenthings": eigenthings(at, names, mine),
        "top": [top(at, names, mine["norm"], *setting) for setting in SETTINGS],
    }


def parts() -> list[Part]:
    return [Part(f"{name} {b}", functools.partial(block, name, b), slow=name != "quick") for name, b in SEARCHED]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """Two rows a block: both ends, and the highest alone."""
    for numbers in results.values():
        of = f"{numbers['preset']}, {numbers['block']} (n = {numbers['order']:,})"
        yield Row(f"{K} eigenvalues at each end, {of}", {tool: in_words(numbers[tool]) for tool in TOOLS})
        # The faster setting of PyHessian, and our search to the residual which it reached.
        fastest = min(numbers["top"], key=lambda setting: setting["PyHessian"]["seconds"])
        peer, mine = fastest["PyHessian"], fastest["landscape"]
        what = f"{2 * K} highest, {of}, to PyHessian's largest residual, {peer['residual']:.0e}"
        yield Row(what, {"landscape": in_words(mine), "PyHessian": f"{peer['seconds']:.3g} s{_wrong(peer)}"})


def in_words(search: Numbers) -> str:
    """What a search took, whether it was stopped, and whether it shows that ours is wrong."""
    is_whole = search["pairs"] == search["wanted"]
    short = "" if is_whole else f", {search['pairs']} of {search['wanted']} pairs"
    return f"{'' if is_whole else '> '}{search['seconds']:.3g} s{short}{_wrong(search)}"


def _wrong(search: Numbers) -> str:
    further = search.get("beyond")
    return f"; {further} of its eigenvalues lie further out than ours" if further else ""


if __name__ == "__main__":
    sys.exit(main("eigenvalues", parts()))
