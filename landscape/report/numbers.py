"""The key numbers of a run: when it memorised and grokked, and its curvature at one analysed step."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from landscape.measure.quantities.curve import QUOTED
from landscape.models.embedding_mlp.blocks import BALANCED, CLAIM, CONTROL
from landscape.report.sources import Source
from landscape.results import best_known

STABLE = {"sharpness_adam": 38.0, "sharpness_gd": 2.0}
"""Largest stable value of each sharpness (arXiv 2207.14484, 2103.00065)."""
RATES = tuple(f"lr_{name}" for name in BALANCED)
"""The metrics that hold the learning rates which Proposition 4.1 balances."""
_SHOWN = 2
"""Pairs that are described where a model has no pair of the claims."""


@dataclasses.dataclass(frozen=True)
class BlockNumbers:
    """The curvature of a block, or of a pair's joint block, at one step. NaN: not measured."""

    block: str
    step: int
    highest: float
    """λ_max."""
    lowest: float
    """λ_min."""
    depth: float
    """−λ_min; 0 where the block has no negative curvature beyond rounding."""
    are_bounds: bool
    """Whether the search of an end did not converge, so that eigenvalues may lie further out."""
    lower: float
    """Lower bound of the saddle index."""
    upper: float
    """Upper bound of the saddle index."""
    estimate: tuple[float, float, float]
    """Of an index that is not counted, with its 95 % interval; NaN otherwise."""
    level: str
    """How the saddle index is known."""
    tolerance: float
    """Eigenvalues below minus this count as negative."""
    trace: float
    trace_error: float
    """One standard error."""
    kappa: float
    """The largest coupling ratio of a pair."""
    is_kappa_bound: bool
    """Whether nothing bounds its error, so that it is at least this."""
    above: float
    """Coupling ratios above 1."""


@dataclasses.dataclass(frozen=True)
class CurveNumbers:
    """The index curve of a block at one step, where it is quoted."""

    block: str
    tolerance: float
    """That of the block's saddle index, relative to ‖H‖."""
    index: tuple[float, float]
    """Bounds of that saddle index."""
    counts: dict[float, tuple[float, float, float]]
    """Bounds, and the best that is known between them, by tolerance."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The key numbers of a source. None and NaN: not known."""

    run: str
    memorised: int | None
    grokked: int | None
    diverged: int | None
    last_step: int | None
    """The last step with recorded metrics."""
    test_accuracy: float
    recorded: dict[str, tuple[int, float]]
    """Accuracies and losses that another training loop recorded: the last step and value of each."""
    step: int | None
    """The analysed step of the numbers below."""
    where: str
    """Where this step lies: on the plateau, at the end, or at a refined point."""
    block: BlockNumbers | None
    """The block of all parameters, else that of the largest eigenvalue."""
    first_block: BlockNumbers | None
    """The same block at the first analysed step, if that is an earlier one."""
    pairs: dict[str, BlockNumbers]
    """The pair of the claims and its control, else the two most negative pairs."""
    curves: list[CurveNumbers]
    """Of all blocks that have one."""
    prop41: tuple[float, float]
    """Proposition 4.1's ratio of learning rates at the first and the last row that has it."""
    prop41_steps: tuple[int, int] | None
    rates: tuple[float, float]
    """The ratio of learning rates in use at these rows."""
    sharpness: dict[str, float]
    grad_norm: float
    """The smallest gradient norm of a block at that step."""
    other_loss: tuple[int, float, float] | None
    """Step, measured loss and recorded loss where they differ by more than 1 %."""


def numbers(source: Source) -> Numbers:
    """The key numbers of one source."""
    metrics, at_steps = source.table("metrics", "step"), source.table("by_step", "step")
    last = int(metrics["step"].max()) if len(metrics) else None
    accuracy = metrics["test_accuracy"].dropna() if "test_accuracy" in metrics else pd.Series()
    step, where = _chosen_step(source, last)
    blocks = _blocks(source, step) if step is not None else {}
    pairs = _chosen_pairs(source, blocks)
    # Pairs have a sentence of their own.
    others = blocks.keys() - pairs.keys() or blocks.keys()
    highest = {name: blocks[name].highest for name in blocks if name in others and math.isfinite(blocks[name].highest)}
    name = "all" if "all" in highest else max(highest, key=highest.__getitem__, default="")
    first = int(at_steps["step"].min()) if len(at_steps) else 0
    earlier = _blocks(source, first).get(name) if name and step is not None and first < step else None
    prop41, prop41_steps, rates = _balance(source)
    row: Any = at_steps[at_steps["step"] == step].squeeze() if step is not None else {}
    sharpness = {kind: _number(row.get(kind)) for kind in STABLE}
    norms = source.table("by_step_block", "step", "grad_norm")
    return Numbers(
        run=source.label,
        memorised=source.memorised,
        grokked=source.grokked,
        diverged=source.diverged,
        last_step=last,
        test_accuracy=float(accuracy.iloc[-1]) if len(accuracy) and not source.is_recorded else math.nan,
        recorded=_recorded(metrics) if source.is_recorded else {},
        step=step,
        where=where,
        block=blocks.get(name),
        first_block=earlier,
        pairs=pairs,
        curves=_curves(source, step) if step is not None else [],
        prop41=prop41,
        prop41_steps=prop41_steps,
        rates=rates,
        sharpness={kind: value for kind, value in sharpness.items() if math.isfinite(value)},
        grad_norm=float(norms["grad_norm"][norms["step"] == step].min()) if step is not None else math.nan,
        other_loss=_other_loss(at_steps),
    )


def is_accuracy(name: str) -> bool:
    """Whether a metric is an accuracy by a word of its name, as in train_accuracy, val_acc and evalAccuracy."""
    return bool({"acc", "accuracy"} & {*re.split("[^a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())})


def claimed(pairs: Iterable[str]) -> list[str]:
    """These pairs, the one of the claims and its control first."""
    return sorted(pairs, key=lambda pair: {CLAIM: 0, CONTROL: 1}.get(pair, 2))


def is_negative(lowest: Any, norm: Any) -> Any:
    """Where an eigenvalue is negative curvature, not the rounding noise of a semidefinite block of this norm."""
    return lowest < -1e-12 * norm


def _chosen_step(source: Source, last: int | None) -> tuple[int | None, str]:
    """The analysed step nearest to the middle of the plateau on a log scale, or the last one; and where it lies."""
    steps = source.table("by_step", "step")["step"].astype(int).tolist()
    if not steps:
        return None, ""
    if source.is_refined:
        return steps[-1], f"at the point {'settled' if source.is_settled else 'refined'} from step {steps[-1]:,}"
    start = source.memorised or math.inf
    end = max(start, source.grokked or last or steps[-1])
    step = min(steps, key=lambda one: abs(one - math.sqrt(start * end))) if source.memorised else steps[-1]
    if start <= step <= end:
        return step, f"On the plateau, at step {step:,}"
    if len(steps) == 1:
        return step, f"At step {step:,}"
    if source.memorised:
        return step, f"At step {step:,}, nearest to the plateau"
    return step, f"At the last analysed step, {step:,}"


def _blocks(source: Source, step: int) -> dict[str, BlockNumbers]:
    """The blocks measured at a step."""
    ends = source.table("by_step_block_end_rank", "step", "block", "end", "rank", "eigenvalues", "converged")
    # Of the sharpness alone there is no lower end.
    ends = ends[(ends["step"] == step) & (ends["rank"] == 0)].dropna(subset=["eigenvalues"]).set_index(["block", "end"])
    of_block = source.table("by_step_block", "step", "block")
    of_block = of_block[of_block["step"] == step].set_index("block")
    ratios = source.table("by_step_pair_rank", "step", "pair", "rank", "coupling_ratios", "coupling_ratio_error")
    ratios = ratios[(ratios["step"] == step) & (ratios["rank"] == 0)].set_index("pair")
    of_pair = source.table("by_step_pair", "step", "pair", "coupling_index")
    of_pair = of_pair[of_pair["step"] == step].set_index("pair")
    blocks = {}
    for block, row in of_block.iterrows():
        name = str(block)
        lowest, highest = (float(ends["eigenvalues"].get((name, end), math.nan)) for end in ("lowest", "highest"))
        level = str(row.get("inertia_level", "none"))
        kappa, error = (_number(ratios[column].get(name)) for column in ("coupling_ratios", "coupling_ratio_error"))
        blocks[name] = BlockNumbers(
            block=name,
            step=step,
            highest=highest,
            lowest=lowest,
            depth=-lowest if math.isnan(lowest) or is_negative(lowest, row.get("operator_norm", 0)) else 0.0,
            are_bounds=bool((ends["converged"][[name]] == 0).any()) if name in ends.index else False,
            lower=_number(row.get("inertia_lower")),
            upper=_number(row.get("inertia_upper")),
            estimate=tuple(_number(row.get(f"inertia_estimate{end}")) for end in ("", "_low", "_high")),  # type: ignore[arg-type]
            level=level,
            tolerance=_number(row.get("inertia_tolerance")),
            trace=_number(row.get("trace")),
            trace_error=_number(row.get("trace_error")),
            kappa=kappa,
            is_kappa_bound=math.isfinite(kappa) and math.isnan(error),
            above=_number(of_pair["coupling_index"].get(name)),
        )
    return blocks


def _curves(source: Source, step: int) -> list[CurveNumbers]:
    """The index curves at a step."""
    table = source.table("by_step_block_tau", "step", "block", "tau", "index_curve_lower", "index_curve_upper")
    table = table[(table["step"] == step) & table["tau"].isin([float(f"1e-{decade}") for decade in QUOTED])]
    if table.empty:
        return []
    of_block = source.table("by_step_block", "step", "block")
    of_block = of_block[of_block["step"] == step].set_index("block")
    curves = []
    for block, part in best_known(table, "index_curve_").groupby("block", sort=False):
        row = of_block.loc[block]
        values = part[["index_curve_lower", "index_curve_upper", "index"]].to_numpy(float)
        curves.append(
            CurveNumbers(
                block=str(block),
                tolerance=row["inertia_tolerance"] / (row["operator_norm"] or math.nan),
                index=(_number(row["inertia_lower"]), _number(row["inertia_upper"])),
                counts={float(tau): tuple(of) for tau, of in zip(part["tau"], values, strict=True)},
            )
        )
    return curves


def _chosen_pairs(source: Source, blocks: dict[str, BlockNumbers]) -> dict[str, BlockNumbers]:
    pairs = {name: one for name, one in blocks.items() if "," in name and math.isfinite(one.depth)}
    if not source.is_recorded and CLAIM in pairs:
        return {name: pairs[name] for name in (CLAIM, CONTROL) if name in pairs}
    return dict(sorted(pairs.items(), key=lambda pair: -pair[1].depth)[:_SHOWN])


def _recorded(metrics: pd.DataFrame) -> dict[str, tuple[int, float]]:
    names = [name for name in metrics if is_accuracy(name)] + [name for name in metrics if "loss" in name.lower()]
    known = {name: metrics[["step", name]].dropna() for name in names}
    return {name: (int(x["step"].iloc[-1]), float(x[name].iloc[-1])) for name, x in known.items() if len(x)}


def _balance(source: Source) -> tuple[tuple[float, float], tuple[int, int] | None, tuple[float, float]]:
    """Proposition 4.1's ratio, the steps and the ratio in use at the first and the last row that has the former."""
    known = source.table("metrics", "step", "prop41_ratio", *RATES).dropna(subset=["prop41_ratio"])
    known = known[np.isfinite(known["prop41_ratio"].astype(float))]
    if known.empty:
        return (math.nan,) * 2, None, (math.nan,) * 2
    first, last = known.iloc[0], known.iloc[-1]
    used = [row[RATES[0]] / row[RATES[1]] if row[RATES[1]] else math.nan for row in (first, last)]
    ratios = float(first["prop41_ratio"]), float(last["prop41_ratio"])
    return ratios, (int(first["step"]), int(last["step"])), (float(used[0]), float(used[1]))


def _other_loss(at_steps: pd.DataFrame) -> tuple[int, float, float] | None:
    """Where the measured loss is furthest from the recorded one, if by more than 1 %."""
    if not {"train_loss", "recorded_loss"} <= set(at_steps):
        return None
    apart = (at_steps["train_loss"] - at_steps["recorded_loss"]).abs() / at_steps["recorded_loss"].abs()
    apart = apart.replace(np.inf, np.nan).dropna()
    if apart.empty or apart.max() <= 0.01:
        return None
    row = at_steps.loc[apart.idxmax()]
    return int(row["step"]), float(row["train_loss"]), float(row["recorded_loss"])


def _number(value: Any) -> float:
    return math.nan if value is None or pd.isna(value) else float(value)
