"""Make every table and figure of the trial, and the page that shows them: `python analyses/page.py`.

The page, reports/reference/report.md, has what each script says of its table or figure: its docstring.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from tables import REFERENCE, look, write

TITLE = """# The trial: tables and figures

Does an embedding make a network grok late because it multiplies the first layer, which makes saddle points? Do
unequal curvatures of the two factors, and rare tokens, add to the delay? [The
paper](https://arxiv.org/abs/2505.15624) says so from training curves and top eigenvalues; here each claim has a
test of its own, on the Hessian itself where it speaks of curvature. [The protocol](../../studies/PROTOCOL.md) was
fixed before the runs, and says what was added or changed since; what is not a claim's test is exploratory. [How to
repeat it](../../docs/trial.md).

Sizes: `quick` (p = 59, 2 tokens, d = 16, h = 64), `mid` (p = 59, 4 tokens, d = 64, h = 256), `paper` (p = 97, 4
tokens, d = 128, h = 512), and a `transformer` of one layer (p = 59, d = 16); `text` and `text-transformer` learn
the next word. A run has memorised at 99 % training accuracy and grokked at 95 % test accuracy; its delay is between
them, and its plateau is the stored step nearest to their geometric mean. Intervals hold the median of all such
seeds: from the second to the ninth of ten, 97.9 %. c is the learning rate of E over that of W. Each table and
figure is one script in `analyses/`, from the CSV files beside this page.
"""
PAGE = {
    "The claims": ("table_claims", "figure_effects", "table_checks"),
    "Where the negative curvature is": ("figure_training", "figure_depths", "figure_index_curves", "table_settled"),
    "Without the coupling": ("table_arms", "figure_grokked", "figure_ranks"),
    "Learning rates": ("figure_rates", "figure_tops"),
    "When circles appear": ("table_events", "figure_events", "figure_circles"),
    "Transformers": ("table_pairs",),
    "Natural text": ("table_text_rates", "figure_words"),
}
"""Scripts by section."""


def sections(root: Path) -> Iterator[str]:
    """The parts of the page, in order."""
    yield TITLE
    for heading, scripts in PAGE.items():
        yield f"## {heading}\n"
        for name in scripts:
            script = importlib.import_module(name)
            title, _, text = str(script.__doc__).partition("\n")
            content = script.table(root) if name.startswith("table") else script.figure(root)
            place = write(content, name.partition("_")[2], root).relative_to(root)
            shown = markdown(content) if isinstance(content, pd.DataFrame) else f"![{title}]({place})"
            yield f"### {title}\n\n{text.strip()}\n\n{shown}\n\n`analyses/{name}.py`, [{place.name}]({place})\n"


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown."""
    rows = [table.columns.tolist(), ["---"] * table.shape[1], *table.values.tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def main() -> None:
    """Write the tables, the figures and report.md below a folder, by default reports/reference."""
    mpl.use("agg")
    look()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    (root / "report.md").write_text("\n".join(sections(root)), encoding="utf-8")
    print(root / "report.md")


if __name__ == "__main__":
    main()
