"""Names, axes and lengths of the embedding MLP's parameters and data in files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.choices.tasks import TASKS
from landscape.config import TrainConfig, replace
from landscape.errors import FileError, in_file, lookup
from landscape.problems.embedding_mlp.blocks import BLOCKS
from landscape.storage.layout import misfit
from landscape.storage.schema import PARAM, Field, Table
from landscape.storage.strings import COPY_AGAIN

if TYPE_CHECKING:
    from landscape.storage.runs import RunReader

PARAMETERS = (
    Field("E", ("token", "embed"), PARAM, "embedding matrix", needs="E"),
    Field("W", ("hidden", "slot_embed"), PARAM, "weight of the first linear layer", needs="W"),
    Field("b1", ("hidden",), PARAM, "bias of the first linear layer", needs="b1"),
    Field("V", ("class", "hidden"), PARAM, "weight of the output layer", needs="V"),
    Field("b2", ("class",), PARAM, "bias of the output layer", needs="b2"),
)
SPLIT: dict[str, object] = {"flag_values": [0, 1, 2], "flag_meanings": "train test unused"}
DATA = Table(
    "data",
    "",
    (
        Field("tokens", ("sample", "slot"), "i4", "input tokens"),
        Field("labels", ("sample",), "i4", "right answer"),
        Field("split", ("sample",), "i1", "use of the pair", attrs=SPLIT),
    ),
)


def parameters(config: TrainConfig) -> tuple[str, ...]:
    """The parameters that the model of a run has."""
    missing = {*(() if config.model == "embedding" else ("E",)), *(() if config.bias else ("b1", "b2"))}
    return tuple(f.name for f in PARAMETERS if f.name not in missing)


def axes(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes of a run's parameters, data and order of training pairs."""
    p, f = config.p, config
    width = lookup({"embedding": f.embed_dim, "onehot": f.vocabulary, "scalar": 1}, "model", f.model)
    samples = TASKS[f.task].count(p)
    free = samples - round((f.test_fraction or 0) * samples)
    return {
        "token": f.vocabulary,
        "embed": f.embed_dim,
        "hidden": f.hidden,
        "slot_embed": f.tokens * width,
        "class": p,
        "sample": samples,
        "slot": f.tokens,
        "train_sample": min(round(f.train_fraction * samples), free),
    }


def block_sizes(config: TrainConfig) -> dict[str, int]:
    """Number of parameters of every block of a run's model."""
    lengths, names = axes(config), parameters(config)
    size = {f.name: math.prod(lengths[d] for d in f.dims) for f in PARAMETERS if f.name in names}
    return {block: sum(size.get(n, 0) for n in members) for block, members in BLOCKS.items()}


def read_problem(reader: RunReader) -> tuple[TrainConfig, dict[str, NDArray[Any]]]:
    """The config and the data of a run file.

    Raises FileError if its parameters or data contradict the config.
    """
    with in_file(reader.path, "config"):
        config = replace(TrainConfig(), reader.config)
    names, lengths = parameters(config), axes(config)
    wanted = Table("checkpoints", "step", PARAMETERS).present(names, "f4" if config.dtype == "float32" else "f8")
    if wrong := misfit(reader.layout, reader.scales, (wanted, DATA), lengths):
        raise FileError(f"{reader.path}: {wrong}, which its config asks for", COPY_AGAIN)
    data = reader.data()
    tokens, labels, split = (data[f.name] for f in DATA.fields)
    if (
        tokens.min() < 0
        or tokens.max() >= lengths["token"]
        or labels.min() < 0
        or labels.max() >= lengths["class"]
        or not np.isin(split, (0, 1, 2)).all()
        or (split == 0).sum() != lengths["train_sample"]
    ):
        raise FileError(
            f"{reader.path}: data holds tokens, labels or a split that its config does not give", COPY_AGAIN
        )
    return config, data
