"""Write the trial's page, OUT/index.html, and OUT/report.md, from the tables of collect.py and primary.py."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import page_bounds
import pandas as pd
from landscape.report.film import CHARTS, GEOMETRY, SPECTRUM
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_again import again, turned
from page_arms import arm, below_the_grid, constant_tokens, experiment, frozen_from, step
from page_auto import edges, swept, what_became
from page_beside import COMPARISONS, PLAIN, compared, spread
from page_claims import CLAIMS, capital, headline, number, said, size
from page_figures import COLOURS, READER, SCALES, TEXT, TRANSFORMER, alone, depths, effects, film, shares, training
from page_fresh import fresh, rare_tokens
from page_geometry import film_of_circles, last_geometry
from page_lags import timing
from page_links import Linked, setup
from page_map import decay_map
from page_notes import notes, proportional, untested
from page_one_hot import to_half
from page_others import division, gromov, spikes
from page_outside import outside
from page_points import ended, from_where, grokked, judged
from page_rates import by_rate, when_highest
from page_sizes import GAUGE, SIZES, by_width, sizes
from page_tasks import by_task
from page_transformers import transformers
from page_words import natural_text, transformer_on_text
from scale import FILM, which

from landscape.config import TrainConfig, preset
from landscape.errors import LandscapeError, complain
from landscape.report.page import environment
from landscape.report.style import colour

HERE = Path(__file__).parent
PROTOCOL = HERE.parent / "studies/PROTOCOL.md"
VARIED = ["study", "case", "task", "sampler", "batch_size", "weight_decay"]
"""What tells the settings of a study apart."""
PAPER, OPEN, DISCOVERIES = [f"C{i}" for i in range(1, 10)], ["O2", "O3"], ["D1", "D2"]


@dataclasses.dataclass(frozen=True)
class Results(Linked):
    """What the page says of one scale."""

    @property
    def done(self) -> bool:
        return "verdicts" in self.tables

    @property
    def config(self) -> TrainConfig:
        return preset(self.name)

    @property
    def setting(self) -> str:
        """The network of the scale in words."""
        one = self.config
        return f"p = {one.p}, {one.tokens} tokens, d = {one.embed_dim}, h = {one.hidden}"

    def verdict(self, claim: str) -> dict[str, Any]:
        table = self.tables["verdicts"]
        return dict(table[table["claim"] == claim].iloc[0])

    def of_verdict(self, claim: str, text: str) -> Markup:
        """Text that leads to the verdict on a claim."""
        return self.link("verdicts", text, claim=claim)

    def plateau(self) -> pd.DataFrame:
        """Rows of curvature.csv on the plateau of runs with four tokens."""
        study, case = ("curvature", "c1") if self.config.tokens == 4 else ("constants", "four")
        rows = self.tables["curvature"]
        return rows[(rows["study"] == study) & (rows["case"] == case) & (rows["analysis"] == "plateau")]

    def gauge(self) -> dict[str, Markup] | None:
        """Median saddle index of E,W on the plateau, as it is and off the gauge, where the whole block was dense."""
        rows, known = (
            self.tables["curvature"],
            {"study": "curvature", "case": "c1", "analysis": "plateau", "block": "E,W"},
        )
        rows = rows[np.logical_and.reduce([rows[name] == value for name, value in known.items()])]
        names = ["index", "index_gauge_free"]
        if rows.empty or rows[names].isna().any(axis=None):
            return None
        return {name: self.link("curvature", number(float(rows[name].median())), **known) for name in names}

    def depth_of_constants(self) -> dict[str, Any]:
        """The quoted numbers of the first discovery, and its figure."""
        rows = self.plateau()
        lowest = rows.pivot_table(index="seed", columns="block", values="lowest")
        bound = rows.groupby("seed")["saddle_bound_constants"].first()
        ratio = float((lowest["E,W"] / lowest["E[operands],W"]).median())
        control = float((lowest["W,V"] / lowest["E[operands],W"]).median())
        off = float((1 + lowest["E,W"] / bound).abs().median())
        runs = {name: rows[name].iloc[0] for name in ("study", "case")}
        linked = {
            name: self.link("curvature", number(value), **runs, analysis="plateau", block=block)
            for name, value, block in (("ratio", ratio, "E,W"), ("control", control, "W,V"), ("off", off, "E,W"))
        }
        words = Markup("E,W is {} times as deep as its operands' rows").format(linked["ratio"])
        figure = depths(rows, f"Depth on the plateau at {self.name}, by block and seed: {words.striptags()}")
        caption = self.caption("curvature", runs)
        return {**linked, "deeper": control > 1, "figure": figure, "words": words, "caption": caption}

    def without_coupling(self) -> dict[str, Any]:
        """The second discovery: the three cases of its test in a figure, and every arm of its experiment."""
        cases = {
            "E and W, L2": (self.runs("curvature", case="c1"), "#d55e00"),
            "tables, nuclear norm": (self.runs("tables", case="nuclear"), "#0173b2"),
            "tables, L2": (self.runs("tables", case="l2"), "#949494"),
        }
        rows = self.tables["runs"]
        facts = {
            label: arm(rows, {name: of[name].iloc[0] for name in ("study", "case")}, self.link)
            for label, (of, _) in cases.items()
        }
        alt = "; ".join(f"{label}: {facts[label]['grokked'].striptags()} grokked" for label in facts)
        figure = shares(cases, f"Share of runs that have grokked at {self.name}. {alt}")
        return {
            "cases": facts,
            "figure": figure,
            "caption": self.caption("runs", {"study": "tables", "case": "nuclear"}),
            "arms": experiment(self.tables, self.name, self.link),
        }

    @property
    def has_film(self) -> bool:
        """Whether the blocks of a run were followed over training."""
        return bool((self.tables["runs"]["study"] == FILM).any())

    def filmed(self) -> pd.Series:
        """The row of runs.csv of the run whose blocks were followed over training."""
        rows = self.tables["runs"]
        return rows[rows["study"] == FILM].iloc[0]

    def of_film(self, table: str) -> pd.DataFrame:
        """The rows of this run in another table."""
        rows = self.tables[table]
        return rows[rows["study"] == FILM]

    def events(self) -> dict[str, float | None]:
        """When this run memorised and grokked."""
        run = self.filmed()
        return {name: None if pd.isna(run[name]) else float(run[name]) for name in ("memorised", "grokked")}

    def film(self) -> dict[str, Any]:
        """What the slider shows."""
        run = self.filmed()
        spectra = {name: self.of_film(name) for name in ("spectra", "densities") if name in self.tables}
        shown = film(self.of_film("curvature"), self.of_film("metrics"), f"{self.name}/curvature.csv", **spectra)
        return {**shown, **self.events(), "run": run["file"], "setting": setup(which(self.tables["runs"], study=FILM))}

    def over_training(self) -> dict[str, Any]:
        """The depths of the pairs over training, and what they show."""
        rows = self.of_film("curvature")
        lowest = rows.pivot_table(index="step", columns="block", values="lowest")
        bound = rows[rows["block"] == "E,W"].set_index("step")["saddle_bound_constants"]
        on_it = (1 + lowest["E,W"] / bound).abs() < 0.01
        count = self.link("curvature", f"{on_it.sum()} of {len(on_it)}", study=FILM, block="E,W")
        words = Markup("−λ_min is ‖∂L/∂b₁‖ within 1 % at {} steps").format(count)
        alt = f"Depth of each pair over training at {self.name}: {words.striptags()}"
        caption = self.caption("curvature", {"study": FILM})
        return {"figure": training(rows, self.events(), alt), "words": words, "caption": caption}

    def sizes(self) -> dict[str, Any] | None:
        """What changes with size, where that was studied."""
        rows = self.tables["runs"]
        if not (rows["study"] == SIZES).any():
            return None
        found = sizes(self.name, rows, self.tables["curvature"], self.link)
        # The settings that the others are compared to belong to other studies.
        bases = which(rows, **PLAIN), which(rows, study="constants", case="four")
        drawn = pd.concat([rows[rows["study"].isin([SIZES, GAUGE])], *bases])
        there = self.link("curvature", "curvature.csv", study=SIZES)
        return {**found, "caption": Markup("{}; {}.").format(setup(drawn), there)}

    def points(self) -> dict[str, Any] | None:
        """Where searches for critical points ended, and what that says by activation; None where there were none."""
        if "points" not in self.tables:
            return None
        where = self.tables["points"], self.tables["curvature"], self.link
        reached = from_where(self.tables["points"], self.link)
        found = {"rows": list(ended(*where)), "judged": judged(*where), "reached": reached}
        return found | {"grokked": grokked(self.tables["runs"], self.link)}

    def sgd(self) -> Markup | None:
        """The constant of Proposition 4.1 with SGD, where it was studied."""
        rows = self.runs("sgd", case="c1")
        return (
            self.link("runs", spread(rows["prop41_constant"].tolist()), study="sgd", case="c1") if len(rows) else None
        )

    def settings(self) -> list[dict[str, Any]]:
        """What became of the runs of each setting: how many grokked, and medians."""
        rows, found = self.tables["runs"], []
        for varied, group in rows.groupby(VARIED, sort=False):
            known = dict(zip(VARIED, varied, strict=True))
            has_rank = group["effective_rank"].notna().any()
            cells = {
                "memorised": step(group["memorised"]),
                "there": f"{group['grokked'].notna().sum()} of {len(group)}",
                "grokked": step(group["grokked"]),
                "rank": number(group["effective_rank"].median()) if has_rank else "–",
            }
            linked = {name: self.link("runs", text, **known) for name, text in cells.items()}
            found.append({"setting": varied, "cells": linked})
        return found

    def inputs(self) -> dict[str, Any]:
        """What becomes of memorising and grokking without the constant tokens, and with them folded into the bias."""
        return constant_tokens(self.tables["runs"], self.link)

    def seeds(self, claim: str) -> list[Markup]:
        """x of each seed, linked."""
        rows = self.tables["seeds"]
        rows = rows[rows["claim"] == claim]
        return [self.link("seeds", number(row.x), claim=claim, seed=row.seed) for row in rows.itertuples()]


def definitions() -> dict[str, tuple[str, str]]:
    """The definition of x and the runs of each claim, from the protocol."""
    found = {}
    for line in PROTOCOL.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.replace("`", ""))[1:-1]]
        if len(cells) == 4 and re.fullmatch(r"[ACODGTNRSI]\d", cells[0]):
            found[cells[0]] = cells[2].replace("\\|", "|"), cells[3]
    return found


def title(results: Results, untested: Collection[str]) -> Markup:
    """What became of the paper's nine claims; those whose runs do not test them count apart, whatever the verdict."""
    apart = "not tested"
    verdicts = {claim: apart if claim in untested else results.verdict(claim)["verdict"] for claim in PAPER}

    def count(judgement: str) -> Markup:
        of = [claim for claim, verdict in verdicts.items() if verdict == judgement]
        return results.of_verdict(of[0] if of else PAPER[0], str(len(of)))

    counts = map(count, ("supported", "not supported", "undecided"))
    held = f"{capital(size(results.name))} {{}} of the paper's {len(PAPER)} claims hold"
    found = Markup(held + ", {} come out the other way, {} stay undecided").format(*counts)
    left = Markup(", {} {} {}").format(count(apart), "are" if len(untested) > 1 else "is", apart)
    return found + (left if untested else "")


def written(out: Path) -> dict[Path, str]:
    """The page, its short form for GitHub and the figures of that one, from the tables of all scales in a folder.

    Raises LandscapeError where there are none.
    """
    every = [Results(out / name) for name in COLOURS]
    scales = [results for results in every if results.name in SCALES]
    done = [results for results in scales if results.done]
    if not done:
        raise LandscapeError(f"no scale has verdicts in {out}", f"python analyses/primary.py {out}/quick")
    claims, told = {}, notes(done)
    for name, claim in CLAIMS.items():
        rows = {results.name: results.verdict(name) for results in done}
        verdicts = {scale: row["verdict"] for scale, row in rows.items()}
        there = {results.name: functools.partial(results.of_verdict, name) for results in done}
        shown = {results.name: page_bounds.shown(results, name, rows[results.name]) for results in done}
        claims[name] = {
            "sentence": headline(name, rows),
            "note": told.get(name),
            "said": {scale: said(name, row, there[scale]) for scale, row in rows.items()},
            "badges": {one.name: verdicts.get(one.name, "pending") for one in scales},
            "measure": claim.measure,
            "effects": {scale: there[scale](shown[scale]) for scale, row in rows.items()},
            "bars": effects(rows, shown),
            "definition": definitions()[name],
            "seeds": {results.name: results.seeds(name) for results in done},
            "p": {scale: there[scale](number(row["holm"])) for scale, row in rows.items()},
            "again": {one.name: found for one in done if (found := again(one, name))},
        }
    constants = {results.name: results.depth_of_constants() for results in done}
    tables = {results.name: results.without_coupling() for results in done}
    by_size = {results.name: found for results in done if (found := results.sizes())}
    rare = rare_tokens(every)
    maps = {one.name: found for one in every if (found := decay_map(one, one.link))}
    rates_of_E = {one.name: found for one in every if (found := edges(one, one.link))}
    beyond = next(transformers(one, one.link) for one in every if one.name == TRANSFORMER)
    text = Results(out / TEXT)
    words = natural_text(text, text.link)
    reader = Results(out / READER)
    filmed = [results for results in done if results.has_film]
    training = {results.name: results.over_training() for results in filmed}
    films = {results.name: results.film() for results in reversed(filmed)}
    circling = {f"{one.name}, circles": found for one in every if (found := film_of_circles(one))}
    said_once = {
        "title": title(done[-1], [name for name, one in told.items() if done[-1].name in one.weak]),
        "scales": scales,
        "done": done,
        "colours": SCALES,
        "claims": claims,
        "groups": {"Two discoveries": DISCOVERIES, "The paper's nine claims": PAPER, "Two open questions": OPEN},
        "where": size(done[-1].name),
        "below": [row for results in done for row in below_the_grid(results)],
        "frozen_from": {results.name: frozen_from(results.name) for results in done},
        "inputs": {results.name: results.inputs() for results in done},
        "weak": untested(told, done),
        "halves": {results.name: found for results in done if (found := to_half(results))},
        "proportional": proportional(done),
        "by_rate": by_rate(done),
        "block_colours": {block: to_hex(colour(block)) for block in ("E", "W")},
        "falls": {results.name: found for results in done if (found := when_highest(results))},
        "everything": [*DISCOVERIES, *PAPER, *OPEN],
        "turned": turned(done),
        "constants": constants,
        "training": training,
        "tables": tables,
        "seen": {name: one["arms"]["seen"] for name, one in tables.items() if one["arms"]["seen"]},
        "sizes": by_size,
        "widths": {results.name: ends for results in done if (ends := by_width(results))},
        "timing": timing(every),
        "geometry": last_geometry(every),
        "maps": maps,
        "edges": rates_of_E,
        "edges_title": what_became(rates_of_E),
        "swept": swept(every),
        "transformers": beyond,
        "definitions": definitions(),
        "outside": outside([done[-1], Results(out / TRANSFORMER), text, reader]),
        "transformer": next(one for one in every if one.name == TRANSFORMER),
        "words": words,
        "text": text,
        "reading": transformer_on_text(reader, reader.link),
        "reader": reader,
        "points": {results.name: found for results in done if (found := results.points())},
        "questions": fresh(done),
        "rare": rare,
        "gromov": gromov(out),
        "division": division(done),
        "spikes": spikes(done),
        "comparisons": [one.words for one in COMPARISONS],
        "compared": {one.name: compared(one.tables["runs"], one.link) for one in done},
        "by_task": {one.name: by_task(one.tables["runs"], one.tables["curvature"], one.link) for one in done},
        "charts": CHARTS | SPECTRUM | (GEOMETRY if circling else {}),
        "films": films | circling,
        "film_of": "scale",
    }
    templates = environment(HERE / "templates")
    texts = {"index.html": "page.html.j2", "report.md": "report.md.j2"}
    found = {out / name: templates.get_template(template).render(said_once) for name, template in texts.items()}
    # Pages that a site is made of lead to each other by links of Markdown alone.
    found[out / "report.md"] = re.sub(
        r'<a href="(\.\./[^"]*)">(.*?)</a>', r"[\2](\1)", found[out / "report.md"], flags=re.DOTALL
    )
    figures = {f"{name}-training": one["figure"] for name, one in training.items()}
    figures |= {f"{name}-depths": one["figure"] for name, one in constants.items()}
    figures |= {f"{name}-shares": one["figure"] for name, one in tables.items()}
    figures |= {"by-rate": said_once["by_rate"]} if said_once["by_rate"] else {}
    figures |= {f"{name}-sizes": one["figure"] for name, one in by_size.items()}
    figures |= {f"{name}-rare": one["figure"] for name, one in rare.items()}
    figures |= {f"{name}-map": one["figure"] for name, one in maps.items()}
    figures |= {f"{TRANSFORMER}-depths": beyond["figure"]} if beyond else {}
    figures |= {f"{TEXT}-depths": words["figure"]} if words else {}
    ranked = {TEXT: words, READER: said_once["reading"]}
    figures |= {f"{name}-ranks": of["ranked"]["figure"] for name, of in ranked.items() if of and of["ranked"]}
    return found | {out / f"figures/{name}.svg": alone(figure) for name, figure in figures.items()}


def main() -> int:
    """Command line: print the paths of what is written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports/reference"), help="folder of the tables and the page")
    out = parser.parse_args().out
    try:
        files = written(out)
    except LandscapeError as error:
        complain(error)
        return error.exit_code
    (out / "figures").mkdir(exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
