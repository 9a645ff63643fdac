"""A problem whose samples are spread over ranks: rank 0 measures it, and the others do their part of every sum."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import landscape
from landscape import models
from landscape.config import AnalysisConfig, to_json
from landscape.curvature.checks import require_used
from landscape.curvature.coupling import require_convex
from landscape.curvature.data import sum_of
from landscape.curvature.objective import Ask, Objective, Parameters
from landscape.curvature.operators import BlockOperator, HessianOperator, Part
from landscape.curvature.part import Part as Samples
from landscape.curvature.part import taking
from landscape.errors import ArgumentError
from landscape.files.runs import RunReader
from landscape.models.factory import SEED, Source, unlike_problem
from landscape.models.fit import require_own_data
from landscape.models.problem import Arrays, Plain, Problem, Structure, Training
from landscape.models.trained import TrainedProblem
from landscape.ranks.group import Ranks, require_alike
from landscape.ranks.watch import RankError

_BY_HAND = "by hand"
_KEPT = 8
"""Blocks whose operators, and perhaps graphs, a rank keeps for further products."""
_ONE_VERSION = "install the same version on all machines"


def opened(reader: RunReader, config: AnalysisConfig, ranks: Ranks) -> tuple[SpreadProblem, Source | None]:
    """The problem of a run with its samples spread over ranks, each of which calls this; raises as models.opened.

    Raises LandscapeError for ranks with other code, libraries, settings or data than rank 0.
    """
    require_alike(ranks, "torch", metadata.version("torch"), _ONE_VERSION)
    require_alike(ranks, "landscape", f"{landscape.__version__} (source {_digest()})", _ONE_VERSION)
    require_alike(ranks, "settings", to_json(config), "give all ranks the same options")
    require_alike(ranks, "the run", str(reader.attrs["run_id"]), "give all ranks the same run file")
    samples = Samples(ranks.rank, ranks.size)
    # What each rank would say of the user's model is said once.
    with taking(samples), contextlib.redirect_stderr(io.StringIO()) if ranks.rank else contextlib.nullcontext():
        problem, source = models.opened(reader, config)
        part = problem.objective(0.0)
    if not source:
        require_own_data(problem, reader)
    else:
        require_alike(ranks, f"a source of --problem {source.name}", source.sha256[:12], "copy it to all machines")
        source = _agreed(ranks, problem, source)
    seen = hashlib.sha256(" ".join(samples.seen).encode()).hexdigest()[:12]
    hint = "the function that makes the problem must return the same on every rank: fix its seeds, copy its files"
    require_alike(ranks, "data or constants of the model that sum to", seen, hint)
    return SpreadProblem(problem, part, samples, ranks), source


class SpreadProblem:
    """A problem of which each rank has a part of the samples (cf. `Problem`), with the weights of the whole mean.

    Only rank 0 uses it as a problem: its sums over samples are those of all ranks, which `serve` meanwhile. Whatever is
    decided, such as how many products a search takes, is therefore decided by rank 0 alone. What is in closed form is
    computed by rank 0 from all samples.
    """

    def __init__(self, problem: Problem, part: Objective, samples: Samples, ranks: Ranks) -> None:
        self._whole, self._samples, self.ranks = problem, samples, ranks
        count = float(ranks.total(torch.tensor([part.count], dtype=torch.float64)))
        if not count > 0:
            raise ArgumentError("the weights of all samples or tokens are 0", "give some a weight above 0, or a target")
        self.count, self.share, self._part = count, part.count / count, part.spread(count)
        self.name, self.parameters, self.device = problem.name, problem.parameters, problem.device
        self.blocks, self.default_blocks, self.rows = problem.blocks, problem.default_blocks, problem.rows
        self.pairs, self.parts, self.balanced = problem.pairs, problem.parts, problem.balanced
        self.buffers: Mapping[str, tuple[int, ...]] = getattr(problem, "buffers", {})
        self._given: Mapping[str, Tensor] = {}
        self._current: list[Mapping[str, Tensor]] = [self._given]
        """The buffers that the other ranks have, of all problems that differ in theirs alone."""
        self._restart()

    def _restart(self) -> None:
        self._at: Parameters = {}
        self._same: list[Parameters] = []
        self._operators: dict[Ask, Callable[[Tensor], Tensor]] = {}

    def with_buffers(self, buffers: Mapping[str, Any]) -> SpreadProblem:
        """Rank 0: the problem with these buffers; the others follow when it is used."""
        found = copy.copy(self)
        found._given = {name: torch.as_tensor(value) for name, value in buffers.items()}
        found._take(found._given)
        return found

    def _take(self, buffers: Mapping[str, Tensor]) -> None:
        """Every rank: put buffers into the module."""
        self._whole = cast(Any, self._whole).with_buffers(buffers)
        with taking(self._samples):
            self._part = self._whole.objective(0.0).spread(self.count)
        self._restart()

    def decay(self, objective: str) -> float:
        """Weight decay of an objective."""
        return self._whole.decay(objective)

    def objective(self, decay: float) -> Objective:
        """The loss over the samples of all ranks."""
        with taking(self._samples):
            return self._whole.objective(decay).spread(self.count, self.sum)

    def structure(self, params: Mapping[str, Tensor], decay: float) -> Structure | None:
        """What the problem knows at a point, with products over all ranks."""
        found = self._whole.structure(params, decay)
        return found and cast(Structure, _SpreadStructure(self, found, params, decay))

    def training(self, reader: RunReader, step: int) -> Training:
        """What the trainer knew at a stored step."""
        return self._whole.training(reader, step)

    def plain(self, arrays: Arrays) -> Plain:
        """The model over the samples of this rank."""
        return self._whole.plain(arrays)

    def sum(self, ask: Ask, params: Parameters, vectors: Tensor, own: Callable[[Tensor], Tensor]) -> Tensor:
        """Rank 0: what `own` makes of vectors, plus what the others do."""
        self._move(params)
        self.ranks.say(("sum", ask, vectors.shape))
        if vectors.numel():
            self.ranks.broadcast(vectors.contiguous())
        self.ranks.working()
        return self.ranks.total(own(vectors).contiguous())

    def serve(self) -> int:
        """Another rank: do this rank's part of all that rank 0 sums up; returns the exit code."""
        while True:
            what, *told = self.ranks.say()
            if what == "end":
                return int(told[0])
            if what == "buffers":
                self._take(told[0])
            elif what == "at":
                self._arrive({name: self._empty(shape) for name, shape in told[0]})
            else:
                ask, shape = told
                vectors = self._empty(shape)
                if math.prod(shape):
                    self.ranks.broadcast(vectors)
                self.ranks.working()
                self.ranks.total(self._own(ask)(vectors).contiguous())

    def by_hand(self, params: Parameters) -> BlockOperator | None:
        """The products by hand over the samples here, as a mean over them; None if there are none."""
        if not isinstance(self._whole, TrainedProblem):
            return None
        structure = self._whole.part(self._samples).structure(params, 0.0)
        return structure.operator() if structure else None

    def _move(self, params: Parameters) -> None:
        """Rank 0: have all ranks at these parameters, and the buffers of this problem."""
        if self._current[0] is not self._given:
            self._current[0] = self._given
            self.ranks.say(("buffers", self._given))
            self._restart()
        if any(params is known for known in self._same):
            return
        if params.keys() == self._at.keys() and all(torch.equal(params[n], p) for n, p in self._at.items()):
            self._same.append(params)
            return
        self._same = [params]
        self.ranks.say(("at", [(name, p.shape) for name, p in params.items()]))
        self._arrive({name: p.detach().clone() for name, p in params.items()})

    def _arrive(self, params: dict[str, Tensor]) -> None:
        """Every rank: be at rank 0's parameters. Raises ArgumentError for one that no sample of any rank uses."""
        self._at, self._operators = {name: self.ranks.broadcast(p) for name, p in params.items()}, {}
        unused = [set(names) for names in self.ranks.gather(self._part.unused(self._at))]
        require_used([name for name in self._at if all(name in names for names in unused)])

    def _own(self, ask: Ask) -> Callable[[Tensor], Tensor]:
        """Another rank: its part of a sum, as a function of the vectors."""
        if ask not in self._operators:
            while len(self._operators) >= _KEPT:
                self._operators.pop(next(iter(self._operators)))
            self._operators[ask] = self._made(*ask)
        return self._operators[ask]

    def _made(self, what: str, rows: Sequence[str], cols: Sequence[str]) -> Callable[[Tensor], Tensor]:
        part, at = self._part, self._at
        if what == "value":
            return lambda _: part.own_value(at)
        if what == "gradient":
            leaves = {n: p.clone().requires_grad_() for n, p in at.items()}
            part.require_sound(leaves)
            return lambda _: part.own_gradient(leaves)
        if what == _BY_HAND:
            by_hand = self.by_hand(at)
            assert by_hand
            block, share = by_hand.block(rows, cols), self.share
            return lambda vectors: share * (block @ vectors)
        if what == "gauss_newton":
            require_convex(part, at)
        return HessianOperator(part, at, rows, cols, cast(Part, what)).own

    def _empty(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self.device)


class _SpreadStructure:
    """What is known at a point: exact results from all samples by rank 0, and products over all ranks."""

    def __init__(self, problem: SpreadProblem, whole: Structure, params: Parameters, decay: float) -> None:
        self._problem, self._whole, self._params, self._decay = problem, whole, params, decay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def operator(self) -> BlockOperator | None:
        """The Hessian by hand-derived products over all ranks."""
        own = self._problem.by_hand(self._params)
        return own and _SpreadBlock(self._problem, own, self._params, self._decay)


class _SpreadBlock(BlockOperator):
    """A block whose products by hand are summed over all ranks."""

    def __init__(self, problem: SpreadProblem, own: BlockOperator, params: Parameters, decay: float) -> None:
        self._problem, self._own, self._params, self._decay = problem, own, params, decay
        self.rows, self.cols, self.shape = own.rows, own.cols, own.shape
        self.dtype, self.device = own.dtype, own.device

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> _SpreadBlock:
        """The block that maps perturbations of `cols` (default: `rows`) to gradients of `rows`."""
        return _SpreadBlock(self._problem, self._own.block(rows, cols), self._params, self._decay)

    def _matmat(self, vectors: Tensor) -> Tensor:
        ask = (_BY_HAND, tuple(self.rows), tuple(self.cols))
        return self._problem.sum(ask, self._params, vectors, self._with_decay)

    def _with_decay(self, vectors: Tensor) -> Tensor:
        """Rank 0's part of a product: that of its samples, and of the decay all."""
        found = self._problem.share * (self._own @ vectors)
        if self._decay:
            sizes = [self._params[n].numel() for n in self.cols]
            pieces = dict(zip(self.cols, vectors.split(sizes), strict=True))
            rows = found.split([self._params[n].numel() for n in self.rows])
            for name, row in zip(self.rows, rows, strict=True):
                if name in pieces:
                    row += self._decay * pieces[name]
        return found


def _agreed(ranks: Ranks, problem: Problem, source: Source) -> Source:
    """Where the problem comes from, with the checksum that it has in one process.

    Raises RankError, on every rank, for the first of them that has another problem than rank 0.
    """
    if not source.checksum:
        return source
    batches: dict[int, int] = {}
    every = ranks.gather((source.checksum, getattr(problem, "data_sums", {})))
    for rank, (checksum, sums) in enumerate(every):
        own, first = ({**json.loads(one), "data": ""} for one in (checksum, every[0][0]))
        # Of batches each rank has its own.
        own["data"] = str(
            [number for number, found in sums.items() if batches.setdefault(number, found) != found] or ""
        )
        if differs := unlike_problem(json.dumps(first), json.dumps(own)):
            raise RankError(f"rank {rank} has {differs} other than rank 0", SEED)
    return dataclasses.replace(source, checksum=json.dumps(json.loads(source.checksum) | {"data": sum_of(batches)}))


def _digest() -> str:
    """A checksum of the package's own source."""
    root, found = Path(landscape.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:12]
