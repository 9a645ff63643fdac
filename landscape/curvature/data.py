"""The data that an objective is a mean over: tensors in memory, or batches that are read again and again."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from landscape.curvature.arguments import require_count
from landscape.curvature.checks import blaming, require_data
from landscape.curvature.modules import in_precision
from landscape.curvature.part import Part, taken
from landscape.devices import free_memory
from landscape.errors import ArgumentError, kind_of

Tree = Any
"""A tensor, or a dict, tuple, list or other torch.utils._pytree of tensors; what is no tensor is passed on as it is."""
Piece = Callable[[], tuple[Tree, Tree]]
"""Inputs and targets of some samples."""
PROBE = 32
"""Samples, spread over the data, by which an objective is checked."""
_SHARE = 0.25
"""Part of the free memory that batches may be kept in."""


def as_data(inputs: Tree, targets: Tree, chunk_size: int | None, device: torch.device | None) -> Data:
    """Tensors, or where there are no targets a re-iterable of (inputs, targets) batches, which go to `device`.

    One of several ranks has its part of them (`taking`).

    Raises ArgumentError for what is neither, for chunks of no samples, for numbers that are not finite, and for batches
    that cannot be read twice or are others then.
    """
    if isinstance(inputs, Tensors | Batches):
        return inputs
    if chunk_size is not None:
        require_count("chunk_size", chunk_size)
    if targets is None and isinstance(inputs, tuple) and len(inputs) == 2:
        inputs, targets = inputs
    if targets is not None:
        if callable(targets) and not isinstance(targets, Tensor):
            name = getattr(targets, "__name__", type(targets).__name__)
            raise ArgumentError(f"targets are the function {name}", "pass the loss by its name: loss=...")
        whole = Tensors(_plain(inputs), _plain(targets), chunk_size)
        return whole if (part := taken()) is None else whole.part(part, chunk_size)
    if isinstance(inputs, Tensor | Mapping) or not isinstance(inputs, Iterable):
        raise ArgumentError(
            f"inputs are {kind_of(inputs)}, and there are no targets",
            "give inputs and targets, or a DataLoader (or list) of (inputs, targets) batches",
        )
    if isinstance(inputs, Iterator):
        raise ArgumentError(
            f"the batches are {kind_of(inputs)}, which can be read once only",
            "give a list or a DataLoader: a product with the Hessian reads all batches again",
        )
    if part := taken():
        first = next(iter(inputs), ((), ()))
        part.seen.append(f"{checksum(first):08x}")
        inputs = part.batches(inputs)
    return Batches(inputs, device)


class Tensors:
    """The whole data set as tensors, of which a chunk is a slice of each."""

    def __init__(self, inputs: Tree, targets: Tree, chunk_size: int | None) -> None:
        self._trees = inputs, targets
        self._count, self.device = require_data(inputs, targets)
        self._chunk_size = chunk_size or self._count
        self.num_chunks = -(-self._count // self._chunk_size)
        self._pair: Tensors | None = None
        self._whole: Tensors | None = None

    @property
    def sums(self) -> dict[int, int]:
        """A checksum of all samples, those of other ranks among them."""
        return {0: checksum((self._whole or self)._trees)}

    def part(self, part: Part, chunk_size: int | None) -> Tensors:
        """The samples of one of several ranks. Raises ArgumentError for fewer samples than ranks."""
        part.seen.append(f"{checksum(self._trees):08x}")
        at = part.rows(self._count)
        own = Tensors(*_rows_of_both(*self._trees, at), chunk_size)
        own._whole = self
        if own._count == 1 and chunk_size != 1:
            # A single sample would not show that its loss depends on those beside it.
            own._pair = Tensors(*_rows_of_both(*self._trees, slice(0, 2)), None)
        return own

    def pieces(self) -> Iterator[Piece]:
        """Each chunk, to be read in this order."""
        for start in range(0, self._count, self._chunk_size):
            yield self._piece(slice(start, start + self._chunk_size))

    def probe(self) -> tuple[Piece, list[Piece]]:
        """Samples spread over the data, as many as go through the model at once or PROBE, and two parts of them."""
        if self._pair:
            return self._pair.probe()
        count = min(PROBE, self._chunk_size, self._count)
        step = -(-self._count // count)
        half = step * (count // 2)
        whole, *halves = map(self._piece, (slice(0, None, step), slice(0, half, step), slice(half, None, step)))
        return whole, halves

    def _piece(self, at: slice) -> Piece:
        return functools.partial(_rows_of_both, *self._trees, at)


class Batches:
    """Batches of a loader, each a chunk: kept where they take little of the memory, else read anew at every pass.

    They are read twice beforehand, and compared by a checksum at every further reading.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | None) -> None:
        """device: where the batches go; None: they stay where they are."""
        self._loader, self._sums = loader, list[int]()
        self._first, self._stride = (part.rank, part.size) if (part := taken()) else (0, 1)
        kept: list[tuple[Tree, Tree]] | None = []
        size = 0
        with blaming("the loader fails"):
            for i, batch in enumerate(loader):
                inputs, targets = _pair(batch, i)
                _, own = require_data(inputs, targets, f" of batch {i}")
                self.device = device or own
                self._sums.append(checksum((inputs, targets)))
                size += sum(t.numel() * t.element_size() for t in tensors_of((inputs, targets)))
                if kept is not None:
                    # What a loader reuses for its next batch must not change what is kept.
                    kept.append((mapped(torch.clone, inputs), mapped(torch.clone, targets)))
                    kept = kept if size <= _SHARE * free_memory(own) else None
        self.num_chunks = len(self._sums)
        if not self._sums:
            raise ArgumentError(
                f"the {type(loader).__name__} holds no batch", "give at least one; mind drop_last=True and filters"
            )
        self._kept: list[tuple[Tree, Tree]] | None = None
        self._current: tuple[Tree, Tree] = (None, None)
        self._at, self._iterator = -1, iter(())
        for piece in self.pieces():
            piece()
        if next(self._iterator, None) is not None:
            raise _other(f"it goes on after {self.num_chunks} batches")
        self._kept = kept

    @property
    def sums(self) -> dict[int, int]:
        """The checksum of each batch by its number, on one of several ranks those of its own."""
        return dict(zip(itertools.count(self._first, self._stride), self._sums, strict=False))

    def pieces(self) -> Iterator[Piece]:
        """Each batch."""
        for i in range(self.num_chunks):
            yield functools.partial(self._read, i)

    def probe(self) -> tuple[Piece, list[Piece]]:
        """The first samples of the first batch, and two parts of them."""
        inputs, targets = self._read(0)
        count = min(PROBE, len(tensors_of(targets)[0]))
        parts = slice(0, count), slice(0, count // 2), slice(count // 2, count)
        whole, *halves = (self._part(inputs, targets, at) for at in parts)
        return whole, halves

    def _part(self, inputs: Tree, targets: Tree, at: slice) -> Piece:
        return functools.partial(_rows_of_both, inputs, targets, at)

    def _read(self, i: int) -> tuple[Tree, Tree]:
        inputs, targets = self._kept[i] if self._kept is not None else self._read_again(i)
        return mapped(self._move, inputs), mapped(self._move, targets)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def _read_again(self, i: int) -> tuple[Tree, Tree]:
        """A loader has no way to a batch but past those before it: a pass takes them in their order."""
        if self._at == i and i > 0:
            return self._current
        if self._at + 1 != i or i == 0:
            self._at, self._iterator = -1, iter(self._loader)
        while self._at < i:
            with blaming("the loader fails"):
                batch = next(self._iterator, None)
            self._at += 1
            if batch is None:
                raise _other(f"it ends after {self._at} of {self.num_chunks} batches")
        inputs, targets = _pair(batch, i)
        if checksum((inputs, targets)) != self._sums[i]:
            raise _other(f"batch {i} holds other numbers than at first")
        self._current = inputs, targets
        return inputs, targets


Data = Tensors | Batches
"""Inputs and targets in chunks, which are the same at every pass."""


def _other(what: str) -> ArgumentError:
    return ArgumentError(
        f"the loader gives other data when it is read again: {what}",
        "make it with shuffle=False, without a random sampler and without random augmentation",
    )


def _pair(batch: Any, i: int) -> tuple[Tree, Tree]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ArgumentError(
            f"batch {i} is a {what}, not a pair (inputs, targets)",
            "give batches of two: what the model takes (a tensor, or a dict of its arguments), what the loss takes",
        )
    return _plain(batch[0]), _plain(batch[1])


def _plain(tree: Tree) -> Tree:
    """A mapping that torch does not look into, such as a tokenizer's, as a dict."""
    return dict(tree) if isinstance(tree, Mapping) else tree


def checksum(tree: Tree) -> int:
    """CRC-32 over the bytes of all tensors, their shapes and types."""
    crc = 0
    for tensor in tensors_of(tree):
        raw = tensor.detach().contiguous().cpu()
        crc = zlib.crc32(f"{tuple(raw.shape)}{raw.dtype}".encode(), crc)
        crc = zlib.crc32(raw.reshape(-1).view(torch.uint8).numpy().data, crc) if raw.numel() else crc
    return crc


def sum_of(sums: Mapping[int, int]) -> str:
    """One checksum of those of batches by their numbers."""
    return f"{zlib.crc32(repr(sorted(sums.items())).encode()):08x}"


def tensors_of(tree: Tree) -> list[Tensor]:
    """The tensors of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def mapped(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The tree with each of its tensors put through a function."""
    return pytree.tree_map_only(Tensor, function, tree)


def rows(tree: Tree, at: slice) -> Tree:
    """Some samples of every tensor."""
    return mapped(lambda t: t[at], tree)


def _rows_of_both(inputs: Tree, targets: Tree, at: slice) -> tuple[Tree, Tree]:
    return rows(inputs, at), rows(targets, at)


def fresh(tree: Tree, dtype: torch.dtype) -> Tree:
    """A copy in a precision: models and losses may work in place."""
    return mapped(lambda t: in_precision(t.detach(), dtype).clone(), tree)


def shapes(tree: Tree) -> str:
    """The shapes of a tree's tensors."""
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape))
    paths, _ = pytree.tree_flatten_with_path(tree)
    return ", ".join(f"{pytree.keystr(path)} {tuple(t.shape)}" for path, t in paths if isinstance(t, Tensor))
