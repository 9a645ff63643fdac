"""The parameters and data of a run as its file holds them, for whatever model: names, axes and lengths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.choices.tasks import TASKS
from landscape.config import TrainConfig, replace
from landscape.errors import FileError, in_file
from landscape.files.hdf5 import COPY_AGAIN
from landscape.files.schema import Field, Table, misfit
from landscape.models.embedding_mlp import blocks as embedding_mlp
from landscape.models.transformer import blocks as transformer

if TYPE_CHECKING:
    from landscape.files.runs import RunReader

SPLIT: dict[str, object] = {"flag_values": [0, 1, 2], "flag_meanings": "train test unused"}
DATA = Table(
    "data",
    "",
    (
        Field("tokens", ("sample", "slot"), "i4", "input tokens"),
        Field("labels", ("sample",), "i4", "right answer"),
        Field("split", ("sample",), "i1", "use of the sample", attrs=SPLIT),
    ),
)


def parameters(config: TrainConfig) -> tuple[Field, ...]:
    """The parameters that the model of a run has, in the order of block `all`."""
    declared = transformer.parameters if config.model == "transformer" else embedding_mlp.parameters
    return declared(config)


def axes(config: TrainConfig) -> dict[str, int]:
    """Lengths of the axes of a run's parameters, data and order of training pairs."""
    f = config
    of_model = transformer.lengths if f.model == "transformer" else embedding_mlp.lengths
    samples = f.samples if f.reads_text else TASKS[f.task].count(f.p)
    free = samples - round((f.test_fraction or 0) * samples)
    return {
        "token": f.num_tokens,
        "embed": f.embed_dim,
        "hidden": f.hidden,
        **of_model(f),
        "class": f.classes,
        "sample": samples,
        "slot": f.slots,
        "train_sample": min(round(f.train_fraction * samples), free),
    }


def number_of_parameters(config: TrainConfig) -> int:
    """How many numbers a run trains."""
    lengths = axes(config)
    return sum(math.prod(lengths[axis] for axis in field.dims) for field in parameters(config))


def read_problem(reader: RunReader) -> tuple[TrainConfig, dict[str, NDArray[Any]]]:
    """The config of a run file, and its data, once its parameters and data are what the config asks for.

    Raises FileError for a file of which they are not.
    """
    reader.require_trained("name the model, its data and its loss: --problem mine.py:problem (docs/your-model.md)")
    with in_file(reader.path, "config"):
        config = replace(TrainConfig(), reader.config)
    fields, lengths = parameters(config), axes(config)
    names, precision = [field.name for field in fields], "f4" if config.dtype == "float32" else "f8"
    wanted = Table("checkpoints", "step", fields).present(names, precision)
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
