"""Mass of eigenvectors on the parts of a block, and principal angles of the negative subspace."""

from __future__ import annotations

import numpy as np

from landscape.files.schema import Field
from landscape.measure.quantities.quantity import Block, Checkpoint, Column, Quantity, Row

PARTS_SHOWN = 3


def compute(at: Checkpoint, block: Block) -> Row:
    """Masses of every eigenvector, and the angles of those below -tolerance, on each part of the problem."""
    import torch

    from landscape.curvature.coupling import masses, principal_angles

    eigen, k, parts = at.eigen(block), at.config.k, at.problem.parts
    labels, sizes = list(parts), block.sizes
    part = [labels.index(next(p for p, names in parts.items() if n in names)) for n in block.owners]
    shares = np.full((2, k, len(labels)), np.nan)
    num_vectors = eigen.vectors.shape[2]
    for end in range(2):
        shares[end, :num_vectors] = 0
        np.add.at(shares[end, :num_vectors].T, part, masses(eigen.vectors[end], sizes))
    angles = np.full((len(labels), k), np.nan)
    below = torch.from_numpy(eigen.values[0] < -at.inertia(block).tolerance).to(eigen.vectors.device)
    for i, matrix_angles in zip(part, principal_angles(eigen.vectors[0][:, below], sizes), strict=True):
        # For a part of several parameters, angles of each one say little about the part.
        if len(parts[labels[i]]) == 1:
            angles[i, : len(matrix_angles)] = matrix_angles
    return {"bottom_mass": shares[0, 0], "eigenvector_mass": shares, "principal_angles": angles}


FIELDS = (
    Field("bottom_mass", ("block", "part"), "f8", "mass of the lowest eigenvector on each matrix"),
    Field("eigenvector_mass", ("block", "end", "rank", "part"), "f8", "mass of every eigenvector on each matrix"),
    Field(
        "principal_angles",
        ("block", "part", "rank"),
        "f8",
        "principal angles, ascending, between each matrix and the span of the reported eigenvectors below -tolerance; "
        "pi/2 beyond the rows of a matrix that has fewer, NaN beyond these eigenvectors and for parts of several "
        "matrices",
        "rad",
    ),
)
COLUMNS = (Column("{parts} mass", lambda row: "/".join(f"{mass:.2f}" for mass in row["bottom_mass"][:PARTS_SHOWN])),)
DIRECTIONS = Quantity(FIELDS, compute, columns=COLUMNS, place=30)
