"""What captions say about the runs: the options they share, those that vary, and the points measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from landscape.choices.tasks import TEXT
from landscape.models.embedding_mlp.blocks import CLAIM, CONTROL, RATE_RATIO
from landscape.report.figures.sources import Source
from landscape.text import first_few

_SETUP = {
    "task": "Task {}",
    "p": "p = {}",
    "tokens": "{} tokens",
    "vocabulary": "{} words",
    "context": "context {}",
    "model": "{} input",
    "layers": "{} layers",
    "heads": "{} heads",
    "norm": "LayerNorm {}",
    "embed_dim": "d = {}",
    "hidden": "h = {}",
    "activation": "{}",
    "optimizer": "{}",
    "lr": "lr {}",
    "lr_ratio": f"{RATE_RATIO} {{}}",
    "weight_decay": "weight decay {}",
    "penalty": "penalty {}",
    "batch_size": "batch {}",
    "seed": "seed {}",
}
"""The options that every caption names."""
_SYMBOL = {"embed_dim": "d", "hidden": "h", "lr_ratio": RATE_RATIO}
_NETWORK = {"model", "layers", "heads", "norm", "embed_dim", "hidden", "activation"}
_OF_PAIRS, _OF_TEXTS = {"p", "tokens"}, {"text", "vocabulary", "context", "samples"}
_OF_TRANSFORMERS = {"layers", "heads", "norm", "positions", "tied"}
_WITHOUT_EFFECT = {"device", "checkpoint_every", "checkpoint_log", "checkpoint_at", "metrics_every"}
_LISTED = 12
"""Values written out at most."""


def what_was_run(sources: Sequence[Source]) -> str:
    """The options that all runs share, and the values of each option that varies."""
    found = _distinct(_recorded(source.config) for source in sources if source.is_recorded)
    by_name = _options(sources)
    shared = [_said(name, values[0]) for name, values in by_name.items() if len(values) == 1 and name in _SETUP]
    varied = [f"{symbol(name)} {_values(values)}" for name, values in by_name.items() if len(values) > 1]
    parts = [", ".join(shared), f"Varied: {'; '.join(varied)}" * bool(varied)]
    parts += [f"Recorded: {_values(found)}"] * bool(found)
    return ". ".join(filter(None, parts)) + "."


def _options(sources: Sequence[Source]) -> dict[str, list[Any]]:
    """The values of each option of the runs of `landscape train` that has an effect, by name."""
    configs = [source.config for source in sources if not source.is_recorded]
    names = (*_SETUP, *(option for option in configs[0] if option not in _SETUP)) if configs else ()
    values = {name: _distinct(c[name] for c in configs if _takes_part(name, c)) for name in names}
    return {name: found for name, found in values.items() if found and name not in _WITHOUT_EFFECT}


def varied(sources: Sequence[Source]) -> list[str]:
    """The options whose values differ between the runs, with the seed where it does."""
    return [name for name, values in _options(sources).items() if len(values) > 1]


def option(source: Source, name: str) -> str:
    """The value of an option in a run; empty where it has no part."""
    config = source.config
    return _text(config[name]) if name in config and _takes_part(name, config) else ""


def symbol(name: str) -> str:
    """What an option is called in reports."""
    return _SYMBOL.get(name, name.replace("_", " "))


def _recorded(config: Mapping[str, Any]) -> str:
    return f"{config['model']} with {config['num_parameters']:,} parameters"


def network(config: Mapping[str, Any]) -> str:
    """The network of a run in a few words."""
    return ", ".join(_said(n, config[n]) for n in _SETUP if n in _NETWORK and _takes_part(n, config))


def _said(name: str, value: Any) -> str:
    """An option and its value."""
    if (name, value) == ("model", "transformer"):
        return "Transformer"
    said = _SETUP[name].format(_text(value))
    return said.removesuffix("s") if value == 1 and said.endswith("s") else said


def _takes_part(name: str, config: Mapping[str, Any]) -> bool:
    """Whether an option has a part in a run."""
    model, reads_text = str(config["model"]), config.get("task") == TEXT
    if name in _OF_PAIRS or name in _OF_TEXTS:
        return reads_text == (name in _OF_TEXTS)
    if name == "embed_dim":
        return model in ("embedding", "tables", "transformer")
    if name == "penalty":
        return model == "tables"
    return name not in _OF_TRANSFORMERS or model == "transformer"


def control(sources: Sequence[Source]) -> str:
    """Which pair is the control for which, where the model has them; else empty."""
    ours = [source for source in sources if not source.is_recorded and "pair" in source.measured]
    pairs = {str(pair) for s in ours for pair in s.measured["pair"].values}
    return f"{CONTROL} is the control for {CLAIM}." if {CLAIM, CONTROL} <= pairs else ""


def objectives(sources: Sequence[Source]) -> str:
    """The objectives of the Hessian files."""
    return " and ".join(_distinct(source.hessian_attrs["objective"] for source in sources))


def where(sources: Sequence[Source]) -> str:
    """Whether the measured points lie on a training path or were refined from one."""
    found = []
    if path := [source for source in sources if not source.is_refined]:
        norm = f"{min(_grad_norms(path)):.2g}"
        where_from = "These are points on a training path, not critical points"
        found.append(f"{where_from}: the smallest gradient norm of a block is {norm}.")
    if refined := [source for source in sources if source.is_refined]:
        names, norm = ", ".join(source.label for source in refined), f"{max(_grad_norms(refined)):.2g}"
        found.append(f"Refined towards a critical point: {names}; the largest gradient norm of a block is {norm}.")
    return " ".join(found)


def listed(numbers: Mapping[str, str]) -> str:
    """The key numbers of a figure as one sentence."""
    return "; ".join(f"{name}: {value}" for name, value in numbers.items()) + "."


def _grad_norms(sources: Sequence[Source]) -> list[float]:
    norms = np.concatenate([source.measured["grad_norm"].values.ravel() for source in sources])
    return norms[np.isfinite(norms)].tolist() or [np.nan]


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once: sorted numbers, then words."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return sorted(found, key=lambda x: (isinstance(x, str), x if isinstance(x, int | float) else 0))


def _values(values: Sequence[Any]) -> str:
    return first_few(list(map(_text, values)), _LISTED)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
