"""From the Hessian of Gromov's analytic solution (studies/gromov.py) to its table.

python analyses/collect_gromov.py checkpoints/gromov.h5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from runs import sha256

import landscape


def table(run: Path) -> pd.DataFrame:
    """One row a block: size, inertia and gradient norm of the solution in a run file with its Hessian beside it."""
    path = run.with_suffix(".hessian.h5")
    with landscape.open(run) as solution, landscape.open(path) as hessian:
        _, units, p = solution.checkpoints["first"].shape
        frames = hessian.to_dataframes()
    of_block = frames["by_step_block"].set_index("block")
    counts = frames["by_step_block_sign"].pivot(index="block", columns="sign", values="inertia").astype(int)
    rows = pd.DataFrame({"parameters": counts.sum(axis=1), **counts[["negative", "zero", "positive"]]})
    rows = rows.assign(grad_norm=of_block["grad_norm"], level=of_block["inertia_level"]).loc[of_block.index]
    return rows.reset_index().assign(p=p, units=units, file=path.name, sha256=sha256(path))


def main() -> None:
    """Write OUT/others/gromov.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="file that studies/gromov.py wrote, with its Hessian beside it")
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder of the tables")
    args = parser.parse_args()
    target = args.out / "others/gromov.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    table(args.run).to_csv(target, index=False)
    print(target)


if __name__ == "__main__":
    main()
