"""A file that was checked against its own config: its attributes, its tables and the lengths of their axes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from landscape.config import BLOCKS, PAIRS, Config, HessianConfig, TrainConfig, replace
from landscape.errors import ConfigError, lookup
from landscape.storage import schema, schema_hessian
from landscape.storage.checksum import crc32_of_arrays, crc32_of_attributes
from landscape.storage.guard import Array, Guard, Stored
from landscape.storage.table import Scales, TableReader, add_dataset

PARTS = ["E", "W", "V", "bias"]
NAMED = {
    "end": ["lowest", "highest"],
    "sign": ["negative", "zero", "positive"],
    "part": PARTS,
    "pair": [",".join(pair) for pair in PAIRS],
}
"""Axes of a Hessian file whose labels never change."""
STATUS = ("running", "complete", "interrupted", "diverged")
ROWS = 1 << 20
"""Most rows of a table that are taken from a file: what is done with them stays quick."""

_MADE_BY: dict[str, type[str] | type[int]] = {
    **dict.fromkeys(("schema", "schema_version", "config", "created", "landscape_version", "git_commit"), str),
    **dict.fromkeys(("python_version", "torch_version", "numpy_version", "h5py_version", "hdf5_version"), str),
    **dict.fromkeys(("device", "hostname", "argv"), str),
    "git_dirty": int,
}
EVENTS = ("memorise_step", "grok_step")
ATTRIBUTES: dict[str, dict[str, type[str] | type[int]]] = {
    schema.RUN: {**_MADE_BY, "run_id": str, "seed": int},
    schema.HESSIAN: {
        **_MADE_BY,
        **dict.fromkeys(("parent_run_id", "parent_sha256", "parent_config", "objective", "dtype", "method"), str),
        **dict.fromkeys(EVENTS, int),
    },
}
"""The root attributes that `attrs_crc32` covers; beside them stands `status`, which a finished file changes."""


def write_attributes(file: h5py.File, kind: str, attrs: Mapping[str, Any]) -> None:
    """Give a new file its schema, its attributes and their checksum; a rewritten file keeps its schema version."""
    attrs = {"schema_version": schema.VERSION, **attrs, "schema": kind}
    file.attrs.update(attrs)
    file.attrs["attrs_crc32"] = crc32_of_attributes({name: attrs[name] for name in ATTRIBUTES[kind]})


def known_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Root attributes with None for the steps of events that never came."""
    return {n: None if n in EVENTS and value == schema.UNKNOWN else value for n, value in attrs.items()}


def write_data(file: h5py.File, data: Mapping[str, Array], scales: Scales) -> None:
    """Give a new run file its pairs and their checksum."""
    group = file.create_group("data")
    for field in schema.DATA:
        add_dataset(group, field, field.dims, data[field.name].shape, scales, field.dtype)[...] = data[field.name]
    group.attrs["crc32"] = crc32_of_arrays(data)


def parameters(config: TrainConfig) -> tuple[str, ...]:
    """The parameters that the model of a run has."""
    missing = {*(() if config.model == "embedding" else ("E",)), *(() if config.bias else ("b1", "b2"))}
    return tuple(f.name for f in schema.PARAMETERS if f.name not in missing)


def axes(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes of a run's parameters, data and resume slots."""
    p, f = config.p, config
    width = lookup({"embedding": f.embed_dim, "onehot": f.vocabulary, "scalar": 1}, "model", f.model)
    samples = p * (p - 1) if f.task == "div" else p * p
    free = samples - round((f.test_fraction or 0) * samples)
    return {
        "token": f.vocabulary,
        "embed": f.embed_dim,
        "hidden": f.hidden,
        "slot_embed": f.tokens * width,
        "class": p,
        "sample": samples,
        "slot": f.tokens,
        "rng_word": 6,
        "train_sample": min(round(f.train_fraction * samples), free),
    }


def block_sizes(config: TrainConfig) -> dict[str, int]:
    """Number of parameters of every block of a run's model."""
    lengths, names = axes(config), parameters(config)
    size = {f.name: math.prod(lengths[d] for d in f.dims) for f in schema.PARAMETERS if f.name in names}
    return {block: sum(size.get(n, 0) for n in members) for block, members in BLOCKS.items()}


def hessian_scales(sizes: Mapping[str, int], k: int) -> dict[str, Any]:
    """Labels of the axes of a Hessian file whose blocks have these sizes."""
    rows = {f"param_row_{b}": range(n) for b, n in sizes.items()}
    return {"block": list(sizes), "other_block": list(sizes), **NAMED, "rank": range(k), **rows}


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What a file must hold by its config; `lengths` are those of all axes but the rows'."""

    tables: tuple[schema.Table, ...]
    lengths: dict[str, int]
    parameter: str


def plan_run(train: TrainConfig) -> _Plan:
    """What the file of a run holds."""
    names = parameters(train)
    tables = tuple(t.present(names) for t in schema.RUN_TABLES if t is not schema.MOMENTS or train.optimizer != "sgd")
    return _Plan(tables, {"resume_slot": 2, **axes(train)}, "f4" if train.dtype == "float32" else "f8")


def _plan_hessian(
    train: TrainConfig, config: HessianConfig, sizes: Mapping[str, int], is_refined: bool, has_search: bool
) -> _Plan:
    full = tuple(b for b, n in sizes.items() if config.is_dense(n))
    tables = [
        schema_hessian.ROOT,
        schema_hessian.spectrum_table(full),
        schema_hessian.density_table(config.blocks),
    ]
    tables += [schema_hessian.vectors_table(config.blocks)] if config.eigenvectors else []
    tables += [schema_hessian.CRITICAL.present(parameters(train))] if is_refined else []
    tables += [schema_hessian.SEARCH.present(parameters(train))] if has_search else []
    named = {"block": len(sizes), "other_block": len(sizes), **{axis: len(labels) for axis, labels in NAMED.items()}}
    rows = {f"param_row_{b}": n for b, n in sizes.items()}
    return _Plan(tuple(tables), {"resume_slot": 2, **axes(train), **named, "rank": config.k, **rows}, "f8")


class Contents:
    """An opened file of which every object that the schema names has passed its checks.

    attrs: root attributes; config: the JSON among them; train: the config of the run; tables: by group; absent:
    datasets younger than the file; data: arrays of a run by name; lengths and scales: of all axes but the rows'.
    """

    def __init__(self, guard: Guard, kind: str) -> None:
        """Raises FileError for whatever `landscape` would not have written, before any array is read."""
        self._guard = guard
        self.attrs = self._attributes(ATTRIBUTES[kind])
        self.config: dict[str, Any] = {}
        self.data: dict[str, Stored] = {}
        self.scales: dict[str, Any] = {}
        if kind == schema.RUN:
            self.config, self.train = self._parse("config", TrainConfig())
            plan = plan_run(self.train)
            self._agree("seed", self.train.seed)
        else:
            _, self.train = self._parse("parent_config", TrainConfig())
            self.config, analysis = self._parse("config", HessianConfig())
            sizes = {block: block_sizes(self.train)[block] for block in analysis.blocks}
            is_refined = "steps" not in self.config or guard.has("critical_point")
            plan = _plan_hessian(self.train, analysis, sizes, is_refined, guard.has(schema_hessian.SEARCH.group))
            self._agree("objective", analysis.objective)
            self._agree("method", analysis.method)
        self.lengths = plan.lengths
        tables = [table.at(self.attrs["schema_version"]) for table in plan.tables]
        self.tables = {table.group: self._table(table, plan.parameter) for table in tables}
        self.absent = [
            f.name for now, then in zip(plan.tables, tables, strict=True) for f in now.fields if f not in then.fields
        ]
        if kind == schema.RUN:
            group = guard.group("data")
            for f in schema.DATA:
                self.data[f.name] = guard.dataset(group, f"data/{f.name}", f.dims, f.dtype, self.lengths)
            self.data_crc32 = guard.attribute("crc32", int, group)
        else:
            # Only where the shapes agree is a length more than a claim.
            self.scales = hessian_scales(sizes, analysis.k)

    def samples(self) -> dict[str, Array]:
        """The arrays of a run's data. Raises FileError if they fail their checksum or no task has them."""
        found = {name: stored.read() for name, stored in self.data.items()}
        if self.data_crc32 not in (None, crc32_of_arrays(found)):
            raise self._guard.refuse("data fails its checksum")
        tokens, labels, split = (found[f.name] for f in schema.DATA)
        codes: Any = schema.SPLIT["flag_values"]
        if (
            tokens.min() < 0
            or tokens.max() >= self.lengths["token"]
            or labels.min() < 0
            or labels.max() >= self.lengths["class"]
            or not np.isin(split, codes).all()
            or (split == 0).sum() != self.lengths["train_sample"]
        ):
            raise self._guard.refuse("data holds tokens, labels or a split that its config does not give")
        return found

    def close(self) -> None:
        """Close the file."""
        self._guard.close()

    def _attributes(self, names: Mapping[str, type[str] | type[int]]) -> dict[str, Any]:
        found: dict[str, Any] = {name: self._guard.require(name, kind) for name, kind in names.items()}
        crc32 = self._guard.attribute("attrs_crc32", int)
        if crc32 not in (None, crc32_of_attributes(found)):
            raise self._guard.refuse("its attributes fail their checksum")
        status = self._guard.require("status", str)
        if status not in STATUS:
            raise self._guard.refuse(f"its status is {status!r}, none of {', '.join(STATUS)}")
        found["status"] = status
        # What the writer's machine calls its files need not be UTF-8; what is served is.
        text = {n: v.encode("utf-8", "surrogateescape") for n, v in found.items() if isinstance(v, str)}
        return found | {name: raw.decode("utf-8", "replace") for name, raw in text.items()}

    def _parse(self, name: str, base: Config) -> tuple[dict[str, Any], Config]:
        """A config among the attributes, as JSON and checked."""
        try:
            data = json.loads(self.attrs[name])
            if not isinstance(data, dict):
                raise TypeError("no JSON object")
            return data, replace(base, data)
        except (ValueError, TypeError, ArithmeticError, RecursionError, ConfigError) as error:
            raise self._guard.refuse(f"its {name} cannot be: {str(error)[:200]}") from error

    def _agree(self, name: str, wanted: str | int) -> None:
        if self.attrs[name] != wanted:
            raise self._guard.refuse(f"its {name} is {self.attrs[name]!r}, but {wanted!r} in its config")

    def _table(self, table: schema.Table, parameter: str) -> TableReader:
        guard, place = self._guard, "" if table.group == "/" else f"{table.group}/"
        group, lengths = guard.group(table.group), {**self.lengths}
        stored = {}
        for f in (schema.Field(table.row, (), "i8", ""), *table.fields, schema.COMMIT):
            dtype = parameter if f.dtype == schema.PARAM else f.dtype
            stored[f.name] = guard.dataset(group, f"{place}{f.name}", (table.row, *f.dims), dtype, lengths)
        if lengths[table.row] > ROWS:
            raise guard.refuse(f"{table.group} has {lengths[table.row]:,} rows; at most {ROWS:,} are read")
        named = guard.require("fields", str, stored["crc32"].id)
        if str(named).split() != [f.name for f in table.fields]:
            raise guard.refuse(f"{place}crc32 covers {str(named)[:200]!r}, not the datasets of its table")
        return TableReader(guard.path, table, stored, self.attrs["status"] == "running")
