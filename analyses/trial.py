"""Test all claims of the paper: one page with every verdict, its figures, numbers and files."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from evidence import Finding, Verdict, write
from intervals import LEVEL, RESAMPLES
from markupsafe import Markup, escape
from tqdm import tqdm

import landscape
from landscape import open_hessian, open_run
from landscape.errors import LandscapeError, complain
from landscape.provenance import provenance
from landscape.report.style import style
from landscape.storage.files import sha256
from landscape.storage.folders import replaced_folder
from landscape.text import write_csv

HERE = Path(__file__).parent
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if "\ndef claim(" in path.read_text(encoding="utf-8"))
"""Every script with a claim."""


def trial(runs: Path, out: Path, quiet: bool = False) -> list[Verdict]:
    """Write every claim's figures and numbers to OUT/CLAIM, and report.md, report.html and files.csv to OUT.

    Returns the verdicts. An earlier report in OUT is replaced; files added to it stay. Raises ConfigError for an OUT
    that is not a report, FileError for an edited file of the report.
    """
    findings: dict[str, Finding] = {}
    # First, because writing the report may change the work tree that this describes.
    code = provenance("cpu")
    with (
        replaced_folder(out, "report", overwrite=True) as folder,
        style(),
        tqdm(SCRIPTS, unit="claim", disable=quiet, file=sys.stderr) as bar,
    ):
        for name in bar:
            bar.set_postfix_str(name)
            findings[name] = importlib.import_module(name).claim(runs)
            write(findings[name], folder / name)
        write_csv(origins([path for finding in findings.values() for path in finding.files]), folder / "files.csv")
        pages(findings, code, folder)
    return [verdict for _, verdict in by_claim(findings)]


def by_claim(findings: dict[str, Finding]) -> list[tuple[str, Verdict]]:
    """The verdicts with the names of their scripts, sorted by claim."""
    verdicts = [(name, verdict) for name, finding in findings.items() for verdict in finding.verdicts]
    return sorted(verdicts, key=lambda named: named[1].claim)


def origins(paths: Iterable[Path]) -> pd.DataFrame:
    """One row per file behind the verdicts: study, name, id, SHA-256 and the code that wrote it."""
    rows = []
    for path in sorted(set(paths)):
        with (open_hessian if ".hessian" in path.name else open_run)(path) as data:
            rows.append(
                {
                    "study": path.parent.name,
                    "file": path.name,
                    "run_id": data.attrs.get("run_id", data.attrs.get("parent_run_id")),
                    "sha256": sha256(path),
                    "landscape_version": data.attrs["landscape_version"],
                    "git_commit": data.attrs["git_commit"],
                    "torch_version": data.attrs["torch_version"],
                }
            )
    return pd.DataFrame(rows)


def pages(findings: dict[str, Finding], code: dict[str, Any], out: Path) -> None:
    """report.md and report.html. code: the provenance of what made them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # A bar ends the cell of a Markdown table.
    environment.filters |= {"html": to_html, "cell": lambda text: text.replace("|", r"\|")}
    content = {
        "findings": findings,
        "verdicts": by_claim(findings),
        "version": landscape.__version__,
        "commit": f"{code['git_commit'][:12]}{' with changes' if code['git_dirty'] else ''}",
        "level": LEVEL,
        "resamples": RESAMPLES,
    }
    for page in ("report.html", "report.md"):
        text = environment.get_template(f"{page}.j2").render(**content)
        (out / page).write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")


def to_html(paragraph: str) -> Markup:
    """HTML of a paragraph or table of Markdown with bold, italics and code."""
    text = str(escape(paragraph))
    for pattern, tag in ((r"\*\*(.+?)\*\*", "b"), (r"\*(.+?)\*", "i"), (r"`(.+?)`", "code")):
        text = re.sub(pattern, rf"<{tag}>\1</{tag}>", text)
    if not text.startswith("|"):
        return Markup(f"<p>{text}</p>")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    cells = [[f"<{tag}>{cell}</{tag}>" for cell in row] for row, tag in ((head, "th"), *((row, "td") for row in rows))]
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return Markup(f"<table>\n{lines}\n</table>")


def main() -> int:
    """Command line: print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("checkpoints/studies"), help="folder of the studies' files")
    parser.add_argument("--out", type=Path, default=Path("reports/trial"), help="folder to write to")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args()
    try:
        verdicts = trial(args.runs, args.out, args.quiet)
    except LandscapeError as error:
        complain(error)
        return error.exit_code
    for verdict in verdicts:
        print(f"{verdict.claim:4} {verdict.judgement:14} {verdict.statement}: {verdict.number}")
    print(args.out / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
