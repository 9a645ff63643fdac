"""Arguments of solvers, searches and slices that mean nothing are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import net, operator, point, refused, table

from landscape import (
    Deflated,
    GaugeTangent,
    MatrixOperator,
    SoftmaxShift,
    coupling,
    eigsh,
    excess_index,
    find_critical_point,
    pca_plane,
    random_plane,
    saddle_index,
    slice_lines,
    slice_plane,
    spectral_density,
    trace,
    track,
)
from landscape.curvature.coupling import principal_angles
from landscape.curvature.density import jensen_shannon
from landscape.curvature.operators import product_error

NAN, INF = float("nan"), float("inf")
M = MatrixOperator(torch.diag(torch.arange(-3.0, 9.0).double()))


@table(
    {
        "directions of a slice": (
            lambda: slice_lines(operator().objective, point(), ["0.bias"], torch.ones(4, 1).double(), np.zeros(1)),
            r"directions \(4, 1\) for a block of 5 parameters",
            r"give a tensor \(5, m\)",
        ),
        "directions of a plane": (
            lambda: slice_plane(operator().objective, point(), ["0.bias"], torch.eye(5)[:, :3].double(), np.zeros(1)),
            r"a plane of 3 directions",
            r"give two, \(n, 2\)",
        ),
        "a plane without a direction": (
            lambda: slice_plane(operator().objective, point(), ["0.bias"], torch.zeros(5, 2).double(), np.zeros(1)),
            "directions of lengths 0 and 0 span no plane",
            "give two that are finite and not 0",
        ),
        "steps along the second direction": (
            lambda: slice_plane(
                operator().objective, point(), ["0.bias"], torch.eye(5)[:, :2].double(), np.zeros(1), np.array([INF])
            ),
            "t_second is not a list of finite numbers",
            "such as np.linspace",
        ),
        "normalisation of a plane": (
            lambda: random_plane(point(), normalisation="filters"),  # type: ignore[arg-type]
            "normalisation",
            "filter",
        ),
        "a random plane of biases": (
            lambda: random_plane({"0.bias": point()["0.bias"]}),
            "the random directions over 0.bias are 0",
            "of two axes or more that are not 0, or set --biases",
        ),
        "a path of two": (lambda: pca_plane([point(), point()]), "2 checkpoints span no plane", "at least three"),
        "a path that stays": (lambda: pca_plane([point()] * 3), "the 3 checkpoints lie on a line", "span a plane"),
        "a path of two networks": (
            lambda: pca_plane([point(), {"w": torch.ones(2)}, point()]),
            "checkpoint 1 has other parameters than the last one",
            "of one network",
        ),
        "a path of a module": (
            lambda: pca_plane([torch.nn.Linear(2, 2)] * 3),  # type: ignore[list-item]
            "params are a Linear",
            "by name",
        ),
        "block of a slice": (
            lambda: slice_lines(operator().objective, point(), ["0.bais"], torch.ones(5, 1).double(), np.zeros(1)),
            "no parameter '0.bais'",
            "did you mean 0.bias",
        ),
        "NumPy directions": (
            lambda: slice_lines(operator().objective, point(), ["0.bias"], np.eye(5)[:, :1], np.zeros(1)),
            "directions are a ndarray, not a tensor",
            r"torch\.from_numpy",
        ),
        "precision of a slice": (
            lambda: slice_lines(operator().objective, point(), ["0.bias"], torch.eye(5)[:, :1], np.zeros(1)),
            "directions are torch.float32 in an objective of torch.float64",
            r"directions\.to\(torch\.float64\)",
        ),
        "directions of another length": (
            lambda: slice_lines(
                operator().objective, point(), ["0.bias"], 2 * torch.eye(5)[:, :2].double(), np.zeros(1)
            ),
            "directions of lengths 2 to 2: unit vectors are needed",
            r"divide them by directions\.norm\(dim=0\)",
        ),
        "NaN of a slice": (
            lambda: slice_lines(operator().objective, point(), ["0.bias"], torch.eye(5)[:, :1].double(), [0, NAN]),
            "t is not a list of finite numbers",
            "such as np.linspace",
        ),
        "t of two axes": (
            lambda: slice_plane(
                operator().objective, point(), ["0.bias"], torch.eye(5)[:, :2].double(), np.zeros((2, 2))
            ),
            "t is not a list of finite numbers",
            "such as np.linspace",
        ),
        "block of a slice as a word": (
            lambda: slice_lines(operator().objective, point(), "0.bias", torch.ones(5, 1).double(), np.zeros(1)),
            "a block is a list of names, not '0.bias'",
            r"give \['0.bias'\]",
        ),
        "module instead of an objective": (
            lambda: slice_lines(net(), point(), ["0.bias"], torch.eye(5)[:, :1].double(), np.zeros(1)),
            "the objective is a Sequential",
            "give an Objective",
        ),
        "module to search": (
            lambda: find_critical_point(net(), point()),
            "the objective is a Sequential",
            "give an Objective",
        ),
        "params to search": (
            lambda: find_critical_point(operator().objective, list(net().parameters())),
            "params are a list",
            "give tensors by name",
        ),
        "tolerance of a search": (
            lambda: find_critical_point(operator().objective, point(), tol="small"),
            "tol is 'small'",
            "a finite number above 0",
        ),
        "products of a search": (
            lambda: find_critical_point(operator().objective, point(), max_hvps=-1),
            "max_hvps is -1",
            "a whole number of at least 0",
        ),
        "vectors to track": (
            lambda: track(torch.ones(2, 5, 3), torch.ones(2, 5, 2)),
            r"eigenvectors \(2, 5, 3\) before and \(2, 5, 2\) now",
            "same block with the same k",
        ),
        "results to track": (
            lambda: track(eigsh(M, 1), eigsh(M, 1)),
            "eigenvectors are an EigenResult before and an EigenResult now",
            "`vectors` of two results of eigsh",
        ),
        "NumPy to begin with": (
            lambda: eigsh(M, 1, method="lanczos", v0=np.ones((12, 1))),
            "v0 is a ndarray, not a tensor",
            r"torch\.from_numpy\(array\)",
        ),
        "one vector to begin with": (
            lambda: eigsh(M, 1, method="lanczos", v0=torch.ones(12)),
            r"v0 has the shape \(12,\)",
            r"give vectors \(12, m\), or \(end, 12, m\)",
        ),
        "too few rows to begin with": (
            lambda: eigsh(M, 1, method="lanczos", v0=torch.ones(11, 2)),
            r"v0 has the shape \(11, 2\)",
            r"give vectors \(12, m\)",
        ),
        "four axes to begin with": (
            lambda: eigsh(M, 1, method="lanczos", v0=torch.ones(2, 12, 2, 2)),
            r"v0 has the shape \(2, 12, 2, 2\)",
            r"give vectors \(12, m\)",
        ),
        "NaN to begin with": (
            lambda: eigsh(M, 1, method="lanczos", v0=torch.full((12, 1), NAN)),
            "v0 holds NaN or infinity",
            "give finite vectors",
        ),
        "one vector for ratios": (
            lambda: coupling(EYE, TALL, EYE_2, method="lanczos", v0=torch.ones(5)),
            r"v0 has the shape \(5,\)",
            r"^give vectors \(5, m\)$",
        ),
        "vectors of one block for ratios": (
            lambda: coupling(EYE, TALL, EYE_2, method="lanczos", v0=torch.ones(3, 2)),
            r"v0 has the shape \(3, 2\)",
            r"^give vectors \(5, m\)$",
        ),
        "half precision": (
            lambda: MatrixOperator(torch.eye(3, dtype=torch.float16)),
            r"a matrix of torch\.float16: too few digits",
            r"give matrix\.to\(torch\.float64\)",
        ),
        "bfloat16": (
            lambda: MatrixOperator(torch.eye(3, dtype=torch.bfloat16)),
            r"a matrix of torch\.bfloat16: too few digits",
            r"give matrix\.to\(torch\.float64\)",
        ),
        "sparse matrix": (
            lambda: MatrixOperator(torch.eye(3).to_sparse()),
            "a matrix with the layout sparse_coo: solvers take dense ones",
            r"give matrix\.to_dense\(\)",
        ),
        "error of a matrix": (lambda: MatrixOperator(torch.eye(3), -1.0), "error is -1.0", "a number of at least 0"),
        "NumPy for angles": (lambda: principal_angles(np.eye(3), [3]), "vectors are a ndarray", r"torch\.from_numpy"),
        "parts that do not add up": (
            lambda: principal_angles(torch.eye(3), [1, 1]),
            r"parts of \[1, 1\] rows of vectors \(3, 3\)",
            "sizes that sum to 3",
        ),
        "negative part": (lambda: principal_angles(torch.eye(3), [4, -1]), r"parts of \[4, -1\] rows", "sum to 3"),
        "vectors of another length": (
            lambda: principal_angles(2 * torch.eye(3)[:, :2], [1, 2]),
            "the columns are not orthonormal",
            r"torch\.linalg\.qr\(vectors\)",
        ),
    }
)
def test_vectors_of_solvers(make: Callable[[], Any], words: str, hint: str) -> None:
    """Directions, start vectors and eigenvectors are tensors of the right shape, precision and length."""
    refused(make, words, hint)


@table(
    {
        "k 0": (lambda: eigsh(M, 0), "k is 0", "give a whole number of at least 1"),
        "k -1": (lambda: eigsh(M, -1, method="lanczos"), "k is -1", "give a whole number of at least 1"),
        "k 2.5": (lambda: eigsh(M, 2.5), "k is 2.5", "give a whole number of at least 1"),
        "products": (
            lambda: eigsh(M, 1, method="lanczos", max_hvps=None),
            "max_hvps is None",
            "give a whole number of at least 0",
        ),
        "products of an index": (
            lambda: saddle_index(M, method="lanczos", max_hvps=None),
            "max_hvps is None",
            "give a whole number of at least 0",
        ),
        "products -1": (lambda: eigsh(M, 1, method="lanczos", max_hvps=-1), "max_hvps is -1", "of at least 0"),
        "products of ratios": (lambda: coupling(EYE, EYE, EYE, max_hvps=None), "max_hvps is None", "of at least 0"),
        "products of an excess index": (
            lambda: excess_index(EYE, EYE, EYE, max_hvps=None),
            "max_hvps is None",
            "of at least 0",
        ),
        "which": (lambda: eigsh(M, 1, "largest"), "which is 'largest'", "choose from both, lowest, highest"),
        "method": (lambda: eigsh(M, 1, method="lancos"), "method is 'lancos'", "choose from auto, dense, lanczos"),
        "rtol": (lambda: eigsh(M, 1, rtol=NAN), "rtol is nan", "give a finite number above 0"),
        "tau as a word": (lambda: saddle_index(M, "small"), "tau is 'small'", "give a finite number above 0"),
        "tau NaN": (lambda: saddle_index(M, NAN), "tau is nan", "give a finite number above 0"),
        "tau NaN, matrix-free": (lambda: saddle_index(M, NAN, "lanczos"), "tau is nan", "a finite number above 0"),
        "tau -1": (lambda: saddle_index(M, -1.0), "tau is -1.0", "give a finite number above 0"),
        "tau infinite": (lambda: saddle_index(M, INF), "tau is inf", "give a finite number above 0"),
        "method of an index": (lambda: saddle_index(M, method="ldl"), "method is 'ldl'", "choose from auto, dense"),
        "no rows": (
            lambda: saddle_index(MatrixOperator(torch.zeros(0, 0))),
            "eigenvalues of an operator without rows",
            "give at least one row",
        ),
        "no rows, eigenvalues": (lambda: eigsh(MatrixOperator(torch.zeros(0, 0)), 1), "without rows", "at least one"),
        "no rows, trace": (lambda: trace(MatrixOperator(torch.zeros(0, 0))), "without rows", "at least one row"),
        "a tensor": (
            lambda: eigsh(torch.eye(3), 1),  # type: ignore[arg-type]
            r"a tensor of shape \(3, 3\) is no operator",
            r"give MatrixOperator\(tensor\)",
        ),
        "NumPy": (
            lambda: eigsh(np.eye(3), 1),
            "a ndarray is no operator",
            r"give MatrixOperator\(torch\.from_numpy\(array\)\)",
        ),
        "a list": (lambda: trace([[1.0]]), "a list is no operator", "a HessianOperator or MatrixOperator"),
        "error of a coupling": (
            lambda: product_error(operator().block(["0.bias"], ["2.bias"])),
            "5 x 4 operator",
            "same parameters",
        ),
        "upper": (lambda: saddle_index(M, upper=-1), "upper is -1", "a whole number of at least 0"),
        "rectangular": (lambda: eigsh(MatrixOperator(torch.ones(2, 3)), 1), "2 x 3 operator", r"op\.block\(names\)"),
        "coupling": (
            lambda: saddle_index(operator().block(["0.bias"], ["2.bias"])),
            r"eigenvalues of a 5 x 4 operator: take a diagonal block",
            r"name the same parameters for rows and columns: op\.block\(names\)",
        ),
        "few probes": (lambda: trace(M, 5), "5 probes: an estimate", "give more probes, such as 30"),
        "one probe": (
            lambda: spectral_density(M, method="lanczos", probes=1),
            "1 probe",
            "give more probes, such as 8",
        ),
        "no steps": (
            lambda: spectral_density(M, method="lanczos", steps=0),
            "steps is 0",
            "a whole number of at least 1",
        ),
        "no points": (lambda: spectral_density(M, points=0), "points is 0", "a whole number of at least 2"),
        "bandwidth": (lambda: spectral_density(M, 0.0), "bandwidth is 0.0", "give a finite number above 0"),
        "method of a density": (
            lambda: spectral_density(M, method="slq"),
            "method is 'slq'",
            "choose from auto, dense",
        ),
    }
)
def test_solvers(make: Callable[[], Any], words: str, hint: str) -> None:
    """Numbers of pairs, probes and tolerances mean something, and methods have known names."""
    refused(make, words, hint)


FACTORS = {"E": torch.ones(5, 3), "W": torch.ones(4, 6), "V": torch.ones(3, 4)}


@table(
    {
        "misspelt": (lambda: GaugeTangent(FACTORS, ["E", "w"]), "no parameter 'w'", "did you mean|known: E, W, V"),
        "without W": (lambda: GaugeTangent(FACTORS, ["E"]), "tangents of the block E", "name E and W"),
        "as a word": (lambda: GaugeTangent(FACTORS, "E,W"), "a block is a list of names, not 'E,W'", "'E', 'W'|'E,W'"),
        "no E at all": (lambda: GaugeTangent({"A": torch.ones(3)}, ["A"]), "tangents of the block A", "name E and W"),
        "slots": (
            lambda: GaugeTangent({**FACTORS, "W": torch.ones(4, 7)}, ["E", "W"]),
            r"W \(4, 7\) is not \(h, s d\) of E \(5, 3\)",
            "columns of W .* 3",
        ),
        "shift of none": (lambda: SoftmaxShift({"W": torch.ones(2, 2)}, ["V"]), "no parameter 'V'", "known: W"),
        "shift without V": (lambda: SoftmaxShift({"W": torch.ones(2, 2)}, ["W"]), "no parameter 'V'", "known: W"),
        "a tensor": (lambda: Deflated(torch.eye(39), GaugeTangent(FACTORS, ["E", "W"])), "is no operator", "Matrix"),
        "a basis": (lambda: Deflated(EYE, torch.eye(3)), "the directions are a Tensor", "such as GaugeTangent"),
        "another size": (
            lambda: Deflated(EYE, GaugeTangent(FACTORS, ["E", "W"])),
            "directions of 39 numbers for an operator of 3 rows",
            "the same block",
        ),
    }
)
def test_directions(make: Callable[[], Any], words: str, hint: str) -> None:
    """Directions belong to the block that they are projected out of."""
    refused(make, words, hint)


EYE, TALL = MatrixOperator(torch.eye(3).double()), MatrixOperator(torch.ones(3, 2).double())
EYE_2 = MatrixOperator(torch.eye(2).double())
LARGE = MatrixOperator(torch.eye(200).double())


@table(
    {
        "tensors": (lambda: [torch.eye(3), TALL, EYE], r"a tensor of shape \(3, 3\) is no operator", "MatrixOperator"),
        "a tensor between": (lambda: [EYE, torch.eye(3), EYE], r"a tensor of shape \(3, 3\)", "MatrixOperator"),
        "shapes": (
            lambda: [EYE, TALL, EYE],
            r"blocks of shapes \(3, 3\), \(3, 2\), \(3, 3\)",
            r"\(m, m\), \(m, n\), \(n, n\)",
        ),
        "rectangular": (lambda: [TALL, TALL, EYE], "3 x 2 operator", "take a diagonal block|same parameters"),
        "tau": (lambda: [EYE, EYE, EYE, -1.0], "abs_tau is -1.0", "a number of at least 0"),
        "tau NaN": (lambda: [EYE, EYE, EYE, NAN], "abs_tau is nan", "a number of at least 0"),
        "tau as a word": (lambda: [EYE, EYE, EYE, "small"], "abs_tau is 'small'", "a number of at least 0"),
    }
)
def test_pairs_of_blocks(make: Callable[[], Any], words: str, hint: str) -> None:
    """Two blocks and what is between them have shapes that belong together."""
    for measure in (coupling, excess_index):
        refused(lambda measure=measure: measure(*make()), words, hint)
    refused(lambda: coupling(EYE, EYE, EYE, k=0, method="lanczos"), "k is 0", "a whole number of at least 1")


@table(
    {
        "eigenvalues": (lambda: eigsh(M, 1, method="lanczos", seed=-1), "seed is -1", r"from 0 to 2\^64 - 1"),
        "density": (lambda: spectral_density(M, method="lanczos", seed=1.5), "seed is 1.5", r"from 0 to 2\^64 - 1"),
        "trace": (lambda: trace(LARGE, seed="first"), "seed is 'first'", r"an integer from 0 to 2\^64 - 1"),
        "index": (lambda: saddle_index(M, method="lanczos", seed=True), "seed is True", r"from 0 to 2\^64 - 1"),
        "excess": (lambda: excess_index(M, M, M, method="lanczos", seed=1 << 64), "seed is 18446", "an integer"),
        "ratios": (lambda: coupling(EYE, EYE, EYE, method="lanczos", seed=None), "seed is None", "an integer"),
        "error of products": (lambda: product_error(operator(), seed=-1), "seed is -1", "an integer from 0"),
    }
)
def test_seeds(make: Callable[[], Any], words: str, hint: str) -> None:
    refused(make, words, hint)


def test_the_largest_seed_and_those_of_numpy_are_seeds() -> None:
    assert saddle_index(M, method="lanczos", seed=(1 << 64) - 1).lower == 3
    assert eigsh(M, 1, method="lanczos", seed=np.int64(3)).values[0] == pytest.approx(-3)  # type: ignore[arg-type]


def test_densities() -> None:
    """Two densities are lists, arrays or tensors of one length, of numbers that are not negative and not all 0."""
    one = np.array([1.0, 3.0])
    for other in ([3.0, 1.0], torch.tensor([3.0, 1.0])):
        assert jensen_shannon(one, other) == jensen_shannon(one, np.array([3.0, 1.0])) > 0
    for bad in ([1.0], [-1.0, 2.0], [NAN, 1.0], [INF, 1.0], [0.0, 0.0], [[1.0, 1.0]], "ab", M):
        refused(lambda bad=bad: jensen_shannon(one, bad), "densities", "`density` of two results on one grid")
