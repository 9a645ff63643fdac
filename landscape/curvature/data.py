"""The data that an objective is a mean over: batches of any form, which are the same at every pass."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from landscape.curvature.checks import WHOLE, blaming, is_finite, require_count
from landscape.curvature.modules import in_precision
from landscape.curvature.part import Part, current_part
from landscape.devices import free_memory
from landscape.errors import ArgumentError, kind_of

Batch = Any
"""A tensor, or whatever holds tensors: tuples, lists, mappings, dataclasses and other objects, nested."""
Piece = Callable[[], Batch]
"""A batch, or some of its samples where batches are cut."""
_READ = "iterate over it in Python to see the whole traceback; batches of samples of other lengths need a collate_fn"
_SHARE = 0.25
"""Part of the free memory that batches may be kept in."""


def as_data(data: Any, targets: Any, chunk_size: int | None, device: torch.device | None) -> Batches:
    """One batch, or several that can be read again and again, and go to `device`; None: they stay where they are.

    A DataLoader, a list and what else can be iterated holds several batches; a tensor, a tuple, a mapping and an object
    with tensors is one, and so are `data` and `targets`. One of several ranks has its part of them (`taking`).

    Raises ArgumentError for data without tensors, for numbers that are not finite, and for batches that cannot be read
    twice or are others then.
    """
    if isinstance(data, Batches):
        return data
    if chunk_size is not None:
        require_count("chunk_size", chunk_size)
    if targets is not None:
        if _is_several(data) and not tensors_of(data) and not hasattr(data, "__array__"):
            raise ArgumentError(
                f"the data are {kind_of(data)}, and there are targets beside them",
                "pass it alone: its batches are pairs (inputs, targets)",
            )
        _require_tensors("targets", targets)
        data = (data, targets)
    part = current_part()
    if not _is_several(data):
        if part:
            part.seen.append(f"{checksum(data):08x}")
        return Batches([data], device, chunk_size, is_one=True, part=part)
    if isinstance(data, Iterator):
        raise ArgumentError(
            f"the batches are {kind_of(data)}, which can be read once only",
            "give a list or a DataLoader: a product with the Hessian reads all batches again",
        )
    if part:
        part.seen.append(f"{checksum(next(iter(data), ())):08x}")
        data = part.batches(data)
    return Batches(data, device, chunk_size)


def _is_several(data: Any) -> bool:
    """Whether these are batches, not one. Objects of graphs can be iterated, too, over what they hold by name."""
    is_one = isinstance(data, Tensor | Mapping | tuple) or dataclasses.is_dataclass(data) or hasattr(data, "keys")
    return not is_one and isinstance(data, Iterable)


class Batches:
    """Batches, kept where they take little of the memory, else read anew at every pass.

    Those of a loader are read twice beforehand, and compared by a checksum at every further reading.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        device: torch.device | None,
        chunk_size: int | None = None,
        is_one: bool = False,
        part: Part | None = None,
    ) -> None:
        """device: where they go; is_one: `batches` holds a single one, of which a rank takes `part`."""
        self._loader, self.chunk_size, self.is_one = batches, chunk_size, is_one
        self._part = part if is_one else None
        self._first, self._stride = (some.rank, some.size) if (some := current_part()) else (0, 1)
        self._sums, self.sizes = list[int](), list[int]()
        kept: list[Batch] | None = []
        num_bytes = 0
        with blaming("the loader fails", _READ):
            for i, batch in enumerate(batches):
                where = "" if is_one else f" of batch {i}"
                tensors = _require_tensors(f"the data{where}", batch)
                self.device = device or tensors[0].device
                _require_finite(batch, where)
                self.sizes.append(size_of(batch))
                if is_one:
                    self._sums.append(0)
                    continue
                self._sums.append(checksum(batch))
                num_bytes += sum(t.numel() * t.element_size() for t in tensors)
                if kept is not None:
                    # What a loader reuses for its next batch must not change what is kept.
                    kept.append(mapped(torch.clone, batch))
                    kept = kept if num_bytes <= _SHARE * free_memory(self.device) else None
        if not self._sums:
            raise ArgumentError(
                f"the {type(batches).__name__} holds no batch", "give at least one; mind drop_last=True and filters"
            )
        self._kept: list[Batch] | None = [*batches] if is_one else None
        self._current, self._at, self._iterator = None, -1, iter(())
        if not is_one:
            for i in range(len(self)):
                self._read(i)
            if next(self._iterator, None) is not None:
                raise _other(f"it goes on after {len(self)} batches")
            self._kept = kept
        if self._part:
            _require_rows(self._kept[0], self.sizes[0], "spread over ranks") if self._kept else None
            self._part.rows(self.sizes[0])

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def is_cut(self) -> bool:
        """Whether pieces are parts of batches."""
        longest = max(self.sizes)
        return self._part is not None or (self.chunk_size is not None and longest > self.chunk_size)

    @property
    def num_pieces(self) -> int:
        return sum(len(self._cuts(i)) for i in range(len(self)))

    @property
    def sums(self) -> dict[int, int]:
        """The checksum of each batch by its number; on one of several ranks, those of its own, or of one batch all."""
        if self.is_one:
            return {0: checksum(self._read(0))}
        return dict(zip(itertools.count(self._first, self._stride), self._sums, strict=False))

    def pieces(self) -> Iterator[Piece]:
        """Each batch, or each of its chunks, to be read in this order."""
        for i in range(len(self)):
            for at in self._cuts(i):
                yield functools.partial(self.some, i, at)

    def some(self, i: int, at: slice | Tensor | None = None) -> Batch:
        """A batch, or some rows of all its tensors. Raises ArgumentError where these have no common first axis."""
        batch = self._read(i)
        if at is not None:
            _require_rows(batch, self.sizes[i], "cut into chunks")
            with blaming("a batch cannot be taken apart", WHOLE):
                batch = mapped(lambda t: t[at], batch)
        return mapped(lambda t: t.to(self.device), batch)

    def _cuts(self, i: int) -> list[slice | None]:
        size = self.sizes[i]
        mine = self._part.rows(size) if self._part else slice(0, size)
        if not self._part and (self.chunk_size is None or self.chunk_size >= size):
            return [None]
        step = self.chunk_size or size
        return [slice(start, min(start + step, mine.stop)) for start in range(mine.start, mine.stop, step)]

    def _read(self, i: int) -> Batch:
        """A loader has no way to a batch but past those before it: a pass takes them in their order."""
        if self._kept is not None:
            return self._kept[i]
        if self._at == i and self._current is not None:
            return self._current
        if self._at + 1 != i or i == 0:
            self._at, self._iterator = -1, iter(self._loader)
        while self._at < i:
            with blaming("the loader fails", _READ):
                batch = next(self._iterator, None)
            self._at += 1
            if batch is None:
                raise _other(f"it ends after {self._at} of {len(self)} batches")
        if checksum(batch) != self._sums[i]:
            raise _other(f"batch {i} holds other numbers than at first")
        # With one batch alone, the next pass reads it anew.
        self._current = batch if len(self) > 1 else None
        return batch


def _other(what: str) -> ArgumentError:
    return ArgumentError(
        f"the loader gives other data when it is read again: {what}",
        "make it with shuffle=False, without a random sampler and without random augmentation",
    )


def _require_tensors(name: str, data: Any) -> list[Tensor]:
    tensors = tensors_of(data)
    if any(leaf.is_nested for leaf in tensors):
        raise ArgumentError(
            f"{name} hold a nested tensor", "pad it, as by nested.to_padded_tensor(0.0), and give a mask"
        )
    arrays = [leaf for leaf in _leaves(data) if hasattr(leaf, "__array__") and not isinstance(leaf, Tensor)]
    if arrays:
        raise ArgumentError(f"{name} hold {kind_of(arrays[0])}, not a tensor", "give torch.from_numpy(array)")
    if not tensors:
        if callable(data):
            called = getattr(data, "__name__", type(data).__name__)
            raise ArgumentError(f"{name} are the function {called}", "pass the loss by its name: loss=...")
        raise ArgumentError(
            f"{name} hold no tensor: {kind_of(data)}",
            "give a batch (inputs, targets), a dict or another object of tensors, or a list or DataLoader of batches",
        )
    if any(leaf.numel() == 0 and leaf.ndim for leaf in tensors) and size_of(data) == 0:
        raise ArgumentError(f"{name} have no samples", "give at least one")
    return tensors


def _require_finite(batch: Batch, where: str) -> None:
    for name, leaf in _labelled(batch):
        if not is_finite(leaf):
            bad = ~torch.isfinite(leaf).reshape(len(leaf) if leaf.ndim else 1, -1).all(1)
            raise ArgumentError(
                f"{int(bad.sum())} of {len(bad)} rows of {name or 'the tensor'}{where} have NaN or infinite numbers, "
                f"the first at row {int(bad.nonzero()[0])}",
                "leave these samples out, or mend them",
            )


def _require_rows(batch: Batch, size: int, what: str) -> None:
    lengths = {name: t.shape[:1] for name, t in _labelled(batch)}
    if set(lengths.values()) != {(size,)}:
        shown = ", ".join(
            f"{name or 'tensor'} {length[0] if length else 'a number'}" for name, length in lengths.items()
        )
        raise ArgumentError(
            f"a batch whose tensors have no common number of samples is not {what}: {shown}",
            "leave chunk_size out, and give smaller batches; over ranks, give a list of batches",
        )


def size_of(batch: Batch) -> int:
    """The samples of a batch: rows of the targets of a pair, else of all tensors; 0: these have no common number."""
    if isinstance(batch, tuple | list) and len(batch) == 2 and tensors_of(batch[1]):
        batch = batch[1]
    lengths = {len(t) if t.ndim else 0 for t in tensors_of(batch)}
    return lengths.pop() if len(lengths) == 1 else 0


def checksum(tree: Any) -> int:
    """CRC-32 over the bytes of all tensors, their shapes and types."""
    crc = 0
    for tensor in itertools.chain.from_iterable(map(_dense_parts, tensors_of(tree))):
        raw = tensor.detach().contiguous().cpu()
        crc = zlib.crc32(f"{tuple(raw.shape)}{raw.dtype}".encode(), crc)
        crc = zlib.crc32(raw.reshape(-1).view(torch.uint8).numpy().data, crc) if raw.numel() else crc
    return crc


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    """A tensor, or those that a sparse one consists of and its shape."""
    if tensor.layout == torch.strided:
        return [tensor]
    shape = torch.tensor(tensor.shape)
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return [shape, tensor.indices(), tensor.values()]
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    ends = tensor.crow_indices() if by_row else tensor.ccol_indices()
    return [shape, ends, tensor.col_indices() if by_row else tensor.row_indices(), tensor.values()]


def sum_of(sums: Mapping[int, int]) -> str:
    """The checksum of all data from those of their batches."""
    return f"{zlib.crc32(repr(sorted(sums.items())).encode()):08x}"


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a batch."""
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def _leaves(tree: Any) -> list[Any]:
    inside = _inside(tree)
    return [tree] if inside is None else [leaf for value in inside.values() for leaf in _leaves(value)]


def _named(tree: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    inside = _inside(tree)
    if isinstance(tree, Tensor):
        yield name, tree
    for key, value in (inside or {}).items():
        yield from _named(value, f"{name}.{key}" if name else str(key))


def _labelled(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Tensors by name, those of a pair as inputs and targets."""
    is_pair = type(batch) in (tuple, list) and len(batch) == 2
    return _named({"inputs": batch[0], "targets": batch[1]} if is_pair else batch, "")


def _inside(tree: Any) -> Mapping[Any, Any] | None:
    """What a container holds, by name or place; None for what is none."""
    if isinstance(tree, Tensor | str | bytes):
        return None
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    if callable(getattr(tree, "keys", None)) and hasattr(tree, "__getitem__"):
        return {key: tree[key] for key in tree.keys()}  # noqa: SIM118
    attributes = getattr(tree, "__dict__", {})
    if not attributes and dataclasses.is_dataclass(tree):
        # Of one with slots.
        attributes = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    has_tensors = (
        not isinstance(tree, type) and not callable(tree) and any(isinstance(v, Tensor) for v in attributes.values())
    )
    return attributes if has_tensors else None


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """A copy of a batch with each of its tensors put through a function; containers keep their types."""
    if isinstance(tree, Tensor):
        return function(tree)
    inside = _inside(tree)
    if inside is None:
        return tree
    new = {key: mapped(function, value) for key, value in inside.items()}
    if type(tree) in (dict, list, tuple):
        return new if type(tree) is dict else type(tree)(new.values())
    if isinstance(tree, tuple):
        return type(tree)(*new.values())
    if isinstance(tree, list):
        return type(tree)(new.values())
    clone = copy.copy(tree)
    is_mapping = callable(getattr(tree, "keys", None))
    for key, value in new.items():
        if is_mapping:
            clone[key] = value
        else:
            object.__setattr__(clone, key, value)
    return clone


def fresh(tree: Any, dtype: torch.dtype) -> Any:
    """A copy in a precision: models and losses may work in place."""
    return mapped(lambda t: in_precision(t.detach(), dtype).clone(), tree)


def shapes(tree: Any) -> str:
    """The shapes of a batch's tensors."""
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape))
    return ", ".join(f"{name} {tuple(t.shape)}" for name, t in _named(tree, ""))
