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
from collect_geometry import circles, frequencies, lags, last_geometry
from collect_tokens import correlations, last_tokens, losses, map_row, ranges, tokens, words, zipf
from runs import HALF, Run, sha256, studies
from tables import prop41_constant

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
PARTS = ("E", "W", "V", "bias", "attention", "mlp_in", "mlp_out", "U", "other")
MOST_RATIOS, SPREAD = 8, 51
"""Coupling ratios of a pair in curvature.csv, and eigenvalues of a block and step in spectra.csv."""


def chosen(by_study: Runs, study: str, **known: object) -> list[Run]:
    """The runs of a study with this case and these options; none where the study is not complete."""
    return [
        run for run in by_study.get(study, ()) if all({**run.config, **run.identity}[k] == v for k, v in known.items())
    ]


def run_row(run: Run) -> pd.DataFrame:
    """The settings, events and last metrics of a run, with its file and SHA-256."""
    metrics = run.metrics
    gradients = {"grad_norm_E", "grad_norm_W", "sigma_max_E", "sigma_max_W"} <= set(metrics)
    row: dict[str, Any] = {name: run.config[name] for name in SETTINGS} | run.times
    row |= {"half": run.first(*HALF), "watched": run.config["steps"], "best": metrics["test_accuracy"].max()}
    row |= prop41(metrics, run.times) if gradients else {}
    row["spikes"] = spikes(metrics["train_loss"], run.times["grokked"])
    row |= {name: metrics[name].iloc[-1] if name in metrics else np.nan for name in AT_THE_END}
    row |= {name: run.file.attrs[attribute] for name, attribute in MADE.items()}
    row |= {"file": f"{run.path.parent.name}/{run.path.name}", "sha256": sha256(run.path)}
    return run.labelled(pd.DataFrame([row]))


def prop41(metrics: pd.DataFrame, times: Mapping[str, float]) -> dict[str, float]:
    """Proposition 4.1's constant on the plateau, and by what factor it and its nulls miss |∇W| / |∇E| there and before.

    prop41: σ_max(E) / σ_max(W); one: 1; inverse: σ_max(W) / σ_max(E).
    """
    gradients = np.log(metrics["grad_norm_W"] / metrics["grad_norm_E"])
    sizes = np.log(metrics["sigma_max_E"] / metrics["sigma_max_W"])
    on_plateau = (metrics.index >= times["memorised"]) & ~(metrics.index > times["grokked"])
    before = (metrics.index > 0) & (metrics.index < times["memorised"])
    row = {"prop41_constant": np.exp(prop41_constant(metrics, times).median())}
    row["sigma_ratio"] = np.exp(sizes[on_plateau].median())
    for phase, steps in (("plateau", on_plateau), ("before", before)):
        for name, predicted in (("prop41", sizes), ("one", 0 * sizes), ("inverse", -sizes)):
            row[f"miss_{name}_{phase}"] = np.exp((gradients - predicted).abs()[steps].median())
    return row


def spikes(loss: pd.Series, grokked: float) -> float:
    """How often the training loss came, after grokking, to ten times the median of the ten records before."""
    high = loss > 10 * loss.rolling(10).median().shift()
    begins = high & ~high.shift(fill_value=False)
    return np.nan if np.isnan(grokked) else float(begins[begins.index > grokked].sum())


def point(run: Run, analysis: str) -> pd.DataFrame:
    """How the search for a critical point ended whose Hessian is in the file of an analysis."""
    with landscape.open(run.analyses[analysis]) as file:
        ended = file.to_dataframes()["critical_point_by_step"].iloc[0]
    names = ["status", "start_grad_norm", "grad_norm", "distance", "num_products"]
    return run.labelled(pd.DataFrame([{"activation": run.config["activation"], "analysis": analysis, **ended[names]}]))


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


def index_curves(run: Run, analysis: str) -> pd.DataFrame:
    """One row a step, block and tolerance of an analysis with index curves."""
    table = run.analysis(analysis).get("by_step_block_tau", pd.DataFrame(columns=["step"]))
    return run.labelled(table.rename(columns=lambda name: name.removeprefix("index_curve_")).assign(analysis=analysis))


def settled(run: Run, analysis: str) -> pd.DataFrame:
    """How each checkpoint of an analysis settled before it was measured."""
    table = run.analysis(analysis).get("settled_by_step", pd.DataFrame(columns=["step"]))
    return run.labelled(table.assign(analysis=analysis, weight_decay=run.config["weight_decay"]))


def spectra(run: Run, analysis: str) -> Iterator[pd.DataFrame]:
    """Eigenvalues evenly spaced by rank, both ends among them, of each block all of whose were computed."""
    whole = run.analysis(analysis).get("spectrum_by_step_block_row", pd.DataFrame(columns=["block", "step"]))
    order = {block: i for i, block in enumerate(whole["block"].unique())}
    for (block, step), rows in sorted(whole.groupby(["block", "step"]), key=lambda of: (order[of[0][0]], of[0][1])):
        values = rows["eigenvalue"].to_numpy()
        at = np.linspace(0, len(values) - 1, min(SPREAD, len(values))).round().astype(int)
        part = {"step": step, "block": block, "below": at / max(len(values) - 1, 1), "eigenvalue": values[at]}
        yield run.labelled(pd.DataFrame({"analysis": analysis, **part}))


def densities(run: Run, analysis: str) -> Iterator[pd.DataFrame]:
    """Smoothed spectral densities of the blocks of an analysis, at points a smoothing's width apart."""
    frames = run.analysis(analysis)
    width = frames["density_by_step"].set_index("step")["width"]
    for step, of_step in frames["density_by_step_density_point"].groupby("step"):
        grid = of_step["eigenvalue"].to_numpy()
        every = max(1, int(width[step] / (grid[1] - grid[0])))
        for block in frames["by_step_block"]["block"].unique():
            rows = of_step[["eigenvalue", block, f"{block}_error"]].iloc[::every]
            rows.columns = ["eigenvalue", "density", "standard_error"]
            seen = np.flatnonzero(rows["density"] + rows["standard_error"] > 1e-6 * of_step[block].max())
            rows = rows.iloc[max(seen[0] - 1, 0) : seen[-1] + 2]
            part = rows.assign(analysis=analysis, step=step, block=block, width=width[step])
            yield run.labelled(part[["analysis", "step", "block", "width", *rows.columns]])


def metrics(run: Run) -> pd.DataFrame:
    """One row a recorded step of a run."""
    return run.labelled(run.metrics[[name for name in ON_THE_WAY if name in run.metrics]].reset_index())


def rates(run: Run) -> pd.DataFrame:
    """One row a rate of E over that of all else in a run that follows its edge: c, and the step from which it held."""
    c = (run.metrics["lr_E"] / run.metrics["lr_W" if "lr_W" in run.metrics else "lr"]).rename("c")
    return run.labelled(c[c != c.shift()].reset_index())


def ranks(run: Run) -> pd.DataFrame:
    """Effective rank and nuclear norm of the tables of a run, every hundred steps."""
    table = run.metrics[["effective_rank", "nuclear_norm"]]
    return run.labelled(table[table.index % 100 == 0].reset_index())


def rare(by_study: Runs) -> Iterator[pd.DataFrame]:
    """The operand tokens of skewed batches of 64 and of full batches, at the last step that both runs have."""
    small = {run.seed: run for run in chosen(by_study, "sampling", sampler="skewed", batch_size=64)}
    full = {run.seed: run for run in chosen(by_study, "rare", case="full")}
    for seed in sorted(small.keys() & full.keys()):
        pair = small[seed], full[seed]
        step = max(set.intersection(*(set(run.tokens["step"].values.tolist()) for run in pair)))
        yield from (tokens(run, step) for run in pair)


def tables(by_study: Runs) -> dict[str, pd.DataFrame]:
    """All tables of a scale by the name of their CSV file."""
    runs = [run for of_study in by_study.values() for run in of_study]
    done = [(run, name) for run in runs for name, path in run.analyses.items() if path.exists()]
    film = [one for one in done if one[0].identity["study"] == "film"]
    # The circles of one run are followed, the first of its study.
    circling = chosen(by_study, "lags")[:1]
    followed = [*chosen(by_study, "curvature", case="c1"), *chosen(by_study, "film"), *circling]
    on_text = {name: [run for run in of if run.config["task"] == "text"] for name, of in by_study.items()}
    learned = [*chosen(on_text, "words", case="decay"), *chosen(on_text, "words", case="none")]
    parts: dict[str, list[pd.DataFrame]] = {
        "points": [point(*one) for one in done if one[0].identity["study"] in ("points", "points-tanh")],
        "runs": [run_row(run) for run in runs],
        "curvature": [curvature(*one) for one in done],
        "index_curves": [index_curves(*one) for one in done],
        "settled": [settled(*one) for one in done],
        "spectra": [part for one in film for part in spectra(*one)],
        "densities": [part for one in film for part in densities(*one)],
        "metrics": [metrics(run) for run in followed],
        "ranks": [ranks(run) for run in chosen(by_study, "arms")],
        "tokens": [*rare(by_study), *map(last_tokens, chosen(by_study, "rare-late"))],
        "rare_late": [correlations(run) for run in chosen(by_study, "rare-late")],
        "geometry": [last_geometry(run) for run in chosen(by_study, "geometry")],
        "frequencies": [frequencies(run) for run in circling],
        "circles": [circles(run) for run in circling],
        "rates": [rates(run) for run in runs if run.config["lr_ratio"] == "auto"],
        **{name: [lags(run) for run in chosen(by_study, name)] for name in ("lags", "peaks")},
        "map": [map_row(run) for run in chosen(by_study, "map")],
        "words": [words(run) for run in chosen(on_text, "words") if run.case != "large-none"],
        "ranges": [ranges(run) for study in ("words", "decays", "samplers") for run in on_text.get(study, ())],
        "zipf": [zipf(run) for run in chosen(on_text, "texts")],
        "losses": [losses(run) for run in [*learned, *chosen(on_text, "rates"), *chosen(on_text, "runaway")]],
    }
    return {name: pd.concat(of, ignore_index=True) for name, of in parts.items() if any(map(len, of))}


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
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder to write to")
    args = parser.parse_args()
    if not (frames := tables(studies(args.scale))):
        sys.exit(f"error: {args.scale} has no complete study\nhint: make studies")
    folder = args.out / args.scale.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in frames.items():
        joined(table, folder / f"{name}.csv").to_csv(folder / f"{name}.csv", index=False)
        print(folder / f"{name}.csv")


if __name__ == "__main__":
    main()
