"""From the files of a scale to its tables: `python analyses/collect.py checkpoints/trial/quick`.

Rows of complete studies take the place of those with the same study and seed; all others stay, so that a trial may be
made on several machines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from runs import HALF, Run, sha256, studies
from scipy.linalg import solve_sylvester
from tables import REFERENCE, on_plateau, prop41_constant, prop41_misses

import landscape

Runs = Mapping[str, Sequence[Run]]
"""The runs of each complete study."""
SETTINGS = (
    *("task", "model", "p", "tokens", "embed_dim", "hidden", "activation", "dtype"),
    *("optimizer", "lr", "lr_E", "lr_ratio", "weight_decay", "weight_decay_V", "penalty", "sampler", "batch_size"),
    *("kick", "kick_from", "kick_size"),
)
"""Options of a run in runs.csv."""
MADE = {"created": "created", "commit": "git_commit", "torch": "torch_version"}
"""When and with what a run was made: columns of runs.csv, and attributes of its file."""
AT_THE_END = ("effective_rank", "nuclear_norm", "f_E")
ON_THE_WAY = (
    *("train_accuracy", "test_accuracy", "grad_norm_E", "grad_norm_W", "sigma_max_E", "sigma_max_W"),
    "effective_rank",
)
OF_A_STEP = ("curvature_ratio", "saddle_bound", "saddle_bound_operands", "saddle_bound_constants")
MOST_RATIOS = 8
"""Coupling ratios of a pair in curvature.csv."""


def chosen(by_study: Runs, study: str, **known: object) -> list[Run]:
    """The runs of a study with this case and these options; none where the study is not complete."""
    return [run for run in by_study.get(study, ()) if all(run.config[name] == value for name, value in known.items())]


def run_row(run: Run) -> pd.DataFrame:
    """The settings, events and last metrics of a run, with its file and SHA-256."""
    metrics = run.metrics
    gradients = {"grad_norm_E", "grad_norm_W", "sigma_max_E", "sigma_max_W"} <= set(metrics)
    row: dict[str, Any] = {name: run.config[name] for name in SETTINGS} | run.times
    row |= {"half": run.first(*HALF), "watched": run.config["steps"], "best": metrics["test_accuracy"].max()}
    row |= prop41(metrics, run.times) if gradients else {}
    row |= {name: metrics[name].iloc[-1] if name in metrics else np.nan for name in AT_THE_END}
    row |= {name: run.file.attrs[attribute] for name, attribute in MADE.items()}
    row |= {"file": f"{run.path.parent.name}/{run.path.name}", "sha256": sha256(run.path)}
    return run.labelled(pd.DataFrame([row]))


def prop41(metrics: pd.DataFrame, times: Mapping[str, float]) -> dict[str, float]:
    """Proposition 4.1's constant and ratio on the plateau, and how far it and its nulls miss the gradients."""
    sizes = np.log(metrics["sigma_max_E"] / metrics["sigma_max_W"])
    row = {"prop41_constant": np.exp(prop41_constant(metrics, times).median())}
    row["sigma_ratio"] = np.exp(sizes[on_plateau(metrics, times)].median())
    row |= {f"miss_{name}_{phase}": miss for (phase, name), miss in prop41_misses(metrics, times).items()}
    return row


def curvature(run: Run, analysis: str) -> pd.DataFrame:
    """One row a step and block of an analysis: ends of the spectrum, saddle index, coupling ratios, masses, bounds."""
    frames = run.analysis(analysis)
    by = ["step", "block"]
    table = frames["by_step_block"].set_index(by)
    names = ["inertia_level", "saddle_index_gauge_free", "grad_norm"]
    names += [f"inertia_{end}" for end in ("lower", "upper", "estimate")]
    columns = table.reindex(columns=names).astype(dict.fromkeys(names[1:], float))
    columns.columns = columns.columns.str.replace("inertia", "index").str.replace("saddle_index", "index")
    if "by_step_block_sign" in frames:
        columns["index"] = (
            frames["by_step_block_sign"].query("sign == 'negative'").set_index(by)["inertia"].astype(float)
        )
    of_end = frames["by_step_block_end_rank"].query("rank == 0").set_index([*by, "end"])
    for end in ("lowest", "highest"):
        ends = of_end.xs(end, level="end")
        columns[end], columns[f"{end}_residual"] = ends["eigenvalues"], ends["residual_norm"]
    masses = frames["by_step_block_part"].pivot(index=by, columns="part", values="bottom_mass")
    columns = columns.join(masses[frames["by_step_block_part"]["part"].unique()].add_prefix("mass_"))
    if "by_step_pair_rank" in frames:
        ratios = frames["by_step_pair_rank"].pivot(index=["step", "pair"], columns="rank", values="coupling_ratios")
        ratios = ratios.iloc[:, :MOST_RATIOS].rename(columns=lambda i: f"kappa_{i + 1}").rename_axis(by)
        columns = columns.join(ratios)
    columns = columns.join(frames["by_step"].set_index("step").reindex(columns=OF_A_STEP), on="step").reset_index()
    known = {"task": run.config["task"], "analysis": analysis}
    for place, (name, value) in enumerate(known.items()):
        columns.insert(place, name, value)
    return run.labelled(columns.assign(file=f"{run.path.parent.name}/{run.analyses[analysis].name}"))


def lowest(run: Run, analysis: str) -> pd.DataFrame:
    """One row a step of an analysis that stored eigenvectors: where the lowest one of E,W lies.

    gauge: its share in the directions that only rewrite E and W (F7); constants: on tokens that every sample holds.
    """
    with landscape.open(run.analyses[analysis]) as file:
        # Of a settled or critical point the parameters are others than those of its step.
        is_elsewhere = file.config.get("settle") or "critical_point" in file.datasets
        if is_elsewhere or "E,W" not in file.datasets.get("eigenvectors", ()):
            return pd.DataFrame()
        vectors = file.datasets["eigenvectors"]["E,W"].sel(end="lowest", rank=0).load()
    every, rows = run.training_tokens(), []
    constants = every[0, (every == every[0]).all(axis=0)]
    for vector in vectors:
        at = run.file.datasets["checkpoints"].sel(step=vector["step"])
        E, W = (at[name].values.astype(float) for name in ("E", "W"))
        of_E, of_W = np.split(vector.values, [E.size])
        of_E, of_W, slots = of_E.reshape(E.shape), of_W.reshape(-1, E.shape[1]), W.reshape(-1, E.shape[1])
        # The tangent (-E X^T, W_k X) next to the vector, by its normal equations.
        along = slots.T @ of_W - of_E.T @ E
        gauge = (solve_sylvester(slots.T @ slots, E.T @ E, along) * along).sum()
        by_slot = (of_W**2).reshape(len(W), every.shape[1], -1).sum(axis=(0, 2))
        on_constants = (of_E[constants] ** 2).sum() + by_slot[np.isin(every[0], constants)].sum()
        rows.append({"step": int(vector["step"]), "gauge": gauge, "constants": on_constants})
    return run.labelled(pd.DataFrame(rows).assign(analysis=analysis))


def index_curves(run: Run, analysis: str) -> pd.DataFrame:
    """One row a step, block and tolerance of an analysis with index curves."""
    table = run.analysis(analysis).get("by_step_block_tau", pd.DataFrame(columns=["step"]))
    return run.labelled(table.rename(columns=lambda name: name.removeprefix("index_curve_")).assign(analysis=analysis))


def settled(run: Run, analysis: str) -> pd.DataFrame:
    """How each checkpoint of an analysis settled before it was measured."""
    table = run.analysis(analysis).get("settled_by_step", pd.DataFrame(columns=["step"]))
    return run.labelled(table.assign(analysis=analysis, weight_decay=run.config["weight_decay"]))


def metrics(run: Run) -> pd.DataFrame:
    """One row a recorded step of a run."""
    return run.labelled(run.metrics[[name for name in ON_THE_WAY if name in run.metrics]].reset_index())


def tokens(run: Run, step: int) -> pd.DataFrame:
    """One row an operand token: in how many places of training pairs it stands, and the norm of its embedding."""
    p = run.config["p"]
    count = np.bincount(run.training_tokens().ravel(), minlength=p)[:p]
    norms = run.tokens["embedding_norm"].sel(step=step).values[:p]
    known = {"batch_size": run.config["batch_size"], "step": step}
    return run.labelled(pd.DataFrame({**known, "token": np.arange(p), "count": count, "norm": norms}))


def rare(by_study: Runs) -> Iterator[pd.DataFrame]:
    """The operand tokens of skewed batches of 64 and of full batches, at the last step that both runs have."""
    small = {run.config["seed"]: run for run in chosen(by_study, "sampling", sampler="skewed", batch_size=64)}
    full = {run.config["seed"]: run for run in chosen(by_study, "rare", case="full")}
    for seed in sorted(small.keys() & full.keys()):
        pair = small[seed], full[seed]
        step = max(set.intersection(*(set(run.tokens["step"].values.tolist()) for run in pair)))
        yield from (tokens(run, step) for run in pair)


def tables(by_study: Runs) -> dict[str, pd.DataFrame]:
    """All tables of a size by the name of their CSV file."""
    runs = [run for of_study in by_study.values() for run in of_study]
    done = [(run, name) for run in runs for name, path in run.analyses.items() if path.exists()]
    parts: dict[str, list[pd.DataFrame]] = {
        "runs": [run_row(run) for run in runs],
        "curvature": [curvature(*one) for one in done],
        "lowest": [lowest(*one) for one in done],
        "index_curves": [index_curves(*one) for one in done],
        "settled": [settled(*one) for one in done],
        "metrics": [metrics(run) for run in chosen(by_study, "curvature", case="c1")],
        "tokens": [*rare(by_study)],
    }
    # Without the empty ones, whose columns would turn whole numbers into others.
    filled = {name: [part for part in of if len(part)] for name, of in parts.items()}
    return {name: pd.concat(of, ignore_index=True) for name, of in filled.items() if of}


def joined(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table with the rows that a file has of other studies and seeds, in one order however it came about."""
    if path.exists():
        old, by = pd.read_csv(path), ["study", "seed"]
        new = set(table[by].itertuples(index=False, name=None))
        table = pd.concat([old[[row not in new for row in old[by].itertuples(index=False, name=None)]], table])
    return table.sort_values("study", kind="stable")


def main() -> None:
    """Write OUT/SCALE."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", type=Path, help="folder of the scale's studies, such as checkpoints/trial/quick")
    parser.add_argument("--out", type=Path, default=REFERENCE, help="folder to write to")
    args = parser.parse_args()
    try:
        frames = tables(studies(args.scale))
    except landscape.LandscapeError as error:
        sys.exit(f"error: {error}\nhint: {error.hint}")
    if not frames:
        sys.exit(f"error: {args.scale} has no complete study\nhint: make studies")
    folder = args.out / args.scale.resolve().name
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in frames.items():
        joined(table, folder / f"{name}.csv").to_csv(folder / f"{name}.csv", index=False)
        print(folder / f"{name}.csv")


if __name__ == "__main__":
    main()
