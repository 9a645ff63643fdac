"""Effective rank and nuclear norm of the tables E W_kᵀ over training

Medians of the seeds still in training, by arm.
"""

from pathlib import Path

import seaborn as sns
from arms import arms, case_of
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import main, scales, which


def figure(root: Path) -> Figure:
    all_scales = scales(root, table="ranks")
    quantities = {"effective_rank": "effective rank", "nuclear_norm": "nuclear norm"}
    figure, axes = plt.subplots(2, len(all_scales), figsize=(12, 6), layout="constrained", squeeze=False)
    for column, scale in zip(axes.T, all_scales, strict=True):
        cases = {words: which(scale.tables["ranks"], case=case_of(known)) for words, known in arms(scale).items()}
        cases = {words: rows for words, rows in cases.items() if len(rows)}
        for axis, (quantity, words) in zip(column, quantities.items(), strict=True):
            for (arm, rows), colour in zip(cases.items(), sns.color_palette("husl", len(cases)), strict=True):
                medians = rows[rows["step"] > 0].groupby("step")[quantity].median()
                axis.plot(medians.index, medians, color=colour, label=arm)
            axis.set(xscale="log", xlabel="step", ylabel=words, title=scale.name)
        column[0].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    main(figure)
