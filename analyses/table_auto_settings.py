"""`--lr-ratio auto` with other tasks, starts and weight decays, at `quick`

Median steps of grokking, in parentheses in how many runs; ratios of paired seeds with intervals. A3 and A4 test the
median over these settings; each alone is exploratory.
"""

from pathlib import Path

import pandas as pd
from claims import SETTINGS
from tables import count, main, ratio, scales, step


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root):
        for setting, words in SETTINGS.items():
            runs = {rate: scale.runs("auto-settings", case=f"{setting}-{rate}") for rate in ("even", "swept", "auto")}
            if runs["auto"].empty:
                continue
            cells = {rate: f"{step(of['grokked'])} ({count(of['grokked'])})" for rate, of in runs.items()}
            best = f"{float(runs['swept']['lr_ratio'].iloc[0]):g}"
            row = {"scale": scale.name, "setting": words, "c = 1": cells["even"], "best c": best}
            row |= {"its step": cells["swept"], "auto": cells["auto"]}
            row |= {"c = 1 over auto": ratio(runs["even"], runs["auto"])}
            rows.append(row | {"auto over best c": ratio(runs["auto"], runs["swept"])})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
