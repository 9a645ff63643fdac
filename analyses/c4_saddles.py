"""C4: does the coupling of E and W make saddle points, and do they hold training on the plateau?

Decided by the certified inertia of E, W and E,W, as is and free of the gauge, beside the control pair W,V, on the path
and at critical points refined from it, and by what freezing E or W does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from c4_figures import LEFT, NAMES, cases_figure, depth_figure, index_figure, refined_figure
from c4_measures import (
    by_seed,
    checkpoints,
    coupled,
    deepest,
    delay,
    depth,
    gauge_free,
    groups,
    negative,
    refined,
    shorter,
    span,
    spread,
    told,
    wide,
)
from evidence import Finding, Run, Verdict, run, setting, study, table_of
from intervals import above, all_of, words

PATH = {
    "base": ("pairs", "whole"),
    "frozenE": ("frozenE",),
    "frozenW": ("frozenW",),
    "gelu": ("gelu",),
    "onehot": ("control",),
}
"""The Hessian files of checkpoints, by case."""
REFINED = ("plateau", "grokked")
"""The Hessian files of critical points refined from a checkpoint: base and quadratic have the first, quadratic both."""
SEARCHED = {"plateau": "on the plateau", "grokked": "after grokking"}
RULE = (
    "Rules, fixed before these runs were made; one run of this preset and one of a larger had been looked at. A "
    "seed's number is the mean over its checkpoints of a phase, and the 95 % interval of the median over seeds "
    "decides. Negative curvature of the coupling: the share of checkpoints at which E and W have certified index 0 "
    "and E,W has one above 0, against one half. More than the gauge: the share at which the gauge-free index of E,W "
    "is above 0, against one half. Who goes deeper: lambda_min of E,W over that of the control W,V, against 1. That "
    "a saddle of E,W holds training on the plateau needs both there, and fails if one of them fails. Freezing: the "
    "share of checkpoints at which the pair that is still trained has certified index 0, against one half; and the "
    "delay against that of the base runs by a log-rank test at 5 %, runs that never memorised left out. Critical "
    "points: of the searches that ended at one, begun on the plateau or after grokking, the share at which a pair has "
    "certified index above 0, against one half. This rule was fixed when the searches of one seed were known, which is "
    "among those below. After grokking three seeds were searched first. When two of them had ended at critical points, "
    "and the verdicts on these two were known, the other seeds were added, and the rule that two values have no "
    "interval: read the verdicts at critical points as exploration, not as a test. With E or W frozen, with GELU, with "
    "one-hot input and in the searches on the plateau, too, two seeds were added when three were known. Phases: start "
    "(step 0), memorising, plateau (from the stored checkpoint nearest to 99 % training accuracy on), grokked (from "
    "that nearest to 95 % test accuracy on). Below, brackets hold 95 % intervals of medians over seeds."
)


def claim(runs: Path) -> Finding:
    """Inertia, depth and coupling ratios of E,W against the control pair, and what is left when a factor is frozen."""
    ours = study("mechanism", runs)
    parts = [checkpoints(one, name) for one in ours for name in of(one, PATH.get(one.labels["case"], ()))]
    table = pd.concat(parts, ignore_index=True)
    points = pd.concat([refined(one, name) for one in ours for name in of(one, REFINED)], ignore_index=True)
    times = table_of(ours)
    middle = times.loc[times["case"] == "base", ["memorised", "grokked"]].median()
    base, setup = table[table["case"] == "base"], f"Set-up: {setting(ours[0].planned.config)}."
    panels = [
        index_figure(base, middle, setup),
        depth_figure(base, middle, setup),
        cases_figure(table, setup),
        refined_figure(points, setup),
    ]
    tables = {"checkpoints": table, "groups": groups(table), "refined": points, "runs": times}
    said = [*text(table, times, setup, ours[0].planned.config.embed_dim), *at_critical_points(points)]
    files = [path for one in ours for path in one.planned.files]
    return Finding("Saddles of the coupling (C4)", verdicts(table, points, times), panels, tables, said, files)


def of(one: Run, names: Iterable[str]) -> list[str]:
    """The named analyses planned for a run; not every seed has all."""
    return [name for name in names if name in one.planned.hessian]


def verdicts(table: pd.DataFrame, points: pd.DataFrame, times: pd.DataFrame) -> list[Verdict]:
    """The rules, applied. table: one row per checkpoint and block; points: one a search and block; times: one a run."""
    base = table[table["case"] == "base"]
    seeds, ratio = base["seed"].nunique(), depth(base)
    made, free = by_seed(coupled(base)), by_seed(gauge_free(base), ("plateau",))
    early, late = by_seed(ratio, ("start", "memorising")), by_seed(ratio, ("plateau",))
    beyond, deeper = above(free, 0.5), above(late, 1)
    decided = [
        ("Coupled, E and W have negative curvature that neither has alone", above(made, 0.5),
         f"share of checkpoints {words(*made)}"),
        ("On the plateau it is more than the gauge freedom of E and W", beyond,
         f"share of plateau checkpoints with a gauge-free index above 0: {words(*free)}"),
        ("Before memorisation E,W goes deeper than the control W,V", above(early, 1),
         f"ratio of lambda_min {words(*early)}"),
        ("On the plateau E,W goes deeper than the control W,V", deeper, f"ratio of lambda_min {words(*late)}"),
        ("A saddle of E,W holds training on the plateau", all_of(beyond, deeper),
         f"more than the gauge: {beyond}; deeper than the control: {deeper}"),
    ]  # fmt: skip
    found = [Verdict("C4", *line, seeds) for line in decided]
    for name, pair in LEFT.items():
        part, runs = table[table["case"] == name], times[times["case"] == name]
        flat = by_seed((wide(part, "upper")[pair] == 0).astype(float))
        statement = f"With {NAMES[name]}, what is still trained ({pair}) has no negative curvature"
        number = f"share of checkpoints {words(*flat)}"
        found.append(Verdict("C4", statement, above(flat, 0.5), number, part["seed"].nunique()))
        judgement, number = shorter(runs, times[times["case"] == "base"])
        found.append(Verdict("C4", f"With {NAMES[name]} the delay is shorter", judgement, number, len(runs)))
    return [*found, *verdicts_at_critical_points(points)]


def verdicts_at_critical_points(points: pd.DataFrame) -> list[Verdict]:
    """Whether the pair and its control have negative curvature where the gradient is zero."""
    found = []
    for phase, begun in SEARCHED.items():
        for block, name in (("E,W", "E,W"), ("W,V", "the control W,V")):
            searches = points[(points["phase"] == phase) & (points["block"] == block)]
            share = by_seed(negative(searches, block), (phase,))
            number = f"{ended(searches)} ended at a critical point"
            if not pd.isna(share[0]):
                number += f"; share of these with certified index above 0: {words(*share)}"
            statement = f"At critical points searched {begun}, {name} has negative curvature"
            found.append(Verdict("C4", statement, above(share, 0.5), number, searches["seed"].nunique()))
    return found


def ended(searches: pd.DataFrame, status: str = "critical") -> str:
    """The number of searches, one per row, with this end."""
    return f"{(searches['status'] == status).sum()} of {len(searches)} searches"


def text(table: pd.DataFrame, times: pd.DataFrame, setup: str, d: int) -> list[str]:
    """The findings in words. d: embedding dimension."""
    part = {name: table[table["case"] == name] for name in PATH}
    index = {name: wide(part[name], "index") for name in PATH}
    base = part["base"]
    joint, control = base[base["block"] == "E,W"], base[base["block"] == "W,V"]
    on = joint.loc[joint["phase"] == "plateau", "grad_norm"]
    free = wide(base, "gauge_free")
    tight = wide(base, "lambda_min")["E,W"] / -wide(base, "saddle_bound")["E,W"]
    pairs = table.dropna(subset=["coupling_index", "index"])
    agree = int((pairs["coupling_index"] == pairs["index"]).sum())
    relu, layers = table[table["case"] != "gelu"], ("E", "W", "V")
    bound, alone = relu[relu["block"] == "E,W"], relu[relu["block"].isin(layers)]
    within = int((-bound["lambda_min"] <= bound["saddle_bound"] * (1 + 1e-9)).sum())
    ranked = int((bound["index"] <= bound["rank_bound"]).sum())
    mass = wide(base, "mass_E")["all"], wide(base, "mass_V")["all"]
    bent = part["gelu"][part["gelu"]["block"].isin(("E", "W"))]
    runs = {name: times[times["case"] == name] for name in NAMES}
    delays = "; ".join(
        f"{NAMES[name]}: {one['memorised'].count()} of {len(one)} runs memorised, {one['grokked'].count()} grokked, "
        f"median delay {delay(one)}"
        for name, one in runs.items()
    )
    return [
        f"{setup} {RULE}",
        f"Certified: {table['certified'].sum():,} of {len(table):,} inertias, with tolerances of "
        f"{span(table['tolerance'])}. On the plateau the gradient norm of E,W is "
        f"{span(on)}: none of these is a critical point, and an index there counts directions "
        "of negative curvature, not ways out of a saddle.",
        f"With ReLU, {(alone['upper'] == 0).sum():,} of {len(alone):,} blocks E, W or V have certified index 0. A "
        "convex loss and a piecewise-linear activation make that a theorem, so this half of the claim could not fail "
        f"here. Index of E,W: {told(index['base']['E,W'])}. Of the control W,V: {told(index['base']['W,V'])}. Of E,V: "
        f"{told(index['base']['E,V'])}.",
        "Which coupling carries the negative curvature when. The pair with the lowest eigenvalue is, by phase: "
        f"{deepest(base)}. Lambda_min of E,W over that of the control W,V, above 1 where E,W goes deeper: "
        f"{told(depth(base))}. Mass of the lowest eigenvector of all parameters on E: {told(mass[0])}; on V: "
        f"{told(mass[1])}.",
        "Off the gauge tangents, that is without the directions that only re-factorise E against W, the index of "
        f"E,W is {told(free['E,W'])}, and that of all parameters {told(free['all'])}. Along the orbit of the gauge "
        "the loss does not change at all: negative curvature on its tangents comes from the gradient, and gains "
        "only what the gradient gives. An index of 0 off them means that every direction of negative curvature has "
        "a part along the gauge. For comparison, at a stationary point with weight decay and E of full rank, d(d - "
        f"1)/2 = {d * (d - 1) // 2} directions of the gauge alone have negative curvature of the data loss.",
        f"The index equals the number of coupling ratios above 1 in {agree:,} of {len(pairs):,} certified pairs. With "
        f"ReLU lambda_min of E,W respects the bound -sigma_max(G) at {within} of {len(bound)} checkpoints, and the "
        f"index the bound d rank(G) at {ranked}. Share of the bound that lambda_min reaches: {told(tight)}; it is 1 "
        "where an embedding direction is inactive, the saddle there being that of a product at its origin. The largest "
        f"coupling ratio of the control is at least {control['kappa_1'].min():.3g}.",
        "Freezing a factor leaves the formula of the Hessian as it is; it changes the path, and the directions that "
        "training can take. The index of E,W on such a path therefore says where the path goes, not whether freezing "
        f"removed anything: {told(index['frozenE']['E,W'])} with E frozen, {told(index['frozenW']['E,W'])} with W "
        "frozen. Of E,W only the block that moves is left, which is positive semidefinite by the theorem above: its "
        "saddle is gone by construction. The other coupling is still trained. Index of W,V with E frozen: "
        f"{told(index['frozenE']['W,V'])}; of E,V with W frozen: {told(index['frozenW']['E,V'])}. Whether the saddle "
        "mattered can show in the delay alone. A shorter one would speak for the claim; a longer one does not refute "
        f"it by itself, since a frozen layer also learns less. Delays in steps: {delays}.",
        f"With GELU, {(bent['lower'] > 0).sum()} of {len(bent)} blocks E, W have a certified index above 0; where one "
        "has, the coupling is not the only source. Index of E,W with GELU: "
        f"{told(index['gelu']['E,W'])}. With one-hot input there is no E, and the control has the index "
        f"{told(index['onehot']['W,V'])}.",
    ]


def at_critical_points(points: pd.DataFrame) -> list[str]:
    """Where the searches ended, what was found at critical points, and what an index of 0 means there."""
    is_critical = points["status"] == "critical"
    searches = points[points["block"] == "E,W"].groupby(["case", "phase"], sort=False)
    said = "; ".join(
        f"{NAMES[case]} {SEARCHED.get(phase, phase)}, {ended(part)} ended critical and "
        f"{ended(part, 'gradient-flat')} gradient-flat, gradient norm {span(part['grad_norm_before'])} before and "
        f"{span(part['grad_norm_after'])} after, distance {span(part['distance'])}"
        for (case, phase), part in searches
    )
    intro = (
        "An index belongs to a critical point. The nearest one was searched from checkpoints, on the loss with weight "
        "decay; that of the path has none, and curvature below 0 by less than the decay coefficient is not negative "
        f"on this one. By activation and by where the searches began: {said}."
    )
    return [intro, *critical_points(points[is_critical]), *stopped_before(points[~is_critical])]


def critical_points(points: pd.DataFrame) -> list[str]:
    """The pair and its control at the critical points, if there are any."""
    joint, control = (points[points["block"] == block] for block in ("E,W", "W,V"))
    turned = (joint["zeros"] == joint["rotations"]).sum()
    said = (
        f"At the {len(joint)} critical points {points['certified'].sum()} of {len(points)} inertias are certified. The "
        f"index of E,W is above 0 at {(joint['lower'] > 0).sum()} of them, that of the control W,V at "
        f"{(control['lower'] > 0).sum()}: {spread(joint['index'])} for E,W with lambda_min "
        f"{span(joint['lambda_min'])}, {spread(control['index'])} for W,V with lambda_min "
        f"{span(control['lambda_min'])}. To rotate the embedding against W changes neither the outputs nor the weight "
        "decay. So each rotation that moves E is a zero eigenvalue here, where the data loss alone would have a "
        f"negative one; E,W has as many zeros as rotations at {turned} of {len(joint)} points. An index of 0 of E,W "
        "says that, with all else held, E and W are at a minimum to second order, up to these zeros: their coupling "
        "makes no saddle. Where W,V alone has one above 0 the saddle is the control's."
    )
    return [said] if len(joint) else []


def stopped_before(points: pd.DataFrame) -> list[str]:
    """The pair and its control where searches stopped at no critical point, if any did."""
    places = []
    for (case, phase), part in points.groupby(["case", "phase"], sort=False):
        joint, control = (part[part["block"] == block] for block in ("E,W", "W,V"))
        places.append(
            f"{NAMES[case]} {SEARCHED.get(phase, phase)}, index {spread(joint['index'])} of E,W, "
            f"{spread(joint['gauge_free'])} off the gauge tangents, and {spread(control['index'])} of W,V"
        )
    said = (
        "The other searches stopped with a gradient left, and no rule counts them: with ReLU the gradient jumps at "
        f"kinks, and a search drawn to one cannot take it to zero. Where they stopped: {'; '.join(places)}."
    )
    return [said] if places else []


if __name__ == "__main__":
    run("c4_saddles", claim)
