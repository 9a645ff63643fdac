"""A page from run files and Hessian files: what was found, figures, tables, and facts about the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

import landscape
from landscape.errors import ArgumentError, ConfigError, FileError, warn
from landscape.files.files import as_path, resolved, sha256
from landscape.files.folders import replaced_folder
from landscape.models.embedding_mlp.blocks import CLAIM, CONTROL
from landscape.models.factory import load, unlike_source
from landscape.progress import Bar
from landscape.report.comparison import compared, side_by_side
from landscape.report.figures import FIGURES
from landscape.report.findings import findings, templates
from landscape.report.sources import UNKNOWN_SEED, Frames, Source, frames, open_sources
from landscape.report.style import chosen_formats, inline, pieces, save_figure, style
from landscape.report.words import digits
from landscape.text import printable, write_csv

_ROWS, _FEW = 1000, 20
"""Rows of a table that the page holds at most, and those up to which it is not folded."""


def write_report(
    files: Sequence[Path | str] | Path | str,
    out: Path | str,
    overwrite: bool = False,
    quiet: bool = False,
    problem: str = "",
    formats: str = "",
) -> Path:
    """Write report.html, figures/ and tables/ into a folder.

    Args:
        files: run files, Hessian files or both; the other files of each run are looked for beside it.
        out: the folder.
        overwrite: replace an earlier report; files added to its folder stay, an edited one is an error.
        quiet: no progress bar.
        problem: the factory that every Hessian file must have been made with; empty: any.
        formats: in which figures are saved besides SVG, such as "png,pdf".

    Returns:
        The path of report.html.

    Raises:
        FileError: for broken files, an existing `out`, and a Hessian file of another problem.
    """
    out, files = as_path(out), [files] if isinstance(files, Path | str) else files
    if not files:
        raise ArgumentError("no files to report on", "name one run or Hessian file at least")
    forms = chosen_formats(formats)
    sources = open_sources(files)
    if problem:
        _require_problem(problem, sources)
    for line in (line for source in sources for line in source.damage):
        warn(line)
    inside = [path for s in sources for path in s.files.values() if resolved(out) in path.resolve().parents]
    if inside:
        raise ConfigError(f"{inside[0]} lies in {out}, which the report replaces", "choose another --out")
    tables = frames(sources)
    with replaced_folder(out, "report", overwrite) as draft:
        figures = _draw(frames([s for s in sources if not s.is_refined]) or tables, draft / "figures", forms, quiet)
        page = templates(finalize=_shown).get_template("report.html.j2")
        content = _content(sources, tables)
        (draft / "tables").mkdir()
        for name in ("compared", "summary"):
            if content[name]:
                titles, *lines = content[name]
                write_csv(pd.DataFrame(lines, columns=titles), draft / "tables" / f"{name}.csv")
        (draft / "report.html").write_text(page.render(figures=figures, **content), encoding="utf-8")
    return out / "report.html"


def _draw(tables: Frames, folder: Path, formats: Sequence[str], quiet: bool) -> list[dict[str, Any]]:
    """The figures of the page, saved into a folder."""
    captions = templates().get_template("captions.j2")
    num_runs = tables["runs"]["run"].nunique()
    figures = []
    with style(), Bar(len(FIGURES), "figure", quiet) as bar:
        for draw in FIGURES:
            name = draw.__name__
            bar.set_postfix_str(name)
            if drawn := draw(tables):
                paths = save_figure(drawn.figure, drawn.data, folder, name, formats)
                svg = inline(paths["svg"].read_text(encoding="utf-8"), name, drawn.title)
                links = {form: f"figures/{path.name}" for form, path in paths.items()}
                texts = drawn.data.select_dtypes(["object", "string"])
                shown = captions.make_module({"drawn": set(texts.stack()), "num_runs": num_runs})
                figures.append(
                    {
                        "name": name,
                        "title": drawn.title,
                        "svg": Markup(svg),
                        "pieces": pieces(drawn.figure),
                        "caption": str(getattr(shown, name)()),
                        "links": links,
                    }
                )
            bar.update()
    return figures


def _content(sources: Sequence[Source], tables: Frames) -> dict[str, Any]:
    """What the template shows."""
    hessians = [source.attrs["hessian"] for source in sources if "hessian" in source.attrs]
    blocks = tables.get("by_step_block", pd.DataFrame())
    chances = blocks.get("hidden_failure_probability", pd.Series(dtype=float))
    seeds = {source.run_id: source.seed for source in sources}
    pairs = set(tables["by_step_pair"]["pair"]) if "by_step_pair" in tables else set()
    is_foreign = any(source.is_recorded for source in sources)
    return {
        "version": landscape.__version__,
        "findings": findings(sources),
        "compared": side_by_side(compared(sources)) if len(sources) > 1 else [],
        "summary": summary(tables),
        "most_rows": _ROWS,
        "few_rows": _FEW,
        "damage": [line for source in sources for line in source.damage],
        "num_runs": len(seeds),
        "num_seeds": len({*seeds.values()} - {UNKNOWN_SEED}),
        "num_unknown": [*seeds.values()].count(UNKNOWN_SEED),
        "objectives": list(dict.fromkeys(attrs["objective"] for attrs in hessians)),
        "precisions": list(dict.fromkeys(attrs["dtype"] for attrs in hessians)),
        "is_foreign": is_foreign,
        "num_steps": blocks["step"].nunique() if "step" in blocks else 0,
        "on_path": any("hessian" in source.files and not source.is_refined for source in sources),
        "grad_norm": digits(blocks["grad_norm"].min(), ".2g") if "grad_norm" in blocks else "",
        "failure": f"{chances.max():.0e}" if chances.max() > 0 else "",
        "control": f"{CONTROL} is the control for {CLAIM}" if {CLAIM, CONTROL} <= pairs and not is_foreign else "",
        "facts": {source.label: _facts(source) for source in sources},
    }


def summary(tables: Frames) -> list[list[str]]:
    """The main quantities of every block at every step as lines of cells, titles first; empty where none is there."""
    blocks, ends = (tables.get(name, pd.DataFrame()) for name in ("by_step_block", "by_step_block_end_rank"))
    if not {"inertia_lower", "inertia_upper"} <= set(blocks) or "eigenvalues" not in ends:
        return []
    decays = tables["runs"].set_index("run")["weight_decay"]
    key = ["run", "step", "block"]
    first = ends[ends["rank"] == 0].pivot(index=key, columns="end", values=["eigenvalues", "converged"])
    first.columns = [f"{name}_{end}" for name, end in first.columns]
    rows = blocks.merge(first.reset_index(), on=key, how="left")
    if "by_step_pair_rank" in tables:
        ratios = tables["by_step_pair_rank"]
        ratios = ratios[ratios["rank"] == 0].rename(columns={"pair": "block"})
        rows = rows.merge(ratios[[*key, "coupling_ratios", "coupling_ratio_error"]], on=key, how="left")
    lines = []
    for row in rows.to_dict("records"):
        starred = {end: "*" if row.get(f"converged_{end}") == 0 else "" for end in ("lowest", "highest")}
        low, high = (f"{_cell(row['inertia_' + end], ',.0f')}" for end in ("lower", "upper"))
        is_bound = pd.isna(row.get("coupling_ratio_error")) and not pd.isna(row.get("coupling_ratios"))
        error = row.get("trace_error", np.nan)
        lines.append(
            {
                "run": row["run"],
                "step": f"{row['step']:,.0f}",
                "block": row["block"],
                "λ_min": _cell(row["eigenvalues_lowest"]) + starred["lowest"],
                "λ_min / ‖H‖": _cell(row["eigenvalues_lowest"] / (row["operator_norm"] or np.nan), ".3g"),
                "λ_min / weight decay": _cell(row["eigenvalues_lowest"] / decays[row["run"]], ".3g"),
                "λ_max": _cell(row["eigenvalues_highest"]) + starred["highest"],
                "negative eigenvalues": low if low == high else f"{low} to {high}",
                "known": row.get("inertia_level", ""),
                "τ": _cell(row.get("inertia_tolerance"), ".2g"),
                "trace": _cell(row.get("trace")) + (f" ± {error:.2g}" if error > 0 else ""),
                "gradient norm": _cell(row.get("grad_norm")),
                "κ₁": ("≥ " if is_bound else "") + _cell(row.get("coupling_ratios")),
            }
        )
    table = pd.DataFrame(lines)
    if table["run"].nunique() == 1:
        table = table.drop(columns="run")
    if decays.isna().all():
        table = table.drop(columns="λ_min / weight decay")
    return [list(table.columns), *table.to_numpy().tolist()]


def _cell(value: Any, form: str = ".4g") -> str:
    return "–" if value is None or pd.isna(value) else digits(value, form)


def _facts(source: Source) -> Mapping[str, str]:
    """What made a run, by name."""
    attrs = next(iter(source.attrs.values()))
    options = {name: value for name, value in source.config.items() if value not in ("", [], {}, None)}
    digest = sha256(source.files["run"]) if "run" in source.files else attrs["parent_sha256"]
    return {
        "options": ", ".join(f"{name} {value}" for name, value in options.items()),
        "status": str(attrs["status"]),
        "run id": source.run_id,
        "SHA-256 of the run file": str(digest),
        "made by": f"landscape {attrs['landscape_version']}, commit {str(attrs['git_commit'])[:12]}"
        f"{' with changes' if attrs['git_dirty'] else ''}, torch {attrs['torch_version']}, {attrs['device']}",
    }


def _require_problem(name: str, sources: Sequence[Source]) -> None:
    """Raise unless the Hessian files were made with this factory, of the source that it has now."""
    hessians = [source for source in sources if "hessian" in source.files]
    if not hessians:
        raise ConfigError(
            f"--problem {name}: none of the files is a Hessian file, nor lies beside one",
            f"leave it out, or measure first: landscape hessian {sources[0].path} --problem {name}",
        )
    expected = load(name)[1]
    for source in hessians:
        if wrong := unlike_source(source.attrs["hessian"], expected):
            hint = "name the problem that it was made with, or measure the run again"
            raise FileError(f"{source.files['hessian']}: {wrong}", hint)


def _shown(value: object) -> object:
    """Text of files, with control characters escaped; what is markup stays so."""
    return value if isinstance(value, Markup) else printable(value)
