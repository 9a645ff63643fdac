"""Networks without the constant tokens `op` and `=`, and with both folded into b₁

Ratios of steps over those of the network with four tokens, paired by seed: medians with intervals. Folded, a network
starts as the same function.
"""

from pathlib import Path

import pandas as pd
from claims import four_tokens
from tables import main, ratio, scales


def table(root: Path) -> pd.DataFrame:
    return pd.DataFrame(
        {"scale": scale.name, "op and =": words}
        | {event: ratio(runs, scale.runs(**four_tokens(scale)), event) for event in ("memorised", "delay", "grokked")}
        for scale in scales(root)
        for words, case in (("removed", "two"), ("folded into b₁", "folded"))
        if len(runs := scale.runs("constants", case=case))
    )


if __name__ == "__main__":
    main(table)
