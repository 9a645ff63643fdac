"""The runs of the primary tests

When and with what they were made, as their files say.
"""

from pathlib import Path

import pandas as pd
from primary import READS
from tables import Scale, main, scales


def row(scale: Scale, study: str) -> dict[str, object]:
    runs = scale.runs(study)
    times = runs["created"].str[:16].str.replace("T", " ")
    return {
        "study": study,
        "size": scale.name,
        "runs": len(runs),
        "seeds": f"{runs.index.min()} to {runs.index.max()}",
        "made, UTC": f"{times.min()} to {times.max()}",
        "commit": ", ".join(runs["commit"].str[:8].unique()),
        "torch": ", ".join(runs["torch"].unique()),
        "dtype": ", ".join(runs["dtype"].unique()),
    }


def table(root: Path) -> pd.DataFrame:
    known = [(scale, study) for study in READS for scale in scales(root) if len(scale.runs(study))]
    return pd.DataFrame(row(*one) for one in known)


if __name__ == "__main__":
    main(table)
