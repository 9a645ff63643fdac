"""C5: does the curvature of E and W differ, and does Adam-LR narrow the gap?

Decided by curvature_ratio, lambda_max(H_WW) / lambda_max(H_EE), over the steps of runs with Adam and with Adam-LR.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from c5_measures import CASES, FIRST, curves, gap, groups, of, paired, peaks, same_steps
from evidence import PHASES, Finding, Panel, Verdict, run, setting, study, table_of
from intervals import above, interval, words

from landscape.report.figures.axes import step_axis
from landscape.report.style import colour, marker, new_figure

PAPER = {"c1": {"W": 3.5, "E": 0.12}, "c10": {"W": 1.0, "E": 0.08}}
"""Readings of the paper's figure: the top eigenvalues stay below these."""
FACTOR = 2.0
SHOWN = (("lambda_max", "W"), ("lambda_max", "E"), ("curvature_ratio", "W"))
RULE = (
    "Rules, fixed before the numbers were seen, but for those of one run of a larger preset. Heterogeneity: the "
    "curvature ratio, geometric mean over the checkpoints of a phase; W counts as sharper if the 95 % interval of "
    f"the median over seeds lies above {FACTOR:g}. Narrowing: the gap is |log| of the ratio, mean over a phase; that "
    "of Adam less that of Adam-LR for the same seed, against 0. Lower peaks: the largest top eigenvalue of a block "
    f"from step {FIRST} on, that of Adam over that of Adam-LR for the same seed, against 1; the first steps are left "
    "out, since both start at the same point. Phases: memorising (after step 0), plateau (from the checkpoint "
    "nearest to 99 % training accuracy on), grokked (from that nearest to 95 % test accuracy on). Checkpoints are "
    "log-spaced: early steps of a phase count for more than late ones."
)


def verdicts(table: pd.DataFrame) -> list[Verdict]:
    """The rules, applied."""
    found = []
    for phase in PHASES[1:]:
        logs = of(gap(table, phase)["log"], "c1")
        ratio = tuple(10.0**x for x in interval(logs))
        statement = f"Adam, {phase}: the top eigenvalue of W is more than {FACTOR:g} times that of E"
        found.append(Verdict("C5", statement, above(ratio, FACTOR), f"ratio {words(*ratio)}", len(logs)))
    for phase in PHASES[1:]:
        less = paired(gap(table, phase)["size"])
        change = interval(less)
        number = f"the ratio is {words(*(10.0**x for x in change))} times as far from 1 under Adam"
        found.append(Verdict("C5", f"Adam-LR narrows the gap, {phase}", above(change, 0), number, len(less)))
    for block in ("W", "E"):
        drop = paired(np.log(peaks(table).loc[block]))
        factor = tuple(np.exp(x) for x in interval(drop))
        statement = f"Adam-LR lowers the peak of {block}'s top eigenvalue"
        number = (
            f"Adam over Adam-LR {words(*factor)}; in the paper's figure {PAPER['c1'][block] / PAPER['c10'][block]:.2g}"
        )
        found.append(Verdict("C5", statement, above(factor, 1), number, len(drop)))
    return found


def figure(table: pd.DataFrame, times: pd.DataFrame, setup: str) -> Panel:
    """Top eigenvalues of W and E and their ratio over steps, both optimisers."""
    drawn = new_figure(3, height=3.3)
    for axes, (column, block) in zip(drawn.axes, SHOWN, strict=True):
        for case, line in zip(CASES, ("-", ":"), strict=True):
            part = table[(table["block"] == block) & (table["case"] == case)]
            ratio = column == "curvature_ratio"
            shade = ("black", "0.55")[case == "c10"] if ratio else colour(block)
            style = {"color": shade, "linestyle": line, "linewidth": 1.0}
            for i, (_, seed) in enumerate(part.groupby("seed")):
                look = style | (marker(block) | {"markersize": 3.0} if case == "c1" and not ratio else {})
                axes.plot(seed["step"], seed[column], label=CASES[case] if i == 0 else None, **look)
            if not ratio:
                paper = f"paper, {CASES[case]}" if block == "W" else None
                axes.axhline(PAPER[case][block], color="0.6", linestyle=line, linewidth=2.0, label=paper)
        step_axis(axes, int(table["step"].max()))
        axes.set_yscale("log")
    for axes, block in zip(drawn.axes[:2], ("W", "E"), strict=True):
        axes.set(title=f"block {block}", ylabel=rf"$\lambda_{{\max}}$ of {block}")
    drawn.axes[2].set(title="curvature ratio", ylabel=r"$\lambda_{\max}(H_{WW})\,/\,\lambda_{\max}(H_{EE})$")
    drawn.axes[2].axhline(1, color="black", linestyle="--", linewidth=0.9)
    handles, labels = drawn.axes[2].get_legend_handles_labels()
    paper = [line for line in drawn.axes[0].lines if str(line.get_label()).startswith("paper")]
    names = [*labels, *(str(line.get_label()) for line in paper)]
    drawn.legend([*handles, *paper], names, loc="outside lower center", ncols=4, fontsize="small")
    readings = ", ".join(f"{CASES[case]}: W {at['W']:g}, E {at['E']:g}" for case, at in PAPER.items())
    caption = (
        f"Top eigenvalues of the blocks W and E, and their ratio, over steps. {setup} One line a seed, "
        f"{len(times) // len(CASES)} seeds; solid: Adam, dotted: Adam-LR, c = 10. Grey lines: what the paper's figure "
        f"stays below ({readings}), with another net (d = 128, h = 512, p = 97). Hessian of the data loss in float64, "
        "at points that are not critical."
    )
    return Panel("curvature", drawn, table[["case", "seed", "step", "block", "lambda_max", "curvature_ratio"]], caption)


def text(table: pd.DataFrame, setup: str) -> list[str]:
    """The findings in words."""
    top, first = peaks(table), table[table["step"] == 0]
    start = first[first["block"] == "W"].set_index(["case", "seed"])["curvature_ratio"]
    said = []
    for case, name in CASES.items():
        windows = ", ".join(
            f"{phase} {words(*(10.0**x for x in interval(of(gap(table, phase)['log'], case))))}" for phase in PHASES[1:]
        )
        highest = "; ".join(
            f"{block} {words(*interval(top.loc[block, case]))}, the paper's figure stays below {PAPER[case][block]:g}"
            for block in ("W", "E")
        )
        said.append(
            f"{name}: curvature ratio at step 0 {words(*interval(start.loc[case]))}, {windows}. "
            f"Highest top eigenvalue from step {FIRST} on: {highest}. Over each other these peaks are "
            f"{words(*interval(top.loc['W', case] / top.loc['E', case]))}, in the paper's figure about "
            f"{PAPER[case]['W'] / PAPER[case]['E']:.2g}."
        )
    below = table[(table["block"] == "W") & (table["curvature_ratio"] < 1)]
    return [
        f"{setup} {RULE}",
        *said,
        "The phases come at other steps under Adam-LR. At the steps after 0 that both runs of a seed have, the "
        f"ratio under Adam is {words(*(10.0**x for x in interval(same_steps(table))))} times as far from 1, over all "
        "phases.",
        f"The ratio falls below 1, so that E is the sharper block, at {len(below)} of {len(table) // 2} checkpoints, "
        f"{(below['case'] == 'c10').sum()} of them under Adam-LR. The paper's readings are of single runs of "
        "another net: their size is no test, only direction and order of magnitude are.",
        f"Certified: {table['certified'].sum():,} of {len(table):,} inertias of E and W, with tolerances from "
        f"{table['tolerance'].min():.2g} to {table['tolerance'].max():.2g}; {(table['index'] > 0).sum()} blocks have a "
        "negative eigenvalue. The largest residual of a top eigenvalue is "
        f"{(table['residual_norm'] / table['lambda_max']).max():.1g} of it. Gradient norms of the blocks: "
        f"{table['grad_norm'].min():.2g} to {table['grad_norm'].max():.2g}.",
    ]


def claim(runs: Path) -> Finding:
    """Top eigenvalues of E and W and their ratio over steps, Adam beside Adam-LR."""
    ours = study("curvature", runs)
    table, times = pd.concat([curves(one) for one in ours], ignore_index=True), table_of(ours)
    setup = f"Set-up: {setting(ours[0].planned.config)}."
    highest = peaks(table).rename("peak").reset_index()
    tables = {"checkpoints": table, "groups": groups(table), "peaks": highest, "runs": times}
    files = [path for one in ours for path in (one.planned.path, one.planned.hessian["top"])]
    panels = [figure(table, times, setup)]
    return Finding("Curvature of E and of W (C5)", verdicts(table), panels, tables, text(table, setup), files)


if __name__ == "__main__":
    run("c5_heterogeneity", claim)
