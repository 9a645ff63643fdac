"""What captions say about the runs: what all of them share, and the values of what varies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from landscape.report.figures.sources import Source

_SETUP = {
    "task": "Task {}",
    "p": "p = {}",
    "tokens": "{} tokens",
    "model": "{} input",
    "embed_dim": "d = {}",
    "hidden": "h = {}",
    "activation": "{}",
    "optimizer": "{}",
    "lr": "lr {}",
    "lr_ratio": "lr_E/lr_W {}",
    "weight_decay": "weight decay {}",
    "batch_size": "batch {}",
    "seed": "seed {}",
}
"""The options that every caption names."""
_SYMBOL = {"embed_dim": "d", "hidden": "h", "lr_ratio": "lr_E/lr_W"}
_WITHOUT_EFFECT = {"device", "checkpoint_every", "checkpoint_log", "checkpoint_at", "metrics_every"}
_LISTED = 12
"""Values that are written out."""


def what_was_run(sources: Sequence[Source]) -> str:
    """The set-up that all runs share, and each option that differs between them with its values."""
    configs = [source.config for source in sources]
    shared, varied = [], []
    for name in (*_SETUP, *(option for option in configs[0] if option not in _SETUP)):
        values = _distinct(c[name] for c in configs if name != "embed_dim" or c["model"] == "embedding")
        if len(values) == 1 and name in _SETUP:
            shared.append(_SETUP[name].format(_text(values[0])))
        elif len(values) > 1 and name not in _WITHOUT_EFFECT:
            varied.append(f"{_SYMBOL.get(name, name.replace('_', ' '))} {_listed(values)}")
    return ". ".join(part for part in (", ".join(shared), f"Varied: {'; '.join(varied)}" * bool(varied)) if part) + "."


def objectives(sources: Sequence[Source]) -> str:
    """The objective of the Hessian files, or all of them where they differ."""
    return " and ".join(_distinct(source.hessian_attrs["objective"] for source in sources))


def where(sources: Sequence[Source]) -> str:
    """What kind of points were measured: on a path of training, or refined from it."""
    found = []
    path = [s for s in sources if not s.is_refined]
    if path:
        found.append(
            "These are points on a training path, not critical points: the smallest gradient norm of a block is "
            f"{min(_grad_norms(path)):.2g}."
        )
    refined = [s for s in sources if s.is_refined]
    if refined:
        names = ", ".join(s.label for s in refined)
        found.append(
            f"Refined towards a critical point: {names}; the largest gradient norm of a block is "
            f"{max(_grad_norms(refined)):.2g}."
        )
    return " ".join(found)


def _grad_norms(sources: Sequence[Source]) -> list[float]:
    found = [s.measured["grad_norm"].values for s in sources if s.measured is not None]
    known = [float(x) for values in found for x in values[np.isfinite(values)]]
    return known or [np.nan]


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once; numbers in order, before words."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return sorted(found, key=lambda x: (isinstance(x, str), x if isinstance(x, int | float) else 0))


def _listed(values: Sequence[Any]) -> str:
    more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
    return ", ".join(map(_text, values[:_LISTED])) + more


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
