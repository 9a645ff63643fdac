"""Make every table and figure of the trial, and the article: `python analyses/article.py [FOLDER]`.

article.md.j2 has its words; every number in them is looked up in the tables, which stand in the folder, by default
reports/reference. article.html and article.pdf are printed from article.md, the latter by Chromium.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jinja2
import matplotlib as mpl
import numpy as np
import pandas as pd
import table_claims
import table_verdicts
from docutils.core import publish_file
from exact import median_interval
from myst_parser.docutils_ import Parser
from tables import PLAIN, SIZES, Scale, count, factor, interval, log_ratios, look, number, root_of, scales, which, write

HERE = Path(__file__).parent
SCRIPTS = sorted(path.stem for kind in ("table", "figure") for path in HERE.glob(f"{kind}_*.py"))
OTHERS = ("transformer", "text", "text-transformer")
"""What was asked of other networks."""
LOOKED_UP = (
    *("test", "found", "row", "settled", "rate", "index", "cleared", "claim", "missed", "later", "beyond", "came"),
    *("fork", "pair"),
)
"""What the template may call."""


class Numbers:
    """What the template looks up."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @functools.cached_property
    def primary(self) -> pd.DataFrame:
        return pd.read_csv(self.root / "tables/primary.csv")

    def test(self, name: str, size: str = "both") -> str:
        """Effect and interval of a primary test."""
        ((_, row),) = which(self.primary, test=name, size=size).iterrows()
        return table_verdicts.effect(row)

    def found(self, word: str, name: str, size: str = "") -> str:
        """The verdict of a primary test, at every size unless one is named; the sentence needs it to be this word."""
        verdicts = set(which(self.primary, test=name, **{"size": size} if size else {})["verdict"])
        if verdicts != {word}:
            said = f"{word} of {name}{f' at {size}' if size else ''}"
            sys.exit(
                f"error: the article says {said}, and the tables {', '.join(sorted(verdicts))}; tables and "
                "figures are made, the article is not\nhint: write what was found in analyses/article.md.j2"
            )
        return f"**{word}**"

    def row(self, table: str, **known: object) -> dict[str, object]:
        """The row of a table with these values."""
        (found,) = which(pd.read_csv(self.root / f"tables/{table}.csv"), **known).to_dict("records")
        return {str(name): value for name, value in found.items()}

    def settled(self, size: str) -> dict[str, dict[str, object]]:
        """The rows of the table of settled points by block."""
        table = which(pd.read_csv(self.root / "tables/settled.csv"), size=size)
        return {row["block"]: row for row in table.to_dict("records")}

    def index(self, size: str, state: str, tau: float) -> str:
        """Median bounds over seeds of how many eigenvalues of E,W are below −tau ‖H‖, at a state of the figure."""
        curves = Scale(self.root / size).rows("index_curves", study="settled", block="E,W", analysis=state)
        low, high = curves[np.isclose(curves["tau"], tau)][["lower", "upper"]].median()
        return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f}"

    def cleared(self, size: str, tau: float) -> str:
        """In how many seeds no eigenvalue of E,W is below −tau ‖H‖ once settled."""
        curves = Scale(self.root / size).rows("index_curves", study="settled", block="E,W", analysis="settled")
        upper = curves[np.isclose(curves["tau"], tau)]["upper"]
        return f"{(upper == 0).sum()} of {len(upper)}"

    def fork(self, size: str) -> dict[str, str]:
        """Where the lowest eigenvector of E,W lies at the fork of `cut`, and what is negative; medians."""
        scale = Scale(self.root / size)
        shares = scale.rows("lowest", study="fork")[["gauge", "constants"]].median()
        index = scale.rows("curvature", study="fork", block="E,W")
        beyond = index["index_gauge_free"]
        numbers = {"index": number(index["index"].median())}
        numbers["beyond"] = f"{number(beyond.median())} ({number(beyond.min())} to {number(beyond.max())})"
        return numbers | {name: f"{100 * share:.0f} %" for name, share in shares.items()}

    def pair(self, case: str) -> str:
        """The depth of E and the MLP that reads it over that within the MLP, in a variant of the Transformer."""
        lowest = Scale(self.root / "transformer").pivot("lowest", study="variants", case=case)
        return factor(np.log(lowest["E,mlp_in"] / lowest["mlp_in,mlp_out"]))

    def rate(self, quantity: str, size: str) -> object:
        """A cell of the table of rates."""
        return self.row("rates", quantity=quantity)[size]

    def claim(self, name: str, size: str) -> str:
        """Word and effect of a claim of the paper, or of O2, O3, D1, D2."""
        return table_claims.effect(Scale(self.root / size), name)

    def missed(self, size: str, phase: str, predictor: str) -> str:
        """By what factor a predictor misses the ratio of gradients, in the runs of P10 and P11."""
        return f"× {interval(Scale(self.root / size).runs('cut', case='none')[f'miss_{predictor}_{phase}'])}"

    def later(self, size: str, one: str, other: str) -> str:
        """The median ratio of the steps at which two cases of the study `tables` grok; the ordinary network is base."""
        scale = Scale(self.root / size)
        runs = [scale.runs(**(PLAIN if case == "base" else {"study": "tables", "case": case})) for case in (one, other)]
        return number(math.exp(median_interval(log_ratios(*(of["grokked"] for of in runs)))[0]))

    def beyond(self, name: str, size: str, is_ratio: bool = True) -> str:
        """Word and effect of a test of other networks, which later code does not make."""
        files = [pd.read_csv(path) for path in (self.root / size).glob("*.csv") if path.stem in ("verdicts", "beyond")]
        ((_, row),) = which(pd.concat(files), claim=name).iterrows()
        effect = [np.exp(x) if is_ratio else x for x in (row["median"], row["low"], row["high"])]
        sign = "× " if is_ratio else ""
        return f"{row['verdict']}: {sign}{effect[0]:.3g} [{effect[1]:.3g}, {effect[2]:.3g}]".replace("-", "−")

    def came(self, event: str, study: str, case: str) -> str:
        """How many runs of a case came to an event, of all sizes."""
        return count(pd.concat([scale.runs(study, case=case)[event] for scale in scales(self.root)]))

    @property
    def tests(self) -> dict[str, int]:
        """How many tests there were: of the article, of the paper's claims at all sizes, and of all else."""

        def rows(name: str, folders: Sequence[str]) -> int:
            paths = [self.root / folder / f"{name}.csv" for folder in folders]
            return sum(len(pd.read_csv(path)) for path in paths if path.exists())

        others = rows("verdicts", OTHERS) + rows("beyond", (*SIZES, *OTHERS))
        return {"primary": len(self.primary), "claims": rows("verdicts", SIZES), "others": others}


def shown(root: Path, script: str) -> str:
    """A table as Markdown, or a figure, with the title and the words of its script; writes it."""
    module = importlib.import_module(script)
    kind, _, name = script.partition("_")
    title, _, words = str(module.__doc__).partition("\n")
    content = module.table(root) if kind == "table" else module.figure(root)
    place = write(content, name, root).relative_to(root)
    text = " ".join(words.split())
    if isinstance(content, pd.DataFrame):
        return f"**{title}.** {text} ([CSV]({place}))\n\n{markdown(content)}"
    return f"![{title}]({place})\n\n*{title}.* {text}"


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown."""
    rows = [table.columns.tolist(), ["---"] * table.shape[1], *table.values.tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def filled(root: Path) -> str:
    """The article."""
    parts = {script: shown(root, script) for script in SCRIPTS}
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined)
    # 13.4 of "13.4 [10.1, 15.4]".
    templates.filters["middle"] = lambda text: text.partition(" [")[0].partition(" (")[0]
    numbers = Numbers(root)
    known = {name: getattr(numbers, name) for name in LOOKED_UP}
    return templates.get_template("article.md.j2").render(**parts, **known, tests=numbers.tests) + "\n"


def words(text: str) -> int:
    """Words outside tables and addresses."""
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    return len(re.sub(r"!\[[^]]*\]|\]\([^)]*\)", "", "\n".join(prose)).split())


def publish(article: Path) -> None:
    """article.html beside article.md, and article.pdf where Chromium is installed."""
    page = article.with_suffix(".html")
    settings = {"stylesheet_path": "minimal.css," + str(HERE / "article.css"), "embed_stylesheet": True}
    publish_file(
        source_path=str(article),
        destination_path=str(page),
        parser=Parser(),
        writer="html5",
        settings_overrides=settings | {"myst_all_links_external": True, "halt_level": 2},
    )
    print(page)
    if program := shutil.which("chromium") or shutil.which("google-chrome"):
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--no-pdf-header-footer",
            f"--print-to-pdf={page.with_suffix('.pdf')}",
        ]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
        print(page.with_suffix(".pdf"))
    else:
        print("note: no article.pdf, since Chromium is not installed", file=sys.stderr)


def main() -> None:
    """Write tables, figures and the article below the folder."""
    mpl.use("agg")
    look()
    root = root_of(str(__doc__))
    text = filled(root)
    (root / "article.md").write_text(text, encoding="utf-8")
    print(f"{root / 'article.md'}: {words(text):,} words")
    publish(root / "article.md")


if __name__ == "__main__":
    main()
