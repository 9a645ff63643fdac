"""The tables of the Hessian file; the quantities declare their datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from landscape.analysis.quantities import QUANTITIES, density
from landscape.storage.hessians import HessianReader
from landscape.storage.inspect import FileState
from landscape.storage.layout import misfit
from landscape.storage.schema import MARKED, Field, Scales, Table

BOOKKEEPING = (
    Field(
        "num_products",
        ("block",),
        "i8",
        "Hessian-vector products used; 0: assembled in closed form; missing (-1): not yet measured",
        attrs=MARKED,
    ),
    Field("seconds", ("block",), "f8", "wall time of the block", "s"),
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
)
ROOT = Table("/", "step", (*(f for q in QUANTITIES for f in q.fields), *density.FIELDS, *BOOKKEEPING))


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
    """The full spectra of the dense blocks."""
    fields = tuple(Field(b, (f"param_row_{b}",), "f8", f"all eigenvalues of block {b}, ascending") for b in blocks)
    return Table("spectrum", "step", fields)


ENDS = {"end": ["lowest", "highest"], "sign": ["negative", "zero", "positive"]}
"""Labels of the axes that every file has."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a Hessian file: parameters by block, blocks with full spectra, names of pairs and parts.

    further: additional tables; axes: lengths of their axes.
    """

    sizes: Mapping[str, int]
    full: tuple[str, ...]
    pairs: list[str]
    parts: list[str]
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
        """The labels of all axes except those of rows."""
        rows = {f"param_row_{block}": n for block, n in self.sizes.items()}
        lengths = {"rank": self.k, "density_point": density.POINTS, **rows, **self.axes}
        blocks = list(self.sizes)
        named = {"block": blocks, "other_block": blocks, "pair": self.pairs, "part": self.parts}
        return {**named, **ENDS, **{axis: range(n) for axis, n in lengths.items()}}


def unlike(found: HessianReader) -> str:
    """How a file contradicts the declarations of the quantities; empty if it does not. It may lack some."""
    lengths = {axis: len(labels) for axis, labels in ENDS.items()}
    return misfit(found.layout, found.scales, [ROOT], lengths, may_lack=True)


def lacks(state: FileState) -> list[str]:
    """Missing parts of a Hessian file, and why."""
    full, blocks = state.holds("spectrum"), state.config.get("blocks", [])
    partial = [str(block) for block in blocks if block not in full]
    notes = [f"no full spectrum of {', '.join(partial)}: too large for dense_limit"] if partial else []
    if not state.holds("eigenvectors"):
        notes.append("no eigenvectors: --eigenvectors stores them")
    return notes
