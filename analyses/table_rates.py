"""What the step of grokking follows: the rates of E and of all else

Slopes of ln(step) in ln of both rates, over the cells that grokked; the best ratio of rates over products of both,
how near it is to predicted ones, and what these cost at the cells nearest to them. Medians over five seeds, least and
most.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from primary import STEP, best_ratios, by_diagonal, grids, plane
from tables import Scale, interval, main, scales


def lost(grid: pd.Series, ratio: float) -> float:
    """The median over products of the step at the cell nearest to a ratio of rates over that at the best one.

    Of two cells that are as near, the geometric mean.
    """
    factors = []
    for of in by_diagonal(grid).values():
        away = (of["ratio"] - math.log(ratio)).abs()
        if away.min() <= math.log(STEP):
            factors.append(np.exp(np.log(of["step"])[away < away.min() + 1e-6].mean()) / of["step"].min())
    return float(np.median(factors)) if factors else math.nan


def near(best: list[pd.Series], ratios: Sequence[float]) -> str:
    """In how many seeds the median best ratio is within a step of the grid of a predicted one."""
    away = [abs(of.median() - math.log(ratio)) for of, ratio in zip(best, ratios, strict=True)]
    at_the_edge = sum(math.isclose(distance, math.log(STEP)) for distance in away)
    within = f"{sum(distance <= math.log(STEP) + 1e-9 for distance in away)} of {len(away)}"
    return f"{within} ({at_the_edge} at its edge)" if at_the_edge else within


def soonest(grid: pd.Series) -> float:
    """The ratio of rates of the cell that grokked soonest, the geometric mean of several."""
    lr_E, lr = np.array(grid[grid == grid.min()].index.tolist()).T
    return float(np.exp(np.log(lr_E / lr).mean()))


def rates_of_both(grid: pd.Series) -> pd.Series:
    """The cells whose rates of E and of all else lie where the grid has both."""
    rates = grid.index.to_frame()
    low, high = rates.min().max() * (1 - 1e-6), rates.max().min() * (1 + 1e-6)
    return grid[((rates >= low) & (rates <= high)).all(axis=1)]


def least_ratio(grid: pd.Series, product: float) -> float:
    """ln of the least rate of E over that of all else that a grid has at a product, which is given as its ln."""
    lr_E, lr = np.log(np.array(grid.index.tolist())).T
    return float((lr_E - lr)[np.isclose(lr_E + lr, product)].min())


def column(scale: Scale) -> dict[str, str]:
    every = grids(scale)
    slopes, of_both = (
        pd.DataFrame({seed: plane(cells(grid)) for seed, grid in every.items()}, index=["E", "all else"]).T
        for cells in (pd.Series, rates_of_both)
    )
    best = [best_ratios(grid) for grid in every.values()]
    least = [of.index.map(functools.partial(least_ratio, grid)) for of, grid in zip(best, every.values(), strict=True)]
    at_the_least = np.concatenate([np.isclose(of, low) for of, low in zip(best, least, strict=True)])
    ratios = scale.runs("rates", lr_E=0.01, lr=0.01)["sigma_ratio"]
    runs = scale.runs("rates")
    return {
        "runs that grokked": f"{runs['grokked'].notna().sum()} of {len(runs)}",
        "slope in η of E": interval(slopes["E"]),
        "slope in η of all else": interval(slopes["all else"]),
        "slope in η of E, rates of both": interval(of_both["E"]),
        "slope in η of all else, rates of both": interval(of_both["all else"]),
        "latest step over the soonest": interval([grid.max() / grid.min() for grid in every.values()]),
        "best ratio of rates": interval([math.exp(of.median()) for of in best]),
        "best cells at the least ratio of their product": f"{at_the_least.sum()} of {len(at_the_least)}",
        "best ratio of rates, products with ratios below 1": interval(
            [math.exp(of[low < -1e-9].median()) for of, low in zip(best, least, strict=True)]
        ),
        "ratio of the soonest cell": interval([soonest(grid) for grid in every.values()]),
        "slope of the best ratio in the product": interval(
            [round(float(np.polyfit(of.index, of, 1)[0]), 9) for of in best]
        ),
        "Proposition 4.1's ratio": interval(ratios),
        "within a step of Proposition 4.1's ratio": near(best, [ratios[seed] for seed in every]),
        "within a step of equal rates": near(best, [1.0] * len(best)),
        "within a step of c = 10": near(best, [10.0] * len(best)),
        "step at Proposition 4.1's ratio over the best": interval(
            [lost(grid, ratios[seed]) for seed, grid in every.items()]
        ),
        "step at equal rates over the best": interval([lost(grid, 1.0) for grid in every.values()]),
        "step at c = 10 over the best": interval([lost(grid, 10.0) for grid in every.values()]),
    }


def table(root: Path) -> pd.DataFrame:
    columns = {scale.name: column(scale) for scale in scales(root, ("quick", "mid"))}
    return pd.DataFrame(columns).rename_axis("quantity").reset_index()


if __name__ == "__main__":
    main(table)
