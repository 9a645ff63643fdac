"""Options that are set together, by name: data alone, which `config.preset` makes configs of."""

from __future__ import annotations

from typing import Any

_TRANSFORMER = {
    "model": "transformer",
    "tokens": 3,
    "optimizer": "adamw",
    "lr": 0.001,
    "betas": (0.9, 0.98),
    "warmup": 10,
}
_GROK = {"steps": 6000, "stop_test_accuracy": 0.95, "extra_steps": 1000}
_SMALL = {**_GROK, "p": 59, "train_fraction": 0.4}
PRESETS: dict[str, dict[str, Any]] = {
    "demo": {
        **_GROK,
        "p": 31,
        "train_fraction": 0.6,
        "batch_size": "full",
        "tokens": 2,
        "embed_dim": 12,
        "hidden": 48,
        "steps": 3000,
        "extra_steps": 200,
        "checkpoint_every": 25,
    },
    "quick": {**_SMALL, "tokens": 2, "embed_dim": 16, "hidden": 64, "checkpoint_every": 50},
    "mid": {**_SMALL, "test_fraction": 0.2, "embed_dim": 64, "hidden": 256, "checkpoint_every": 100},
    "paper": {**_GROK, "test_fraction": 0.2, "steps": 10000, "checkpoint_every": 200, "metrics_every": 50},
    "transformer": {
        **_TRANSFORMER,
        "p": 59,
        "embed_dim": 16,
        "heads": 2,
        "hidden": 64,
        "lr": 0.01,
        "weight_decay": 0.5,
        "batch_size": "full",
        "train_fraction": 0.5,
        "steps": 1500,
        "checkpoint_every": 50,
    },
    "nanda": {
        **_TRANSFORMER,
        "p": 113,
        "weight_decay": 1.0,
        "batch_size": "full",
        "steps": 50_000,
        "checkpoint_every": 100,
        "metrics_every": 100,
    },
    "power": {
        **_TRANSFORMER,
        "tokens": 4,
        "layers": 2,
        "norm": "post",
        "positions": "sinusoidal",
        "bias": False,
        "weight_decay": 1.0,
        "train_fraction": 0.5,
        "steps": 10_000,
        "checkpoint_every": 100,
        "metrics_every": 50,
    },
}
