"""Results of five Hessian tools on known traps. Exit status 1 if `landscape` is wrong anywhere."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from curvlinops import HessianLinearOperator
from curvlinops.papyan2020traces.spectrum import fast_lanczos, lanczos_approximate_spectrum
from pyhessian import hessian as PyHessian
from pyhessian.utils import hessian_vector_product
from scipy.linalg import eigvalsh, null_space
from scipy.optimize import brentq
from scipy.sparse.linalg import eigsh as arpack
from scipy.special import ndtr
from scipy.stats import ortho_group
from torch import Tensor, nn

from benchmarks import coverage
from benchmarks.peers import case
from landscape import (
    HessianOperator,
    LandscapeError,
    MatrixOperator,
    Objective,
    TrainConfig,
    eigsh,
    saddle_index,
    train,
)

TOOLS = ("landscape", "PyHessian", "curvlinops", "SciPy", "torch.func.hessian")
MODULUS, HIDDEN = 11, 16
INTRODUCTION = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
Tools = dict[str, Callable[[], Any]]
Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; cells: result and ✓ or ✗ by tool."""

    trap: str
    computed: str
    tolerance: str
    truth: str
    cells: dict[str, str]


def row(trap: str, computed: str, truth: Any, tools: Tools, tol: float = 0.0) -> Row:
    """Run the tools; each returns its result or (result, remark). tol: relative to the truth's norm; 0: exact."""
    exact, cells = np.atleast_1d(np.asarray(truth, dtype=np.float64)), dict.fromkeys(TOOLS, "–")
    norm = functools.partial(np.linalg.norm, ord=2 if exact.ndim == 2 else np.inf)
    for tool, run in tools.items():
        torch.manual_seed(0)
        try:
            outcome = run()
            result, remark = outcome if isinstance(outcome, tuple) else (outcome, "")
            value = np.atleast_1d(np.asarray(result, dtype=np.float64))
            error = norm(value - exact) / (norm(exact) or 1) if value.shape == exact.shape else np.inf
            shown = f"error {error:.1e}" if exact.ndim == 2 else numbers(value)
            cells[tool] = f"{shown} {remark} {'✓' if error <= tol else '✗'}".replace("  ", " ")
        except LandscapeError as problem:
            cells[tool] = f"refused: {problem} –"
        except Exception as problem:
            cells[tool] = f"{type(problem).__name__} ✗"
    return Row(trap, computed, f"{tol:.0e}" if tol else "exact", "H" if exact.ndim == 2 else numbers(exact), cells)


def numbers(values: Array) -> str:
    """The values; for many seeds the frequency of each."""
    counted = [f"{v:.0f} ({n}×)" for v, n in zip(*np.unique(values, return_counts=True), strict=True)]
    return ", ".join(counted if len(values) >= 20 else [f"{v:.4g}" for v in values])


def loss_module(function: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A function of (outputs, targets) in the form that curvlinops takes."""
    module = nn.Module()
    module.forward, module.reduction = function, "mean"  # type: ignore[assignment]
    return module


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its data and the block to differentiate by, passed to each tool as its users do."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    names: tuple[str, ...]
    loss: nn.Module = dataclasses.field(default_factory=nn.CrossEntropyLoss)
    batch: int | None = None

    @property
    def block(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if n in self.names}

    @property
    def point(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.block.values()).detach()

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        step = self.batch or len(self.inputs)
        return list(zip(self.inputs.split(step), self.targets.split(step), strict=True))

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([p.numel() for p in self.block.values()])
        return {n: v.view_as(p) for (n, p), v in zip(self.block.items(), parts, strict=True)}

    def value(self, flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(torch.func.functional_call(self.model, self.unflatten(flat), (inputs,)), targets)

    def cast(self, dtype: torch.dtype) -> Case:
        return dataclasses.replace(self, model=copy.deepcopy(self.model).to(dtype))

    def truth(self) -> Array:
        """In float64, over all samples at once, with a cross-entropy that keeps its digits."""
        exact = dataclasses.replace(self, loss=loss_module(exact_cross_entropy), batch=None)
        return exact.cast(torch.float64).torch_matrix()

    def landscape(self, **options: Any) -> HessianOperator:
        options |= {"chunk_size": self.batch, "dtype": self.point.dtype}
        objective = Objective(self.model, self.inputs, self.targets, **options)
        return HessianOperator(objective, {n: self.block[n] for n in self.names})

    def pyhessian(self, shared: bool = False) -> Any:
        model = self.model if shared else copy.deepcopy(self.model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.names)
        data = {"dataloader": self.batches} if self.batch else {"data": self.batches[0]}
        return PyHessian(model, self.loss, cuda=False, **data)

    def pyhessian_matrix(self, shared: bool = False) -> Array:
        """Its product with every unit vector, by the function that its eigenvalues use."""
        solver, columns = self.pyhessian(shared), []
        for unit in torch.eye(len(self.point), dtype=self.point.dtype):
            v = list(self.unflatten(unit).values())
            Hv = self.batch and solver.dataloader_hv_product(v)[1]
            Hv = Hv or hessian_vector_product(solver.gradsH, solver.params, v)
            columns.append(torch.cat([h.reshape(-1) for h in Hv]))
        return torch.stack(columns).double().numpy()

    def curvlinops(self) -> HessianLinearOperator:
        return HessianLinearOperator(self.model, self.loss, list(self.block.values()), self.batches)

    def curvlinops_matrix(self) -> Array:
        return (self.curvlinops() @ torch.eye(len(self.point), dtype=self.point.dtype)).detach().double().numpy()

    def torch_matrix(self) -> Array:
        """torch.func.hessian; over batches the plain mean, as in the usual loop."""
        hessians = [torch.func.hessian(self.value)(self.point, *batch) for batch in self.batches]
        return torch.stack(hessians).mean(0).detach().double().numpy()

    def matrices(self) -> Tools:
        own = {"landscape": lambda: self.landscape().dense(), "torch.func.hessian": self.torch_matrix}
        return own | {"PyHessian": self.pyhessian_matrix, "curvlinops": self.curvlinops_matrix}

    def pyhessian_mass(self) -> int:
        at, weights = (np.array(x[0]) for x in self.pyhessian().density(iter=100))
        return round(len(self.point) * float(weights @ ndtr(-at / np.sqrt(1e-5 * max(1.0, np.ptp(at))))))

    def curvlinops_mass(self) -> int:
        grid, density = lanczos_approximate_spectrum(self.curvlinops(), ncv=100)
        return round(len(self.point) * float(density[grid < 0].sum() * (grid[1] - grid[0])))


def exact_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 + sum of exp(z_c - z_y) over the wrong classes), averaged."""
    others = logits - logits.gather(1, labels[:, None])
    return others.scatter(1, labels[:, None], -torch.inf).exp().sum(1).log1p().mean()


@functools.cache
def trained(steps: int, loss: float = 0.0) -> Case:
    """The network after some steps of Adam, in float64; then its logits scaled until the loss is as given."""
    torch.manual_seed(0)
    layers = nn.Embedding(MODULUS, 4), nn.Flatten(), nn.Linear(8, HIDDEN, False), nn.Tanh()
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, MODULUS, False)).double()
    pairs = torch.cartesian_prod(torch.arange(MODULUS), torch.arange(MODULUS))[torch.randperm(MODULUS**2)[:70]]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        exact_cross_entropy(model(pairs), pairs.sum(1) % MODULUS).backward()
        optimiser.step()
    if loss:
        logits, ce = model(pairs).detach(), functools.partial(exact_cross_entropy, labels=pairs.sum(1) % MODULUS)
        model[4].weight.data.mul_(brentq(lambda s: (ce(s * logits) / loss).log().item(), 0.1, 100))
    return Case(model, pairs, pairs.sum(1) % MODULUS, ("0.weight", "2.weight", "4.weight"))


def rotated(eigenvalues: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    Q = ortho_group.rvs(len(eigenvalues), random_state=0)
    return torch.tensor((Q * eigenvalues) @ Q.T, dtype=dtype)


def quadratic(A: Tensor) -> Case:
    """A model whose Hessian is A: it returns its parameters, and the loss is x·Ax/2."""
    one, loss = torch.ones(1, 1, dtype=A.dtype), loss_module(lambda x, _: 0.5 * x[0] @ A @ x[0])
    return Case(nn.Linear(1, len(A), False).to(A), one, one, ("weight",), loss)


def solvers(A: Tensor, k: int, which: Any = "highest") -> Tools:
    """The k eigenvalues of largest magnitude, which PyHessian computes, at the end(s) `which`."""
    case, own = quadratic(A), MatrixOperator(A)
    end = {"lowest": "SA", "highest": "LA", "both": "LM"}[which]
    search = functools.partial(eigsh, own, k, which, "lanczos", max_hvps=10_000)
    scipy = functools.partial(arpack, k=k, which=end, return_eigenvectors=False)
    searches: Tools = {
        "landscape": lambda: search(seed=torch.initial_seed()).values.ravel(),
        "PyHessian": lambda: case.pyhessian().eigenvalues(maxIter=200, tol=1e-6, top_n=k)[0],
        "curvlinops": lambda: scipy(case.curvlinops().to_scipy(), rng=torch.initial_seed()),
        "SciPy": lambda: scipy(A.numpy(), rng=torch.initial_seed()),
        "torch.func.hessian": lambda: np.linalg.eigvalsh(case.torch_matrix()),
    }
    return after(lambda values: np.array(sorted(values, key=abs, reverse=True)[:k]), searches)


def nodes(A: Tensor, steps: int) -> Tools:
    """Nodes of each tool's own Lanczos process; of `landscape` about as many eigenvalues, from both ends."""
    case, own, k = quadratic(A), MatrixOperator(A), min(steps, len(A)) // 2
    return {
        "landscape": lambda: eigsh(own, k, "both", "lanczos", seed=torch.initial_seed()).values.ravel(),
        "PyHessian": lambda: np.array(case.pyhessian().density(iter=steps)[0][0]),
        "curvlinops": lambda: fast_lanczos(case.curvlinops(), steps)[0].numpy(),
    }


def after(function: Callable[[Any], Any], tools: Tools) -> Tools:
    """A function applied to each tool's result."""
    return {tool: lambda run=run: function(run()) for tool, run in tools.items()}


def copies(tools: Tools, within: float, seeds: int) -> Tools:
    """How many values each tool finds within a distance of -1, by seed."""
    once = after(lambda values: int((np.abs(values + 1) < within).sum()), tools)
    return {t: lambda run=f: [run() for s in range(seeds) if torch.manual_seed(s)] for t, f in once.items()}


def invented(spectrum: Array) -> Callable[[Array], int]:
    """Counts the values farther than half a percent of the norm from every eigenvalue."""
    return lambda values: int((np.abs(values[:, None] - spectrum).min(1) > 5e-3 * np.abs(spectrum).max()).sum())


def low_precision() -> Iterator[Row]:
    """1, 2: cancellation in log-softmax; parameters stored in bfloat16, H in float64 from what was stored."""
    for dtype, losses, tol in ((torch.float32, (3e-3, 4e-6, 1e-7, 5e-9), 1e-4), (torch.float64, (5e-9,), 1e-6)):
        for loss in losses:
            case, computed = trained(1000, loss), f"H in {str(dtype)[6:]} at loss {loss:.0e}"
            yield row("low training loss", computed, case.truth(), case.cast(dtype).matrices(), tol)
    case, kept, remark = trained(1000), torch.bfloat16, ""
    try:
        config = TrainConfig(p=5, tokens=2, batch_size="full", steps=1, dtype="bfloat16")  # type: ignore[arg-type]
        train(config, Path(tempfile.mkdtemp()) / "run.h5", quiet=True)
    except Exception as problem:
        kept, remark = torch.float32, f"from float32 (bfloat16: {type(problem).__name__})"
    own = {"landscape": lambda: (case.cast(kept).cast(torch.float64).landscape().dense(), remark)}
    tools = case.cast(torch.bfloat16).cast(torch.float64).matrices() | own
    yield row("checkpoint in bfloat16", "H from the stored parameters", case.truth(), tools, 1e-4)


def prescribed_spectra() -> Iterator[Row]:
    """3, 4, 11: ends of nearly equal size; absolute thresholds; identity, zero, more eigenvalues than rows."""
    spectrum = np.array([5, -4.95, 3, -2.9, *np.linspace(-1e-3, 1e-3, 96)])
    yield row("ends of equal size", "4 largest", spectrum[:4], solvers(rotated(spectrum), 4, "both"), 1e-4)
    for norm in (1e-6, 1e-7, 1e-13):
        spectrum = norm * np.array([1, 0.8, 0.6, *np.linspace(0.2, 0, 97)])
        yield row("tiny norm", f"3 highest, ‖H‖ = {norm:.0e}", spectrum[:3], solvers(rotated(spectrum), 3), 1e-4)
    for trap, spectrum, k in (("identity", np.ones(50), 3), ("zero", np.zeros(50), 3), ("m > n", np.r_[6.0:0:-1], 10)):
        A = torch.diag(torch.tensor(spectrum))
        yield row(trap, f"{k} highest, n = {len(A)}", spectrum[:k], solvers(A, k), 1e-4)
        yield row(trap, f"invented by 12 Lanczos steps, n = {len(A)}", 0, after(invented(spectrum), nodes(A, 12)))


def lanczos() -> Iterator[Row]:
    """5, 6, 7: breakdown at rank 10; a multiple eigenvalue from 20 start vectors; a simple one that comes twice."""
    spectrum = np.r_[10.0:0.0:-1, np.zeros(80)]
    for dtype in (torch.float32, torch.float64):
        for what, tools in (("eigenvalues", solvers), ("Lanczos nodes", nodes)):
            counts = after(invented(spectrum), tools(rotated(spectrum, dtype), 20))
            yield row("rank 10", f"invented among 20 {what}, {str(dtype)[6:]}", 0, counts)
    A = rotated([*[-1.0] * 10, *np.linspace(-0.5, 0.9, 190)])
    for what, tools in (("10 eigenvalues", solvers(A, 10, "lowest")), ("60 Lanczos nodes", nodes(A, 60))):
        yield row("multiplicity 10", f"copies of −1 among {what}, 20 seeds", [10] * 20, copies(tools, 1e-4, 20))
    crowded = np.random.default_rng(0).uniform(0, 1, 400) ** 2.2 - 1
    for number, gap, k in ((6, 1e-5, 10), (12, 1e-3, 14)):
        tools = copies(solvers(rotated([*[-1.0] * number, *(crowded + gap)]), k, "lowest"), gap / 2, 4)
        trap = f"multiplicity {number}, {gap:.0e} before a crowded edge"
        yield row(trap, f"copies of −1 among {k} eigenvalues, 4 seeds", [number] * 4, tools)
    tools = nodes(rotated([10, *np.linspace(0, 1, 199)]), 120)
    counts = after(lambda values: int((np.abs(values - 10) < 1e-3).sum()), tools)
    yield row("ghosts", "copies of the simple λ_max among 120 Lanczos nodes", 1, counts)


def models() -> Iterator[Row]:
    """8, 9, 10: ragged batches; a second operator on a model; parameters ignored, frozen or without curvature."""
    case = trained(10).cast(torch.float64)
    ragged = dataclasses.replace(case, batch=64)
    plain = {"torch.func.hessian": lambda: (ragged.torch_matrix(), "(mean of the batches' H)")}
    yield row("ragged batches, 64 + 6", "H", case.truth(), ragged.matrices() | plain, 1e-4)
    tools = case.matrices() | {"PyHessian": lambda: case.pyhessian_matrix(shared=True)}
    again = {t: lambda f=f: (f(), f())[1] for t, f in tools.items()}
    yield row("second operator on a model", "H", case.truth(), again, 1e-4)
    torch.manual_seed(0)
    model, x, y = nn.Linear(2, 3, False).double(), torch.randn(20, 2, dtype=torch.float64), torch.arange(20) % 3
    model.spare = nn.Parameter(torch.ones(2, dtype=torch.float64))
    kinds = {"H with a parameter the model ignores": ("weight", "spare"), "H beside a frozen one": ("weight",)}
    for what, names in kinds.items():
        case = Case(model, x, y, names)
        yield row("zero curvature", what, case.truth(), case.matrices(), 1e-6)
    linear = dataclasses.replace(case, loss=loss_module(lambda outputs, _: outputs.sum(1).mean()))
    tools = linear.matrices() | {"landscape": lambda: linear.landscape(loss=lambda outputs, _: outputs.sum(1)).dense()}
    yield row("zero curvature", "H = 0 of a linear loss", np.zeros((6, 6)), tools, 1e-6)


def indices() -> Iterator[Row]:
    """12, 13: negative eigenvalues, from a density and by their sign; softmax makes as many null vectors as units."""
    for name, names in (("V (convex)", ("4.weight",)), ("W,V", ("2.weight", "4.weight"))):
        case = dataclasses.replace(trained(10), names=names)
        n = len(case.point)
        null = np.vstack([np.zeros((n - HIDDEN * MODULUS, HIDDEN)), np.tile(np.eye(HIDDEN), (MODULUS, 1))])
        values = np.linalg.eigvalsh(null_space(null.T).T @ case.truth() @ null_space(null.T))
        assert np.abs(values).min() > 1e-8 * np.abs(values).max(), "the truth is not certain"
        truth, block = int((values < 0).sum()), f"block {name}, n = {n}"
        own = after(lambda i: (i.negative, i.level), {"landscape": functools.partial(saddle_index, case.landscape())})
        tools = own | {"PyHessian": case.pyhessian_mass, "curvlinops": case.curvlinops_mass}
        yield row("density as an index", f"n × negative mass, {block}", truth, tools)
        tools = {"curvlinops": case.curvlinops_matrix} | dict.fromkeys(TOOLS[3:], case.torch_matrix)
        tools = after(lambda H: int((eigvalsh(H) < 0).sum()), tools)
        yield row("exact null vectors", f"(eig < 0).sum(), {block}", truth, own | tools)


def complements() -> Iterator[Row]:
    """Indices of E,W and W,V by Schur complements, as in networks whose blocks are no matrices, beside the matrices."""
    widths = itertools.product((2, 4), (4, 11, 16), (0, 100, 400))
    nets = [
        (TrainConfig(p=11, tokens=s, embed_dim=d, hidden=24, train_fraction=0.5, batch_size="full"), step)
        for s, d, step in widths
    ]
    for name in ("E,W", "W,V"):
        held, counted, asked = 0, 0, 0
        for config, step in nets:
            at = case(config, step)
            values = np.linalg.eigvalsh(at.problem.structure(at.params, 0.0).dense(name.split(",")))
            tolerances = [10.0**-decade * float(np.abs(values).max()) for decade in (3, 5, 7, 9, 11)]
            structure, margin = at.problem.structure(at.params, 0.0), 1e-13 * float(np.abs(values).max())
            brackets = structure.index(name.split(","), tolerances, 1 << 40, lambda share: None)
            for tau, (lower, upper) in zip(tolerances, brackets, strict=True):
                least, most = (int((values < -tau + side).sum()) for side in (-margin, margin))
                held += lower <= most and upper >= least
                counted += lower == upper
                asked += 1
        what = f"brackets that hold n₋ of {name}, {len(nets)} networks, τ from 1e-3 to 1e-11 ‖H‖"
        own = functools.partial(lambda held, counted: (held, f"({counted} of them one number)"), held, counted)
        yield row("index without the matrix", what, asked, {"landscape": own})


def slices() -> Iterator[Row]:
    """14: curvature of the loss along the leading eigenvector, as returned and rescaled per tensor."""
    case = trained(10)
    vectors: Tools = {
        "landscape": lambda: eigsh(case.landscape(), 1, "highest", "lanczos").vectors[0, :, 0],
        "PyHessian": lambda: torch.cat([v.reshape(-1) for v in case.pyhessian().eigenvalues(200, 1e-6)[1][0]]),
        "curvlinops": lambda: arpack(case.curvlinops().to_scipy(), 1, which="LA", rng=0)[1][:, 0],
        "SciPy": lambda: arpack(case.torch_matrix(), 1, which="LA", rng=0)[1][:, 0],
        "torch.func.hessian": lambda: np.linalg.eigh(case.torch_matrix())[1][:, -1],
    }

    def curvature(v: Any, rescale: bool = False) -> float:
        parts = case.unflatten(torch.as_tensor(v).double()).items()
        scaled = [v / v.norm() * case.block[n].detach().norm() if rescale else v for n, v in parts]
        direction = nn.functional.normalize(torch.cat([v.reshape(-1) for v in scaled]), dim=0)
        along = torch.func.hessian(lambda t: case.value(case.point + t * direction, case.inputs, case.targets))
        return float(along(torch.zeros((), dtype=torch.float64)))

    top, trap = float(np.linalg.eigvalsh(case.truth())[-1]), "slice along an eigenvector"
    yield row(trap, "curvature (λ_max)", top, after(curvature, vectors), 1e-5)
    del vectors["landscape"]
    what = "the same, tensors rescaled to the parameters' norms as plots do, then unit length"
    yield row(trap, what, top, after(functools.partial(curvature, rescale=True), vectors), 1e-5)


def main() -> int:
    """Run every trap and write the page; 1 if `landscape` is wrong anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    packages = ("torch", "numpy", "scipy", "PyHessian", "curvlinops-for-pytorch", "landscape-hessian")
    try:
        density = torch.eig(torch.eye(2), eigenvectors=True) and "As installed."
    except Exception as problem:
        density = f"As installed it raises {type(problem).__name__}; here `torch.linalg.eigh` replaces its `torch.eig`."
        torch.eig = lambda T, eigenvectors: (torch.linalg.eigh(T)[0][:, None], torch.linalg.eigh(T)[1])
    rows = [*low_precision(), *prescribed_spectra(), *lanczos(), *models(), *indices(), *complements(), *slices()]
    lines = [("trap", "computed", "tolerance", "truth", *TOOLS), ("---",) * (4 + len(TOOLS))]
    lines += [(r.trap, r.computed, r.tolerance, r.truth, *r.cells.values()) for r in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    head = INTRODUCTION.format(density=density, versions=", ".join(f"{name} {version(name)}" for name in packages))
    out.write_text(
        f"{head}\n{table}\n\n{coverage.section()}\n\nMade by `python benchmarks/accuracy.py`.\n", encoding="utf-8"
    )
    for r in (wrong := [r for r in rows if "✗" in r.cells["landscape"]]):
        print(f"landscape is wrong: {r.trap}: {r.computed}: {r.cells['landscape']} truth {r.truth}")
    print(f"{out}: {len(rows)} rows; landscape is wrong in {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
