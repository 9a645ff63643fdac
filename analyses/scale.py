"""The runs of one scale of the trial, and tables of all that its primary tests are computed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray
from runs import Run, finished, used_for

from landscape.storage.files import sha256
from landscape.storage.schema import LEVELS
from landscape.sweep.plan import DEFINITION

HALF = 0.5
"""Test accuracy of the step `half`, which C6 calls grokking: the steepest part of the rise."""
SETTINGS = (
    *("task", "model", "p", "tokens", "embed_dim", "hidden", "activation", "dtype"),
    *("optimizer", "lr", "lr_ratio", "weight_decay", "penalty", "sampler", "batch_size"),
)
"""Options of a run in runs.csv, beside its case and seed."""
AT_THE_END = ("effective_rank", "nuclear_norm", "f_E")
ON_THE_WAY = (
    *("train_accuracy", "test_accuracy", "grad_norm_E", "grad_norm_W", "sigma_max_E", "sigma_max_W"),
    "effective_rank",
)
OF_A_STEP = ("curvature_ratio", "saddle_bound", "saddle_bound_operands", "saddle_bound_constants")
FILM = "film"
"""Study of the run whose blocks are followed over training."""
POINTS = "points"
"""Study of searches for critical points."""
MOST_RATIOS = 8
"""Coupling ratios of a pair in curvature.csv."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The runs of one scale, in a folder a study."""

    folder: Path

    def runs(self, name: str, **labels: object) -> dict[int, Run]:
        """The runs of a study with these labels, by seed."""
        found = [run for run in finished(name, self.folder) if all(run.labels[k] == v for k, v in labels.items())]
        return {run.labels["seed"]: run for run in found}

    def all_runs(self) -> Iterator[Run]:
        """The runs of all studies."""
        for definition in sorted(self.folder.glob(f"*/{DEFINITION}")):
            yield from finished(definition.parent.name, self.folder)

    def rare(self) -> dict[int, tuple[pd.DataFrame, pd.DataFrame]]:
        """The operand tokens of batches of 64 and of full batches by seed, at the last step stored in both runs."""
        small, full = self.runs("sampling", sampler="skewed", batch_size=64), self.runs("rare", case="full")
        found = {}
        for seed in small.keys() & full.keys():
            pair = small[seed], full[seed]
            step = max(set.intersection(*(set(run.data["step"].values.tolist()) for run in pair)))
            found[seed] = tokens(pair[0], step), tokens(pair[1], step)
        return dict(sorted(found.items()))


def named(run: Run) -> dict[str, Any]:
    """What identifies a run in every table."""
    return {"study": run.planned.path.parent.name, "case": run.labels["case"], "seed": run.labels["seed"]}


def tokens(run: Run, step: int) -> pd.DataFrame:
    """One row an operand token: in how many places of training pairs it stands, and the norm of its embedding."""
    pairs, p = run.data["tokens"].values[used_for(run.data, "train")], run.planned.config.p
    count = np.bincount(pairs.ravel(), minlength=p)[:p]
    norms = run.data["embedding_norm"].sel(step=step).values[:p]
    batch = {"batch_size": run.planned.config.batch_size, "step": step}
    return pd.DataFrame({**named(run), **batch, "token": np.arange(p), "count": count, "norm": norms})


def run_row(run: Run) -> dict[str, Any]:
    """The settings, events and last metrics of a run, with its file and SHA-256."""
    config, data = run.planned.config, run.data
    settings = {name: getattr(config, name) for name in SETTINGS}
    events = {**run.times, "half": run.first("test_accuracy", HALF), "watched": config.steps}
    best = float(data["test_accuracy"].max())
    end = {name: float(data[name].values[-1]) if name in data else np.nan for name in AT_THE_END}
    constant = float(np.exp(prop41_constant(run).median())) if "grad_norm_E" in data else np.nan
    path = run.planned.path
    return (
        named(run)
        | settings
        | events
        | {"best": best, "prop41_constant": constant, "spikes": spikes(run)}
        | end
        | {"file": f"{run.name}.h5", "sha256": sha256(path)}
    )


def spikes(run: Run) -> float:
    """How often the training loss came, after grokking, to ten times the median of the ten records before."""
    grokked = run.times["grokked"]
    loss = run.data["train_loss"].to_series()
    high = loss > 10 * loss.rolling(10).median().shift()
    begins = high & ~high.shift(fill_value=False)
    return np.nan if np.isnan(grokked) else float(begins[begins.index > grokked].sum())


def prop41_constant(run: Run) -> pd.Series:
    """ln of Proposition 4.1's constant, by recorded step: |∇W| / |∇E| over σ_max(E) / σ_max(W)."""
    rows = run.data[["grad_norm_W", "grad_norm_E", "sigma_max_E", "sigma_max_W"]].to_dataframe()
    found: pd.Series = np.log(rows.grad_norm_W / rows.grad_norm_E / (rows.sigma_max_E / rows.sigma_max_W))
    last = run.times["grokked"]
    return found[(rows.index >= run.times["memorised"]) & ~(rows.index > last)]


def point(run: Run, analysis: str) -> dict[str, Any]:
    """How the search for a critical point ended whose Hessian is in the file of an analysis."""
    with xarray.open_dataset(run.planned.hessian[analysis], group="critical_point", engine="h5netcdf") as group:
        found = group.load().isel(step=0)
    status = found["status"].attrs["flag_meanings"].split()[int(found["status"])]
    ended = {name: float(found[name]) for name in ("start_grad_norm", "grad_norm", "distance", "num_products")}
    return {**named(run), "activation": run.planned.config.activation, "analysis": analysis, "status": status, **ended}


def curvature(run: Run, analysis: str) -> pd.DataFrame:
    """One row a step and block of an analysis: ends of the spectrum, saddle index, coupling ratios, masses, bounds."""
    data = run.hessian(analysis).load()
    found = data[["grad_norm", "saddle_index_gauge_free", "inertia_lower", "inertia_upper", "inertia_estimate"]]
    columns = {"index_gauge_free": found["saddle_index_gauge_free"], "grad_norm": found["grad_norm"]}
    columns |= {f"index_{end}": found[f"inertia_{end}"] for end in ("lower", "upper", "estimate")}
    columns |= {"index": data["inertia"].sel(sign="negative")}
    for end in ("lowest", "highest"):
        columns |= {end: data["eigenvalues"].sel(end=end, rank=0)}
        columns |= {f"{end}_residual": data["residual_norm"].sel(end=end, rank=0)}
    columns |= {f"mass_{part}": data["bottom_mass"].sel(part=part) for part in data["part"].values}
    by_block = data["coupling_ratios"].rename(pair="block").reindex(block=data["block"])
    columns |= {f"kappa_{i + 1}": by_block.sel(rank=i) for i in data["rank"].values[:MOST_RATIOS]}
    columns |= {name: data[name] for name in OF_A_STEP}
    table = pd.DataFrame(
        {name: values.broadcast_like(data["grad_norm"]).values.ravel() for name, values in columns.items()}
    )
    levels = data["inertia_level"].values.ravel().astype(int)
    table.insert(0, "index_level", [LEVELS[level] for level in levels])
    at = data["grad_norm"].to_series().index.to_frame(index=False)
    which = pd.DataFrame([{**named(run), "task": run.planned.config.task, "analysis": analysis}] * len(table))
    file = pd.Series([f"{run.planned.path.parent.name}/{run.planned.hessian[analysis].name}"] * len(table), name="file")
    return pd.concat([which, at, table, file], axis=1)


def metrics(run: Run) -> pd.DataFrame:
    """One row a recorded step of a run."""
    table = run.data[list(ON_THE_WAY)].to_dataframe().rename_axis("step").reset_index()
    return pd.concat([pd.DataFrame([named(run)] * len(table)), table], axis=1)


def tables(scale: Scale) -> dict[str, pd.DataFrame]:
    """What stands behind the primary tests, and the page, by the name of its CSV file."""
    runs = list(scale.all_runs())
    done = [(run, analysis) for run in runs for analysis in run.planned.hessian]
    searched = [(run, analysis) for run, analysis in done if run.planned.path.parent.name == POINTS]
    points = {"points": pd.DataFrame([point(*one) for one in searched])} if searched else {}
    return {
        **points,
        "runs": pd.DataFrame(map(run_row, runs)),
        "curvature": pd.concat([curvature(*one) for one in done], ignore_index=True),
        "metrics": pd.concat(map(metrics, [*scale.runs("curvature", case="c1").values(), *scale.runs(FILM).values()])),
        "tokens": pd.concat([table for pair in scale.rare().values() for table in pair]),
    }
