"""Ten eigenvalues at each end of a block, and its twenty highest, beside the tools that search for them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.peers import Case, case
from landscape import EigenResult, eigsh, preset
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
TARGETS = {"curvlinops": 3.0, "hessian-eigenthings": None}
TOP_TARGET = 10.0
"""Targets count for mid."""
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
    residual = float(residuals(at, names, values, columns, norm).max())
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
    from hessian_eigenthings.algorithms.lanczos import lanczos_tridiagonal

    H = at.eigenthings(names)
    start = torch.randn(H.size, generator=torch.Generator().manual_seed(0), dtype=at.dtype)

    def both() -> tuple[Tensor, Tensor, int]:
        form = lanczos_tridiagonal(H, start, steps, reorthogonalize=True)
        m = len(form.alphas)
        theta, turn = torch.linalg.eigh(
            torch.diag(form.alphas) + torch.diag(form.betas[: m - 1], 1) + torch.diag(form.betas[: m - 1], -1)
        )
        ends = [*range(min(K, m)), *range(max(K, m - K), m)]
        return theta[ends], torch.stack(form.basis).T @ turn[:, ends], form.iterations

    seconds, (values, vectors, products) = timed(both)
    return {"seconds": seconds, "products": products, **judged(at, names, values.numpy(), vectors, mine)}


def best(ways: Mapping[str, Numbers]) -> str:
    """The way that found most pairs, and of several such the fastest."""
    return min(ways, key=lambda way: (-ways[way]["pairs"], ways[way]["seconds"]))


def tried(ways: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Seconds and pairs of each way."""
    return {way: {key: search[key] for key in ("seconds", "products", "pairs")} for way, search in ways.items()}


def residuals(at: Case, names: tuple[str, ...], values: Any, vectors: Tensor, norm: float) -> Tensor:
    """Residuals |H v - lambda v| / |H| of a peer's pairs, by our products."""
    v = vectors.to(at.dtype)
    v = v / v.norm(dim=0)
    return (at.landscape(names) @ v - v * torch.as_tensor(values)).norm(dim=0) / norm


def judged(at: Case, names: tuple[str, ...], values: Any, vectors: Tensor, mine: Numbers) -> Numbers:
    """How many of a peer's pairs are right, and whether it found eigenvalues that we missed."""
    errors = residuals(at, names, values, vectors, mine["norm"])
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


def lines(results: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 5."""
    for part, numbers in results.items():
        of = f"{numbers['preset']}, {numbers['block']} (n = {numbers['order']:,})"
        mine = numbers["landscape"]
        for tool, target in TARGETS.items():
            peer = numbers[tool]
            ratio = peer["seconds"] / mine["seconds"]
            how = RUNS[peer["run"]] if "run" in peer else f"{peer['steps']} steps"
            least = "" if _finished(peer) else "> "
            text = f"{least}{ratio:.2g}×; landscape: {in_words(mine)}; {tool}, {how}: {in_words(peer)}"
            what = f"{K} eigenvalues at each end, {of}, {tool}"
            yield _line(part, what, target if numbers["preset"] == "mid" else None, ratio, text, mine, peer)
        # PyHessian's faster setting decides.
        settings = sorted(numbers["top"], key=lambda setting: setting["PyHessian"]["seconds"])
        mine, peer = settings[0]["landscape"], settings[0]["PyHessian"]
        ratio = peer["seconds"] / mine["seconds"]
        text = "; ".join([f"{ratio:.2g}×", *map(_setting, settings)])
        what = f"{2 * K} highest eigenvalues, {of}, PyHessian"
        yield _line(part, what, TOP_TARGET if numbers["preset"] == "mid" else None, ratio, text, mine, peer)


def _line(part: str, what: str, target: float | None, ratio: float, text: str, mine: Numbers, peer: Numbers) -> Line:
    """Met: we found all pairs, none that the peer found is missing among them, and the ratio is large enough."""
    if peer["beyond"]:
        text += f"; not the same: {peer['beyond']} of its eigenvalues lie further out than ours"
    if target is None:
        return Line("5", what, "–", text, None, part)
    met = _finished(mine) and not peer["beyond"] and ratio >= target
    return Line("5", what, f"≥ {target:g}×", text, met, part)


def _setting(at: Numbers) -> str:
    """One setting of PyHessian in words, with our search to the residual which it reached."""
    peer, mine = at["PyHessian"], at["landscape"]
    text = f"maxIter={at['max_iter']}, tol={at['tol']:g}: {peer['seconds']:.3g} s, largest residual "
    text += f"{peer['residual']:.0e}, {peer['pairs']} of {peer['wanted']} pairs at {TOLERANCE:.0e}"
    return f"{text} (landscape, searching to {at['rtol']:.0e}: {in_words(mine, at['rtol'])})"


def _finished(search: Numbers) -> bool:
    return bool(search["pairs"] == search["wanted"])


def in_words(search: Numbers, tolerance: float = TOLERANCE) -> str:
    """The end of a search in words."""
    residual = "residual is unknown" if search["residual"] is None else f"largest residual {search['residual']:.0e}"
    if _finished(search):
        return f"{search['seconds']:.3g} s, {residual}"
    short = f"{search['pairs']} of {search['wanted']} pairs at {tolerance:.0e}"
    return f"not finished, stopped after {search['seconds']:.3g} s with {short}; of those found the {residual}"


if __name__ == "__main__":
    sys.exit(main("eigenvalues", parts()))
