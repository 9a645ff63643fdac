"""C9: does the rare-token frequency term f_W/f_E of Proposition 4.1 matter?

The rule, fixed on pilot runs of another seed. A batch of B pairs misses a token with probability (1 - 1/p)^(2B), so
that f_E = 1 - (1 - 1/p)^(2B) is predicted, and f_W = 1. The prediction is supported if for every batch size below the
full one, under uniform and random sampling, the measured f_E at the end of the run lies within 0.01 of it, interval
included; not supported if an interval lies wholly outside. The term matters at a batch size if it changes the ratio
lr_E/lr_W by at least a quarter, the finest step of the paper's sweep (8 to 10), under every sampler, interval
included; it does not if it changes it by less under every sampler. Absence explains why samplers grok at different
times if uniform and Zipf sampling differ with B = 32 (log-rank p < 0.05) and no longer in full batches, where the term
is 1 for all; it does not explain it if they differ in full batches too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from evidence import Finding, Panel, Run, Verdict, run, study, table_of, used_for
from intervals import Judgement, all_of, compare, interval, summary, within, words
from scipy import stats
from token_figures import BATCHES, sampler_looks

from landscape.report.style import new_figure

CLOSE, MATTERS = 0.01, 1.25
PAPER_P, PAPER_BATCHES = 97, (64, 128, 256, 512, 1024)


def absence(p: int, batch: int) -> float:
    """Probability that a batch of independent pairs of uniform tokens holds none of one token."""
    return (1 - 1 / p) ** (2 * batch)


def row_of(one: Run) -> dict[str, float]:
    """f_E as measured, as predicted for uniform tokens, and as drawing without replacement from the pairs gives it."""
    data, config = one.data, one.planned.config
    train = data["tokens"].values[used_for(data, "train")]
    held = (train[:, :, None] == np.arange(config.p)).any(axis=1).sum(axis=0)
    full = config.batch_size == "full"
    batch = len(train) if config.batch_size == "full" else min(config.batch_size, len(train))
    f_E = float(data["f_E"].values[-1])
    return {
        "f_E": f_E,
        "f_E_predicted": 1 - absence(config.p, batch),
        "f_E_of_pairs": 1 - float(stats.hypergeom.pmf(0, len(train), held, batch).mean()),
        "term": 1 / f_E,
        "error": 0.0 if full else f_E - (1 - absence(config.p, batch)),
    }


def judge_prediction(errors: pd.DataFrame) -> Judgement:
    """Whether every group's error lies within CLOSE, or one wholly outside; columns value, low and high."""
    return all_of(*(within(row, -CLOSE, CLOSE) for row in errors[["value", "low", "high"]].itertuples(index=False)))


def judge_term(terms: pd.DataFrame) -> Judgement:
    """Whether every group's term is at least MATTERS, or below it in all; columns low and high."""
    if (terms["high"] < MATTERS).all():
        return "not supported"
    return "supported" if (terms["low"] >= MATTERS).all() else "undecided"


def judge_cause(p_acting: float, p_full: float, level: float = 0.05) -> Judgement:
    """Whether the samplers differ where tokens are absent and not where none is."""
    if p_full < level:
        return "not supported"
    return "supported" if p_acting < level else "undecided"


def grouped(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Median over seeds with its interval, one row a sampler and batch size; both cases draw the same batches."""
    rows = []
    for (sampler, batch), group in table[table["case"] == "decay"].groupby(["sampler", "batch_size"], sort=False):
        value, low, high = interval(group[column])
        rows.append({"sampler": sampler, "batch_size": batch, "value": value, "low": low, "high": high})
    return pd.DataFrame(rows)


def panel(terms: pd.DataFrame, times: pd.DataFrame, p: int, pairs: int, last: float) -> Panel:
    """The term, and the steps to 95 % test accuracy, by batch size and sampler."""
    figure = new_figure(2, height=3.1)
    left, right = figure.axes
    sizes = [pairs if batch == "full" else int(batch) for batch in BATCHES]
    left.plot(range(4), [1 / (1 - absence(p, b)) for b in sizes], "_", color="0.3", markersize=26)
    left.plot([], color="0.3", label="predicted")
    for shift, (sampler, (marker, colour)) in enumerate(sampler_looks().items()):
        x = np.arange(4) + 0.13 * (shift - 1.5)
        at = terms[terms["sampler"] == sampler].set_index("batch_size").loc[BATCHES]
        error = np.abs([at["value"] - at["low"], at["high"] - at["value"]])
        left.errorbar(x, at["value"], error, fmt=marker, color=colour, markersize=4, capsize=2, label=sampler)
        of = times[times["sampler"] == sampler].set_index("batch_size").loc[BATCHES]
        middle, low, high = (of[c].clip(upper=last).to_numpy() for c in ("median", "low", "high"))
        right.errorbar(x, middle, [middle - low, high - middle], fmt="none", ecolor=colour, capsize=2)
        for reached, face in ((True, colour), (False, "white")):
            chosen = np.isfinite(of["median"].to_numpy()) == reached
            right.plot(x[chosen], middle[chosen], marker, color=colour, markerfacecolor=face, markersize=4)
    left.axhline(MATTERS, color="0.6", linewidth=0.8, linestyle=":")
    left.set(xlabel="batch size B (pairs)", ylabel="term $f_W / f_E$")
    right.set(xlabel="batch size B (pairs)", ylabel="steps to 95 % test accuracy", yscale="log")
    for axis in (left, right):
        axis.set_xticks(range(4), BATCHES)
    left.legend(fontsize="small")
    caption = (
        f"Preset quick (p = {p}), Adam, {times['runs'].max()} seeds. Left: the frequency term, measured (markers: "
        "median; bars: 95 % bootstrap interval over seeds) and predicted from (1 - 1/p)^(2B) (dashes); dotted: the "
        "ratio changes by a quarter. Right: steps to 95 % test accuracy of the runs with weight decay, Kaplan-Meier "
        f"median with 95 % bootstrap interval; hollow: not reached by half of the runs within {last:,.0f} steps."
    )
    data = terms.assign(quantity="term").rename(columns={"value": "median"})
    return Panel("frequency_term", figure, pd.concat([data, times.assign(quantity="steps to 95 %")]), caption)


def claim(folder: Path) -> Finding:
    """The frequency term in the study `sampling`."""
    runs = study("sampling", folder)
    table = pd.concat([table_of(runs), pd.DataFrame([row_of(one) for one in runs])], axis=1)
    table["batch_size"] = table["batch_size"].astype(str)
    seeds, config = table["seed"].nunique(), runs[0].planned.config
    pairs = int(used_for(runs[0].data, "train").sum())
    errors, terms = grouped(table, "error"), grouped(table, "term")
    even = errors[errors["sampler"].isin(["uniform", "random"]) & (errors["batch_size"] != "full")]
    worst = even.loc[even["value"].abs().idxmax()]
    number = f"largest median error {words(worst['value'], worst['low'], worst['high'], 2)}"
    where = f"({worst['sampler']} sampling, B = {worst['batch_size']})"
    statement = "batches miss a token with probability (1 - 1/p)^(2B)"
    verdicts = [Verdict("C9", statement, judge_prediction(even), f"{number} {where}", seeds)]
    for batch in BATCHES[:3]:
        at = terms[terms["batch_size"] == batch]
        number = "; ".join(f"{words(r.value, r.low, r.high, 4)} under {r.sampler} sampling" for r in at.itertuples())
        statement = f"the term f_W/f_E is large enough to matter with batches of {batch}"
        verdicts.append(Verdict("C9", statement, judge_term(at), f"f_W/f_E {number}", seeds))
    decay = table[table["case"] == "decay"]
    times = summary(decay, ["sampler", "batch_size"])
    pace = {
        batch: compare(*(decay[(decay["sampler"] == s) & (decay["batch_size"] == batch)] for s in ("uniform", "zipf")))
        for batch in BATCHES
    }
    number = f"steps of uniform over those of Zipf sampling {pace['32']} with B = 32, {pace['full']} in full batches"
    statement = "absence from batches is why samplers grok at different times"
    verdicts.append(Verdict("C9", statement, judge_cause(pace["32"].p, pace["full"].p), number, seeds))

    paper = [f"{absence(PAPER_P, batch):.2g} at B = {batch}" for batch in PAPER_BATCHES]
    zipf = decay[decay["sampler"] == "zipf"].groupby("batch_size")[["f_E", "f_E_predicted", "f_E_of_pairs"]].median()
    text = [
        f"At the paper's p = {PAPER_P} the probability that a batch misses a token is {', '.join(paper)}. With it, "
        f"f_W/f_E is {1 / (1 - absence(PAPER_P, 64)):.3g} at B = 64 and {1 / (1 - absence(PAPER_P, 512)):.6g} at 512, "
        "the batch of its comparison of Adam with Adam-LR: there the term cannot matter. Here p is "
        f"{config.p}, and batches of 32 of the {pairs} training pairs miss more: {absence(config.p, 32):.3g}.",
        *(f"*{v.statement[0].upper()}{v.statement[1:]}*: {v.judgement}, {v.number}." for v in verdicts),
        "The formula takes all tokens as equally frequent. With B = 32 it predicts f_E = "
        f"{zipf.loc['32', 'f_E_predicted']:.3f}; {zipf.loc['32', 'f_E']:.3f} is measured under Zipf sampling, where "
        f"drawing without replacement from the actual training pairs gives {zipf.loc['32', 'f_E_of_pairs']:.3f}. Even "
        "there the term is one number for all tokens: it says how often a token is absent on average, not which one.",
        "These runs have lr_E = lr_W, so that they show how large the term is and what becomes of the samplers where "
        "it is 1, not whether a ratio with the term groks sooner than one without.",
    ]
    tables = {"runs": table, "f_E_errors": errors, "terms": terms, "steps_to_grok": times}
    figure = panel(terms, times, config.p, pairs, float(table["last"].max()))
    files = [one.planned.path for one in runs]
    return Finding("The rare-token frequency term", verdicts, [figure], tables, text, files)


if __name__ == "__main__":
    run("c9_absence", claim)
