"""Which options of a training run go together."""

from __future__ import annotations

import itertools
import math
from typing import Any

from landscape.choices.optimizers import OPTIMIZERS
from landscape.choices.samplers import SAMPLERS
from landscape.choices.tasks import MODULUS, TASKS, is_prime
from landscape.errors import ConfigError

_EMBEDDED = ("embedding", "transformer")
"""Models with an E of its own rate."""


def require_combination(config: Any) -> None:
    """Raise ConfigError for options of a TrainConfig, each fit by itself, that do not go together."""
    _require_task(config)
    _require_start(config)
    _require_penalty(config)
    _require_model(config)
    _require_ratio(config)
    _require_kick(config)


def _require_task(config: Any) -> None:
    """Raise ConfigError for a modulus that the task cannot have, and for a text where there is none or too much."""
    if config.reads_text:
        _require_text(config)
        return
    for name in ("text", "vocabulary", "context", "samples"):
        if getattr(config, name) != getattr(type(config), name):
            raise ConfigError(
                f"{name} is {getattr(config, name)}, but task {config.task} reads no text",
                f"use --task text, or leave out --{name}",
            )
    if config.p < 2:
        raise ConfigError(f"p is {config.p}; arithmetic mod p needs p >= 2", "pick a prime such as 59 or 97")
    if TASKS[config.task].divides and not is_prime(config.p):
        around = (q for i in itertools.count(1) for q in (config.p - i, config.p + i) if q <= MODULUS)
        raise ConfigError(
            f"p is {config.p}, not a prime; division mod p needs one",
            f"the nearest prime is {next(filter(is_prime, around))}",
        )


def _require_text(config: Any) -> None:
    """Raise ConfigError for options that take numbers where the task has words."""
    if not config.text:
        raise ConfigError("task text has no text", "name a file in UTF-8 with --text")
    if config.model == "scalar":
        raise ConfigError(
            "model scalar takes the tokens' numbers, but words of a text have none", "use another --model"
        )
    if SAMPLERS[config.sampler].ranks:
        raise ConfigError(
            f"sampler {config.sampler} gives numbers a frequency, but words of a text have their own",
            "use --sampler random, uniform or frequency_aware",
        )
    if config.start != "own":
        raise ConfigError(f"start is {config.start}, but a text has no `op` and `=`", "leave out --start")


def _require_model(config: Any) -> None:
    """Raise ConfigError for options that the model does not have or cannot combine."""
    if config.model == "transformer":
        if config.embed_dim % config.heads:
            raise ConfigError(
                f"embed_dim {config.embed_dim} cannot be divided into {config.heads} heads",
                f"--heads takes a divisor of --embed-dim, such as {math.gcd(config.embed_dim, config.heads)}",
            )
        if config.norm != "none" and config.embed_dim <= 2:
            what = "one number is constant" if config.embed_dim == 1 else "two numbers is their order alone"
            raise ConfigError(
                f"norm is {config.norm} and embed_dim {config.embed_dim}: LayerNorm of {what}",
                "raise --embed-dim, or use --norm none",
            )
        if config.freeze == "W" or config.lr_ratio == "curvature" or config.init_scale_W != 1:
            raise ConfigError(
                "model transformer has no W, but freeze, lr_ratio or init_scale_W asks for one",
                "use --freeze none or E, prop41, auto or a number for --lr-ratio, and leave out --init-scale-W",
            )
        return
    for name in ("layers", "heads", "norm", "positions", "tied"):
        if getattr(config, name) != getattr(type(config), name):
            raise ConfigError(
                f"{name} is {getattr(config, name)}, but model {config.model} is no Transformer",
                f"use --model transformer, or leave out --{name}",
            )
    if config.model != "embedding" and (
        config.freeze == "E" or isinstance(config.lr_ratio, str) or SAMPLERS[config.sampler].follow
    ):
        raise ConfigError(
            f"model {config.model} has no E, but freeze {config.freeze}, lr_ratio {config.lr_ratio} or sampler "
            f"{config.sampler} asks for one",
            "use --model embedding, or leave out --freeze, --lr-ratio and --sampler",
        )
    if config.model == "tables" and config.lr_ratio != 1:
        raise ConfigError(
            f"lr_ratio is {config.lr_ratio}, but model tables has no E with a rate of its own",
            "use --model embedding, or leave out --lr-ratio",
        )


def _require_ratio(config: Any) -> None:
    """Raise ConfigError for learning rates of E that the run cannot measure or use."""
    if config.lr_E is not None and (config.lr_ratio != 1 or config.lr == 0 or config.model not in _EMBEDDED):
        raise ConfigError(
            f"lr_E is {config.lr_E} beside lr_ratio {config.lr_ratio}, lr {config.lr} and model {config.model}",
            "--lr-E takes the place of --lr-ratio, and needs an --lr above 0 and --model embedding or transformer",
        )
    if config.freeze != "none" and isinstance(config.lr_ratio, str):
        raise ConfigError(
            f"lr_ratio {config.lr_ratio} sets the rate of E beside that of W, but {config.freeze} is frozen",
            "use a number for --lr-ratio, or --freeze none",
        )
    if config.lr_ratio == "auto" and math.isnan(OPTIMIZERS[config.optimizer](config.momentum).edge_of_stability()):
        raise ConfigError(
            f"lr_ratio is auto, but the edge of stability of optimizer {config.optimizer} is not known",
            "give the optimiser an edge_of_stability, or use a number for --lr-ratio",
        )


def _require_start(config: Any) -> None:
    """Raise ConfigError for initial values that the run cannot have, and a freeze of nothing."""
    if config.freeze_from and config.freeze == "none":
        raise ConfigError(
            f"freeze_from is {config.freeze_from}, but nothing is frozen", "name a matrix with --freeze E or W"
        )
    if config.start == "folded" and (config.model, config.tokens, config.bias) != ("embedding", 2, True):
        raise ConfigError(
            f"start is folded, but the run has model {config.model}, {config.tokens} tokens and bias {config.bias}",
            "only --model embedding with --tokens 2 and biases starts so; or use --start own",
        )


def _require_kick(config: Any) -> None:
    """Raise ConfigError for kicks that the run cannot have."""
    if config.kick == "none":
        for name in ("kick_from", "kick_every", "kick_size"):
            if getattr(config, name) != getattr(type(config), name):
                raise ConfigError(
                    f"{name} is {getattr(config, name)}, but nothing is kicked", "name a direction with --kick"
                )
    elif config.model != "embedding" or config.freeze != "none":
        raise ConfigError(
            f"kick is {config.kick}, but model is {config.model} and freeze {config.freeze}",
            "kicks take --model embedding and --freeze none",
        )


def _require_penalty(config: Any) -> None:
    """Raise ConfigError for a weight decay of V and a nuclear norm that the run cannot have."""
    if config.weight_decay_V is not None and config.model == "transformer":
        raise ConfigError(
            f"weight_decay_V is {config.weight_decay_V}, but model transformer has no V that unembeds",
            "leave out --weight-decay-V, or use another --model",
        )
    if config.penalty != "nuclear":
        return
    if config.model != "tables":
        raise ConfigError(
            f"penalty nuclear acts on tables, but the model is {config.model}", "use --model tables, or --penalty l2"
        )
    if config.freeze == "W":
        raise ConfigError("penalty nuclear moves the tables W, but W is frozen", "use --freeze none, or --penalty l2")
