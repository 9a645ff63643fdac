"""From the files of a scale of the trial to the tables that its verdicts and its page are computed from."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray
from beyond import AUTO
from circles import GEOMETRY, circles, frequencies, last_geometry
from decay_map import MAP, map_row
from lags import HALF, LAGS, PEAKS, lags
from landscape.report.film import resolved
from rare_late import RARE_LATE, correlations, last_tokens, tokens
from runs import Run, finished
from scale import ARMS, FILM, POINTS, prop41_constant
from words import BY_RANK, BY_STEP, JUDGED, OTHERS, WORDS, losses, ranges, words, zipf

from landscape.errors import LandscapeError, complain
from landscape.files.files import sha256
from landscape.files.schema import HESSIAN, LEVELS
from landscape.files.views import load_group
from landscape.jobs.plan import DEFINITION
from landscape.text import write_csv

BY_RUN = ["study", "seed"]
"""Rows with the same of these are replaced together."""
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
MOST_RATIOS = 8
"""Coupling ratios of a pair in curvature.csv."""
SPREAD = 51
"""Most eigenvalues of a block and step in spectra.csv."""


Runs = Mapping[str, Sequence[Run]]
"""The runs of each complete study."""


def complete(folder: Path) -> Runs:
    """The runs of all complete studies in a folder; a note on standard error names the others."""
    found = {}
    for definition in sorted(folder.glob(f"*/{DEFINITION}")):
        name = definition.parent.name
        try:
            found[name] = finished(name, folder)
        except LandscapeError as error:
            print(f"note: study {name} is left out: {error}", file=sys.stderr)
    return found


def rare(studies: Runs) -> Iterator[pd.DataFrame]:
    """The operand tokens of skewed batches of 64 and of full batches, at the last step that both runs have."""
    small = {"study": "sampling", "sampler": "skewed", "batch_size": 64}
    full = {"study": "rare", "case": "full"}
    of_seed = [{run.labels["seed"]: run for run in chosen(studies, **known)} for known in (small, full)]
    for seed in sorted(of_seed[0].keys() & of_seed[1].keys()):
        pair = [group[seed] for group in of_seed]
        step = max(set.intersection(*(set(run.data["step"].values.tolist()) for run in pair)))
        yield from (tokens(run, step) for run in pair)


def chosen(studies: Runs, study: str, **labels: object) -> list[Run]:
    """The runs of a study with these labels; none where the study is not complete."""
    return [run for run in studies.get(study, ()) if all(run.labels[k] == v for k, v in labels.items())]


def run_row(run: Run) -> dict[str, Any]:
    """The settings, events and last metrics of a run, with its file and SHA-256."""
    config, data = run.planned.config, run.data
    settings = {name: getattr(config, name) for name in SETTINGS}
    events = {**run.times, "half": run.first("test_accuracy", HALF), "watched": config.steps}
    best = float(data["test_accuracy"].max())
    end = {name: float(data[name].values[-1]) if name in data else np.nan for name in AT_THE_END}
    constant = float(np.exp(of_run(run).median())) if {"grad_norm_E", "grad_norm_W"} <= set(data) else np.nan
    path = run.planned.path
    return (
        run.identity
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


def of_run(run: Run) -> pd.Series:
    """ln of Proposition 4.1's constant, by recorded step."""
    names = ["grad_norm_W", "grad_norm_E", "sigma_max_E", "sigma_max_W"]
    return prop41_constant(run.data[names].to_dataframe(), run.times)


def point(run: Run, analysis: str) -> dict[str, Any]:
    """How the search for a critical point ended whose Hessian is in the file of an analysis."""
    with xarray.open_dataset(run.planned.hessian[analysis], group="critical_point", engine="h5netcdf") as group:
        found = group.load().isel(step=0)
    status = found["status"].attrs["flag_meanings"].split()[int(found["status"])]
    ended = {name: float(found[name]) for name in ("start_grad_norm", "grad_norm", "distance", "num_products")}
    return {
        **run.identity,
        "activation": run.planned.config.activation,
        "analysis": analysis,
        "status": status,
        **ended,
    }


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
    columns |= {name: data[name] for name in OF_A_STEP if name in data}
    table = pd.DataFrame(
        {name: values.broadcast_like(data["grad_norm"]).values.ravel() for name, values in columns.items()}
    )
    levels = data["inertia_level"].values.ravel().astype(int)
    table.insert(0, "index_level", [LEVELS[level] for level in levels])
    at = data["grad_norm"].to_series().index.to_frame(index=False)
    which = pd.DataFrame([{**run.identity, "task": run.planned.config.task, "analysis": analysis}] * len(table))
    file = pd.Series([f"{run.planned.path.parent.name}/{run.planned.hessian[analysis].name}"] * len(table), name="file")
    return pd.concat([which, at, table, file], axis=1)


def spectra(run: Run, analysis: str) -> pd.DataFrame:
    """Eigenvalues evenly spaced by rank, both ends among them, of each block all of whose were computed."""
    parts = []
    for block, values in load_group(run.planned.hessian[analysis], HESSIAN, "spectrum").items():
        rows = np.linspace(0, values.shape[1] - 1, min(SPREAD, values.shape[1])).round().astype(int)
        for step, row in zip(values["step"].values, values.values, strict=True):
            part = {"step": step, "block": block, "below": rows / max(values.shape[1] - 1, 1), "eigenvalue": row[rows]}
            parts.append(pd.DataFrame({**run.identity, "analysis": analysis, **part}))
    return pd.concat(parts) if parts else pd.DataFrame()


def densities(run: Run, analysis: str) -> pd.DataFrame:
    """Smoothed spectral densities of the blocks of an analysis, and their standard errors."""
    parts = []
    data = run.hessian(analysis)
    smoothed = load_group(run.planned.hessian[analysis], HESSIAN, "density")
    for step, block in itertools.product(data["step"].values, data["block"].values):
        at = smoothed.sel(step=step)
        grid, density, error = (at[name].values for name in ("eigenvalue", block, f"{block}_error"))
        width = float(at["width"])
        rows = resolved(grid, width, density, error)
        part = {"step": step, "block": block, "width": width, "eigenvalue": grid[rows], "density": density[rows]}
        parts.append(pd.DataFrame({**run.identity, "analysis": analysis, **part, "standard_error": error[rows]}))
    return pd.concat(parts)


def metrics(run: Run) -> pd.DataFrame:
    """One row a recorded step of a run."""
    table = run.data[[name for name in ON_THE_WAY if name in run.data]].to_dataframe().rename_axis("step").reset_index()
    return pd.concat([pd.DataFrame([run.identity] * len(table)), table], axis=1)


def rates(run: Run) -> pd.DataFrame:
    """One row a rate of E over that of all else in a run that follows its edge: c, and the step from which it held."""
    data = run.data
    c = (data["lr_E"] / data["lr_W" if "lr_W" in data else "lr"]).to_series().rename("c").rename_axis("step")
    table = c[c != c.shift()].reset_index()
    return pd.concat([pd.DataFrame([run.identity] * len(table)), table], axis=1)


def ranks(run: Run) -> pd.DataFrame:
    """Effective rank and nuclear norm of the tables of a run, every hundred steps."""
    table = run.data[["effective_rank", "nuclear_norm"]].to_dataframe().rename_axis("step").reset_index()
    table = table[table["step"] % 100 == 0]
    return pd.concat([pd.DataFrame([run.identity] * len(table), index=table.index), table], axis=1)


def tables(studies: Runs) -> dict[str, pd.DataFrame]:
    """What stands behind the primary tests and the page, by the name of its CSV file."""
    runs = [run for of_study in studies.values() for run in of_study]
    done = [(run, analysis) for run in runs for analysis, path in run.planned.hessian.items() if path.exists()]
    # The film shows the circles of one run, the first of them.
    circling = list(chosen(studies, LAGS))[:1]
    followed = [*chosen(studies, "curvature", case="c1"), *chosen(studies, FILM), *circling]
    texts = {name: [run for run in of if run.planned.config.reads_text] for name, of in studies.items()}
    found = {
        "points": [pd.DataFrame([point(*one)]) for one in done if one[0].planned.path.parent.name in POINTS],
        "runs": [pd.DataFrame([run_row(run)]) for run in runs],
        "curvature": [curvature(*one) for one in done],
        "spectra": [spectra(*one) for one in done if one[0].planned.path.parent.name == FILM],
        "densities": [densities(*one) for one in done if one[0].planned.path.parent.name == FILM],
        "metrics": [metrics(run) for run in followed],
        "ranks": [ranks(run) for run in chosen(studies, ARMS)],
        "tokens": [*rare(studies), *map(last_tokens, chosen(studies, RARE_LATE))],
        "rare_late": [correlations(run) for run in chosen(studies, RARE_LATE)],
        "geometry": [last_geometry(run) for run in chosen(studies, GEOMETRY)],
        "frequencies": [frequencies(run) for run in circling],
        "circles": [circles(run) for run in circling],
        "rates": [rates(run) for run in runs if run.planned.config.lr_ratio == AUTO],
        **{name: [lags(run) for run in chosen(studies, name)] for name in (LAGS, PEAKS)},
        "map": [map_row(run) for run in chosen(studies, MAP)],
        "words": [words(run) for run in chosen(texts, WORDS) if run.labels["case"] in JUDGED],
        "ranges": [ranges(run) for study in BY_RANK for run in chosen(texts, study)],
        "zipf": [pd.DataFrame([zipf(run)]) for run in chosen(texts, OTHERS)],
        "losses": [losses(run) for study, case in BY_STEP for run in chosen(texts, study, **case)],
    }
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items() if any(map(len, parts))}


def joined(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A table with the rows that a file has of other studies and seeds, such as those made on another machine."""
    if path.exists():
        old = pd.read_csv(path)
        new = set(table[BY_RUN].itertuples(index=False, name=None))
        others = [row not in new for row in old[BY_RUN].itertuples(index=False, name=None)]
        table = pd.concat([old[others], table])
    # In one order, however the table came about.
    return table.sort_values("study", kind="stable")


def main() -> None:
    """Write OUT/SCALE: the tables of all complete studies, beside what is there of others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", type=Path, help="folder of the scale's studies, such as checkpoints/trial/quick")
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder to write to")
    args = parser.parse_args()
    folder = args.out / args.scale.name
    try:
        found = tables(complete(args.scale))
        if not found:
            raise LandscapeError(f"{args.scale} has no complete study", "make studies")
    except LandscapeError as error:
        complain(error)
        sys.exit(error.exit_code)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in found.items():
        write_csv(joined(table, folder / f"{name}.csv"), folder / f"{name}.csv")
        print(folder / f"{name}.csv")


if __name__ == "__main__":
    main()
