"""The Hessian file as data: every dataset with its axes, type, units and meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from landscape.config import PAIRS
from landscape.storage.inspect import FileState
from landscape.storage.schema import LEVEL, MARKED, Field, Scales, Table

PARTS = ["E", "W", "V", "bias"]
NAMED = {
    "end": ["lowest", "highest"],
    "sign": ["negative", "zero", "positive"],
    "part": PARTS,
    "pair": [",".join(pair) for pair in PAIRS],
}
"""Axes whose labels never change."""

ROOT = Table(
    "/",
    "step",
    (
        Field("eigenvalues", ("block", "end", "rank"), "f8", "extreme eigenvalues, outermost first"),
        Field("residual_norm", ("block", "end", "rank"), "f8", "residual", formula="|H v - lambda v|_2, |v| = 1"),
        Field(
            "converged",
            ("block", "end", "rank"),
            "i1",
            "residual within tolerance and the complement searched (1) or not, or no such rank (0)",
        ),
        Field(
            "hidden",
            ("block", "end"),
            "f8",
            "how far each reported eigenvalue may be from the true one of its rank, copies counted, and an eigenvalue "
            "that is not reported may lie beyond them; 0: dense; inf: the complement was not searched",
            since="1.1",
        ),
        Field(
            "hidden_failure_probability",
            ("block",),
            "f8",
            "probability that `hidden` fails at an end; 0: every eigenvalue was computed",
            since="1.1",
        ),
        Field(
            "num_products",
            ("block",),
            "i8",
            "Hessian-vector products used; 0: assembled in closed form; missing (-1): not yet measured",
            attrs=MARKED,
        ),
        Field("seconds", ("block",), "f8", "wall time of the block", "s"),
        Field(
            "inertia",
            ("block", "sign"),
            "i8",
            "eigenvalues below -tolerance, within it, above it; missing (-1): only the bracket is known",
            attrs=MARKED,
        ),
        Field(
            "inertia_lower",
            ("block",),
            "i8",
            "lower bound of the saddle index; missing (-1): not yet measured",
            attrs=MARKED,
        ),
        Field(
            "inertia_upper",
            ("block",),
            "i8",
            "upper bound of the saddle index; missing (-1): not yet measured",
            attrs=MARKED,
        ),
        Field("inertia_level", ("block",), "i1", "how the saddle index is known", attrs=LEVEL),
        Field("inertia_tolerance", ("block",), "f8", "tolerance tau of the saddle index"),
        Field("operator_norm", ("block",), "f8", "norm of the block", formula="max |lambda|"),
        Field("grad_norm", ("block",), "f8", "gradient norm of the block's parameters"),
        Field("inertia_failure_probability", ("block",), "f8", "probability that inertia_upper fails; 0: it is proved"),
        Field("inertia_error", ("block",), "f8", "error of the matrix or of its products that the bracket allows for"),
        Field(
            "inertia_estimate",
            ("block",),
            "f8",
            "stochastic estimate of the saddle index; NaN where it is certified",
        ),
        Field("inertia_estimate_low", ("block",), "f8", "lower end of the estimate's 95 % confidence interval"),
        Field("inertia_estimate_high", ("block",), "f8", "upper end of the estimate's 95 % confidence interval"),
        Field(
            "saddle_index_gauge_free",
            ("block",),
            "i8",
            "saddle index on the complement of the gauge tangents of E and W; missing (-1): not certified, or without "
            "both",
            attrs=MARKED,
        ),
        Field("bottom_mass", ("block", "part"), "f8", "mass of the lowest eigenvector on each matrix"),
        Field("eigenvector_mass", ("block", "end", "rank", "part"), "f8", "mass of every eigenvector on each matrix"),
        Field(
            "principal_angles",
            ("block", "part", "rank"),
            "f8",
            "principal angles, ascending, between each matrix and the span of the reported eigenvectors below "
            "-tolerance",
            "rad",
        ),
        Field("trace", ("block",), "f8", "trace"),
        Field("trace_error", ("block",), "f8", "standard error of the trace; 0: sum of all eigenvalues"),
        Field(
            "jensen_shannon",
            ("block", "other_block"),
            "f8",
            "Jensen-Shannon distance of the blocks' spectral densities",
            formula="base 2, 0 to 1, of /density; NaN where a density is missing",
        ),
        Field(
            "jensen_shannon_error",
            ("block", "other_block"),
            "f8",
            "half the width of a 95 % interval about the Jensen-Shannon distance; 0 where both spectra are known",
            since="1.1",
        ),
        Field(
            "subspace_overlap",
            ("block", "end"),
            "f8",
            "overlap of the eigenvectors' span with that of the row before",
            formula="|V_before^T V|_F^2 / k; NaN in the first row",
        ),
        Field(
            "previous_rank",
            ("block", "end", "rank"),
            "i8",
            "rank of the same eigenvector in the row before; missing (-1): none",
            attrs=MARKED,
        ),
        Field("previous_overlap", ("block", "end", "rank"), "f8", "overlap with it", formula="|<v_before, v>|"),
        Field(
            "crossings",
            ("block", "end"),
            "i8",
            "pairs of eigenvectors that changed their order since the row before; missing (-1): none",
            attrs=MARKED,
        ),
        Field(
            "sharpness_gd",
            (),
            "f8",
            "largest eigenvalue of diag(lr) H over all parameters; gradient descent is stable up to 2",
            formula="lambda_max(D^(1/2) H D^(1/2)), D = lr_E on E, lr_W elsewhere, 0 on what is frozen",
        ),
        Field(
            "sharpness_adam",
            (),
            "f8",
            "the same for Adam's preconditioned Hessian; full-batch Adam is stable up to 38",
            formula="D = lr / (sqrt(v / (1 - beta_2^step)) + 1e-8); NaN without second moments",
        ),
        Field("train_loss", (), "f8", "data loss on the training set", "nat"),
        Field("curvature_ratio", (), "f8", "curvature ratio", formula="lambda_max(H_WW) / lambda_max(H_EE)"),
        Field(
            "curvature_ratio_predicted",
            (),
            "f8",
            "curvature ratio of a bilinear least-squares model",
            formula="(sigma_max(E) / sigma_max(W))^2",
        ),
        Field("gradient_ratio", (), "f8", "gradient ratio", formula="|dL/dW|_F / |dL/dE|_F"),
        Field(
            "gradient_ratio_predicted",
            (),
            "f8",
            "gradient ratio of arXiv 2505.15624, eq. 22",
            formula="sigma_max(E) / sigma_max(W)",
        ),
        Field(
            "prop41_ratio",
            (),
            "f8",
            "lr_E / lr_W that Proposition 4.1 asks for",
            formula="(sigma_max(E) / sigma_max(W)) * (f_W / f_E)",
        ),
        Field(
            "coupling_strength",
            ("pair",),
            "f8",
            "coupling strength",
            formula="|H_12|_2 / sqrt(|H_11|_2 |H_22|_2)",
        ),
        Field(
            "coupling_ratios",
            ("pair", "rank"),
            "f8",
            "coupling ratios kappa_1 >= kappa_2 >= ...",
            formula="singular values of (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2), tau of the joint block",
        ),
        Field(
            "coupling_ratio_error",
            ("pair", "rank"),
            "f8",
            "bound on the error of the coupling ratio as that of its rank; NaN where only coupling_ratio_distance is "
            "known. Matrix-free ratios are also at most the true ones of their rank",
        ),
        Field(
            "coupling_ratio_distance",
            ("pair", "rank"),
            "f8",
            "distance within which a true coupling ratio lies, perhaps one of another rank, or zero where the blocks "
            "differ in size. Matrix-free: rounding enters as an estimate with a margin, not as a proved bound, which "
            "matters at tolerances tau near rounding (1e-12 of the norm)",
            since="1.1",
        ),
        Field(
            "coupling_index",
            ("pair",),
            "i8",
            "coupling ratios above 1, the saddle index of the joint block; missing (-1): not certified",
            attrs=MARKED,
        ),
        Field(
            "saddle_bound",
            (),
            "f8",
            "saddle bound: lambda_min(H_[E,W]) >= -sigma_max(G) for piecewise-linear activations",
            formula="sigma_max(G), G = [dL/dT_1^T; ...; dL/dT_s^T]",
        ),
        Field(
            "saddle_rank_bound",
            (),
            "i8",
            "bound on the saddle index of E,W",
            formula="d * rank(G); missing (-1): none",
            attrs=MARKED,
        ),
        Field(
            "previous_step",
            (),
            "i8",
            "analysed step that the tracking starts from; missing (-1): none",
            attrs=MARKED,
            since="1.1",
        ),
        Field(
            "checkpoint_crc32",
            (),
            "i8",
            "commit record of the checkpoint; missing (-1): not known",
            attrs=MARKED,
            since="1.1",
        ),
    ),
)


def density_table(blocks: tuple[str, ...]) -> Table:
    """The smoothed spectral densities of the blocks, on one grid of eigenvalues a step."""
    fields = [
        Field("eigenvalue", ("density_point",), "f8", "grid of eigenvalues"),
        Field("width", (), "f8", "standard deviation of the Gaussian that the densities are smoothed with"),
    ]
    for b in blocks:
        fields.append(Field(b, ("density_point",), "f8", f"spectral density of block {b}", "1 / eigenvalue"))
        fields.append(
            Field(
                f"{b}_error", ("density_point",), "f8", f"standard error of the density of block {b}", "1 / eigenvalue"
            )
        )
    return Table("density", "step", tuple(fields))


def vectors_table(blocks: tuple[str, ...]) -> Table:
    """The eigenvectors of the blocks, in the order of `eigenvalues`."""
    fields = tuple(Field(b, ("end", "rank", f"param_row_{b}"), "f8", f"unit eigenvectors of block {b}") for b in blocks)
    return Table("eigenvectors", "step", fields)


def spectrum_table(blocks: tuple[str, ...]) -> Table:
    """The full spectra of those blocks whose every eigenvalue is computed."""
    fields = tuple(Field(b, (f"param_row_{b}",), "f8", f"all eigenvalues of block {b}, ascending") for b in blocks)
    return Table("spectrum", "step", fields)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a Hessian file has room for: parameters by block, blocks with full spectra, points of a density.

    further: tables beside those of every analysis; axes: lengths of theirs.
    """

    sizes: Mapping[str, int]
    full: tuple[str, ...]
    density_points: int
    k: int
    eigenvectors: bool
    further: tuple[Table, ...] = ()
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        """The tables of the file."""
        vectors = [vectors_table(tuple(self.sizes))] if self.eigenvectors else []
        return [ROOT, spectrum_table(self.full), density_table(tuple(self.sizes)), *vectors, *self.further]

    @property
    def scales(self) -> Scales:
        """The labels of all axes but the rows'."""
        lengths = {"rank": self.k, "density_point": self.density_points, **self.axes}
        rows = {f"param_row_{block}": n for block, n in self.sizes.items()}
        blocks = list(self.sizes)
        return {"block": blocks, "other_block": blocks, **NAMED, **{a: range(n) for a, n in (lengths | rows).items()}}


def lacks(state: FileState) -> list[str]:
    """What a Hessian file does not hold, and why."""
    full, blocks = state.holds("spectrum"), state.config.get("blocks", [])
    partial = [str(block) for block in blocks if block not in full]
    notes = [f"no full spectrum of {', '.join(partial)}: too large for dense_limit"] if partial else []
    if not state.holds("eigenvectors"):
        notes.append("no eigenvectors: --eigenvectors stores them")
    return notes
