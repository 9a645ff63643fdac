"""What the page says below each claim, by hand from the committed tables."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from statistics import median

import numpy as np
import pytest

REFERENCE = Path(__file__).parents[2] / "reports/reference"
SCALES = ("quick", "mid", "paper")
WRITTEN = {"sub": "a − b", "mul": "a · b", "div": "a / b", "squares": "a² + b²"}


def rows(scale: str, name: str, **known: str) -> list[dict[str, str]]:
    with (REFERENCE / scale / f"{name}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in known.items())]


def number(text: str) -> float:
    """A cell; what never came is infinite."""
    return float(text or "inf")


def middle(factors: Iterable[float]) -> float:
    """The median of factors, in logarithms."""
    return math.exp(median(math.log(factor) if factor else -math.inf for factor in factors))


@pytest.fixture(scope="module")
def told() -> str:
    """The text of the page."""
    text = (REFERENCE / "index.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", re.sub(r"</?t[hdr]\b[^>]*>", " ", text))
    return re.sub(r"\s+", " ", unescape(text))


def test_the_wait_to_half_of_the_test_set(told: str) -> None:
    for scale in SCALES:
        both = [rows(scale, "runs", study="delay", case=case) for case in ("embedding", "onehot")]
        waits = [[number(run["half"]) - number(run["memorised"]) for run in runs] for runs in both]
        ratios = sorted(one / other for one, other in zip(*waits, strict=True))
        assert max(ratios) < 1, "the direction of C1 survives at every size"
        shown = f"× {middle(ratios):.3g} [{ratios[1]:.3g}, {ratios[8]:.3g}]"
        assert (
            f"{scale}, to 50 % exploratory: the wait from memorising to 50 % test accuracy instead of 95 % {shown}"
            in (told)
        )
    there = sum(run["grokked"] != "" for run in both[1])
    halves = [median(number(run["half"]) for run in runs) for runs in both]
    assert f"With one-hot input {there} of 10 grok at the paper's size." in told
    assert f"From the start it takes {halves[0]:,.0f} steps to 50 %, one-hot input {halves[1]:,.0f}." in told


def test_what_one_hot_runs_that_never_grokked_say_of_c1(told: str) -> None:
    embedding, onehot = (rows("paper", "runs", study="delay", case=case) for case in ("embedding", "onehot"))
    never = [run for run in onehot if run["grokked"] == ""]
    least = [number(run["delay"] if run["delay"] else run["watched"]) for run in onehot]
    least = [
        steps - (0 if run["delay"] else number(run["memorised"])) for steps, run in zip(least, onehot, strict=True)
    ]
    most = middle(number(one["delay"]) / other for one, other in zip(embedding, least, strict=True))
    assert {run["watched"] for run in onehot} == {"6000"}
    assert f"× ≤ {most:.3g} ({len(never)} of 10 never by 6,000)" in told
    l2 = rows("paper", "runs", study="tables", case="l2")
    assert all(run[name] == l2[0][name] for run in onehot for name in ("hidden", "weight_decay"))
    ratios = sorted(number(one["delay"]) / number(other["delay"]) for one, other in zip(embedding, l2, strict=True))
    after = f"{median(number(run['delay']) for run in l2):,.0f}"
    rates = f"{l2[0]['lr']} instead of {onehot[0]['lr']}"
    assert f"{rates}: 10 of 10 grok, {after} steps after memorising, and over" in told
    assert f"an embedding's delay is × {middle(ratios):.3g} [{ratios[1]:.3g}, {ratios[8]:.3g}]." in told
    for scale in SCALES:
        wide = {run["hidden"] for run in rows(scale, "runs", study="delay", case="embedding")}
        assert wide == ({"256"} if scale != "paper" else {"512"})
        assert {run["weight_decay"] for run in rows(scale, "runs", study="delay", case="onehot")} == {"0.0002"}
    assert "Both networks have h = 256 at quick." in told
    scalars = [run for scale in SCALES for run in rows(scale, "runs", study="delay", case="scalar")]
    there = sum(run["memorised"] != "" for run in scalars)
    assert f"numbers as scalars, {there} of {len(scalars)} memorise in the steps watched" in told
    assert f"10 of 10 grok at the paper's size, with a delay of {after} and a rank of" in told


def test_d2_is_bounded_where_no_table_with_l2_grokked(told: str) -> None:
    l2, nuclear = (rows("quick", "runs", study="tables", case=case) for case in ("l2", "nuclear"))
    assert all((run["grokked"], run["watched"]) == ("", "10000") for run in l2)
    least = middle(10000 / number(run["grokked"]) for run in nuclear)
    assert f"× ≥ {least:.3g} (10 of 10 never by 10,000)" in told


def test_small_batches_learn_nothing_at_the_size_of_the_paper(told: str) -> None:
    small = rows("paper", "runs", study="sampling", batch_size="64")
    assert len(small) == 30
    assert all(run["memorised"] == run["grokked"] == "" for run in small)
    by = {
        sampler: rows("paper", "runs", study="sampling", sampler=sampler, batch_size="512")
        for sampler in ("skewed", "uniform")
    }
    ratios = [
        number(one["grokked"]) / number(other["grokked"])
        for one, other in zip(by["skewed"], by["uniform"], strict=True)
    ]
    assert f"which halves x: in batches of 512 the effect is × {middle(ratios):.3g} [" in told
    assert {run["lr"] for run in small} == {"0.01"}
    assert "All others at a learning rate of 0.01." in told
    slow = {
        (row["sampler"], row["batch_size"], row["seed"]): number(row["grokked"])
        for row in rows("paper", "runs", study="sampling-slow")
    }
    costs = [
        math.prod(slow["skewed", size, str(seed)] / slow["uniform", size, str(seed)] for size in ("64", "512")) ** 0.5
        for seed in range(500, 510)
    ]
    assert max(costs) < 1
    effect = f"{math.exp(float(np.median(np.log(costs)))):.3g}"
    assert f"At 0.001, the rate of the paper's sampling figure, it is × {effect} (not supported, S2)." in told


def test_what_trained_networks_say_of_c2(told: str) -> None:
    """R2: the rank correlations of batches of 64 are above those of full ones at the paper's size alone."""
    found = {}
    for scale in ("quick", "mid", "paper"):
        (row,) = rows(scale, "beyond", claim="R2")
        if row["verdict"] == "supported":
            found[scale] = f"{scale} {float(row['median']):.3g}"
    assert f"In trained ones small batches do leave them behind: {', '.join(found.values())} (R2)." in told


def test_without_constant_tokens_a_wide_embedding_makes_e_w_the_deeper_one(told: str) -> None:
    """Of two tokens at quick, by d: in how many seeds, where it is so in the median."""
    texts = []
    for d in (8, 32, 59, 118):
        of = {block: rows("quick", "curvature", study="arms", case=f"d{d}", block=block) for block in ("E,W", "W,V")}
        pairs = zip(of["E,W"], of["W,V"], strict=True)
        ratios = [number(one["lowest"]) / number(other["lowest"]) for one, other in pairs]
        if np.median(ratios) > 1:
            texts.append(f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} at d = {d}")
    assert f"in every seed; but at quick with a wider E the deeper one in {', '.join(texts)}." in told


def test_peaks_that_may_lie_before_memorising(told: str) -> None:
    """The analysed step before the later peak lies before memorising, the peak after it."""
    texts = []
    for scale in ("quick", "mid", "paper"):
        top = rows(scale, "curvature", study="curvature", case="c1", analysis="top")
        steps = sorted({int(row["step"]) for row in top})
        count = 0
        for run in rows(scale, "runs", study="curvature", case="c1"):
            of = [row for row in top if row["seed"] == run["seed"] and row["step"] != "0"]
            peak = max(
                max((number(row["highest"]), int(row["step"])) for row in of if row["block"] == block)[1]
                for block in ("E", "W")
            )
            count += steps[steps.index(peak) - 1] < number(run["memorised"]) < peak
        texts.append(f"{scale} {count} of 10")
    assert f"In {', '.join(texts)} seeds a peak seen after memorising may lie before it" in told


def test_the_ratio_of_depths_by_width(told: str) -> None:
    """Of E,W over W,V in the arms, at the d of the least and of the greatest median."""
    texts = []
    for scale in ("quick", "mid", "paper"):
        medians = {}
        runs = {row["case"]: row["embed_dim"] for row in rows(scale, "runs", study="arms")}
        for case, d in runs.items():
            if case == "base" or case[1:].isdigit():
                known = {"study": "arms", "case": case, "analysis": "plateau"}
                of = {block: rows(scale, "curvature", **known, block=block) for block in ("E,W", "W,V")}
                if pairs := list(zip(of["E,W"], of["W,V"], strict=True)):
                    medians[int(d)] = float(np.median([number(a["lowest"]) / number(b["lowest"]) for a, b in pairs]))
        ends = min(medians, key=lambda d: medians[d]), max(medians, key=lambda d: medians[d])
        texts.append(f"{scale} {', '.join(f'{medians[d]:.3g} at d = {d}' for d in ends)}")
    assert f"in the arms above: {'; '.join(texts)}." in told


def test_the_weight_decay_of_tables_is_said(told: str) -> None:
    of = {
        case: {row["weight_decay"] for row in rows("paper", "runs", study="tables", case=case)}
        for case in ("nuclear", "l2")
    }
    assert of == {"nuclear": {"0.002"}, "l2": {"0.0002"}}
    decays = "0.002 under the nuclear norm, 0.0002 under L2, 0.001 of E and W; it decays V and biases, too"
    assert f"λ, chosen for tables on other seeds, is {decays}" in told


def test_c2_is_compared_before_small_batches_have_learned(told: str) -> None:
    steps = []
    for scale in SCALES:
        at = {row["seed"]: number(row["step"]) for row in rows(scale, "tokens", study="rare")}
        known = {"study": "sampling", "sampler": "skewed", "batch_size": "64"}
        small, full = rows(scale, "runs", **known), rows(scale, "runs", study="rare", case="full")
        assert len(small) == len(full) == 10
        assert all(number(run["memorised"]) > at[run["seed"]] for run in small)
        assert all(number(run["memorised"]) <= at[run["seed"]] for run in full)
        steps.append(f"{scale} {median(at.values()):,.0f}")
    words = "batches of 64 have memorised in 0 of 10 seeds at each size, full batches in 10 of 10:"
    assert f"By the compared step (medians {', '.join(steps)}) {words}" in told
    assert "do not test C2 at any size, nor C6 at mid and at the paper's size; the cards say why." in told
    tested = ("C1", "C3", "C4", "C5", "C7", "C8", "C9")
    judged = [row["verdict"] for row in rows("paper", "verdicts") if row["claim"] in tested]
    held, turned, left = (judged.count(verdict) for verdict in ("supported", "not supported", "undecided"))
    title = f"{held} of the paper's 9 claims hold, {turned} come out the other way, {left} stay undecided"
    assert f"{title}, 2 are not tested" in told


def test_depths_with_and_without_the_constant_tokens(told: str) -> None:
    for scale in SCALES:
        lowest = {
            (row["block"], row["seed"]): float(row["lowest"])
            for row in rows(scale, "curvature", study="curvature", case="c1", analysis="plateau")
        }
        seeds = {seed for _, seed in lowest}
        operands = "E[operands],W" if ("E[operands],W", "100") in lowest else "E,W"
        ratios = {block: [lowest[block, seed] / lowest["W,V", seed] for seed in seeds] for block in ("E,W", operands)}
        assert max(ratios[operands]) < 1
    shown = [f"× {middle(of):.3g} [" for of in ratios.values()]
    assert re.search(
        rf"E,W over W,V: {re.escape(shown[0])}[^;]*; with the operands' rows of E alone {re.escape(shown[1])}", told
    )


def test_with_which_tasks_c1_and_c4_are_open(told: str) -> None:
    """The interval of the ratio of ten seeds, or of fewer than six the range, includes 1."""
    open_ = {}
    for claim, scale in itertools.product(("C1", "C4"), ("mid", "paper")):
        for task in ("sub", "mul", "div", "squares"):
            known = {"study": "tasks", "case": "c1", "task": task, "analysis": "plateau"}
            if claim == "C1":
                runs = [rows(scale, "runs", study="tasks", task=task, case=case) for case in ("embedding", "onehot")]
                pairs = [[number(run["delay"]) for run in of] for of in runs]
            else:
                depths = [rows(scale, "curvature", **known, block=block) for block in ("E,W", "W,V")]
                pairs = [[number(row["lowest"]) for row in of] for of in depths]
            x = sorted(one / other for one, other in zip(*pairs, strict=True))
            assert len(x) in (5, 10)
            if x[len(x) // 10] <= 1 <= x[-1 - len(x) // 10]:
                open_.setdefault((claim, scale), []).append(WRITTEN[task])
    for scale, tasks in ((scale, tasks) for (_, scale), tasks in open_.items()):
        assert f"Open with {' and '.join(tasks)} at {scale}." in told
    assert told.count("Open with ") == len(open_)


def test_lower_ranks_wait_longer(told: str) -> None:
    """d = 4 does not grok in the steps watched; the ratios of the others are those of paired seeds."""
    least, own = rows("paper", "runs", study="narrow", case="d4"), rows("paper", "runs", study="curvature", case="c1")
    there = sum(run["memorised"] != "" for run in least)
    assert all(run["grokked"] == "" for run in least)
    told_of = {}
    for d in (8, 198):
        of = rows("paper", "runs", study="tables", case=f"d{d}")
        x = [number(run["delay"]) / number(other["delay"]) for run, other in zip(of, own, strict=True)]
        told_of[d] = f"× {middle(x):.3g}"
    watched = f"with d = 4, {there} of 10 memorise and 0 of 10 grok in {number(least[0]['watched']):,.0f} steps"
    assert f"{watched}; with d = 8 the wait is {told_of[8]} [" in told
    assert f"with d = 198 {told_of[198]} [" in told


def test_in_how_many_seeds_x_of_c6_is_zero_by_construction(told: str) -> None:
    counts, least = [], []
    for scale in SCALES:
        runs = rows(scale, "runs", study="curvature", case="c1")
        x = {row["seed"]: float(row["x"]) for row in rows(scale, "seeds", claim="C6")}
        known = {"study": "curvature", "case": "c1", "analysis": "top"}
        analysed = [row for row in rows(scale, "curvature", **known) if row["step"] != "0"]
        blind, first = 0, 0
        for run in runs:
            peaks = {}
            for block in ("E", "W"):
                top = [row for row in analysed if (row["block"], row["seed"]) == (block, run["seed"])]
                peaks[block] = int(max(top, key=lambda row: float(row["highest"]))["step"])
            first += peaks["W"] == 1
            is_blind = max(peaks.values()) <= number(run["memorised"])
            blind += is_blind
            assert (x[run["seed"]] == 0) == is_blind
        counts.append(f"{scale} {blind} of 10")
        if (p := 2 / 2 ** (10 - blind)) >= 0.05:
            least.append(f"{scale} {p:.3g}")
    assert f"x is 0 whatever follows: in {', '.join(counts)} seeds." in told
    assert f"The others allow no p below {', '.join(least)}." in told
    assert f"W's peak is that of Adam's first step in {first} of 10 at the paper's size." in told


def test_x_of_c9_is_that_of_a_batch_without_absent_tokens(told: str) -> None:
    """f_E is 1, or next to it, in every run, so that no seed can differ from another."""
    for scale in SCALES:
        x = [float(row["x"]) for row in rows(scale, "seeds", claim="C9")]
        assert max(x) - min(x) < 1e-3
        assert x == pytest.approx([-math.log(1.05)] * 10, abs=1e-4)
    assert "Of the batch alone, the same in every seed." in told
    small = [
        1 / float(run["f_E"]) for run in rows("paper", "runs", study="sampling", sampler="random", batch_size="64")
    ]
    assert f"f_W/f_E is × {middle(small):.3g} [" in told


def test_c5_and_c6_with_the_operands_rows_in_the_place_of_E(told: str) -> None:
    gaps, same = [], []
    for scale in SCALES:
        found = rows(scale, "curvature", study="operands", analysis="top-plateau")
        if not found:
            continue
        top = {(row["case"], row["seed"], row["block"]): float(row["highest"]) for row in found}
        seeds = [str(seed) for seed in range(100, 105)]
        gap = {
            (case, seed): abs(math.log(top[case, seed, "W"] / top[case, seed, "E[operands]"]))
            for case, seed, block in top
            if block == "W"
        }
        x = [gap["c1", seed] - gap["c10", seed] for seed in seeds]
        ends = (math.exp(f(x)) for f in (median, min, max))
        gaps.append("{} × {:.3g} ({:.3g} to {:.3g}; n = 5)".format(scale, *ends))
        steps: dict[tuple[str, str], int] = {}
        over = [row for row in rows(scale, "curvature", study="operands", analysis="top") if row["step"] != "0"]
        for row in sorted(over, key=lambda row: float(row["highest"])):
            steps[row["block"], row["seed"]] = int(row["step"])
        equal = sum(steps["E", seed] == steps["E[operands]", seed] for seed in seeds)
        same.append(f"{scale} {equal} of {len(seeds)}")
    assert gaps
    assert f"the gap under c = 1 over that under c = 10: {', '.join(gaps)}." in told
    assert f"the operands' rows of E peak at the analysed step of E: {', '.join(same)}." in told


def test_slopes_of_gradient_ratios_on_the_plateau(told: str) -> None:
    for scale in SCALES:
        slopes = []
        for run in rows(scale, "runs", study="curvature", case="c1"):
            of = rows(scale, "metrics", study="curvature", case="c1", seed=run["seed"])
            on = [row for row in of if number(run["memorised"]) <= float(row["step"]) <= number(run["grokked"])]
            x = [math.log(float(row["sigma_max_E"]) / float(row["sigma_max_W"])) for row in on]
            y = [math.log(float(row["grad_norm_W"]) / float(row["grad_norm_E"])) for row in on]
            slopes.append(np.cov(x, y)[0, 1] / np.var(x, ddof=1))
        slopes = sorted(slopes)
        shown = f"{median(slopes):.3g} [{slopes[1]:.3g}, {slopes[8]:.3g}]".replace("-", "−")
        assert f"{scale} slope {shown}, curvatures × " in told
    assert f"at the paper's size, the slope of one logarithm over the other is {shown}, 1 if proportional." in told


def test_the_same_product_of_rates(told: str) -> None:
    shown = []
    for scale in SCALES:
        one, ten = (rows(scale, "runs", **of) for of in (
            {"study": "curvature", "case": "c1"}, {"study": "pace", "case": "equal-c10"}))  # fmt: skip
        ratios = sorted(number(b["grokked"]) / number(a["grokked"]) for a, b in zip(one, ten, strict=True))
        shown.append(f"{scale} × {middle(ratios):.3g} [{ratios[1]:.3g}, {ratios[8]:.3g}]")
    assert f"At the same product of both rates c = 10 takes, over c = 1: {', '.join(shown)}." in told


def test_ranks_of_all_arms_are_of_runs_that_stop_at_grokking(told: str) -> None:
    for scale, d in zip(SCALES, (16, 64, 128), strict=True):
        base = rows(scale, "runs", study="arms", case="base")
        assert {int(run["embed_dim"]) for run in base} == {d}
        rank = median(float(run["effective_rank"]) for run in base)
        nuclear = median(float(run["nuclear_norm"]) for run in base)
        row = rf"a: E and W, L2 10 of 10 69% to 100% 10 of 10 \S+ \S+ \S+ {rank:.3g} {nuclear:,.0f} "
        assert re.search(rf"{scale} grokked .*? {row}", told)


def test_the_runs_of_t3_that_never_grokked(told: str) -> None:
    x, never = [], 0
    each = {
        (row["sampler"], row["batch_size"], row["seed"]): number(row["grokked"])
        for row in rows("transformer", "runs", study="sampling")
        if row["sampler"] != "random"
    }
    assert len(each) == 40
    never = sum(step == math.inf for step in each.values())
    for seed in map(str, range(200, 210)):
        pairs = [(each["skewed", size, seed], each["uniform", size, seed]) for size in ("64", "512")]
        x.append(sum(0.0 if one == other else math.log(one) - math.log(other) for one, other in pairs) / 2)
    x = [math.exp(value) for value in sorted(x)]
    assert f"In T3 {never} of 40 runs never grokked and count with the last step" in told
    shown = f"{math.sqrt(x[4] * x[5]):.3g} [{x[1]:.3g}, {x[8]:.3g}]".replace("inf", "∞")
    assert f"were they later than all others, its effect would be × {shown}." in told
