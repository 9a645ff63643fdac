"""From the Hessian of Gromov's analytic solution (studies/gromov.py) to the table that the trial's page reads."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from page_others import GROMOV

from landscape import open_hessian, open_run
from landscape.files.files import sha256
from landscape.files.schema import LEVELS
from landscape.text import write_csv


def table(run: Path) -> pd.DataFrame:
    """One row a block: size, inertia and gradient norm of the solution in a run file with its Hessian beside it."""
    path = run.with_suffix(".hessian.h5")
    with open_run(run) as solution, open_hessian(path) as found:
        _, units, p = solution["first"].shape
        at = found.isel(step=0).load()
        counts = at["inertia"].to_series().unstack("sign").astype(int)
        levels = [LEVELS[int(level)] for level in at["inertia_level"].values]
        columns = {
            "parameters": counts.sum(axis=1),
            **{sign: counts[sign] for sign in ("negative", "zero", "positive")},
            "grad_norm": at["grad_norm"].to_series(),
        }
        rows = pd.DataFrame(columns).loc[at["block"].values].reset_index(names="block")
    file = {"file": path.name, "sha256": sha256(path)}
    return rows.assign(level=levels, p=p, units=units, **file)


def main() -> None:
    """Write OUT/others/gromov.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="file that studies/gromov.py wrote, with its Hessian beside it")
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder of the page")
    args = parser.parse_args()
    target = args.out / GROMOV
    target.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table(args.run), target)
    print(target)


if __name__ == "__main__":
    main()
