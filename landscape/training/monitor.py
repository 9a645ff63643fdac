"""The curvature of a network while it trains, in anybody's loop: cheap, within a budget of time, never in the way."""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from landscape.curvature.checks import require_count
from landscape.curvature.density import quadrature
from landscape.curvature.inertia import TAU_LANCZOS, saddle_index
from landscape.curvature.krylov import Lanczos, advance
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, LinearOperator
from landscape.curvature.preconditioned import Preconditioned
from landscape.curvature.vectors import gaussian
from landscape.errors import ArgumentError, suggest
from landscape.models.blocks import Blocks, named_blocks
from landscape.results import Shown
from landscape.training.preconditioner import kind_of_optimizer, preconditioner
from landscape.training.recorder import Recorder

if TYPE_CHECKING:
    import pandas as pd

Measured = Literal["sharpness", "preconditioned_sharpness", "index"]
Values = dict[str, float]
ALL = "all"
"""The block of all parameters, whose values have no block in their names."""
_RTOL = 1e-2
"""Residual of a sharpness relative to |H|; its error is the square of that where no other eigenvalue is near."""
_PRODUCTS = 40
"""Most products of one search."""
_FRESH = 0.3
"""Random part of a start vector, relative to the vector of the measurement before."""
_DENSE = 512
"""Largest block whose index is certified by factorising it."""
_PROBES, _PROBE_STEPS = 2, 30


class Monitor(Shown):
    """Measures the curvature of an objective now and then while its model trains.

    Call it after each step of the optimiser; most calls do nothing:

        monitor = landscape.Monitor(landscape.Objective(model, batch, loss), optimizer, every=200, to=writer)
        for step, batch in enumerate(batches, 1):
            ...
            optimizer.step()
            monitor(step)

    Nothing of the training changes: no gradient, mode, buffer or random number. The model is measured in evaluation
    mode, at the data of the objective. Once it is made, nothing here stops a run: what goes wrong is a warning.

    Args:
        objective: the loss on some fixed data, of the module that trains.
        optimizer: the one that trains it; "preconditioned_sharpness" and the limits of stability come from its state.
        every: steps from one measurement to the next, at least.
        blocks: parameters or patterns such as "*.attn.*" by name; "all" is every parameter, and the default.
        quantities: some of
            "sharpness", the largest eigenvalue of the Hessian, never above the true one, and "sharpness_residual",
            |Hv - lambda v| of its unit vector v, within which of it an eigenvalue lies;
            "preconditioned_sharpness", that of D^(-1/2) H D^(-1/2), D = sqrt(v / (1 - beta_2^t)) + eps of Adam or
            AdamW, sqrt(v) + eps of RMSprop, 1 of SGD, over each parameter's learning rate relative to the largest;
            "index", eigenvalues below -1e-3 |H|: certified for small blocks, else an estimate with its 95 % interval.
        share: of the time of training, what measurements may take; they are spaced out to keep to it.
        to: where values go: a `Recorder`, TensorBoard's SummaryWriter, a run of W&B or a function of (step, values).

    Raises:
        ArgumentError: for unknown quantities and blocks, an objective of a function instead of a module, and an
            optimiser whose preconditioner is not known.

    Source: sharpness at 2/lr, arXiv 2103.00065; preconditioned sharpness at 38/lr, arXiv 2207.14484.
    """

    shown = ("quantities", "blocks", "every", "share", "count", "overhead")

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 200,
        blocks: Blocks | None = None,
        quantities: Sequence[Measured] = ("sharpness",),
        share: float = 0.1,
        to: Any = None,
    ) -> None:
        require_count("every", every)
        if not share > 0:
            raise ArgumentError(f"share is {share}", "give a share of the training time, such as 0.1")
        for name in quantities:
            if name not in get_args(Measured):
                raise ArgumentError(f"unknown quantity {name!r}", suggest(name, get_args(Measured)))
        module = objective.module
        if module is None:
            raise ArgumentError("the objective is of a function", "give Objective the torch module that trains")
        self.objective, self.every, self.share, self.quantities = objective, every, share, tuple(quantities)
        self._model, self._optimizer = module, optimizer
        self._send = _sender(to)
        parameters = self._parameters()
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.blocks = {ALL: tuple(parameters)} if blocks is None else dict(named_blocks(blocks, (), shapes))
        if "preconditioned_sharpness" in quantities:
            if optimizer is None:
                raise ArgumentError(
                    "preconditioned_sharpness without an optimizer", "give the one that trains the model"
                )
            kind_of_optimizer(optimizer)
        self.history: list[tuple[int, Values]] = []
        """Steps and what was measured there."""
        self._started: float | None = None
        self._spent = self._last_cost = 0.0
        self._next = 0
        self._before: dict[tuple[str, str], Tensor] = {}
        self._warned: set[str] = set()

    @property
    def count(self) -> int:
        """Measurements so far."""
        return len(self.history)

    @property
    def overhead(self) -> float:
        """Time of measurements over that of the training without them."""
        if self._started is None:
            return 0.0
        trained = time.monotonic() - self._started - self._spent
        return self._spent / trained if trained > 0 else float("inf")

    def __call__(self, step: int) -> Values:
        """Measure, if it is time to.

        Args:
            step: optimiser steps so far.

        Returns:
            Values by name, such as "sharpness", "sharpness/BLOCK" and "sharpness_limit"; none between measurements.
        """
        if self._started is None:
            self._started = time.monotonic()
        if step < self._next or not self._is_affordable():
            return {}
        self._next = (step // self.every + 1) * self.every
        began = time.monotonic()
        values: Values = {}
        with self._never_raising():
            values = self.measure()
            self.history.append((step, values))
            self._send(step, values)
        self._last_cost = time.monotonic() - began
        self._spent += self._last_cost
        return values

    def measure(self) -> Values:
        """The values of this moment, whatever the time.

        Raises:
            LandscapeError: for an objective that has no Hessian there.
        """
        values: Values = {}
        with _evaluating(self._model):
            parameters = self._parameters()
            whole = HessianOperator(self.objective, parameters)
            preconditioned: LinearOperator = whole
            if "preconditioned_sharpness" in self.quantities and self._optimizer:
                preconditioned = Preconditioned(whole, preconditioner(self._optimizer, parameters))
            for block, names in self.blocks.items():
                H = whole if block == ALL else whole.block(names)
                of_block: Values = {}
                if "sharpness" in self.quantities:
                    of_block |= self._largest(block, "sharpness", H)
                if "preconditioned_sharpness" in self.quantities:
                    of_block |= self._largest(block, "preconditioned_sharpness", preconditioned.block(names))
                if "index" in self.quantities:
                    of_block |= _index(H)
                values |= {name if block == ALL else f"{name}/{block}": value for name, value in of_block.items()}
        return values | (limits(self._optimizer) if self._optimizer else {})

    def to_dataframe(self) -> pd.DataFrame:
        """What was measured, a row a step."""
        import pandas as pd

        return pd.DataFrame([{"step": step, **values} for step, values in self.history])

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def _is_affordable(self) -> bool:
        """Whether a measurement as long as the last one keeps to the share."""
        assert self._started is not None
        trained = time.monotonic() - self._started - self._spent
        return self._spent + self._last_cost <= self.share * trained or not self._spent

    def _largest(self, block: str, name: str, op: LinearOperator) -> Values:
        """The largest Ritz value and its residual, from the vector of the measurement before and a random part.

        Without that part a direction that has overtaken the old one would long stay unseen.
        """
        n = op.shape[0]
        run = Lanczos(op, min(_PRODUCTS, n))
        start = gaussian(n, 1, self.count).to(op.device, op.dtype) / n**0.5
        before = self._before.get((block, name))
        run.lead(start if before is None else before + _FRESH * start)
        is_done = False
        while not is_done:
            advance(op, [run])
            run.project()
            residual = float(run.residuals()[-1])
            is_done = run.exhausted or run.filled == run.columns or residual <= _RTOL * float(np.abs(run.theta).max())
        self._before[block, name] = run.vectors(np.array([-1]))
        return {name: float(run.theta[-1]), f"{name}_residual": residual}

    @contextlib.contextmanager
    def _never_raising(self) -> Iterator[None]:
        """Turn any error into a warning, once for each kind."""
        try:
            yield
        except Exception as error:
            if (kind := re.sub(r"\d[\d.,]*", "", str(error))) not in self._warned:
                self._warned.add(kind)
                hint = f" ({hint})" if (hint := getattr(error, "hint", "")) else ""
                text = f"curvature was not measured: {error}{hint}; said once, and the training goes on"
                warnings.warn(text, stacklevel=4)


def limits(optimizer: torch.optim.Optimizer) -> Values:
    """Where full-batch steps become unstable on a quadratic, at the largest learning rate.

    Returns:
        "sharpness_limit" of SGD, 2 (1 + momentum) / lr; "preconditioned_sharpness_limit", the same of SGD and RMSprop,
        and (2 + 2 beta_1) / ((1 - beta_1) lr) of Adam and AdamW, 38 / lr at beta_1 = 0.9. None of other optimisers.
    """
    group = max(optimizer.param_groups, key=lambda group: float(group["lr"]))
    rate = float(group["lr"])
    if not rate:
        return {}
    try:
        kind = kind_of_optimizer(optimizer)
    except ArgumentError:
        return {}
    if "betas" in group:
        beta = float(group["betas"][0])
        return {"preconditioned_sharpness_limit": (2 + 2 * beta) / ((1 - beta) * rate)}
    limit = 2 * (1 + group["momentum"]) / rate
    plain = {"sharpness_limit": limit} if kind is torch.optim.SGD else {}
    return {**plain, "preconditioned_sharpness_limit": limit}


def _index(H: LinearOperator) -> Values:
    """Eigenvalues below -1e-3 |H|, certified or with an interval."""
    if H.shape[0] <= _DENSE:
        index = saddle_index(H, TAU_LANCZOS, "dense")
        return {"index": index.lower, "index_low": index.lower, "index_high": index.upper}
    rule = quadrature(H, _PROBES, _PROBE_STEPS)
    count = rule.count_below(-TAU_LANCZOS * rule.norm)
    return {"index": count.value, "index_low": count.low, "index_high": count.high}


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; every part of it is put back."""
    modes = {part: part.training for part in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _sender(to: Any) -> Callable[[int, Values], object]:
    """What takes the values of a step."""
    if to is None:
        return lambda step, values: None
    if isinstance(to, Recorder):
        return lambda step, values: to.metrics(step, values)
    if callable(add := getattr(to, "add_scalar", None)):
        return lambda step, values: [add(f"curvature/{name}", value, step) for name, value in values.items()]
    if callable(log := getattr(to, "log", None)):
        # With the next values that the training itself logs, at its own step.
        tag = "curvature/"
        return lambda step, values: log({tag + n: v for n, v in values.items()} | {f"{tag}step": step}, commit=False)
    if callable(to):
        send: Callable[[int, Values], object] = to
        return send
    raise ArgumentError(
        f"`to` is {type(to).__name__}", "give a Recorder, a SummaryWriter, a run of W&B or a function of (step, values)"
    )
