"""C2, Mechanism 1: do rare tokens stagnate under sparse gradients and uniform weight decay?

The rule, fixed on pilot runs of another seed. For each quantity x_i of a token (QUANTITIES) and each run, rho is
Spearman's correlation over operand tokens between x_i and the token's frequency, the share of training pairs that hold
it. It is taken at two moments: at the last checkpoint that all runs of the same sampler and seed share, and at the end
of the run. The mechanism needs absent tokens and weight decay, so it acts on skewed and zipf sampling with weight
decay and batches of 32; full batches must break it, and so must training without weight decay where x is about decay
(BREAKS). Intervals are over runs, both samplers and all seeds. `judge` says when x is supported; where the two moments
disagree, it is undecided. The equilibrium -lambda e_i = p_i grad L is supported if |dL/dE_i| / (lambda |e_i|) lies
within a factor 2 of 1 and the cosine of -dL/dE_i and e_i above 0.9 at the end of those runs, intervals included, and
not supported if one of the intervals lies wholly outside.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from evidence import Finding, Verdict, run, study
from intervals import Floats, Judgement, above, all_of, interval, within, words
from token_figures import correlation_grid, equilibrium_panel, over_steps
from token_tables import GROUP, QUARTILES, correlations, medians, shared_steps, token_table, two_moments

QUANTITIES = {
    "grad_norm": "rare tokens gather less gradient because batches leave them out",
    "path": "rare tokens' embeddings move less because batches leave them out",
    "embedding_norm": "rare tokens that batches leave out end with smaller embeddings under weight decay",
    "norm_change": "rare tokens that batches leave out shrink more under weight decay",
    "test_accuracy": "rare tokens that batches leave out are learnt later under weight decay",
}
MECHANISM = ("decay", "32")
FULL, NO_DECAY = {"in full batches": ("decay", "full")}, {"without weight decay": ("nodecay", "32")}
BREAKS = {x: FULL if x in ("grad_norm", "path") else NO_DECAY | FULL for x in QUANTITIES}
ACTING = ["skewed", "zipf"]
WEAK = 0.2
"""A correlation below WEAK in size explains less than 4 % of the ranks' variance."""


def judge(mechanism: Floats, breaks: dict[str, Floats]) -> Judgement:
    """Whether rho > 0 where the mechanism acts and not where it cannot; breaks has the same runs in the same order."""
    _, low, high = interval(mechanism)
    without = {name: interval(rho) for name, rho in breaks.items()}
    drop = {name: interval(mechanism - rho)[1] for name, rho in breaks.items()}
    if high < WEAK or any(without[n][1] > 0 and drop[n] <= 0 for n in breaks):
        return "not supported"  # No order, or one that exists without the mechanism too.
    vanishes = all(without[n][1] <= 0 or without[n][2] < WEAK for n in breaks)
    return "supported" if low > 0 and vanishes and min(drop.values()) > 0 else "undecided"


def equilibrium(last: pd.DataFrame) -> tuple[pd.DataFrame, Verdict]:
    """How far runs with weight decay end from -lambda e_i = p_i grad L: medians over tokens, one row per run."""
    table = last[last["case"] == "decay"].groupby([*GROUP, "seed"])[["pull", "cosine"]].median().reset_index()
    acting = table[table["sampler"].isin(ACTING) & (table["batch_size"] == MECHANISM[1])]
    pull, cosine = interval(acting["pull"]), interval(acting["cosine"])
    judgement = all_of(within(pull, 0.5, 2), above(cosine, 0.9))
    number = f"|dL/dE_i| / (lambda |e_i|) {words(*pull)}, cosine {words(*cosine)}"
    statement = "embeddings end at the equilibrium -lambda e_i = p_i grad L"
    return table, Verdict("C2", statement, judgement, number, acting["seed"].nunique())


def verdict_of(quantity: str, rho: pd.DataFrame) -> tuple[Verdict, str]:
    """The verdict on one quantity, and a paragraph with its numbers at both moments."""
    acting = rho[rho["sampler"].isin(ACTING)].set_index(["sampler", "seed"]).sort_index()
    judgements, numbers = {}, {}
    for moment, rows in acting.groupby("moment"):
        at = {key: group[quantity].to_numpy() for key, group in rows.groupby(["case", "batch_size"])}
        breaks = {name: at[key] for name, key in BREAKS[quantity].items()}
        judgements[moment] = judge(at[MECHANISM], breaks)
        parts = [
            f"{words(*interval(values), 2)} {name}, a gap of {words(*interval(at[MECHANISM] - values), 2)}"
            for name, values in breaks.items()
        ]
        numbers[moment] = f"rho is {words(*interval(at[MECHANISM]), 2)}; {'; '.join(parts)}"
    agreed = set(judgements.values())
    judgement: Judgement = agreed.pop() if len(agreed) == 1 else "undecided"
    each = [
        f"at the {moment} {numbers[moment]} ({judgements[moment]})" for moment in ("end of run", "shared checkpoint")
    ]
    statement = QUANTITIES[quantity]
    verdict = Verdict("C2", statement, judgement, each[0], acting.index.unique("seed").size)
    first, second = (sentence[0].upper() + sentence[1:] for sentence in (statement, each[0]))
    return verdict, f"*{first}*: {judgement}. {second}; {each[1]}."


def adam(tokens: pd.DataFrame, runs: pd.DataFrame, lr: float, weight_decay: float) -> list[str]:
    """The equilibrium under Adam, and the fate of tokens that batches left out."""
    zipf = runs[(runs["sampler"] == "zipf") & (runs["moment"] == "end of run")]
    zipf = zipf.set_index([*GROUP, "quartile", "seed"]).sort_index()

    def of(column: str, quartile: str, key: tuple[str, str] = MECHANISM) -> tuple[float, float, float]:
        return interval(zipf.loc[(key[0], "zipf", key[1], quartile), column])

    flow, last = lr * weight_decay, int(tokens["step"].max())
    left_out = interval((zipf["step"] * (1 - zipf["presence"])).loc[(MECHANISM[0], "zipf", MECHANISM[1], "rare")])
    rates = {quartile: of("decay_rate", quartile) for quartile in ("rare", "frequent")}
    shrunk = {
        name: " and ".join(f"{words(*of('norm_change', q, key))} ({q})" for q in ("rare", "frequent"))
        for name, key in {"with weight decay": MECHANISM, **NO_DECAY, **FULL}.items()
    }
    tenfold = {quartile: np.log(10) / rate[0] for quartile, rate in rates.items()}
    return [
        "The paper's equation de_i/dt = -lambda e_i - p_i grad L is gradient flow. There an absent token decays at lr "
        f"lambda = {flow:.2g} a step, and (1 / lambda) ln(C / epsilon) is {np.log(10) / flow:,.0f} steps for each "
        f"factor of ten. In the {last:,} steps of the longest runs it loses {-np.expm1(-flow * last):.1%}: by that "
        "equation weight decay is too slow to matter here. These runs use Adam with coupled decay, which divides "
        "gradient and decay alike by sqrt(v). As far as v changes slowly, this leaves the place where the mean update "
        "vanishes, -lambda e_i = p_i grad L (dL/dE_i over the training set holds p_i), but not the time to get there. "
        "Without gradient Adam would shrink an embedding at lr lambda / sqrt(v), and rare tokens, whose v is smaller, "
        f"faster: at the end of Zipf runs with weight decay and B = 32 at {words(*rates['rare'])} a step in the rare "
        f"quarter and {words(*rates['frequent'])} in the frequent one, a factor of ten in {tenfold['rare']:,.0f} and "
        f"{tenfold['frequent']:,.0f} steps. Adam's first moment, of about ten steps, also continues along past "
        "gradients while a token is absent, so that hardly any step is decay alone.",
        "What can be measured of the decay of absent tokens: in the same runs batches left a token of the rare quarter "
        f"out in {words(*left_out)} steps, which in gradient flow changes ln |e_i| by {-flow * left_out[0]:.2g}. "
        "Measured changes of ln |e_i| from start to end under Zipf sampling, with B = 32 unless it says otherwise: "
        + "; ".join(f"{changes} {name}" for name, changes in shrunk.items())
        + ".",
    ]


def claim(folder: Path) -> Finding:
    """Mechanism 1 in the study `sampling`."""
    runs = study("sampling", folder)
    shared = shared_steps(runs)
    tables = [token_table(one, shared[one.labels["sampler"], one.labels["seed"]]) for one in runs]
    tokens = pd.concat(tables, ignore_index=True)
    moments = two_moments(tokens)
    last = moments[moments["moment"] == "end of run"]
    measures = [c for c in tokens.select_dtypes("number") if c not in ("step", "token", "seed", "shared", "last")]
    over = tokens.groupby([*GROUP, "seed", "step", "quartile"], sort=False)[measures].mean().reset_index()
    by_run = moments.groupby([*GROUP, "seed", "moment", "step", "quartile"], sort=False)[measures].mean().reset_index()
    rho = correlations(moments, QUANTITIES)
    groups = medians(rho, [*GROUP, "moment"], list(QUANTITIES))
    balance, balanced = equilibrium(last)
    found = [verdict_of(quantity, rho) for quantity in QUANTITIES]
    config = runs[0].planned.config

    zipf = over[(over["sampler"] == "zipf") & (over["batch_size"] == "32") & (over["step"] > 0)].groupby("quartile")
    rare, frequent = (zipf.get_group(name) for name in (QUARTILES[0], QUARTILES[-1]))
    ends = last.groupby([*GROUP, "seed"])["step"].first()
    fewest = round(tokens["frequency"].min() * config.train_fraction * config.p**2)
    setting = (
        f"{len(runs)} runs of the preset quick (p = {config.p}, two tokens), {rho['seed'].nunique()} seeds a setting. "
        f"Under Zipf sampling a token of the rare quarter is in {rare['frequency'].mean():.1%} of the training pairs, "
        f"one of the frequent quarter in {frequent['frequency'].mean():.1%}; with B = 32 in "
        f"{rare['presence'].mean():.0%} and {frequent['presence'].mean():.0%} of the batches. No token of a run is in "
        f"fewer than {fewest} training pairs: as no pair is trained on twice, the samplers differ less than their "
        f"weights do. The shared checkpoint is at steps {min(shared.values())} to {max(shared.values())}; runs end "
        f"where they reach 95 % test accuracy, or at step {ends.max():,}, the earliest at step {ends.min()}. Intervals "
        f"pool {' and '.join(ACTING)} sampling as if their runs of one seed were independent."
    )
    limits = (
        f"Equilibrium of the {' and '.join(ACTING)} runs with weight decay and B = 32: {balanced.judgement}, "
        f"{balanced.number}, as medians over the tokens of a run. The runs stop at 95 % test accuracy, so that they "
        "need not be stationary. A correlation that full batches show too says that rare tokens have fewer training "
        "pairs, not that batches leave them out: a token's gradient is a sum over its pairs."
    )
    return Finding(
        "Mechanism 1: rare tokens",
        [*(verdict for verdict, _ in found), balanced],
        [over_steps(over), correlation_grid(groups), equilibrium_panel(last, over)],
        {
            "quartiles": by_run,
            "quartile_medians": medians(by_run, [*GROUP, "moment", "quartile"], measures),
            "rank_correlations": rho,
            "rank_correlation_medians": groups,
            "balance": balance,
            "balance_medians": medians(balance, GROUP, ["pull", "cosine"]),
        },
        [setting, *(text for _, text in found), *adam(tokens, by_run, config.lr, config.weight_decay), limits],
        [one.planned.path for one in runs],
    )


if __name__ == "__main__":
    run("c2_rare_tokens", claim)
