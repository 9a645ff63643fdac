"""One HTML and one Markdown page from run files and Hessian files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import landscape
from landscape.choices.tasks import TEXT
from landscape.errors import ArgumentError, ConfigError, FileError, require_jobs, warn
from landscape.files import views
from landscape.files.files import as_path, resolved, sha256
from landscape.files.folders import replaced_folder
from landscape.files.runs import GROK, MEMORISE
from landscape.measure.tables import BOUND, by_block, by_step, filled, has_bounds, pair_shown, unconverged
from landscape.models.embedding_mlp.blocks import RATE_RATIO
from landscape.models.factory import load, unlike_source
from landscape.progress import clock
from landscape.report.comparison import compared, side_by_side
from landscape.report.drawing import Section, draw_all
from landscape.report.facts import explained
from landscape.report.figures.captions import control, network, objectives, where
from landscape.report.figures.numbers import step_text
from landscape.report.figures.sources import NOT_KNOWN, Source, open_sources
from landscape.report.film import CHARTS, GEOMETRY, SPECTRUM, film
from landscape.report.findings import findings
from landscape.text import markdown, printable

if TYPE_CHECKING:
    import jinja2


def write_report(
    files: Sequence[Path | str] | Path | str,
    out: Path | str,
    overwrite: bool = False,
    quiet: bool = False,
    jobs: int = 1,
    problem: str = "",
) -> Path:
    """Write report.html, report.md and figures/ into the folder `out`; returns the path of report.html.

    files: one or more run files, Hessian files or both; the other file of each pair is looked for beside it. With
    `overwrite` an earlier report is replaced; files added to its folder stay, an edited one is an error. jobs:
    processes that draw; more than one are forked, which is safe where no other threads run. problem: the factory that
    every Hessian file must have been made with; empty: any. Raises FileError for broken files, for an existing `out`
    and for a Hessian file of another problem.
    """
    out, files = as_path(out), [files] if isinstance(files, Path | str) else files
    require_jobs(jobs)
    if not files:
        raise ArgumentError("no files to report on", "name one run or Hessian file at least")
    with clock("reading", quiet):
        sources = open_sources(files)
    if problem:
        _require_problem(problem, sources)
    for line in (line for source in sources for line in source.damage):
        warn(line)
    inside = [path for s in sources for path in (s.run, s.hessian) if path and resolved(out) in path.resolve().parents]
    if inside:
        raise ConfigError(f"{inside[0]} lies in {out}, which the report replaces", "choose another --out")
    with replaced_folder(out, "report", overwrite) as draft:
        sections = draw_all(sources, draft / "figures", quiet, jobs)
        if all(source.is_recorded for source in sources):
            # Most of what is missing there belongs to runs of `landscape train` alone.
            sections = [section for section in sections if section.png]
        with clock("writing", quiet):
            _write_pages(sources, sections, draft)
    return out / "report.html"


def _require_problem(name: str, sources: Sequence[Source]) -> None:
    """Raise unless the Hessian files were made with this factory, of the source that it has now."""
    hessians = [(source.hessian, source.hessian_attrs) for source in sources if source.hessian]
    if not hessians:
        raise ConfigError(
            f"--problem {name}: none of the files is a Hessian file, nor lies beside one",
            f"leave it out, or measure first: landscape hessian --ckpt {sources[0].path} --problem {name}",
        )
    expected = load(name)[1]
    for path, attrs in hessians:
        if wrong := unlike_source(attrs, expected):
            raise FileError(f"{path}: {wrong}", "name the problem that it was made with, or measure the run again")


def environment(*folders: Path) -> jinja2.Environment:
    """Where templates are looked for: in these folders, then in that of the report, whose parts other pages include."""
    import jinja2
    from markupsafe import Markup

    loaders = [jinja2.FileSystemLoader(folders), jinja2.PackageLoader("landscape.report.page")]
    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # What is marked as safe, such as JSON for scripts, stays so.
        finalize=lambda shown: shown if isinstance(shown, Markup) else printable(shown),
    )
    # Blocks and runs keep their order.
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return found


def _write_pages(sources: Sequence[Source], sections: Sequence[Section], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pages = environment()
    pages.filters |= {"markdown": markdown, "explained": explained}
    tables = [table for s in sources if s.hessian for table in _tables(s.label, views.open(s.hessian))]
    content = {
        "version": landscape.__version__,
        "findings": findings(sources),
        "runs": [_run_facts(s) for s in sources],
        "tables": [table for table in tables if len(table["lines"]) > 1],
        "sections": sections,
        "compared": side_by_side(compared(sources)) if len(sources) > 1 else [],
        "notes": _notes(sources),
        "films": {printable(source.label): shown for source in sources if (shown := film(source))},
        "film_of": "run",
        "charts": SPECTRUM | CHARTS | GEOMETRY,
    }
    for page in ("report.html", "report.md"):
        (folder / page).write_text(pages.get_template(f"{page}.j2").render(**content), encoding="utf-8")


def _tables(label: str, result: views.File) -> Iterator[dict[str, Any]]:
    """The quantities of blocks, and those of pairs and checkpoints, as lines of cells with what the lines are of."""
    yield {"label": label, "of": "every step and block", "lines": by_block(result)}
    pair = f"; coupling, kappa and excess index of {pair_shown(result)}" if result.pairs else ""
    yield {"label": label, "of": f"every step{pair}", "lines": filled(by_step(result))}


def _run_facts(source: Source) -> dict[str, str]:
    """Facts about a run by name."""
    attrs = source.run_attrs or source.hessian_attrs
    facts = {"run": source.label, **(_recorded(source) if source.is_recorded else _trained(source))}
    digest = sha256(source.run) if source.run else source.hessian_attrs["parent_sha256"]
    return facts | {
        "run id": source.run_id,
        "SHA-256 of the run file": str(digest),
        "made by": f"landscape {attrs['landscape_version']}, commit {str(attrs['git_commit'])[:12]}"
        f"{' with changes' if attrs['git_dirty'] else ''}, torch {attrs['torch_version']}, {attrs['device']}",
    }


def _trained(source: Source) -> dict[str, str]:
    """Options and results of a run of `landscape train`."""
    c = source.config
    facts = {
        "task": f"text of {c['vocabulary']} words, the next of {c['context']}"
        if c["task"] == TEXT
        else f"{c['task']} mod {c['p']}, {c['tokens']} tokens",
        "model": network(c),
        "optimiser": f"{c['optimizer']}, lr {c['lr']:g}, {RATE_RATIO} {c['lr_ratio']}, "
        f"weight decay {c['weight_decay']:g}{' (nuclear norm of the tables)' if c['penalty'] == 'nuclear' else ''}",
        "batch": f"{c['batch_size']}, sampler {c['sampler']}",
        "training share": f"{c['train_fraction']:g}",
        "seed": str(c["seed"]),
    }
    if source.metrics.sizes.get("metric_step"):
        last = source.metrics.isel(metric_step=-1)
        facts |= {
            "status": str(source.run_attrs["status"]),
            "last step": str(int(last["metric_step"])),
            "train accuracy": f"{float(last['train_accuracy']):.4f}",
            "test accuracy": f"{float(last['test_accuracy']):.4f}",
            "train 99 % at step": step_text(source.event(*MEMORISE)),
            "test 95 % at step": step_text(source.event(*GROK)),
        }
    return facts


def _recorded(source: Source) -> dict[str, str]:
    """What is known of a run that was recorded or imported."""
    c = source.config
    facts = {
        "model": str(c["model"]),
        "parameters": f"{c['num_parameters']:,}",
        "seed": source.seed.removeprefix("seed "),
    }
    if source.run:
        facts["status"] = str(source.run_attrs["status"])
        for name, values in source.metrics.data_vars.items():
            # A metric that is recorded at some steps alone is NaN between them.
            known = values.dropna("metric_step")
            if known.size:
                facts[f"last {name}"] = f"{float(known[-1]):.6g}, at step {int(known['metric_step'][-1])}"
    return facts


def _repetitions(sources: Sequence[Source]) -> str:
    """How many runs and seeds there are, and what that is worth."""
    seeds = list({source.run_id: source.seed for source in sources}.values())
    known, unknown = len({*seeds} - {NOT_KNOWN}), seeds.count(NOT_KNOWN)
    counted = [f"{len(seeds)} run{'s' if len(seeds) > 1 else ''}"]
    counted += [f"{known} seed{'s' if known > 1 else ''}"] * bool(known)
    counted += [f"{NOT_KNOWN} of {unknown}"] * bool(unknown)
    worth = "the figures show the spread" if known + unknown > 1 else "one seed supports no general claim"
    return f"{', '.join(counted)}: {worth}."


def _notes(sources: Sequence[Source]) -> list[str]:
    """What readers must know before they quote a number."""
    notes = [
        _repetitions(sources),
        *(s.mismatch for s in sources if s.mismatch),
        *(line for s in sources for line in s.damage),
    ]
    analysed = [s for s in sources if s.hessian]
    if analysed:
        files = [s.measured for s in analysed if "hidden" in s.measured]
        # NaN where a file of an earlier version was extended.
        failures = [p for measured in files for p in measured["hidden_failure_probability"].values.flat]
        precisions = dict.fromkeys(str(s.hessian_attrs["dtype"]) for s in analysed)
        is_foreign = any(s.is_recorded for s in analysed)
        measured_on = "the data that the problem gives" if is_foreign else "the whole training set"
        readers = [views.open(s.hessian) for s in analysed if s.hessian]
        is_starred = any(wrong for reader in readers for wrong in unconverged(reader).values())
        notes += [
            f"Objective of the Hessian: {objectives(analysed)}. {' and '.join(precisions)}, on {measured_on}.",
            where(analysed) + " Read every saddle index beside its gradient norm.",
            "hidden: distance beyond the reported eigenvalues within which one may have been missed, relative to the "
            f"norm of the block (failure probability {np.nanmax([0.0, *failures]):.0g} per end); 0: all were computed.",
            *[BOUND] * any(map(has_bounds, readers)),
            *["*: not every eigenvalue of the block converged (see converged in the file)."] * is_starred,
            *([f"{control(analysed)} Both pairs are products of two factors."] if control(analysed) else []),
            "A caption that names F0, F14 or the like means that fact of docs/theory.md, where it is proved.",
        ]
    return notes
