"""Open question 3: weight decay and token probability jointly, as a map of grokking time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from evidence import GROKKED, MEMORISED, Finding, Panel, Run, Verdict, run, setting, study, table_of, used_for
from intervals import LEVEL, RESAMPLES, Judgement, above, compare, number, spearman, summary, words
from scipy import stats

from landscape.report.style import new_figure

RULE = (
    "Runs are ranked by the step at which they grok; those that never do, all watched for the same time, share the "
    "last rank. Three statements are judged by a rank correlation (Spearman) over runs and its bootstrap interval: "
    "`supported` if the interval lies on the side named, `not supported` if on the other, `undecided` if it holds 0. "
    "They are: the rank falls with the weight decay; it rises with the skew; and it rises with the skew more strongly "
    "at the largest weight decay than at the smallest."
)


def rarest(r: Run) -> float:
    """Share of the rarest token among the operands of the training pairs, times their number: 1 if all are alike."""
    tokens = r.data["tokens"].values[used_for(r.data, "train")]
    p = r.planned.config.p
    # Without the operator and `=`, which every pair of four tokens holds.
    count = np.bincount(tokens.ravel(), minlength=p)[:p]
    return float(count.min() / count.mean())


def claim(runs: Path) -> Finding:
    """Grokking time over weight decay x skew, in the study `decay`."""
    found = study("decay", runs)
    table = table_of(found).assign(file=[r.planned.path.name for r in found])
    table["rarest_token"] = [rarest(r) for r in found]
    table["rank"] = stats.rankdata(table["grokked"].fillna(np.inf))
    effects = {
        "stronger weight decay groks sooner": (spearman(table["weight_decay"], table["rank"]), -1),
        "skewed tokens grok later": (spearman(table["skew"], table["rank"]), 1),
        "the effect of skew moves towards a delay as the weight decay grows": (interaction(table), 1),
    }
    ends = ", ".join(
        f"{stats.spearmanr(t['skew'], t['rank']).statistic:.2f} at weight decay {decay:g}"
        for decay, t in table.groupby("weight_decay")
        if t["rank"].nunique() > 1
    )
    seeds = table["seed"].nunique()
    verdicts = [
        Verdict("O3", statement, _on_side(rho, sign), f"Spearman {words(*rho)}", seeds)
        for statement, (rho, sign) in effects.items()
    ]
    verdicts[2] = dataclasses.replace(verdicts[2], number=f"difference, {verdicts[2].number}: {ends}")
    maps = {what: summary(table, ["weight_decay", "skew"], what) for what in ("memorised", "grokked")}
    lines = _effects(table)
    return Finding(
        title="How do weight decay and token probability act together?",
        verdicts=verdicts,
        panels=[_map(maps, table, setting(found[0].planned.config, "weight_decay"))],
        tables={"runs": table, **{f"map_{what}": t for what, t in maps.items()}, "effects": lines},
        text=[RULE, *_text(table, maps["grokked"], lines)],
        files=[r.planned.path for r in found],
    )


def _on_side(rho: tuple[float, float, float], sign: int) -> Judgement:
    """By the side of 0 on which an interval lies; sign: the side that is claimed."""
    value, low, high = rho
    return above((value, low, high) if sign > 0 else (-value, -high, -low), 0)


def interaction(table: pd.DataFrame) -> tuple[float, float, float]:
    """Rank correlation of skew and step at the largest weight decay less that at the smallest, with its interval."""
    ends = [table[table["weight_decay"] == table["weight_decay"].agg(end)] for end in ("max", "min")]
    x, y = ([t[column].to_numpy() for t in ends] for column in ("skew", "rank"))
    rng = np.random.default_rng(0)

    def rho(k: int, i: np.ndarray) -> float:
        # Where no run groks all ranks are alike, and the skew does nothing that can be seen.
        return float(stats.spearmanr(x[k][i], y[k][i]).statistic) if np.ptp(x[k][i]) and np.ptp(y[k][i]) else 0.0

    def difference(draw: list[np.ndarray]) -> float:
        return rho(0, draw[0]) - rho(1, draw[1])

    drawn = [difference([rng.integers(0, len(t), len(t)) for t in ends]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return difference([np.arange(len(t)) for t in ends]), float(low), float(high)


def _effects(table: pd.DataFrame) -> pd.DataFrame:
    """The two ends of each axis compared, at each value of the other: medians, their ratio, log-rank test."""
    rows = []
    for varied, at in (("weight_decay", "skew"), ("skew", "weight_decay")):
        for value, t in table.groupby(at):
            least, most = (t[t[varied] == t[varied].agg(end)] for end in ("min", "max"))
            ends = {f"{end}_median": summary(u, [at])["median"][0] for end, u in (("least", least), ("most", most))}
            rows.append({"varied": varied, "at": value, **ends, **vars(compare(most, least))})
    return pd.DataFrame(rows)


def _text(table: pd.DataFrame, cells: pd.DataFrame, lines: pd.DataFrame) -> list[str]:
    def described(varied: str, at: str) -> str:
        return "; ".join(
            f"at {at} {row['at']:g}, {number(row['least_median'])} and {number(row['most_median'])}, log-rank "
            f"p = {row['p']:.2g}"
            for _, row in lines[lines["varied"] == varied].iterrows()
        )

    best = cells.sort_values("median").iloc[0]
    by_skew = table.groupby("skew")["rarest_token"].median()
    shares = ", ".join(f"{share:.2f} at skew {skew:g}" for skew, share in by_skew.items())
    never = table.groupby("weight_decay")["grokked"].agg(lambda t: t.isna().sum())
    decays, skews = (sorted(table[key].unique()) for key in ("weight_decay", "skew"))
    both = lines[(lines["varied"] == "weight_decay") & np.isfinite(lines["ratio"]) & (lines["ratio"] > 0)]
    ratios = ", ".join(f"{ratio:.2g}" for ratio in both["ratio"]) or "unknown"
    return [
        f"{table['grokked'].notna().sum()} of {len(table)} runs grokked within {table['last'].max():,.0f} steps; "
        f"{', '.join(f'{n} at weight decay {decay:g}' for decay, n in never.items())} never did. The soonest cell "
        f"of the map is weight decay {best['weight_decay']:g}, skew {best['skew']:g}: median step "
        f"{words(best['median'], best['low'], best['high'])}.",
        f"The rarest token's share of the training pairs, over the mean share, is in the median {shares}. Pairs are "
        "drawn without replacement, so that a choice cannot be as skewed as its weights; those left over are the test "
        "set, in which rare tokens are then the frequent ones.",
        f"Median steps at weight decay {decays[0]:g} and {decays[-1]:g}: {described('weight_decay', 'skew')}. The "
        f"bound T ~ 1/lambda would make their ratio {decays[0] / decays[-1]:.2g}; where both are known it is {ratios}.",
        f"Median steps at skew {skews[0]:g} and {skews[-1]:g}: {described('skew', 'weight decay')}.",
    ]


def _map(maps: dict[str, pd.DataFrame], table: pd.DataFrame, setup: str) -> Panel:
    figure, last = new_figure(2, height=3.3), table["last"].max()
    soonest = min(last, *(cells["median"].min() for cells in maps.values()))
    titles = {"memorised": f"train {MEMORISED:.0%}", "grokked": f"test {GROKKED:.0%}"}
    for axes, (what, cells) in zip(figure.axes, maps.items(), strict=True):
        medians, reached, runs = (
            cells.pivot(index="weight_decay", columns="skew", values=key).sort_index(ascending=False)
            for key in ("median", "reached", "runs")
        )
        finite = medians.where(np.isfinite(medians))
        notes = [
            [f"{m:,.0f}\n{k}/{n}" if np.isfinite(m) else f">{last:,.0f}\n{k}/{n}" for m, k, n in zip(*row, strict=True)]
            for row in zip(medians.values, reached.values, runs.values, strict=True)
        ]
        axes.set_facecolor("0.85")
        sns.heatmap(
            np.log10(finite.clip(lower=1)),
            ax=axes,
            annot=pd.DataFrame(notes, finite.index, finite.columns),
            fmt="",
            cmap="viridis_r",
            vmin=np.log10(max(soonest, 1)),
            vmax=np.log10(last),
            cbar=False,
            linewidths=0.5,
            annot_kws={"size": 8},
        )
        for i, j in np.argwhere(~np.isfinite(medians.to_numpy())):
            axes.add_patch(_hatched(j, i))
            axes.text(
                j + 0.5,
                i + 0.5,
                notes[i][j],
                ha="center",
                va="center",
                size=8,
                bbox={"facecolor": "0.9", "linewidth": 0, "pad": 1},
            )
        axes.set(title=f"median step to {titles[what]}", xlabel="skew (exponent)", ylabel="weight decay $\\lambda$")
        axes.tick_params(axis="y", rotation=0)
    caption = (
        f"Kaplan-Meier median of the steps to {MEMORISED:.0%} training and {GROKKED:.0%} test accuracy over weight "
        f"decay and skew (token weight ~ rank to the minus skew), {table['seed'].nunique()} seeds a cell; below it, "
        f"how many runs got there. Hatched: fewer than half did within {last:,.0f} steps (censored). Darker is later, "
        f"on a logarithmic scale. Set-up: {setup}."
    )
    data = pd.concat([cells.assign(event=what) for what, cells in maps.items()])
    return Panel("decay_skew_map", figure, data, caption)


def _hatched(x: float, y: float) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor="0.9", edgecolor="0.55", hatch="///", linewidth=0)


if __name__ == "__main__":
    run("open_decay_frequency", claim)
